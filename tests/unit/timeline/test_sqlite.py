"""The store in a file of SQLite keeps the contract; and what it does when the file is broken."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.timeline.acts import NOW, Open, apply, everything, make, refused
from tests.unit.timeline.contract import StoreContract

from ister.base.errors import CorruptedError, StorageFailedError, TopicNotFoundError
from ister.timeline import FILE_NAME, Changed, Delete, Lease, Put, Row, SqliteStore, Update, Work
from ister.timeline.sqlite.store import PENDING_DELETES_PER_CALL


class TestSqliteStore(StoreContract):
    """In a file that is opened again and again."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Open:
        return lambda: SqliteStore(tmp_path / FILE_NAME, busy_timeout_s=0.0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / FILE_NAME


@pytest.fixture
def store(file: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(file, busy_timeout_s=0.0)
    store.create_topic("/default/reminders", "timeline", b"")
    yield store
    store.close()


def change(store: SqliteStore, file: Path, *statements: str) -> None:
    """Do something to the file behind the store's back."""
    store.close()
    connection = sqlite3.connect(file)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def rows_in(file: Path) -> int:
    connection = sqlite3.connect(file)
    (count,) = connection.execute("SELECT count(*) FROM messages").fetchone()
    connection.close()
    return int(count)


# The file


def test_nobody_else_reads_the_file(store: SqliteStore, file: Path) -> None:
    make(store, Put(1, "a", "shop", NOW, b"secret"))

    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in file.parent.iterdir()} == {0o600}


def test_a_second_process_does_not_get_the_file(store: SqliteStore, file: Path) -> None:
    make(store, Put(1, "a", "shop", NOW, b""))
    other = SqliteStore(file, busy_timeout_s=0.0)

    with pytest.raises(StorageFailedError, match="locked"):
        other.topics()

    store.close()
    assert len(other.topics()) == 1
    other.close()


def test_a_file_that_vanished_is_not_made_anew(store: SqliteStore, file: Path) -> None:
    file.rename(file.with_name("elsewhere"))

    with pytest.raises(StorageFailedError, match="gone"):
        store.topics()
    with pytest.raises(StorageFailedError, match="gone"):
        store.apply(NOW, [Work([Put(1, "a", "shop", NOW, b"")])])

    file.with_name("elsewhere").rename(file)
    assert len(store.topics()) == 1


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("PRAGMA application_id = 7", "no timelines"),
        ("PRAGMA user_version = 99", "format 99 is not 3"),
        ("DROP TABLE messages", "no such table"),
        ("DELETE FROM head", "last version"),
    ],
)
def test_a_file_that_is_not_ours_is_refused(
    store: SqliteStore, file: Path, statement: str, reason: str
) -> None:
    change(store, file, statement)

    with pytest.raises(CorruptedError, match=reason):
        store.topics()


def test_a_file_of_other_bytes_is_refused_and_not_touched(tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    file.write_bytes(b"no database at all " * 100)

    with pytest.raises(CorruptedError):
        SqliteStore(file).topics()

    assert file.read_bytes() == b"no database at all " * 100


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StorageFailedError):
        SqliteStore(tmp_path / "file" / FILE_NAME).topics()


# What is in it


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE messages SET payload = x'00' WHERE id = 'a'",
        "UPDATE messages SET attributes = x'81' WHERE id = 'a'",
        "UPDATE messages SET crc = crc + 1 WHERE id = 'a'",
    ],
)
def test_a_payload_that_is_not_what_was_written_is_told_and_not_handed_out(
    store: SqliteStore, file: Path, damage: str
) -> None:
    made = make(store, Put(1, "a", "shop", NOW, b"payload"))
    other = make(store, Put(1, "b", "shop", NOW, b"payload"))
    change(store, file, damage)

    with pytest.raises(CorruptedError, match="'a' is not what was written"):
        store.get(1, "a")
    with pytest.raises(CorruptedError):
        everything(store, 1)
    leases = (Lease(1, one.seq, one.version, "c-1", NOW + 10) for one in (made, other))
    assert [type(outcome) for outcome in apply(store, *leases)] == [CorruptedError, Row]
    # Whoever owns it can mend it, or remove it.
    make(store, Update(1, "a", "shop", b"again"))
    row = store.get(1, "a")
    assert isinstance(row, Row)
    assert row.payload == b"again"


