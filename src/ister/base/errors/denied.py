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
class UnauthenticatedError(DeniedError):
    """A broker that asks who comes was not told, or not by a token that it knows."""

    code: ClassVar[int] = 2002
    reason: str

    def __str__(self) -> str:
        return f"the broker does not know who you are: {self.reason}"
