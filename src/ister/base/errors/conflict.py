"""Errors 4xxx: somebody else was there."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from ister.base.errors.tree import ConflictError


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
    """The subscription exists with another type, or with other settings."""

    code: ClassVar[int] = 4003
    topic: str
    subscription: str
    detail: str

    def __str__(self) -> str:
        return f"subscription {self.subscription!r} on {self.topic!r} exists with {self.detail}"


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


@dataclass(eq=False)
class ProducerFencedError(ConflictError):
    """Another producer was opened under the same name on the same stream."""

    code: ClassVar[int] = 4006
    topic: str
    producer: str

    def __str__(self) -> str:
        return (
            f"producer {self.producer!r} of {self.topic!r} was opened anew by another client: "
            "close this one, or give each a name of its own"
        )


@dataclass(eq=False)
class OffsetMismatchError(ConflictError):
    """A publish expected another next offset: somebody else has published since."""

    code: ClassVar[int] = 4007
    topic: str
    expected_offset: int
    next_offset: int

    def __str__(self) -> str:
        return (
            f"next offset of {self.topic!r} is {self.next_offset}, not {self.expected_offset}: "
            "read what was published since, then decide"
        )


@dataclass(eq=False)
class KeyOffsetMismatchError(ConflictError):
    """A publish expected another newest message of its key: the key was published to since."""

    code: ClassVar[int] = 4027
    topic: str
    key: str
    expected_key_offset: int
    # -1: the key has no message.
    key_offset: int

    def __str__(self) -> str:
        return (
            f"newest message of key {self.key!r} in {self.topic!r} is at offset {self.key_offset}, "
            f"not {self.expected_key_offset} (-1: the key has none): read the history of the key, "
            "then decide"
        )


@dataclass(eq=False)
class LeaseLostError(ConflictError):
    """An acknowledgement came too late: the message is somebody else's, or done, by now."""

    code: ClassVar[int] = 4008
    topic: str
    offset: int

    def __str__(self) -> str:
        return (
            f"message {self.offset} of {self.topic!r} is not leased to this consumer any more: "
            "it is or was delivered again; raise `ack_timeout`, or extend the lease in time"
        )


@dataclass(eq=False)
class SequenceError(ConflictError):
    """A batch does not follow the last one of its producer."""

    code: ClassVar[int] = 4009
    topic: str
    producer: str
    sequence: int
    expected_sequence: int

    def __str__(self) -> str:
        return (
            f"producer {self.producer!r} of {self.topic!r} sent message {self.sequence} where "
            f"{self.expected_sequence} was due: open the producer again"
        )


@dataclass(eq=False)
class TransactionError(ConflictError):
    """A transaction was not carried out, in no part."""

    code: ClassVar[int] = 4010
    transaction: str
    reason: str

    def __str__(self) -> str:
        return f"transaction {self.transaction!r} was aborted: {self.reason}"


@dataclass(eq=False)
class StorageTakenError(ConflictError):
    """Another process, or a newer owner, has the data folder or the journal."""

    code: ClassVar[int] = 4011
    place: str
    owner: str

    def __str__(self) -> str:
        return f"{self.place} is in use by {self.owner}: stop it, or choose another `--data`"


@dataclass(eq=False)
class ObjectExistsError(ConflictError):
    """An object of that name was created by somebody else."""

    code: ClassVar[int] = 4012
    name: str

    def __str__(self) -> str:
        return f"object {self.name!r} exists already"


@dataclass(eq=False)
class SchemaIncompatibleError(ConflictError):
    """A schema breaks the readers or writers of earlier versions."""

    code: ClassVar[int] = 4013
    subject: str
    mode: str
    reasons: list[str]

    def __str__(self) -> str:
        reasons = "; ".join(self.reasons)
        return f"schema {self.subject!r} must stay compatible ({self.mode}): {reasons}"


@dataclass(eq=False)
class SchemaMismatchError(ConflictError):
    """A topic is bound to another schema, or a schema is in use."""

    code: ClassVar[int] = 4014
    topic: str
    subject: str

    def __str__(self) -> str:
        return f"topic {self.topic!r} is bound to schema {self.subject!r}"


