"""The machine stops under real clients, and starts again: they go on, and all is there once."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from tests.crash.conftest import WAYS

import ister
from ister.errors import BusyError, ConflictError
from ister.testing import Crash, FaultyDisk, Keep, MemoryBroker, VirtualClock

IN, OUT = "/default/in", "/default/out"
BATCHES = 6
BATCH_COUNT = 2
COUNT = BATCHES * BATCH_COUNT
# Longer than a client waits before it connects again, and than a broker before it tries its disk.
STEP_S = 0.5
STEPS_MAX = 400


class Clients:
    """A producer, one who moves messages on in transactions, and one who acknowledges them."""

    def __init__(self, client: ister.Client) -> None:
        self._client = client
        self.sent: list[int] = []
        self.acked: list[int] = []

    async def run(self) -> None:
        """Do all of it, whatever happens to the broker."""
        for topic in (IN, OUT):
            await insist(lambda topic=topic: self._client.create_topic(topic, kind="stream"))  # type: ignore[misc]
        await asyncio.gather(self._produce(), self._move(), self._acknowledge())

    async def _produce(self) -> None:
        async with self._client.producer(IN, name="shop") as producer:
            for batch in range(BATCHES):
                numbers = range(batch * BATCH_COUNT, (batch + 1) * BATCH_COUNT)
                futures = [producer.send_nowait(b"%d" % number) for number in numbers]
                self.sent += [(await future).offset for future in futures]

    async def _move(self) -> None:
        async with self._client.subscribe(IN, "move", start="earliest") as sub:
            moved: set[int] = set()
            while len(moved) < COUNT:
                msg = await sub.receive()
                # A lease that was lost fences the transaction, and the message comes again.
                with suppress(ConflictError, BusyError):
                    async with self._client.transaction() as tx:
                        tx.send(OUT, msg.payload)
                        tx.ack(msg)
                    moved.add(msg.offset)

    async def _acknowledge(self) -> None:
        async with self._client.subscribe(IN, "ack", start="earliest") as sub:
            while len(self.acked) < COUNT:
                msg = await sub.receive()
                assert msg.offset not in self.acked, "delivered again after a confirmed ack"
                with suppress(ConflictError, BusyError):
                    await msg.ack(confirm=True)
                    self.acked.append(msg.offset)


async def insist(call: Callable[[], Awaitable[Any]]) -> None:
    """Repeat a call until the broker has answered it."""
    while True:
        with suppress(BusyError):
            await call()
            return


class Machine:
    """A broker on a disk that stops at operations told beforehand, and is then started again."""

    def __init__(self, disk: FaultyDisk, *, stops: list[int], keep: Keep, seed: int) -> None:
        self.clock = VirtualClock()
        self.broker = MemoryBroker(clock=self.clock, disk=disk)
        self._disk = disk
        self._stops = stops
        self._keep = keep
        self._seed = seed

    async def run(self) -> None:
        """Go on for a while; when the disk has stopped, start on what is found of it."""
        with suppress(Crash):
            await self.broker.start()
            await self.clock.elapse(STEP_S)
        if self._disk.crashed:
            await self.broker.stop()
            self._disk = self.broker.disk = self._disk.reopen(self._keep, seed=self._seed)
            self.plan_stop()

    def plan_stop(self) -> None:
        """Have the disk stop where the next stop is due."""
        if self._stops:
            self._disk.crash_at(self._stops.pop(0))


async def live(disk: FaultyDisk, *, stops: list[int], keep: Keep, seed: int) -> Clients:
    """Have clients do their work on a machine that stops now and then; return them."""
    # A stop is raised wherever the disk is used: in a callback of the loop, mostly.
    asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
    machine = Machine(disk, stops=stops, keep=keep, seed=seed)
    machine.plan_stop()
    await machine.run()
    async with machine.broker.connect() as client:
        clients = Clients(client)
        work = asyncio.ensure_future(clients.run())
        for _ in range(STEPS_MAX):
            await machine.run()
            if work.done():
                break
        # Once more: the stop may have come with the last operation of all.
        await machine.run()
        await machine.run()
        await work
        assert await stored(client, IN) == [b"%d" % number for number in range(COUNT)]
        # Messages that come again after a stop may be moved on in another order.
        assert sorted(await stored(client, OUT)) == sorted(b"%d" % n for n in range(COUNT))
    await machine.broker.stop()
    return clients


async def stored(client: ister.Client, topic: str) -> list[bytes]:
    """Return every message of a topic."""
    async with client.reader(topic, start="earliest", end="latest") as reader:
        return [bytes(payload) async for batch in reader for payload in batch.payloads]


async def test_clients_go_on_after_stops_at_any_operation_and_all_is_stored_once() -> None:
    whole = FaultyDisk()
    await live(whole, stops=[], keep="none", seed=0)
    # A few of them: each takes thousands of turns of the loop.
    for number in range(1, len(whole.operations), 5):
        keep, seed = WAYS[number % 6]
        stops = [number, number % 7]
        try:
            clients = await live(FaultyDisk(), stops=stops, keep=keep, seed=seed)
            assert clients.sent == list(range(COUNT))
        except Exception as error:
            error.add_note(f"stopped at operation {number}, then {number % 7}, found {keep!r}")
            raise
