"""`deliver_at` and `deliver_after` against real brokers: also such as are killed all the time."""

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.raw import WAIT_S
from tests.e2e.shell import Shell

import ister
from ister import sync
from ister.base.errors import BadRequestError, IsterError, SchemaViolationError

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

TOPIC = "/default/orders"
KILLS = int(os.environ.get("STORM_KILLS", "20")) // 2
ENDS = pytest.mark.parametrize("end", [BrokerProcess.kill, BrokerProcess.stop])


async def take(sub: ister.Subscription, count: int) -> list[ister.Message]:
    messages = []
    for _ in range(count):
        messages.append(await sub.receive(WAIT_S))
        await messages[-1].ack()
    return messages


async def test_a_stream_has_a_message_when_it_is_due_and_not_before(broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        async with (
            client.producer(TOPIC, name="shop") as producer,
            client.subscribe(TOPIC, "s", start="earliest") as sub,
        ):
            due = datetime.now(UTC) + timedelta(seconds=0.4)
            sent = await producer.send(
                b"later", key="k", attributes={"a": "1"}, id="o-1", deliver_at=due
            )
            at_once = await producer.send(b"now")
            now, later = await take(sub, 2)

    assert (sent.topic, sent.offset, sent.delayed) == (TOPIC, -1, True)
    assert (at_once.offset, at_once.delayed) == (0, False)
    assert (now.payload, later.payload) == (b"now", b"later")
    assert (later.key, later.attributes, later.id) == ("k", {"a": "1"}, "o-1")
    assert (later.producer, later.offset) == ("shop", 1)
    assert later.publish_time_ms >= int(due.timestamp() * 1000)


async def test_a_live_topic_delivers_it_to_who_is_connected_then(broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client, client.producer(TOPIC) as producer:
        sent = await producer.send(b"later", deliver_after=0.3)
        async with client.subscribe(TOPIC, "s") as sub:
            message = await sub.receive(WAIT_S)

    assert sent.delayed
    assert message.payload == b"later"


async def test_keys_go_to_the_partition_that_they_always_go_to(broker: BrokerProcess) -> None:
    keys = [f"key-{n}" for n in range(20)]
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream", partitions=4)
        async with (
            client.producer(TOPIC) as producer,
            client.subscribe(TOPIC, "s", start="earliest") as sub,
        ):
            for key in keys:
                await producer.send(b"now", key=key)
                await producer.send(b"later", key=key, deliver_after=0.1)
            messages = await take(sub, 40)

    places = {(message.key, message.topic) for message in messages}
    assert Counter(m.payload for m in messages) == {b"now": 20, b"later": 20}
    assert len(places) == 20


async def test_many_at_once_arrive_each_once_in_the_order_they_were_sent(
    broker: BrokerProcess,
) -> None:
    payloads = [b"%d" % n for n in range(5_000)]
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        async with client.producer(TOPIC) as producer:
            due = time.time() + 1.0
            futures = [producer.send_nowait(payload, deliver_at=due) for payload in payloads]
            await producer.flush()
            done = [future.done() for future in futures]
        async with client.subscribe(TOPIC, "s", start="earliest") as sub:
            messages = await take(sub, len(payloads))

    assert all(done)
    assert [message.payload for message in messages] == payloads


@ENDS
async def test_messages_outlast_the_broker_that_was_given_them(
    end: object, broker: BrokerProcess
) -> None:
    assert callable(end)
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        async with client.producer(TOPIC) as producer:
            await producer.send(b"while it is down", deliver_after=0.05)
            due = time.time() + 3.0
            await producer.send(b"when it is back", deliver_at=due)
    end(broker)
    broker.restart()

    async with (
        ister.connect(broker.url) as client,
        client.subscribe(TOPIC, "s", start="earliest") as sub,
    ):
        found = {message.payload: message for message in await take(sub, 2)}
    # On a slow machine both are due when it is back, in whatever order.
    assert found.keys() == {b"while it is down", b"when it is back"}
    assert found[b"when it is back"].publish_time_ms >= int(due * 1000)


async def test_a_client_sends_again_what_was_under_way_when_its_broker_died(
    broker: BrokerProcess,
) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        async with client.producer(TOPIC) as producer:
            await producer.send(b"first", deliver_after=0.0)
            broker.kill()
            under_way = producer.send_nowait(b"second", deliver_after=0.0)
            await asyncio.sleep(0)
            broker.restart()
            sent = await under_way
        async with client.subscribe(TOPIC, "s", start="earliest") as sub:
            messages = await take(sub, 2)

    assert sent.delayed
    # What was about to be published when the broker died is leased once more, maybe after others.
    assert sorted(message.payload for message in messages) == [b"first", b"second"]


async def test_a_message_for_a_deleted_topic_is_dropped_with_a_word_in_the_log(
    broker: BrokerProcess,
) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        await client.create_topic("/default/mark", kind="stream")
        async with client.producer(TOPIC) as producer, client.producer("/default/mark") as mark:
            # Not before the topic is deleted, however slow the machine is.
            await producer.send(b"lost", deliver_after=4.0)
            await mark.send(b"mark", deliver_after=4.3)
        await client.delete_topic(TOPIC)
        await client.create_topic(TOPIC, kind="stream")
        async with client.subscribe("/default/mark", "s", start="earliest") as sub:
            await take(sub, 1)
        rows = await client.topics(TOPIC)

    assert rows[0].next_offset == 0
    assert "delayed_dropped" in broker.log_text()


async def test_the_schema_of_a_topic_is_checked_when_a_message_is_sent(
    broker: BrokerProcess,
) -> None:
    definition = '{"type": "object", "required": ["id"]}'
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        await client.schemas.register("orders", ister.Schema("json_schema", definition))
        await client.schemas.bind(TOPIC, "orders")
        async with client.producer(TOPIC) as producer:
            await producer.send(b'{"id": 1}', deliver_after=0.0)
            with pytest.raises(SchemaViolationError):
                await producer.send(b"{}", deliver_after=0.0)


@pytest.mark.parametrize(
    "options",
    [
        {"deliver_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is what is refused
        {"deliver_at": 60.0},
        {"deliver_at": "tomorrow"},
        {"deliver_at": datetime(2030, 1, 1, tzinfo=UTC), "deliver_after": 1.0},
        {"deliver_after": -1.0},
        {"deliver_after": float("nan")},
        {"deliver_after": float("inf")},
        {"deliver_after": True},
        {"deliver_after": 1.0, "expected_offset": 0},
    ],
)
async def test_times_that_cannot_be_are_refused(
    broker_url: str, options: dict[str, object]
) -> None:
    async with ister.connect(broker_url) as client, client.producer(TOPIC) as producer:
        with pytest.raises(BadRequestError):
            await producer.send(b"x", **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def broker_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker for tests that leave nothing behind."""
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker.url
    broker.kill()


def test_the_blocking_client_sends_later_as_well(broker: BrokerProcess) -> None:
    with sync.connect(broker.url) as client:
        client.create_topic(TOPIC, kind="stream")
        with client.producer(TOPIC) as producer:
            sent = producer.send(b"one", deliver_after=0.2)
            future = producer.send_nowait(b"two", deliver_after=timedelta(seconds=0.4))
            with pytest.raises(BadRequestError):
                producer.send_nowait(b"x", deliver_after=-1.0)
            waiting = future.result(WAIT_S)
        with client.subscribe(TOPIC, "s", start="earliest") as sub:
            payloads = [sub.receive(WAIT_S).payload for _ in range(2)]

    assert sent.delayed
    assert waiting.delayed
    assert payloads == [b"one", b"two"]


def test_the_command_line_sends_later_as_well(broker: BrokerProcess) -> None:
    shell = Shell(broker.url)
    try:
        shell.run("topics", "create", TOPIC, "--kind", "stream")
        told = shell.run("produce", TOPIC, "hello", "--deliver-after", "300ms")
        report = shell.json("produce", TOPIC, "far", "--deliver-at", "2999-01-01T00:00Z")
        shell.run("produce", TOPIC, "x", "--deliver-after", "1s", "--deliver-at", "2999", code=2)
        brokers = shell.json("brokers", "list")
        got = shell.run("consume", TOPIC, "--start", "earliest", "--count", "1")
    finally:
        shell.close()

    assert b"disk until due" in told.stderr
    assert isinstance(report, dict)
    assert report["delayed"] is True
    assert isinstance(brokers, list)
    assert brokers[0]["delayed"]["waiting"] >= 1
    assert got.stdout.strip() == b"hello"


async def test_each_message_is_in_the_stream_once_and_none_early_however_often_the_broker_is_killed(
    broker: BrokerProcess,
) -> None:
    due_ms: dict[bytes, int] = {}
    safe: set[bytes] = set()
    async with ister.connect(broker.url, timeout=30.0) as client:
        await client.create_topic(TOPIC, kind="stream")
        killing = asyncio.create_task(_kill_again_and_again(broker))
        async with client.producer(TOPIC) as producer:
            while not killing.done():
                batch = []
                for _ in range(20):
                    payload = b"%d" % len(due_ms)
                    due = time.time() + random.uniform(0.0, 1.5)
                    due_ms[payload] = int(due * 1000)
                    batch.append((payload, producer.send_nowait(payload, deliver_at=due)))
                for payload, future in batch:
                    try:
                        await future
                    except IsterError:
                        continue
                    safe.add(payload)
                await asyncio.sleep(0.01)
            await killing
            await producer.send(b"end", deliver_after=2.0)
        stored: list[tuple[bytes, int]] = []
        async with client.subscribe(TOPIC, "s", start="earliest") as sub:
            while not stored or stored[-1][0] != b"end":
                message = await sub.receive(WAIT_S)
                stored.append((message.payload, message.publish_time_ms))

    counts = Counter(payload for payload, _ in stored)
    assert [payload for payload, count in counts.items() if count > 1] == []
    assert safe - set(counts) == set()
    assert [p for p, published_ms in stored if published_ms < due_ms.get(p, 0)] == []
    assert safe


async def _kill_again_and_again(broker: BrokerProcess) -> None:
    for _ in range(KILLS):
        await asyncio.sleep(random.uniform(0.1, 0.8))
        await asyncio.to_thread(broker.kill)
        await asyncio.to_thread(broker.restart)
