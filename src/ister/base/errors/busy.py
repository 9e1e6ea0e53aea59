"""Errors 6xxx: wait and repeat."""

from dataclasses import dataclass
from typing import ClassVar

from ister.base.errors.tree import BusyError
from ister.base.units import limit_text, rounded_size


@dataclass(eq=False)
class LimitReachedError(BusyError):
    """A limit of the broker or the client is reached."""

    code: ClassVar[int] = 6001
    limit: str
    value: int

    def __str__(self) -> str:
        value = limit_text(self.limit, self.value)
        return f"limit `{self.limit}` of {value} is reached: free some, or raise it"


@dataclass(eq=False)
class ProducerFullError(BusyError):
    """`send_nowait` was called faster than the broker acknowledges."""

    code: ClassVar[int] = 6002
    topic: str
    pending_bytes: int

    def __str__(self) -> str:
        return (
            f"{rounded_size(self.pending_bytes)} wait for acknowledgement on {self.topic!r}: "
            "`await producer.ready()` between sends, or use `await producer.send(...)`"
        )


@dataclass(eq=False)
class ConnectionLostError(BusyError):
    """The connection broke while this was under way: it may or may not have happened."""

    code: ClassVar[int] = 6003
    reason: str
    # What to do about it; that of a producer unless said.
    hint: str = "send again, or open the producer with `resend=True`"

    def __str__(self) -> str:
        return f"connection lost ({self.reason}): whether the broker got it is unknown; {self.hint}"


@dataclass(eq=False)
class NotConnectedError(BusyError):
    """No broker could be reached, or the connection to it failed before it was usable."""

    code: ClassVar[int] = 6004
    url: str
    reason: str
    # Whether something accepted the connection, which failed later: TLS, say.
    answered: bool = False

    def __str__(self) -> str:
        if self.answered:
            return f"no connection to {self.url}: {self.reason}"
        return f"no broker at {self.url} ({self.reason}): start one with `ister serve`"


@dataclass(eq=False)
class RequestTimeoutError(BusyError, TimeoutError):
    """No answer came in time. Also a `TimeoutError`."""

    code: ClassVar[int] = 6005
    what: str
    timeout_s: float

    def __str__(self) -> str:
        return f"{self.what} took longer than {self.timeout_s:g} s"


@dataclass(eq=False)
class GoingAwayError(BusyError):
    """The broker is shutting down; the client reconnects by itself."""

    code: ClassVar[int] = 6006
    reason: str

    def __str__(self) -> str:
        return f"broker is going away ({self.reason}): the client reconnects by itself"


@dataclass(eq=False)
class StorageFailedError(BusyError):
    """The disk or the object store refused a write or a read: nothing was acknowledged."""

    code: ClassVar[int] = 6007
    reason: str

    def __str__(self) -> str:
        return (
            f"the storage fails ({self.reason}): nothing of this was acknowledged; "
            "mend the storage, the broker tries again by itself"
        )


@dataclass(eq=False)
class DiskFullError(StorageFailedError):
    """The disk of the data folder is full; nothing was stored."""

    code: ClassVar[int] = 6015
    reason: str

    def __str__(self) -> str:
        return (
            f"no space left for messages ({self.reason}); nothing was stored: free space on the "
            "disk of the data folder, or purge or delete topics; the broker accepts messages again "
            "as soon as there is enough space"
        )


@dataclass(eq=False)
class StorageUncertainError(BusyError):
    """The storage failed during a write; the data may or may not be stored."""

    code: ClassVar[int] = 6013
    reason: str

    def __str__(self) -> str:
        return (
            f"the storage failed during a write ({self.reason}); the data may or may not be "
            "stored: repair the storage, check whether the request was carried out, and retry it "
            "if it was not"
        )


@dataclass(eq=False)
class TableBusyError(BusyError):
    """Another process writes to a table."""

    code: ClassVar[int] = 6010
    table: str
    owner: str
    timeout_s: float

    def __str__(self) -> str:
        return (
            f"table {self.table} is being written by {self.owner} for more than "
            f"{self.timeout_s:g} s: wait for it, or stop it"
        )


@dataclass(eq=False)
class StagingFullError(BusyError):
    """All clients together have staged as much as the broker keeps."""

    code: ClassVar[int] = 6008
    limit: str
    value: int

    def __str__(self) -> str:
        return (
            f"limit `{self.limit}` of {limit_text(self.limit, self.value)} is reached by what all "
            "clients have staged: publish or drop stages, or wait until those that nobody "
            "publishes are too old"
        )


@dataclass(eq=False)
class SubscriptionBusyError(BusyError):
    """A wildcard subscription is still being created on all of its topics."""

    code: ClassVar[int] = 6017
    topic: str
    subscription: str

    def __str__(self) -> str:
        return (
            f"subscription {self.subscription!r} on {self.topic!r} is still being created: "
            "retry in a moment"
        )


@dataclass(eq=False)
class BackupRunningError(BusyError):
    """Another backup of the data folder, or into the same place, is being made."""

    code: ClassVar[int] = 6018
    place: str

    def __str__(self) -> str:
        return f"another backup uses {self.place}: wait until it has ended, then try again"


@dataclass(eq=False)
class BackupFailedError(BusyError):
    """A backup was not completed; the complete backup before it is unchanged."""

    code: ClassVar[int] = 6019
    place: str
    reason: str

    def __str__(self) -> str:
        return (
            f"no backup was made in {self.place} ({self.reason}): the last complete backup there, "
            "if any, is unchanged; remove the cause and run the backup again"
        )
