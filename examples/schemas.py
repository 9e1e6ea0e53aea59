"""Values instead of bytes: a schema that grows, and a topic that refuses other messages.

    ister serve &
    python examples/schemas.py

The subscription reads the second version of the order, also from messages written with the first.
"""

import asyncio
import sys
from dataclasses import dataclass

import ister

TOPIC = "/default/examples.orders"
SUBJECT = "default.examples.orders-value"


@dataclass
class FirstOrder:
    """The first version of an order."""

    id: int
    item: str


@dataclass
class Order:
    """The second version. The new field has a default, so that old orders can still be read."""

    id: int
    item: str
    quantity: int = 1


async def main(url: str) -> None:
    """Send two versions of an order, read both, and try to send something else."""
    async with ister.connect(url) as client:
        await client.create_topic(TOPIC, kind="stream")
        async with client.producer(TOPIC, schema=FirstOrder) as producer:
            await producer.send(FirstOrder(1, "salmon"))

        print("what would break:", await client.schemas.check(SUBJECT, Order) or "nothing")
        async with client.producer(TOPIC, schema=Order) as producer:
            await producer.send(Order(2, "trout", quantity=3))

        async with client.subscribe(TOPIC, "example", start="earliest", schema=Order) as sub:
            for _ in range(2):
                msg = await sub.receive(timeout=5.0)
                print(msg.schema, msg.value)
                await msg.ack(confirm=True)

        await client.schemas.bind(TOPIC, SUBJECT)
        async with client.producer(TOPIC) as stranger:
            try:
                await stranger.send(b"not an order")
            except ister.errors.SchemaViolationError as error:
                print("refused:", error)
        await client.schemas.unbind(TOPIC)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "ister://127.0.0.1:6655"))
