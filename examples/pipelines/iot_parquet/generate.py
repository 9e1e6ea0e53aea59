"""Readings of thermometers as JSON lines, the same ones for the same seed.

    python generate.py            # ten minutes before midnight, and two after it
    python generate.py --wave 2   # the next eight, and some late ones

A device reads its temperature every five seconds, in steps of a quarter of a degree.
"""

import argparse
import json
import random
from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 11, 16, 23, 50, tzinfo=UTC)
# What pipeline.toml waits for late readings.
DELAY_S = 60
DEVICES = ("cellar", "kitchen", "roof")
FIRST_S, SECOND_S = 720, 1_200


def waves(seed: int = 7) -> list[list[str]]:
    """Return the lines of the two waves."""
    chance = random.Random(seed)
    first, second = (
        [reading(chance, device, after_s) for device in DEVICES for after_s in range(*span, 5)]
        for span in ((0, FIRST_S), (FIRST_S, SECOND_S))
    )
    # A gateway was offline for a while and sends its stored readings.
    kept = chance.sample([line for line in first if "roof" in line], 60)
    late_s = range(FIRST_S - DELAY_S - 240, FIRST_S, 20)
    late = [reading(chance, "garden", after_s) for after_s in late_s]
    before = [line for line in first if line not in kept]
    return [
        chance.sample(before, len(before)),
        chance.sample([*second, *kept, *late], len(second) + len(kept) + len(late)),
    ]


def reading(chance: random.Random, device: str, after_s: int) -> str:
    """Return what a device read `after_s` seconds from the beginning."""
    at = BEGIN + timedelta(seconds=after_s, milliseconds=chance.randrange(5_000))
    fields = {
        "device": device,
        "temperature": chance.randrange(40, 100) / 4,
        "at": at.isoformat(timespec="milliseconds"),
    }
    return json.dumps(fields)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Print readings as JSON lines.")
    options.add_argument("--wave", type=int, choices=(1, 2), default=1)
    options.add_argument("--seed", type=int, default=7)
    chosen = options.parse_args()
    print("\n".join(waves(chosen.seed)[chosen.wave - 1]))
