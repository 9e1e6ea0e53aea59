"""Every error of the platform, in one tree.

The base class says what the caller should do; the leaf says what happened. Retries, HTTP and
gRPC status and the exit code of the command line follow from the base class alone.

Always true:
- a leaf has a number (`code`) that is never changed or reused; thousands name the base class;
- an error survives pickling, and a trip over the wire as number, fields and text.
"""

from dataclasses import dataclass
from typing import ClassVar

FieldValue = str | int | float | list[str] | None


class IsterError(Exception):
    """The root. `code` 0 means: a base class, raised for a number this version does not know."""

    code: ClassVar[int] = 0
    exit_code: ClassVar[int] = 70

    def fields(self) -> dict[str, FieldValue]:
        """Return the typed fields, as they travel over the wire."""
        # Not `__dataclass_fields__`, which names `code` as well.
        return {name: getattr(self, name) for name in getattr(self, "__match_args__", ())}

    def __reduce__(self) -> tuple[object, ...]:
        return (_restore, (type(self), self.fields(), self.args))


class InvalidError(IsterError):
    """Fix the request."""

    exit_code: ClassVar[int] = 64


class DeniedError(IsterError):
    """Fix the rights."""

    exit_code: ClassVar[int] = 77


class NotFoundError(IsterError):
    """It is not there: create it, or correct the name."""

    exit_code: ClassVar[int] = 66


class ConflictError(IsterError):
    """Somebody else was there: read again, then decide."""

    exit_code: ClassVar[int] = 73


class MovedError(IsterError):
    """Ask the new owner."""

    exit_code: ClassVar[int] = 75


class BusyError(IsterError):
    """Wait and repeat."""

    exit_code: ClassVar[int] = 75


class BrokenError(IsterError):
    """A bug or a broken machine: report it."""

    exit_code: ClassVar[int] = 70


# 1xxx: fix the request


@dataclass(eq=False)
class BadNameError(InvalidError):
    """A name breaks the naming rules."""

    code: ClassVar[int] = 1001
    name: str
    reason: str

    def __str__(self) -> str:
        return f"name {self.name!r} is not valid: {self.reason}"


@dataclass(eq=False)
class ProtocolError(InvalidError):
    """The peer broke the wire protocol. The connection is closed after this."""

    code: ClassVar[int] = 1002
    reason: str

    def __str__(self) -> str:
        return f"wire protocol broken: {self.reason}"


@dataclass(eq=False)
class BadBatchError(InvalidError):
    """The bytes of a batch do not follow the batch format."""

    code: ClassVar[int] = 1003
    reason: str

    def __str__(self) -> str:
        return f"batch is not valid: {self.reason}"


@dataclass(eq=False)
class MessageTooLargeError(InvalidError):
    """A message is over the size limit."""

    code: ClassVar[int] = 1004
    topic: str
    size_bytes: int
    size_bytes_max: int

    def __str__(self) -> str:
        return (
            f"message of {self.size_bytes} B exceeds the {self.size_bytes_max} B limit "
            f"of topic {self.topic!r}: split it, or raise `message_bytes_max` on the broker"
        )


@dataclass(eq=False)
class BatchTooLargeError(InvalidError):
    """A batch is over the size limit of the broker."""

    code: ClassVar[int] = 1005
    size_bytes: int
    size_bytes_max: int

    def __str__(self) -> str:
        return (
            f"batch of {self.size_bytes} B exceeds the {self.size_bytes_max} B limit: "
            "send fewer messages at once, or raise `batch_bytes_max` on the broker"
        )


@dataclass(eq=False)
class ConfigError(InvalidError):
    """The configuration has mistakes; all of them are listed."""

    code: ClassVar[int] = 1006
    mistakes: list[str]

    def __str__(self) -> str:
        return "configuration is not valid:\n" + "\n".join(f"  - {m}" for m in self.mistakes)


@dataclass(eq=False)
class BadRequestError(InvalidError):
    """An argument of a call is wrong."""

    code: ClassVar[int] = 1007
    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass(eq=False)
class VersionError(InvalidError):
    """Client and broker share no protocol version."""

    code: ClassVar[int] = 1008
    versions: str
    versions_accepted: str

    def __str__(self) -> str:
        return (
            f"no common protocol version: offered {self.versions}, "
            f"accepted {self.versions_accepted}; upgrade the older side"
        )


@dataclass(eq=False)
class CodecMissingError(InvalidError):
    """A batch is compressed with a codec that is not installed here."""

    code: ClassVar[int] = 1009
    codec: str

    def __str__(self) -> str:
        return (
            f"compression {self.codec!r} is not available: "
            "run `pip install 'ister[compression]'` on both sides"
        )


@dataclass(eq=False)
class ClosedError(InvalidError):
    """The client, producer or subscription was closed by its owner."""

    code: ClassVar[int] = 1010
    what: str

    def __str__(self) -> str:
        return f"{self.what} is closed: open a new one"


@dataclass(eq=False)
class NotARequestError(InvalidError):
    """A reply was given to a message that is not a request."""

    code: ClassVar[int] = 1011
    topic: str

    def __str__(self) -> str:
        return f"message on {self.topic!r} is no request: only messages of `request()` take a reply"


# 3xxx: not found


@dataclass(eq=False)
class TopicNotFoundError(NotFoundError):
    """The topic does not exist."""

    code: ClassVar[int] = 3001
    topic: str

    def __str__(self) -> str:
        return f"topic {self.topic!r} does not exist: create it with `ister topics create`"


