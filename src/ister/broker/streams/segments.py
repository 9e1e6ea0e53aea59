"""Where the messages of a stream lie, for those who read sealed segments by themselves.

An answer is true when it is given. Retention, compaction and the move to a remote tier may take
a segment away at any time: a client that does not find it reads from the broker.
"""

from collections.abc import Callable
from typing import NamedTuple

from ister.base import without_secrets
from ister.base.errors import CorruptedError, InternalError, IsterError
from ister.base.limits import LOCATED_ROWS_MAX
from ister.broker.streams.stream import StreamTopic
from ister.log import ChunkBackend, FileBackend, Log, Place, Span

# Every segment in an object store is a request for its header. A client waits for 30 s, and one
# thread of four does nothing else meanwhile.
PAGE_MS = 2_000


class Located(NamedTuple):
    """What a sealed segment has of a stream; `mark` tells it from another file of its name."""

    store: str
    span: Span
    mark: int


class Page(NamedTuple):
    """Segments of a stream, oldest first; `offset` is where the next page begins."""

    rows: list[Located]
    offset: int
    encrypted: bool


def locate(
    topic: StreamTopic, start: int, end: int, done: Callable[[Page | IsterError], object]
) -> None:
    """Tell which sealed segments have the messages `start` to `end` of a stream.

    Never what is not kept any more, though its bytes may still be there.
    """
    log = topic.storage.log
    first = max(start, topic.first_offset)
    last = min(end, topic.next_offset)
    # One more than a page has, to know whether there is another.
    spans = log.sealed(topic.record.topic, first, last, count_max=LOCATED_ROWS_MAX + 1)
    now_ms = topic.storage.clock.monotonic_ms

    def on_marked(found: list[Located | None] | Exception) -> None:
        if isinstance(found, Exception):
            done(found if isinstance(found, IsterError) else InternalError(type(found).__name__))
            return
        offset = spans[len(found) - 1].end_offset if len(found) < len(spans) else end
        rows = [row for row in found if row is not None]
        done(Page(rows, offset, log.options.ciphers is not None))

    is_remote = any(span.segment.place is Place.REMOTE for span in spans)
    worker = topic.storage.reading_of(Place.REMOTE if is_remote else log.home)
    worker.run(lambda: _marked(log, spans[:LOCATED_ROWS_MAX], now_ms), on_marked)


def _marked(log: Log, spans: list[Span], now_ms: Callable[[], int]) -> list[Located | None]:
    """Read the marks of segments; one that cannot be read is `None`. Runs in a thread.

    Stops when it has taken long enough, with one of them at least: of a store that does not answer
    each may take half a minute.
    """
    deadline_ms = now_ms() + PAGE_MS
    found: list[Located | None] = []
    for span in spans:
        row = None
        store = _address(log, span.segment.place)
        if store:
            try:
                row = Located(store, span, log.reader.opened(span.segment).mark)
            except (OSError, CorruptedError):
                # Removed since, or broken: a client that reads it from the broker gets the error.
                row = None
        found.append(row)
        if now_ms() >= deadline_ms:
            break
    return found


def _address(log: Log, place: Place) -> str:
    """Return the address of the store a segment is in; empty when only this process can read it."""
    backend = log.backend
    if place is Place.REMOTE and log.options.remote is not None:
        url = log.options.remote.url
    elif isinstance(backend, ChunkBackend):
        url = backend.store.url
    else:
        assert isinstance(backend, FileBackend)
        # Disks that are made for tests need not have one.
        url = str(getattr(backend.disk, "url", ""))
    return "" if url.startswith("memory:") else without_secrets(url)
