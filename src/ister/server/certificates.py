"""The files of TLS: the broker's certificate, its key, and the authorities of its clients.

Always true:
- nothing of a key is ever shown; one that asks for a password stops nothing;
- files that were changed count for the connections that come after; while they are no good, or one
  of them is not there yet, those of before stay.
"""

import os
import ssl
from pathlib import Path

import structlog

from ister.base.errors import ConfigError
from ister.base.limits import MIB
from ister.server.tokens import OTHERS, Stamp, find_stamp, read_file

logger = structlog.get_logger("security")

# A certificate is 2 KiB, and all authorities of a system are 250 KiB.
PEM_BYTES_MAX = 4 * MIB


class Certificate:
    """What the doors show, read again when its files have changed."""

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        """Read the files, or raise `ConfigError` with what is wrong with them."""
        self._files = (cert, key, client_ca)
        # Of the files that were read.
        self._stamps = self._find_stamps()
        # What was wrong with the files at the last look, and told.
        self._mistakes: list[str] = []
        self.context, self.http2_context = load_tls(cert, key, client_ca)

    def look(self) -> None:
        """Read the files again if they have changed. Takes milliseconds, and is rare."""
        stamps = self._find_stamps()
        if stamps == self._stamps:
            self._mistakes = []
            return
        try:
            self.context, self.http2_context = load_tls(*self._files)
        except (ConfigError, OSError) as error:
            # Tried again at the next look: of two files that are replaced, one is the first.
            mistakes = error.mistakes if isinstance(error, ConfigError) else [str(error)]
            if mistakes != self._mistakes:
                self._mistakes = mistakes
                logger.warning("certificate_not_read", mistakes=mistakes, kept="the former one")
            return
        self._stamps, self._mistakes = stamps, []
        logger.info("certificate_read", file=str(self._files[0]))

    def _find_stamps(self) -> list[Stamp | None]:
        return [find_stamp(path) for path in self._files if path is not None]


def load_tls(
    cert: Path, key: Path, client_ca: Path | None
) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return what connections are secured by, and the same for doors that speak HTTP/2 only.

    Raises `ConfigError` with what is wrong with the files.
    """
    mistakes: list[str] = []
    _check_file("--tls-cert", cert, mistakes)
    key_mode = _check_file("--tls-key", key, mistakes)
    if client_ca is not None:
        _check_file("--tls-client-ca", client_ca, mistakes)
    contexts = [] if mistakes else [_make_context(cert, key, client_ca, mistakes) for _ in "12"]
    if mistakes:
        # Each once: the contexts are made of the same files.
        raise ConfigError(list(dict.fromkeys(mistakes)))
    context, http2_context = contexts
    # Clients of gRPC end a connection on which the server does not choose it.
    http2_context.set_alpn_protocols(["h2"])
    _warn_if_open_to_others(key, key_mode)
    return context, http2_context


def _make_context(
    cert: Path, key: Path, client_ca: Path | None, mistakes: list[str]
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Else a client of TLS 1.2 could have us do the costly part over and over.
    context.options |= ssl.OP_NO_RENEGOTIATION
    _take_certificate(context, cert, key, mistakes)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        # One that is not at the top counts as well.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(cafile=client_ca)
        except (ssl.SSLError, ValueError):
            mistakes.append(f"--tls-client-ca {client_ca}: has no certificates in PEM")
    return context


def _take_certificate(context: ssl.SSLContext, cert: Path, key: Path, mistakes: list[str]) -> None:
    def on_password() -> str:
        # Asked for one, OpenSSL would else stop the start and ask the terminal.
        raise _EncryptedKeyError

    try:
        context.load_cert_chain(cert, key, password=on_password)
    except _EncryptedKeyError:
        mistakes.append(
            f"--tls-key {key}: has a password: write one without it, by "
            f"`openssl pkey -in {key} -out FILE`, that only the broker may read"
        )
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            mistakes.append(f"--tls-key {key}: is not the key of --tls-cert {cert}")
        else:
            mistakes.append(
                f"--tls-cert {cert}, --tls-key {key}: are not a certificate and its key in PEM "
                f"({error.reason or 'unreadable'})"
            )


def _warn_if_open_to_others(key: Path, mode: int) -> None:
    # Windows has no such modes.
    if os.name == "posix" and mode & OTHERS:
        # Not refused: a container's secrets are often mounted this way, for one user to see.
        shown, hint = f"{mode & 0o777:o}", f"chmod 600 {key}"
        logger.warning("tls_key_open_to_others", path=str(key), mode=shown, hint=hint)


class _EncryptedKeyError(Exception):
    """A key asks for its password."""


def _check_file(flag: str, path: Path, mistakes: list[str]) -> int:
    """Return the mode of a file that can be read."""
    try:
        _, mode = read_file(path, PEM_BYTES_MAX)
    except ConfigError as error:
        mistakes += [f"{flag} {mistake}" for mistake in error.mistakes]
        return 0
    return mode
