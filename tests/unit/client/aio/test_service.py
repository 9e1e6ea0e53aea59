"""Services: handlers of requests, their figures, and how others find them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

import ister
from ister.base.errors import (
    BadRequestError,
    NoResponderError,
    ResponderFailedError,
)
from ister.testing import MemoryBroker, ThreadedBroker, VirtualClock
from ister.testing.clock import settle

TOPIC = "/default/price"


@asynccontextmanager
async def serving(
    client: ister.Client, handler: Callable[..., Any], topic: str = TOPIC, **options: Any
) -> AsyncIterator[ister.ServiceInstance]:
    """Run a service; when the block ends it is closed, and what is under way is answered."""
    async with client.service(topic, handler, **options) as service:
        running = asyncio.create_task(service.run())
        yield service
    await running


class Gate:
    """A handler that answers when the test says so."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.opened = asyncio.Event()

    async def __call__(self, msg: ister.Message) -> bytes:
        self.begun.append(msg.payload)
        await self.opened.wait()
        return msg.payload


async def asked(client: ister.Client, count: int) -> list["asyncio.Task[ister.Answer]"]:
    """Ask so many questions."""
    tasks = [asyncio.create_task(client.request(TOPIC, b"%d" % n)) for n in range(count)]
    await settle()
    return tasks


@pytest.mark.parametrize("answer", [b"42", bytearray(b"42"), None])
async def test_what_the_handler_returns_is_the_answer(
    client: ister.Client, answer: bytes | None
) -> None:
    async def coroutine(msg: ister.Message) -> bytes | None:
        return answer

    for handler in (coroutine, lambda msg: answer):
        async with serving(client, handler):
            assert await client.request(TOPIC, b"sku-1") == bytes(answer or b"")


async def test_an_error_of_the_handler_is_raised_where_it_was_asked(client: ister.Client) -> None:
    def handler(msg: ister.Message) -> bytes:
        raise ValueError(f"{msg.payload!r} is unknown")

    async with serving(client, handler) as service:
        with pytest.raises(ResponderFailedError) as caught:
            await client.request(TOPIC, b"sku-1")

        assert caught.value.reason == "ValueError: b'sku-1' is unknown"
        assert (service.stats.requests, service.stats.failures) == (1, 1)


@pytest.mark.parametrize("wrong", ["text", 7, b"x" * 9_000_000])
async def test_an_answer_that_cannot_be_is_an_error(client: ister.Client, wrong: object) -> None:
    async with serving(client, lambda msg: wrong):
        with pytest.raises(ResponderFailedError):
            await client.request(TOPIC, b"x")


async def test_so_many_requests_are_handled_at_once_and_no_more(client: ister.Client) -> None:
    gate = Gate()
    async with serving(client, gate, concurrency=2) as service:
        tasks = await asked(client, 5)
        assert gate.begun == [b"0", b"1"]
        assert service.stats.in_flight == 2
        gate.opened.set()

        assert await asyncio.gather(*tasks) == [b"0", b"1", b"2", b"3", b"4"]
        assert (service.stats.requests, service.stats.in_flight) == (5, 0)


async def test_replicas_share_requests(client: ister.Client) -> None:
    one, two = Gate(), Gate()
    async with serving(client, one), serving(client, two):
        tasks = await asked(client, 4)
        for gate in (one, two):
            assert len(gate.begun) == 2
            gate.opened.set()
        await asyncio.gather(*tasks)


async def test_requests_beyond_those_in_handlers_wait_in_the_broker(client: ister.Client) -> None:
    hanging = Gate()
    async with serving(client, hanging, concurrency=3) as service:
        first = await asked(client, 10)
        async with serving(client, lambda msg: b"42") as other:
            await settle()

            assert (len(hanging.begun), other.stats.requests) == (3, 7)
            assert [task.done() for task in first] == [False] * 3 + [True] * 7
        hanging.opened.set()
        await asyncio.gather(*first)
        assert service.stats.requests == 3


