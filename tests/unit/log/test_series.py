"""A series: batches in entries of their own, all of which count or none."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.log.harness import SMALL, Bench, filler, series_part

from ister.base.errors import CorruptedError
from ister.log import (
    Buffer,
    ChunkBackend,
    CompactionPolicy,
    FileBackend,
    Kind,
    LogOptions,
    SeriesPart,
    check_folder,
    plan_compaction,
)
from ister.log.files.entry import HEADER, HEADER_BYTES, pack_header
from ister.log.files.scan import Scan
from ister.objects import FileKeyring, LocalStore, open_store
from ister.testing import FaultyDisk
from ister.testing.disk import FaultyFile

FIRST = "segments/00000000000000000001.seg"
PARTS = ((1, [b"a", b"b"]), (2, [b"c"]), (1, [b"d"]))


def make_bench(disk: FaultyDisk, options: LogOptions = SMALL) -> Bench:
    return Bench(FileBackend(disk), options)


def entries_of(disk: FaultyDisk) -> list[tuple[int, int, int]]:
    """Return kind, position and end of every good entry of the first file."""
    file = disk.open(FIRST)
    scan = Scan(file.read, file.size())
    return [(header.kind, position, scan.position) for header, position, _ in scan]


def with_series(disk: FaultyDisk) -> Bench:
    bench = make_bench(disk)
    bench.publish(1, b"before")
    bench.append_series(*PARTS, changes=b"mark")
    bench.commit()
    return bench


def overwritten(disk: FaultyDisk, position: int, **fields: int) -> None:
    """Change fields of the header of an entry, and make its checksum good again."""
    file = disk.open(FIRST)
    _, length, _, kind, flags, topic, number, synced, count, mark = HEADER.unpack(
        file.read(position, HEADER_BYTES)
    )
    body = file.read(position + HEADER_BYTES, length)
    header = {"kind": kind, "topic": topic, "count": count} | fields
    head = pack_header(
        header["kind"],
        header["topic"],
        [body],
        length=length,
        number=number,
        synced=synced,
        count=header["count"],
        mark=mark,
        flags=flags,
    )
    file.write(position, [head])
    file.sync()


def test_each_batch_is_an_entry_and_the_last_entry_counts_them() -> None:
    disk = FaultyDisk()
    bench = with_series(disk)

    kinds = [kind for kind, _, _ in entries_of(disk)]
    assert kinds == [Kind.HEADER, Kind.BATCH, Kind.PART, Kind.PART, Kind.PART, Kind.TRANSACTION]
    assert bench.payloads(1) == [b"before", b"a", b"b", b"d"]
    assert bench.payloads(2) == [b"c"]


def test_a_reader_of_one_topic_reads_no_batch_of_another() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk, LogOptions(extent_bytes=1_024, now_ms=lambda: 1))
    large = filler(4_096)
    bench.append_series(*((topic, [large(topic)]) for topic in (1, 2, 3, 4)))
    bench.commit()
    plan = bench.log.plan(3, 0, 1 << 20)

    assert plan is not None
    window = plan._window
    assert window is not None
    assert window.end - window.position < 4_400


def test_all_of_it_is_replayed_in_order_with_its_numbers() -> None:
    disk = FaultyDisk()
    again = with_series(disk).reopened()

    assert [kind for kind, _, _ in again.seen] == [
        Kind.BATCH,
        Kind.PART,
        Kind.PART,
        Kind.PART,
        Kind.TRANSACTION,
    ]
    assert again.numbers == [1, 2, 3, 4, 5]
    assert again.payloads(1) == [b"before", b"a", b"b", b"d"]
    assert again.payloads(2) == [b"c"]


@pytest.mark.parametrize("torn", range(2, 6))
def test_a_torn_series_is_cut_at_its_first_part(torn: int) -> None:
    disk = FaultyDisk()
    with_series(disk)
    entries = entries_of(disk)
    first_part = entries[2][1]
    _, position, end = entries[torn]
    disk.open(FIRST).truncate((position + end) // 2)
    again = make_bench(disk)

    assert again.payloads(1) == [b"before"]
    assert again.log.plan(2, 0, 1_000) is None
    assert [kind for kind, _, _ in again.seen] == [Kind.BATCH]
    assert disk.open(FIRST).size() == first_part


def test_a_series_whose_last_entry_is_missing_is_cut_though_every_part_is_intact() -> None:
    disk = FaultyDisk()
    with_series(disk)
    entries = entries_of(disk)
    disk.open(FIRST).truncate(entries[5][1])
    again = make_bench(disk)

    assert again.numbers == [1]
    assert again.log.recovery.cut_position == entries[2][1]
    assert again.log.recovery.cut_bytes == entries[5][1] - entries[2][1]
    again.publish(1, b"after")
    assert again.reopened().payloads(1) == [b"before", b"after"]


def test_numbers_go_on_behind_what_was_cut() -> None:
    disk = FaultyDisk()
    with_series(disk)
    disk.open(FIRST).truncate(entries_of(disk)[5][1])
    again = make_bench(disk)
    again.append_changes(b"next")
    again.commit()

    assert again.reopened().numbers == [1, 2]


@pytest.mark.parametrize(
    ("slot", "fields"),
    [
        pytest.param(3, {"kind": Kind.BATCH}, id="a batch among the parts"),
        pytest.param(5, {"kind": Kind.CHANGES}, id="nothing closes it"),
        pytest.param(5, {"count": 2}, id="it closes fewer"),
        pytest.param(5, {"count": 4}, id="it closes more"),
        pytest.param(1, {"kind": Kind.PART}, id="one part too many"),
    ],
)
def test_a_series_that_does_not_add_up_is_corruption(slot: int, fields: dict[str, int]) -> None:
    disk = FaultyDisk()
    with_series(disk).publish(1, b"after")
    overwritten(disk, entries_of(disk)[slot][1], **fields)

    with pytest.raises(CorruptedError, match="series"):
        make_bench(disk)
    assert any("series" in p.reason for p in check_folder(FileBackend(disk)).problems)


def test_a_series_that_loses_its_last_entry_in_the_middle_of_a_log_is_corruption() -> None:
    disk = FaultyDisk()
    bench = with_series(disk)
    position = entries_of(disk)[5][1]
    bench.publish(1, b"after")
    bench.publish(1, b"and after that")
    disk.open(FIRST).write(position + HEADER_BYTES, [b"\xff"])

    with pytest.raises(CorruptedError, match="checksum"):
        make_bench(disk)


def test_a_sealed_segment_with_a_broken_series_is_found_by_a_check() -> None:
    disk = FaultyDisk()
    bench = with_series(disk)
    for number in range(8):
        bench.publish(1, filler(1_000)(number))
    bench.checkpoint()
    assert check_folder(FileBackend(disk)).problems == []
    overwritten(disk, entries_of(disk)[5][1], count=2)

    [problem] = check_folder(FileBackend(disk)).problems
    assert "series" in problem.reason


def test_a_series_is_compacted_into_plain_batches() -> None:
    disk = FaultyDisk()
    bench = with_series(disk)
    for number in range(20):
        bench.append_series((1, [filler(900)(number)]), (2, [b"%d" % number]))
        bench.commit()
    bench.checkpoint()
    before = bench.payloads(1), bench.payloads(2)
    policy = CompactionPolicy(density_min=1.0)
    rewrite = plan_compaction(bench.log, bench.log.state(), {1: 0, 2: 0}, policy)
    assert rewrite is not None
    rewrite.run()
    bench.log.rewritten(rewrite)
    bench.checkpoint()

    assert (bench.payloads(1), bench.payloads(2)) == before
    again = bench.reopened()
    assert (again.payloads(1), again.payloads(2)) == before
    assert check_folder(FileBackend(disk)).problems == []


def test_a_series_larger_than_a_file_has_one_of_its_own() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, b"before")
    bench.append_series(*((1, [filler(2_000)(n)]) for n in range(10)))
    bench.commit()
    bench.publish(1, b"after")
    again = bench.reopened()

    assert len(again.payloads(1)) == 12
    assert len(disk.names("segments")) == 3


def test_a_log_of_large_series_is_opened_a_piece_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in ("files.scan", "journal.recovery"):
        monkeypatch.setattr(f"ister.log.{module}.PIECE_BYTES", 4_096)
    disk = FaultyDisk()
    bench = make_bench(disk)
    for _ in range(2):
        bench.append_series(*((1, [filler(1_000)(n)]) for n in range(20)))
        bench.commit()
    reads: list[int] = []
    read = FaultyFile.read

    def noting(file: FaultyFile, position: int, size_bytes: int) -> bytes:
        reads.append(size_bytes)
        return read(file, position, size_bytes)

    monkeypatch.setattr(FaultyFile, "read", noting)
    again = bench.reopened()

    assert len(disk.names("segments")) == 2
    assert max(reads) <= 4_096
    assert len(again.payloads(1)) == 40


def test_a_series_in_an_object_store_is_one_chunk_and_is_replayed() -> None:
    store = open_store("memory://series")
    bench = Bench(ChunkBackend(store))
    bench.append_series(*PARTS, changes=b"mark")
    bench.commit()
    again = Bench(ChunkBackend(store))

    assert [k for k, _, _ in again.seen] == [Kind.PART, Kind.PART, Kind.PART, Kind.TRANSACTION]
    assert again.payloads(1) == [b"a", b"b", b"d"]


def test_a_chunk_with_half_a_series_is_corruption() -> None:
    disk = FaultyDisk()
    bench = Bench(ChunkBackend(LocalStore(disk)))
    bench.append_series(*PARTS)
    bench.commit()
    name = disk.names("chunks")[-1]
    file = disk.open(name)
    scan = Scan(file.read, file.size())
    last = [position for _, position, _ in scan][-1]
    file.truncate(last)

    with pytest.raises(CorruptedError, match="series is not closed"):
        Bench(ChunkBackend(LocalStore(disk)))


def test_an_encrypted_series_is_found_again(tmp_path: Path) -> None:
    keyring = FileKeyring.create(tmp_path / "keys")
    options = LogOptions(segment_bytes=8_192, extent_bytes=1_024, ciphers=keyring)
    disk = FaultyDisk()
    bench = make_bench(disk, options)
    bench.append_series(*PARTS, changes=b"mark")
    bench.commit()
    again = bench.reopened()

    assert again.payloads(1) == [b"a", b"b", b"d"]
    assert again.payloads(2) == [b"c"]


def test_a_series_is_read_and_written_a_few_batches_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ister.log.journal.group.SLICE_BYTES", 2_000)
    disk = FaultyDisk()
    bench = make_bench(disk, LogOptions())
    bench.publish(1, b"before")
    writes: list[int] = []

    def noting(part: SeriesPart) -> SeriesPart:
        def load() -> Sequence[Buffer]:
            writes.append(len(disk.operations))
            return part.load()

        return part._replace(load=load)

    payloads = [filler(1_000)(number) for number in range(6)]
    bench.log.append_series([noting(series_part(1, bench.batch(1, p))) for p in payloads], b"")
    bench.commit()

    first = writes[0]
    assert [count - first for count in writes] == [0, 0, 1, 1, 2, 2]
    assert bench.payloads(1) == bench.reopened().payloads(1) == [b"before", *payloads]


def test_a_batch_that_cannot_be_read_fails_its_series_and_nothing_of_it_is_found() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.publish(1, b"before")

    def fail() -> Sequence[Buffer]:
        raise OSError("it cannot be read")

    parts = [series_part(1, bench.batch(1, b"a")), series_part(2, bench.batch(2, b"b"))]
    bench.log.append_series([parts[0], parts[1]._replace(load=fail)], b"mark")
    assert isinstance(bench.try_commit(), OSError)
    bench.log.recover()
    bench.publish(1, b"after")

    assert bench.payloads(1) == bench.reopened().payloads(1) == [b"before", b"after"]
    assert bench.log.plan(2, 0, 1_000) is None


def test_a_series_without_batches_is_a_transaction_of_changes_alone() -> None:
    disk = FaultyDisk()
    bench = make_bench(disk)
    bench.append_series(changes=b"mark")
    bench.commit()

    assert [kind for kind, _, _ in bench.reopened().seen] == [Kind.TRANSACTION]
