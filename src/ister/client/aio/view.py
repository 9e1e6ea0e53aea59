"""Views: the last value of every key of a stream, as of now or of a moment in the past.

Also the history of one key, which is read in the same way.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Mapping
from datetime import UTC, datetime
from itertools import repeat
from types import TracebackType
from typing import Any, NamedTuple

from ister.base import EARLIEST, LATEST, Origin, Position, Time
from ister.base.errors import BadRequestError
from ister.client.aio.connection.link import BrokerLink
from ister.client.aio.reader import Reader
from ister.client.session import position_of, time_ms
from ister.codec import Attributes, Batch


class ViewEntry(NamedTuple):
    """The last message of a key."""

    payload: bytes
    topic: str
    offset: int
    publish_time_ms: int
    attributes: Attributes

    @property
    def publish_time(self) -> datetime:
        """When it was published."""
        return datetime.fromtimestamp(self.publish_time_ms / 1000, UTC)


# Payload, topic, offset, publish time, attributes: made by the thousand, so no class of its own.
_Row = tuple[bytes, str, int, int, Attributes | None]


class ViewChange(NamedTuple):
    """A message that has changed a view."""

    key: str
    entry: ViewEntry

    @property
    def is_removed(self) -> bool:
        """Whether it has removed its key."""
        return not self.entry.payload


class View(Mapping[str, bytes]):
    """Payloads by key: read-only, and as it was when it was made, unless it is watched.

    A message without a payload removes its key; one without a key says nothing about any.
    """

    def __init__(self, read: Callable[[Mapping[str, int]], Reader] | None = None) -> None:
        """`read` returns a reader that follows the stream from these offsets on, for `watch`."""
        self._rows: dict[str, _Row] = {}
        self._read = read
        # By topic or partition, the offset from which on messages are not in it.
        self._ends: dict[str, int] = {}

    def __getitem__(self, key: str) -> bytes:
        return self._rows[key][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"View({len(self)} keys)"

    def entry(self, key: str) -> ViewEntry:
        """Return the message of a key with all there is to it; raise `KeyError`."""
        return _entry(self._rows[key])

    async def watch(self) -> AsyncIterator[ViewChange]:
        """Yield each message with a key that is not in the view yet, and have the view follow.

        It goes on with what is published, until the loop over it is left; another `watch` begins
        where that was. The view is as of the change that was yielded last.

        >>> await client.create_topic("/default/rates", kind="stream")
        >>> view = await client.view("/default/rates")
        >>> mid = await client.publish("/default/rates", b"1.08", key="EUR")
        >>> async for change in view.watch():
        ...     print(change.key, view[change.key])
        ...     break
        EUR b'1.08'
        """
        async with self.follower() as reader:
            async for batch in reader:
                for change in self.take(batch):
                    yield change

    def follower(self) -> Reader:
        """Return a reader of what is not in the view."""
        if self._read is None:
            raise BadRequestError("a view is watched if it comes from client.view(...)")
        return self._read(self._ends)

    def take(self, batch: Batch) -> Iterator[ViewChange]:
        """Take in the next messages of the stream one by one, and yield those with a key."""
        for key, row in _rows_of(batch):
            if key is not None:
                self._rows[key] = row
                if not row[0]:
                    del self._rows[key]
            self._ends[batch.topic] = row[2] + 1
            if key is not None:
                yield ViewChange(key, _entry(row))

    @property
    def next_offset(self) -> int:
        """The offset behind the last message that the view was made of.

        With `expected_offset=view.next_offset` a message is stored only if nothing else was stored
        since. Raises `BadRequestError` for a partitioned topic, which has one for each partition.
        """
        if len(self._ends) != 1:
            raise BadRequestError("each partition has a next offset of its own: view a partition")
        (end,) = self._ends.values()
        return end

    def ends_at(self, ranges: Mapping[str, tuple[int, int]]) -> None:
        """Remember where what was read ends."""
        self._ends = {topic: end for topic, (_, end) in ranges.items()}

    def fold(self, batch: Batch) -> None:
        """Take in the next messages of the stream: column by column, not message by message."""
        if batch.keys is None:
            return
        rows: dict[Any, _Row] = dict(_rows_of(batch))
        rows.pop(None, None)
        if b"" in batch.payloads:
            for key in [key for key, row in rows.items() if not row[0]]:
                del rows[key]
                self._rows.pop(key, None)
        self._rows.update(rows)


class ViewLoading:
    """A view that is to be read: `await` it, or use it with `async with`."""

    def __init__(self, load: Callable[[], Coroutine[Any, Any, View]]) -> None:
        self._load = load

    def __await__(self) -> Generator[Any, None, View]:
        return self._load().__await__()

    async def __aenter__(self) -> View:
        return await self._load()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """There is nothing to close."""


async def load_view(link: BrokerLink, topic: str, at: int | Time | None) -> View:
    """Return the view of a stream: see `Client.view`."""
    view = View(lambda ends: Reader(link, topic, start=LATEST, end=None, starts=ends))
    whole = at is not None
    async with Reader(link, topic, start=EARLIEST, end=_end(at), whole=whole) as reader:
        async for batch in reader:
            view.fold(batch)
        view.ends_at(reader.ranges)
    return view


async def read_history(
    link: BrokerLink, topic: str, key: str, start: Position, end: Position | None
) -> AsyncIterator[ViewEntry]:
    """Yield the messages of a key: see `Client.history`."""
    async with Reader(link, topic, start=start, end=end) as reader:
        async for batch in reader:
            for entry in entries_of(batch, key):
                yield entry


def entries_of(batch: Batch, key: str) -> list[ViewEntry]:
    """Return the messages of a key in a batch."""
    # Most batches have none: looking for it in a list costs 10 ns for each message.
    if batch.keys is None or key not in batch.keys:
        return []
    return [_entry(row) for other, row in _rows_of(batch) if other == key]


def _rows_of(batch: Batch) -> Iterator[tuple[str | None, _Row]]:
    """Return key and row of each message."""
    rows = zip(
        batch.payloads,
        repeat(batch.topic),
        batch.offsets,
        batch.timestamps_ms,
        batch.attributes or repeat(None),
        strict=False,
    )
    return zip(batch.keys or repeat(None), rows, strict=False)


def _entry(row: _Row) -> ViewEntry:
    payload, topic, offset, time_ms, attributes = row
    return ViewEntry(payload, topic, offset, time_ms, attributes or {})


def _end(at: int | Time | None) -> Position:
    """Return where a view ends: behind what it is to hold."""
    if at is None:
        return LATEST
    if isinstance(at, datetime | float):
        return Position(origin=Origin.TIME, at=time_ms(at, "at") + 1)
    return Position(origin=Origin.OFFSET, at=position_of(at, "at").at + 1)
