"""Hostile clients: whatever they send costs them an error or their connection, never the broker.

The normal run plays a few hundred fixed cases. `make fuzz` plays new ones for `FUZZ_SECONDS`; a
failure names its case, and `play(number)` runs that one again. The tests are coroutines because a
door is made inside an event loop; nothing in them waits.
"""

import os
import secrets
import time

import pytest
from tests.fuzz.world import play

CASES = 300


@pytest.mark.parametrize("start", range(0, CASES, 50))
async def test_spoilt_dialogues_leave_the_broker_unharmed(start: int) -> None:
    for seed in range(start, start + 50):
        play(seed)


async def test_the_cases_reach_deliveries_errors_and_refusals() -> None:
    worlds = [play(seed) for seed in range(CASES)]

    assert sum(world.broker.report().messages_out for world in worlds) > CASES // 5
    assert sum(world.door.counts.refused for world in worlds) > CASES // 20
    assert sum(len(world.leased) for world in worlds) >= 5
    assert sum(world.due for world in worlds) >= 5


@pytest.mark.fuzz
@pytest.mark.timeout(0)
async def test_new_spoilt_dialogues_leave_the_broker_unharmed_for_as_long_as_asked() -> None:
    seed = secrets.randbits(48)
    deadline_s = time.monotonic() + float(os.environ.get("FUZZ_SECONDS", "60"))
    while time.monotonic() < deadline_s:
        play(seed)
        seed += 1
