"""Walks over a stream from an offset on: from memory when it can, else by reading ahead.

Always true: at most one read is under way for a window, and what is read and not yet used is at
most one read more.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from itertools import islice

from ister.base.limits import KIB, MIB
from ister.broker.streams.stream import READ_BYTES, StreamTopic
from ister.codec import Batch

# All windows of a broker together read ahead about so much: a thousand consumers that lag behind
# share it, down to the smallest read that is worth its while.
READ_AHEAD_BYTES = 64 * MIB
READ_BYTES_MIN = 256 * KIB
# Windows looked at when there are too many. More than one, so that their number falls.
LET_GO_AT_ONCE = 4


class ReadAheadBudget:
    """The windows that read from the log at this moment, or hold what they have read.

    Who can use what it has read does so at once. So what was not used for the longest time belongs
    to somebody without credit; when there are too many windows, it is let go, and read once more.
    """

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        # Used last: at the end.
        self._windows: OrderedDict[ReadAhead, None] = OrderedDict()

    @property
    def windows(self) -> int:
        """How many they are."""
        return len(self._windows)

    def use(self, window: "ReadAhead") -> None:
        """Count a window in, or remember that it is in use."""
        known = window in self._windows
        self._windows[window] = None
        self._windows.move_to_end(window)
        if not known and self.crowded:
            for other in list(islice(self._windows, LET_GO_AT_ONCE)):
                if not other.loading and other is not window:
                    other.clear()

    def forget(self, window: "ReadAhead") -> None:
        """A window holds nothing any more."""
        self._windows.pop(window, None)

    @property
    def read_bytes(self) -> int:
        """What one read should ask for."""
        share = READ_AHEAD_BYTES // max(self.windows, 1)
        return min(READ_BYTES, max(READ_BYTES_MIN, share))

    @property
    def crowded(self) -> bool:
        """Whether the smallest reads are too much: who cannot use what it has read lets go."""
        return self.windows * READ_BYTES_MIN > READ_AHEAD_BYTES


class ReadAhead:
    """The batches of one stream from some offset on."""

    __slots__ = (
        "_batches",
        "_from",
        "_life",
        "_loading",
        "_on_loaded",
        "_shared",
        "_topic",
    )

    def __init__(
        self,
        topic: StreamTopic,
        shared: ReadAheadBudget,
        on_loaded: Callable[[Exception | None], object],
    ) -> None:
        self._topic = topic
        self._shared = shared
        self._on_loaded = on_loaded
        self._batches: deque[Batch] = deque()
        self._loading = False
        # The lowest offset that what is read can answer for.
        self._from = 0
        # Raised by `clear`: what an older read brings is not wanted any more.
        self._life = 0

    def batch_at(self, offset: int) -> Batch | None:
        """Return the batch with the message at `offset`, or the next one stored.

        `None` when it has to be read first: `on_loaded` is then called once it may be there.
        Never asks for what is not stored yet.
        """
        batches = self._batches
        if offset < self._from and (batches or self._loading):
            self.clear()
        while batches and _end(batches[0]) <= offset:
            # Who asks for these again must not be given what lies behind them.
            self._from = _end(batches.popleft())
        if batches:
            self._shared.use(self)
            if len(batches) == 1 and not self._loading:
                self._read_on(_end(batches[-1]))
            return batches[0]
        found = self._topic.find(offset)
        if found is not None:
            self._shared.forget(self)
            return found
        if not self._loading:
            self._from = offset
            self._load(offset)
        return None

    @property
    def loading(self) -> bool:
        """Whether a read is under way; when not, what was asked for and not given is not stored."""
        return self._loading

    def clear(self) -> None:
        """Forget what was read: the next offset asked for may be anywhere."""
        self._life += 1
        self._batches.clear()
        self._loading = False
        self._shared.forget(self)

    def _read_on(self, offset: int) -> None:
        if offset < self._topic.next_offset and self._topic.find(offset) is None:
            self._load(offset)

    def _load(self, offset: int) -> None:
        life = self._life
        self._shared.use(self)

        def done(result: list[Batch] | Exception) -> None:
            if life != self._life:
                return
            self._loading = False
            if isinstance(result, Exception):
                self._on_loaded(result)
                return
            self._batches.extend(result)
            # Also when it is nothing: what was planned is gone, and the next call says so.
            self._on_loaded(None)

        self._loading = self._topic.load(offset, self._shared.read_bytes, done)


def _end(batch: Batch) -> int:
    """Return the offset after the last message of a batch."""
    return batch.offsets[-1] + 1


def cut(batch: Batch, start: int, end: int) -> Batch | None:
    """Return the messages of a batch with offsets `start` to `end`, `None` when there are none."""
    offsets = batch.offsets
    if offsets[0] >= start and offsets[-1] < end:
        return batch
    if isinstance(offsets, range):
        first = max(start - offsets.start, 0)
        last = min(end - offsets.start, batch.count)
    else:
        first = sum(o < start for o in offsets)
        last = sum(o < end for o in offsets)
    return batch.slice(first, last) if first < last else None
