"""The compactor: looks now and then, rewrites where it pays, and gives up without a trace."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ister.base import StreamSettings
from ister.base.errors import CorruptedError
from ister.broker.scheduling.workers import InlineWorker
from ister.broker.state.state import State, TopicRecord
from ister.broker.storage.compactor import CHECK_S, Compactor
from ister.codec import Batch, encode
from ister.log import FileBackend, Kind, LogOptions, Rewrite, open_log
from ister.objects import LocalStore, MemoryDisk
from ister.testing import Fault, FaultyDisk, SmallDisk, VirtualClock

TOPIC = 1
KEYS = 10


class Bench:
    """A log of one keyed topic in small files, and a compactor whose worker is the test."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.log = open_log(
            FileBackend(MemoryDisk()),
            LogOptions(segment_bytes=1 << 16, now_ms=self.clock.now_ms),
            restore=lambda _: None,
            apply=lambda _: None,
            reset=lambda: None,
        )
        self.state = State()
        self.record = TopicRecord(
            TOPIC, "/default/k", StreamSettings(retention="compact"), self.state.budgets
        )
        self.state.topics[TOPIC] = self.record
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], object]]] = []
        self.compactor = Compactor(self.log, self.state, worker=self, clock=self.clock)

    def run(self, call: Callable[[], Any], done: Callable[[Any], object]) -> None:
        self.jobs.append((call, done))

    def close(self, timeout_s: float | None = None) -> bool:
        self.log.close()
        return True

    def work(self) -> None:
        """Let the worker finish a job."""
        call, done = self.jobs.pop(0)
        try:
            result = call()
        except OSError as error:
            result = error
        except CorruptedError as error:
            result = error
        done(result)

    def store(self, batches: int) -> None:
        """Store batches with one message of every key each."""
        for _ in range(batches):
            offset = self.record.next_offset
            head, body = encode([b"x" * 100] * KEYS, keys=[str(n) for n in range(KEYS)])
            batch = Batch(head + body)
            batch.stamp(offset, self.clock.now_ms())
            self.log.append(
                Kind.BATCH,
                TOPIC,
                (batch.stamp_bytes(), batch.tail),
                count=KEYS,
                base_offset=offset,
                time_ms=batch.publish_time_ms,
            )
            group = self.log.take()
            assert group is not None
            self.log.write(group)
            self.log.sync(group)
            self.log.committed(group)
            self.record.on_stored(batch)

    def checkpoint(self) -> None:
        plan = self.log.plan_checkpoint(self.state.encode(), {TOPIC: 0})
        plan.run()
        self.log.checkpointed(plan)
        plan.sweep()

    def offsets(self) -> list[int]:
        """Read everything."""
        found: list[int] = []
        offset = 0
        while (plan := self.log.plan(TOPIC, offset, 1 << 20)) is not None:
            for batch in plan.run():
                found += batch.offsets
            offset = found[-1] + 1
        return found


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_it_looks_only_now_and_then(bench: Bench) -> None:
    bench.compactor.maintain()
    assert bench.jobs == []
    bench.clock.advance(CHECK_S)
    bench.compactor.maintain()
    assert len(bench.jobs) == 1

    bench.compactor.maintain()

    assert len(bench.jobs) == 1


def test_nothing_that_pays_is_nothing_done(bench: Bench) -> None:
    bench.store(3)
    bench.compactor.check()
    bench.work()

    assert bench.compactor.figures.by_reason == {}
    assert not bench.log.wants_checkpoint


def test_old_messages_of_a_key_go_and_the_newest_stay(bench: Bench) -> None:
    bench.store(200)
    before = bench.offsets()
    bench.compactor.check()
    bench.work()
    assert bench.offsets() == before
    bench.checkpoint()

    after = bench.offsets()

    assert len(after) < len(before) / 2
    assert after[-KEYS:] == before[-KEYS:]
    figures = bench.compactor.figures.by_reason["keys"]
    assert figures.dropped_messages == len(before) - len(after)
    assert figures.rewrites == 1


def test_after_a_rewrite_it_looks_again_without_waiting(bench: Bench) -> None:
    bench.store(200)
    bench.compactor.check()
    bench.work()
    bench.checkpoint()
    bench.compactor.maintain()

    assert len(bench.jobs) == 1


