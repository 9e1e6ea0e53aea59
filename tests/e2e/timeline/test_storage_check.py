"""`ister storage check` on timelines, as a process."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.shell import Shell

from ister.timeline import FILE_NAME, SqliteStore

pytestmark = pytest.mark.e2e


@pytest.fixture
def shell(broker: BrokerProcess) -> Iterator[Shell]:
    """The command line, with a broker that has a timeline."""
    shell = Shell(broker.url)
    shell.run("topics", "create", "/default/later", "--kind", "timeline")
    yield shell
    shell.close()


def test_timelines_are_part_of_the_check(shell: Shell, broker: BrokerProcess) -> None:
    data = broker.folder / "data"
    shell.run("timeline", "put", "/default/later", "a", "--in", "1h", "--id", "a")
    shell.run("timeline", "put", "/default/later", "b", "--in", "1h", "--id", "b")
    in_use = shell.run("storage", "check", str(data), code=73)
    # What was put is in the write-ahead log, and nowhere else.
    broker.kill()
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    report = shell.json("storage", "check", str(data))

    assert b"is in use by process" in in_use.stderr
    assert isinstance(report, dict)
    assert (report["messages"], report["problems"]) == (2, [])
    checked = shell.run("storage", "check", str(data))
    assert b" 2 messages of timelines" in checked.stderr
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("UPDATE messages SET payload = x'00'", "message 'a' is not what was written"),
        ("UPDATE topics SET settings = x'00'", "timeline '/default/later': its settings"),
    ],
)
def test_damaged_timelines_are_found_by_a_check(
    shell: Shell, broker: BrokerProcess, statement: str, reason: str
) -> None:
    data = broker.folder / "data"
    shell.run("timeline", "put", "/default/later", "a", "--in", "1h", "--id", "a")
    broker.stop()
    connection = sqlite3.connect(data / "timelines.db")
    with connection:
        connection.execute(statement)
    connection.close()
    report = shell.json("storage", "check", str(data), code=70)

    assert isinstance(report, dict)
    [problem] = report["problems"]
    assert problem["file"] == "timelines.db"
    assert problem["reason"].startswith(reason)
    assert "restore the file from a copy" in problem["advice"]


def test_a_folder_that_has_timelines_alone_is_checked(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / FILE_NAME)
    store.topics()
    shell = Shell()

    taken = shell.run("storage", "check", str(tmp_path), code=73)
    store.close()
    assert b"timelines.db is in use by a broker" in taken.stderr
    assert b"no problems in 1 file," in shell.run("storage", "check", str(tmp_path)).stderr
    (tmp_path / FILE_NAME).unlink()
    assert b"is not a data folder" in shell.run("storage", "check", str(tmp_path), code=64).stderr
