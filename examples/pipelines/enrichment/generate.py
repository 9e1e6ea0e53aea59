"""Sales of a shop as JSON lines, the same ones for the same seed.

    python generate.py

Some are of products that products.csv does not know; some lines are broken.
"""

import argparse
import json
import random

SKUS = ("fish-1", "fish-2", "fish-3", "boat-1", "boat-2", "hat-1", "hat-2")
UNKNOWN = ("fish-9", "kite-1")
BROKEN = (
    '{"sale_id": "s-1000", "sku": "fish-1", "quan',
    '{"sale_id": "s-1001", "sku": "fish-1", "quantity": "three"}',
    "sold a boat today",
    "",
)


def lines(seed: int = 7) -> list[str]:
    """Return what was sold."""
    chance = random.Random(seed)
    sales = []
    for number in range(300):
        sku = chance.choice(UNKNOWN if number % 20 == 0 else SKUS)
        sale = {"sale_id": f"s-{number:03d}", "sku": sku, "quantity": chance.randint(1, 5)}
        sales.append(json.dumps(sale))
    return chance.sample([*sales, *BROKEN], len(sales) + len(BROKEN))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Print sales as JSON lines.")
    options.add_argument("--seed", type=int, default=7)
    print("\n".join(lines(options.parse_args().seed)))
