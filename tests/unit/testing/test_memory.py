"""The broker in memory: the real engine, the test's clock, and ways to break it."""

import asyncio

import pytest

import ister
from ister.base.errors import ConnectionLostError, NotConnectedError, RequestTimeoutError
from ister.base.limits import Limits
from ister.testing import MemoryBroker, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    """The time of the test."""
    return VirtualClock()


async def test_messages_are_stamped_by_the_clock_of_the_test(clock: VirtualClock) -> None:
    async with (
        MemoryBroker(clock=clock) as broker,
        broker.connect() as client,
        client.producer("/default/orders") as producer,
        client.subscribe("/default/orders", "billing") as sub,
    ):
        clock.advance(7.0)
        await producer.send(b"x")

        assert (await sub.receive()).publish_time_ms == clock.now_ms()


async def test_a_timeout_comes_when_the_test_says_so(clock: VirtualClock) -> None:
    async with (
        MemoryBroker(clock=clock) as broker,
        broker.connect() as client,
        client.subscribe("/default/price", "silent"),
    ):
        asking = asyncio.ensure_future(client.request("/default/price", b"x", timeout=5.0))
        await clock.elapse(4.999)
        assert not asking.done()
        await clock.elapse(0.001)

        with pytest.raises(RequestTimeoutError):
            await asking


async def test_an_idle_connection_is_kept_alive_by_heartbeats(clock: VirtualClock) -> None:
    async with MemoryBroker(clock=clock) as broker, broker.connect() as client:
        await clock.elapse(120.0)

        assert client.connected
        assert broker.engine.connections == 1


async def test_a_cut_connection_comes_back_after_the_backoff(clock: VirtualClock) -> None:
    async with MemoryBroker(clock=clock) as broker, broker.connect() as client:
        seen = [client.connected]
        broker.disconnect_all()
        for seconds in (0.0, 0.1):
            await clock.elapse(seconds)
            seen.append(client.connected)

        assert seen == [True, False, True]


async def test_a_stopped_broker_is_found_when_it_starts_again(clock: VirtualClock) -> None:
    async with MemoryBroker(clock=clock) as broker, broker.connect() as client:
        await broker.stop()
        await clock.elapse(60.0)
        lost = client.connected
        await broker.start()
        await clock.elapse(5.0)

        assert (lost, client.connected) == (False, True)
        assert await client.topics() == []


async def test_a_message_in_flight_fails_when_the_connection_is_cut(clock: VirtualClock) -> None:
    async with (
        MemoryBroker(clock=clock) as broker,
        broker.connect() as client,
        client.producer("/default/orders") as producer,
    ):
        sent = producer.send_nowait(b"x")
        client.link.flush()
        broker.disconnect_all()

        with pytest.raises(ConnectionLostError):
            await sent
        await clock.elapse(0.1)


async def test_calls_give_up_after_the_timeout_of_the_client(clock: VirtualClock) -> None:
    async with MemoryBroker(clock=clock) as broker, broker.connect(timeout=3.0) as client:
        await broker.stop()
        calling = asyncio.ensure_future(client.topics())
        await clock.elapse(2.999)
        assert not calling.done()
        await clock.elapse(0.001)

        with pytest.raises(NotConnectedError):
            await calling


async def test_nobody_can_connect_to_a_stopped_broker() -> None:
    broker = MemoryBroker()

    with pytest.raises(NotConnectedError):
        await broker.connect(connect_timeout=0)


async def test_limits_are_those_of_the_test() -> None:
    limits = Limits(message_bytes_max=10)
    async with (
        MemoryBroker(limits=limits) as broker,
        broker.connect() as client,
        client.producer("/default/orders") as producer,
    ):
        with pytest.raises(ister.InvalidError):
            await producer.send(bytes(11))


async def test_a_slow_consumer_slows_nobody_else() -> None:
    limits = Limits(queue_bytes_max=10_000)
    events: list[ister.Event] = []
    async with (
        MemoryBroker(limits=limits) as broker,
        broker.connect() as client,
        client.subscribe(
            "/default/o", "slow", buffer_count=1, buffer_bytes=1, on_event=events.append
        ) as slow,
        client.subscribe("/default/o", "fast") as fast,
        client.producer("/default/o") as producer,
    ):
        for _ in range(100):
            await producer.send(bytes(1_000))
        received = [await fast.receive() for _ in range(100)]
        await slow.receive()
        await client.broker()

        assert len(received) == 100
        assert slow.dropped > 0
        assert events[-1] == ister.SlowConsumer("slow", slow.dropped)
