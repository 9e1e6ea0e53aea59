"""The messages of a producer keep their order while the disk fails and is mended, again and again.

Told to have been stored means stored, once; what is stored is in the order it was sent, whatever
was refused in between.
"""

import asyncio
import errno
import random

import pytest

from ister import Client
from ister.base.errors import IsterError
from ister.client import Producer
from ister.testing import Fault, FaultyDisk, MemoryBroker, VirtualClock

TOPIC = "/default/a"
ROUNDS = 12
# Longer than anything waits for.
TIMEOUT_S = 20
FAULTS = [
    Fault(errno.EIO, actions=["sync"], lasting=True),
    Fault(errno.EIO, actions=["write", "sync"], lasting=True),
    Fault(errno.EIO, actions=["sync", "create"], lasting=True),
]
# In the first two, batches that the broker was not sure of were once stored behind later ones.
SEEDS = [59, 89, *range(10)]


class Life:
    """A producer that sends numbers while a disk comes and goes."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.disk = FaultyDisk()
        self.clock = VirtualClock()
        self.sent: list[asyncio.Task[object]] = []

    async def send_some(self, producer: Producer) -> None:
        """Send a few batches, small ones and large ones."""
        for _ in range(self.chance.randint(1, 6)):
            for _ in range(self.chance.randint(1, 3)):
                filling = b"x" * self.chance.choice([1, 1, 300_000])
                sending = producer.send(b"%d " % len(self.sent) + filling)
                self.sent.append(asyncio.ensure_future(sending))
            for _ in range(self.chance.randint(0, 4)):
                await asyncio.sleep(0)

    def break_or_mend(self) -> None:
        """Have the disk fail, or not any more, or leave it as it is."""
        chance = self.chance.random()
        if chance < 0.35:
            self.disk.fail(self.chance.choice(FAULTS))
        elif chance < 0.8:
            self.disk.heal()

    async def live(self, client: Client) -> None:
        """Send until all is told to be stored, or not to be."""
        async with client.producer(TOPIC) as producer:
            for _ in range(ROUNDS):
                self.break_or_mend()
                await self.send_some(producer)
                await self.clock.elapse(self.chance.choice([0.0, 0.01, 0.3, 0.9, 1.0, 1.1]))
            self.disk.heal()
            for _ in range(2 * TIMEOUT_S):
                await self.clock.elapse(1.0)

    def acknowledged(self) -> set[int]:
        """Return the numbers that are told to be stored; everybody has been told."""
        errors = [sending.exception() for sending in self.sent]
        assert all(isinstance(error, IsterError) for error in errors if error is not None)
        return {number for number, error in enumerate(errors) if error is None}


async def stored(client: Client) -> list[int]:
    async with client.reader(TOPIC, start="earliest") as reader:
        return [
            int(bytes(payload).partition(b" ")[0])
            async for batch in reader
            for payload in batch.payloads
        ]


@pytest.mark.parametrize("seed", SEEDS)
async def test_order_is_kept_while_the_disk_fails_and_is_mended(seed: int) -> None:
    life = Life(seed)
    async with (
        MemoryBroker(disk=life.disk, clock=life.clock) as broker,
        broker.connect(timeout=TIMEOUT_S) as client,
    ):
        await client.create_topic(TOPIC, kind="stream")
        await life.live(client)
        acknowledged, found = life.acknowledged(), await stored(client)

    assert found == sorted(set(found))
    assert acknowledged <= set(found)
