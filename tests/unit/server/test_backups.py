"""What a broker keeps for a backup, how long, and what it answers who asks for one."""

import asyncio
import json
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ister.base.errors import BadRequestError, ConfigError, IsterError
from ister.metadata import Put, SqliteMetadata
from ister.objects import SourceFile, back_up
from ister.server.backups import PINNED, REQUEST, SOCKET, Backups, at_address, is_listening
from ister.server.restoring import MARKER, check_restored, restore_folder
from ister.server.storage import Sources
from ister.timeline import FILE_NAME as TIMELINES
from ister.timeline import SqliteStore, do_nothing

WAIT_S = 30.0


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """A data folder with one fact of metadata, whose path no address of a socket has room for."""
    folder = tmp_path / ("long" * 30)
    metadata = SqliteMetadata(folder)
    await metadata.write(Put("a", b"1"))
    await metadata.close()
    return folder


class Store:
    """Timelines whose copy is made when the test says so."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.asked = asyncio.Event()
        self.made = asyncio.Event()

    def run(self, call: Callable[[Any], Any], done: Callable[[Any], object]) -> None:
        self.asked.set()

        async def make() -> None:
            await self.made.wait()
            try:
                found = call(self.store)
            except IsterError as error:
                found = error
            done(found)

        self.task = asyncio.ensure_future(make())


@pytest.fixture
async def backups(folder: Path) -> AsyncIterator[Backups]:
    backups = Backups(folder, lambda: Sources(folder, None, None), now_ms=lambda: 1)
    await backups.open()
    yield backups
    await backups.close()


class Asking:
    """A connection that asks for a backup."""

    def __init__(self, folder: Path) -> None:
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        at_address(folder, self.connection.connect)

    async def answer(self, request: bytes = REQUEST) -> Any:
        self.reader, self.writer = await asyncio.open_unix_connection(sock=self.connection)
        self.writer.write(request)
        line = await asyncio.wait_for(self.reader.readline(), WAIT_S)
        return json.loads(line) if line else None

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def gone(path: Path) -> None:
    async with asyncio.timeout(WAIT_S):
        while path.exists():  # noqa: ASYNC110 - another thread removes it
            await asyncio.sleep(0)


@pytest.mark.usefixtures("backups")
async def test_what_is_pinned_stays_as_long_as_the_connection(folder: Path) -> None:
    asking = Asking(folder)
    answer = await asking.answer()
    pinned = folder / answer["pinned"]

    assert [name for name, _ in answer["files"]] == ["metadata.db"]
    assert answer["folder"] == str(folder)
    with closing(sqlite3.connect(pinned / "metadata.db")) as connection:
        rows = connection.execute("SELECT key, value FROM facts")
        assert rows.fetchall() == [("a", b"1")]
    await asking.close()
    await gone(pinned)


async def test_a_second_backup_is_refused_while_one_is_made(folder: Path) -> None:
    sources = Sources(folder, None, None)
    backups = Backups(folder, lambda: sources, now_ms=lambda: 1, wait_s=0)
    await backups.open()
    first, second = Asking(folder), Asking(folder)
    assert "files" in await first.answer()

    assert (await second.answer())["code"] == 6018
    await first.close()
    await second.close()
    await backups.close()


@pytest.mark.parametrize("turns", range(8))
async def test_a_broker_may_close_at_any_moment_of_the_end_of_a_backup(
    folder: Path, turns: int
) -> None:
    backups = Backups(folder, lambda: Sources(folder, None, None), now_ms=lambda: 1)
    await backups.open()
    asking = Asking(folder)
    pinned = (await asking.answer())["pinned"]
    asking.writer.close()
    # A thread removes what is pinned: the turns count from there.
    await gone(folder / pinned)
    for _ in range(turns):
        await asyncio.sleep(0)

    await backups.close()


@pytest.mark.usefixtures("backups")
async def test_a_backup_waits_for_one_that_is_just_ending(folder: Path) -> None:
    first, second = Asking(folder), Asking(folder)
    await first.answer()
    await first.close()

    assert "files" in await second.answer()
    await second.close()


@pytest.mark.usefixtures("backups")
async def test_who_asks_for_something_else_gets_no_answer(folder: Path) -> None:
    asking = Asking(folder)

    assert await asking.answer(b"delete\n") is None
    await asking.close()


async def test_a_broker_that_cannot_be_backed_up_says_why(folder: Path) -> None:
    def refuse() -> Sources:
        raise BadRequestError("streams are in s3://bucket")

    backups = Backups(folder, refuse, now_ms=lambda: 1)
    await backups.open()
    asking = Asking(folder)
    answer = await asking.answer()

    assert (answer["code"], answer["fields"]) == (1007, {"reason": "streams are in s3://bucket"})
    await asking.close()
    await backups.close()
    assert not (folder / SOCKET).exists()


async def test_a_broker_without_a_data_folder_listens_when_it_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    backups = Backups(folder, lambda: Sources(folder, None, None), now_ms=lambda: 1, look_s=0)
    await backups.open()
    folder.mkdir()
    async with asyncio.timeout(WAIT_S):
        while not is_listening(folder):  # noqa: ASYNC110
            await asyncio.sleep(0)
    asking = Asking(folder)

    assert "nothing to back up" in (await asking.answer())["text"]
    await asking.close()
    await backups.close()


async def test_what_a_killed_broker_has_pinned_goes_with_the_next_start(folder: Path) -> None:
    (folder / PINNED / "1" / "segments").mkdir(parents=True)
    (folder / SOCKET).touch()
    backups = Backups(folder, lambda: Sources(folder, None, None), now_ms=lambda: 1)
    await backups.open()

    assert not (folder / PINNED).exists()
    assert is_listening(folder)
    await backups.close()


async def test_a_broker_does_not_take_the_socket_of_another(folder: Path, backups: Backups) -> None:
    asking = Asking(folder)
    pinned = folder / (await asking.answer())["pinned"]
    other = Backups(folder, lambda: Sources(folder, None, None), now_ms=lambda: 1)
    await other.open()
    await other.close()

    assert pinned.exists()
    assert is_listening(folder)
    await asking.close()


async def test_timelines_are_copied_by_who_has_them(folder: Path) -> None:
    store = Store(SqliteStore(folder / TIMELINES))
    store.store.create_topic("/default/reminders", "timeline", b"")
    backups = Backups(folder, lambda: Sources(folder, None, store), now_ms=lambda: 1)
    await backups.open()
    asking = Asking(folder)
    answering = asyncio.ensure_future(asking.answer())
    await store.asked.wait()
    store.store.create_topic("/default/later", "timeline", b"")
    store.made.set()
    answer = await answering

    copy = SqliteStore(folder / answer["pinned"] / TIMELINES)
    assert [row.name for row in copy.topics()] == ["/default/reminders", "/default/later"]
    copy.close()
    store.store.close()
    await asking.close()
    await backups.close()
    do_nothing(store.store)


# Restoring


def make_backup(tmp_path: Path) -> Path:
    source, place = tmp_path / "source", tmp_path / "backup"
    source.mkdir()
    (source / "timelines.db").write_bytes(b"timelines")
    back_up(source, [SourceFile("timelines.db", 9)], place, folder="/data", made_ms=1)
    return place


def test_a_backup_is_restored_into_a_new_or_an_empty_folder(tmp_path: Path) -> None:
    place = make_backup(tmp_path)
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "new" / "data", tmp_path / "empty"):
        restore_folder(place, folder, on_progress=lambda _, __: None)

        assert (folder / "timelines.db").read_bytes() == b"timelines"
        check_restored(folder)


def test_a_folder_with_something_in_it_is_not_restored_into(tmp_path: Path) -> None:
    place = make_backup(tmp_path)
    with pytest.raises(BadRequestError, match="is not empty"):
        restore_folder(place, tmp_path, on_progress=lambda _, __: None)


def test_a_folder_is_marked_until_it_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "new"

    def on_progress(_name: str, _size: int) -> None:
        with pytest.raises(ConfigError, match="was not finished: remove the folder"):
            check_restored(folder)

    restore_folder(make_backup(tmp_path), folder, on_progress=on_progress)
    assert not (folder / MARKER).exists()


def test_a_restore_that_fails_leaves_an_empty_folder(tmp_path: Path) -> None:
    def fail(_name: str, _size: int) -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        restore_folder(make_backup(tmp_path), tmp_path / "new", on_progress=fail)

    assert list((tmp_path / "new").iterdir()) == []