async def test_one_answer_makes_room_for_one_request(client: ister.Client) -> None:
    opened = [asyncio.Event() for _ in range(6)]
    begun: list[int] = []

    async def handler(msg: ister.Message) -> None:
        begun.append(int(msg.payload))
        await opened[begun[-1]].wait()

    async with serving(client, handler, concurrency=4):
        tasks = await asked(client, 6)
        opened[2].set()
        await settle()

        assert begun == [0, 1, 2, 3, 4]
        for event in opened:
            event.set()
        await asyncio.gather(*tasks)


async def test_requests_in_handlers_count_after_a_lost_connection(
    client: ister.Client, broker: MemoryBroker, clock: VirtualClock
) -> None:
    gate = Gate()
    async with serving(client, gate, concurrency=2) as service:
        lost = await asked(client, 2)
        broker.disconnect_all()
        await clock.elapse(5.0)
        await asyncio.gather(*lost, return_exceptions=True)
        tasks = await asked(client, 2)

        assert (len(gate.begun), service.stats.in_flight) == (2, 2)
        gate.opened.set()
        await asyncio.gather(*tasks)
        assert service.stats.requests == 4


async def test_what_is_under_way_is_answered_when_the_service_is_closed(
    client: ister.Client,
) -> None:
    gate = Gate()
    async with client.service(TOPIC, gate) as service:
        running = asyncio.create_task(service.run())
        [task] = await asked(client, 1)
        await service.close()
        with pytest.raises(NoResponderError):
            await client.request(TOPIC, b"late")
        assert not running.done()
        gate.opened.set()

        assert await task == b"0"
        await running


