"""Topics: list, describe, make, remove, purge."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from ister.base import (
    DEFAULT_NAMESPACE,
    StreamChanges,
    StreamSettings,
    TimelineSettings,
    TopicReport,
    full_name,
)
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
from ister.server.admin import Admin, TopicDescription, TopicPage, waiting
from ister.server.http.resources.shapes import (
    After,
    Count,
    Milliseconds,
    NamespacePath,
    PageSize,
    TopicPath,
)
from ister.server.http.routes import Made, Routes

TOPICS = Routes("topics")

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


class TopicQuery(Struct, forbid_unknown_fields=True):
    """Which topics."""

    kind: Kind = ""
    pattern: PatternText = ""
    limit: PageSize = 100
    after: After = ""


class NewLive(Struct, forbid_unknown_fields=True, tag_field="kind", tag="live"):
    """A topic that stores nothing."""

    partitions: Partitions = 0


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

    def settings(self) -> StreamSettings:
        """Return the settings as the broker knows them."""
        return StreamSettings(
            durability=self.durability,
            retention=self.retention,
            max_age_ms=self.max_age_ms,
            max_bytes=self.max_bytes,
            max_messages=self.max_messages,
            ttl_ms=self.ttl_ms,
            dedup_window_ms=self.dedup_window_ms,
            min_compaction_lag_ms=self.min_compaction_lag_ms,
            key_offsets=self.key_offsets,
        )


class TopicChanges(Struct, forbid_unknown_fields=True):
    """What is to change about a stream; what is left out stays as it is, and 0 is no limit."""

    durability: Literal["memory", "os", "fsync", "object"] | None = None
    max_age_ms: Milliseconds | None = None
    max_bytes: Count | None = None
    max_messages: Count | None = None
    ttl_ms: Milliseconds | None = None
    dedup_window_ms: Annotated[int, Meta(ge=0, le=DEDUP_WINDOW_MS_MAX)] | None = None
    min_compaction_lag_ms: Milliseconds | UnsetType = UNSET


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

    def settings(self, kind: str) -> TimelineSettings:
        """Return the settings as the broker knows them."""
        return TimelineSettings(
            kind=kind,
            lease_ms_max=self.max_lease_ms,
            max_leases=self.max_leases,
            dead_letters=full_name(self.dead_letter_topic),
        )


class NewTimeline(_NewTimeline, tag="timeline"):
    """Messages at a point in time, each leased to one consumer."""


class NewPriority(_NewTimeline, tag="priority"):
    """The same, of 32 levels: of those that are due, the lowest goes first."""


class Purge(Struct, forbid_unknown_fields=True):
    """What to drop: everything, or what is before an offset of a stream without partitions."""

    before: Count | None = None


class Purged(Struct):
    """How many messages were dropped."""

    messages: int


class PartitionCount(Struct, forbid_unknown_fields=True):
    """How many partitions a topic should have at least."""

    partitions: Annotated[int, Meta(ge=1, le=PARTITIONS_MAX)]


class PartitionPage(Struct):
    """The partitions of a topic, in order."""

    rows: list[TopicReport]
    next: str = ""


@TOPICS.route("GET", "/topics")
async def list_topics(admin: Admin, query: TopicQuery) -> TopicPage:
    """List the topics and partitions of all namespaces."""
    return _page(admin, query, "")


@TOPICS.route("GET", "/namespaces/{namespace}/topics", NamespaceNotFoundError)
async def list_topics_of_namespace(
    admin: Admin, where: NamespacePath, query: TopicQuery
) -> TopicPage:
    """List the topics and partitions of a namespace."""
    admin.namespaces.check(where.namespace)
    return _page(admin, query, where.namespace)


@TOPICS.route("GET", "/namespaces/{namespace}/topics/{topic}", BadNameError, TopicNotFoundError)
async def describe_topic(admin: Admin, where: TopicPath) -> TopicDescription:
    """Describe a topic with its partitions, subscriptions and schema."""
    return admin.topics.describe(where.name)


@TOPICS.route(
    "PUT",
    "/namespaces/{namespace}/topics/{topic}",
    BadNameError,
    NamespaceNotFoundError,
    TopicExistsError,
    WrongKindError,
    LimitReachedError,
    StorageFailedError,
    StorageUncertainError,
)
async def create_topic(
    admin: Admin, where: TopicPath, body: NewLive | NewStream | NewTimeline | NewPriority
) -> Made[TopicDescription]:
    """Make a topic, or find it there with the same settings."""
    is_new = not admin.topics.exists(where.name)
    kind = str(body.__struct_config__.tag)
    if isinstance(body, NewLive | NewStream):
        stream = body.settings() if isinstance(body, NewStream) else None
        await admin.topics.create(where.name, kind=kind, partitions=body.partitions, stream=stream)
    else:
        await admin.topics.create(where.name, kind=kind, timeline=body.settings(kind))
    return Made(admin.topics.describe(where.name), is_new)


@TOPICS.route(
    "PATCH",
    "/namespaces/{namespace}/topics/{topic}",
    BadNameError,
    TopicNotFoundError,
    WrongKindError,
    StorageFailedError,
    StorageUncertainError,
)
async def update_topic(admin: Admin, where: TopicPath, body: TopicChanges) -> TopicDescription:
    """Change settings of a stream and of all its partitions.

    Retention obeys the new limits within seconds, and drops what is beyond them.
    """
    await admin.topics.update(where.name, StreamChanges(**asdict(body)))
    return admin.topics.describe(where.name)


@TOPICS.route("DELETE", "/namespaces/{namespace}/topics/{topic}", BadNameError, TopicNotFoundError)
async def delete_topic(admin: Admin, where: TopicPath) -> None:
    """Remove a topic with its partitions and everything in them."""
    await admin.topics.delete(where.name)


@TOPICS.route(
    "POST",
    "/namespaces/{namespace}/topics/{topic}/purge",
    BadNameError,
    TopicNotFoundError,
    WrongKindError,
    StorageFailedError,
    StorageUncertainError,
)
async def purge_topic(admin: Admin, where: TopicPath, body: Purge) -> Purged:
    """Drop messages of a stream."""
    return Purged(messages=await admin.topics.purge(where.name, before=body.before))


@TOPICS.route(
    "GET", "/namespaces/{namespace}/topics/{topic}/partitions", BadNameError, TopicNotFoundError
)
async def list_partitions(admin: Admin, where: TopicPath) -> PartitionPage:
    """List the partitions of a topic; none when it is not partitioned."""
    found = admin.topics.describe(where.name)
    return PartitionPage(rows=found.reports if found.partitions else [])


@TOPICS.route(
    "PUT",
    "/namespaces/{namespace}/topics/{topic}/partitions",
    BadNameError,
    TopicNotFoundError,
    TopicExistsError,
    WrongKindError,
    LimitReachedError,
    StorageFailedError,
    StorageUncertainError,
)
async def grow_topic(admin: Admin, where: TopicPath, body: PartitionCount) -> PartitionPage:
    """Give a partitioned topic more partitions.

    Messages of a key that is sent after that may come to another partition than before. Nothing
    happens when it has as many.
    """
    kind = admin.broker.catalog.get(where.name)[0].kind
    await waiting.done(
        lambda done: admin.broker.grow_topic(where.name, body.partitions, done, kind=kind)
    )
    return PartitionPage(rows=admin.topics.describe(where.name).reports)


def _page(admin: Admin, query: TopicQuery, namespace: str) -> TopicPage:
    return admin.topics.page(
        namespace=namespace,
        pattern=full_name(query.pattern, namespace or DEFAULT_NAMESPACE),
        kind=query.kind,
        after=query.after,
        limit=query.limit,
    )
