"""The log in the threads it is made for: a loop, a writer, readers, and housekeeping at once."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tests.unit.log.harness import SMALL, Bench, filler

from ister.codec import Batch
from ister.log import (
    Checkpoint,
    CompactionPolicy,
    FileBackend,
    Rewrite,
    check_folder,
    plan_compaction,
)
from ister.objects import MemoryDisk

TOPICS = range(1, 8)
POLICY = CompactionPolicy(small_count_min=2, live_share_min=0.9, density_min=0.9)
payload = filler(90)


class Loop:
    """The part of a broker's event loop: it alone touches the index, threads do the rest."""

    def __init__(self, bench: Bench, pool: ThreadPoolExecutor) -> None:
        self.bench = bench
        self.pool = pool
        self.rewrites = 0
        self.checkpoints = 0
        self._reads: list[tuple[int, int, Future[list[tuple[int, bytes]]]]] = []
        self._rewriting: tuple[Rewrite, Future[None]] | None = None
        self._checkpointing: tuple[Checkpoint, Future[None]] | None = None

    def turn(self, number: int) -> None:
        log = self.bench.log
        for topic in TOPICS:
            self.bench.append(topic, payload(number), sync=topic % 2 == 0)
        group = log.take()
        assert group is not None
        written = self.pool.submit(log.write, group)
        # While the group is written, the loop goes on.
        self.start_reads(number)
        self.keep_house()
        written.result(timeout=30)
        if group.needs_sync:
            self.pool.submit(log.sync, group).result(timeout=30)
        log.committed(group)

    def start_reads(self, number: int) -> None:
        topic = number % len(TOPICS) + 1
        offset = number * 7 % max(1, number)
        plan = self.bench.log.plan(topic, offset, 1_500)
        if plan is not None:
            self._reads.append((topic, offset, self.pool.submit(read_rows, plan.run)))

    def keep_house(self) -> None:
        log = self.bench.log
        horizon = dict.fromkeys(TOPICS, 0)
        if self._checkpointing is not None:
            checkpoint, done = self._checkpointing
            if not done.done():
                return
            done.result()
            log.checkpointed(checkpoint)
            self.pool.submit(checkpoint.sweep).result(timeout=30)
            self._checkpointing = None
            self.checkpoints += 1
        if self._rewriting is not None and self._rewriting[1].done():
            rewrite, done = self._rewriting
            done.result()
            log.rewritten(rewrite)
            self._rewriting = None
            self.rewrites += 1
        if log.wants_checkpoint:
            checkpoint = log.plan_checkpoint(b"state", horizon)
            self._checkpointing = (checkpoint, self.pool.submit(checkpoint.run))
        elif self._rewriting is None:
            planned = plan_compaction(log, log.state(), horizon, POLICY)
            if planned is not None:
                self._rewriting = (planned, self.pool.submit(planned.run))

    def finish(self) -> None:
        for topic, offset, read in self._reads:
            rows = read.result(timeout=30)
            assert rows, f"topic {topic} from {offset} on"
            assert [row for row in rows if row[0] >= offset] == [
                (n, payload(n)) for n in range(offset, rows[-1][0] + 1)
            ]


def read_rows(run: Callable[[], list[Batch]]) -> list[tuple[int, bytes]]:
    return [row for batch in run() for row in zip(batch.offsets, batch.payloads, strict=True)]


def test_reads_checkpoints_and_rewrites_go_on_while_groups_are_written() -> None:
    disk = MemoryDisk()
    bench = Bench(FileBackend(disk), SMALL)
    with ThreadPoolExecutor(4) as pool:
        loop = Loop(bench, pool)
        for number in range(400):
            loop.turn(number)
        loop.finish()

    assert loop.checkpoints > 5
    assert loop.rewrites > 5
    for topic in TOPICS:
        assert bench.payloads(topic) == [payload(n) for n in range(400)]
    bench.log.close()
    assert check_folder(FileBackend(disk)).problems == []
    again = bench.reopened()
    for topic in TOPICS:
        assert again.payloads(topic) == [payload(n) for n in range(400)]
