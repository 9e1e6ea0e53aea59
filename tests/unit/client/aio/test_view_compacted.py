"""Views of the past of a compacted stream: as it was, or refused."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from functools import partial
from random import Random

import pytest

import ister
from ister.base import EARLIEST, Origin, Position
from ister.base.errors import BadRequestError, CompactedError, IsterError
from ister.broker import Reader, StreamTopic, open_reader
from ister.codec import Batch
from ister.log import LogOptions
from ister.testing import MemoryBroker, VirtualClock
from ister.testing import engine as engine_module
from ister.testing.clock import settle

TOPIC = "/default/accounts"
# A segment has some 15 batches: enough of them are sealed, and the last is not.
SEGMENT_BYTES = 1 << 14
BATCHES = 60
PADDING = b"x" * 900
DAY_S = 86_400.0

State = dict[str, bytes]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def broker(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MemoryBroker]:
    monkeypatch.setattr(
        engine_module, "LogOptions", partial(LogOptions, segment_bytes=SEGMENT_BYTES)
    )
    async with MemoryBroker(clock=clock) as broker:
        yield broker


class Past:
    """What a stream held after each of its messages, and when each was published."""

    def __init__(self, clock: VirtualClock, random: Random) -> None:
        self.states: list[State] = []
        self.times: list[datetime] = []
        self._clock = clock
        self._random = random

    async def publish(self, client: ister.Client, *, deletes: float = 0.0) -> None:
        """Publish messages of random keys, some of which delete theirs; time passes."""
        state: State = dict(self.states[-1]) if self.states else {}
        async with client.producer(TOPIC) as producer:
            for number in range(BATCHES):
                key = f"key-{self._random.randrange(6)}"
                attributes = None
                if self._random.random() < deletes:
                    payload, attributes = b"", {"padding": PADDING.decode()}
                    state.pop(key, None)
                else:
                    payload = state[key] = b"%d" % number + PADDING
                await producer.send(payload, key=key, attributes=attributes)
                self.states.append(dict(state))
                self.times.append(datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC))
                self._clock.advance(0.01)

    async def count_refused(self, client: ister.Client) -> int:
        """Ask for every moment; each is as it was, or refused. Return how many were refused."""
        refused = []
        for offset, state in enumerate(self.states):
            for at in (offset, self.times[offset]):
                try:
                    view = await client.view(TOPIC, at=at)
                except CompactedError as error:
                    refused.append((offset, error.first_offset))
                else:
                    assert {key: view[key] for key in view} == state, (at, offset)
        for offset, first_offset in refused:
            assert offset < first_offset
            if first_offset < len(self.states):
                view = await client.view(TOPIC, at=first_offset)
                assert {key: view[key] for key in view} == self.states[first_offset]
        return len(refused)


async def test_a_view_is_what_the_stream_held_or_is_refused(
    broker: MemoryBroker, clock: VirtualClock
) -> None:
    past = Past(clock, Random(1))
    async with broker.connect() as client:
        await client.create_topic(TOPIC, kind="stream", retention="compact")
        await past.publish(client)
        assert await past.count_refused(client) == 0

        await clock.elapse(30.0)
        refused = await past.count_refused(client)

        assert 0 < refused < 2 * BATCHES
        assert {**(await client.view(TOPIC))} == past.states[-1]
        await broker.restart()
        await clock.elapse(30.0)
        assert await past.count_refused(client) == refused


async def test_that_holds_where_keys_are_deleted_and_compaction_goes_on(
    broker: MemoryBroker, clock: VirtualClock
) -> None:
    past = Past(clock, Random(3))
    async with broker.connect() as client:
        await client.create_topic(TOPIC, kind="stream", retention="compact")
        for _ in range(2):
            await past.publish(client, deletes=0.5)
            # Deletions themselves go a day later.
            await clock.elapse(1.1 * DAY_S)
            assert await past.count_refused(client) > 0


async def test_a_topic_keeps_its_past_for_its_compaction_lag(
    broker: MemoryBroker, clock: VirtualClock
) -> None:
    past = Past(clock, Random(2))
    async with broker.connect() as client:
        await client.create_topic(
            TOPIC, kind="stream", retention="compact", min_compaction_lag=3_600.0
        )
        await past.publish(client)
        await broker.restart()
        await clock.elapse(3_590.0)
        assert await past.count_refused(client) == 0

        await clock.elapse(30.0)
        assert await past.count_refused(client) > 0


async def test_the_compaction_lag_of_a_topic_can_be_changed(
    broker: MemoryBroker, clock: VirtualClock
) -> None:
    past = Past(clock, Random(2))
    async with broker.connect() as client:
        await client.create_topic(TOPIC, kind="stream", retention="compact")
        await client.create_topic("/default/limits", kind="stream")
        await client.update_topic(TOPIC, min_compaction_lag=60.0)
        await past.publish(client)
        await clock.elapse(30.0)
        assert await past.count_refused(client) == 0

        await client.update_topic(TOPIC, min_compaction_lag=0)
        await clock.elapse(10.0)
        assert await past.count_refused(client) > 0
        with pytest.raises(BadRequestError, match="min_compaction_lag is for retention 'compact'"):
            await client.update_topic("/default/limits", min_compaction_lag=60.0)


async def test_a_past_of_which_nothing_is_left_is_refused(
    broker: MemoryBroker, clock: VirtualClock
) -> None:
    past = Past(clock, Random(4))
    async with broker.connect() as client:
        lag = 2 * DAY_S
        await client.create_topic(TOPIC, kind="stream", retention="compact", min_compaction_lag=lag)
        await past.publish(client)
        await past.publish(client, deletes=1.0)
        await clock.elapse(lag + 60.0)

        async with client.reader(TOPIC, start=0) as reader:
            left = (await reader.fetch_batches())[0].offsets[0]
        assert left > BATCHES
        # Up to the last message that is gone; at a time also right before the first that is left.
        assert await past.count_refused(client) >= 2 * (left - 1)


async def test_only_a_compacted_topic_has_a_compaction_lag(client: ister.Client) -> None:
    with pytest.raises(BadRequestError, match="min_compaction_lag is for retention 'compact'"):
        await client.create_topic(TOPIC, kind="stream", min_compaction_lag=60.0)
    with pytest.raises(BadRequestError, match="say kind='stream'"):
        await client.create_topic(TOPIC, min_compaction_lag=60.0)


class Sink:
    """Where a reader of the broker sends to."""

    writable = True

    def __init__(self) -> None:
        self.count = 0
        self.ended: list[IsterError | None] = []

    def deliver(self, channel: int, topic: StreamTopic, batch: Batch) -> None:
        self.count += batch.count

    def reader_ended(self, channel: int, error: IsterError | None) -> None:
        self.ended.append(error)


async def test_a_view_is_refused_also_when_compaction_overtakes_it(
    broker: MemoryBroker, clock: VirtualClock
) -> None:
    past, sink, opened = Past(clock, Random(1)), Sink(), list[Reader]()
    async with broker.connect() as client:
        await client.create_topic(TOPIC, kind="stream", retention="compact")
        await past.publish(client)
        for end in (20, BATCHES):
            open_reader(
                broker.engine.streams_of(TOPIC)[0],
                EARLIEST,
                Position(origin=Origin.OFFSET, at=end),
                opened.append,  # type: ignore[arg-type]
                turns=broker.engine.turns,
                shared=broker.engine.durables.shared,
                sink=sink,
                channel=1,
                whole=True,
            )
        await clock.elapse(30.0)
        for reader in opened:
            reader.grant(1_000, 1 << 20)
            await settle()

    assert isinstance(sink.ended[0], CompactedError)
    assert sink.ended[1:] == [None]
    assert sink.count < 20 + BATCHES


async def test_a_reader_reads_what_is_left_of_any_past(
    broker: MemoryBroker, clock: VirtualClock
) -> None:
    past = Past(clock, Random(1))
    async with broker.connect() as client:
        await client.create_topic(TOPIC, kind="stream", retention="compact")
        await past.publish(client)
        await clock.elapse(30.0)

        async with client.reader(TOPIC, start=0, end=5) as reader:
            found = [offset async for batch in reader for offset in batch.offsets]
    assert len(found) < 5
