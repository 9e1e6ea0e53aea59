"""Filtering a batch in steps selects the same messages as at once, and always makes progress."""

import random
from collections.abc import Sequence
from itertools import count

import pytest

from ister.codec import Batch, encode
from ister.subscriptions import Filter
from ister.subscriptions.planning.selection import LIVES_AT_ONCE, TTL_ATTRIBUTE, Selector

COUNT = 10_000


def batch_of(rng: random.Random, *, ttl: bool = False) -> Batch:
    """Return messages with and without keys and attributes."""
    keys = [rng.choice(["apple", "pear", "ä", None]) for _ in range(COUNT)]
    rows = [rng.choice([{"kind": "a"}, {"kind": "bß", "x": ""}, {}, None]) for _ in range(COUNT)]
    attributes = [
        {**(row or {}), TTL_ATTRIBUTE: rng.choice(["1", "1000000"])} if ttl else row for row in rows
    ]
    head, body = encode([b""] * COUNT, keys=keys, attributes=attributes)
    return Batch(memoryview(head + body))


def choose_in_steps(
    selector: Selector, batch: Batch, slots: Sequence[int], *, end_ms: int
) -> tuple[list[int], int]:
    """Filter all of `slots` in as many steps as it takes; return the number of steps as well."""
    found: list[int] = []
    turns = 0
    while slots:
        clock = count()
        wanted, looked = selector.choose(
            batch, slots, ttl_ms=0, now_ms=100, elapsed_ms=clock.__next__, end_ms=end_ms
        )
        assert looked > 0
        found += wanted
        slots = slots[looked:]
        turns += 1
    return found, turns


@pytest.mark.parametrize(
    "filter_",
    [
        Filter({}, ["a*", "*r"]),
        Filter({"kind": "*?"}, []),
        Filter({"kind": "b?"}, ["?"]),
        Filter({}, ["nothing"]),
    ],
    ids=["keys", "attributes", "both", "none"],
)
@pytest.mark.parametrize("end_ms", [0, 1, 5])
def test_several_steps_choose_the_same_messages_as_one(filter_: Filter, end_ms: int) -> None:
    rng = random.Random(end_ms)
    batch = batch_of(rng)
    slots = sorted(rng.sample(range(COUNT), COUNT // 3))
    selected = filter_.select(batch)
    assert selected is not None
    wanted = set(selected)

    for some in (slots, range(COUNT), slots[-10:], slots):
        found, turns = choose_in_steps(Selector(filter_), batch, some, end_ms=end_ms)
        assert found == [slot for slot in some if slot in wanted]
        assert turns > 1 or len(some) == 10


def test_a_selector_that_goes_back_to_earlier_messages_filters_them_again() -> None:
    filter_ = Filter({}, ["apple"])
    batch = batch_of(random.Random(1))
    selector = Selector(filter_)
    wanted = filter_.select(batch)
    selector.choose(batch, range(COUNT // 2, COUNT), ttl_ms=0, now_ms=0)

    assert selector.choose(batch, range(COUNT), ttl_ms=0, now_ms=0) == (wanted, COUNT)


def test_without_a_filter_the_age_is_checked_in_steps() -> None:
    batch = batch_of(random.Random(2), ttl=True)
    found, turns = choose_in_steps(Selector(Filter({}, [])), batch, range(COUNT), end_ms=5)
    rows = batch.attributes
    assert rows is not None

    assert found == [s for s, row in enumerate(rows) if row[TTL_ATTRIBUTE] != "1"]
    assert turns == -(-COUNT // LIVES_AT_ONCE)
