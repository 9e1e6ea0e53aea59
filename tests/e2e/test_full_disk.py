"""A full disk: messages are refused, everything else works, and the broker recovers by itself."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.disks import ballast_of, fill_disk, small_disk
from tests.e2e.raw import WAIT_S

import ister
from ister.base.errors import DiskFullError, OffsetGoneError
from ister.base.limits import MIB
from ister.codec import encode

pytestmark = pytest.mark.e2e

TOPIC = "/default/a"
OTHER = "/default/b"
TIMELINE = "/default/t"
DISK_MIB = 80
KEPT_BYTES = 8 * MIB
PAYLOAD = b"x" * 100_000
# More than the databases have room for in files that are there: 256 KiB of messages.
ROUNDS = 20
# About three times what the disk holds.
TOTAL_BYTES = 240 * MIB


@contextmanager
def running(tmp_path: Path, disk: Path, *args: str) -> Iterator[BrokerProcess]:
    """Run a broker whose data folder is alone on a small disk."""
    broker = BrokerProcess(disk, args)
    broker.ready_file, broker.log = tmp_path / "ready.json", tmp_path / "log"
    broker.start()
    try:
        yield broker
    finally:
        if broker.process is not None:
            broker.kill()


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path, request.param, DISK_MIB) as place:
        yield place


@asynccontextmanager
async def producing(broker: BrokerProcess) -> AsyncIterator[tuple[ister.Client, ister.Producer]]:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream", max_bytes=KEPT_BYTES)
        async with client.producer(TOPIC, name="p") as producer:
            yield client, producer


async def read_offsets(client: ister.Client, topic: str = TOPIC) -> list[int]:
    found: list[int] = []
    async with client.reader(topic) as reader:
        async for batch in reader:
            found += batch.offsets
    return found


async def offsets_of(client: ister.Client, topic: str = TOPIC) -> list[int]:
    """Return the offsets of a topic, read again when retention has removed what was being read."""
    while True:
        with suppress(OffsetGoneError):
            return await read_offsets(client, topic)


async def publish_until(producer: ister.Producer, done: Callable[[int], bool]) -> int:
    """Publish without a pause until `done` returns true, also while messages are refused."""
    sent = 0
    async with asyncio.timeout(WAIT_S * 4):
        while not done(sent):
            try:
                await producer.send_batch([PAYLOAD] * 10)
            except DiskFullError:
                await asyncio.sleep(0.01)
            else:
                sent += 10
    return sent


async def fill_until_refused(producer: ister.Producer, disk: Path) -> DiskFullError:
    """Fill the disk until a message is refused.

    Retention frees space with every journal file that is full, so that a topic that keeps little is
    hardly ever refused: the ballast takes what retention frees.
    """
    async with asyncio.timeout(WAIT_S):
        while True:
            fill_disk(disk)
            try:
                await producer.send(PAYLOAD)
            except DiskFullError as error:
                return error


async def test_a_topic_with_retention_never_fills_its_disk_for_good(
    disk: Path, tmp_path: Path
) -> None:
    with running(tmp_path, disk) as broker:
        async with producing(broker) as (client, producer):
            sent = await publish_until(producer, lambda n: n * len(PAYLOAD) > TOTAL_BYTES)
            # A topic that keeps little, on a disk that is full of something else.
            await fill_until_refused(producer, disk)
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.restart)
            ballast_of(disk).unlink()
            sent += await publish_until(producer, lambda n: n * len(PAYLOAD) > TOTAL_BYTES // 3)
            found = await offsets_of(client)

    assert found == list(range(found[0], found[-1] + 1))
    assert found[-1] >= sent - 1
    assert len(found) * len(PAYLOAD) > KEPT_BYTES // 2


async def test_a_full_disk_refuses_messages_and_accepts_everything_that_frees_space(
    disk: Path, tmp_path: Path
) -> None:
    with running(tmp_path, disk) as broker:
        async with producing(broker) as (client, producer):
            await client.create_topic(OTHER, kind="stream")
            async with client.producer(OTHER) as other:
                await other.send(PAYLOAD)
            async with client.subscribe(TOPIC, "s", start="earliest") as sub:
                first = await producer.send(PAYLOAD)
                error = await fill_until_refused(producer, disk)
                # Room for the reserve again, and for no message.
                with pytest.raises(DiskFullError):
                    await client.create_topic("/default/c", kind="stream")
                msg = await sub.receive(WAIT_S)
                await msg.ack(confirm=True)
                last = (await client.topics(TOPIC))[0].next_offset
                await client.delete_topic(OTHER)
                purged = await client.purge(TOPIC, before=last - 1)

            ballast_of(disk).unlink()
            sent = await publish_until(producer, lambda n: n > 100)
            found = await offsets_of(client)
            topics = {t.topic for t in await client.topics()}

    assert "purge or delete topics" in str(error)
    assert msg.offset == first.offset
    # Retention may have removed some of them before.
    assert 0 < purged <= last - 1
    # The topic keeps as much as it is set to, and loses none of the newest.
    assert found == list(range(max(last - 1, found[0]), last + sent))
    assert len(found) * len(PAYLOAD) > KEPT_BYTES // 2
    assert topics == {TOPIC}


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_broker_starts_on_a_full_disk_and_frees_space(
    end: str, disk: Path, tmp_path: Path
) -> None:
    with running(tmp_path, disk) as broker:
        async with producing(broker) as (client, producer):
            await client.create_topic(OTHER, kind="stream")
            async with client.producer(OTHER) as other:
                for _ in range(200):
                    await other.send(PAYLOAD)
            await fill_until_refused(producer, disk)
            await asyncio.to_thread(broker.stop if end == "stop" else broker.kill)
            ballast_of(disk).unlink()
            # Whatever the broker has let go of, and every byte there is.
            fill_disk(disk)
            await asyncio.to_thread(broker.restart)
            kept = await offsets_of(client, OTHER)
            await client.delete_topic(OTHER)
            sent = await publish_until(producer, lambda n: n >= 50)
            found = await offsets_of(client)

    assert kept == list(range(200))
    assert sent == 50
    assert found == list(range(found[0], found[-1] + 1))


async def use_databases(client: ister.Client, number: int) -> set[str]:
    """Put a message into a timeline, register a schema and stage a batch; return the failures."""
    timeline = client.timeline(TIMELINE, group="g")
    schema = ister.Schema(
        "json_schema", {"type": "object", "required": [f"f{number}" + "x" * 9_000]}
    )

    async def stage() -> None:
        async with client.stage(f"stage-{number}") as stage:
            for _ in range(20):
                await stage.add(TOPIC, encode([PAYLOAD] * 10))

    calls = {
        "timeline": timeline.put(b"x" * 50_000, after=3_600.0, id=f"id-{number}"),
        "schema": client.schemas.register("subject", schema, mode="none"),
        "stage": stage(),
    }
    failed = set()
    for name, call in calls.items():
        try:
            await call
        except DiskFullError:
            failed.add(name)
    return failed


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_timelines_schemas_and_stages_fail_on_a_full_disk_and_work_again_afterwards(
    end: str, disk: Path, tmp_path: Path
) -> None:
    with running(tmp_path, disk) as broker:
        async with producing(broker) as (client, producer):
            await client.create_topic(TIMELINE, kind="timeline")
            assert await use_databases(client, 0) == set()
            await fill_until_refused(producer, disk)
            # The journal lets go of its reserve, and every second retention and checkpoints free
            # what they can: somebody else takes all of that, again and again.
            failed: set[str] = set()
            for number in range(1, ROUNDS):
                fill_disk(disk)
                failed |= await use_databases(client, number)

            await asyncio.to_thread(broker.stop if end == "stop" else broker.kill)
            fill_disk(disk)
            await asyncio.to_thread(broker.restart)
            versions = await client.schemas.versions("subject")
            # Nothing of this keeps the broker from making room.
            await client.purge(TOPIC)

            ballast_of(disk).unlink()
            await publish_until(producer, lambda n: n >= 10)
            assert await use_databases(client, ROUNDS) == set()
            kept = await client.timeline(TIMELINE, group="g").get("id-0")

    assert len(kept.payload) == 50_000
    assert versions
    assert failed == {"timeline", "schema", "stage"}


async def put_until_refused(timeline: ister.Timeline, number: int) -> int:
    """Put messages that are due until one is refused; return the number of the next."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                await timeline.put(PAYLOAD[:1_000], id=f"id-{number}")
            except DiskFullError:
                return number
            number += 1


