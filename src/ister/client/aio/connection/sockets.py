"""Opens the transports of a link: TCP, and TLS over it.

Always true of TLS:
- nothing is sent before the broker's certificate was found to be signed by an authority that is
  trusted, for the very host of the url;
- files that were renewed count from the next connection on; while the new ones are no good, those
  of before stay.
"""

import asyncio
import errno
import ssl
from collections.abc import Callable
from os import fspath
from pathlib import Path
from typing import Protocol

from ister.base import TLS_CA_VARIABLE
from ister.base.errors import BadRequestError, IsterError, NotConnectedError
from ister.client.session import Access, Tls, check_token
from ister.telemetry import library_logger

logger = library_logger("ister.client")

Address = tuple[str, int]

# How long a farewell waits for that of the broker: one that is there answers in a round trip.
SHUTDOWN_S = 2.0

# A token is far below. More is the wrong file.
TOKEN_FILE_BYTES_MAX = 4_096

# What OpenSSL calls a certificate whose signer is not known here.
_UNKNOWN_SIGNER = (18, 19, 20, 21)
# What OpenSSL says of an answer that is none of TLS; since 3.2 it is the second.
_NO_TLS = ("wrong version number", "record layer failure")


class HandshakeError(ConnectionError):
    """Something accepted the connection, and TLS failed: there is a broker, most likely."""


class UntrustedError(HandshakeError):
    """The certificate that was shown is not to be trusted."""


class Connector(Protocol):
    """Opens a transport. Sockets by default; tests bring memory."""

    async def __call__(
        self, protocol: Callable[[], asyncio.BaseProtocol], address: Address
    ) -> asyncio.Transport:
        """Connect `protocol` to `address`, or raise `OSError`."""


async def connect_socket(
    protocol: Callable[[], asyncio.BaseProtocol], address: Address
) -> asyncio.Transport:
    """Connect over TCP."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(protocol, *address)
    return transport


def connector_of(access: Access) -> Connector:
    """Return what opens connections for a client."""
    return connect_socket if access.tls is None else TlsConnector(access.tls)


class TlsConnector:
    """Connects over TLS."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._context: ssl.SSLContext | None = None
        # What the files looked like when they were loaded.
        self._stamps: list[tuple[int, int, int] | None] = []

    async def __call__(
        self, protocol: Callable[[], asyncio.BaseProtocol], address: Address
    ) -> asyncio.Transport:
        """Connect, or raise `OSError`; `BadRequestError` for files that are no good."""
        context = self._load()
        try:
            transport, _ = await asyncio.get_running_loop().create_connection(
                protocol, *address, ssl=context, ssl_shutdown_timeout=SHUTDOWN_S
            )
        except ssl.SSLCertVerificationError as error:
            raise UntrustedError(tls_reason(error)) from error
        except ssl.SSLError as error:
            raise HandshakeError(tls_reason(error)) from error
        except ConnectionError as error:
            # Refused by the system it has a number; the end of a handshake has none, or that of a
            # connection which was there.
            if error.errno not in (None, errno.ECONNRESET, errno.EPIPE):
                raise
            raise HandshakeError("closed instead of a TLS handshake: is TLS on there?") from error
        return transport

    def _load(self) -> ssl.SSLContext:
        stamps = [_stamp(path) for path in self._tls.files]
        if self._context is None:
            self._context = context_of(self._tls)
        elif stamps != self._stamps:
            try:
                self._context = context_of(self._tls)
            except BadRequestError as error:
                logger.warning("tls_files_not_renewed", error=str(error))
        self._stamps = stamps
        return self._context


def context_of(tls: Tls) -> ssl.SSLContext:
    """Return the settings of TLS from its files, or raise `BadRequestError` with what is wrong."""
    for path in tls.files:
        _check_readable(path)
    ca = fspath(tls.ca) if tls.ca else None
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        raise BadRequestError(f"tls: {ca} has no certificates in PEM") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Its common name is free text: it is for the hosts among its alternative names, and no other.
    context.hostname_checks_common_name = False
    if tls.cert and tls.key:
        cert, key = fspath(tls.cert), fspath(tls.key)
        try:
            context.load_cert_chain(cert, key, password=_no_password)
        except ssl.SSLError:
            raise BadRequestError(
                f"tls: {cert} and {key} are no certificate and its key in PEM; a key has no "
                "password here"
            ) from None
    return context


def tls_reason(error: ssl.SSLError) -> str:
    """Return why there is no connection, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"its certificate is not to be trusted: {error.verify_message.rstrip('.')}"
        if error.verify_code in _UNKNOWN_SIGNER:
            reason += "; name the authority that signed it with `ca` of `ister.Tls`, or --tls-ca "
            reason += f"({TLS_CA_VARIABLE})"
        return reason
    # Only OpenSSL's own errors have one.
    reason = str(getattr(error, "reason", None) or "broken").lower().replace("_", " ")
    if reason in _NO_TLS:
        return "it does not speak TLS: write ister://, or turn TLS on there"
    if "unknown ca" in reason:
        reason += "; it does not know who signed your certificate: see --tls-client-ca there"
    if "certificate required" in reason or "handshake failure" in reason:
        reason += "; it may want a certificate: `cert` and `key` of `ister.Tls`, or --tls-cert"
    return f"TLS: {reason}"


def reason_of(error: Exception) -> str:
    """Return why a connection failed, for an error that says more."""
    if isinstance(error, NotConnectedError):
        return error.reason
    # Of others than ours and the system's nobody knows what their text has in it.
    said = str(error) if isinstance(error, IsterError | OSError) else ""
    return said or type(error).__name__


def has_answered(error: Exception) -> bool:
    """Whether something accepted the connection that failed."""
    if isinstance(error, NotConnectedError):
        return error.answered
    return isinstance(error, HandshakeError)


def closing_hint(tls: Tls | None) -> str:
    """Return what to look at when a broker closes a connection before it says anything.

    Many servers tell nobody that a handshake has failed.
    """
    if tls is None:
        return "if TLS is on there, write isters://"
    if not tls.cert:
        return "it may want a certificate: `cert` and `key` of `ister.Tls`, or --tls-cert"
    return "it may not know who signed your certificate: see --tls-client-ca there"


def token_file(path: str) -> Callable[[], str]:
    """Return a function that reads a token from a file, whenever it is asked."""

    def read() -> str:
        try:
            with Path(path).open("rb") as file:
                data = file.read(TOKEN_FILE_BYTES_MAX + 1)
            if len(data) > TOKEN_FILE_BYTES_MAX:
                raise BadRequestError("too large")
            token = check_token(data.decode("ascii").strip())
        except OSError as error:
            raise BadRequestError(f"token file {path}: {error.strerror or error}") from None
        except (UnicodeDecodeError, BadRequestError):
            raise BadRequestError(
                f"token file {path}: is to have one token, in printable ASCII without spaces"
            ) from None
        if not token:
            raise BadRequestError(f"token file {path}: is empty: write the token into it")
        return token

    return read


def _check_readable(path: str) -> None:
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise BadRequestError(f"tls: {path}: {error.strerror or error}") from None


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _no_password() -> bytes:
    """Keep OpenSSL from asking on the terminal."""
    return b""
