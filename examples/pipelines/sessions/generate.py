"""Clicks of visitors as JSON lines, the same ones for the same seed.

    python generate.py            # the first half hour
    python generate.py --wave 2   # the second, and some clicks of the first that come late

A visitor clicks a few times, a minute or so apart, goes away, and comes back later.
"""

import argparse
import json
import random
from datetime import UTC, datetime, timedelta

BEGIN = datetime(2026, 11, 16, 9, 0, tzinfo=UTC)
WAVE_S = 1_800
PAGES = ("/", "/fish", "/boats", "/hats", "/basket", "/help")


def waves(seed: int = 7) -> list[list[str]]:
    """Return the lines of the two waves."""
    chance = random.Random(seed)
    found: list[list[str]] = [[], []]
    for number in range(25):
        after_s = chance.uniform(0, 900)
        while after_s < 2 * WAVE_S:
            wave = int(after_s // WAVE_S)
            # A phone without a signal sends its clicks later: some join two parts of a visit, some
            # are too late for that.
            if wave == 0 and chance.random() < 0.05:
                wave = 1
            found[wave].append(click(chance, f"visitor-{number:02d}", after_s))
            stays = chance.random() < 0.8
            after_s += chance.uniform(1, 120) if stays else chance.uniform(310, 1_200)
    return [chance.sample(lines, len(lines)) for lines in found]


def click(chance: random.Random, visitor: str, after_s: float) -> str:
    """Return a click `after_s` seconds from the beginning."""
    at = BEGIN + timedelta(seconds=round(after_s, 3))
    fields = {
        "visitor": visitor,
        "page": chance.choice(PAGES),
        "at": at.isoformat(timespec="milliseconds"),
    }
    return json.dumps(fields)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description="Print clicks as JSON lines.")
    options.add_argument("--wave", type=int, choices=(1, 2), default=1)
    options.add_argument("--seed", type=int, default=7)
    chosen = options.parse_args()
    print("\n".join(waves(chosen.seed)[chosen.wave - 1]))
