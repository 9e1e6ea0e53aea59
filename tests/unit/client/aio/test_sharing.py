"""Consumers of a shared subscription with nothing but defaults: who gets how much."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import ister
from ister.base.errors import RequestTimeoutError
from ister.testing import MemoryBroker, VirtualClock, settle

TOPIC = "/default/jobs"


@pytest.fixture
def clock() -> VirtualClock:
    """The time of the test."""
    return VirtualClock()


@pytest.fixture
async def broker(clock: VirtualClock) -> AsyncIterator[MemoryBroker]:
    async with MemoryBroker(clock=clock) as made:
        yield made


async def sleep(clock: VirtualClock, seconds: float) -> None:
    """Sleep by the clock of the test."""
    done = asyncio.get_running_loop().create_future()
    clock.call_later(seconds, lambda: done.set_result(None))
    await done


class Workers:
    """Workers of one shared subscription, each with a connection of its own."""

    def __init__(self, broker: MemoryBroker, clock: VirtualClock) -> None:
        self.done: list[int] = []
        self._broker = broker
        self._clock = clock
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Workers":
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()

    async def add(self, job_s: float) -> None:
        """Have another worker, whose jobs take so long."""
        client = await self._stack.enter_async_context(self._broker.connect())
        sub = client.subscribe(TOPIC, "work", type="shared", start="earliest")
        await self._stack.enter_async_context(sub)
        self.done.append(0)
        self._tasks.append(asyncio.ensure_future(self._work(sub, len(self.done) - 1, job_s)))

    async def _work(self, sub: ister.Subscription, number: int, job_s: float) -> None:
        async for msg in sub:
            await sleep(self._clock, job_s)
            await msg.ack()
            self.done[number] += 1


async def publish(client: ister.Client, count: int) -> None:
    """Publish jobs, all at once."""
    async with client.producer(TOPIC) as producer:
        for number in range(count):
            producer.send_nowait(b"%d" % number)
        await producer.flush()


@pytest.mark.parametrize("kind", ["live", "stream"])
@pytest.mark.parametrize("late", [0, 1, 3])
async def test_jobs_are_spread_evenly_whenever_the_workers_come(
    broker: MemoryBroker, clock: VirtualClock, kind: str, late: int
) -> None:
    async with broker.connect() as client, Workers(broker, clock) as workers:
        await client.create_topic(TOPIC, kind=kind)
        for _ in range(4 - late):
            await workers.add(0.010)
        await publish(client, 40)
        for _ in range(late):
            await clock.elapse(0.005)
            await workers.add(0.010)
        await clock.elapse(1.0)

    assert sum(workers.done) == 40
    assert max(workers.done) - min(workers.done) <= 3


@pytest.mark.parametrize("kind", ["live", "stream"])
async def test_a_slow_worker_gets_few(broker: MemoryBroker, clock: VirtualClock, kind: str) -> None:
    async with broker.connect() as client, Workers(broker, clock) as workers:
        await client.create_topic(TOPIC, kind=kind)
        for job_s in (1.0, 0.010, 0.010, 0.010):
            await workers.add(job_s)
        await publish(client, 100)
        await clock.elapse(10.0)

    assert sum(workers.done) == 100
    assert workers.done[0] <= 2


@pytest.mark.parametrize("kind", ["live", "stream"])
async def test_jobs_that_come_one_by_one_are_spread_as_well(
    broker: MemoryBroker, clock: VirtualClock, kind: str
) -> None:
    async with broker.connect() as client, Workers(broker, clock) as workers:
        await client.create_topic(TOPIC, kind=kind)
        for _ in range(4):
            await workers.add(0.010)
        async with client.producer(TOPIC) as producer:
            for _ in range(40):
                await producer.send(b"job")
                await clock.elapse(0.020)

    assert workers.done == [10] * 4


@pytest.mark.parametrize("kind", ["live", "stream"])
async def test_a_quick_consumer_is_soon_sent_more(broker: MemoryBroker, kind: str) -> None:
    async with broker.connect() as client:
        await client.create_topic(TOPIC, kind=kind)
        async with client.subscribe(TOPIC, "work", type="shared") as sub:
            await publish(client, 5_000)
            for _ in range(5_000):
                await sub.receive()
            [report] = await client.subscriptions(TOPIC)

    assert report.consumers[0].credit > 1_000


@pytest.mark.parametrize("kind", ["live", "stream"])
async def test_who_fetches_many_at_once_is_sent_so_many(broker: MemoryBroker, kind: str) -> None:
    async with broker.connect() as client:
        await client.create_topic(TOPIC, kind=kind)
        async with client.subscribe(TOPIC, "work", type="shared") as sub:
            fetching = asyncio.ensure_future(sub.fetch(100))
            await publish(client, 100)

            assert len(await fetching) == 100


async def test_who_takes_whole_batches_gets_larger_ones_though_each_takes_a_while(
    broker: MemoryBroker, clock: VirtualClock
) -> None:
    counts = []
    async with broker.connect() as client:
        await client.create_topic(TOPIC, kind="stream")
        async with client.subscribe(TOPIC, "work", type="shared") as sub:
            await publish(client, 1_000)
            async for batch in sub.batches():
                counts.append(len(batch))
                await settle()
                clock.advance(0.050)
                if sum(counts) == 1_000:
                    break

    assert len(counts) < 25


@asynccontextmanager
async def replicas(
    broker: MemoryBroker, clock: VirtualClock, *answer_s: float, at_once: bool
) -> AsyncIterator[list[int]]:
    """Have a service with replicas that take so long for an answer; gives what each was asked."""
    asked = [0] * len(answer_s)
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
        tasks = []
        for number, seconds in enumerate(answer_s):
            client = await stack.enter_async_context(broker.connect())
            sub = await stack.enter_async_context(
                client.subscribe("/default/price", "pricing", type="shared")
            )

            async def answer(msg: ister.Message, number: int, seconds: float) -> None:
                asked[number] += 1
                await sleep(clock, seconds)
                await msg.reply(b"1.00")

            async def serve(sub: ister.Subscription, number: int, seconds: float) -> None:
                async for msg in sub:
                    if at_once:
                        tasks.append(group.create_task(answer(msg, number, seconds)))
                    else:
                        await answer(msg, number, seconds)

            tasks.append(group.create_task(serve(sub, number, seconds)))
        yield asked
        for task in tasks:
            task.cancel()


async def ask(
    broker: MemoryBroker, clock: VirtualClock, count: int, *, askers: int
) -> list[BaseException]:
    """Ask for prices, so many at a time; return what went wrong."""
    left = iter(range(count))
    errors: list[BaseException] = []
    async with broker.connect() as client:

        async def asker() -> None:
            for _ in left:
                try:
                    await client.request("/default/price", b"sku", timeout=0.5)
                except RequestTimeoutError as error:
                    errors.append(error)

        tasks = [asyncio.ensure_future(asker()) for _ in range(askers)]
        while not all(task.done() for task in tasks):
            await clock.elapse(0.005)
    return errors


@pytest.mark.parametrize("slow_s", [0.7, 3_600.0], ids=["slow", "hung"])
@pytest.mark.parametrize("at_once", [False, True], ids=["one_by_one", "at_once"])
@pytest.mark.parametrize("askers", [1, 5])
async def test_a_slow_replica_costs_few_requests(
    broker: MemoryBroker, clock: VirtualClock, slow_s: float, at_once: bool, askers: int
) -> None:
    async with replicas(broker, clock, slow_s, 0.005, 0.005, at_once=at_once) as asked:
        errors = await ask(broker, clock, 300, askers=askers)

    assert len(errors) <= 6
    assert abs(asked[1] - asked[2]) <= 105


async def test_replicas_that_all_take_a_while_share_the_first_burst(
    broker: MemoryBroker, clock: VirtualClock
) -> None:
    async with replicas(broker, clock, 0.3, 0.3, 0.3, at_once=True) as asked:
        errors = await ask(broker, clock, 100, askers=100)

    assert errors == []
    assert min(asked) > 20


async def test_a_replica_just_slower_than_the_timeout_costs_few_requests(
    broker: MemoryBroker, clock: VirtualClock
) -> None:
    async with replicas(broker, clock, 0.51, 0.1, 0.1, at_once=True) as asked:
        errors = await ask(broker, clock, 500, askers=5)

    assert len(errors) == asked[0] <= 10


async def test_a_replica_that_is_well_again_is_asked_again(
    broker: MemoryBroker, clock: VirtualClock
) -> None:
    async with replicas(broker, clock, 3_600.0, 0.005, at_once=True) as asked:
        await ask(broker, clock, 50, askers=1)
        before = asked[0]
        await clock.elapse(60.0)
        await ask(broker, clock, 50, askers=1)

    assert (before, asked[0]) == (1, 2)
