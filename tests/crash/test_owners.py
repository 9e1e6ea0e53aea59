"""A broker is paused before any request to its object store, and another one takes over."""

import random
from collections.abc import Sequence
from functools import partial

import pytest
from tests.crash.owners import ALL, Unreliable, World
from tests.crash.turns import run_reads_in_turns

from ister.log import LogOptions
from ister.log.journal.chunks import FAR_FENCE_DISTANCES
from ister.log.journal.fetching import fetch_in_order

OPTIONS = LogOptions(segment_bytes=256, extent_bytes=256, now_ms=lambda: 1_700_000_000_000)

# What an owner does before it is stopped somewhere, each time with everything that removes objects.
BUSY = (
    *("open", "publish", "publish", "publish", "publish", "rewrite", "checkpoint"),
    *("publish", "publish", "publish", "trim", "publish", "publish", "rewrite", "checkpoint"),
    *("publish", "checkpoint", "publish", "checkpoint", "publish"),
)
# What another one does meanwhile. Five checkpoints: the number of every manifest that the first
# one may be about to make is free again.
LIVES = {
    "takes over": ("open", "read"),
    "writes": ("open", "read", "publish", "publish"),
    "checkpoints": ("open", "read", *("publish", "checkpoint") * 5, "read"),
    "rewrites once": ("open", "read", "rewrite", "checkpoint", "publish"),
    "rewrites": ("open", "read", "rewrite", *("publish", "checkpoint") * 4, "rewrite", "trim"),
    "trims": ("open", "read", *("publish", "trim") * 5, "read"),
}
ALL_LIVES = list(LIVES.values())
# An owner that does not stop by itself before others have taken over, and housekeeping with it.
ENDLESS = ("open", *("publish",) * 800)
# One that leaves chunks to be read, and then removes them.
FULL = ("open", *("publish",) * 9)
REMOVING = ("rewrite", "checkpoint", "publish", "publish", "trim", "publish", "checkpoint")
KEEPING_HOUSE = ("publish", "publish", "publish", "rewrite", "checkpoint", "publish", "trim")
ENDLESS_LIVES = {"writes": ENDLESS, "keeps house": ("open", *KEEPING_HOUSE * 150)}
# A start reads what is there, 300 chunks at most, and at most twice the distance that is needed
# beside. One that is disturbed by checkpoints begins again, but finds fewer chunks.
REQUESTS_MAX = 1_000
# So near that some fences are passed, some are met, and some are never reached.
NEAR_DISTANCES = (2, 4, 16, 64, 256)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make rewrites write several objects, and every request wait for its turn."""
    monkeypatch.setattr("ister.log.journal.chunks.FAR_FENCE_DISTANCES", NEAR_DISTANCES)
    run_reads_in_turns(monkeypatch)
    fetch = partial(fetch_in_order, sleep=lambda _: None)
    monkeypatch.setattr("ister.log.journal.chunks.fetch_in_order", fetch)
    monkeypatch.setattr("ister.log.upkeep.rewriting.STEP_BYTES", 128)
    monkeypatch.setattr("ister.log.upkeep.rewriting.OBJECT_BYTES", 256)


def requests_of(script: Sequence[str]) -> int:
    """Count the requests of an owner that is alone."""
    world = World(OPTIONS)
    turns = world.add("alone", script)
    turns.give(ALL)
    assert turns.done
    world.finish()
    return turns.requests


def test_an_owner_makes_every_kind_of_request() -> None:
    world = World(OPTIONS)
    world.add("alone", BUSY).give(ALL)
    seen = {request.partition("/")[0] for request in world.objects.requests}

    assert {"PUT chunks", "PUT segments", "PUT manifests", "PUT snapshots"} < seen
    assert {"DELETE chunks", "DELETE segments", "DELETE manifests", "DELETE snapshots"} < seen


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_an_owner_paused_before_any_request_does_no_damage_when_it_resumes(
    life: Sequence[str],
) -> None:
    for stopped_at in range(requests_of(BUSY) + 1):
        with reproduced_by(f"stopped after {stopped_at} requests"):
            world = World(OPTIONS)
            world.add("old", BUSY).give(stopped_at)
            world.add("new", life).give(ALL)
            world.finish()


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_an_owner_paused_while_it_waits_for_any_answer_refuses_nothing_that_is_stored(
    life: Sequence[str],
) -> None:
    """The request arrives, its answer is lost, and another owner takes over meanwhile."""
    for stopped_at in range(requests_of(BUSY)):
        with reproduced_by(f"the answer to request {stopped_at + 1} is lost"):
            faults = Unreliable(random.Random(0))
            world = World(OPTIONS, faults)
            old = world.add("old", BUSY)
            old.give(stopped_at)
            faults.lost_answers = True
            old.give(1)
            faults.lost_answers = False
            world.add("new", life).give(ALL)
            world.finish()


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
def test_an_owner_that_resumes_during_the_start_of_another_does_no_damage(
    life: Sequence[str],
) -> None:
    for begun in range(0, requests_of(BUSY) + 1, 11):
        for stopped_at in range(0, 30, 4):
            for going_on in (12, ALL):
                with reproduced_by(f"{begun} requests, {stopped_at} of a start, {going_on} more"):
                    world = World(OPTIONS)
                    old = world.add("old", BUSY)
                    old.give(begun)
                    new = world.add("new", life)
                    new.give(stopped_at)
                    old.give(going_on)
                    new.give(ALL)
                    world.finish()


def test_a_start_reads_chunks_in_parallel_and_in_any_order() -> None:
    orders = set()
    waiting_max = 0
    for seed in range(20):
        world = World(OPTIONS, reads_at_once=3, order=random.Random(seed))
        world.add("old", FULL).give(ALL)
        reads = world.objects.reads
        new = world.add("new", ("open", "read"))
        new.give(ALL)
        waiting_max = max(waiting_max, new.waiting_max)
        chunks = [name for name in reads if name.startswith("chunks/")]
        orders.add(tuple(chunks[:9]))

    assert waiting_max == 3
    assert len(orders) > 15


@pytest.mark.parametrize("life", ["takes over", "checkpoints", "rewrites"])
def test_a_parallel_start_paused_before_any_request_loses_nothing(life: str) -> None:
    """Meanwhile the former owner commits, and removes chunks that are about to be read."""
    begun = requests_of(FULL)
    for stopped_at in range(30):
        for going_on in (1, 2, 5, 12, ALL):
            seed = stopped_at + going_on
            with reproduced_by(f"{stopped_at} of a start, then {going_on} more, seed {seed}"):
                world = World(OPTIONS, reads_at_once=3, order=random.Random(seed))
                old = world.add("old", (*FULL, *REMOVING))
                old.give(begun)
                new = world.add("new", LIVES[life])
                new.give(stopped_at)
                old.give(going_on)
                new.give(ALL)
                world.finish()


@pytest.mark.parametrize("distances", [NEAR_DISTANCES, FAR_FENCE_DISTANCES], ids=["near", "far"])
@pytest.mark.parametrize("faster", [1, 3, 10])
@pytest.mark.parametrize("life", ENDLESS_LIVES.values(), ids=ENDLESS_LIVES)
def test_an_owner_that_never_pauses_is_taken_over_within_bounded_requests(
    monkeypatch: pytest.MonkeyPatch, life: Sequence[str], faster: int, distances: tuple[int, ...]
) -> None:
    monkeypatch.setattr("ister.log.journal.chunks.FAR_FENCE_DISTANCES", distances)
    for begun in range(6, 30, 7):
        with reproduced_by(f"{begun} requests before"):
            world = World(OPTIONS)
            old = world.add("old", life)
            old.give(begun)
            new = world.add("new", ("open", "publish"))
            while not new.done:
                new.give(1)
                old.give(faster)
                assert new.requests < REQUESTS_MAX
            assert not world.owners[-1][0].lost
            world.finish()
            assert world.owners[0][0].lost


def test_an_owner_that_never_pauses_is_taken_over_also_when_the_store_fails() -> None:
    for seed in range(20):
        with reproduced_by(f"seed {seed}"):
            chance = random.Random(seed)
            world = World(OPTIONS, Unreliable(chance, share=0.1))
            old = world.add("old", chance.choice(list(ENDLESS_LIVES.values())))
            old.give(chance.randint(5, 30))
            new = world.add("new", ("open",))
            while not new.done:
                new.give(1)
                old.give(2)
                # Requests that fail are made again, and so is a start whose requests have failed.
                assert new.requests < 5 * REQUESTS_MAX
            assert not world.owners[-1][0].lost
            world.finish()


def test_owners_that_never_pause_with_a_store_that_fails_lose_nothing() -> None:
    for seed in range(60):
        run_without_pause(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_owners_that_never_pause_with_a_store_that_fails_lose_nothing() -> None:
    for seed in range(10_000, 13_000):
        run_without_pause(seed)


def run_without_pause(seed: int) -> None:
    """Start up to three owners, each at its own speed, while another one writes without a pause."""
    with reproduced_by(f"seed {seed}"):
        chance = random.Random(seed)
        faults = Unreliable(chance, share=chance.choice((0.0, 0.02, 0.1)))
        world = World(OPTIONS, faults, reads_at_once=chance.choice((1, 2, 8)), order=chance)
        life = chance.choice(list(ENDLESS_LIVES.values()))
        old = world.add("old", life[: chance.randint(100, 400)])
        old.give(chance.randint(0, 30))
        count = chance.randint(1, 3)
        others = [world.add(f"owner {n}", chance.choice(ALL_LIVES)) for n in range(count)]
        speeds = {owner: chance.choice((1, 1, 2, 4)) for owner in (old, *others)}
        while not all(owner.done for owner in (old, *others)):
            for owner, speed in speeds.items():
                owner.give(speed)
            if chance.random() < 0.3:
                world.objects.arrive()
        world.finish()


def test_concurrent_owners_on_a_failing_store_lose_nothing() -> None:
    for seed in range(150):
        run_at_random(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_concurrent_owners_on_a_failing_store_lose_nothing() -> None:
    for seed in range(10_000, 16_000):
        run_at_random(seed)


def run_at_random(seed: int) -> None:
    """Run some owners whose requests come in random order, and some of which fail."""
    with reproduced_by(f"seed {seed}"):
        chance = random.Random(seed)
        faults = Unreliable(chance, share=chance.choice((0.0, 0.0, 0.05, 0.15)))
        world = World(OPTIONS, faults, reads_at_once=chance.choice((1, 2, 8)), order=chance)
        scripts = [BUSY, *chance.choices(ALL_LIVES, k=chance.randint(1, 3))]
        owners = [world.add(f"owner {n}", script) for n, script in enumerate(scripts)]
        while not all(owner.done for owner in owners):
            chance.choice(owners).give(chance.choice((1, 2, 5, 20, 60)))
            if chance.random() < 0.3:
                world.objects.arrive()
        world.finish()


class reproduced_by:  # noqa: N801 - reads as a sentence
    """Add to an error how to reproduce it."""

    def __init__(self, note: str) -> None:
        self._note = note

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            error.add_note(self._note)
