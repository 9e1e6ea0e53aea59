"""Backups of a running broker: it pins its files, `ister storage backup` copies them.

The broker listens on a socket of the data folder, which only who may read that folder reaches. A
request is a line; the answer is a line with the names of files below `backup/` in the data folder.
They stay there until the other side closes the connection, or ends.

What is pinned is the state of one moment:
- first, everything acknowledged so far is committed, also what is acknowledged from memory;
- timelines are copied by who has them, between two calls. When their copy is finished, in the same
  turn of the event loop, it is decided which files the journal consists of and where its open file
  ends. So the journal has every delayed message that the copied timelines have handed over, and
  none whose lease the copy does not know;
- files of the journal get a second name each (a hard link), before anything is swept;
- the metadata is copied last: no message is older than the schema it was checked with.

Always true: one backup is made at a time; nothing that is pinned outlives its connection, or the
next start of the broker.
"""

import asyncio
import json
import os
import secrets
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import structlog

from ister import database
from ister.base import rounded_size
from ister.base.errors import (
    BackupFailedError,
    BackupRunningError,
    BadRequestError,
    InternalError,
    IsterError,
    StorageFailedError,
)
from ister.base.limits import MIB
from ister.broker import Storage, Write
from ister.log import FilePart
from ister.metadata import FILE_NAME as METADATA
from ister.server.storage import Sources, in_thread
from ister.timeline import FILE_NAME as TIMELINES

SOCKET = "backup.socket"
PINNED = "backup"
FOLDER_MODE = 0o700
REQUEST = b"backup 1\n"
# How often to look whether the data folder was made, when there was none at the start.
LOOK_S = 1.0
# How long a connection may take to say what it wants.
REQUEST_S = 10.0
# How long a backup waits for the one before it, which may just be ending.
WAIT_S = 2.0
ANSWER_BYTES = 4096
# What copies of timelines and metadata leave free on the disk of the data folder.
ROOM_BYTES = 64 * MIB
# What fits into the address of a socket, on every system.
ADDRESS_BYTES_MAX = 100
# A copy of metadata waits so long for a write that is under way.
BUSY_TIMEOUT_S = 15.0

logger = structlog.get_logger("backups")


class Backups:
    """Pins the files of one moment for `ister storage backup`.

    `sources` returns what there is to pin, or raises.
    """

    def __init__(
        self,
        folder: Path,
        sources: Callable[[], Sources],
        *,
        now_ms: Callable[[], int],
        look_s: float = LOOK_S,
        wait_s: float = WAIT_S,
    ) -> None:
        self._folder = folder.absolute()
        self._sources = sources
        self._now_ms = now_ms
        self._look_s = look_s
        self._wait_s = wait_s
        self._server: asyncio.Server | None = None
        self._opening: asyncio.Task[None] | None = None
        # Held by the one backup that is being made.
        self._lock = asyncio.Lock()
        self._running: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def open(self) -> None:
        """Listen, or do so as soon as there is a data folder."""
        if self._folder.is_dir():
            await self._listen()
        else:
            self._opening = asyncio.ensure_future(self._open())

    async def close(self) -> None:
        """Take no more requests, and let go of what is pinned."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._server is None:
            return
        self._server.close()
        running = dict(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for writer in running.values():
            # Without waiting: a task that was cancelled while it waited has cancelled that for all.
            writer.close()
        await in_thread(lambda: (self._folder / SOCKET).unlink(missing_ok=True))

    async def _open(self) -> None:
        while not self._folder.is_dir():  # noqa: ASYNC110 - another process may make it
            await asyncio.sleep(self._look_s)
        await self._listen()

    async def _listen(self) -> None:
        try:
            listening = listen(self._folder)
            await in_thread(lambda: shutil.rmtree(self._folder / PINNED, ignore_errors=True))
            self._server = await asyncio.start_unix_server(self._on_connected, sock=listening)
        except OSError as error:
            hint = "`ister storage backup` does not work with this data folder"
            logger.warning("backups_not_possible", reason=str(error), hint=hint)

    def _on_connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._running[task] = writer
        task.add_done_callback(self._running.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, TimeoutError, ValueError):
                async with asyncio.timeout(REQUEST_S):
                    line = await reader.readline()
                if line == REQUEST:
                    await self._back_up(reader, writer)
        finally:
            await end(writer)

    async def _back_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._wait_s):
                await self._lock.acquire()
        except TimeoutError:
            writer.write(encode(_failure(BackupRunningError(str(self._folder)))))
            return
        pinned = self._folder / PINNED / secrets.token_hex(8)
        try:
            writer.write(encode(await self._pin(pinned)))
            await writer.drain()
            # Until the other side has copied everything, or is gone.
            while await reader.read(ANSWER_BYTES):
                pass
        finally:
            await in_thread(lambda: shutil.rmtree(pinned, ignore_errors=True))
            self._lock.release()

    async def _pin(self, pinned: Path) -> dict[str, Any]:
        made_ms = self._now_ms()
        try:
            sources = self._sources()
            files = await pin(sources, pinned)
        except IsterError as error:
            return _failure(error)
        except Exception as error:
            logger.exception("internal_error")
            return _failure(InternalError(type(error).__name__))
        logger.info("backup_pinned", files=len(files))
        return {
            "folder": str(self._folder),
            "pinned": f"{PINNED}/{pinned.name}",
            "made_ms": made_ms,
            "files": files,
            "notes": sources.notes,
        }


def encode(answer: dict[str, Any]) -> bytes:
    """Return an answer as a line."""
    return json.dumps(answer).encode() + b"\n"


async def end(writer: asyncio.StreamWriter) -> None:
    """Close a connection, which may be closed already."""
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def listen(folder: Path) -> socket.socket:
    """Return a socket that listens in a folder, or raise `OSError`."""
    path = folder / SOCKET
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if is_listening(folder):
            raise OSError(f"another broker listens on {path}")
        path.unlink(missing_ok=True)
        at_address(folder, listening.bind)
        path.chmod(0o600)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening


def is_listening(folder: Path) -> bool:
    """Return whether a broker listens in a folder."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            at_address(folder, probe.connect)
        except OSError:
            return False
        return True


