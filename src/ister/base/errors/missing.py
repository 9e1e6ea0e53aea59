"""Errors 3xxx: it is not there."""

from dataclasses import dataclass
from typing import ClassVar

from ister.base.errors.tree import FieldValue, NotFoundError


@dataclass(eq=False)
class TopicNotFoundError(NotFoundError):
    """The topic does not exist."""

    code: ClassVar[int] = 3001
    topic: str
    # The kind that the call is for; empty: any, or live.
    kind: str = ""

    def __str__(self) -> str:
        fact = f"topic {self.topic!r} does not exist: create it with `ister topics create"
        if self.kind:
            return f"{fact} {self.topic} --kind {self.kind}`"
        return f"{fact} {self.topic}`, with `--kind stream` if it is to keep messages"

    def fields(self) -> dict[str, FieldValue]:
        """Return the fields that are set: clients that know no kind take it as it was before."""
        values = super().fields()
        return values if self.kind else {"topic": values["topic"]}


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


@dataclass(eq=False)
class OffsetGoneError(NotFoundError):
    """An offset is older than what the stream still keeps."""

    code: ClassVar[int] = 3005
    topic: str
    offset: int
    first_offset: int

    def __str__(self) -> str:
        return (
            f"offset {self.offset} of {self.topic!r} is gone by retention: "
            f"start at {self.first_offset} or 'earliest'"
        )


@dataclass(eq=False)
class CompactedError(NotFoundError):
    """What a stream held at an offset is not known any more: compaction has dropped some of it."""

    code: ClassVar[int] = 3031
    topic: str
    offset: int
    first_offset: int

    def __str__(self) -> str:
        return (
            f"what {self.topic!r} held at offset {self.offset} is gone by compaction: ask for "
            f"offset {self.first_offset} or later, and make the topic with a longer "
            "`min_compaction_lag` to keep more of its past"
        )


@dataclass(eq=False)
class SnapshotNotFoundError(NotFoundError):
    """The subscription has no saved cursor of that name."""

    code: ClassVar[int] = 3006
    subscription: str
    snapshot: str

    def __str__(self) -> str:
        return (
            f"subscription {self.subscription!r} has no saved cursor {self.snapshot!r}: "
            "see `ister subs describe`"
        )


@dataclass(eq=False)
class SchemaNotFoundError(NotFoundError):
    """There is no such schema, or no such version of it."""

    code: ClassVar[int] = 3007
    subject: str
    version: int

    def __str__(self) -> str:
        what = f"version {self.version} of schema" if self.version else "schema"
        return f"{what} {self.subject!r} not found: run `ister schemas list` to see all schemas"


@dataclass(eq=False)
class SchemaBindingNotFoundError(NotFoundError):
    """A topic is bound to no schema."""

    code: ClassVar[int] = 3008
    topic: str

    def __str__(self) -> str:
        return f"topic {self.topic!r} is bound to no schema: run `ister schemas bind`"


@dataclass(eq=False)
class TableNotFoundError(NotFoundError):
    """A folder holds no table."""

    code: ClassVar[int] = 3010
    path: str

    def __str__(self) -> str:
        return (
            f"{self.path} holds no table: run a pipeline with a `table` sink, or correct the path"
        )


@dataclass(eq=False)
class PipelineNotRunningError(NotFoundError):
    """No pipeline of that name runs on this machine."""

    code: ClassVar[int] = 3020
    pipeline: str
    running: list[str]

    def __str__(self) -> str:
        others = f"running are {', '.join(self.running)}" if self.running else "none runs"
        return f"no pipeline {self.pipeline!r} runs on this machine: {others}"


@dataclass(eq=False)
class StageNotFoundError(NotFoundError):
    """What was to be published is not staged, or not any more."""

    code: ClassVar[int] = 3009
    stage: str

    def __str__(self) -> str:
        return (
            f"stage {self.stage!r} is not there: it was never closed, was published or dropped, "
            "is older than its `keep`, or the broker was restarted since; stage it again"
        )


@dataclass(eq=False)
class MessagesLostError(NotFoundError):
    """What a query has yet to read is gone: dropped by retention, or with its topic."""

    code: ClassVar[int] = 3011
    topic: str
    reason: str

    def __str__(self) -> str:
        return (
            f"messages of {self.topic!r} are lost to this query: {self.reason}; begin with a new "
            "checkpoint, or set `failOnDataLoss` to false to go on with what is there"
        )


@dataclass(eq=False)
class MessageNotFoundError(NotFoundError):
    """There is no message of that id in the timeline."""

    code: ClassVar[int] = 3012
    id: str

    def __str__(self) -> str:
        return f"there is no message {self.id!r}: it was never made, is done, or was deleted"
