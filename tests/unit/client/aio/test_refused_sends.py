"""A send that the broker refuses leaves nothing in memory, whatever its error is used for."""

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest

import ister
from ister.base.errors import IsterError, OffsetMismatchError, SchemaViolationError
from ister.client.session import PendingBatch
from ister.testing import MemoryBroker

TOPIC = "/default/orders"
COUNT = 20

Act = Callable[[ister.Producer], Awaitable[None]]


async def send(producer: ister.Producer) -> None:
    """Send, and look at nothing."""
    await producer.send(b"x", expected_offset=7)


async def await_future(producer: ister.Producer) -> None:
    """Await a future twice, in a frame that refers to it."""
    future = producer.send_nowait(b"x")
    with pytest.raises(SchemaViolationError):
        await future
    await future


async def raise_exception(producer: ister.Producer) -> None:
    """Raise what a future says went wrong."""
    future = producer.send_nowait(b"x")
    with suppress(IsterError):
        await future
    error = future.exception()
    assert error is not None
    raise error


async def flush(producer: ister.Producer) -> None:
    """Have `flush` say it."""
    future = producer.send_nowait(b"x")
    await producer.flush()
    assert future.done()


def batches() -> int:
    """Count the batches in memory."""
    gc.collect()
    return sum(isinstance(found, PendingBatch) for found in gc.get_objects())


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Have Python free only what nothing refers to."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
async def test_a_refused_send_is_freed_without_the_garbage_collector() -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic(TOPIC, kind="stream")
        async with client.producer(TOPIC) as producer:
            for _ in range(COUNT):
                with suppress(OffsetMismatchError):
                    await send(producer)

            left = [found for found in gc.get_objects() if isinstance(found, OffsetMismatchError)]

    assert left == []


@pytest.mark.parametrize("act", [send, await_future, raise_exception, flush])
async def test_a_refused_send_is_freed(act: Act) -> None:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic(TOPIC, kind="stream")
        await client.schemas.register("orders", ister.Schema("json", b'{"type": "object"}'))
        await client.schemas.bind(TOPIC, "orders")
        async with client.producer(TOPIC) as producer:
            before = batches()

            for _ in range(COUNT):
                with pytest.raises(IsterError):
                    await act(producer)

            assert batches() <= before + 1
