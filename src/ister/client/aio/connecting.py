"""`ister.connect`."""

from ister.base import Clock
from ister.base.errors import BadRequestError
from ister.client.aio.client import Client
from ister.client.aio.connection.environment import (
    tls_from_environment,
    token_from_environment,
    url_from_environment,
)
from ister.client.aio.connection.sockets import Connector, connector_of
from ister.client.session import Tls, Token, access_of

# A round trip of a lone message between processes that are awake takes 54 µs, with a quick disk
# on the way 300 µs.
BUSY_POLL_S = 0.001


def connect(
    url: str | None = None,
    *,
    token: Token | None = None,
    tls: Tls | None = None,
    name: str = "",
    timeout: float = 30.0,
    connect_timeout: float | None = None,
    busy_poll: float = BUSY_POLL_S,
    clock: Clock | None = None,
    connector: Connector | None = None,
) -> Client:
    """Return a client of the broker at `url` (`ister://host:port`, several joined by commas).

    Use it with `async with`, or `await` it and call `close()`. The client reconnects by itself;
    `timeout` bounds, in seconds, how long calls wait for a connection and for their answers. It
    also bounds the first connection, so that a broker may start after its clients;
    `connect_timeout` sets another bound, and 0 tries each address once.
    While the answer to a lone message is due, the client polls for it up to `busy_poll` seconds
    before it sleeps, which halves the round trip; 0 turns that off.

    With `isters://` the connection is TLS; `tls` names an authority of your own, and the
    certificate of the client. `token` says who comes to a broker that asks: text, or a function
    that returns it, asked on each connect, in a thread.

    Without a `url` the client obeys the variables of the command line: ISTER_URL, ISTER_TOKEN or
    ISTER_TOKEN_FILE, ISTER_TLS_CA, ISTER_TLS_CLIENT_CERT and ISTER_TLS_CLIENT_KEY. Arguments come
    before variables. With a `url` the environment is not read: a token is for one broker.

    >>> async with ister.connect(url) as client:
    ...     await client.create_topic("/default/orders")
    """
    if url is None:
        url = url_from_environment()
        token = token_from_environment() if token is None else token
        tls = tls_from_environment(url) if tls is None else tls
    access = access_of(url, token, tls)
    if connector is not None and access.tls is not None:
        raise BadRequestError("a `connector` of your own is for ister://: it has no TLS")
    return Client(
        access,
        name=name,
        timeout=timeout,
        connect_timeout=connect_timeout,
        busy_poll=busy_poll,
        clock=clock,
        connector=connector or connector_of(access),
    )
