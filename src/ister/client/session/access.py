"""Who comes, and how the way to the broker is kept: url, token and TLS, checked together. Pure.

Always true of an `Access`:
- there is TLS if and only if the url begins with `isters://`;
- a token goes over TLS, or does not leave this machine;
- nothing of a token is in its `repr`, or in an error.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from os import PathLike, fspath

from ister.base import is_loopback
from ister.base.errors import BadRequestError
from ister.base.limits import TOKEN_CHARACTERS_MAX
from ister.client.session.url import TLS_SCHEME, parse_url

# Text, or a function that is asked for it on each connect.
Token = str | Callable[[], str]


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM for connections to `isters://`.

    `ca` has the authorities that may have signed the broker's certificate, by default those of
    the system. `cert` and `key` are the client's own, for a broker that asks for them.
    """

    ca: str | PathLike[str] | None = None
    cert: str | PathLike[str] | None = None
    key: str | PathLike[str] | None = None

    def __post_init__(self) -> None:
        for name, path in (("ca", self.ca), ("cert", self.cert), ("key", self.key)):
            if path is not None and not isinstance(path, str | PathLike):
                raise BadRequestError(f"`{name}` of `Tls` is a path, not {type(path).__name__}")
            if path is not None and not fspath(path):
                # Else one that was meant to be there would not be missed.
                raise BadRequestError(f"`{name}` of `Tls` is empty: name a file, or leave it out")
        if bool(self.cert) != bool(self.key):
            raise BadRequestError("`cert` and `key` of `Tls` belong together: give both, or none")

    @property
    def files(self) -> list[str]:
        """The paths that were given."""
        return [fspath(path) for path in (self.ca, self.cert, self.key) if path]


@dataclass(frozen=True, slots=True)
class Access:
    """Where a client connects to, and with which token and certificates."""

    url: str
    addresses: list[tuple[str, int]]
    # `None` without TLS.
    tls: Tls | None = None
    token: Token = field(default="", repr=False)

    def shown(self, addresses: list[tuple[str, int]] | None = None) -> str:
        """Return the url of some of the addresses, by default of all."""
        scheme = "ister" if self.tls is None else TLS_SCHEME
        places = self.addresses if addresses is None else addresses
        return f"{scheme}://" + ",".join(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in places
        )


def access_of(url: str, token: Token | None = None, tls: Tls | None = None) -> Access:
    """Return what to connect with, or raise `BadRequestError` for what would be no protection."""
    scheme, addresses = parse_url(url)
    if tls is not None and not isinstance(tls, Tls):
        raise BadRequestError(f"tls is an `ister.Tls`, not {type(tls).__name__}")
    if not callable(token):
        token = check_token("" if token is None else token)
    if scheme == TLS_SCHEME:
        return Access(url, addresses, tls or Tls(), token)
    if tls is not None:
        raise BadRequestError(
            f"url {url!r} is without TLS, so `tls` would do nothing: write isters://, or leave it "
            "out"
        )
    if token and not all(is_loopback(host) for host, _ in addresses):
        raise BadRequestError(
            f"url {url!r} is without TLS, so anybody on the way could read the token: write "
            "isters://, for which the broker needs a certificate (`ister serve --tls-cert`)"
        )
    return Access(url, addresses, None, token)


def check_token(token: object) -> str:
    """Return a token that can be sent, or raise `BadRequestError` without showing it."""
    if not isinstance(token, str):
        raise BadRequestError(f"a token is text, not {type(token).__name__}")
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise BadRequestError(f"a token has at most {TOKEN_CHARACTERS_MAX} characters")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise BadRequestError("a token is printable ASCII without spaces or line breaks")
    return token
