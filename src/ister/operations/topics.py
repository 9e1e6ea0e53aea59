"""Topics: list, describe, make, change, remove, purge."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from ister.base import StreamChanges, StreamSettings, TimelineSettings, TopicReport, full_name
from ister.base.errors import (
    BadNameError,
    LimitReachedError,
    NamespaceNotFoundError,
    StorageFailedError,
    StorageUncertainError,
    TopicExistsError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import (
    DEDUP_WINDOW_MS,
    DEDUP_WINDOW_MS_MAX,
    LEASE_MS_CEILING,
    LEASE_MS_MAX,
    LEASE_MS_MIN,
    MAX_DELIVERIES,
    MAX_DELIVERIES_MAX,
    NAME_BYTES_MAX,
    PARTITIONS_MAX,
)
from ister.operations.base import Group, Made, Operation, Right
from ister.operations.reports import TopicDescription, TopicPage
from ister.operations.shapes import (
    After,
    Count,
    ExistOk,
    Milliseconds,
    NamespaceName,
    PageSize,
    TopicName,
)

TOPICS = Group("topics")

_ONE = "/namespaces/{namespace}/topics/{topic}"

Kind = Annotated[
    Literal["", "live", "stream", "timeline", "priority", "cron"],
    Meta(description="Only topics of this kind."),
]
PatternText = Annotated[
    str,
    Meta(
        pattern=r"^((/[\w-]+/)?(>|(\*|[\w-]+)(\.(\*|[\w-]+))*(\.>)?))?$",
        description="Only topics that this pattern covers, as in `/default/orders.*`. Without a "
        "namespace it is in the one that is listed, or in `default`.",
    ),
]
Partitions = Annotated[
    int, Meta(ge=0, le=PARTITIONS_MAX, description="0: the topic is not partitioned.")
]


class NewLive(Struct, forbid_unknown_fields=True, tag_field="kind", tag="live"):
    """A topic that stores nothing."""

    partitions: Partitions = 0

    def fields(self) -> dict[str, Any]:
        """Return the fields of `CreateTopic`."""
        return {"kind": "live", "partitions": self.partitions}


class NewStream(Struct, forbid_unknown_fields=True, tag_field="kind", tag="stream"):
    """A durable log; 0 is no limit."""

    partitions: Partitions = 0
    durability: Annotated[
        Literal["memory", "os", "fsync", "object"],
        Meta(description="What an acknowledged message survives; `object` needs a store."),
    ] = "fsync"
    retention: Literal["limits", "interest", "workqueue", "compact"] = "limits"
    max_age_ms: Milliseconds = 0
    max_bytes: Count = 0
    max_messages: Count = 0
    ttl_ms: Milliseconds = 0
    dedup_window_ms: Annotated[int, Meta(ge=0, le=DEDUP_WINDOW_MS_MAX)] = DEDUP_WINDOW_MS
    min_compaction_lag_ms: Annotated[
        Milliseconds, Meta(description="With `compact`: no younger message is dropped.")
    ] = 0
    key_offsets: Annotated[
        bool, Meta(description="Keep the newest offset of each key, to be expected by messages.")
    ] = False

    def fields(self) -> dict[str, Any]:
        """Return the fields of `CreateTopic`."""
        settings = asdict(self)
        partitions = settings.pop("partitions")
        return {"kind": "stream", "partitions": partitions, "stream": StreamSettings(**settings)}


class _NewTimeline(Struct, forbid_unknown_fields=True, tag_field="kind"):
    """What a topic of messages at a point in time can be told."""

    max_lease_ms: Annotated[
        int,
        Meta(ge=LEASE_MS_MIN, le=LEASE_MS_CEILING, description="The longest lease there is."),
    ] = LEASE_MS_MAX
    max_leases: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_DELIVERIES_MAX,
            description="Leases of a message before it is a dead letter; 0: no end.",
        ),
    ] = MAX_DELIVERIES
    dead_letter_topic: Annotated[
        str,
        Meta(
            pattern=r"^((/[\w-]+/)?[\w-]+(\.[\w-]+)*)?$",
            max_length=NAME_BYTES_MAX,
            description="A topic of the same kind; empty: `<topic>-dlq`.",
        ),
    ] = ""

    def fields(self) -> dict[str, Any]:
        """Return the fields of `CreateTopic`."""
        kind = str(self.__struct_config__.tag)
        settings = TimelineSettings(
            kind=kind,
            lease_ms_max=self.max_lease_ms,
            max_leases=self.max_leases,
            dead_letters=full_name(self.dead_letter_topic),
        )
        return {"kind": kind, "timeline": settings}


class NewTimeline(_NewTimeline, tag="timeline"):
    """Messages at a point in time, each leased to one consumer."""


class NewPriority(_NewTimeline, tag="priority"):
    """The same, of 32 levels: of those that are due, the lowest goes first."""


class NewCron(_NewTimeline, tag="cron"):
    """The same, made again and again by rules."""


class Purged(Struct):
    """How many messages were dropped."""

    messages: int


class PartitionPage(Struct):
    """The partitions of a topic, in order."""

    rows: list[TopicReport]
    next: str = ""


class _Listing(Operation[TopicPage], frozen=True):
    """Which topics to list."""

    kind: Kind = ""
    pattern: PatternText = ""
    limit: PageSize = 100
    after: After = ""


@TOPICS(Right.LOOKUP, "GET /topics")
class ListTopics(_Listing, frozen=True):
    """List the topics and partitions of all namespaces."""


@TOPICS(Right.LOOKUP, "GET /namespaces/{namespace}/topics", NamespaceNotFoundError)
class ListTopicsOfNamespace(_Listing, frozen=True, kw_only=True):
    """List the topics and partitions of a namespace."""

    namespace: NamespaceName


@TOPICS(Right.LOOKUP, f"GET {_ONE}", BadNameError, TopicNotFoundError)
class DescribeTopic(Operation[TopicDescription], frozen=True):
    """Describe a topic with its partitions, subscriptions and schema."""

    topic: TopicName


@TOPICS(
    Right.MANAGE,
    f"PUT {_ONE}",
    BadNameError,
    NamespaceNotFoundError,
    TopicExistsError,
    WrongKindError,
    LimitReachedError,
    StorageFailedError,
    StorageUncertainError,
    body=NewLive | NewStream | NewTimeline | NewPriority | NewCron,
)
class CreateTopic(Operation[Made[TopicDescription]], frozen=True):
    """Create a topic, or confirm that it exists with the same settings."""

    topic: TopicName
    kind: str = "live"
    partitions: int = 0
    # Without them, the defaults; of a topic that exists, what it has.
    stream: StreamSettings | None = None
    timeline: TimelineSettings | None = None
    exist_ok: ExistOk = True


class TopicChanges(Struct, forbid_unknown_fields=True):
    """What is to change about a stream; what is left out stays as it is, and 0 is no limit."""

    durability: Literal["memory", "os", "fsync", "object"] | None = None
    max_age_ms: Milliseconds | None = None
    max_bytes: Count | None = None
    max_messages: Count | None = None
    ttl_ms: Milliseconds | None = None
    dedup_window_ms: Annotated[int, Meta(ge=0, le=DEDUP_WINDOW_MS_MAX)] | None = None
    min_compaction_lag_ms: Milliseconds | UnsetType = UNSET

    def fields(self) -> dict[str, Any]:
        """Return the fields of `UpdateTopic`."""
        return {"changes": StreamChanges(**asdict(self))}


@TOPICS(
    Right.MANAGE,
    f"PATCH {_ONE}",
    BadNameError,
    TopicNotFoundError,
    WrongKindError,
    StorageFailedError,
    StorageUncertainError,
    body=TopicChanges,
)
class UpdateTopic(Operation[TopicDescription], frozen=True):
    """Change settings of a stream and of all its partitions.

    Retention obeys the new limits within seconds, and drops what is beyond them.
    """

    topic: TopicName
    changes: StreamChanges


@TOPICS(Right.MANAGE, f"DELETE {_ONE}", BadNameError, TopicNotFoundError)
class DeleteTopic(Operation[None], frozen=True):
    """Delete a topic with its partitions and all messages."""

    topic: TopicName


@TOPICS(
    Right.MANAGE,
    f"POST {_ONE}/purge",
    BadNameError,
    TopicNotFoundError,
    WrongKindError,
    StorageFailedError,
    StorageUncertainError,
)
class PurgeTopic(Operation[Purged], frozen=True):
    """Delete messages of a stream."""

    topic: TopicName
    before: (
        Annotated[
            Count,
            Meta(
                description="Only what is before this offset of a stream without partitions; all "
                "of them when it is left out."
            ),
        ]
        | None
    ) = None


@TOPICS(Right.LOOKUP, f"GET {_ONE}/partitions", BadNameError, TopicNotFoundError)
class ListPartitions(Operation[PartitionPage], frozen=True):
    """List the partitions of a topic; the list is empty if it is not partitioned."""

    topic: TopicName


@TOPICS(
    Right.MANAGE,
    f"PUT {_ONE}/partitions",
    BadNameError,
    TopicNotFoundError,
    TopicExistsError,
    WrongKindError,
    LimitReachedError,
    StorageFailedError,
    StorageUncertainError,
)
class GrowTopic(Operation[PartitionPage], frozen=True):
    """Add partitions to a partitioned topic.

    Messages of a key that is sent after that may come to another partition than before. Nothing
    happens when it has as many.
    """

    topic: TopicName
    partitions: Annotated[
        int, Meta(ge=1, le=PARTITIONS_MAX, description="How many it should have at least.")
    ]
    kind: Annotated[
        Literal["", "live", "stream"], Meta(description="Only if it is of this kind.")
    ] = ""
