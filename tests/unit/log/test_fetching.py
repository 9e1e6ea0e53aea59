"""Objects are read in parallel, within limits, and reads from a busy store are retried."""

import threading

import pytest
from tests.unit.log.harness import Bench

from ister.log import ChunkBackend
from ister.log.journal.fetching import AT_ONCE, PART_BYTES, fetch_in_order
from ister.log.log import CHUNK_BYTES_PER_CHECKPOINT
from ister.objects import LocalStore, MemoryDisk


class RoundsStore(LocalStore):
    """A store that answers reads of chunks only when `AT_ONCE` of them wait: one round."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self.rounds = 0
        self._barrier = threading.Barrier(AT_ONCE, action=self._count, timeout=10.0)

    def _count(self) -> None:
        self.rounds += 1

    def get_range(self, name: str, position: int, size_bytes: int) -> bytes:
        """Wait for the other reads of the round, then read."""
        if name.startswith("chunks/"):
            self._barrier.wait()
        return super().get_range(name, position, size_bytes)


class CountingStore:
    """Objects of given sizes. Fails as planned, and counts the reads."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = {f"chunks/{number}": size for number, size in enumerate(sizes)}
        self.failures: dict[str, list[Exception]] = {}
        self.asked: list[tuple[str, int, int]] = []
        self._lock = threading.Lock()

    def read(self, name: str, position: int, size_bytes: int) -> bytes:
        """Return a part of an object."""
        with self._lock:
            self.asked.append((name, position, size_bytes))
            if self.failures.get(name):
                raise self.failures[name].pop(0)
        return bytes(max(0, min(size_bytes, self.sizes[name] - position)))

    def fetch(self, waits: list[float]) -> list[int]:
        """Return the size of each object that is fetched."""
        return [len(data) for data in fetch_in_order(self, list(self.sizes), sleep=waits.append)]


def test_256_chunks_are_opened_in_8_rounds_of_reads() -> None:
    disk = MemoryDisk()
    bench = Bench(ChunkBackend(LocalStore(disk)))
    for number in range(255):  # The fence is one as well.
        bench.publish(1, b"%d" % number)
    store = RoundsStore(disk)
    opened = Bench(ChunkBackend(store))

    assert store.rounds == 256 // AT_ONCE == 8
    assert opened.numbers == list(range(1, 256))


def test_objects_are_returned_whole_and_in_order() -> None:
    sizes = (10, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES, 0, 7)

    assert CountingStore(*sizes).fetch([]) == list(sizes)


def test_only_one_large_object_is_read_beyond_its_first_part() -> None:
    store = CountingStore(*[8 * PART_BYTES] * 64)
    fetching = fetch_in_order(store, list(store.sizes))
    next(fetching)

    ahead = [name for name, position, _ in store.asked if position == 0]
    beyond = [name for name, position, _ in store.asked if position]
    assert len(ahead) <= AT_ONCE + 1
    assert set(beyond) == {"chunks/0"}
    assert all(size <= PART_BYTES for _, position, size in store.asked if position == 0)
    fetching.close()


def test_reads_from_a_busy_store_are_retried_after_growing_waits() -> None:
    store = CountingStore(*[5] * 100)
    store.failures["chunks/40"] = [OSError("503")] * 5
    waits: list[float] = []

    assert store.fetch(waits) == [5] * 100
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2]


def test_store_that_stays_busy_is_an_error_after_six_attempts() -> None:
    store = CountingStore(*[5] * 100)
    store.failures["chunks/40"] = [OSError("503")] * 100
    waits: list[float] = []

    with pytest.raises(OSError, match="503"):
        store.fetch(waits)
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2]
    assert [name for name, _, _ in store.asked].count("chunks/40") == 6


@pytest.mark.parametrize("error", [FileNotFoundError("gone"), PermissionError("denied")])
def test_missing_object_or_permission_is_an_error_at_once(error: OSError) -> None:
    store = CountingStore(*[5] * 10)
    store.failures["chunks/4"] = [error]
    waits: list[float] = []

    with pytest.raises(type(error)):
        store.fetch(waits)
    assert waits == []


def test_threads_end_with_the_reading() -> None:
    before = threading.active_count()
    store = CountingStore(*[5] * 100)
    fetching = fetch_in_order(store, list(store.sizes))
    next(fetching)
    fetching.close()

    for thread in threading.enumerate():
        if thread.name.startswith("ister-fetch"):
            thread.join(timeout=10.0)
    assert threading.active_count() <= before


def test_checkpoint_is_due_after_64_mib_of_chunks() -> None:
    bench = Bench(ChunkBackend(LocalStore(MemoryDisk())))
    payload = bytes(CHUNK_BYTES_PER_CHECKPOINT // 8)
    for _ in range(7):
        bench.publish(1, payload)
    assert not bench.log.wants_checkpoint
    bench.publish(1, payload)

    wanted = [bench.log.wants_checkpoint, bench.reopened().log.wants_checkpoint]
    bench.reopened().checkpoint()
    wanted.append(bench.reopened().log.wants_checkpoint)
    assert wanted == [True, True, False]
