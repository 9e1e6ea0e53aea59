"""Topics: list, describe, make, change, remove, purge."""

from collections.abc import Callable

from msgspec import structs

from ister.base import DEFAULT_NAMESPACE, Pattern, find_partition, full_name, parse_topic
from ister.base.errors import (
    BadRequestError,
    IsterError,
    SchemaBindingNotFoundError,
    SchemaNotFoundError,
)
from ister.broker import StreamTopic
from ister.operations import (
    PAGE_MAX,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    GrowTopic,
    ListPartitions,
    ListTopics,
    ListTopicsOfNamespace,
    Made,
    PartitionPage,
    Purged,
    PurgeTopic,
    SchemaUse,
    TopicDescription,
    TopicPage,
    UpdateTopic,
)
from ister.server.operations.namespaces import check_namespace
from ister.server.operations.node import Node, Pending, Steps, in_task, nothing


def list_topics(node: Node, asked: ListTopics) -> Steps[TopicPage]:
    """Return a page of topics by name: those that a pattern and a kind allow."""
    return _list(node, asked, "")


def list_topics_of_namespace(node: Node, asked: ListTopicsOfNamespace) -> Steps[TopicPage]:
    """Return a page of the topics of a namespace."""
    check_namespace(node, asked.namespace)
    return _list(node, asked, asked.namespace)


def _list(
    node: Node, asked: ListTopics | ListTopicsOfNamespace, namespace: str
) -> Steps[TopicPage]:
    start = f"/{namespace}/" if namespace else ""
    pattern = full_name(asked.pattern, namespace or DEFAULT_NAMESPACE) or (start and f"{start}>")
    if not pattern.startswith(start):
        return TopicPage(rows=[])
    limit = max(1, min(asked.limit, PAGE_MAX))
    rows, after = yield from node.broker.list_topics(pattern, after=asked.after, limit=limit)
    if not asked.kind:
        return TopicPage(rows=rows, next=after)
    rows = [row for row in rows if row.kind == asked.kind]
    # One more tells whether there is a next page.
    while after and len(rows) <= limit:
        more, after = yield from node.broker.list_topics(pattern, after=after, limit=PAGE_MAX)
        rows += [row for row in more if row.kind == asked.kind]
    return TopicPage(rows=rows[:limit], next=rows[limit - 1].topic if len(rows) > limit else "")


def describe_topic(node: Node, asked: DescribeTopic) -> TopicDescription:
    """Return one topic with its partitions, or raise `TopicNotFoundError`."""
    name, broker = asked.topic, node.broker
    timelines = broker.catalog.timelines
    if timelines is not None and timelines.has(name):
        report = broker.topic_report(name)
        return TopicDescription(
            topic=name,
            kind=report.kind,
            partitions=0,
            reports=[report],
            subscriptions=[],
            timeline=timelines.settings(name),
        )
    topics = broker.catalog.get(name)
    first = topics[0]
    return TopicDescription(
        topic=name,
        kind=first.kind,
        partitions=broker.partition_count(name),
        reports=[topic.report() for topic in topics],
        subscriptions=subscriptions_on(node, name),
        settings=first.record.settings if isinstance(first, StreamTopic) else None,
        schema=_schema_of(node, name),
    )


def topic_exists(node: Node, name: str) -> bool:
    """Whether there is a topic, partitioned topic, partition or timeline of that name."""
    catalog = node.broker.catalog
    if catalog.find(Pattern(parse_topic(name))):
        return True
    return catalog.timelines is not None and catalog.timelines.has(name)


def topic_identity(node: Node, name: str) -> str:
    """Return what tells a stream from others that had its name before; empty if there is none.

    It stays the same over restarts.
    """
    try:
        # Also of one that another broker has by now: it is the same stream there.
        first = node.broker.catalog.get(name)[0]
    except IsterError:
        return ""
    return f"{first.storage.name}/{first.record.topic}" if isinstance(first, StreamTopic) else ""


