"""What is committed can be read back, in order and from anywhere, in as few files as it takes."""

from collections.abc import Sequence

import pytest
from tests.unit.log.harness import SMALL, TIME_MS, Bench, filler, make_batch

from ister.log import Buffer, FileBackend, Kind, LogOptions, Place
from ister.objects import MemoryDisk, MemoryFile


@pytest.fixture
def bench() -> Bench:
    return Bench(FileBackend(MemoryDisk()))


def test_an_empty_log_has_nothing_to_read_or_to_write(bench: Bench) -> None:
    assert bench.log.plan(1, 0, 1_000) is None
    assert bench.log.take() is None
    assert not bench.log.collecting
    assert (bench.log.first_offset(1), bench.log.next_offset(1)) == (0, 0)


def test_a_committed_batch_is_read_back_as_it_was(bench: Bench) -> None:
    bench.publish(1, b"hello", b"Danube", time_ms=TIME_MS + 5)

    plan = bench.log.plan(1, 0, 1_000)
    assert plan is not None
    [batch] = plan.run()
    assert batch.payloads == [b"hello", b"Danube"]
    assert (batch.base_offset, batch.publish_time_ms) == (0, TIME_MS + 5)
    assert batch.producer == "shop"


def test_a_group_is_invisible_until_it_is_committed(bench: Bench) -> None:
    bench.append(1, b"a")
    group = bench.log.take()
    assert group is not None
    bench.log.write(group)
    bench.log.sync(group)
    assert bench.log.plan(1, 0, 1_000) is None

    bench.log.committed(group)

    assert bench.payloads(1) == [b"a"]


def test_what_is_collected_while_a_group_is_written_goes_with_the_next(bench: Bench) -> None:
    bench.append(1, b"a")
    first = bench.log.take()
    assert first is not None
    bench.append(1, b"b")
    bench.append(2, b"c")
    bench.log.write(first)
    bench.log.sync(first)
    bench.log.committed(first)

    assert bench.log.collecting
    assert bench.log.collecting_bytes > 0
    bench.commit()
    assert bench.payloads(1) == [b"a", b"b"]
    assert bench.payloads(2) == [b"c"]


def test_a_group_needs_a_sync_only_if_one_of_its_entries_asks_for_it(bench: Bench) -> None:
    bench.append(1, b"a", sync=False)
    lazy = bench.log.take()
    assert lazy is not None
    bench.log.write(lazy)
    bench.log.committed(lazy)
    bench.append(1, b"b", sync=False)
    bench.append(1, b"c", sync=True)
    eager = bench.log.take()
    assert eager is not None

    assert not lazy.needs_sync
    assert eager.needs_sync


def test_what_is_not_synced_is_synced_before_it_takes_too_much_memory() -> None:
    options = LogOptions(unsynced_bytes_max=2_000)
    bench = Bench(FileBackend(MemoryDisk()), options)
    needed = []
    for _ in range(6):
        bench.append(1, bytes(500), sync=False)
        group = bench.log.take()
        assert group is not None
        needed.append(group.needs_sync)
        bench.log.write(group)
        if group.needs_sync:
            bench.log.sync(group)
        bench.log.committed(group)

    assert needed == [False, False, False, True, False, False]


@pytest.mark.parametrize("bytes_max", [1, 500, 2_000, 100_000])
def test_topics_that_share_files_are_read_apart(bench: Bench, bytes_max: int) -> None:
    payload = filler(100)
    for number in range(120):
        bench.append(1, payload(number))
        bench.append(2, payload(2 * number), payload(2 * number + 1))
        bench.commit()

    assert len(bench.log.segments) > 3
    assert bench.read(1, 0, bytes_max) == [(n, payload(n)) for n in range(120)]
    assert bench.read(2, 0, bytes_max) == [(n, payload(n)) for n in range(240)]


@pytest.mark.parametrize("offset", [0, 1, 57, 58, 59, 118, 119])
def test_reading_starts_with_the_batch_that_holds_the_offset(bench: Bench, offset: int) -> None:
    for number in range(60):
        bench.publish(1, b"%d" % (2 * number), b"%d" % (2 * number + 1) + bytes(200))

    plan = bench.log.plan(1, offset, 1)
    assert plan is not None
    first = plan.run()[0]
    assert first.base_offset == offset - offset % 2


def test_nothing_is_planned_at_the_next_offset(bench: Bench) -> None:
    bench.publish(1, b"a", b"b")

    assert bench.log.next_offset(1) == 2
    assert bench.log.plan(1, 1, 1_000) is not None
    assert bench.log.plan(1, 2, 1_000) is None


def test_a_read_stays_near_its_limit(bench: Bench) -> None:
    for number in range(100):
        bench.publish(1, filler(100)(number))

    plan = bench.log.plan(1, 0, 2_000)
    assert plan is not None
    size = sum(batch.size_bytes for batch in plan.run())
    assert 1_000 < size <= 2_000 + 500


def test_a_batch_larger_than_a_file_has_a_file_of_its_own(bench: Bench) -> None:
    large = bytes(3 * SMALL.segment_bytes)
    bench.publish(1, b"before")
    bench.publish(1, large)
    bench.publish(1, b"after")

    assert bench.payloads(1) == [b"before", large, b"after"]
    assert [row.number for row in bench.log.segments] == [1, 2]
    assert bench.reopened().payloads(1) == [b"before", large, b"after"]


