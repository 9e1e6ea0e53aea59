"""A program without asyncio: a shop with threads that publish, and one that adds up.

    ister serve &
    python examples/till.py

`examples/test_till.py` tests it with pytest and the fixtures of Ister.
"""

from concurrent.futures import ThreadPoolExecutor

import ister

SALES = "examples.sales"


class Till:
    """Sells from any thread: threads may share a client."""

    def __init__(self, client: ister.sync.Client) -> None:
        self.client = client
        client.create_topic(SALES, kind="stream")

    def sell(self, item: str, price: int) -> None:
        """Book a sale; it is stored on disk when this returns."""
        self.client.publish(SALES, b"%d" % price, key=item)


def take_in(client: ister.sync.Client, count: int, timeout: float = 10.0) -> int:
    """Add up `count` sales that are not added up yet, and acknowledge them."""
    total = 0
    with client.subscribe(SALES, "books", start="earliest") as sub:
        for _ in range(count):
            sale = sub.receive(timeout)
            total += int(sale.payload)
            sale.ack()
    return total


def main() -> None:
    """Sell in four threads, then add up."""
    with ister.sync.connect() as client, ThreadPoolExecutor(4) as threads:
        till = Till(client)
        list(threads.map(till.sell, ["fish"] * 50 + ["bread"] * 50, range(100)))
        print("taken in:", take_in(client, 100))


if __name__ == "__main__":
    main()
