"""Card payments as JSON lines, the same ones for the same seed.

    python generate.py            # the first half hour
    python generate.py --wave 2   # the second

Most cards are used now and then. A few are tried out with small sums and then emptied; of some of
these the small payments are in one wave and the large one in the other. Some payments come twice.
"""

import argparse
import json
import random
from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 11, 16, 9, 0, tzinfo=UTC)
WAVE_S = 1_800
CARDS, STOLEN = 30, 12


def waves(seed: int = 7) -> list[list[str]]:
    """Return the lines of the two waves."""
    chance = random.Random(seed)
    payments = [
        (f"card-{chance.randrange(CARDS):02d}", chance.uniform(0, 2 * WAVE_S), amount(chance))
        for _ in range(200)
    ]
    for number in range(STOLEN):
        # A third of them around the border of the waves.
        start_s = WAVE_S - 200 if number % 3 == 0 else chance.uniform(0, 2 * WAVE_S - 1_200)
        # Some thieves are in no hurry, and pass.
        pause_s = chance.choice((60, 150, 400))
        card = f"stolen-{number:02d}"
        payments += [(card, start_s + pause_s * step, 1.0 + step / 4) for step in range(3)]
        payments.append((card, start_s + pause_s * 3 - 20, chance.uniform(500, 900)))
    found: list[list[str]] = [[], []]
    for number, (card, after_s, paid) in enumerate(payments):
        at = BEGIN + timedelta(seconds=round(after_s, 3))
        fields = {
            "payment_id": f"p-{number:03d}",
            "card": card,
            "amount": round(paid, 2),
            "at": at.isoformat(timespec="milliseconds"),
        }
        copies = 2 if number % 9 == 0 else 1
        found[int(after_s // WAVE_S)] += [json.dumps(fields)] * copies
    return [chance.sample(lines, len(lines)) for lines in found]


def amount(chance: random.Random) -> float:
    """Return what people pay: often little, sometimes much."""
    return chance.choice((chance.uniform(1, 5), chance.uniform(5, 300), chance.uniform(300, 800)))


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Print card payments as JSON lines.")
    options.add_argument("--wave", type=int, choices=(1, 2), default=1)
    options.add_argument("--seed", type=int, default=7)
    chosen = options.parse_args()
    print("\n".join(waves(chosen.seed)[chosen.wave - 1]))
