"""Reading sealed segments from outside: by those who were told where they lie, not by the owner.

Nothing is written, locked or kept open beyond a reader's life. Every byte is verified as the owner
verifies it. A segment may vanish at any time, which is a `FileNotFoundError`.
"""

from array import array
from collections.abc import Callable, Iterator

from ister.base.errors import CorruptedError
from ister.log.files.extents import STRIDE, Extent, find_offset, window
from ister.log.files.ports import Keyring
from ister.log.files.segment import Place, Segment, Span
from ister.log.journal.backend import Readable
from ister.log.reading.reading import Reader, Stored, read_window

# Told of a part that will be read soon, once: name, position, size.
Expect = Callable[[str, int, int], object]
# Parts that it is told of beside the one that is read.
AHEAD_COUNT = 2


def sealed_span(
    number: int,
    place: str,
    *,
    size_bytes: int,
    entries_end: int,
    offsets: tuple[int, int],
    window: tuple[int, int] = (0, 0),
) -> Span:
    """Return the span of a segment as its owner described it.

    `offsets` are the first and the end of what it has; `window` is where, when no footer knows.
    """
    segment = Segment(number, Place(place), size_bytes, entries_end)
    return Span(segment, *offsets, 0, 0, window[1] - window[0], *window)


class SealedReader:
    """Reads segments of one store. Any thread may use it."""

    def __init__(self, store: Readable, keyring: Keyring | None = None) -> None:
        self._reader = Reader(store, None, keyring)

    def check(self, span: Span, mark: int) -> None:
        """Make sure that this is the segment which was meant.

        Raises `FileNotFoundError` when it is gone or another file has its name, and
        `EncryptionKeyError` when nobody here can read it.
        """
        if self._reader.opened(span.segment).mark != mark:
            raise FileNotFoundError(f"{span.segment.name} is another file than the one meant")

    def read(
        self,
        span: Span,
        topic: int,
        start: int,
        end: int,
        *,
        bytes_max: int,
        expect: Expect | None = None,
    ) -> Iterator[Stored]:
        """Yield the batches of `topic` with messages from `start` to `end`, in order.

        The first and the last may reach beyond. `bytes_max` is the size of one read. Raises
        `CorruptedError` for what is not intact, and `OSError`.
        """
        segment = span.segment
        windows = self._windows(span, topic, start, end, bytes_max)
        for slot, found in enumerate(windows):
            if expect is not None:
                first = slot + AHEAD_COUNT if slot else 1
                for later in windows[first : slot + AHEAD_COUNT + 1]:
                    expect(segment.name, later.position, later.end - later.position)
            offset = max(start, found.first_offset)
            for stored in read_window(self._reader, segment, found, topic, offset):
                if stored.first_offset >= end:
                    return
                offset = stored.end_offset
                if span.end:
                    # Nobody has said how much of the window is of this topic: of others there may
                    # be 256 KiB around 100 B, and a view would keep them all in memory.
                    stored.batch.detached()
                yield stored
            if offset < min(end, found.end_offset):
                # Broken off at damage, or nothing was there at all.
                raise CorruptedError(
                    segment.name,
                    found.position,
                    f"message {offset} of topic {topic} is not where it should be",
                )

    def _windows(
        self, span: Span, topic: int, start: int, end: int, bytes_max: int
    ) -> list[Extent]:
        """Return the parts of a segment to read, one after the other."""
        if span.end:
            return [Extent(span.position, span.end, *span[1:6])]
        rows = self._reader.rows(span.segment, topic)
        at = find_offset(rows, start)
        rows = rows[at : find_offset(rows, end - 1) + STRIDE]
        windows = []
        at = 0
        while at < len(rows):
            found = window(rows, at, bytes_max)
            windows.append(found)
            at = _behind(rows, found)
        if not windows:
            reason = f"the footer has no message {start} of topic {topic}"
            raise CorruptedError(span.segment.name, span.segment.end, reason)
        return windows


def _behind(rows: "array[int]", found: Extent) -> int:
    """Return where the first row behind a window begins."""
    return find_offset(rows, found.end_offset - 1) + STRIDE
