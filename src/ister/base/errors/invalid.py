"""Errors 1xxx: fix the request."""

from dataclasses import dataclass
from typing import ClassVar

from ister.base.errors.tree import InvalidError
from ister.base.units import size_text


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
    # What raises the limit on the broker; empty: nothing does.
    setting: str = "message_bytes_max"

    def __str__(self) -> str:
        fact = (
            f"message of {size_text(self.size_bytes)} exceeds the "
            f"{size_text(self.size_bytes_max)} limit "
            f"of topic {self.topic!r}"
        )
        if not self.setting:
            return f"{fact}, which is fixed: split it, or keep the payload elsewhere"
        return f"{fact}: split it, or raise `{self.setting}` on the broker"


@dataclass(eq=False)
class BatchTooLargeError(InvalidError):
    """A batch is over the size limit of the broker."""

    code: ClassVar[int] = 1005
    size_bytes: int
    size_bytes_max: int

    def __str__(self) -> str:
        return (
            f"batch of {size_text(self.size_bytes)} exceeds the {size_text(self.size_bytes_max)} "
            "limit: "
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
    """The client, producer, subscription or consumer was closed by its owner."""

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


@dataclass(eq=False)
class ExtraMissingError(InvalidError):
    """Something needs a library that is not installed."""

    code: ClassVar[int] = 1012
    what: str
    extra: str

    def __str__(self) -> str:
        return f"{self.what} needs more libraries: run `pip install 'ister[{self.extra}]'`"


@dataclass(eq=False)
class WrongKindError(InvalidError):
    """A call does not fit the kind of its topic."""

    code: ClassVar[int] = 1013
    topic: str
    kind: str
    reason: str

    def __str__(self) -> str:
        return f"topic {self.topic!r} is a {self.kind} topic: {self.reason}"


@dataclass(eq=False)
class BadSchemaError(InvalidError):
    """The definition of a schema cannot be used."""

    code: ClassVar[int] = 1014
    reason: str

    def __str__(self) -> str:
        return f"the schema cannot be used: {self.reason}"


@dataclass(eq=False)
class SchemaTooComplexError(InvalidError):
    """Parsing or comparing a schema takes more steps than allowed."""

    code: ClassVar[int] = 1024
    # What took too long: `parse` or `compare`.
    work: str
    limit: str
    steps_max: int

    def __str__(self) -> str:
        return (
            f"the schema is too complex to {self.work} within {self.steps_max} steps "
            f"({self.limit}): use fewer types, choices, references or defaults"
        )


@dataclass(eq=False)
class SchemaViolationError(InvalidError):
    """A message does not follow the schema of its topic."""

    code: ClassVar[int] = 1015
    topic: str
    subject: str
    reason: str

    def __str__(self) -> str:
        return f"messages of {self.topic!r} must follow schema {self.subject!r}: {self.reason}"


@dataclass(eq=False)
class JavaMissingError(InvalidError):
    """Spark needs a Java that is not here, or one that is newer."""

    code: ClassVar[int] = 1016
    # What was found instead: `/usr/bin/java is Java 11`, or that there is none.
    found: str

    def __str__(self) -> str:
        return (
            f"no Java 17 or newer for Spark, {self.found}: run "
            "`sudo apt-get install -y openjdk-17-jre-headless`, or point JAVA_HOME to one"
        )


@dataclass(eq=False)
class TableSchemaError(InvalidError):
    """A batch does not fit the columns of its table."""

    code: ClassVar[int] = 1020
    table: str
    clashes: list[str]

    def __str__(self) -> str:
        return (
            f"table {self.table} takes no rows of this shape ({'; '.join(self.clashes)}): cast the "
            "columns in the pipeline's SQL, give them other names, or write to another table"
        )


@dataclass(eq=False)
class StageTooLargeError(InvalidError):
    """More is to be published at once than fits."""

    code: ClassVar[int] = 1017
    # `bytes`, `batches` or `topics`.
    unit: str
    count: int
    count_max: int

    def __str__(self) -> str:
        return (
            f"{self._text(self.count)} are more than the {self._text(self.count_max)} that are "
            "published at once: publish less at a time, such as fewer rows in each trigger"
        )

    def _text(self, count: int) -> str:
        return size_text(count) if self.unit == "bytes" else f"{count} {self.unit}"


@dataclass(eq=False)
class UntrustedBrokerError(InvalidError):
    """The certificate of the broker is not to be trusted: another attempt would meet it again."""

    code: ClassVar[int] = 1032
    url: str
    reason: str

    def __str__(self) -> str:
        return f"no connection to {self.url}: {self.reason}"


@dataclass(eq=False)
class FrozenClockError(InvalidError):
    """A call waits for a timeout under the clock of a test, and nothing moves that clock."""

    code: ClassVar[int] = 1031
    waited_s: float

    def __str__(self) -> str:
        return (
            f"the VirtualClock has not moved for {self.waited_s:g} s of real time, so this call "
            "would wait without end: start it with `task = asyncio.create_task(...)`, move the "
            "clock with `await clock.elapse(seconds)`, then `await task`"
        )
