"""A worker process that makes one message in each of two topics of every message of a third.

Run as a program: it works until it is killed. `URL NAME` are its arguments.
"""

import asyncio
import sys

import ister
from ister.base.errors import LeaseLostError, TransactionError

TASKS = "/default/tasks"
RESULTS = "/default/results"
AUDIT = "/default/audit"
SUBSCRIPTION = "workers"
# The shortest there is: a worker that is stopped for longer has lost what it holds.
ACK_TIMEOUT_S = 1.0


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


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:3]))
