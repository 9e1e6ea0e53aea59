"""Orders and payments as JSON lines, the same ones for the same seed.

    python generate.py orders               # the first quarter of an hour
    python generate.py payments
    python generate.py orders --wave 2      # the second
    python generate.py payments --wave 2

Most orders are paid within ten minutes, some later, some never. Some payments come twice. The
last orders of the first wave come only with the second: their payments may be there before them.
"""

import argparse
import json
import random
from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 11, 16, 9, 0, tzinfo=UTC)
WAVE_S = 900
# Less than the minute that pipeline.yaml waits.
SLOW_S = 50


def waves(seed: int = 7) -> list[dict[str, list[str]]]:
    """Return the lines of the two waves, by topic."""
    chance = random.Random(seed)
    found: list[dict[str, list[str]]] = [{"orders": [], "payments": []} for _ in range(2)]
    for number in range(160):
        ordered_s = chance.uniform(0, 2 * WAVE_S)
        amount = chance.randrange(500, 20_000) / 100
        order = {"order_id": f"o-{number:03d}", "amount": amount, "at": moment(ordered_s)}
        arrived_s = min(ordered_s + SLOW_S, 2 * WAVE_S - 1)
        found[int(arrived_s // WAVE_S)]["orders"].append(json.dumps(order))
        # One in six is never paid; the others within a quarter of an hour, so some too late.
        if number % 6:
            paid_s = ordered_s + (5 if number % 5 == 0 else chance.uniform(1, 900))
            payment = {
                "payment_id": f"p-{number:03d}",
                "order_id": order["order_id"],
                # A few pay less than they should.
                "paid": amount if chance.random() < 0.9 else round(amount / 2, 2),
                "at": moment(paid_s),
            }
            # What is paid after the second wave is not seen any more.
            copies = 2 if number % 11 == 0 else 1
            for wave in found[int(paid_s // WAVE_S) :][:1]:
                wave["payments"] += [json.dumps(payment)] * copies
    for wave in found:
        for lines in wave.values():
            chance.shuffle(lines)
    return found


def moment(after_s: float) -> str:
    """Return the time `after_s` seconds from the beginning."""
    return (BEGIN + timedelta(seconds=round(after_s, 3))).isoformat(timespec="milliseconds")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Print orders or payments as JSON lines.")
    options.add_argument("topic", choices=("orders", "payments"))
    options.add_argument("--wave", type=int, choices=(1, 2), default=1)
    options.add_argument("--seed", type=int, default=7)
    chosen = options.parse_args()
    print("\n".join(waves(chosen.seed)[chosen.wave - 1][chosen.topic]))
