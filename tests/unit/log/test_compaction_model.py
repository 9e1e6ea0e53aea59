"""Compaction finishes: random logs are rewritten until no rewrite pays any more."""

import random
from dataclasses import replace

import pytest
from tests.unit.log.harness import SMALL, TIME_MS, Bench
from tests.unit.log.test_compaction import Compacted

from ister.log import CompactionPolicy, FileBackend, Place, Rewrite, plan_compaction
from ister.log.files.segment import Segment
from ister.objects import LocalStore, MemoryDisk
from ister.testing import FaultyDisk

OPTIONS = replace(SMALL, segment_bytes=16_384)
POLICY = CompactionPolicy(small_count_min=3, upload_before_ms=TIME_MS + 1)
REWRITES_MAX = 60


def make(seed: int) -> tuple[Compacted, random.Random]:
    """Return a log with a tier, and messages of some topics in batches of random size."""
    rng = random.Random(seed)
    disk = FaultyDisk()
    options = replace(OPTIONS, remote=LocalStore(MemoryDisk()) if rng.random() < 0.5 else None)
    bench = Bench(FileBackend(disk), options)
    for _ in range(rng.choice([5, 20, 60])):
        topic = rng.randint(1, rng.choice([1, 2, 8]))
        count = rng.choice([1, 1, 5, 50, 200])
        bench.append(topic, *[bytes(rng.choice([1, 10, 100, 900])) for _ in range(count)])
        if rng.random() < 0.7:
            bench.commit()
    if bench.log.collecting:
        bench.commit()
    return Compacted(bench, disk), rng


def expire(world: Compacted, rng: random.Random, horizon: dict[int, int]) -> None:
    """Let some messages of each topic expire, often in the middle of a batch."""
    for topic, end in world.bench.next_offsets.items():
        horizon[topic] = rng.randint(horizon.get(topic, 0), end)


def run_one(world: Compacted, horizon: dict[int, int], policy: CompactionPolicy) -> Rewrite | None:
    """Carry out the rewrite that pays most, and its checkpoint."""
    log = world.bench.log
    rewrite = plan_compaction(log, log.state(), horizon, policy)
    if rewrite is not None:
        rewrite.run()
        log.rewritten(rewrite)
        world.bench.checkpoint(b"state", horizon)
    return rewrite


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("urgent", [False, True])
def test_a_rewritten_segment_is_not_rewritten_again_without_new_expiry(
    seed: int, urgent: bool
) -> None:
    world, rng = make(seed)
    policy = replace(POLICY, urgent=urgent)
    horizon: dict[int, int] = {}
    for _ in range(3):
        expire(world, rng, horizon)
        made: dict[str, set[Segment]] = {}
        for count in range(REWRITES_MAX + 1):
            assert count < REWRITES_MAX, "compaction does not come to an end"
            rewrite = run_one(world, horizon, policy)
            if rewrite is None:
                break
            assert rewrite.result is not None
            own = made.setdefault(rewrite.reason, set())
            # Several that were made may become one; one alone is made of its own bytes.
            assert len(rewrite.segments) > 1 or own.isdisjoint(rewrite.segments), rewrite.reason
            own |= rewrite.result.outputs
        for topic, floor in horizon.items():
            offsets = [offset for offset, _ in world.bench.read(topic, floor)]
            assert offsets == list(range(floor, world.bench.next_offsets[topic]))


def test_large_batch_that_is_half_expired_is_rewritten_once() -> None:
    world = Compacted(Bench(FileBackend(disk := FaultyDisk()), OPTIONS), disk)
    world.bench.publish(1, *[bytes(100)] * 300)
    world.bench.publish(2, b"of another segment")
    horizon = {1: 200, 2: 0}
    reasons: list[str] = []
    while (rewrite := run_one(world, horizon, POLICY)) is not None and len(reasons) < 5:
        reasons.append(rewrite.reason)

    assert reasons == ["expired"]
    # What expires later pays again.
    horizon[1] = 299
    again = run_one(world, horizon, POLICY)
    assert again is not None
    assert again.reason == "expired"


def test_uploads_go_first_on_request() -> None:
    world = Compacted(
        Bench(FileBackend(disk := FaultyDisk()), replace(OPTIONS, remote=LocalStore(MemoryDisk()))),
        disk,
    )
    for number in range(40):
        for topic in range(1, 11):
            world.bench.append(topic, b"%d " % number + bytes(100))
        world.bench.commit()
    horizon = dict.fromkeys(range(1, 11), 0)
    log = world.bench.log
    usual = plan_compaction(log, log.state(), horizon, POLICY)
    first = plan_compaction(log, log.state(), horizon, replace(POLICY, upload_first=True))

    assert usual is not None
    assert usual.reason == "interleaved"
    assert first is not None
    assert (first.reason, first.place) == ("upload", Place.REMOTE)
