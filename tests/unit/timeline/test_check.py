"""Timelines that are verified while nobody has them open."""

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.timeline.acts import NOW

from ister.base.errors import StorageTakenError
from ister.timeline import FILE_NAME, Lease, Put, SqliteStore, Work, check_timelines
from ister.timeline.sqlite.check import FAULTS_MAX

COUNT = 300


def fill(store: SqliteStore) -> None:
    """Make 300 messages, one of them leased, and a topic that is being removed."""
    topic = store.create_topic("/default/reminders", "timeline", b"").number
    gone = store.create_topic("/default/gone", "timeline", b"").number
    puts = [Put(topic, f"m-{n}", "shop", NOW + n, b"payload") for n in range(COUNT - 1)]
    store.apply(NOW, [Work([*puts, Put(gone, "old", "shop", NOW, b"")])])
    [slot] = store.scan(topic, 0, (-1, 0), NOW, 1)
    store.apply(NOW, [Work([Lease(topic, slot.seq, slot.version, "w", NOW + 1_000)])])
    store.delete_topic(gone)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with messages, closed."""
    store = SqliteStore(tmp_path / FILE_NAME, busy_timeout_s=0.0)
    fill(store)
    store.close()
    return tmp_path / FILE_NAME


def change(file: Path, *statements: str) -> None:
    connection = sqlite3.connect(file)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_messages_that_are_intact_are_counted_and_nothing_is_changed(file: Path) -> None:
    before = contents(file.parent)
    told: list[int] = []
    report = check_timelines(file, told.append)

    assert (report.messages, report.faults) == (COUNT, [])
    assert [topic.name for topic in report.topics] == ["/default/reminders"]
    assert 0 < sum(told) <= report.size_bytes == file.stat().st_size
    assert contents(file.parent) == before


def test_what_only_the_write_ahead_log_has_is_looked_at_too(tmp_path: Path) -> None:
    live, copy = tmp_path / "live", tmp_path / "copy"
    store = SqliteStore(live / FILE_NAME, busy_timeout_s=0.0)
    fill(store)
    # As after a crash: the log is there.
    shutil.copytree(live, copy)
    store.close()
    before = contents(copy)
    report = check_timelines(copy / FILE_NAME)

    assert f"{FILE_NAME}-wal" in before
    assert (report.messages, report.faults) == (COUNT, [])
    assert contents(copy) == before


def test_a_file_that_a_broker_has_is_left_alone(file: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ister.timeline import SqliteStore\n"
        "store = SqliteStore(Path(sys.argv[1])); store.topics(); print(flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(StorageTakenError, match="in use by a broker"):
            check_timelines(file)
        other.communicate(b"\n", timeout=30)

    assert check_timelines(file).faults == []


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("UPDATE messages SET payload = x'00' WHERE id = 'm-7'", "is not what was written"),
        ("UPDATE messages SET topic = 9 WHERE id = 'm-7'", "is of topic 9, which is not there"),
        (
            "UPDATE messages SET version = 10000000 WHERE id = 'm-7'",
            "has version 10000000, which nobody",
        ),
        (
            "INSERT INTO leases SELECT seq,1,0,due,1,version,'w',1 FROM messages WHERE id = 'm-7'",
            "stands before the time it is due",
        ),
    ],
)
def test_a_changed_message_is_told_and_the_others_are_counted(
    file: Path, statement: str, fault: str
) -> None:
    change(file, statement)
    report = check_timelines(file)

    [(_, reason)] = report.faults
    assert reason.startswith(f"message 'm-7' {fault}")
    assert report.messages == COUNT


def test_an_index_that_does_not_agree_with_its_table_is_told(file: Path) -> None:
    change(
        file,
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_schema SET sql = replace(sql, 'topic, id', 'id, topic')"
        " WHERE name = 'message_ids'",
    )

    assert any("index message_ids" in reason for _, reason in check_timelines(file).faults)


def test_no_more_faults_are_listed_than_anybody_reads(file: Path) -> None:
    change(file, "UPDATE messages SET payload = x'00'")
    report = check_timelines(file)

    assert len(report.faults) == FAULTS_MAX
    assert report.messages == COUNT


@pytest.mark.parametrize("statement", ["DELETE FROM head", "UPDATE head SET number = 1"])
def test_a_head_that_is_not_what_was_written_is_told(file: Path, statement: str) -> None:
    change(file, statement)

    [(_, reason)] = check_timelines(file).faults
    assert reason == "its head is not what was written"


@pytest.mark.parametrize("content", [b"", b"?" * 4_096])
def test_a_file_that_is_no_database_is_told(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / FILE_NAME
    file.write_bytes(content)
    before = contents(tmp_path)

    assert len(check_timelines(file).faults) == 1
    assert contents(tmp_path) == before


def test_a_page_that_was_overwritten_is_told(file: Path) -> None:
    with file.open("r+b") as damaged:
        damaged.seek(8 * 4_096)
        damaged.write(b"\xff" * 4_096)

    assert check_timelines(file).faults


def test_a_lease_without_its_message_is_told(file: Path) -> None:
    change(file, "UPDATE leases SET due = due + 1")

    [(_, reason)] = check_timelines(file).faults
    assert reason.startswith("a lease is of message number")
