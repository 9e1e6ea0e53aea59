"""Lone puts are in a log of their own until the tables have them: none is lost, or comes twice."""

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.timeline.acts import NOW, apply, everything, ids, make, refused

from ister.base.errors import (
    CorruptedError,
    MessageExistsError,
    StorageFailedError,
    TopicNotFoundError,
)
from ister.objects import LocalDisk
from ister.testing import Crash, Fault, FaultyDisk
from ister.timeline import (
    FILE_NAME,
    Changed,
    Delete,
    Lease,
    Move,
    Put,
    SqliteStore,
    Work,
    check_timelines,
)
from ister.timeline.put_log import (
    FOLD_BYTES,
    FOLD_COUNT,
    HEADER,
    LOG_BYTES,
    SUFFIX,
    Logged,
    PutLog,
    load_puts,
)

NAME = f"{FILE_NAME}{SUFFIX}"


def put_of(number: int, payload: bytes = b"payload") -> Put:
    return Put(1, f"m-{number}", "shop", NOW + number, payload)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / FILE_NAME


@pytest.fixture
def store(file: Path) -> Iterator[SqliteStore]:
    """A store with a topic, and versions in reserve, as one has after its first commit."""
    store = SqliteStore(file, busy_timeout_s=0.0)
    store.create_topic("/default/reminders", "timeline", b"")
    make(store, Put(1, "first", "shop", NOW, b""))
    yield store
    store.close()


def crashed(file: Path) -> Path:
    """Return a copy of a file with all that belongs to it, as a crash would leave it now."""
    folder = file.parent.with_name(f"{file.parent.name}-crashed")
    shutil.copytree(file.parent, folder)
    return folder / file.name


def rows_in_log(file: Path) -> list[str]:
    return [found.put.id for found in load_puts(LocalDisk(file.parent), NAME, 0)]


# In the store


def test_a_lone_put_is_in_the_log_and_is_found_at_once(store: SqliteStore, file: Path) -> None:
    made = make(store, put_of(1))

    assert rows_in_log(file) == ["m-1"]
    row = store.get(1, "m-1")
    assert row is not None
    assert (row.seq, row.version, row.due_ms) == (made.seq, made.version, NOW + 1)


@pytest.mark.parametrize(
    "look",
    [
        lambda store: ids(store.page(1, 0, 2 * NOW, (-1, 0), 10)),
        lambda store: [slot.seq for slot in store.scan(1, 0, (-1, 0), 2 * NOW, 10)],
        lambda store: range(store.count(1, 0, 2 * NOW)),
    ],
)
def test_whoever_looks_sees_what_was_logged(
    store: SqliteStore, look: Callable[[SqliteStore], Any]
) -> None:
    make(store, put_of(1))
    make(store, put_of(2))

    assert len(look(store)) == 3


def test_an_id_that_is_taken_is_refused_whether_it_is_in_the_log_or_in_the_tables(
    store: SqliteStore,
) -> None:
    make(store, put_of(1))

    assert refused(store, put_of(1)) is MessageExistsError
    assert refused(store, Put(1, "first", "shop", NOW, b"")) is MessageExistsError


def test_what_was_logged_can_be_changed_moved_leased_and_deleted(store: SqliteStore) -> None:
    first, second, third = (make(store, put_of(number)) for number in (1, 2, 3))

    make(store, Delete(1, "m-1", "shop", first.version))
    make(store, Move(1, "m-2", "shop", NOW + 77, second.version))
    [leased] = apply(store, Lease(1, third.seq, third.version, "w", NOW + 99))

    assert [(row.id, row.position_ms) for row in everything(store, 1)] == [
        ("first", NOW),
        ("m-2", NOW + 77),
        ("m-3", NOW + 99),
    ]
    assert not isinstance(leased, Exception)


def test_a_topic_is_deleted_with_what_was_logged_of_it(store: SqliteStore, file: Path) -> None:
    other = store.create_topic("/default/other", "timeline", b"").number
    make(store, put_of(1))
    store.delete_topic(1)
    for number in range(3):
        # Each takes some of the topic that is gone with it.
        apply(store, *(put_of(n)._replace(topic=other) for n in (number, number + 10)))

    assert refused(store, put_of(2)) is TopicNotFoundError
    store.close()
    report = check_timelines(file)
    assert (report.messages, report.faults) == (6, [])


