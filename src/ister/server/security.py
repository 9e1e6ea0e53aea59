"""Who may come in, and by which connections: TLS and tokens, for every door alike.

Always true:
- with a certificate, no door speaks anything but TLS 1.2 or newer;
- with a file of tokens, nobody is answered before they have shown one of them; whoever came with a
  token that is in the file no more has their connection ended at the next look;
- nothing of a token is ever shown or logged;
- a file of tokens that was changed to one with mistakes, or is gone, changes nothing: the former
  ones stay. One without tokens lets nobody in.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from ister.base.errors import ConfigError, UnauthenticatedError
from ister.config import SecurityConfig
from ister.server.certificates import Certificate
from ister.server.tokens import Stamp, Tokens, digest_of, find_stamp, load_tokens
from ister.telemetry import Occasional

# How often the files of tokens and TLS may be looked at.
LOOK_MS = 1_000

NO_TOKEN = "no token was given: this broker asks for one"
UNKNOWN_TOKEN = "unknown token"
TOKEN_GONE = "the token was taken back"
# For doors where it is a header, or metadata.
BEARER_HINT = "send `authorization: Bearer TOKEN`"


@dataclass(frozen=True, slots=True)
class Pass:
    """Who was let in, and by which token. Both are empty where nobody is asked."""

    name: str = ""
    digest: bytes = field(default=b"", repr=False)


class Authenticator:
    """What the doors ask. Without arguments it lets everybody in, without TLS."""

    def __init__(
        self,
        *,
        certificate: Certificate | None = None,
        tokens: Path | None = None,
        now_ms: Callable[[], int] = lambda: 0,
        logger: structlog.typing.BindableLogger | None = None,
    ) -> None:
        """Read the file of tokens, which has some. Raises `ConfigError`.

        `now_ms` is a clock that only rises.
        """
        self.certificate = certificate
        self._file = tokens
        self._now_ms = now_ms
        self._logger: Any = logger or structlog.get_logger("security")
        # Of the file that the tokens are from.
        self._stamp: Stamp | None = None
        # Of a file that was read and has mistakes: it needs no second look.
        self._faulty: Stamp | None = None
        # Whether the file was without tokens at the last look.
        self._empty = False
        # What was wrong with the file at the last look, and told.
        self._mistakes: list[str] = []
        self._looked_ms = now_ms()
        self._tokens = Tokens({})
        self._told = Occasional(now_ms)
        if tokens is not None:
            self._stamp = find_stamp(tokens)
            self._tokens = load_tokens(tokens)
            if not self._tokens.names:
                mistake = (
                    f"{tokens}: has no tokens, so nobody could come in: add `NAME TOKEN` lines"
                )
                raise ConfigError([mistake])

    @property
    def tls(self) -> ssl.SSLContext | None:
        """What the next connection is to be secured by, `None` without TLS."""
        return None if self.certificate is None else self.certificate.context

    @property
    def asks(self) -> bool:
        """Whether a token is needed to come in."""
        return self._file is not None

    def check(self, token: str, *, door: str = "", address: str = "") -> Pass:
        """Return who comes, to be kept for as long as they stay: see `admits`.

        Raises `UnauthenticatedError`, and logs where it came from, though not for each of many.
        """
        shown = self.find(token)
        if shown is not None:
            return shown
        reason = UNKNOWN_TOKEN if token else NO_TOKEN
        if times := self._told.times():
            self._logger.warning(
                "client_refused", door=door, address=address, error=reason, times=times
            )
        raise UnauthenticatedError(reason)

    def find(self, token: str) -> Pass | None:
        """Return who has this token, or `None`. Where nobody is asked, any will do."""
        if self._file is None:
            return Pass()
        self.look()
        name = self._tokens.find(token)
        return None if name is None else Pass(name, digest_of(token))

    def admits(self, shown: Pass) -> bool:
        """Whether who was let in may stay: their token is still among those known."""
        return self._file is None or shown.digest in self._tokens.names

    def look(self) -> None:
        """Read files again that have changed, at most once in `LOOK_MS`.

        They are small, on a disk of this machine: that takes less than sending them to a thread.
        """
        now_ms = self._now_ms()
        if now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        if self.certificate is not None:
            self.certificate.look()
        if self._file is not None:
            self._look_at_tokens(self._file)

    def _look_at_tokens(self, file: Path) -> None:
        stamp = find_stamp(file)
        if stamp == self._stamp:
            self._mistakes, self._empty = [], False
            return
        if stamp is not None and stamp == self._faulty:
            return
        try:
            tokens = load_tokens(file)
        except ConfigError as error:
            # What could not be read is tried again at the next look: what was in the way may be
            # gone then, though the file is the same, and who was taken out of it is to stay out.
            self._faulty = None if isinstance(error.__cause__, OSError) else stamp
            if error.mistakes != self._mistakes:
                self._mistakes = error.mistakes
                self._logger.warning(
                    "tokens_not_read", mistakes=error.mistakes, kept="the former ones"
                )
            return
        if not tokens.names and not self._empty:
            # Somebody may be writing it just now, and nobody is to be refused for that. It counts
            # when it still has none at the next look.
            self._empty = True
            return
        self._tokens, self._empty = tokens, False
        self._stamp, self._mistakes = stamp, []
        self._logger.info("tokens_read", file=str(file), tokens=len(self._tokens.names))


def open_authenticator(config: SecurityConfig, now_ms: Callable[[], int]) -> Authenticator:
    """Read every file that `config` names, or raise `ConfigError` with what is wrong with them."""
    mistakes: list[str] = []
    certificate = None
    if config.tls_cert is not None and config.tls_key is not None:
        try:
            certificate = Certificate(config.tls_cert, config.tls_key, config.tls_client_ca)
        except ConfigError as error:
            mistakes += error.mistakes
    try:
        authenticator = Authenticator(certificate=certificate, tokens=config.tokens, now_ms=now_ms)
    except ConfigError as error:
        mistakes += [f"--tokens {mistake}" for mistake in error.mistakes]
    if mistakes:
        raise ConfigError(mistakes)
    return authenticator


def bearer(header: str) -> str:
    """Return the token in an `authorization` header, empty when there is none."""
    scheme, _, token = header.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
