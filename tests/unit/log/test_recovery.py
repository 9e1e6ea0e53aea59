"""After a crash, everything acknowledged is there; what cannot be explained by one is an error."""

import errno

import pytest
from tests.unit.log.harness import SMALL, Bench, filler, make_batch

from ister.base.errors import CorruptedError
from ister.log import FileBackend, Kind, LogOptions
from ister.log.files.entry import HEADER, HEADER_BYTES, pack_header
from ister.log.files.scan import Scan
from ister.testing import Fault, FaultyDisk, Keep

FIRST = "segments/00000000000000000001.seg"
SECOND = "segments/00000000000000000002.seg"


def make_bench(disk: FaultyDisk, options: LogOptions = SMALL) -> Bench:
    return Bench(FileBackend(disk), options)


def entries_of(disk: FaultyDisk, name: str) -> list[tuple[int, int, int]]:
    """Return kind, position and end of every good entry of a file."""
    file = disk.open(name)
    scan = Scan(file.read, file.size())
    return [(header.kind, position, scan.position) for header, position, _ in scan]


def content(disk: FaultyDisk) -> dict[str, bytes]:
    found = {}
    for folder in ("segments", "manifests", "snapshots"):
        for name in disk.names(folder):
            file = disk.open(name)
            found[name] = file.read(0, file.size())
    return found


def test_every_entry_is_replayed_in_order_with_its_number() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.append(1, b"a")
    bench.append_changes(b"change one")
    bench.commit()
    bench.append_changes(b"change two")
    bench.commit()

    again = bench.reopened()
    batch = make_batch([b"a"], offset=0).to_bytes()
    assert again.seen == [
        (Kind.BATCH, 1, batch),
        (Kind.CHANGES, 0, b"change one"),
        (Kind.CHANGES, 0, b"change two"),
    ]
    assert again.numbers == [1, 2, 3]


def test_entry_numbers_go_on_over_files_and_restarts() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for number in range(100):
        bench.publish(1, filler(200)(number))
    bench = bench.reopened()
    bench.publish(1, b"last")

    assert bench.reopened().numbers == list(range(1, 102))


def test_a_restart_without_writes_changes_nothing() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for number in range(50):
        bench.publish(1, filler(200)(number))
    bench.log.close()
    bench.reopened().log.close()
    before = content(disk)
    bench.reopened().log.close()

    assert content(disk) == before


@pytest.mark.parametrize("keep", ["none", "all", "torn"])
def test_an_unsynced_group_is_there_whole_or_not_at_all(keep: Keep) -> None:
    for seed in range(40):
        disk = FaultyDisk(sector_bytes=64)
        bench = make_bench(disk)
        bench.publish(1, b"synced")
        bench.append(1, bytes(300))
        bench.append(2, bytes(300))
        group = bench.log.take()
        assert group is not None
        bench.log.write(group)

        found = make_bench(disk.reopen(keep, seed=seed))
        assert found.payloads(1) in ([b"synced"], [b"synced", bytes(300)])
        assert found.payloads(2) in ([], [bytes(300)])
        assert len(found.payloads(2)) < len(found.payloads(1))


def test_a_torn_end_is_reported_and_gone_at_the_next_start() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, b"a")
    bench.publish(1, b"b")
    _, position, _ = entries_of(disk, FIRST)[-1]
    disk.flip(FIRST, position + 50)

    found = bench.reopened()
    assert found.payloads(1) == [b"a"]
    assert (found.log.recovery.cut_file, found.log.recovery.cut_position) == (FIRST, position)
    assert found.reopened().log.recovery.cut_file == ""


def test_writing_goes_on_behind_a_torn_end_in_a_file_of_its_own() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, b"a")
    bench.publish(1, b"b")
    _, position, _ = entries_of(disk, FIRST)[-1]
    disk.flip(FIRST, position + 50)
    found = bench.reopened()
    found.publish(1, b"c")

    assert disk.names("segments") == [FIRST, SECOND]
    assert found.payloads(1) == [b"a", b"c"]
    assert found.reopened().payloads(1) == [b"a", b"c"]


