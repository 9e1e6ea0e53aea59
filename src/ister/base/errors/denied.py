"""Errors 2xxx: fix the rights."""

from dataclasses import dataclass
from typing import ClassVar

from ister.base.errors.tree import DeniedError


@dataclass(eq=False)
class EncryptionKeyError(DeniedError):
    """Stored data is encrypted, and the key for it is missing or wrong."""

    code: ClassVar[int] = 2001
    key: str
    reason: str

    def __str__(self) -> str:
        return (
            f"data is encrypted with key {self.key!r}, and {self.reason}: "
            "start with the key file it was written with (`--key-file`); nothing was changed"
        )


@dataclass(eq=False)
class NotEncryptedError(DeniedError):
    """A broker has keys, and the stored data was written without any."""

    code: ClassVar[int] = 2005
    # What is not encrypted, though everything would be had the data been written with keys.
    file: str

    def __str__(self) -> str:
        return (
            f"{self.file} is not encrypted, although the broker has a key file: if the data was "
            "encrypted before, somebody has replaced it, so restore a copy; if it never was, start "
            "once with `--accept-unencrypted`: what is there stays readable, and new data is "
            "encrypted; nothing was changed"
        )


@dataclass(eq=False)
class UnauthenticatedError(DeniedError):
    """A broker that asks who comes was not told, or not by a token that it knows."""

    code: ClassVar[int] = 2002
    reason: str

    def __str__(self) -> str:
        return f"the broker does not know who you are: {self.reason}"


@dataclass(eq=False)
class ForeignSiteError(DeniedError):
    """An HTTP request has a foreign `Host`, or comes from a page of another web site."""

    code: ClassVar[int] = 2003
    # The header that was checked: `host` or `origin`.
    header: str
    value: str

    def __str__(self) -> str:
        return (
            f"{self.header} {self.value!r} is not allowed: use the IP address or the host name of "
            "the broker, or add the name to `--http-allowed-hosts`"
        )


@dataclass(eq=False)
class ReservedNamespaceError(DeniedError):
    """A client tried to change a topic in a namespace that is reserved for the broker."""

    code: ClassVar[int] = 2004
    topic: str

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} is in a reserved namespace, where clients can only list and "
            "read topics: use another namespace, such as 'default'"
        )
