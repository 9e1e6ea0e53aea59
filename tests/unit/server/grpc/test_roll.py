"""The roll of Danube's clients: ids that outlive a broker."""

import asyncio
from collections.abc import Callable

import pytest

from ister.base.errors import StorageFailedError
from ister.metadata import MemoryMetadata, Put
from ister.metadata.facts import Change
from ister.server.grpc.roll import (
    DAY_MS,
    KEPT_DAYS,
    PRODUCERS,
    ConsumerRecord,
    ProducerRecord,
    Roll,
    id_of,
    live_topics,
)

TOPIC = "/default/t"


class Days:
    """A clock that only knows days."""

    def __init__(self) -> None:
        self.day = 20_000

    def now_ms(self) -> int:
        return self.day * DAY_MS + 1


@pytest.fixture
def days() -> Days:
    return Days()


def producer(name: str = "p") -> ProducerRecord:
    return ProducerRecord(TOPIC, name, "live")


def consumer(name: str = "c") -> ConsumerRecord:
    return ConsumerRecord(TOPIC, "s", name, "key_shared", ["a*"], "stream")


async def loaded(metadata: MemoryMetadata, days: Days) -> Roll:
    found = Roll(metadata, days.now_ms)
    await found.load()
    await found.saved()
    return found


def test_an_id_follows_from_the_names_alone() -> None:
    assert id_of(TOPIC, "p") == id_of(TOPIC, "p")
    # Names are told apart, however they are divided.
    assert len({id_of("a", "bc"), id_of("ab", "c"), id_of("abc"), id_of("a", "b", "c")}) == 4
    assert 0 < id_of(TOPIC, "p") < 2**64


async def test_what_was_enrolled_is_there_after_a_restart(days: Days) -> None:
    metadata = MemoryMetadata()
    before = await loaded(metadata, days)
    before.enroll_producer(1, producer())
    before.enroll_consumer(2, consumer())
    await before.saved()

    after = await loaded(metadata, days)

    assert after.producers == before.producers == {1: producer_of(days)}
    assert after.consumers == before.consumers
    assert after.consumers[2].key_filters == ["a*"]


def producer_of(days: Days) -> ProducerRecord:
    found = producer()
    found.day = days.day
    return found


async def test_who_was_not_seen_for_long_is_forgotten(days: Days) -> None:
    metadata = MemoryMetadata()
    first = await loaded(metadata, days)
    first.enroll_producer(1, producer("used"))
    first.enroll_producer(2, producer("unused"))
    days.day += 1
    first.use(1, first.producers[1])
    await first.saved()

    days.day += KEPT_DAYS
    assert (await loaded(metadata, days)).producers.keys() == {1}
    days.day += 1
    assert not (await loaded(metadata, days)).producers
    assert await metadata.list(PRODUCERS) == []


async def test_the_longest_unused_makes_room(days: Days) -> None:
    metadata = MemoryMetadata()
    roll = Roll(metadata, days.now_ms, records_max=2)

    for number in (1, 2, 1, 3):
        roll.enroll_producer(number, producer(f"p{number}"))
    await roll.saved()

    assert roll.producers.keys() == {1, 3}
    assert (await loaded(metadata, days)).producers.keys() == {1, 3}


async def test_many_at_once_are_few_writes(days: Days) -> None:
    metadata = CountingMetadata()
    roll = await loaded(metadata, days)

    for number in range(150):
        roll.enroll_producer(number, producer(f"p{number}"))
    await roll.saved()
    # The same again is nothing new.
    roll.enroll_producer(7, producer("p7"))
    await roll.saved()

    assert metadata.writes == 2


async def test_whoever_waits_need_not_wait_for_those_who_come_later(days: Days) -> None:
    metadata = CountingMetadata()
    roll = await loaded(metadata, days)

    def one_more() -> None:
        if metadata.writes < 10:
            number = metadata.writes
            roll.enroll_producer(number, producer(f"p{number}"))

    metadata.on_write = one_more
    roll.enroll_consumer(1, consumer())
    await roll.saved()

    assert metadata.writes < 4


