"""Errors 7xxx: call us."""

from dataclasses import dataclass
from typing import ClassVar

from ister.base.errors.tree import BrokenError


@dataclass(eq=False)
class InternalError(BrokenError):
    """A bug in the broker. Details are in its log."""

    code: ClassVar[int] = 7001
    detail: str

    def __str__(self) -> str:
        return f"internal error ({self.detail}): see the broker's log and report it"


@dataclass(eq=False)
class CorruptedError(BrokenError):
    """Stored bytes are not what was written."""

    code: ClassVar[int] = 7002
    file: str
    position: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.file} is corrupt at byte {self.position} ({self.reason}): nothing was changed; "
            "run `ister storage check`, then restore the file from a copy, or salvage the rest "
            "with `ister storage salvage`"
        )


@dataclass(eq=False)
class MessagesMissingError(BrokenError):
    """Messages of a stream without compaction are missing from the journal."""

    code: ClassVar[int] = 7004
    topic: str
    start: int
    end: int

    def __str__(self) -> str:
        return (
            f"messages {self.start} to {self.end - 1} of topic {self.topic!r} are missing from the "
            "journal: run `ister storage check` and restore the files it lists from a backup, or "
            f"read from offset {self.end} to skip the missing messages"
        )


@dataclass(eq=False)
class BackupDamagedError(BrokenError):
    """A file of a backup is missing or is not what was backed up."""

    code: ClassVar[int] = 7005
    file: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.file} of the backup cannot be used ({self.reason}): nothing was restored; "
            "use another backup"
        )


@dataclass(eq=False)
class ResponderFailedError(BrokenError):
    """The handler of a service has raised an error."""

    code: ClassVar[int] = 7020
    topic: str
    reason: str

    def __str__(self) -> str:
        return f"the responder on {self.topic!r} failed: {self.reason}; its log has more"
