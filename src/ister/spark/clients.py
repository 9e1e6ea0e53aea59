"""One client for each broker in a process, for all tasks that run there.

Spark's workers are forked and used again: a connection is worth keeping, but a child must not use
that of its parent, whose thread it does not have. Hence the process id in the key.
"""

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ister.client import sync

# How long a call waits for a connection and for its answer. A broker that is started again is
# there sooner; Spark repeats the task otherwise.
TIMEOUT_S = 30.0

_lock = threading.Lock()
_clients: "dict[tuple[int, str], sync.Client]" = {}


def client_of(url: str) -> "sync.Client":
    """Return the client of this process for the broker at `url`; nobody closes it.

    Raises `NotConnectedError` when there is no broker.
    """
    from ister.client import sync

    key = os.getpid(), url
    with _lock:
        client = _clients.get(key)
        # One that has met something else than a broker at that address does not try again.
        if client is None or client.ended:
            client = _clients[key] = sync.connect(url, name="spark", timeout=TIMEOUT_S)
        return client


def _on_fork() -> None:
    global _lock  # noqa: PLW0603 (a lock that another thread held would stay locked here)
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_on_fork)
