"""After a lost connection or a restart, producers and subscriptions come back by themselves."""

import asyncio
from collections.abc import Callable

from tests.contract.harness import Harness

import ister


class Events:
    """Events of a subscription, awaited from the test's event loop, whichever thread told."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[ister.Event] = asyncio.Queue()

    @property
    def tell(self) -> Callable[[ister.Event], object]:
        """What to give as `on_event`."""
        return lambda event: self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def next(self) -> ister.Event:
        """Return the next event."""
        return await self._queue.get()


async def test_a_cut_connection_is_resumed(harness: Harness, client: ister.Client) -> None:
    events = Events()
    async with (
        client.subscribe("/default/orders", "billing", on_event=events.tell) as sub,
        client.producer("/default/orders") as producer,
    ):
        await producer.send(b"before")
        assert (await sub.receive()).payload == b"before"

        await harness.disconnect_all()
        assert await events.next() == ister.Resumed("billing")
        await producer.send(b"after")

        assert (await sub.receive()).payload == b"after"
        assert client.connected


async def test_a_restarted_broker_is_found_again(harness: Harness, client: ister.Client) -> None:
    events = Events()
    async with (
        client.subscribe("/default/orders", "billing", on_event=events.tell) as sub,
        client.producer("/default/orders") as producer,
    ):
        await harness.restart()
        assert await events.next() == ister.Resumed("billing")
        mid = await producer.send(b"after")

        assert mid.offset == 0
        assert (await sub.receive()).payload == b"after"


async def test_a_partitioned_topic_comes_back_as_it_was(
    harness: Harness, client: ister.Client
) -> None:
    await client.create_topic("/default/parts", partitions=3)
    events = Events()
    async with (
        client.subscribe("/default/parts", "billing", on_event=events.tell) as sub,
        client.producer("/default/parts") as producer,
    ):
        await harness.restart()
        assert await events.next() == ister.Resumed("billing")
        sent = [await producer.send(b"after") for _ in range(3)]
        received = [await sub.receive() for _ in range(3)]

    assert [mid.partition for mid in sent] == [0, 1, 2]
    assert [msg.partition for msg in received] == [0, 1, 2]


async def test_calls_wait_for_the_connection_to_come_back(
    harness: Harness, client: ister.Client
) -> None:
    await harness.restart()

    await client.create_topic("/default/orders")
    async with client.subscribe("/default/price", "responder") as sub:
        asking = asyncio.ensure_future(client.request("/default/price", b"x", timeout=10.0))
        await (await sub.receive()).reply(b"y")
        assert await asking == b"y"


async def test_what_is_sent_while_disconnected_waits_for_the_connection(
    harness: Harness, client: ister.Client
) -> None:
    events = Events()
    async with (
        client.subscribe("/default/orders", "billing", on_event=events.tell),
        client.producer("/default/orders", resend=True) as producer,
    ):
        await harness.disconnect_all()
        futures = [producer.send_nowait(b"%d" % n) for n in range(10)]
        await events.next()

        offsets = [(await future).offset for future in futures]
        assert offsets == list(range(offsets[0], offsets[0] + 10))