@pytest.mark.parametrize("place", ["crc", "length", "magic", "topic", "number", "body"])
def test_a_bad_entry_before_the_last_group_stops_the_start(place: str) -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for payload in (b"a", b"b", b"c", b"d"):
        bench.publish(1, payload)
    _, position, _ = entries_of(disk, FIRST)[2]
    inside = {"crc": 0, "length": 4, "magic": 8, "topic": 12, "number": 16, "body": 60}[place]
    disk.flip(FIRST, position + inside)
    before = content(disk)

    with pytest.raises(CorruptedError) as caught:
        bench.reopened()

    assert (caught.value.file, caught.value.position) == (FIRST, position)
    assert content(disk) == before


def test_a_hole_of_zeros_before_the_last_group_stops_the_start() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for payload in (b"a", b"b", b"c"):
        bench.publish(1, payload)
    _, position, end = entries_of(disk, FIRST)[2]
    file = disk.open(FIRST)
    file.write(position, [bytes(end - position)])
    file.sync()

    with pytest.raises(CorruptedError, match="zeros where an entry should be"):
        bench.reopened()


def test_a_bad_entry_in_a_sealed_file_that_is_replayed_stops_the_start() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for number in range(60):
        bench.publish(1, filler(200)(number))
    _, position, _ = entries_of(disk, FIRST)[-2]
    disk.flip(FIRST, position + 50)

    with pytest.raises(CorruptedError) as caught:
        bench.reopened()
    assert (caught.value.file, caught.value.position) == (FIRST, position)


def test_a_missing_file_in_the_middle_stops_the_start() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for number in range(100):
        bench.publish(1, filler(200)(number))
    disk.remove(SECOND)

    with pytest.raises(CorruptedError, match="missing"):
        bench.reopened()


def test_a_missing_first_file_stops_the_start() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    for number in range(100):
        bench.publish(1, filler(200)(number))
    disk.remove(FIRST)

    with pytest.raises(CorruptedError, match="missing"):
        bench.reopened()


def test_a_message_that_looks_like_an_entry_proves_nothing() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk, LogOptions())
    bench.publish(1, b"a")
    # A producer cannot know the mark of the file; everything else it could guess.
    forged = pack_header(Kind.BATCH, 1, [b""], length=0, number=1_000, synced=700, count=1, mark=0)
    payload = b"".join(bytes(pad) + forged for pad in range(8)) * 20
    bench.publish(1, payload)
    _, position, _ = entries_of(disk, FIRST)[-1]
    assert position < 700
    disk.flip(FIRST, position)

    assert bench.reopened().payloads(1) == [b"a"]


def test_a_file_whose_making_was_cut_short_is_removed() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, b"a")
    disk.create(SECOND, allocate_bytes=SMALL.segment_bytes)

    found = bench.reopened()
    assert found.payloads(1) == [b"a"]
    assert found.log.recovery.removed == [SECOND]
    assert disk.names("segments") == [FIRST]


def test_a_lost_header_of_a_file_with_content_stops_the_start() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, b"a")
    bench.publish(1, b"b")
    disk.flip(FIRST, 0)

    with pytest.raises(CorruptedError, match="header of the file"):
        bench.reopened()


def test_a_seal_that_was_cut_short_is_done_again() -> None:
    for keep in ("none", "all", "torn"):
        for seed in range(10):
            disk = FaultyDisk(sector_bytes=64)
            bench = make_bench(disk)
            number = 0
            while len(bench.log.segments) == 0:
                disk.fail(Fault(actions=["truncate"], error=errno.EIO))
                bench.append(1, filler(300)(number))
                if bench.try_commit() is not None:
                    break
                number += 1
            found = make_bench(disk.reopen(keep, seed=seed))

            assert found.payloads(1) == [filler(300)(n) for n in range(number)]
            found.publish(1, b"on it goes")
            assert len(found.reopened().payloads(1)) == number + 1


def test_a_file_of_a_newer_format_is_refused() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, b"a")
    file = disk.open(FIRST)
    header = HEADER.unpack(file.read(0, HEADER_BYTES))
    body = file.read(HEADER_BYTES, header[1]).replace(b"\xa7version\x01", b"\xa7version\x02")
    head = pack_header(
        Kind.HEADER, 0, [body], length=len(body), number=1, synced=0, count=0, mark=header[-1]
    )
    file.write(0, [head, body])

    with pytest.raises(CorruptedError, match="newer ister"):
        bench.reopened()
