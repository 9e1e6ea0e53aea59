"""The files of TLS: the broker's certificate, its key, and the authorities of its clients.

Always true:
- nothing of a key is ever shown; one that asks for a password stops nothing;
- files that were changed count for the connections that come after; while they are no good, or one
  of them is not there yet, those of before stay.
"""

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from ister.base.errors import ConfigError
from ister.base.limits import MIB
from ister.server.tokens import OTHERS, Stamp, find_stamp, read_file

logger = structlog.get_logger("security")

# A certificate is 2 KiB, and all authorities of a system are 250 KiB.
PEM_BYTES_MAX = 4 * MIB


@dataclass(frozen=True, slots=True)
class Pem:
    """The content of the files, for libraries with a TLS of their own."""

    cert: bytes
    key: bytes = field(repr=False)
    client_ca: bytes | None = None


class Certificate:
    """What the doors show, read again when its files have changed."""

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        """Read the files, or raise `ConfigError` with what is wrong with them."""
        self._files = (cert, key, client_ca)
        # Of the files that were read.
        self._stamps = self._find_stamps()
        # What was wrong with the files at the last look, and told.
        self._mistakes: list[str] = []
        self.context, self.pem = load_tls(cert, key, client_ca)

    def look(self) -> None:
        """Read the files again if they have changed. Takes milliseconds, and is rare."""
        stamps = self._find_stamps()
        if stamps == self._stamps:
            self._mistakes = []
            return
        try:
            self.context, self.pem = load_tls(*self._files)
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


def load_tls(cert: Path, key: Path, client_ca: Path | None) -> tuple[ssl.SSLContext, Pem]:
    """Read the files, or raise `ConfigError` with what is wrong with them."""
    mistakes: list[str] = []
    cert_pem, _ = _read("--tls-cert", cert, mistakes)
    key_pem, key_mode = _read("--tls-key", key, mistakes)
    ca_pem = None
    if client_ca is not None:
        ca_pem, _ = _read("--tls-client-ca", client_ca, mistakes)
    if mistakes:
        raise ConfigError(mistakes)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Else a client of TLS 1.2 could have us do the costly part over and over.
    context.options |= ssl.OP_NO_RENEGOTIATION
    _take_certificate(context, cert, key, mistakes)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        # One that is not at the top counts as well: gRPC's own TLS knows it no other way.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(cafile=client_ca)
        except (ssl.SSLError, ValueError):
            mistakes.append(f"--tls-client-ca {client_ca}: has no certificates in PEM")
    if mistakes:
        raise ConfigError(mistakes)
    _warn_if_open_to_others(key, key_mode)
    return context, Pem(cert_pem, key_pem, ca_pem)


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


def _read(flag: str, path: Path, mistakes: list[str]) -> tuple[bytes, int]:
    """Return the content of a file and its mode."""
    try:
        return read_file(path, PEM_BYTES_MAX)
    except ConfigError as error:
        mistakes += [f"{flag} {mistake}" for mistake in error.mistakes]
        return b"", 0
