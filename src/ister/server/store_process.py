"""Timelines in SQLite, kept by a process beside the broker: see `timeline.remote`.

Always true:
- it is started by the first call, and again by the first one after it has ended;
- each call is told of once, in the order they were made: what came of it, or `StorageFailedError`
  when the process ended before that was known.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeVar

import structlog

from ister.base.errors import StorageFailedError
from ister.timeline import PROCESS_MODULE, WAS_THERE, Call, Frames, as_ister_error, encode

logger = structlog.get_logger("timelines")

READ_BYTES = 1 << 20
# Copying the write-ahead log into the file takes some milliseconds; a disk that hangs takes longer.
CLOSE_S = 30.0

END_S = 1.0

T = TypeVar("T")


class StoreProcess:
    """Makes calls in a process beside the broker: a `StoreWorker`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        # One that is gone later is not made anew.
        self._was_there = file.exists()
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._frames = Frames()
        self._unsent: deque[memoryview] = deque()
        self._waiting: deque[Callable[[Any], object]] = deque()

    def run(self, call: Call[T], done: Callable[[T | Exception], object]) -> None:
        """See `StoreWorker`."""
        try:
            data = encode(call)
            connection = self._socket or self._start()
        except OSError as error:
            reason = f"the process for timelines does not start: {error.strerror}"
            self._loop.call_soon(done, StorageFailedError(reason))
            return
        except Exception as error:  # A bug costs one call, not the order of all others.
            logger.exception("internal_error")
            self._loop.call_soon(done, as_ister_error(error))
            return
        self._waiting.append(done)
        self._send(connection, data)

    async def close(self) -> None:
        """Have it close the file and end."""
        process, connection = self._process, self._socket
        if process is None or connection is None:
            return
        closed: asyncio.Future[object] = self._loop.create_future()
        self.run(methodcaller("close"), closed.set_result)
        # Whatever was acknowledged is on the disk; the rest was promised to nobody.
        reason: object = f"no answer in {CLOSE_S:g} s"
        with suppress(TimeoutError):
            reason = await asyncio.wait_for(closed, CLOSE_S)
        if reason is not None:
            logger.warning("timelines_not_closed", reason=str(reason))
        if self._socket is connection:
            self._leave(connection)
            end(process)

    # Inner workings

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        known = [WAS_THERE] if self._was_there else []
        try:
            with theirs:
                self._process = subprocess.Popen(
                    # Not what lies in the working folder, but what this process has imported.
                    [sys.executable, "-P", "-m", PROCESS_MODULE, str(self._file), *known],
                    stdin=theirs.fileno(),
                    # Ctrl-C is for the broker.
                    process_group=0,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                )
        except OSError:
            ours.close()
            raise
        ours.setblocking(False)
        self._socket, self._frames = ours, Frames()
        self._loop.add_reader(ours.fileno(), self._on_readable, ours)
        return ours

    def _send(self, connection: socket.socket, data: bytes) -> None:
        self._unsent.append(memoryview(data))
        if len(self._unsent) == 1:
            self._send_some(connection)
            if self._unsent:
                self._loop.add_writer(connection.fileno(), self._on_writable, connection)

    def _on_writable(self, connection: socket.socket) -> None:
        self._send_some(connection)
        if not self._unsent:
            self._loop.remove_writer(connection.fileno())

    def _send_some(self, connection: socket.socket) -> None:
        unsent = self._unsent
        try:
            while unsent:
                sent = connection.send(unsent[0])
                unsent[0] = unsent[0][sent:]
                if not unsent[0]:
                    unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            # It has ended. The other side of the socket tells, and who waits is told.
            unsent.clear()

    def _on_readable(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._on_ended(connection)
            return
        try:
            answers = self._frames.add(data)
        except Exception:  # What it says makes no sense: another one may.
            logger.exception("internal_error")
            self._on_ended(connection)
            return
        self._was_there = True
        for told in answers:
            self._tell(told)

    def _on_ended(self, connection: socket.socket) -> None:
        process = self._process
        assert process is not None
        self._leave(connection)
        code = end(process)
        logger.error("timelines_process_ended", code=code)
        waiting, self._waiting = self._waiting, deque()
        for done in waiting:
            self._loop.call_soon(done, StorageFailedError(f"their process ended with {code}"))

    def _leave(self, connection: socket.socket) -> None:
        self._loop.remove_reader(connection.fileno())
        self._loop.remove_writer(connection.fileno())
        connection.close()
        self._unsent.clear()
        self._socket = self._process = None

    def _tell(self, told: object) -> None:
        """Tell the next one: who fails on it must not keep it from the others."""
        try:
            self._waiting.popleft()(told)
        except Exception:  # A bug costs one answer, not all that follow.
            logger.exception("internal_error")


def end(process: "subprocess.Popen[bytes]") -> int | None:
    """End a process that has closed its socket, or is to; return its exit code if it has one."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        # One that waits for a disk that hangs does not end, and nobody should wait for it.
        return process.wait(END_S)
    return None