def test_a_head_that_is_behind_its_messages_is_refused(store: SqliteStore, file: Path) -> None:
    make(store, Put(1, "a", "shop", NOW, b""))
    change(store, file, "UPDATE head SET version = 0")

    with pytest.raises(CorruptedError, match="last version"):
        store.topics()


def test_changes_are_not_made_when_the_file_takes_them_not(store: SqliteStore, file: Path) -> None:
    make(store, Put(1, "a", "shop", NOW, b"before"))
    trigger = "CREATE TRIGGER full BEFORE INSERT ON messages BEGIN SELECT RAISE(FAIL, 'no'); END"
    change(store, file, trigger)
    work = [Work([Update(1, "a", "shop", b"after")]), Work([Put(1, "b", "shop", NOW, b"")])]

    with pytest.raises(CorruptedError):
        store.apply(NOW, work)

    change(store, file, "DROP TRIGGER full")
    assert [row.payload for row in everything(store, 1)] == [b"before"]
    assert len(store.apply(NOW, work)) == 2
    assert [row.payload for row in everything(store, 1)] == [b"after", b""]


# Topics that are deleted


def test_a_large_topic_is_gone_at_once_and_its_messages_step_by_step(
    store: SqliteStore, file: Path
) -> None:
    other = store.create_topic("/default/other", "timeline", b"").number
    count = PENDING_DELETES_PER_CALL * 2 + 1
    apply(store, *(Put(1, f"m{number}", "shop", NOW, b"") for number in range(count)))
    make(store, Put(other, "a", "shop", NOW, b""))

    store.delete_topic(1)

    assert everything(store, 1) == []
    assert refused(store, Put(1, "a", "shop", NOW, b"")) is TopicNotFoundError
    # That was two calls. What is left is not forgotten when the file is opened again.
    store.close()
    assert rows_in(file) == 2
    outcomes = apply(store, Put(other, "b", "shop", NOW, b""), Delete(other, "a", "shop"))
    assert [type(outcome) for outcome in outcomes] == [Changed, Changed]
    store.close()
    assert rows_in(file) == 1
    again = store.create_topic("/default/reminders", "timeline", b"").number
    assert everything(store, again) == []


# Copies


def test_a_copy_has_everything_that_was_put(store: SqliteStore, tmp_path: Path) -> None:
    make(store, Put(1, "a", "shop", NOW, b"1"))
    make(store, Put(1, "b", "shop", NOW, b"2"))  # In the log of puts alone.
    assert store.back_up(tmp_path / "copy")
    make(store, Put(1, "c", "shop", NOW, b"3"))

    copy = SqliteStore(tmp_path / "copy")
    assert [row.id for row in everything(copy, 1)] == ["a", "b"]
    copy.close()


def test_versions_of_a_copy_go_on_behind_those_that_were_given(
    store: SqliteStore, tmp_path: Path
) -> None:
    make(store, Put(1, "a", "shop", NOW, b"1"))
    store.back_up(tmp_path / "copy")
    copy = SqliteStore(tmp_path / "copy")
    make(copy, Put(1, "b", "shop", NOW, b"2"))

    first, second = everything(copy, 1)
    assert second.version > first.version
    copy.close()


def test_nothing_is_copied_and_nothing_made_without_timelines(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / FILE_NAME)

    assert not store.back_up(tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_a_copy_that_fails_does_no_harm_to_the_store(store: SqliteStore, tmp_path: Path) -> None:
    (tmp_path / "copy").touch()
    with pytest.raises(StorageFailedError):
        store.back_up(tmp_path / "copy")

    make(store, Put(1, "a", "shop", NOW, b"1"))
    assert [row.id for row in everything(store, 1)] == ["a"]
