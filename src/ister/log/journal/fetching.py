"""Read many objects in order, with several parallel requests.

Always true:
- objects are returned whole, in the order of their names;
- there are at most `AT_ONCE` requests at a time, and at most that many parts of `PART_BYTES` in
  memory, besides the object that is returned: the rest of a large object is read when it is next;
- when a store refuses a request for a while ("503, slow down"), the request is retried later, with
  fewer parallel requests. If the store does not recover, its error is raised.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from queue import SimpleQueue

from ister.base.limits import MIB
from ister.log.journal.backend import Readable

# A start reads up to 256 chunks. With a store that answers in 25 ms this takes 6.4 s one by one,
# and 0.2 s with 32 parallel requests. S3 allows 5,500 reads per second and prefix.
AT_ONCE = 32
# 32 × 1 MiB = 32 MiB. Chunks of an idle broker have a few KiB, those of a busy one up to 8 MiB.
PART_BYTES = 1 * MIB
REST_BYTES = 64 * MIB
# With waits of 0.2, 0.4 … 3.2 s: 6 s in all. The store's client retries several times in each.
ATTEMPTS_MAX = 6
WAIT_S = 0.2


def fetch_in_order(
    backend: Readable,
    names: Sequence[str],
    *,
    at_once: int = AT_ONCE,
    sleep: Callable[[float], None] = time.sleep,
) -> Generator[bytes, None, None]:
    """Yield the content of each object. Raises `FileNotFoundError` or another `OSError`."""
    threads = min(at_once, len(names))
    if threads <= 1:
        for name in names:
            yield _read_rest(backend, name, backend.read(name, 0, PART_BYTES))
        return
    queue: SimpleQueue[_Request | None] = SimpleQueue()
    for number in range(threads):
        # Daemons: a store that does not answer must not keep the process from ending.
        threading.Thread(
            target=_work, args=(backend, queue), name=f"ister-fetch-{number}", daemon=True
        ).start()
    try:
        yield from _Window(backend, names, queue, threads, sleep)
    finally:
        for _ in range(threads):
            queue.put(None)


class _Request:
    """A request for the first part of one object."""

    __slots__ = ("attempts", "done", "name", "result")

    def __init__(self, name: str) -> None:
        self.name = name
        self.attempts = 1
        self.done = threading.Event()
        self.result: bytes | Exception = b""


class _Window:
    """The open requests, oldest first, and how many there may be."""

    def __init__(
        self,
        backend: Readable,
        names: Sequence[str],
        queue: "SimpleQueue[_Request | None]",
        size_max: int,
        sleep: Callable[[float], None],
    ) -> None:
        self._backend = backend
        self._left = deque(names)
        self._queue = queue
        self._size = self._size_max = size_max
        self._sleep = sleep
        self._requests: deque[_Request] = deque()

    def __iter__(self) -> Iterator[bytes]:
        while self._left or self._requests:
            while self._left and len(self._requests) < self._size:
                request = _Request(self._left.popleft())
                self._requests.append(request)
                self._queue.put(request)
            first = self._requests[0]
            first.done.wait()
            if isinstance(first.result, Exception):
                self._retry(first, first.result)
                continue
            self._requests.popleft()
            self._size = min(self._size + 1, self._size_max)
            yield _read_rest(self._backend, first.name, first.result)

    def _retry(self, request: _Request, error: Exception) -> None:
        final = isinstance(error, FileNotFoundError | PermissionError)
        if final or not isinstance(error, OSError) or request.attempts >= ATTEMPTS_MAX:
            raise error
        self._size = max(1, self._size // 2)
        self._sleep(WAIT_S * 2 ** (request.attempts - 1))
        request.attempts += 1
        request.done.clear()
        self._queue.put(request)


def _work(backend: Readable, queue: "SimpleQueue[_Request | None]") -> None:
    while (request := queue.get()) is not None:
        try:
            request.result = backend.read(request.name, 0, PART_BYTES)
        except Exception as error:  # noqa: BLE001 - raised by the reader of the object
            request.result = error
        request.done.set()
        # Keep no reference to the data while waiting for the next request.
        del request


def _read_rest(backend: Readable, name: str, data: bytes) -> bytes:
    """Return the whole object whose first part is `data`."""
    parts = [data]
    asked = PART_BYTES
    while len(parts[-1]) == asked:
        asked = REST_BYTES
        parts.append(backend.read(name, sum(map(len, parts)), asked))
    return b"".join(parts) if len(parts) > 1 else data
