"""What the admin model answers with, beside the reports of `ister.base`."""

from msgspec import Struct

from ister.base import StreamSettings, SubscriptionReport, TimelineSettings, TopicReport


class NamespacePolicies(Struct, frozen=True, kw_only=True):
    """What is allowed in a namespace; 0: no limit. The names are Danube's."""

    max_producers_per_topic: int = 0
    max_subscriptions_per_topic: int = 0
    max_consumers_per_topic: int = 0
    max_consumers_per_subscription: int = 0
    max_publish_rate: int = 0
    max_subscription_dispatch_rate: int = 0
    max_message_size: int = 0


class NamespaceReport(Struct, frozen=True, kw_only=True):
    """One namespace."""

    namespace: str
    topics: int
    policies: NamespacePolicies


class TopicPage(Struct, frozen=True, kw_only=True):
    """Some topics by name. `next` is what to ask after for more of them; empty: there are none."""

    rows: list[TopicReport]
    next: str = ""


class SubscriptionPage(Struct, frozen=True, kw_only=True):
    """Some subscriptions by topic and name; `next` as in `TopicPage`."""

    rows: list[SubscriptionReport]
    next: str = ""


class SchemaUse(Struct, frozen=True, kw_only=True):
    """The schema that a topic is bound to."""

    subject: str
    schema_id: int
    policy: str
    validate_payload: bool
    # What the topic takes: one version (0: any), or all from one on.
    version: int = 0
    min_version: int = 0
    # What the registry has now; empty and 0 when the subject was deleted.
    latest_version: int = 0
    type: str = ""
    mode: str = ""


class TopicDescription(Struct, frozen=True, kw_only=True):
    """One topic as it was made: with its partitions, if it has any."""

    topic: str
    kind: str
    # 0: it is not partitioned.
    partitions: int
    # Of the partitions; of the topic itself when it has none.
    reports: list[TopicReport]
    # By name, those by pattern included.
    subscriptions: list[str]
    settings: StreamSettings | None = None
    # Of a timeline, priority or cron topic.
    timeline: TimelineSettings | None = None
    schema: SchemaUse | None = None


class BrokerRow(Struct, frozen=True, kw_only=True):
    """One broker of the cluster, and the addresses of its doors (empty: closed)."""

    id: int
    name: str
    version: str
    role: str = "leader"
    status: str = "active"
    native: str = ""
    http: str = ""
    grpc: str = ""
    admin: str = ""


class BalanceReport(Struct, frozen=True, kw_only=True):
    """How evenly the topics are spread over brokers: their count for each, by broker id."""

    topics: dict[int, int]
    mean: float
    deviation: float


class MessageRow(Struct, frozen=True, kw_only=True):
    """One message of a stream, as it is stored."""

    topic: str
    offset: int
    publish_time_ms: int
    payload: bytes
    key: str | None = None
    attributes: dict[str, str] = {}
    id: str | None = None
    producer: str = ""
    schema_id: int = 0
    schema_version: int = 0
