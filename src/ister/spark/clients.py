"""One client for each broker in a process, for all tasks that run there.

Spark's workers are forked and used again: a connection is worth keeping, but a child must not use
that of its parent, whose thread it does not have. Hence the process id in the key.
"""

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ister.base import DEFAULT_URL
from ister.base.errors import NotConnectedError, UnauthenticatedError, UntrustedBrokerError

if TYPE_CHECKING:
    from ister.client import Tls, Token, sync

# How long a call waits for a connection and for its answer. A broker that is started again is
# there sooner; Spark repeats the task otherwise.
TIMEOUT_S = 30.0

# What the client calls by its own arguments and by those of the command line.
_WORDS = {
    "`ca` of `ister.Tls`, or --tls-ca": "option `tlsCa`, of a pipeline `tls_ca`",
    "`cert` and `key` of `ister.Tls`, or --tls-cert": (
        "options `tlsCert` and `tlsKey`, of a pipeline `tls_cert` and `tls_key`"
    ),
}
_TOKEN_WORDS = (
    "give one that the broker knows with option `token` or `tokenFile`, of a pipeline `token`"
)

_lock = threading.Lock()
_clients: "dict[tuple[int, BrokerEndpoint], sync.Client]" = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEndpoint:
    """The address of a broker and the credentials for it. `repr` leaves the token out.

    The files are read where the connection is made: on the driver, and on every executor.
    """

    url: str = DEFAULT_URL
    token: str = field(default="", repr=False)
    token_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    def credentials(self) -> "tuple[Token, Tls | None]":
        """Return the token, and the TLS files if there are any."""
        from ister.client import Tls, token_file

        token = token_file(self.token_file) if self.token_file else self.token
        if not (self.tls_ca or self.tls_cert or self.tls_key):
            return token, None
        return token, Tls(self.tls_ca or None, self.tls_cert or None, self.tls_key or None)


def client_of(broker: BrokerEndpoint) -> "sync.Client":
    """Return this process's client of a broker. It stays open until the process ends.

    Raises `NotConnectedError` when no broker answers, `UnauthenticatedError` when the broker
    refuses the token.
    """
    key = os.getpid(), broker
    with _lock:
        client = _clients.get(key)
        # A client that found something else than a broker at the address does not try again.
        if client is None or client.ended:
            client = _clients[key] = connect(broker)
        return client


def connect(broker: BrokerEndpoint, *, timeout_s: float = TIMEOUT_S) -> "sync.Client":
    """Return a new client of a broker, which the caller closes.

    Raises as `client_of` does.
    """
    from ister.client import sync

    token, tls = broker.credentials()
    try:
        # Spark repeats a task by itself, and an error says more than half a minute of silence.
        return sync.connect(
            broker.url,
            token=token,
            tls=tls,
            name="spark",
            timeout=timeout_s,
            connect_timeout=0,
        )
    except UnauthenticatedError as error:
        raise UnauthenticatedError(f"{error.reason}; {_TOKEN_WORDS}") from None
    except NotConnectedError as error:
        raise NotConnectedError(error.url, _in_options(error.reason), error.answered) from error
    except UntrustedBrokerError as error:
        raise UntrustedBrokerError(error.url, _in_options(error.reason)) from error


def _in_options(reason: str) -> str:
    for said, words in _WORDS.items():
        reason = reason.replace(said, words)
    return reason


def _on_fork() -> None:
    global _lock  # noqa: PLW0603 (a lock that another thread held would stay locked here)
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_on_fork)
