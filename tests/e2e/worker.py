"""A worker process that makes one message in each of two topics of every message of a third.

Run as a program: it works until it is killed. `URL NAME` are its arguments. With `mortal` as a
third it waits until it is the active one of a failover subscription, works on one message, and dies
as soon as the commit of that has left.
"""

import asyncio
import os
import signal
import sys

import ister
from ister.base.errors import LeaseLostError, TransactionError

TASKS = "/default/tasks"
RESULTS = "/default/results"
AUDIT = "/default/audit"
SUBSCRIPTION = "workers"
# The shortest there is: a worker that is stopped for longer has lost what it holds.
ACK_TIMEOUT_S = 1.0
# What a mortal one sends first.
READY = b"ready"
# Turns of an event loop after which what is sent is with the system.
TURNS = 10


async def work(url: str, name: str) -> None:
    """Take, transform, produce, for ever."""
    async with (
        ister.connect(url, busy_poll=0) as client,
        client.subscribe(
            TASKS,
            SUBSCRIPTION,
            type="shared",
            start="earliest",
            consumer=name,
            ack_timeout=ACK_TIMEOUT_S,
            max_deliveries=0,
            buffer_count=10,
        ) as sub,
    ):
        async for msg in sub:
            try:
                async with client.transaction() as tx:
                    tx.send(RESULTS, msg.payload, attributes={"worker": name})
                    tx.send(AUDIT, msg.payload)
                    tx.ack(msg)
            except (LeaseLostError, TransactionError):
                continue  # Somebody else has it by now.
            await asyncio.sleep(0.01)


async def work_once(url: str, name: str) -> None:
    """Take a message, send the transaction that it makes, and end without a word."""
    async with (
        ister.connect(url, busy_poll=0) as client,
        client.subscribe(
            TASKS, SUBSCRIPTION, type="failover", start="earliest", consumer=name, max_deliveries=0
        ) as sub,
    ):
        # How many partitions a topic has is asked once.
        async with client.transaction() as tx:
            tx.send(RESULTS, READY)
        msg = await sub.receive()
        tx = client.transaction()
        tx.send(RESULTS, msg.payload)
        tx.ack(msg)
        task = asyncio.create_task(tx.commit())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        assert not task.cancelled()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    act = work_once if sys.argv[3:] == ["mortal"] else work
    asyncio.run(act(*sys.argv[1:3]))
