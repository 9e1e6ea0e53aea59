"""Puts that an earlier version left in a log of its own: none is lost, and none comes twice."""

import zipfile
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.timeline.acts import NOW, everything, ids, make

from ister.base.errors import CorruptedError, StorageFailedError
from ister.objects import LocalDisk
from ister.testing import Crash, Fault, FaultyDisk
from ister.timeline import FILE_NAME, Changed, Delete, Put, SqliteStore, check_timelines
from ister.timeline.sqlite.put_log import CHECKED, HEAD, HEADER, MAGIC, SUFFIX, Logged, load_puts

NAME = f"{FILE_NAME}{SUFFIX}"
# What the version before this reader left behind when it was killed: two messages in the tables,
# one of which is in the log as well, and three that are only there.
FOLDER = Path(__file__).parents[2] / "golden" / "folders" / "timeline-puts.zip"
MARK = b"8 bytes."
# When it was written.
THEN = 1_800_000_000_000
FOLDED = Logged(2, Put(1, "folded", "shop", THEN + 1, b"in the tables"))
LONE = [
    Logged(3, Put(1, "lone-1", "shop", THEN + 10, b"payload 1")),
    Logged(4, Put(2, "lone-2", "other", THEN + 20, bytes(range(256)), b"\x81\xa1a\xa1b", 3)),
    Logged(5, Put(1, "lönë-3", "", THEN + 30, b"")),
]


def log_of(puts: list[Logged], mark: bytes = MARK) -> bytes:
    """Return a log as earlier versions wrote it."""
    parts = [HEADER.pack(MAGIC, mark, crc32(MAGIC + mark))]
    for version, put in puts:
        body = msgspec.msgpack.encode(put)
        checksum = crc32(body, crc32(CHECKED.pack(version, len(body))))
        parts += [HEAD.pack(mark, version, len(body), checksum), body, bytes(-len(body) % 8)]
    return b"".join(parts)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    with zipfile.ZipFile(FOLDER) as folder:
        folder.extractall(tmp_path)
    return tmp_path / FILE_NAME


# In the store


def test_every_put_is_there_and_the_log_is_gone(file: Path) -> None:
    store = SqliteStore(file)

    assert [row.id for row in everything(store, 1)] == ["first", "folded", "lone-1", "lönë-3"]
    for version, put in LONE:
        row = store.get(put.topic, put.id)
        assert row is not None
        assert (row.seq, row.version, row.due_ms, row.group) == (
            version,
            version,
            put.due_ms,
            put.group,
        )
        assert (row.payload, row.attributes, row.level) == (put.payload, put.attributes, put.level)
    assert not (file.parent / NAME).exists()
    store.close()


def test_versions_go_on_behind_those_of_the_log(file: Path) -> None:
    store = SqliteStore(file)

    assert make(store, Put(1, "new", "shop", NOW, b"")).version > LONE[-1].version
    store.close()


def test_a_log_that_is_found_again_brings_nothing_back(file: Path) -> None:
    log = (file.parent / NAME).read_bytes()
    store = SqliteStore(file)
    make(store, Delete(1, "lone-1", "shop"))
    store.close()
    # As if removing it had not reached the disk.
    (file.parent / NAME).write_bytes(log)

    assert ids(everything(store, 1)) == ["first", "folded", "lönë-3"]
    store.close()


def test_a_log_with_versions_that_nobody_gave_is_refused(file: Path) -> None:
    (file.parent / NAME).write_bytes(log_of([Logged(2**40, LONE[0].put)]))

    with pytest.raises(CorruptedError, match="nobody gave"):
        SqliteStore(file).topics()


def test_storage_check_reads_what_is_in_the_log_and_changes_nothing(file: Path) -> None:
    before = {path.name: path.read_bytes() for path in file.parent.iterdir()}
    report = check_timelines(file)

    assert (report.messages, report.faults) == (5, [])
    assert {path.name: path.read_bytes() for path in file.parent.iterdir()} == before


def test_storage_check_tells_of_a_put_that_is_broken(file: Path) -> None:
    log = file.parent / NAME
    log.write_bytes(log.read_bytes().replace(b"lone-1", b"LONE-1"))
    report = check_timelines(file)

    assert [reason for _, reason in report.faults] == [
        "a put that was logged is not what was written"
    ]


