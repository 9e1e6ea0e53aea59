"""Each subscription type while consumers join, leave and crash, and a producer keeps sending."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count, pairwise

import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.raw import WAIT_S, RawClient, eventually

import ister
from ister.base.errors import SubscriptionTakenError
from ister.client.session import Event
from ister.wire import Subscribe, Subscribed, credit_frame

pytestmark = pytest.mark.e2e

_topics = count()


@pytest.fixture(scope="module")
def churned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker for the whole file; each test has its own topic."""
    broker = BrokerProcess(tmp_path_factory.mktemp("churn"))
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
async def client(churned: BrokerProcess) -> AsyncIterator[ister.Client]:
    async with ister.connect(churned.url, timeout=WAIT_S) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return f"/default/churn-{next(_topics)}"


class Stream:
    """A producer that never stops: numbered messages, one by one, spread over some keys."""

    KEYS = 50

    def __init__(self, producer: ister.Producer) -> None:
        self.sent = 0
        self._producer = producer
        self._stopping = False
        self._grown = asyncio.Event()

    async def run(self) -> None:
        while not self._stopping:
            key = f"k{self.sent % self.KEYS}"
            await self._producer.send(b"%d" % self.sent, key=key)
            self.sent += 1
            self._grown.set()

    async def more(self, number: int = 100) -> None:
        """Return when so many more messages are sent and acknowledged."""
        goal = self.sent + number
        async with asyncio.timeout(WAIT_S):
            while self.sent < goal:
                self._grown.clear()
                await self._grown.wait()

    def stop(self) -> None:
        self._stopping = True


@asynccontextmanager
async def streaming(client: ister.Client, topic: str) -> AsyncIterator[Stream]:
    """Send in the background; on leaving, everything sent is acknowledged."""
    async with client.producer(topic) as producer:
        stream = Stream(producer)
        task = asyncio.create_task(stream.run())
        try:
            yield stream
        finally:
            stream.stop()
            async with asyncio.timeout(WAIT_S):
                await task


class Listener:
    """A consumer that writes down what it gets, to the last message it was sent."""

    def __init__(self, sub: ister.Subscription) -> None:
        self.sub = sub
        self.numbers: list[int] = []
        self.keys: list[str] = []
        self._task = asyncio.create_task(self._run())
        self._grown = asyncio.Event()

    async def _run(self) -> None:
        async for msg in self.sub:
            self.numbers.append(int(msg.payload))
            self.keys.append(msg.key or "")
            self._grown.set()

    async def some(self, number: int = 1) -> None:
        """Return when so many more messages have come."""
        goal = len(self.numbers) + number
        async with asyncio.timeout(WAIT_S):
            while len(self.numbers) < goal:
                self._grown.clear()
                await self._grown.wait()

    async def until(self, number: int) -> None:
        """Return when message `number` has come."""
        async with asyncio.timeout(WAIT_S):
            while number not in self.numbers[-Stream.KEYS * 4 :]:
                self._grown.clear()
                await self._grown.wait()

    async def leave(self) -> None:
        """Close, and take what had been sent by then."""
        await self.sub.close()
        async with asyncio.timeout(WAIT_S):
            await self._task


async def listen(client: ister.Client, topic: str, type: str, **options: object) -> Listener:
    sub = client.subscribe(topic, "s", type=type, **options)  # type: ignore[arg-type]
    await sub.open()
    return Listener(sub)


