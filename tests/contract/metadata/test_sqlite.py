"""What a file of facts does beside what every store does: when it is made, missing, or broken."""

import asyncio
import resource
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ister.base.errors import CorruptedError, IsterError, LimitReachedError, StorageFailedError
from ister.base.limits import METADATA_CALLS_MAX
from ister.metadata import FILE_NAME, Fact, Put, SqliteMetadata


@pytest.fixture
async def metadata(tmp_path: Path) -> AsyncIterator[SqliteMetadata]:
    metadata = SqliteMetadata(tmp_path / "data", busy_timeout_s=0.05)
    yield metadata
    await metadata.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "data" / FILE_NAME


def change(file: Path, *statements: str) -> None:
    """Do something to the file behind our back."""
    connection = sqlite3.connect(file)
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


async def closed_with(file: Path, *facts: Put) -> bytes:
    """Make a file with facts, close it, and return its bytes."""
    metadata = SqliteMetadata(file.parent)
    await metadata.write(*facts)
    await metadata.close()
    return file.read_bytes()


# When it is made.


async def test_reading_makes_no_file(metadata: SqliteMetadata, tmp_path: Path) -> None:
    assert await metadata.get("a") is None
    assert await metadata.list("") == []
    await metadata.close()

    assert list(tmp_path.iterdir()) == []


async def test_the_first_write_makes_a_file_for_the_owner_only(
    metadata: SqliteMetadata, file: Path
) -> None:
    await metadata.write(Put("a", b"secret"))

    assert file.parent.stat().st_mode & 0o777 == 0o700
    for one in file.parent.iterdir():
        assert one.stat().st_mode & 0o777 == 0o600, one


async def test_reading_sees_a_file_that_another_made_meanwhile(
    metadata: SqliteMetadata, file: Path
) -> None:
    assert await metadata.get("a") is None
    await closed_with(file, Put("a", b"1"))

    assert await metadata.get("a") == Fact("a", b"1", 1)


async def test_everything_is_in_one_file_after_a_close(file: Path) -> None:
    await closed_with(file, Put("a", b"1"))

    assert [one.name for one in file.parent.iterdir()] == [FILE_NAME]


async def test_two_processes_that_make_it_at_once_share_it(file: Path) -> None:
    stores = [SqliteMetadata(file.parent) for _ in range(4)]
    await asyncio.gather(*(store.write(Put(f"{n}", b"")) for n, store in enumerate(stores)))

    for store in stores:
        assert [fact.key for fact in await store.list("")] == ["0", "1", "2", "3"]
        await store.close()


# What is not ours, or not any more.


async def assert_refused(metadata: SqliteMetadata, file: Path, words: str) -> None:
    """Check that nothing is read and nothing changed."""
    before = file.read_bytes()
    for call in (metadata.get("a"), metadata.list(""), metadata.write(Put("a", b"new"))):
        with pytest.raises(CorruptedError, match=words) as caught:
            await call
        assert caught.value.file == str(file)
    await metadata.close()
    assert file.read_bytes() == before


async def test_a_newer_format_is_refused(metadata: SqliteMetadata, file: Path) -> None:
    await closed_with(file, Put("a", b"1"))
    change(file, "PRAGMA user_version = 2")

    await assert_refused(metadata, file, "format 2 is not 1: use the ister that wrote it")


async def test_a_database_of_another_program_is_refused(
    metadata: SqliteMetadata, file: Path
) -> None:
    file.parent.mkdir()
    change(file, "CREATE TABLE facts (key TEXT, value BLOB)")

    await assert_refused(metadata, file, "it is no table of facts")


async def test_an_empty_file_is_refused(metadata: SqliteMetadata, file: Path) -> None:
    file.parent.mkdir()
    file.touch()

    await assert_refused(metadata, file, "it is no table of facts")


async def test_a_file_that_is_no_database_is_refused(metadata: SqliteMetadata, file: Path) -> None:
    file.parent.mkdir()
    file.write_bytes(b"once upon a time " * 1_000)

    await assert_refused(metadata, file, "file is not a database")


async def test_a_damaged_page_is_told(metadata: SqliteMetadata, file: Path) -> None:
    content = await closed_with(file, *(Put(f"{n:04}", bytes(100)) for n in range(100)))
    page_bytes = int.from_bytes(content[16:18], "big")
    # All but the first page, where the tables are described.
    file.write_bytes(content[:page_bytes] + b"\xa5" * (len(content) - page_bytes))

    await assert_refused(metadata, file, "malformed")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE facts SET value = x'32'",
        "UPDATE facts SET value = 'text'",
        "UPDATE facts SET value = 7",
        "UPDATE facts SET key = 'b' WHERE key = 'a'",
        "UPDATE facts SET key = CAST(x'6180' AS TEXT)",
        "UPDATE facts SET revision = 2",
        "UPDATE facts SET crc = 'none'",
    ],
)
async def test_a_changed_row_is_told(metadata: SqliteMetadata, file: Path, damage: str) -> None:
    await closed_with(file, Put("a", b"1"))
    change(file, damage)

    with pytest.raises(CorruptedError, match=r"is not what was written|decode"):
        await metadata.list("")