def on_disk(file: Path) -> FaultyDisk:
    """Return a disk with the log of a folder."""
    disk = FaultyDisk()
    disk.put(NAME, (file.parent / NAME).read_bytes())
    return disk


def test_a_crash_while_the_log_is_stored_and_removed_loses_nothing(file: Path) -> None:
    steps = 0
    for crash_at in range(20):
        disk = on_disk(file)
        disk.crash_at(crash_at)
        store = SqliteStore(file, disk=disk)
        try:
            store.topics()
        except Crash:
            steps += 1
        store._disconnect()
        after = SqliteStore(file, disk=disk.reopen("none", seed=crash_at))

        assert ids(everything(after, 1)) == ["first", "folded", "lone-1", "lönë-3"]
        after.close()
    assert steps > 0


def test_a_log_that_cannot_be_read_keeps_everybody_from_the_file_until_it_can(file: Path) -> None:
    disk = on_disk(file)
    disk.fail(Fault(actions={"read"}, prefix=NAME))
    store = SqliteStore(file, disk=disk)

    with pytest.raises((StorageFailedError, OSError)):
        store.topics()
    disk.heal()
    assert isinstance(make(store, Put(1, "new", "shop", NOW, b"")), Changed)
    assert "lone-1" in ids(everything(store, 1))
    store.close()


# The log by itself


def test_puts_are_loaded_from_a_version_on(file: Path) -> None:
    disk = LocalDisk(file.parent)

    assert load_puts(disk, NAME, 0) == [FOLDED, *LONE]
    assert load_puts(disk, NAME, 4) == LONE[2:]
    assert load_puts(disk, "another", 0) == []


def test_tests_write_a_log_as_it_was_written(file: Path) -> None:
    log = (file.parent / NAME).read_bytes()
    _, mark, _ = HEADER.unpack_from(log)

    written = log_of([FOLDED, *LONE], mark)
    assert (log[: len(written)], any(log[len(written) :])) == (written, False)


def test_a_record_that_was_not_written_to_its_end_is_none() -> None:
    log, whole = log_of(LONE), log_of(LONE[:2])
    for size in range(len(whole), len(log) - 1, 7):
        disk = FaultyDisk()
        disk.put(NAME, log[:size].ljust(2 * len(log), b"\0"))
        found = load_puts(disk, NAME, 0)

        assert found in (LONE[:2], LONE)


def test_a_broken_record_is_told_if_the_tables_may_not_have_it() -> None:
    disk = FaultyDisk()
    disk.put(NAME, log_of(LONE))
    # In the second record.
    disk.flip(NAME, len(log_of(LONE[:1])) + 30)

    with pytest.raises(CorruptedError, match="not what was written"):
        load_puts(disk, NAME, 0)
    with pytest.raises(CorruptedError):
        load_puts(disk, NAME, 4)
    assert load_puts(disk, NAME, 5) == []


def test_a_header_that_is_broken_is_told() -> None:
    disk = FaultyDisk()
    disk.put(NAME, log_of(LONE))
    disk.flip(NAME, 9)

    with pytest.raises(CorruptedError, match="not what was written"):
        load_puts(disk, NAME, 0)


def test_a_payload_that_looks_like_a_record_is_none() -> None:
    record = log_of(LONE, b"another.")[HEADER.size :]
    disk = FaultyDisk()
    disk.put(NAME, log_of([Logged(1, Put(1, "a", "shop", NOW, record * 5))]))

    assert [found.put.payload for found in load_puts(disk, NAME, 0)] == [record * 5]
    # Also when the record around it is broken.
    disk.flip(NAME, HEADER.size + 8)
    assert load_puts(disk, NAME, 0) == []


@given(st.binary(max_size=300))
def test_any_bytes_are_a_log_or_are_told(data: bytes) -> None:
    disk = FaultyDisk()
    disk.put(NAME, data)

    try:
        found = load_puts(disk, NAME, 0)
    except CorruptedError:
        return
    assert found == []
