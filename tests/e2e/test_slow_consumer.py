"""A slow consumer slows nobody: its queue is bounded, what overflows is counted and told."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.raw import WAIT_S, RawClient, memory_bounded

import ister
from ister.base import ConsumerReport
from ister.base.limits import CREDIT_MAX, KIB, MIB
from ister.client.session import Event
from ister.wire import credit_frame

pytestmark = pytest.mark.e2e

TOPIC = "/default/a"
QUEUE_COUNT = 100
QUEUE_BYTES = 2 * MIB
# What a connection may hold beside its queue: our send buffer, the kernel's, one batch.
BESIDES_BYTES = 24 * MIB


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker with short queues. Each test has its own topic."""
    limits = [f"queue_count_max={QUEUE_COUNT}", f"queue_bytes_max={QUEUE_BYTES}"]
    args = [word for limit in limits for word in ("--limit", limit)]
    broker = BrokerProcess(tmp_path_factory.mktemp("narrow"), args)
    broker.start()
    yield broker
    broker.kill()


@asynccontextmanager
async def deaf(broker: BrokerProcess, topic: str, *, credit: int) -> AsyncIterator[RawClient]:
    """Attach a consumer called `c` to subscription `deaf` that never reads its socket again."""
    with RawClient(broker, receive_bytes=4_096) as raw:
        raw.greet()
        raw.subscribe(topic, "deaf")
        raw.send(credit_frame(2, credit, credit))
        yield raw


async def consumer(client: ister.Client, topic: str, subscription: str) -> ConsumerReport:
    reports = await client.subscriptions(topic)
    [report] = [r for r in reports if r.subscription == subscription]
    assert report.messages_dropped == report.consumers[0].dropped
    return report.consumers[0]


@pytest.mark.parametrize("credit", [CREDIT_MAX, 0], ids=["never reads", "never grants credit"])
async def test_a_deaf_consumer_slows_neither_the_producer_nor_another_consumer(
    narrow: BrokerProcess, credit: int
) -> None:
    topic = f"/default/deaf-{credit}"
    count, payload = 3_000, bytes(32 * KIB)
    with memory_bounded(narrow.pid, QUEUE_BYTES + BESIDES_BYTES):
        async with (
            deaf(narrow, topic, credit=credit),
            ister.connect(narrow.url) as client,
            client.subscribe(topic, "quick") as quick,
            client.producer(topic) as producer,
        ):
            # 94 MiB, each message acknowledged and received before the next.
            for number in range(count):
                sent = await producer.send(payload)
                received = await quick.receive(WAIT_S)
                assert (sent.offset, received.offset) == (number, number)

            slow = await consumer(client, topic, "deaf")
            quick_report = await consumer(client, topic, "quick")
            [about_topic] = await client.topics(topic)

    assert slow.queued <= QUEUE_COUNT
    assert slow.queued_bytes <= QUEUE_BYTES
    assert slow.delivered + slow.queued + slow.dropped == count
    assert slow.dropped > count // 2
    assert (quick_report.delivered, quick_report.dropped) == (count, 0)
    assert about_topic.messages_dropped == slow.dropped


async def test_many_deaf_consumers_stay_within_the_budget_of_all_queues(
    start_broker: StartBroker,
) -> None:
    budget = 8 * MIB
    broker = start_broker(
        "--limit", "queue_bytes_max=4MiB", "--limit", f"queues_bytes_max={budget}"
    )
    raws = []
    async with (
        ister.connect(broker.url) as client,
        client.subscribe(TOPIC, "quick") as quick,
        client.producer(TOPIC) as producer,
    ):
        for number in range(20):
            raw = RawClient(broker, receive_bytes=4_096)
            raw.greet()
            raw.subscribe(TOPIC, f"deaf-{number}")
            raws.append(raw)
        with memory_bounded(broker.pid, budget + BESIDES_BYTES):
            for number in range(1_000):
                await producer.send(b"%d" % number + bytes(16 * KIB))
                await quick.receive(WAIT_S)
                if number % 100 == 0:
                    assert (await client.broker()).queued_bytes <= budget
        report = await client.broker()
        for raw in raws:
            raw.close()

    assert 0 < report.queued_bytes <= budget
    assert report.messages_dropped > 0


async def test_a_slow_consumer_is_told_and_every_message_is_received_or_counted(
    narrow: BrokerProcess,
) -> None:
    topic, count = "/default/told", 1_000
    events: list[Event] = []
    told = asyncio.Event()

    def on_event(event: Event) -> None:
        events.append(event)
        told.set()

    async with (
        ister.connect(narrow.url) as client,
        client.subscribe(topic, "s", buffer_count=10, on_event=on_event) as sub,
        client.producer(topic) as producer,
    ):
        for number in range(count):
            await producer.send(b"%d" % number)
        async with asyncio.timeout(WAIT_S):
            await told.wait()
        first = sub.dropped
        received: list[int] = []
        while not received or received[-1] != count - 1:
            received += [int(m.payload) for m in await sub.fetch(count, timeout=WAIT_S)]
        about_me = await consumer(client, topic, "s")
        about_all = await client.broker()

    assert first >= 1
    assert events[0] == ister.SlowConsumer("s", first)
    assert isinstance(events[-1], ister.SlowConsumer)
    assert events[-1].dropped == sub.dropped == about_me.dropped == count - len(received)
    # What was sent ahead, then the newest of the queue, in order.
    assert received == [*range(10), *range(count - QUEUE_COUNT, count)]
    assert about_all.messages_dropped >= sub.dropped


async def test_the_sum_of_drops_goes_on_after_a_reconnect(start_broker: StartBroker) -> None:
    broker = start_broker("--limit", f"queue_count_max={QUEUE_COUNT}")
    came = asyncio.Event()
    async with (
        ister.connect(broker.url) as client,
        client.subscribe(TOPIC, "s", buffer_count=1, on_event=lambda _: came.set()) as sub,
        client.producer(TOPIC) as producer,
    ):
        dropped = []
        for _ in range(2):
            await producer.send_batch([b"x"] * 10)
            for _ in range(2 * QUEUE_COUNT):
                await producer.send(b"x")
            async with asyncio.timeout(WAIT_S):
                await came.wait()
            dropped.append(sub.dropped)
            # Not gracefully: the broker would wait for a consumer that does not take.
            broker.kill()
            came.clear()
            await asyncio.to_thread(broker.restart)
            async with asyncio.timeout(WAIT_S):
                await came.wait()
            came.clear()

    assert 0 < dropped[0] < dropped[1]


async def test_one_slow_consumer_of_a_shared_subscription_gets_less_than_the_quick_ones(
    narrow: BrokerProcess,
) -> None:
    topic, count = "/default/unequal", 500
    async with (
        ister.connect(narrow.url) as client,
        client.subscribe(topic, "s", type="shared", buffer_count=5, consumer="slow") as slow,
        client.subscribe(topic, "s", type="shared", buffer_count=50, consumer="quick") as quick,
        client.producer(topic) as producer,
    ):
        for number in range(count):
            await producer.send(b"%d" % number)
            await quick.fetch(count, timeout=0.0)
        [report] = await client.subscriptions(topic)

        shares = {one.name: one.delivered + one.queued for one in report.consumers}
        assert slow.dropped == quick.dropped == 0
        assert sum(shares.values()) == count
        assert shares["slow"] < count // 4
