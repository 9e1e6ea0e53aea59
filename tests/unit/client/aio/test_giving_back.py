"""Consumers of a shared subscription that become slow, and who gets what waits for them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Literal

import pytest

import ister
from ister.client.session.consuming.sharing_window import PATIENCE_MS
from ister.testing import MemoryBroker, VirtualClock, settle

Type = Literal["exclusive", "shared", "failover", "key_shared"]

TOPIC = "/default/jobs"
COUNT = 4_000
# Enough for a window of thousands.
QUICK = 2_500
PATIENCE_S = PATIENCE_MS / 1_000
# The pulse of a client, and a job.
LATE_S = 1.1


@pytest.fixture
def clock() -> VirtualClock:
    """The time of the test."""
    return VirtualClock()


@pytest.fixture
async def broker(clock: VirtualClock) -> AsyncIterator[MemoryBroker]:
    async with MemoryBroker(clock=clock) as made:
        yield made


@pytest.fixture
async def client(broker: MemoryBroker) -> AsyncIterator[ister.Client]:
    async with broker.connect() as made:
        await made.create_topic(TOPIC, kind="stream")
        yield made


class Worker:
    """Deals with jobs at once, and from one of them on waits until it is let go on."""

    def __init__(
        self, client: ister.Client, hangs_at: int | None = None, type_: Type = "shared"
    ) -> None:
        self.done: list[tuple[int, int]] = []
        self.sub = client.subscribe(TOPIC, "work", type=type_, start="earliest")
        self.go_on = asyncio.Event()
        self._hangs_at = hangs_at

    async def work(self) -> None:
        async for msg in self.sub:
            if len(self.done) == self._hangs_at:
                await self.go_on.wait()
            await msg.ack()
            self.done.append((int(msg.payload), msg.attempt))


async def start(stack: AsyncExitStack, worker: Worker) -> Worker:
    """Have a worker take jobs until the test ends."""
    await stack.enter_async_context(worker.sub)
    task = asyncio.ensure_future(worker.work())
    stack.callback(task.cancel)
    return worker


async def publish(client: ister.Client, numbers: range) -> None:
    """Publish jobs, all at once."""
    async with client.producer(TOPIC) as producer:
        for number in numbers:
            producer.send_nowait(b"%d" % number)
        await producer.flush()


async def test_others_get_what_waits_behind_a_handler_that_hangs(
    broker: MemoryBroker, client: ister.Client, clock: VirtualClock
) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(broker.connect()) for _ in range(4)]
        hung = await start(stack, Worker(clients[0], hangs_at=QUICK))
        await publish(client, range(COUNT))
        await settle()
        [report] = await client.subscriptions(TOPIC)
        others = [await start(stack, Worker(other)) for other in clients[1:]]
        await clock.elapse(PATIENCE_S - 0.001)
        early = [len(other.done) for other in others]
        await clock.elapse(LATE_S)

    done = [job for worker in (hung, *others) for job in worker.done]
    assert report.consumers[0].credit + COUNT - QUICK > 1_000
    assert sum(early) < COUNT - QUICK - 1
    assert sorted(done) == [(number, 1) for number in range(COUNT) if number != QUICK]


async def test_a_consumer_that_hangs_is_sent_nothing_more(
    broker: MemoryBroker, client: ister.Client, clock: VirtualClock
) -> None:
    async with AsyncExitStack() as stack:
        hung = await start(stack, Worker(client, hangs_at=QUICK))
        await publish(client, range(COUNT))
        await clock.elapse(PATIENCE_S + LATE_S)
        [report] = await client.subscriptions(TOPIC)

    assert len(hung.done) == QUICK
    assert report.consumers[0].credit == 0
    assert report.cursor is not None
    assert report.cursor.in_flight == 1


async def test_a_lone_consumer_gets_them_again_in_order_when_it_goes_on(
    broker: MemoryBroker, client: ister.Client, clock: VirtualClock
) -> None:
    async with AsyncExitStack() as stack:
        worker = await start(stack, Worker(client, hangs_at=QUICK))
        await publish(client, range(COUNT))
        await clock.elapse(PATIENCE_S + LATE_S)
        worker.go_on.set()
        await settle()
        [report] = await client.subscriptions(TOPIC)

    assert worker.done == [(number, 1) for number in range(COUNT)]
    assert report.consumers[0].credit > 1_000


async def test_a_lone_slow_consumer_is_not_sent_the_same_over_and_over(
    client: ister.Client, clock: VirtualClock
) -> None:
    async with client.subscribe(TOPIC, "work", type="shared", start="earliest") as sub:
        await publish(client, range(1_000))
        delivered = []
        for _ in range(4):
            for msg in await sub.fetch(100):
                await msg.ack()
            await clock.elapse(4 * PATIENCE_S)
            [report] = await client.subscriptions(TOPIC)
            delivered.append(report.consumers[0].delivered)

    again = [delivered[n] - delivered[n - 1] for n in range(1, 4)]
    assert again == [100] * 3


async def test_messages_that_a_paused_consumer_holds_go_to_others(
    broker: MemoryBroker, client: ister.Client, clock: VirtualClock
) -> None:
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(broker.connect())
        sub = await stack.enter_async_context(
            client.subscribe(TOPIC, "work", type="shared", start="earliest")
        )
        await publish(client, range(1))
        await sub.pause()
        worker = await start(stack, Worker(other))
        await clock.elapse(PATIENCE_S + LATE_S)

    assert worker.done == [(0, 1)]


@pytest.mark.parametrize("type_", ["exclusive", "failover", "key_shared"])
async def test_a_consumer_that_does_not_share_keeps_what_it_has(
    client: ister.Client, clock: VirtualClock, type_: Type
) -> None:
    async with AsyncExitStack() as stack:
        await start(stack, Worker(client, hangs_at=0, type_=type_))
        await publish(client, range(100))
        await clock.elapse(3 * PATIENCE_S)
        [report] = await client.subscriptions(TOPIC)

    assert report.cursor is not None
    assert report.cursor.in_flight == 100


async def test_a_lost_connection_meanwhile_loses_nothing(
    broker: MemoryBroker, client: ister.Client, clock: VirtualClock
) -> None:
    async with AsyncExitStack() as stack:
        worker = await start(stack, Worker(client, hangs_at=QUICK))
        await publish(client, range(COUNT))
        await clock.elapse(PATIENCE_S)
        stack.callback(clock.call_later(0.9999, broker.disconnect_all).cancel)
        await clock.elapse(LATE_S)
        worker.go_on.set()
        await clock.elapse(60.0)

    assert sorted({number for number, _ in worker.done}) == list(range(COUNT))