def test_a_file_is_sealed_when_it_has_enough_entries() -> None:
    bench = Bench(FileBackend(MemoryDisk()), LogOptions(segment_entries=10))
    for number in range(25):
        bench.publish(1, b"%d" % number)

    assert len(bench.log.segments) == 2
    assert bench.payloads(1) == [b"%d" % n for n in range(25)]


def test_batches_of_a_transaction_are_read_with_their_topics(bench: Bench) -> None:
    bench.publish(1, b"one")
    first = bench.batch(1, b"two", b"three")
    second = bench.batch(2, b"other")
    third = bench.batch(1, b"four")
    bench.log.append_transaction(
        [
            (topic, b.base_offset, TIME_MS, b.count, [b.stamp_bytes(), b.tail])
            for topic, b in ((1, first), (2, second), (1, third))
        ],
        b"acks",
    )
    bench.commit()
    bench.publish(1, b"five")

    assert bench.payloads(1) == [b"one", b"two", b"three", b"four", b"five"]
    assert bench.payloads(2) == [b"other"]
    again = bench.reopened()
    assert again.payloads(1) == bench.payloads(1)
    assert [kind for kind, _, _ in again.seen] == [Kind.BATCH, Kind.TRANSACTION, Kind.BATCH]


def test_a_large_transaction_with_one_topic_twice_is_read_whole(bench: Bench) -> None:
    batches = [bench.batch(1, bytes(2_000) + b"%d" % n) for n in range(3)]
    bench.log.append_transaction(
        [(1, b.base_offset, TIME_MS, 1, [b.to_bytes()]) for b in batches], b""
    )
    bench.commit()

    assert bench.payloads(1) == [bytes(2_000) + b"%d" % n for n in range(3)]


@pytest.mark.parametrize("time_ms", [-1, 0, 1, 9, 10, 11, 555, 990, 991, 5_000])
def test_find_time_gives_the_first_message_published_then_or_later(
    bench: Bench, time_ms: int
) -> None:
    for number in range(100):
        bench.publish(1, filler(150)(number), b"second", time_ms=TIME_MS + number * 10)
        bench.publish(2, b"other", time_ms=TIME_MS)

    expected = min(100, max(0, -(-time_ms // 10))) * 2
    assert bench.log.find_time(1, TIME_MS + time_ms) == expected


def test_find_time_of_an_unknown_topic_is_its_beginning(bench: Bench) -> None:
    assert bench.log.find_time(9, TIME_MS) == 0


def test_stored_bytes_grow_with_a_topic_and_not_with_others(bench: Bench) -> None:
    bench.publish(1, bytes(1_000))
    bench.publish(2, bytes(50))
    before = bench.log.stored_bytes(1)
    bench.publish(2, bytes(5_000))

    assert bench.log.stored_bytes(1) == before
    assert 1_000 < before < 1_300


def test_sealed_segments_are_listed_with_their_topics(bench: Bench) -> None:
    for number in range(40):
        bench.append(1, filler(100)(number))
        bench.append(2, filler(100)(number))
        bench.commit()

    rows = bench.log.segments
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    assert all(row.topics == 2 and row.place is Place.LOCAL for row in rows)
    assert all(0 < row.size_bytes <= 2 * SMALL.segment_bytes for row in rows)


def test_a_plan_made_before_more_was_committed_still_reads_what_it_planned(bench: Bench) -> None:
    bench.publish(1, b"a")
    plan = bench.log.plan(1, 0, 1_000)
    assert plan is not None
    for number in range(100):
        bench.publish(1, filler(200)(number))

    assert plan.run()[0].payloads == [b"a"]


def test_a_batch_read_from_a_crowded_file_does_not_keep_its_neighbours_in_memory() -> None:
    bench = Bench(FileBackend(MemoryDisk()), LogOptions())
    bench.append(1, b"small")
    bench.append(2, bytes(100_000))
    bench.append(1, b"small too")
    bench.commit()

    plan = bench.log.plan(1, 0, 1_000_000)
    assert plan is not None
    held = [batch.tail.obj for batch in plan.run()]
    assert all(isinstance(one, bytes) and len(one) < 1_000 for one in held)


class RecordingDisk(MemoryDisk):
    """Remembers the parts of every write."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[object] = []

    def create(self, name: str, *, allocate_bytes: int = 0) -> MemoryFile:
        disk, file = self, super().create(name, allocate_bytes=allocate_bytes)

        class Recorded(MemoryFile):
            def write(self, position: int, parts: Sequence[Buffer]) -> None:
                disk.parts += parts
                file.write(position, parts)

        return Recorded()


def test_a_large_batch_is_not_copied_on_its_way_to_the_disk() -> None:
    disk = RecordingDisk()
    bench = Bench(FileBackend(disk), LogOptions())
    batch = make_batch([bytes(100_000)], offset=0)
    tail = batch.tail
    bench.log.append(Kind.BATCH, 1, [batch.stamp_bytes(), tail], count=1, time_ms=TIME_MS)
    bench.commit()

    assert any(part is tail for part in disk.parts)


def test_small_batches_are_written_in_one_piece() -> None:
    disk = RecordingDisk()
    bench = Bench(FileBackend(disk), LogOptions())
    for number in range(100):
        bench.append(1, b"%d" % number)
    before = len(disk.parts)
    bench.commit()

    assert len(disk.parts) - before == 2  # One of them is the header of the file.