def test_closing_breaks_a_rewrite_off(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def long_rewrite(rewrite: Rewrite, pause: Callable[[int], None]) -> None:
        pause(1)
        raise AssertionError("went on after the close")

    monkeypatch.setattr(Rewrite, "run", long_rewrite)
    bench.store(200)
    bench.compactor.check()
    bench.compactor.close()
    bench.work()

    assert bench.compactor.figures.failures == 0
    assert bench.compactor.figures.by_reason == {}
    bench.clock.advance(CHECK_S)
    bench.compactor.maintain()
    assert bench.jobs == []


def test_a_corrupt_segment_is_counted_and_left_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def corrupt(rewrite: Rewrite, pause: object = None) -> None:
        raise CorruptedError("segments/1.seg", 0, "a test says so")

    monkeypatch.setattr(Rewrite, "run", corrupt)
    bench.store(200)
    before = bench.offsets()
    bench.compactor.check()
    bench.work()
    bench.compactor.check()
    bench.work()

    assert bench.compactor.figures.failures == 1
    assert bench.offsets() == before


class Turns:
    """A log with a tier that gets a new segment of mixed topics for each that is rewritten."""

    TOPICS = 10

    def __init__(self, disk: MemoryDisk | FaultyDisk, tier: MemoryDisk | FaultyDisk) -> None:
        self.clock = VirtualClock()
        self.log = open_log(
            FileBackend(disk),
            LogOptions(
                segment_bytes=16_384,
                now_ms=self.clock.now_ms,
                remote=LocalStore(tier),
            ),
            restore=lambda _: None,
            apply=lambda _: None,
            reset=lambda: None,
        )
        self.state = State()
        for number in range(1, self.TOPICS + 1):
            self.state.topics[number] = TopicRecord(
                number, f"/default/{number}", StreamSettings(), self.state.budgets
            )
        worker = InlineWorker(lambda call, *args: call(*args))
        self.compactor = Compactor(
            self.log, self.state, worker=worker, clock=self.clock, upload_after_ms=0
        )

    def write_segment(self) -> None:
        for _ in range(16):
            for record in self.state.topics.values():
                batch = Batch(b"".join(encode([bytes(100)])))
                batch.stamp(record.next_offset, self.clock.now_ms())
                self.log.append(
                    Kind.BATCH,
                    record.topic,
                    (batch.stamp_bytes(), batch.tail),
                    count=1,
                    base_offset=batch.base_offset,
                    time_ms=batch.publish_time_ms,
                )
                record.on_stored(batch)
            group = self.log.take()
            assert group is not None
            self.log.write(group)
            self.log.sync(group)
            self.log.committed(group)

    def turn(self) -> None:
        self.write_segment()
        self.look()

    @property
    def rewrites(self) -> dict[str, int]:
        return {reason: row.rewrites for reason, row in self.compactor.figures.by_reason.items()}

    def look(self) -> None:
        self.clock.advance(CHECK_S + 1)
        self.compactor.maintain()
        self.checkpoint()

    def checkpoint(self) -> None:
        horizon = {t.topic: t.first_offset for t in self.state.topics.values()}
        plan = self.log.plan_checkpoint(b"", horizon)
        plan.run()
        self.log.checkpointed(plan)
        plan.sweep()


def test_uploads_take_their_turn_while_there_is_always_something_else_to_rewrite() -> None:
    turns = Turns(MemoryDisk(), MemoryDisk())
    for _ in range(12):
        turns.turn()

    assert turns.rewrites == {"interleaved": 9, "upload": 3}


def test_a_tier_that_fails_does_not_keep_other_rewrites_waiting() -> None:
    tier = FaultyDisk()
    turns = Turns(MemoryDisk(), tier)
    tier.fail(Fault(lasting=True))
    for _ in range(12):
        turns.turn()

    assert turns.rewrites == {"interleaved": 9}
    assert turns.compactor.figures.failures == 3

    tier.heal()
    for _ in range(4):
        turns.turn()

    assert turns.rewrites["upload"] == 1


def test_a_full_disk_is_freed_of_what_has_expired_while_the_tier_fails() -> None:
    tier = FaultyDisk()
    turns = Turns(SmallDisk(4 << 20), tier)
    tier.fail(Fault(lasting=True))
    turns.write_segment()
    turns.write_segment()
    for record in turns.state.topics.values():
        # Most of a segment, which has seven messages of each topic.
        record.first_offset = 19
    turns.checkpoint()
    assert turns.log.space is not None
    turns.log.space.is_full = True
    for _ in range(2):
        turns.look()

    assert turns.rewrites == {"expired": 1}


def test_a_rewrite_without_room_leaves_the_reserve_alone_and_messages_are_taken() -> None:
    disk = SmallDisk(4 << 20)
    turns = Turns(disk, MemoryDisk())
    turns.write_segment()
    reserve = disk.names("reserve")
    disk.create("foreign/file", allocate_bytes=disk.free_bytes - 8_000)
    turns.clock.advance(CHECK_S + 1)
    turns.compactor.maintain()

    assert turns.compactor.figures.failures == 1
    assert disk.names("reserve") == reserve
    assert not turns.log.disk_full


def test_plan_that_fails_is_counted_and_tried_again(bench: Bench) -> None:
    bench.clock.advance(CHECK_S)
    bench.compactor.maintain()
    _, done = bench.jobs.pop()
    done(ZeroDivisionError())

    assert bench.compactor.figures.failures == 1
    bench.clock.advance(CHECK_S)
    bench.compactor.maintain()
    assert len(bench.jobs) == 1
