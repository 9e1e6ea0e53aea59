"""A tier that does not answer: what lies on the disk is read all the same."""

import pytest
from tests.unit.broker.streambench import TOPIC, HeldWorker, StreamBench, at_time

from ister.broker import InlineWorker, Storage, Workers, open_storage
from ister.broker.storage.compactor import CHECK_S
from ister.log import ChunkBackend, FileBackend, LogOptions, Place
from ister.objects import LocalStore, MemoryDisk


class TieredBench(StreamBench):
    """A broker that has moved the first segments of a topic to a tier, which does not answer."""

    def _open(self, backend: ChunkBackend | None = None) -> Storage:
        assert backend is None
        worker = InlineWorker(self._call_soon)
        self.tier_reads = HeldWorker(self._call_soon)
        return open_storage(
            FileBackend(self.disk),
            LogOptions(
                now_ms=self.clock.now_ms,
                segment_bytes=1 << 12,
                remote=LocalStore(MemoryDisk()),
            ),
            workers=lambda: Workers(
                writing=worker,
                reading=worker,
                housekeeping=worker,
                reading_remote=self.tier_reads,
            ),
            clock=self.clock,
            call_soon=self._call_soon,
            upload_after_ms=1_000,
        )

    def places(self) -> set[Place]:
        return {row.place for row in self.storage.log.segments}


@pytest.fixture
def bench() -> TieredBench:
    bench = TieredBench()
    bench.create()
    for number in range(20):
        bench.publish(b"old %d" % number + b"." * 500)
    while bench.places() != {Place.REMOTE}:
        bench.advance(int(CHECK_S * 1_000))
    for number in range(20):
        bench.publish(b"new %d" % number + b"." * 500)
    assert Place.LOCAL in bench.places()
    bench.tier_reads.holding = True
    return bench


def test_consumers_of_what_is_on_the_disk_go_on(bench: TieredBench) -> None:
    old = bench.consume(TOPIC, "old", start="earliest")
    new = bench.consume(TOPIC, "new", start=20)

    assert old.messages == []
    assert len(new.messages) == 20
    bench.tier_reads.release()
    bench.settle()
    assert len(old.messages) == 40


def test_a_time_is_found_on_the_disk(bench: TieredBench) -> None:
    new = bench.consume(TOPIC, "new", start=at_time(bench.clock.now_ms()))
    _, outcome = bench.subscribe(TOPIC, "old", start=at_time(1_000))
    bench.settle()

    assert [message.offset for message in new.messages] == list(range(20, 40))
    assert outcome.told == []
    bench.tier_reads.release()
    bench.settle()
    assert len(outcome.told) == 1
