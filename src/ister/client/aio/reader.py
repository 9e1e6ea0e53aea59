"""Readers of the asyncio client: a range of a stream as columns, without a subscription."""

import asyncio
from collections.abc import AsyncIterator, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ister.base import Origin, Position, partition_name
from ister.base.errors import BadRequestError, BusyError, IsterError
from ister.client.aio.connection.link import BrokerLink, settler
from ister.client.aio.reading import Reading
from ister.client.session import ReaderChannel, no_schema, not_open
from ister.codec import Batch, arrow_table
from ister.wire import Command, OpenReader, ReaderOpened

if TYPE_CHECKING:
    import pyarrow


class Reader:
    """Reads what a stream holds. Use it with `async with client.reader(...)`.

    Batches of one topic or partition come in the order of their offsets; those of several
    partitions as they come. After a lost connection it goes on where it was.

    >>> await client.create_topic("/default/ledger", kind="stream")
    >>> async with client.producer("/default/ledger") as producer:
    ...     ids = await producer.send_batch([b"one", b"two"])
    >>> async with client.reader("/default/ledger", start=0, end="latest") as reader:
    ...     async for batch in reader:
    ...         print(batch.offsets, batch.payloads)
    range(0, 2) [b'one', b'two']
    """

    def __init__(
        self,
        link: BrokerLink,
        topic: str,
        *,
        start: Position,
        end: Position | None,
        reading: Reading | None = None,
        whole: bool = False,
        starts: Mapping[str, int] | None = None,
    ) -> None:
        """`starts` has other starts, by topic or partition."""
        self.topic = topic
        self._starts = starts or {}
        self._whole = whole
        # How batches get values; `None` without a schema.
        self._reading = reading
        self._link = link
        self._start = start
        self._end = end
        self._opened = False
        # What is read of each stream or partition, from and to, as it was when opened; the end is
        # -1 for a reader that follows.
        self.ranges: dict[str, tuple[int, int]] = {}
        # And its number, which no other topic of that name has.
        self.numbers: dict[str, int] = {}
        # Those that have not come to their end.
        self._channels: list[ReaderChannel] = []

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Open it: what is to be read is known then, also where 'latest' is. Harmless when open."""
        if self._channels:
            return
        partitions = await self._open_channel(self.topic)
        self._opened = True
        if not partitions:
            return
        for position in (self._start, self._end):
            if position is not None and position.origin == Origin.OFFSET and position.at:
                raise BadRequestError(
                    f"{partitions} partitions of {self.topic!r} count their offsets each for "
                    "itself: read one of them by its own name, or from a time on"
                )
        try:
            for number in range(partitions):
                await self._open_channel(partition_name(self.topic, number))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop reading. Harmless when closed."""
        channels, self._channels = self._channels, []
        for channel in channels:
            self._link.session.receivers.close_reader(channel)

    async def __aiter__(self) -> AsyncIterator[Batch]:
        while batches := await self.fetch_batches():
            for batch in batches:
                yield batch

    async def fetch_batches(self) -> list[Batch]:
        """Return all batches at hand, or the first to come; empty at the end.

        Raises `OffsetGoneError` when retention was faster than this reader.
        """
        if not self._opened:
            raise not_open("reader", "client.reader(...)")
        while self._channels:
            batches = [batch for channel in list(self._channels) for batch in self._take(channel)]
            if batches:
                return batches
            if self._channels:
                await self._arrival()
        return []

    async def values(self, batch: Batch) -> list[Any]:
        """Return the values of a batch, of a reader with a schema.

        Raises `SchemaViolationError` for a payload that is none, and whatever kept the client from
        getting the schema that the batch was written with.
        """
        if self._reading is None:
            raise no_schema("reader of", self.topic, "reader")
        return await self._reading.values(batch)

    async def to_arrow(self) -> "pyarrow.Table":
        """Return everything up to the end as one table; the extra `arrow` is needed.

        The columns are those of `Batch.to_arrow`, over the memory it was received in.
        """
        if self._end is None:
            raise BadRequestError("a reader that follows has no end: say `end='latest'`")
        return arrow_table([batch async for batch in self])

    def _take(self, channel: ReaderChannel) -> list[Batch]:
        """Return what a channel has; it is let go of at its end."""
        batches: list[Batch] = []
        try:
            while (batch := channel.inbox.take()) is not None:
                batches.append(batch)
        except IsterError:
            if batches:
                return batches  # What went wrong is told once they are taken.
            if not channel.ended:
                raise
            self._channels.remove(channel)
        return batches

    async def _arrival(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for channel in self._channels:
            channel.inbox.wait(waiter)
        await waiter

    async def _open_channel(self, topic: str) -> int:
        """Open one topic or partition; return its partitions when it is to be opened by those."""
        link = self._link
        while True:
            await link.wait_open()
            session = link.session
            number = session.new_channel()
            start = self._start
            if topic in self._starts:
                start = Position(origin=Origin.OFFSET, at=self._starts[topic])
            command = OpenReader(topic=topic, channel=number, start=start, end=self._end)
            if self._whole:
                command.whole = True
            channel = ReaderChannel(session, command)
            reply: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
            session.receivers.open_reader(channel, settler(reply))
            try:
                opened = await reply
            except BaseException as error:
                session.receivers.close_reader(channel)
                if isinstance(error, BusyError) and not session.can_publish:
                    continue
                raise
            assert isinstance(opened, ReaderOpened)
            if not opened.partitions:
                self._channels.append(channel)
                self.ranges[topic] = opened.start, opened.end
                self.numbers[topic] = opened.number
            return opened.partitions