@dataclass(eq=False)
class NamespaceNotFoundError(NotFoundError):
    """The namespace of a topic does not exist; namespaces are never made by themselves."""

    code: ClassVar[int] = 3002
    namespace: str

    def __str__(self) -> str:
        return (
            f"namespace {self.namespace!r} does not exist: use '/default/...', "
            f"or run `ister namespaces create {self.namespace}`"
        )


@dataclass(eq=False)
class NoResponderError(NotFoundError):
    """Nobody is subscribed to the topic of a request."""

    code: ClassVar[int] = 3003
    topic: str

    def __str__(self) -> str:
        return f"nobody answers on {self.topic!r}: start a responder, for example `ister reply`"


@dataclass(eq=False)
class SubscriptionNotFoundError(NotFoundError):
    """The subscription does not exist."""

    code: ClassVar[int] = 3004
    topic: str
    subscription: str

    def __str__(self) -> str:
        return f"no subscription {self.subscription!r} on {self.topic!r}: see `ister subs list`"


# 4xxx: conflict


@dataclass(eq=False)
class TopicExistsError(ConflictError):
    """A topic of that name exists with other settings."""

    code: ClassVar[int] = 4001
    topic: str
    detail: str

    def __str__(self) -> str:
        return f"topic {self.topic!r} exists already {self.detail}"


@dataclass(eq=False)
class SubscriptionTakenError(ConflictError):
    """An exclusive subscription has its one consumer already."""

    code: ClassVar[int] = 4002
    topic: str
    subscription: str
    consumer: str

    def __str__(self) -> str:
        return (
            f"exclusive subscription {self.subscription!r} on {self.topic!r} is taken by consumer "
            f"{self.consumer!r}: close that one, or use type 'failover' or 'shared'"
        )


@dataclass(eq=False)
class SubscriptionMismatchError(ConflictError):
    """The subscription exists with another type, policy or filter."""

    code: ClassVar[int] = 4003
    topic: str
    subscription: str
    detail: str

    def __str__(self) -> str:
        return (
            f"subscription {self.subscription!r} on {self.topic!r} is in use with {self.detail}: "
            "use the same settings, or another subscription name"
        )


@dataclass(eq=False)
class NamespaceExistsError(ConflictError):
    """The namespace exists."""

    code: ClassVar[int] = 4004
    namespace: str

    def __str__(self) -> str:
        return f"namespace {self.namespace!r} exists already"


@dataclass(eq=False)
class ConsumerNameTakenError(ConflictError):
    """Another client's consumer has that name in the subscription."""

    code: ClassVar[int] = 4005
    subscription: str
    consumer: str

    def __str__(self) -> str:
        return (
            f"subscription {self.subscription!r} has a consumer {self.consumer!r} of another "
            "client: choose another name, or leave it out to get a unique one"
        )


# 6xxx: wait and repeat


@dataclass(eq=False)
class LimitReachedError(BusyError):
    """A limit of the broker or the client is reached."""

    code: ClassVar[int] = 6001
    limit: str
    value: int

    def __str__(self) -> str:
        return f"limit `{self.limit}` of {self.value} is reached: free some, or raise it"


@dataclass(eq=False)
class ProducerFullError(BusyError):
    """`send_nowait` was called faster than the broker acknowledges."""

    code: ClassVar[int] = 6002
    topic: str
    pending_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.pending_bytes} B wait for acknowledgement on {self.topic!r}: "
            "`await producer.ready()` between sends, or use `await producer.send(...)`"
        )


@dataclass(eq=False)
class ConnectionLostError(BusyError):
    """The connection broke while this was under way: it may or may not have happened."""

    code: ClassVar[int] = 6003
    reason: str

    def __str__(self) -> str:
        return (
            f"connection lost ({self.reason}): whether the broker got it is unknown; send again, "
            "or open the producer with `resend=True`"
        )


@dataclass(eq=False)
class NotConnectedError(BusyError):
    """No broker could be reached."""

    code: ClassVar[int] = 6004
    url: str
    reason: str

    def __str__(self) -> str:
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


# 7xxx: call us


@dataclass(eq=False)
class InternalError(BrokenError):
    """A bug in the broker. Details are in its log."""

    code: ClassVar[int] = 7001
    detail: str

    def __str__(self) -> str:
        return f"internal error ({self.detail}): see the broker's log and report it"


_BASES: dict[int, type[IsterError]] = {
    1: InvalidError,
    2: DeniedError,
    3: NotFoundError,
    4: ConflictError,
    5: MovedError,
    6: BusyError,
    7: BrokenError,
}


def leaves() -> dict[int, type[IsterError]]:
    """Return every error with a number, by number."""
    found = {}
    pending = list(_BASES.values())
    while pending:
        cls = pending.pop()
        pending.extend(cls.__subclasses__())
        if cls.code:
            found[cls.code] = cls
    return dict(sorted(found.items()))


def from_wire(code: int, values: dict[str, FieldValue], text: str) -> IsterError:
    """Rebuild an error that a peer sent.

    A number or field set this version does not know becomes the base class with the peer's text,
    so that an older client still knows what to do about a newer broker's error.
    """
    cls = leaves().get(code)
    if cls is not None:
        try:
            error = cls(**values)
            str(error)  # Fields of a wrong type show when the text is made.
        except (TypeError, ValueError):
            pass
        else:
            return error
    return _BASES.get(code // 1000, BrokenError)(text)


def _restore(
    cls: type[IsterError], values: dict[str, FieldValue], args: tuple[object, ...]
) -> IsterError:
    return cls(**values) if values else cls(*args)