async def test_a_record_that_cannot_be_read_is_left_alone(days: Days) -> None:
    metadata = MemoryMetadata()
    await metadata.write(Put(f"{PRODUCERS}zz", b"{}"), Put(f"{PRODUCERS}01", b"\xff"))

    roll = await loaded(metadata, days)

    assert not roll.producers
    assert len(await metadata.list(PRODUCERS)) == 2


async def test_a_broken_storage_does_not_stop_clients(days: Days) -> None:
    metadata = CountingMetadata()
    roll = await loaded(metadata, days)
    metadata.broken = True

    roll.enroll_producer(1, producer())
    await roll.saved()
    metadata.broken = False
    roll.enroll_producer(2, producer("q"))
    await roll.saved()

    assert roll.producers.keys() == {1, 2}


async def test_clients_of_a_deleted_live_topic_are_forgotten(days: Days) -> None:
    metadata = MemoryMetadata()
    roll = await loaded(metadata, days)
    roll.enroll_producer(1, producer())
    roll.enroll_producer(2, ProducerRecord("/default/kept", "p", "live"))
    # Where a stream is kept may only be away for a while.
    roll.enroll_consumer(3, consumer())

    roll.forget_topics({"/default/kept"})
    await roll.saved()

    after = await loaded(metadata, days)
    assert after.producers.keys() == {2}
    assert after.consumers.keys() == {3}


def test_only_live_topics_are_to_be_made_again() -> None:
    stream = ProducerRecord("/default/stream", "p", "stream")

    assert live_topics([producer(), stream, producer("q")]) == [TOPIC]


class CountingMetadata(MemoryMetadata):
    """Counts writes, and fails when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.broken = False
        self.on_write: Callable[[], object] = int

    async def write(self, *changes: Change) -> int:
        if self.broken:
            raise StorageFailedError("broken")
        self.writes += 1
        self.on_write()
        await asyncio.sleep(0)
        return await super().write(*changes)


async def test_many_records_with_large_filters_are_kept(days: Days) -> None:
    metadata = MemoryMetadata()
    roll = Roll(metadata, days.now_ms)
    for number in range(50):
        record = consumer(f"c{number}")
        record.key_filters = ["x" * 4_000] * 15
        roll.enroll_consumer(number, record)
    await roll.saved()

    assert (await loaded(metadata, days)).consumers == roll.consumers


class SlowMetadata(MemoryMetadata):
    """Writes when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.let = asyncio.Event()

    async def write(self, *changes: Change) -> int:
        await self.let.wait()
        return await super().write(*changes)


async def test_who_gives_up_waiting_takes_nobody_along(days: Days) -> None:
    metadata = SlowMetadata()
    roll = Roll(metadata, days.now_ms)
    roll.enroll_consumer(1, consumer("a"))
    waiting = [asyncio.create_task(roll.saved()) for _ in range(3)]
    await asyncio.sleep(0)
    roll.enroll_consumer(2, consumer("b"))

    waiting[0].cancel()
    await asyncio.sleep(0)
    metadata.let.set()
    results = await asyncio.gather(*waiting, roll.saved(), return_exceptions=True)

    assert [type(one) for one in results] == [asyncio.CancelledError] + [type(None)] * 3
    assert (await loaded(metadata, days)).consumers == roll.consumers


async def test_who_is_used_is_not_the_longest_unused(days: Days) -> None:
    roll = Roll(MemoryMetadata(), days.now_ms, records_max=2)
    for number in (1, 2):
        roll.enroll_consumer(number, consumer(f"c{number}"))
    days.day += 1
    roll.use(1, roll.consumers[1])

    roll.enroll_consumer(3, consumer("c3"))
    await roll.saved()

    assert list(roll.consumers) == [1, 3]
