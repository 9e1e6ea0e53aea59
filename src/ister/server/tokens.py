"""The file of tokens: who may come in, a line each.

    # NAME TOKEN
    billing   vX3p9mQm2T7yLw0c
    reports   sha256:0d2c…

Always true: only digests of tokens are kept; no mistake shows anything of what a line says, for it
may be a token.
"""

import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from ister.base import parse_plain, size_text
from ister.base.errors import BadNameError, ConfigError
from ister.base.limits import MIB, TOKEN_CHARACTERS_MAX

# Shorter ones could be found by trying.
TOKEN_CHARACTERS_MIN = 16
# Some 10,000 tokens: read in 40 ms, while the broker waits, and only when the file was changed.
TOKENS_BYTES_MAX = 1 * MIB

DIGEST_PREFIX = "sha256:"

# What others than the owner may do with a file.
OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

_TOKEN = re.compile(r"[!-~]+")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")

# When a file has another one of these, it has changed.
Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Who may come in: names by the digest of their token."""

    names: dict[bytes, str]
    # Whether the file itself has tokens that could be used by whoever reads it.
    plain: bool = False

    def find(self, token: str) -> str | None:
        """Return whose token it is, or `None`.

        Digests are looked up: how long that takes tells nothing about any token.
        """
        if len(token) > TOKEN_CHARACTERS_MAX:
            return None
        return self.names.get(digest_of(token))


def digest_of(token: str) -> bytes:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode(errors="replace")).digest()


def parse_tokens(text: str, file: str) -> Tokens:
    """Return the tokens in the text of a file, or raise `ConfigError` with every mistake."""
    names: dict[bytes, str] = {}
    mistakes: list[str] = []
    plain = False
    for number, line in enumerate(text.split("\n"), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            name, token = _parse_line(words)
            digest, is_plain = _parse_token(token)
            if digest in names:
                raise ValueError("the token is in the file twice: give everybody their own")
        except ValueError as error:
            mistakes.append(f"{file} line {number}: {error}")
            continue
        names[digest] = name
        plain = plain or is_plain
    if mistakes:
        raise ConfigError(mistakes)
    return Tokens(names, plain)


def load_tokens(path: Path) -> Tokens:
    """Read the file, or raise `ConfigError` with every mistake."""
    data, mode = read_file(path, TOKENS_BYTES_MAX)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Its own words show the bytes.
        raise ConfigError([f"{path}: is no text in UTF-8"]) from None
    tokens = parse_tokens(text, str(path))
    # Windows has no such modes.
    if os.name == "posix":
        _check_mode(path, mode, tokens)
    return tokens


def read_file(path: Path, bytes_max: int) -> tuple[bytes, int]:
    """Return the content of a file and its mode, or raise `ConfigError`."""
    try:
        # A pipe, as the shell makes one of `<(...)`, is opened without waiting for somebody to
        # write to it, and refused: it could be read once only.
        with open(path, "rb", opener=_open_at_once) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigError([f"{path}: is no regular file"])
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror or error}"]) from error
    if len(data) > bytes_max:
        raise ConfigError([f"{path}: is larger than {size_text(bytes_max)}"])
    return data, mode


def find_stamp(path: Path) -> Stamp | None:
    """Return what tells a changed file from the one it was, `None` when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    # The time of a change of its mode too.
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _open_at_once(path: str, flags: int) -> int:
    # Windows has no such flag, and no such pipes.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _parse_line(words: list[str]) -> tuple[str, str]:
    if len(words) != 2:
        raise ValueError("is not `NAME TOKEN`: write two words")
    name, token = words
    try:
        return parse_plain(name, "a name"), token
    except BadNameError as error:
        # Only the reason: who has mixed the two up has written the token first.
        raise ValueError(error.reason) from None


def _parse_token(token: str) -> tuple[bytes, bool]:
    """Return the digest of a token, and whether it was there itself."""
    if token.startswith(DIGEST_PREFIX):
        digits = token.removeprefix(DIGEST_PREFIX)
        if not _DIGEST.fullmatch(digits):
            raise ValueError(f"{DIGEST_PREFIX} is not followed by 64 hexadecimal digits")
        return bytes.fromhex(digits), False
    if not _TOKEN.fullmatch(token):
        raise ValueError("the token has characters that are not printable ASCII")
    if not TOKEN_CHARACTERS_MIN <= len(token) <= TOKEN_CHARACTERS_MAX:
        raise ValueError(
            f"the token has {len(token)} characters, and needs {TOKEN_CHARACTERS_MIN} to "
            f"{TOKEN_CHARACTERS_MAX}: make one with `openssl rand -hex 32`"
        )
    return digest_of(token), True


def _check_mode(path: Path, mode: int, tokens: Tokens) -> None:
    if tokens.plain and mode & OTHERS:
        mistake = (
            f"{path}: others on this machine may read its tokens: run `chmod 600 {path}`, "
            f"or keep their digests in it ({DIGEST_PREFIX}…)"
        )
        raise ConfigError([mistake])
    if mode & _OTHERS_WRITE:
        raise ConfigError([f"{path}: others may write to it: run `chmod go-w {path}`"])
