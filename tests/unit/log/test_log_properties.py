"""Any sequence of commits and checkpoints, stopped at any operation, comes back as promised."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.log.harness import SMALL, Bench

from ister.log import CompactionPolicy, FileBackend, plan_compaction
from ister.testing import Crash, FaultyDisk, Keep

# Eager, so that short plans meet it.
POLICY = CompactionPolicy(small_count_min=2, live_share_min=0.9, density_min=0.9)


@dataclass(frozen=True)
class Publish:
    """A group of batches: topic, messages, bytes of each."""

    batches: tuple[tuple[int, int, int], ...]
    sync: bool


@dataclass(frozen=True)
class Trim:
    """A checkpoint that gives up this share of the first topic, in percent."""

    percent: int


@dataclass(frozen=True)
class Compact:
    """A rewrite, if one pays, and the checkpoint that puts it into force."""


@dataclass(frozen=True)
class Restart:
    """A clean close and another start."""


Step = Publish | Trim | Compact | Restart

batches = st.tuples(st.integers(1, 3), st.integers(1, 5), st.sampled_from([1, 50, 700, 9_000]))
steps = st.lists(
    st.builds(Publish, st.lists(batches, min_size=1, max_size=4).map(tuple), st.booleans())
    | st.builds(Trim, st.integers(0, 100))
    | st.builds(Compact)
    | st.builds(Restart),
    max_size=25,
)


@dataclass
class World:
    """A log on a disk that will break, and what its broker knows."""

    disk: FaultyDisk
    bench: Bench = field(init=False)
    # Every message in the order of its offset, and how many of them are safe, by topic.
    written: dict[int, list[bytes]] = field(default_factory=dict)
    safe: dict[int, int] = field(default_factory=dict)
    floors: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def start(self) -> None:
        self.bench = Bench(FileBackend(self.disk), SMALL)
        self.bench.next_offsets = {topic: len(rows) for topic, rows in self.written.items()}

    def run(self, plan: list[Step]) -> None:
        for step in plan:
            if isinstance(step, Publish):
                self.publish(step)
            elif isinstance(step, Trim):
                self.trim(step.percent)
            elif isinstance(step, Compact):
                self.compact()
            else:
                self.bench.log.close()
                self.safe = {topic: len(rows) for topic, rows in self.written.items()}
                self.start()

    def publish(self, step: Publish) -> None:
        for topic, count, size in step.batches:
            payloads = []
            for _ in range(count):
                self.count += 1
                payloads.append(b"%d:" % self.count + bytes(size))
            self.written.setdefault(topic, []).extend(payloads)
            self.bench.append(topic, *payloads, sync=step.sync)
        self.bench.commit()
        if step.sync:
            self.safe = {topic: len(rows) for topic, rows in self.written.items()}

    def trim(self, percent: int) -> None:
        floors = {**dict.fromkeys(self.written, 0), **self.floors}
        if 1 in floors:
            floors[1] = max(floors[1], len(self.written[1]) * percent // 100)
        # It may take effect before it is known to have.
        self.floors = floors
        self.bench.checkpoint(b"state", floors)
        self.safe = {topic: len(rows) for topic, rows in self.written.items()}

    def compact(self) -> None:
        log = self.bench.log
        floors = {**dict.fromkeys(self.written, 0), **self.floors}
        rewrite = plan_compaction(log, log.state(), floors, POLICY)
        if rewrite is not None:
            rewrite.run()
            log.rewritten(rewrite)
        self.trim(0)

    def check(self, found: Bench) -> None:
        for topic, rows in self.written.items():
            floor = self.floors.get(topic, 0)
            kept = found.read(topic, floor)
            assert kept == list(enumerate(rows))[floor : floor + len(kept)]
            assert floor + len(kept) >= self.safe.get(topic, 0)
        numbers = found.numbers
        assert not numbers or numbers == list(range(numbers[0], numbers[-1] + 1))


@given(
    plan=steps,
    crash_at=st.integers(0, 120),
    keep=st.sampled_from(["none", "all", "torn"]),
    seed=st.integers(0, 1_000),
)
@settings(max_examples=150)
def test_whatever_was_acknowledged_is_there_after_a_crash(
    plan: list[Step], crash_at: int, keep: Keep, seed: int
) -> None:
    world = World(FaultyDisk(sector_bytes=64))
    world.disk.crash_at(crash_at)
    try:
        world.start()
        world.run(plan)
    except Crash:
        pass
    disk = world.disk.reopen(keep, seed=seed)
    first = Bench(FileBackend(disk), SMALL)
    world.check(first)

    second = Bench(FileBackend(disk.reopen("none")), SMALL)
    assert second.seen == first.seen
    for topic in world.written:
        assert second.read(topic) == first.read(topic)


@given(plan=steps, bytes_max=st.sampled_from([1, 100, 1_000, 20_000, 10**9]))
@settings(max_examples=100)
def test_whatever_was_committed_is_read_in_any_portions(plan: list[Step], bytes_max: int) -> None:
    world = World(FaultyDisk())
    world.start()
    world.run(plan)

    for topic, rows in world.written.items():
        floor = world.floors.get(topic, 0)
        assert world.bench.read(topic, floor, bytes_max) == list(enumerate(rows))[floor:]
        assert world.bench.log.next_offset(topic) in (len(rows), 0)
