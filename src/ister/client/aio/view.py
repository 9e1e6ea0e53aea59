"""Views: the last value of every key of a stream, as of now or of a moment in the past."""

from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from datetime import UTC, datetime
from itertools import repeat
from types import TracebackType
from typing import Any, NamedTuple

from ister.base import EARLIEST, LATEST, Origin, Position, Time
from ister.base.errors import BadRequestError
from ister.client.aio.link import BrokerLink
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


class View(Mapping[str, bytes]):
    """Payloads by key: read-only, and as it was when it was made.

    A message without a payload removes its key; one without a key says nothing about any.
    """

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
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
        payload, topic, offset, time_ms, attributes = self._rows[key]
        return ViewEntry(payload, topic, offset, time_ms, attributes or {})

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
        keys = batch.keys
        if keys is None:
            return
        payloads = batch.payloads
        rows: dict[Any, _Row] = dict(
            zip(
                keys,
                zip(
                    payloads,
                    repeat(batch.topic),
                    batch.offsets,
                    batch.timestamps_ms,
                    batch.attributes or repeat(None),
                    strict=False,
                ),
                strict=True,
            )
        )
        rows.pop(None, None)
        if b"" in payloads:
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
    view = View()
    whole = at is not None
    async with Reader(link, topic, start=EARLIEST, end=_end(at), whole=whole) as reader:
        async for batch in reader:
            view.fold(batch)
        view.ends_at(reader.ranges)
    return view


def _end(at: int | Time | None) -> Position:
    """Return where a view ends: behind what it is to hold."""
    if at is None:
        return LATEST
    if isinstance(at, datetime | float):
        return Position(origin=Origin.TIME, at=time_ms(at, "at") + 1)
    return Position(origin=Origin.OFFSET, at=position_of(at, "at").at + 1)