def rising(numbers: list[int]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


# A consumer in a process of its own, to be killed.
CONSUMER = """
import asyncio, ister, sys

async def main():
    async with ister.connect(sys.argv[1]) as client:
        async with client.subscribe(sys.argv[2], "s", type=sys.argv[3]) as sub:
            print("attached", flush=True)
            async for msg in sub:
                print(msg.payload.decode(), flush=True)

asyncio.run(main())
"""


class ConsumerProcess:
    """A consumer that can crash."""

    def __init__(self, url: str, topic: str, type: str) -> None:
        command = [sys.executable, "-c", CONSUMER, url, topic, type]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "attached\n"

    async def crash(self) -> list[int]:
        """Kill the process; return what it had received."""
        self.process.kill()
        text, _ = await asyncio.to_thread(self.process.communicate)
        # The last line may be cut in two.
        return [int(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


# Exclusive


async def test_an_exclusive_subscription_refuses_a_second_consumer_and_names_the_first(
    churned: BrokerProcess, client: ister.Client, topic: str
) -> None:
    async with ister.connect(churned.url) as other:
        first = await listen(client, topic, "exclusive", consumer="first")
        async with streaming(client, topic) as stream:
            for rival in (client, other):
                with pytest.raises(SubscriptionTakenError) as caught:
                    await rival.subscribe(topic, "s").open()
                assert caught.value.consumer == "first"
                await stream.more()
        await first.until(stream.sent - 1)
        await first.leave()

    assert first.numbers == list(range(stream.sent))


async def test_an_exclusive_subscription_is_free_as_soon_as_its_consumer_has_left(
    client: ister.Client, topic: str
) -> None:
    listeners = []
    async with streaming(client, topic) as stream:
        for _ in range(10):
            listener = await listen(client, topic, "exclusive")
            await listener.some()
            await stream.more(20)
            await listener.leave()
            listeners.append(listener)

    numbers = [n for listener in listeners for n in listener.numbers]
    assert rising(numbers)


async def test_an_exclusive_subscription_is_free_after_its_process_is_killed(
    churned: BrokerProcess, client: ister.Client, topic: str
) -> None:
    async with streaming(client, topic) as stream:
        process = await asyncio.to_thread(ConsumerProcess, churned.url, topic, "exclusive")
        await stream.more()
        with pytest.raises(SubscriptionTakenError):
            await client.subscribe(topic, "s").open()
        before = await process.crash()

        listener = await takes_over(client, topic)
        await listener.some()
        await listener.leave()

    assert before
    assert rising(before + listener.numbers)


async def takes_over(client: ister.Client, topic: str) -> Listener:
    """Subscribe as soon as the broker has noticed that the former consumer is gone."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                return await listen(client, topic, "exclusive")
            except SubscriptionTakenError:
                await asyncio.sleep(0.005)


# Shared


@pytest.mark.parametrize("policy", ["least_loaded", "round_robin", "random"])
async def test_a_shared_subscription_loses_and_doubles_nothing_while_consumers_come_and_go(
    churned: BrokerProcess, client: ister.Client, topic: str, policy: str
) -> None:
    async with ister.connect(churned.url) as other:
        # One stays, so that there is always somebody to send to.
        staying = await listen(client, topic, "shared", policy=policy)
        left = []
        async with streaming(client, topic) as stream:
            for round_ in range(8):
                guests = [
                    await listen(other if n % 2 else client, topic, "shared", policy=policy)
                    for n in range(1 + round_ % 3)
                ]
                for guest in guests:
                    await guest.some()
                await stream.more(20)
                for guest in guests:
                    await guest.leave()
                left += guests
        await staying.leave()

    numbers = Counter(n for one in [staying, *left] for n in one.numbers)
    assert numbers == Counter(range(stream.sent))
    assert all(rising(one.numbers) for one in [staying, *left])


async def test_a_shared_subscription_hands_on_what_a_leaving_consumer_was_not_sent(
    churned: BrokerProcess, client: ister.Client, topic: str
) -> None:
    with RawClient(churned) as raw:
        raw.greet()
        subscribe_raw(raw, topic, "shared")
        # Without credit everything waits in the broker.
        async with client.producer(topic) as producer:
            await producer.send_batch([b"%d" % n for n in range(1_000)])
        listener = await listen(client, topic, "shared")
        raw.reset()
        await listener.until(999)
        await listener.leave()

    assert listener.numbers == list(range(1_000))


async def test_a_crash_of_a_shared_consumer_costs_only_what_it_was_sent(
    churned: BrokerProcess, client: ister.Client, topic: str
) -> None:
    staying = await listen(client, topic, "shared", policy="round_robin")
    with RawClient(churned) as raw:
        raw.greet()
        subscribe_raw(raw, topic, "shared", policy="round_robin")
        raw.send(credit_frame(2, 10, 1_000_000))
        async with streaming(client, topic) as stream:
            await stream.more(200)
            raw.reset()
            await stream.more(200)
    await staying.until(stream.sent - 1)
    await staying.leave()

    missing = set(range(stream.sent)) - set(staying.numbers)
    assert len(missing) == 10
    assert len(staying.numbers) == len(set(staying.numbers))


def subscribe_raw(raw: RawClient, topic: str, type: str, policy: str = "least_loaded") -> None:
    command = Subscribe(
        topic=topic, subscription="s", consumer="raw", channel=2, type=type, policy=policy
    )
    raw.call(command, Subscribed)


# Failover


async def test_the_standby_is_promoted_in_order_and_without_loss_when_the_active_one_closes(
    churned: BrokerProcess, client: ister.Client, topic: str
) -> None:
    events: list[tuple[int, Event]] = []
    async with ister.connect(churned.url) as other:
        listeners = [
            await listen(
                other if number % 2 else client,
                topic,
                "failover",
                on_event=lambda event, number=number: events.append((number, event)),
            )
            for number in range(5)
        ]
        assert [one.sub.active for one in listeners] == [True, False, False, False, False]
        async with streaming(client, topic) as stream:
            for active in listeners[:-1]:
                await active.some(20)
                await active.leave()
            await listeners[-1].some(20)
        await listeners[-1].until(stream.sent - 1)
        await listeners[-1].leave()

    assert events == [(number, ister.Promoted("s")) for number in range(1, 5)]
    assert [n for one in listeners for n in one.numbers] == list(range(stream.sent))


async def test_the_standby_is_promoted_in_order_when_the_process_of_the_active_one_is_killed(
    churned: BrokerProcess, client: ister.Client, topic: str
) -> None:
    promoted = asyncio.Event()
    process = await asyncio.to_thread(ConsumerProcess, churned.url, topic, "failover")
    standby = await listen(client, topic, "failover", on_event=lambda _: promoted.set())
    async with streaming(client, topic) as stream:
        await stream.more(200)
        before = await process.crash()
        async with asyncio.timeout(WAIT_S):
            await promoted.wait()
        await standby.some(20)
    await standby.until(stream.sent - 1)
    await standby.leave()

    assert before == list(range(len(before)))
    assert rising(before + standby.numbers)
    # From the first one on it misses nothing.
    assert standby.numbers == list(range(standby.numbers[0], stream.sent))


async def test_what_the_active_one_was_not_sent_comes_first_to_the_promoted_one(
    churned: BrokerProcess, client: ister.Client, topic: str
) -> None:
    with RawClient(churned) as raw:
        raw.greet()
        subscribe_raw(raw, topic, "failover")
        raw.send(credit_frame(2, 7, 1_000_000))
        standby = await listen(client, topic, "failover")
        async with streaming(client, topic) as stream:
            await stream.more(200)
            raw.reset()
            await standby.some(250)
        await standby.until(stream.sent - 1)
        await standby.leave()

    assert standby.numbers == list(range(7, stream.sent))


# Key-shared


def owners(listeners: list[Listener], start: int = 0) -> dict[str, int]:
    """Return which listener has each key, checking that it is only one."""
    found: dict[str, int] = {}
    for slot, listener in enumerate(listeners):
        for key, number in zip(listener.keys, listener.numbers, strict=True):
            if number >= start:
                assert found.setdefault(key, slot) == slot, f"{key} at two consumers"
    return found


async def settled(listeners: list[Listener], stream: Stream) -> dict[str, int]:
    """Let every key come by a few times from now on; return who has it."""
    start = stream.sent
    await stream.more(Stream.KEYS * 3)
    end = start + Stream.KEYS * 3 - 1
    await eventually(lambda: any(end in one.numbers for one in listeners))
    # The message under way while the ring changed may still have gone to the former owner.
    return owners(listeners, start + 1)


async def test_a_joining_consumer_moves_only_its_share_of_keys_and_a_leaving_one_only_its_own(
    churned: BrokerProcess, client: ister.Client, topic: str
) -> None:
    async with ister.connect(churned.url) as other:
        listeners = [
            await listen(client, topic, "key_shared", consumer=f"c{slot}") for slot in range(4)
        ]
        async with streaming(client, topic) as stream:
            before = await settled(listeners, stream)
            listeners.append(await listen(other, topic, "key_shared", consumer="c4"))
            joined = await settled(listeners, stream)
            await listeners[1].leave()
            left = await settled(listeners, stream)
        for one in listeners:
            await one.leave()

    assert set(before) == {f"k{n}" for n in range(Stream.KEYS)}
    moved = {key for key in before if joined[key] != before[key]}
    assert moved
    assert {joined[key] for key in moved} == {4}
    # A fifth of the keys, give or take what so few keys make of it.
    assert len(moved) < Stream.KEYS / 2
    assert {joined[key] for key in joined if left[key] != joined[key]} == {1}
    assert 1 not in left.values()


async def test_a_key_shared_subscription_keeps_the_order_of_each_key_while_consumers_come_and_go(
    churned: BrokerProcess, client: ister.Client, topic: str
) -> None:
    async with ister.connect(churned.url) as other:
        listeners = [await listen(client, topic, "key_shared")]
        async with streaming(client, topic) as stream:
            for round_ in range(6):
                guest = await listen(other if round_ % 2 else client, topic, "key_shared")
                listeners.append(guest)
                await guest.some(5)
                if round_ > 1:
                    await listeners[round_ - 1].leave()
        for one in listeners:
            await one.leave()

    numbers = Counter(n for one in listeners for n in one.numbers)
    assert numbers == Counter(range(stream.sent))
    for one in listeners:
        for key in set(one.keys):
            pairs = zip(one.keys, one.numbers, strict=True)
            assert rising([n for k, n in pairs if k == key])


async def test_a_key_shared_consumer_that_crashes_gives_its_keys_to_the_others(
    churned: BrokerProcess, client: ister.Client, topic: str
) -> None:
    staying = await listen(client, topic, "key_shared")
    async with streaming(client, topic) as stream:
        process = await asyncio.to_thread(ConsumerProcess, churned.url, topic, "key_shared")
        await stream.more(Stream.KEYS * 3)
        crashed = await process.crash()
        while len((await client.subscriptions(topic))[0].consumers) > 1:
            await stream.more(1)
        found = await settled([staying], stream)
    await staying.leave()

    assert crashed
    assert len(found) == Stream.KEYS
    assert not set(crashed) & set(staying.numbers)