@dataclass(eq=False)
class NamespaceNotEmptyError(ConflictError):
    """A namespace has topics, or is one of those that are always there."""

    code: ClassVar[int] = 4015
    namespace: str
    reason: str

    def __str__(self) -> str:
        return f"namespace {self.namespace!r} cannot be deleted: {self.reason}"


@dataclass(eq=False)
class RevisionMismatchError(ConflictError):
    """A fact of the metadata was changed by somebody else."""

    code: ClassVar[int] = 4016
    key: str

    def __str__(self) -> str:
        return f"fact {self.key!r} was changed by somebody else: read it again"


@dataclass(eq=False)
class PipelineRunningError(ConflictError):
    """A pipeline of that name, or one with that checkpoint, runs already."""

    code: ClassVar[int] = 4020
    pipeline: str
    pid: int

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline!r} runs already (process {self.pid}): stop it with "
            f"`ister pipeline stop {self.pipeline}`, or give this one another name and checkpoint"
        )


@dataclass(eq=False)
class CheckpointMismatchError(ConflictError):
    """A pipeline was changed in a way that its checkpoint does not allow."""

    code: ClassVar[int] = 4021
    checkpoint: str
    changes: list[str]

    def __str__(self) -> str:
        listed = "\n".join(f"  - {change}" for change in self.changes)
        return (
            f"the checkpoint {self.checkpoint} belongs to another shape of this pipeline:\n"
            f"{listed}\n"
            "undo these changes, or start over with `--checkpoint` and a new folder "
            "(`--from` says where; what was published is published again)"
        )


@dataclass(eq=False)
class StageExistsError(ConflictError):
    """A stage of that name is there."""

    code: ClassVar[int] = 4017
    stage: str

    def __str__(self) -> str:
        return f"stage {self.stage!r} exists already: use another word for each attempt, or drop it"


@dataclass(eq=False)
class MessageExistsError(ConflictError):
    """A message of that id is in the timeline, or a rule of that id in the cron topic."""

    code: ClassVar[int] = 4022
    id: str
    # `message`, or `cron rule`, which is not moved.
    what: str = "message"

    def __str__(self) -> str:
        is_message = self.what == "message"
        way = "move or update it" if is_message else "update it with `cron=` (`--replace`)"
        return f"{self.what} {self.id!r} exists already: {way}, or choose another id"


@dataclass(eq=False)
class MessageChangedError(ConflictError):
    """A message of a timeline is at another version than was said."""

    code: ClassVar[int] = 4023
    id: str
    version: int

    def __str__(self) -> str:
        return f"message {self.id!r} was changed: it is at version {self.version}; get it again"


@dataclass(eq=False)
class MessageLeasedError(ConflictError):
    """A message of a timeline is being dealt with: nobody but its holder changes it."""

    code: ClassVar[int] = 4024
    id: str
    holder: str
    until_ms: int

    def __str__(self) -> str:
        return (
            f"message {self.id!r} is leased to {self.holder!r}: wait until it is done, or until "
            f"the lease ends at {_utc(self.until_ms)}"
        )


@dataclass(eq=False)
class NotOwnerError(ConflictError):
    """A message of a timeline belongs to another group of producers."""

    code: ClassVar[int] = 4025
    id: str
    owner: str

    def __str__(self) -> str:
        return f"message {self.id!r} belongs to group {self.owner!r}: only that one changes it"


@dataclass(eq=False)
class TimelineLeaseLostError(ConflictError):
    """A lease of a timeline is over, or somebody else's."""

    code: ClassVar[int] = 4026
    id: str

    def __str__(self) -> str:
        return (
            f"message {self.id!r} is not leased to this consumer any more: it is or was delivered "
            "again; take a longer lease, or extend it in time"
        )


def _utc(time_ms: int) -> str:
    """Return a time as people read it. It may come from a peer, and be anything."""
    try:
        time = _EPOCH + timedelta(milliseconds=time_ms)
    except OverflowError:
        return f"{time_ms} ms since 1970"
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