def subscriptions_on(node: Node, name: str) -> list[str]:
    """Return the names of the subscriptions on a topic or on one of its partitions."""
    names: set[str] = set()
    for topic in node.broker.catalog.find(Pattern(parse_topic(name))):
        if isinstance(topic, StreamTopic):
            names |= node.broker.durables.names_on(topic)
        else:
            names |= {subscription.name for subscription in topic.subscriptions}
    return sorted(names)


def _schema_of(node: Node, name: str) -> SchemaUse | None:
    """Return the schema that a topic, or that of which it is a partition, is bound to."""
    registry = node.known_registry
    if registry is None:
        return None
    partition = find_partition(name)
    try:
        binding = registry.binding(partition[0] if partition is not None else name)
    except SchemaBindingNotFoundError:
        return None
    use = SchemaUse(
        subject=binding.subject,
        schema_id=binding.schema_id,
        policy=str(binding.policy),
        validate_payload=binding.validate_payload,
        version=binding.version,
        min_version=binding.min_version,
    )
    try:
        subject = registry.subject(binding.subject)
    except SchemaNotFoundError:
        return use
    return structs.replace(
        use,
        latest_version=subject.latest_version,
        type=str(subject.type),
        mode=str(subject.mode),
    )


def create_topic(node: Node, asked: CreateTopic) -> Pending[Made[TopicDescription]]:
    """Make a topic. When it exists with the same settings, nothing happens if `exist_ok`."""
    if not asked.exist_ok:
        node.broker.catalog.check_new(asked.topic)
    is_new = not topic_exists(node, asked.topic)
    return Pending(
        lambda done: node.broker.create_topic(
            asked.topic,
            done,
            kind=asked.kind,
            partitions=asked.partitions,
            stream=asked.stream,
            timeline=asked.timeline,
        ),
        lambda _: Made(describe_topic(node, DescribeTopic(asked.topic)), is_new),
    )


def update_topic(node: Node, asked: UpdateTopic) -> Pending[TopicDescription]:
    """Change settings of a stream and of all its partitions."""
    return Pending(
        lambda done: node.broker.update_topic(asked.topic, asked.changes, done),
        lambda _: describe_topic(node, DescribeTopic(asked.topic)),
    )


def delete_topic(node: Node, asked: DeleteTopic) -> Pending[None]:
    """Remove a topic with its partitions, everything in them, and its binding to a schema."""
    name, registry = asked.topic, node.known_registry
    partition = find_partition(parse_topic(name))
    if partition is not None and node.broker.partition_count(partition[0]):
        raise BadRequestError(
            f"{name} is a partition: delete {partition[0]!r}, with all its partitions"
        )

    def begin(done: Callable[[IsterError | None], object]) -> None:
        def on_deleted(error: IsterError | None) -> None:
            # At this very moment: whoever binds it later means another topic of its name.
            found = registry.find_binding(name) if registry is not None else None
            if error is not None or registry is None or found is None:
                done(error)
            else:
                in_task(registry.on_topic_deleted(found), done)

        node.broker.delete_topic(name, on_deleted)

    return Pending(begin, nothing)


def purge_topic(node: Node, asked: PurgeTopic) -> Pending[Purged]:
    """Drop the messages of a stream before an offset, or all."""
    before = -1 if asked.before is None else asked.before
    return Pending(lambda done: node.broker.purge(asked.topic, before, done), Purged)


def list_partitions(node: Node, asked: ListPartitions) -> PartitionPage:
    """Return the partitions of a topic in order."""
    found = describe_topic(node, DescribeTopic(asked.topic))
    return PartitionPage(rows=found.reports if found.partitions else [])


def grow_topic(node: Node, asked: GrowTopic) -> Pending[PartitionPage]:
    """Give a partitioned topic more partitions."""
    kind = asked.kind or node.broker.catalog.get(asked.topic)[0].kind
    return Pending(
        lambda done: node.broker.grow_topic(asked.topic, asked.partitions, done, kind=kind),
        lambda _: list_partitions(node, ListPartitions(asked.topic)),
    )
