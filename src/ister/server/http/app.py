"""The pages of the HTTP door, as an ASGI application: `/metrics`, `/healthz`, `/readyz`."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

from ister.broker import Broker
from ister.server.http.snapshot import Snapshot, take_snapshot
from ister.server.native import NativeDoor

# ASGI's own shapes: this file is the adapter.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

TEXT = "text/plain; charset=utf-8"
METRICS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Page(NamedTuple):
    """An answer."""

    status: int
    content_type: str
    body: bytes


class App:
    """Answers from the state of the broker and its native door at that moment."""

    def __init__(self, broker: Broker, native: NativeDoor) -> None:
        self._broker = broker
        self._native = native
        self._scrape: asyncio.Lock | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        method = scope["method"]
        page = await self._page(scope["path"], method)
        headers = [
            (b"content-type", page.content_type.encode()),
            (b"content-length", str(len(page.body)).encode()),
            (b"cache-control", b"no-store"),
        ]
        if page.status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": page.status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else page.body})

    async def _page(self, path: str, method: str) -> Page:
        pages = {"/metrics": self._metrics, "/healthz": self._health, "/readyz": self._ready}
        found = pages.get(path)
        if found is None:
            return Page(404, TEXT, b"not found: there are /metrics, /healthz, /readyz\n")
        if method not in ("GET", "HEAD"):
            return Page(405, TEXT, b"only GET\n")
        return await found()

    async def _health(self) -> Page:
        """Whoever answers is alive."""
        return Page(200, TEXT, b"ok\n")

    async def _ready(self) -> Page:
        if self._native.closing:
            return Page(503, TEXT, b"closing\n")
        if error := self._broker.streams.error:
            # Reads and live topics go on; who publishes to streams should go elsewhere.
            return Page(503, TEXT, f"{error}\n".encode())
        return Page(200, TEXT, b"ready\n")

    async def _metrics(self) -> Page:
        if self._scrape is None:
            self._scrape = asyncio.Lock()
        # One scrape at a time: text for a thousand topics takes tens of milliseconds, which a
        # thread spends beside the event loop; many threads would starve it.
        async with self._scrape:
            snapshot = take_snapshot(self._broker, self._native)
            body = await asyncio.to_thread(_render, snapshot)
        return Page(200, METRICS_TEXT, body)


def _render(snapshot: Snapshot) -> bytes:
    # The first scrape loads the library, in its thread, so that start-up need not.
    from ister.server.http.metrics import render_metrics

    return render_metrics(snapshot)
