"""Lines of a file or of stdin as chunks of payloads, read beside the event loop.

Always true: at most `CHUNKS_MAX` chunks wait for the sender; the reading thread waits then.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress

from ister.base.errors import BadRequestError
from ister.base.limits import BATCH_BYTES_CEILING

READ_BYTES = 256 * 1024
CHUNKS_MAX = 8


async def read_lines(fd: int) -> AsyncIterator[list[bytes]]:
    """Yield the lines behind `fd` as they come, without their newlines, many at a time.

    Raises `BadRequestError` for a line that no broker would take.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[list[bytes] | BaseException | None] = asyncio.Queue(CHUNKS_MAX)

    def put(item: list[bytes] | BaseException | None) -> None:
        asyncio.run_coroutine_threadsafe(queue.put(item), loop).result()

    def read() -> None:
        try:
            for chunk in _chunks(fd):
                put(chunk)
            put(None)
        except (RuntimeError, CancelledError):
            return  # The event loop is gone, or about to go: the command has ended.
        except BaseException as error:  # noqa: BLE001 - carried over to the event loop
            with suppress(RuntimeError, CancelledError):
                put(error)

    # A daemon that reads the descriptor itself: a thread that waits for a terminal must not keep
    # the process alive, nor hold the lock of a buffer that the interpreter wants at its exit.
    threading.Thread(target=read, name="read-lines", daemon=True).start()
    while True:
        item = await queue.get()
        if item is None:
            return
        if isinstance(item, BaseException):
            raise item
        yield item


def _chunks(fd: int) -> Iterator[list[bytes]]:
    rest = bytearray()
    while data := os.read(fd, READ_BYTES):
        rest += data
        if b"\n" in data:
            *lines, last = bytes(rest).split(b"\n")
            rest = bytearray(last)
            yield lines
        elif len(rest) > BATCH_BYTES_CEILING:
            raise BadRequestError(f"a line is longer than {BATCH_BYTES_CEILING} B: split it")
    if rest:
        yield [bytes(rest)]