def test_puts_of_any_number_and_size_are_there_after_a_crash(
    store: SqliteStore, file: Path
) -> None:
    # Over the count and over the bytes that the tables take at once, and larger than a log.
    sizes = [10] * (2 * FOLD_COUNT + 1) + [FOLD_BYTES // 3] * 20 + [LOG_BYTES + 1]
    for number, size in enumerate(sizes):
        make(store, put_of(number, bytes(size)))
    copy = SqliteStore(crashed(file))

    found = {row.id: len(row.payload) for row in everything(copy, 1)}
    copy.close()
    assert found == {"first": 0} | {f"m-{n}": size for n, size in enumerate(sizes)}


def test_what_a_crash_left_in_the_log_is_taken_once_and_versions_go_on(
    store: SqliteStore, file: Path
) -> None:
    made = [make(store, put_of(number)) for number in range(3)]
    copy = crashed(file)
    after = SqliteStore(copy)
    make(after, Delete(1, "m-1", "shop"))
    again = SqliteStore(crashed(copy))
    newer = make(again, put_of(7))

    assert ids(everything(again, 1)) == ["first", "m-0", "m-2", "m-7"]
    assert newer.version > made[-1].version
    for one in (after, again):
        one.close()


def test_a_log_that_is_found_again_brings_nothing_back(store: SqliteStore, file: Path) -> None:
    make(store, put_of(1))
    log = (file.parent / NAME).read_bytes()
    make(store, Delete(1, "m-1", "shop"))
    store.close()
    # As if removing it had not reached the disk.
    (file.parent / NAME).write_bytes(log)

    assert ids(everything(store, 1)) == ["first"]


def test_a_store_that_was_closed_leaves_no_log(store: SqliteStore, file: Path) -> None:
    make(store, put_of(1))
    store.close()

    assert [path.name for path in file.parent.iterdir()] == [FILE_NAME]
    assert ids(everything(store, 1)) == ["first", "m-1"]


def test_nobody_else_reads_the_log(store: SqliteStore, file: Path) -> None:
    make(store, put_of(1))

    assert (file.parent / NAME).stat().st_mode & 0o777 == 0o600


def test_a_log_with_versions_that_nobody_gave_is_refused(store: SqliteStore, file: Path) -> None:
    store.close()
    log = PutLog(LocalDisk(file.parent), NAME)
    log.add(2**40, put_of(1))
    log.close()

    with pytest.raises(CorruptedError, match="nobody gave"):
        store.topics()


def test_storage_check_reads_what_is_in_the_log(store: SqliteStore, file: Path) -> None:
    make(store, put_of(1))
    copy = crashed(file)
    before = {path.name: path.read_bytes() for path in copy.parent.iterdir()}
    report = check_timelines(copy)

    assert (report.messages, report.faults) == (2, [])
    assert {path.name: path.read_bytes() for path in copy.parent.iterdir()} == before


def test_storage_check_tells_of_a_put_that_is_broken(store: SqliteStore, file: Path) -> None:
    for number in range(3):
        make(store, put_of(number))
    copy = crashed(file)
    damage(copy, "m-1")
    report = check_timelines(copy)

    assert [reason for _, reason in report.faults] == [
        "a put that was logged is not what was written"
    ]


def damage(file: Path, name: str) -> None:
    """Change a letter of what was logged."""
    log = file.parent / NAME
    log.write_bytes(log.read_bytes().replace(name.encode(), name.upper().encode()))


# When the disk fails


def test_a_put_that_could_not_be_synced_is_told_so_and_those_before_it_are_there(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    store = SqliteStore(tmp_path / FILE_NAME, disk=disk)
    store.create_topic("/default/reminders", "timeline", b"")
    make(store, put_of(1))
    make(store, put_of(2))
    disk.fail(Fault(actions={"sync"}, prefix=NAME))

    with pytest.raises(StorageFailedError):
        store.apply(NOW, [Work([put_of(3)])])

    disk.heal()
    assert {"m-1", "m-2"} <= set(ids(everything(store, 1)))
    store.close()


def test_a_crash_at_any_moment_loses_nothing_that_was_told(tmp_path: Path) -> None:
    """The file of SQLite is as the crash left it; of the log only what was synced, or parts."""
    steps = 0
    for keep in ("none", "torn", "all"):
        for crash_at in range(4, 60):
            folder = tmp_path / f"{keep}-{crash_at}"
            disk = FaultyDisk()
            store = SqliteStore(folder / FILE_NAME, disk=disk)
            store.create_topic("/default/reminders", "timeline", b"")
            disk.crash_at(crash_at)
            told = put_until_crash(store)
            steps += disk.crashed
            store._disconnect()
            after = SqliteStore(folder / FILE_NAME, disk=disk.reopen(keep, seed=crash_at))

            found = set(ids(everything(after, 1)))
            assert told <= found
            assert len(found - told) <= 1
            after.close()
    assert steps > 100


def test_the_log_is_not_replaced_before_the_commit_that_has_its_puts_is_on_the_disk(
    store: SqliteStore, file: Path
) -> None:
    make(store, put_of(1))
    synced = wal_of(file).read_bytes()
    # Killed in the midst of a commit that takes the put into the tables, before its sync: another
    # process finds it, as the machine goes on.
    apply(store, put_of(2), put_of(3))
    copy = crashed(file)
    after = SqliteStore(copy)
    assert ids(everything(after, 1)) == ["first", "m-1", "m-2", "m-3"]
    # The power fails: what is gone of the write-ahead log is what nobody has synced.
    last = crashed(copy)
    if wal_of(last).read_bytes().startswith(synced):
        wal_of(last).write_bytes(synced)
    cut = SqliteStore(last)

    assert "m-1" in ids(everything(cut, 1))
    for one in (after, cut):
        one.close()


def wal_of(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


def test_without_room_for_a_log_everything_works_and_there_is_one_when_there_is_room(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    store = SqliteStore(tmp_path / FILE_NAME, disk=disk)
    store.create_topic("/default/reminders", "timeline", b"")
    make(store, put_of(0))
    disk.fail(Fault(actions={"create"}, prefix=NAME, lasting=True))
    for _ in range(2 * LOG_BYTES // FOLD_BYTES):  # Until another one should take its place.
        make(store, put_of(1, bytes(FOLD_BYTES // 2)))
        make(store, Delete(1, "m-1", "shop"))
    with pytest.raises(FileNotFoundError):
        disk.open(NAME)
    make(store, put_of(2))
    disk.heal()
    make(store, put_of(3))
    make(store, put_of(4))

    assert [found.put.id for found in load_puts(disk, NAME, 0)] == ["m-4"]
    assert ids(everything(store, 1)) == ["m-0", "m-2", "m-3", "m-4"]
    store.close()


def test_a_store_that_is_opened_without_room_for_a_log_takes_puts(tmp_path: Path) -> None:
    disk = FaultyDisk()
    disk.fail(Fault(actions={"create"}, prefix=NAME, lasting=True))
    store = SqliteStore(tmp_path / FILE_NAME, disk=disk)
    store.create_topic("/default/reminders", "timeline", b"")
    make(store, put_of(1))

    assert ids(everything(store, 1)) == ["m-1"]
    store.close()


def test_a_log_that_cannot_be_let_go_of_keeps_nobody_from_the_file(
    store: SqliteStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(store, put_of(1))
    made = make(store, put_of(2))

    def fail(_: PutLog) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(PutLog, "remove", fail)
        with pytest.raises(StorageFailedError):
            store.close()
    other = SqliteStore(file, busy_timeout_s=0.0)
    newer = make(other, put_of(3))
    other.close()

    assert newer.version > made.version
    assert ids(everything(store, 1)) == ["first", "m-1", "m-2", "m-3"]


def put_until_crash(store: SqliteStore) -> set[str]:
    """Put messages one by one, and some together; return those that were told to be there."""
    told: set[str] = set()
    try:
        for number in range(40):
            make(store, put_of(number))
            told.add(f"m-{number}")
            if number % 7 == 6:
                assert len(everything(store, 1)) == len(told)
    except (Crash, StorageFailedError):
        pass
    return told


# The log by itself


def logged(count: int, disk: FaultyDisk) -> list[Logged]:
    log = PutLog(disk, NAME)
    puts = [Logged(version, put_of(version)) for version in range(1, count + 1)]
    for version, put in puts:
        assert log.add(version, put)
    log.close()
    return puts


def test_what_was_added_is_loaded_from_a_version_on() -> None:
    disk = FaultyDisk()
    puts = logged(5, disk)

    assert load_puts(disk, NAME, 0) == puts
    assert load_puts(disk, NAME, 3) == puts[3:]
    assert load_puts(disk, "another", 0) == []


def test_a_log_takes_no_more_than_the_tables_take_at_once() -> None:
    disk = FaultyDisk()
    log = PutLog(disk, NAME)
    for version in range(1, FOLD_COUNT + 1):
        assert log.add(version, put_of(version))
    more = log.add(FOLD_COUNT + 1, put_of(0))
    log.on_folded()
    large = log.add(FOLD_COUNT + 1, put_of(0, bytes(FOLD_BYTES)))
    again = log.add(FOLD_COUNT + 1, put_of(0))

    assert (more, large, again) == (False, False, True)
    assert len(load_puts(disk, NAME, 0)) == FOLD_COUNT + 1


def test_a_new_log_replaces_the_one_that_is_there() -> None:
    disk = FaultyDisk()
    logged(5, disk)
    log = PutLog(disk, NAME)

    assert load_puts(disk, NAME, 0) == []
    log.remove()


@pytest.mark.parametrize("keep", ["none", "torn", "all"])
def test_a_record_that_was_not_synced_is_there_whole_or_not_at_all(keep: Any) -> None:
    for seed in range(50):
        disk = FaultyDisk()
        log = PutLog(disk, NAME)
        log.add(1, put_of(1))
        disk.crash_at(len(disk.operations))
        with pytest.raises(Crash):
            log.add(2, put_of(2, bytes(2_000)))

        found = load_puts(disk.reopen(keep, seed=seed), NAME, 0)
        assert found in (
            [Logged(1, put_of(1))],
            [Logged(1, put_of(1)), Logged(2, put_of(2, bytes(2_000)))],
        )


def test_a_broken_record_is_told_if_the_tables_may_not_have_it() -> None:
    disk = FaultyDisk()
    puts = logged(3, disk)
    # Somewhere in the second record.
    disk.flip(NAME, HEADER.size + 100)

    with pytest.raises(CorruptedError, match="not what was written"):
        load_puts(disk, NAME, 0)
    with pytest.raises(CorruptedError):
        load_puts(disk, NAME, 2)
    assert load_puts(disk, NAME, 3) == []
    assert puts


def test_a_header_that_is_broken_is_told() -> None:
    disk = FaultyDisk()
    logged(1, disk)
    disk.flip(NAME, 9)

    with pytest.raises(CorruptedError, match="not what was written"):
        load_puts(disk, NAME, 0)


def test_a_payload_that_looks_like_a_record_is_none() -> None:
    other = FaultyDisk()
    logged(1, other)
    record = other.open(NAME).read(HEADER.size, 200)
    disk = FaultyDisk()
    log = PutLog(disk, NAME)
    log.add(1, put_of(1, record * 5))
    log.close()

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


# Against a model

steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 8)),
        st.tuples(st.just("put_many"), st.integers(0, 8)),
        st.tuples(st.just("delete"), st.integers(0, 8)),
        st.tuples(st.just("crash"), st.just(0)),
        st.tuples(st.just("close"), st.just(0)),
    ),
    max_size=30,
)


@given(steps)
def test_puts_deletes_and_crashes_in_any_order_leave_what_was_told(
    taken: list[tuple[str, int]],
) -> None:
    with TemporaryDirectory() as folder:
        store = SqliteStore(Path(folder) / FILE_NAME)
        store.create_topic("/default/reminders", "timeline", b"")
        there: dict[str, int] = {}
        for step, number in taken:
            if step == "crash":
                store._disconnect()
            elif step == "close":
                store.close()
            elif step == "delete":
                (outcome,) = apply(store, Delete(1, f"m-{number}", "shop"))
                assert isinstance(outcome, Changed) == (f"m-{number}" in there)
                there.pop(f"m-{number}", None)
            else:
                numbers = range(number, number + (3 if step == "put_many" else 1))
                outcomes = apply(store, *map(put_of, numbers))
                for put, outcome in zip(map(put_of, numbers), outcomes, strict=True):
                    assert isinstance(outcome, Changed) == (put.id not in there)
                    if isinstance(outcome, Changed):
                        there[put.id] = outcome.version

        assert {row.id: row.version for row in everything(store, 1)} == there
        store.close()
