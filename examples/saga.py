"""A saga: orders are reserved, then paid, each step exactly once, even if processes are killed.

    ister serve &
    python examples/saga.py work &    # several of them; kill -9 any, and the broker
    python examples/saga.py order 20
    python examples/saga.py report

Each step receives a message, and in one transaction sends the next message and acknowledges the
received one. An order that cannot be paid is compensated: its reservation is released.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import ister

ORDERS, RESERVED, DONE = "saga.orders", "saga.reserved", "saga.done"
Order = dict[str, Any]


async def work(client: ister.Client) -> None:
    """Run both steps until this process is ended."""
    await asyncio.gather(step(client, ORDERS, reserve), step(client, RESERVED, pay))


def reserve(order: Order) -> tuple[str, Order]:
    """Reserve the ordered items."""
    return RESERVED, {**order, "state": "reserved"}


def pay(order: Order) -> tuple[str, Order]:
    """Charge the customer, or release the reservation."""
    refused = str(order["id"]).endswith("3")
    return DONE, {**order, "state": "released" if refused else "paid"}


async def step(client: ister.Client, topic: str, act: Callable[[Order], tuple[str, Order]]) -> None:
    """Turn each message of a topic into a message of the next topic."""
    async with client.subscribe(
        topic, "workers", type="shared", start="earliest", ack_timeout=2.0, max_deliveries=0
    ) as sub:
        async for msg in sub:
            target, order = act(json.loads(msg.payload))
            try:
                async with client.transaction() as tx:
                    tx.send(target, json.dumps(order).encode(), key=msg.key)
                    tx.ack(msg)
            except ister.ConflictError:
                continue  # Its lease expired: another worker has the message.


async def order(client: ister.Client, count: int) -> None:
    """Place orders. Each is placed once, even if this is repeated."""
    for number in range(count):
        body = json.dumps({"id": number}).encode()
        await client.publish(ORDERS, body, key=str(number), id=f"order-{number}")


async def report(client: ister.Client) -> None:
    """Print how the orders ended."""
    async with client.reader(DONE) as reader:
        ends = [json.loads(payload) async for batch in reader for payload in batch.payloads]
    for state in ("paid", "released"):
        print(state, sorted(end["id"] for end in ends if end["state"] == state))


async def main(command: str, count: str = "0") -> None:
    """Create the topics, and run the given command."""
    async with ister.connect() as client:
        for topic in (ORDERS, RESERVED, DONE):
            await client.create_topic(topic, kind="stream")
        if command == "order":
            await order(client, int(count))
        else:
            await {"work": work, "report": report}[command](client)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
