"""The process that a broker has its timelines kept by: it makes calls of a store, one by one.

Beside the broker, and not a thread of it: SQLite lets go of the interpreter's lock and takes it
back for every row, and each time the event loop would have to be waited for.

Run by the broker, with a socket as standard input: each frame is a pickled call, and is answered by
what it returned or raised. It ends when the socket does, that is with its broker, whichever way
that ends. Signals are the broker's to act on.

A killed broker leaves calls in the socket, and a process that may only just have started. No call
is made once the broker is gone: the next broker may have opened the file since.
"""

import gc
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from ister.base.errors import IsterError
from ister.base.limits import TIMELINE_RESERVE_BYTES
from ister.timeline.calls import as_ister_error
from ister.timeline.port import Store
from ister.timeline.remote.frames import WAS_THERE, Frames, encode
from ister.timeline.sqlite import SqliteStore

NICENESS = 5


def serve(connection: socket.socket, store: Store) -> None:
    """Make the calls that come, until the other side is gone."""
    frames = Frames()
    while data := connection.recv(1 << 20):
        for call in frames.add(data):
            exit_without_broker(connection)
            connection.sendall(answer(call, store))


def exit_without_broker(connection: socket.socket) -> None:
    """End this process if the other side of the socket is closed, whatever is left to read."""
    poll = select.poll()
    # No events: a closed socket is reported all the same, bytes to read are not.
    poll.register(connection, 0)
    if poll.poll(0):
        os._exit(0)


def answer(call: Any, store: Store) -> bytes:
    """Return what is told of a call."""
    try:
        return encode(call(store))
    except IsterError as error:
        return encode(error)
    except Exception as error:  # noqa: BLE001 - whoever asked is told; where it was, is not
        traceback.print_exc()
        return encode(as_ister_error(error))


def give_way() -> None:
    """Have the broker go first where processors are few: it serves other topics as well.

    And have it go on when it has given us something to do.
    """
    with suppress(OSError):
        os.nice(NICENESS)
        if sys.platform == "linux":
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def main() -> None:
    """Serve until the broker is gone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Nothing of what was imported is ever garbage.
    gc.freeze()
    give_way()
    connection = socket.socket(fileno=sys.stdin.fileno())
    store = SqliteStore(
        Path(sys.argv[1]),
        was_there=WAS_THERE in sys.argv[2:],
        reserve_bytes=TIMELINE_RESERVE_BYTES,
        on_locked=partial(exit_without_broker, connection),
    )
    with suppress(ConnectionError):
        serve(connection, store)
    # The broker has had the store closed, or it has crashed: then the file is left as it is.
    os._exit(0)


if __name__ == "__main__":
    main()
