"""Facts that are verified while nobody has them open."""

import sqlite3
from pathlib import Path

import pytest

from ister.base.errors import StorageFailedError
from ister.metadata import FILE_NAME, Put, SqliteMetadata, check_facts, copied
from ister.metadata.check import FAULTS_MAX


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A folder with 100 facts, closed."""
    metadata = SqliteMetadata(tmp_path)
    await metadata.write(*(Put(f"fact/{number:03}", b"v" * 100) for number in range(100)))
    await metadata.close()
    return tmp_path


def change(folder: Path, statement: str) -> None:
    connection = sqlite3.connect(folder / FILE_NAME)
    with connection:
        connection.execute(statement)
    connection.close()


def test_facts_that_are_intact_are_counted(folder: Path) -> None:
    facts, size_bytes, faults = check_facts(folder)

    assert (facts, faults) == (100, [])
    assert size_bytes == (folder / FILE_NAME).stat().st_size


async def test_what_only_the_write_ahead_log_has_is_looked_at_too(tmp_path: Path) -> None:
    metadata = SqliteMetadata(tmp_path)
    await metadata.write(Put("a", b"1"))
    # Not closed, as after a crash.
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with copied(tmp_path) as copy:
        assert copy is not None
        assert check_facts(copy).facts == 1

    assert not copy.exists()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    await metadata.close()


def test_a_folder_without_facts_has_nothing_to_verify(tmp_path: Path) -> None:
    with copied(tmp_path) as copy:
        assert copy is None


def test_what_cannot_be_copied_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).mkdir()

    with pytest.raises(StorageFailedError, match="cannot be copied"), copied(tmp_path):
        pass


def test_a_changed_fact_is_told_and_the_others_are_counted(folder: Path) -> None:
    change(folder, "UPDATE facts SET value = x'00' WHERE key = 'fact/007'")

    facts, _, faults = check_facts(folder)
    assert facts == 100
    assert faults == [(0, "fact 'fact/007' is not what was written")]


@pytest.mark.parametrize(
    "statement",
    ["DELETE FROM head", "UPDATE head SET revision = 0", "UPDATE head SET revision = 'x'"],
)
def test_a_revision_that_would_be_given_again_is_told(folder: Path, statement: str) -> None:
    change(folder, statement)

    [(_, reason)] = check_facts(folder).faults
    assert "revision" in reason


def test_a_long_list_of_faults_is_cut(folder: Path) -> None:
    change(folder, "UPDATE facts SET crc = crc + 1")

    assert len(check_facts(folder).faults) == FAULTS_MAX


@pytest.mark.parametrize("position", [0, 20, 4_096, 8_192, 20_480])
def test_damage_of_the_file_is_told(folder: Path, position: int) -> None:
    file = folder / FILE_NAME
    with file.open("r+b") as stream:
        stream.seek(position)
        stream.write(b"\xff" * 500)

    assert check_facts(folder).faults


def test_a_file_that_is_not_ours_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"")

    [(_, reason)] = check_facts(tmp_path).faults
    assert "no table of facts" in reason
