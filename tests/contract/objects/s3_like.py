"""A small S3 server in this process that fails on request.

It supports what a log needs: PUT with `If-None-Match: *`, GET with ranges, HEAD, DELETE, listing.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from ister.objects import open_store
from ister.objects.remote import RemoteStore

BUCKET = "tests"
CONFLICT = "ConditionalRequestConflict"
SLOW_DOWN = "SlowDown"

# Status, headers, body.
Answer = tuple[int, dict[str, str], bytes]


class S3Like(ThreadingHTTPServer):
    """Objects in memory, and the errors to answer with."""

    daemon_threads = True
    # All connections of a burst are taken at once.
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        # What the next requests of a method are answered with: status, code, whether they are
        # carried out nevertheless.
        self.answers: dict[str, list[tuple[int, str, bool]]] = {}
        # Whether a conditional write replaces what is there, as in some that call themselves S3.
        self.replaces = False
        self.latency_s = 0.0
        # How many requests may be under way; those above get 503.
        self.busy_above = 1_000
        self.counts: dict[str, int] = {}
        self.under_way = 0
        self.under_way_max = 0

    def answer(
        self, method: str, status: int, code: str, *, times: int = 1, carried_out: bool = False
    ) -> None:
        """Answer the next requests of `method` with an error."""
        self.answers.setdefault(method, []).extend([(status, code, carried_out)] * times)

    def store(self, folder: str = "log") -> RemoteStore:
        """Return a client of this server."""
        options = {
            "endpoint": f"http://127.0.0.1:{self.server_address[1]}",
            "region": "us-east-1",
            "skip_signature": "true",
        }
        store = open_store(f"s3://{BUCKET}/{folder}", options)
        assert isinstance(store, RemoteStore)
        return store


@contextmanager
def s3_like() -> Iterator[S3Like]:
    """Run a server until the end of the block."""
    server = S3Like()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body are two writes: the second would wait 40 ms for the first to be confirmed.
    disable_nagle_algorithm = True
    server: S3Like

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._serve("PUT", lambda: self._put(data))

    def do_GET(self) -> None:
        self._serve("GET", self._get)

    def do_HEAD(self) -> None:
        self._serve("HEAD", self._get)

    def do_DELETE(self) -> None:
        self._serve("DELETE", self._delete)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._serve("DELETE", lambda: self._delete_many(body))

    @property
    def _name(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}/")

    def _serve(self, method: str, carry_out: Callable[[], Answer]) -> None:
        server = self.server
        with server.lock:
            server.counts[method] = server.counts.get(method, 0) + 1
            server.under_way += 1
            server.under_way_max = max(server.under_way_max, server.under_way)
            planned = server.answers.get(method)
            error = planned.pop(0) if planned else None
            if server.under_way > server.busy_above:
                error = (503, SLOW_DOWN, False)
                server.counts[SLOW_DOWN] = server.counts.get(SLOW_DOWN, 0) + 1
        if server.latency_s:
            time.sleep(server.latency_s)
        with server.lock:
            if error is None or error[2]:
                status, headers, body = carry_out()
            if error is not None:
                status, headers, body = _error(error[0], error[1])
            server.under_way -= 1
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if method != "HEAD":
            self.wfile.write(body)

    def _put(self, data: bytes) -> Answer:
        objects = self.server.objects
        conditional = self.headers.get("If-None-Match") == "*" and not self.server.replaces
        if conditional and self._name in objects:
            return _error(412, "PreconditionFailed")
        objects[self._name] = data
        return 200, {"ETag": '"etag"'}, b""

    def _get(self) -> Answer:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            return self._list(query.get("prefix", [""])[0])
        data = self.server.objects.get(self._name)
        if data is None:
            return _error(404, "NoSuchKey")
        headers = {"ETag": '"etag"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT"}
        asked = self.headers.get("Range")
        if self.command == "HEAD":
            return 200, headers | {"Content-Length": str(len(data))}, b""
        if asked is None:
            return 200, headers, data
        start, _, end = asked.removeprefix("bytes=").partition("-")
        first, last = int(start), min(int(end), len(data) - 1)
        if first > last:
            return _error(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return 206, headers, data[first : last + 1]

    def _list(self, prefix: str) -> Answer:
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><Size>{len(data)}</Size><ETag>e</ETag>"
            "<LastModified>2025-01-01T00:00:00.000Z</LastModified></Contents>"
            for name, data in sorted(self.server.objects.items())
            if name.startswith(prefix)
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        return 200, {"Content-Type": "application/xml"}, body.encode()

    def _delete(self) -> Answer:
        self.server.objects.pop(self._name, None)
        return 204, {}, b""

    def _delete_many(self, body: bytes) -> Answer:
        names = [part.partition("</Key>")[0] for part in body.decode().split("<Key>")[1:]]
        for name in names:
            self.server.objects.pop(name, None)
        rows = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
        return 200, {}, f"<DeleteResult>{rows}</DeleteResult>".encode()


def _error(status: int, code: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
    return status, {"Content-Type": "application/xml"}, body
