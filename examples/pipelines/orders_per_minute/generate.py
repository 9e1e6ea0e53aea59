"""Orders of a shop as JSON lines, the same ones for the same seed.

    python generate.py            # the first five minutes
    python generate.py --wave 2   # the next three

Both are out of order. A few orders come twice, as from a shop that repeats what was not
acknowledged; a few lines are broken. Among the second wave are orders of the first minutes:
some come just in time, some too late.
"""

import argparse
import json
import random
from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 11, 16, 9, 0, tzinfo=UTC)
# What pipeline.yaml waits for late orders.
DELAY_S = 30
REGIONS = ("north", "south", "west")
BROKEN = ('{"order_id": "o-17", "region": "no', "order 4711: two salmon", "")


def waves(seed: int = 7) -> list[list[str]]:
    """Return the lines of the two waves."""
    chance = random.Random(seed)
    first = [order(chance, chance.uniform(0, 300)) for _ in range(300)]
    second = [order(chance, chance.uniform(300, 480)) for _ in range(180)]
    # The newest order of the first wave is at about 300 s: 270 s is where lateness begins.
    in_time = [order(chance, chance.uniform(300 - DELAY_S + 5, 300)) for _ in range(10)]
    too_late = [order(chance, chance.uniform(0, 300 - DELAY_S - 5)) for _ in range(10)]
    again = chance.sample(first, 10)
    return [
        shuffled(chance, [*first, *chance.sample(first, 10), *BROKEN]),
        shuffled(chance, [*second, *in_time, *too_late, *again, *BROKEN]),
    ]


def order(chance: random.Random, after_s: float) -> str:
    """Return an order `after_s` seconds from the beginning."""
    fields = {
        "order_id": f"o-{chance.getrandbits(48):012x}",
        "region": chance.choice(REGIONS),
        "amount": chance.randrange(500, 20_000) / 100,
        "at": (BEGIN + timedelta(seconds=round(after_s, 3))).isoformat(timespec="milliseconds"),
    }
    return json.dumps(fields)


def shuffled(chance: random.Random, lines: list[str]) -> list[str]:
    """Return the lines in another order."""
    return chance.sample(lines, len(lines))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Print orders as JSON lines.")
    options.add_argument("--wave", type=int, choices=(1, 2), default=1)
    options.add_argument("--seed", type=int, default=7)
    chosen = options.parse_args()
    print("\n".join(waves(chosen.seed)[chosen.wave - 1]))
