"""No peer holds up the event loop with valid frames, however much they ask for.

A turn of the loop is too long if it is over its bound in three of three runs of the case, in CPU
time, scaled by the measured speed of the machine. `make fuzz` runs new cases for `FUZZ_SECONDS`.
"""

import logging
import os
import secrets
import time
from collections.abc import Iterator

import pytest
import structlog
from tests.fuzz.crowds import (
    commit_many_batches,
    commit_many_ids,
    cover_partitions,
    crowded,
    delete_beside_subscriptions,
    delete_followed,
    delete_subscribed,
)
from tests.fuzz.stalling import longest_turns, memory_bytes, stalls

from ister.base.limits import MIB

# What nobody may be held up by.
TURN_S = 0.050
STEPS = 30
CASES = 8
# Few enough for a busy machine: 14 s on an idle one.
COVERING_CASES = 8
COVERING_STEPS = 20
# What a case leaves behind, and Python keeps for the next.
GROWTH_BYTES_MAX = 768 * MIB


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    # What is said of each connection is no part of what is measured.
    former = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.configure(**former)


@pytest.mark.parametrize("seed", range(CASES))
async def test_no_turn_of_the_loop_is_too_long(seed: int) -> None:
    before = memory_bytes()

    found = stalls(seed, STEPS, TURN_S)

    assert not found, f"case {seed}: {found}"
    assert memory_bytes() - before < GROWTH_BYTES_MAX


async def test_the_cases_cover_all_kinds_of_frames() -> None:
    kinds: set[str] = set()
    for seed in range(COVERING_CASES):
        kinds |= longest_turns(seed, COVERING_STEPS).keys()

    assert kinds >= {"publish", "subscribe", "credit", "crowd", "opcode", "listings", "create"}
    assert kinds >= {"read", "close", "leave", "stage", "commit", "request", "reply", "watch"}
    assert kinds >= {"locate", "save", "seek", "follow", "delete", "large"}


async def test_a_topic_with_very_many_followers_is_deleted_in_many_turns() -> None:
    assert not crowded(delete_followed, TURN_S)


async def test_a_live_topic_with_very_many_subscriptions_is_deleted_in_many_turns() -> None:
    assert not crowded(delete_subscribed, TURN_S)


async def test_many_partitions_under_many_wildcards_are_covered_in_many_turns() -> None:
    assert not crowded(cover_partitions, TURN_S)


async def test_many_partitions_are_deleted_fast_beside_very_many_subscriptions() -> None:
    assert not crowded(delete_beside_subscriptions, TURN_S)


async def test_the_largest_transaction_is_committed_in_short_turns() -> None:
    assert not crowded(commit_many_batches, TURN_S)


async def test_a_transaction_with_as_many_ids_as_allowed_is_committed_in_short_turns() -> None:
    assert not crowded(commit_many_ids, TURN_S)


@pytest.mark.fuzz
@pytest.mark.timeout(0)
async def test_no_turn_is_too_long_in_new_random_cases() -> None:
    seed = secrets.randbits(48)
    deadline_s = time.monotonic() + float(os.environ.get("FUZZ_SECONDS", "60"))
    while time.monotonic() < deadline_s:
        found = stalls(seed, STEPS, TURN_S)
        assert not found, f"case {seed}: {found}"
        seed += 1
