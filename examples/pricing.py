"""A pricing service with three replicas. One is slow, so its requests go to the others.

ister serve &
python examples/pricing.py
"""

import asyncio

import ister
from ister.errors import RequestTimeoutError

PRICES = "examples.price"
REQUESTS = 300


async def replica(delay: float) -> None:
    """Answer requests one after the other."""
    async with (
        ister.connect() as client,
        client.subscribe(PRICES, "pricing", type="shared") as sub,
    ):
        async for msg in sub:
            await asyncio.sleep(delay)
            await msg.reply(b"price of " + msg.payload)


async def ask(client: ister.Client, sku: int) -> bool:
    """Return whether an answer came in time."""
    try:
        answer = await client.request(PRICES, b"sku-%d" % sku, timeout=2.0)
    except RequestTimeoutError:
        return False
    assert answer == b"price of sku-%d" % sku
    return True


async def main() -> None:
    """Ask for many prices, a few at a time."""
    async with ister.connect() as client:
        replicas = [asyncio.create_task(replica(delay)) for delay in (0.001, 0.001, 10.0)]
        while not (subs := await client.subscriptions(PRICES)) or len(subs[0].consumers) < 3:
            await asyncio.sleep(0.01)
        answered = 0
        for first in range(0, REQUESTS, 10):
            results = await asyncio.gather(*(ask(client, first + n) for n in range(10)))
            answered += sum(results)
        print(f"{answered} of {REQUESTS} requests were answered in time")
        for one in replicas:
            one.cancel()


if __name__ == "__main__":
    asyncio.run(main())