@pytest.mark.parametrize("damage", ["DELETE FROM head", "UPDATE head SET revision = 'x'"])
async def test_nothing_is_written_without_a_revision(
    metadata: SqliteMetadata, file: Path, damage: str
) -> None:
    await closed_with(file, Put("a", b"1"))
    change(file, damage)

    with pytest.raises(CorruptedError, match="the revision of the table is missing"):
        await metadata.write(Put("b", b"2"))
    assert await metadata.get("b") is None


async def test_a_missing_table_is_told(metadata: SqliteMetadata, file: Path) -> None:
    await closed_with(file, Put("a", b"1"))
    change(file, "DROP TABLE facts")

    await assert_refused(metadata, file, "no such table")


# When the storage does not answer.


async def test_a_writer_that_does_not_let_go_is_told_and_nothing_is_written(
    metadata: SqliteMetadata, file: Path
) -> None:
    await metadata.write(Put("a", b"1"))
    rival = sqlite3.connect(file, isolation_level=None)
    rival.execute("BEGIN IMMEDIATE")

    with pytest.raises(StorageFailedError, match="database is locked"):
        await metadata.write(Put("a", b"2"))
    assert await metadata.get("a") == Fact("a", b"1", 1)
    rival.execute("ROLLBACK")
    rival.close()
    assert await metadata.write(Put("a", b"2")) == 2


async def test_a_folder_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    metadata = SqliteMetadata(tmp_path / "file" / "data")

    with pytest.raises(StorageFailedError, match=str(tmp_path)):
        await metadata.write(Put("a", b""))
    await metadata.close()


async def test_a_file_that_is_a_folder_is_told(metadata: SqliteMetadata, file: Path) -> None:
    file.mkdir(parents=True)

    with pytest.raises(StorageFailedError, match="unable to open"):
        await metadata.get("a")
    with pytest.raises(StorageFailedError, match="unable to open"):
        await metadata.write(Put("a", b""))


async def test_a_file_that_is_gone_is_told_until_it_is_back(
    metadata: SqliteMetadata, file: Path
) -> None:
    await closed_with(file, Put("a", b"1"))
    assert await metadata.get("a") == Fact("a", b"1", 1)
    file.rename(file.with_name("away"))

    with pytest.raises(StorageFailedError, match="is gone: put it back"):
        await metadata.write(Put("b", b"2"))
    with pytest.raises(StorageFailedError, match="is gone: put it back"):
        await metadata.get("a")
    file.with_name("away").rename(file)
    await metadata.write(Put("b", b"2"))
    assert [fact.key for fact in await metadata.list("")] == ["a", "b"]


async def until_full(folder: Path) -> list[str]:
    """Write until the disk takes no more, then make room and go on; return what happened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    metadata = SqliteMetadata(folder)
    await metadata.write(Put("first", bytes(1_000)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))
    events = []
    for number in range(100):
        try:
            await metadata.write(Put("half", b""), Put(f"{number:03}", bytes(10_000)))
        except IsterError as error:
            events.append(type(error).__name__)
            break
    kept = [fact.key for fact in await metadata.list("")]
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert kept == [*(f"{n:03}" for n in range(number)), "first", "half"]
    await metadata.write(Put("last", b""))
    assert [fact.key for fact in await metadata.list("")] == [*kept[:-1], "half", "last"]
    await metadata.close()
    return events


async def test_a_full_disk_is_told_and_writes_go_on_when_there_is_room(tmp_path: Path) -> None:
    # In a process of its own: the limit holds for every file of it.
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tests.contract.metadata.test_sqlite", str(tmp_path)],
        cwd=Path(__file__).resolve().parents[3],
        capture_output=True,
        check=False,
        timeout=30,
    )

    assert (done.returncode, done.stdout.decode()) == (0, "StorageFailedError\n"), done.stderr


# Calls.


async def test_a_write_whose_caller_gave_up_is_done_all_the_same(
    metadata: SqliteMetadata,
) -> None:
    writing = asyncio.create_task(metadata.write(Put("a", b"1")))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])

    assert writing.cancelled()
    assert await metadata.get("a") == Fact("a", b"1", 1)


async def test_calls_that_wait_have_a_limit(metadata: SqliteMetadata) -> None:
    calls = [asyncio.create_task(metadata.get("a")) for _ in range(METADATA_CALLS_MAX + 1)]
    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert answers[:-1] == [None] * METADATA_CALLS_MAX
    assert isinstance(answers[-1], LimitReachedError)
    assert await metadata.get("a") is None


async def test_a_close_waits_for_what_is_under_way(metadata: SqliteMetadata, file: Path) -> None:
    writing = [asyncio.create_task(metadata.write(Put(f"{n}", b""))) for n in range(5)]
    await asyncio.sleep(0)
    await metadata.close()

    assert [task.done() for task in writing] == [True] * 5
    again = SqliteMetadata(file.parent)
    assert len(await again.list("")) == 5
    await again.close()


if __name__ == "__main__":
    print(*asyncio.run(until_full(Path(sys.argv[1]))))