async def test_a_service_that_is_cancelled_ends_its_handlers(client: ister.Client) -> None:
    async with client.service(TOPIC, Gate()) as service:
        running = asyncio.create_task(service.run())
        [task] = await asked(client, 1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        assert service.stats.in_flight == 0
        task.cancel()


async def test_messages_that_ask_nothing_are_passed_over(client: ister.Client) -> None:
    async with serving(client, lambda msg: b"42") as service:
        await client.publish(TOPIC, b"news")

        assert await client.request(TOPIC, b"x") == b"42"
        assert service.stats.requests == 1


async def test_latencies_are_those_of_the_handler(
    client: ister.Client, clock: VirtualClock
) -> None:
    gate = Gate()
    async with serving(client, gate) as service:
        for seconds in (1.0, 3.0):
            gate.opened.clear()
            [task] = await asked(client, 1)
            await clock.elapse(seconds)
            gate.opened.set()
            await task

        assert (service.stats.latency_mean, service.stats.latency_max) == (2.0, 3.0)


# Discovery


async def test_instances_are_found_by_a_pattern(
    client: ister.Client, broker: MemoryBroker, clock: VirtualClock
) -> None:
    def failing(msg: ister.Message) -> bytes:
        raise ValueError("bad")

    async with (
        serving(client, lambda msg: b"42", concurrency=3) as price,
        serving(client, lambda msg: b"42", "/default/stock.eu", health=lambda: False) as stock,
        serving(client, failing, "/default/stock.us", name="us"),
        broker.connect() as other,
    ):
        await other.request(TOPIC, b"x")
        with pytest.raises(ResponderFailedError):
            await other.request("/default/stock.us", b"x")

        everything = await other.services()
        assert [(one.topic, one.name, one.healthy) for one in everything] == [
            (TOPIC, "service", True),
            ("/default/stock.eu", "service", False),
            ("/default/stock.us", "us", True),
        ]
        assert (everything[0].id, everything[0].concurrency) == (price.id, 3)
        assert everything[0].stats.requests == 1
        assert everything[0].started_ms == clock.now_ms()
        assert everything[2].stats.failures == 1
        assert [one.id for one in await other.services("/default/stock.eu")] == [stock.id]
        assert len(await other.services("stock.>")) == 2


async def test_an_instance_that_has_ended_is_not_found(client: ister.Client) -> None:
    assert await client.services() == []
    async with serving(client, lambda msg: b"42"):
        assert len(await client.services()) == 1

    assert await client.services() == []


async def test_a_service_whose_client_is_closed_says_so(broker: MemoryBroker) -> None:
    client = await broker.connect()
    async with client.service(TOPIC, lambda msg: b"42") as service:
        running = asyncio.create_task(service.run())
        await settle()
        await client.close()

        # It ends, or raises an error of its own: not a group of them.
        [ended] = await asyncio.gather(running, return_exceptions=True)
        assert ended is None or isinstance(ended, ister.IsterError)


async def test_an_instance_that_hangs_is_left_out(
    client: ister.Client, clock: VirtualClock
) -> None:
    async with client.service(TOPIC, lambda msg: b"42"):
        finding = asyncio.create_task(client.services(timeout=2.0))
        await clock.elapse(2.0)

        assert await finding == []


async def test_a_health_check_that_raises_is_told_as_not_healthy(client: ister.Client) -> None:
    async def health() -> bool:
        raise OSError("the database is away")

    async with serving(client, lambda msg: b"42", health=health):
        assert [one.healthy for one in await client.services()] == [False]


async def test_services_are_found_where_topics_are_not_made_by_their_use(
    clock: VirtualClock,
) -> None:
    async with (
        MemoryBroker(clock=clock, auto_create="off") as broker,
        broker.connect() as client,
    ):
        await client.create_topic(TOPIC)
        async with serving(client, lambda msg: b"42"):
            assert len(await client.services()) == 1


@pytest.mark.parametrize("wrong", [0, 10_001])
async def test_what_makes_no_sense_is_refused(client: ister.Client, wrong: int) -> None:
    with pytest.raises(BadRequestError):
        client.service(TOPIC, lambda msg: b"", concurrency=wrong)
    with pytest.raises(BadRequestError):
        client.service(TOPIC, b"no handler")  # type: ignore[arg-type]


def test_the_blocking_client_has_the_same() -> None:
    def handler(msg: object) -> bytes:
        if msg.payload == b"bad":  # type: ignore[attr-defined]
            raise KeyError("bad")
        return b"42"

    with (
        ThreadedBroker() as broker,
        ister.sync.connect(broker.url) as client,
        client.service(TOPIC, handler) as service,
    ):
        running = threading.Thread(target=service.run)
        running.start()
        assert client.request(TOPIC, b"x", timeout=10.0) == b"42"
        with pytest.raises(ResponderFailedError):
            client.request(TOPIC, b"bad", timeout=10.0)
        [found] = client.services()
        service.close()
        running.join(10.0)

        assert (found.id, found.stats.requests) == (service.id, 2)
        assert not running.is_alive()
        assert service.stats.failures == 1


def test_requests_beyond_those_in_threads_wait_in_the_broker() -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def hanging(msg: object) -> bytes:
        begun.release()
        go_on.wait(60.0)
        return b"late"

    with ThreadedBroker() as broker, ExitStack() as stack:
        asker, one, two = (stack.enter_context(ister.sync.connect(broker.url)) for _ in range(3))
        slow = stack.enter_context(one.service(TOPIC, hanging, concurrency=2))
        quick = two.service(TOPIC, lambda msg: b"42")
        threads = stack.enter_context(ThreadPoolExecutor(12))
        stack.callback(go_on.set)
        running = [threads.submit(slow.run)]
        answers = [threads.submit(asker.request, TOPIC, b"x", timeout=60.0) for _ in range(2)]
        assert all(begun.acquire(timeout=30.0) for _ in range(2))
        answers += [threads.submit(asker.request, TOPIC, b"x", timeout=60.0) for _ in range(6)]
        quick.open()
        running.append(threads.submit(quick.run))
        wait(answers[2:], 30.0)
        done = [answer.result() for answer in answers if answer.done()]
        go_on.set()
        wait(answers, 30.0)
        quick.close()
        slow.close()

        assert done == [b"42"] * 6
        assert [answer.result() for answer in answers] == [b"late"] * 2 + [b"42"] * 6