async def finish_some(timeline: ister.Timeline, count: int) -> set[str]:
    """Consume messages, and return their ids."""
    found: set[str] = set()
    async with asyncio.timeout(WAIT_S), timeline.consume("worker") as leases:
        while len(found) < count:
            lease = await leases.receive()
            await lease.done()
            found.add(lease.id)
    return found


async def test_a_timeline_on_a_full_disk_delivers_what_it_has_and_then_takes_messages_again(
    disk: Path, tmp_path: Path
) -> None:
    with running(tmp_path, disk) as broker:
        async with producing(broker) as (client, producer):
            await client.create_topic(TIMELINE, kind="timeline")
            timeline = client.timeline(TIMELINE, group="g")
            for number in range(500):
                await timeline.put(PAYLOAD[:1_000], id=f"id-{number}")
            await fill_until_refused(producer, disk)
            fill_disk(disk)
            count = await put_until_refused(timeline, 500)
            # Somebody else takes all that was let go of, and all of this is done.
            fill_disk(disk)
            await timeline.delete("id-0")
            await timeline.move("id-1", after=3_600.0)
            done = await finish_some(timeline, 100)
            fill_disk(disk)
            done |= await finish_some(timeline, 100)
            listed = {message.id async for message in timeline.list()}
            left = await timeline.count()

            ballast_of(disk).unlink()
            await timeline.put(PAYLOAD, id="after")
            done |= await finish_some(timeline, left)
            rest = await timeline.count()

    assert left == count - 1 - 200
    assert len(listed) == left
    assert done == {f"id-{number}" for number in range(2, count)} | {"after"}
    assert rest == 1
    assert "internal_error" not in broker.log_text()