def at_address(folder: Path, call: Callable[[str], object]) -> None:
    """Call with the address of the socket in a folder, however long the path of that is."""
    path = str(folder.absolute() / SOCKET)
    if len(os.fsencode(path)) <= ADDRESS_BYTES_MAX:
        call(path)
        return
    # The address of a socket is short. Linux has a short name of every open folder.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        call(f"/proc/self/fd/{descriptor}/{SOCKET}")
    finally:
        os.close(descriptor)


def ask_for_backup(folder: Path) -> socket.socket:
    """Ask the broker of a data folder for a backup; return the connection, or raise `OSError`.

    It answers with a line. What that names stays until the connection is closed.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        at_address(folder, connection.connect)
        connection.sendall(REQUEST)
    except BaseException:
        connection.close()
        raise
    return connection


async def pin(sources: Sources, pinned: Path) -> list[tuple[str, int]]:
    """Have the files of one moment in the folder `pinned`; return their names and sizes.

    Raises `StorageFailedError`, `BackupFailedError`, or `BadRequestError` for what no backup can
    be made of.
    """
    folder, storage, timelines, _ = sources
    if storage is not None:
        await _commit(storage)
    await in_thread(lambda: _prepare(folder, pinned))
    linked: asyncio.Future[list[FilePart]] = asyncio.get_running_loop().create_future()

    def on_copied(error: object) -> None:
        # What is decided here is of the very moment at which the timelines were copied.
        if linked.done():
            return
        files: list[FilePart] = []
        if not isinstance(error, Exception) and storage is not None:
            try:
                storage.committer.check()
                files = storage.log.files()
            except IsterError as failed:
                error = failed

        def on_linked(error: object) -> None:
            if linked.done():
                return
            if isinstance(error, Exception):
                linked.set_exception(error)
            else:
                linked.set_result(files)

        if isinstance(error, Exception) or storage is None:
            on_linked(error)
        else:
            # In the thread that removes files, so before any removal that is not decided on yet.
            storage.workers.housekeeping.run(partial(_link, folder, pinned, files), on_linked)

    if timelines is None:
        on_copied(None)
    else:
        timelines.run(methodcaller("back_up", pinned / TIMELINES), on_copied)
    files = await linked
    await in_thread(lambda: _copy_metadata(folder, pinned))
    return await in_thread(lambda: _sizes(pinned, files))


def _failure(error: IsterError) -> dict[str, Any]:
    return {"code": error.code, "fields": error.fields(), "text": str(error)}


async def _commit(storage: Storage) -> None:
    """Return when everything that was acknowledged is in the journal."""
    committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_done(error: IsterError | None) -> None:
        if not committed.done():
            committed.set_exception(error) if error else committed.set_result(None)

    storage.commit(Write(), on_done)
    await committed


def _prepare(folder: Path, pinned: Path) -> None:
    """Make the folder of what is pinned, if there is room for what is copied to it."""
    needed = sum(
        path.stat().st_size
        for name in (TIMELINES, f"{TIMELINES}-wal", METADATA, f"{METADATA}-wal")
        if (path := folder / name).exists()
    )
    found = os.statvfs(folder)
    if found.f_bavail * found.f_frsize < needed + ROOM_BYTES:
        reason = f"{rounded_size(needed + ROOM_BYTES)} have to be free for copies of timelines"
        raise BackupFailedError(str(folder), reason)
    try:
        pinned.mkdir(FOLDER_MODE, parents=True)
    except OSError as error:
        raise StorageFailedError(f"{pinned}: {error.strerror}") from error


def _link(folder: Path, pinned: Path, files: list[FilePart]) -> None:
    try:
        for name, _ in files:
            path = pinned / name
            path.parent.mkdir(FOLDER_MODE, exist_ok=True)
            os.link(folder / name, path)
    except OSError as error:
        raise StorageFailedError(f"{error.filename}: {error.strerror}") from error


def _copy_metadata(folder: Path, pinned: Path) -> None:
    file = folder / METADATA
    if not file.exists():
        return
    with database.translated(file):
        connection = database.connect(file, timeout_s=BUSY_TIMEOUT_S)
        try:
            database.copy_to(connection, pinned / METADATA)
        finally:
            connection.close()


def _sizes(pinned: Path, files: list[FilePart]) -> list[tuple[str, int]]:
    """Return what is pinned, with how much of each file is to be copied."""
    known = dict(files)
    for name in (TIMELINES, METADATA):
        if (pinned / name).exists():
            known[name] = -1
    if not known:
        raise BadRequestError("the broker has stored nothing yet: there is nothing to back up")
    return [
        (name, size if size >= 0 else (pinned / name).stat().st_size)
        for name, size in sorted(known.items())
    ]
