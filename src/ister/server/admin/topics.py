"""Topics: list, describe, make, remove, purge."""

from collections.abc import Callable
from heapq import nsmallest
from typing import TYPE_CHECKING

from msgspec import structs

from ister.base import (
    Pattern,
    StreamChanges,
    StreamSettings,
    TimelineSettings,
    find_partition,
    matches,
    parse_pattern,
    parse_topic,
    partition_name,
)
from ister.base.errors import (
    BadRequestError,
    IsterError,
    SchemaBindingNotFoundError,
    SchemaNotFoundError,
    TopicExistsError,
)
from ister.broker import Broker, StreamTopic, Topic
from ister.server.admin import waiting
from ister.server.admin.reports import SchemaUse, TopicDescription, TopicPage

if TYPE_CHECKING:
    from ister.registry import Registry

# Rows of one page.
PAGE_MAX = 1_000


class Topics:
    """See the module."""

    def __init__(self, broker: Broker, registry: "Registry | None") -> None:
        self._broker = broker
        self._registry = registry

    def page(
        self,
        *,
        pattern: str = "",
        namespace: str = "",
        kind: str = "",
        after: str = "",
        limit: int = 100,
    ) -> TopicPage:
        """Return some topics and partitions by name: those a pattern, namespace and kind allow."""
        kinds = {t.name: t.kind for t in self.find(pattern=pattern, namespace=namespace)}
        kinds |= self._timelines(pattern, namespace)
        names = [n for n, one in kinds.items() if (not kind or one == kind) and n > after]
        limit = max(1, min(limit, PAGE_MAX))
        page = nsmallest(limit, names)
        more = page[-1] if len(names) > len(page) else ""
        return TopicPage(rows=[self._broker.topic_report(name) for name in page], next=more)

    def _timelines(self, pattern: str, namespace: str) -> dict[str, str]:
        """Return the timelines that a pattern and a namespace cover, each with its kind."""
        catalog, start = self._broker.catalog, f"/{namespace}/" if namespace else ""
        if catalog.timelines is None:
            return {}
        return {
            name: catalog.timelines.settings(name).kind
            for name in catalog.timeline_names()
            if name.startswith(start) and (not pattern or matches(pattern, name))
        }

    def find(self, *, pattern: str = "", namespace: str = "") -> list[Topic | StreamTopic]:
        """Return what a pattern and a namespace cover, timelines apart, in no order."""
        catalog = self._broker.catalog
        found = catalog.find(parse_pattern(pattern)) if pattern else catalog.topics.values()
        start = f"/{namespace}/" if namespace else ""
        return [topic for topic in found if topic.name.startswith(start)]

    def exists(self, name: str) -> bool:
        """Whether there is a topic, partitioned topic, partition or timeline of that name."""
        found = self._broker.catalog.find(Pattern(parse_topic(name)))
        return bool(found) or self._is_timeline(name)

    def _is_timeline(self, name: str) -> bool:
        timelines = self._broker.catalog.timelines
        return timelines is not None and timelines.has(name)

    def identity(self, name: str) -> str:
        """Return what tells a stream from others that had its name before; empty if there is none.

        It stays the same over restarts.
        """
        try:
            # Also of one that another broker has by now: it is the same stream there.
            first = self._broker.catalog.get(name)[0]
        except IsterError:
            return ""
        if not isinstance(first, StreamTopic):
            return ""
        return f"{first.storage.name}/{first.record.topic}"

    def describe(self, name: str) -> TopicDescription:
        """Return one topic with its partitions, or raise `TopicNotFoundError`."""
        if self._is_timeline(name):
            return self._describe_timeline(name)
        topics = self._broker.catalog.get(name)
        first = topics[0]
        return TopicDescription(
            topic=name,
            kind=first.kind,
            partitions=self._broker.partition_count(name),
            reports=[topic.report() for topic in topics],
            subscriptions=self.subscriptions(name),
            settings=first.record.settings if isinstance(first, StreamTopic) else None,
            schema=self.schema(name),
        )

    def _describe_timeline(self, name: str) -> TopicDescription:
        report = self._broker.topic_report(name)
        return TopicDescription(
            topic=name,
            kind=report.kind,
            partitions=0,
            reports=[report],
            subscriptions=[],
            timeline=self._broker.timelines.settings(name),
        )

    def subscriptions(self, name: str) -> list[str]:
        """Return the names of the subscriptions on a topic or on one of its partitions."""
        names: set[str] = set()
        for topic in self._broker.catalog.find(Pattern(parse_topic(name))):
            if isinstance(topic, StreamTopic):
                names |= self._broker.durables.names_on(topic)
            else:
                names |= {subscription.name for subscription in topic.subscriptions}
        return sorted(names)

    def schema(self, name: str) -> SchemaUse | None:
        """Return the schema that a topic, or that of which it is a partition, is bound to."""
        if self._registry is None:
            return None
        partition = find_partition(name)
        try:
            binding = self._registry.binding(partition[0] if partition is not None else name)
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
            subject = self._registry.subject(binding.subject)
        except SchemaNotFoundError:
            return use
        return structs.replace(
            use,
            latest_version=subject.latest_version,
            type=str(subject.type),
            mode=str(subject.mode),
        )

    async def create(
        self,
        name: str,
        *,
        kind: str = "live",
        partitions: int = 0,
        stream: StreamSettings | None = None,
        timeline: TimelineSettings | None = None,
        exist_ok: bool = True,
    ) -> None:
        """Make a topic. When it exists with the same settings, nothing happens if `exist_ok`."""
        if not exist_ok:
            self.check_new(name)
        await waiting.done(
            lambda done: self._broker.create_topic(
                name, done, kind=kind, partitions=partitions, stream=stream, timeline=timeline
            )
        )

    async def update(self, name: str, changes: StreamChanges) -> None:
        """Change settings of a stream and of all its partitions."""
        await waiting.done(lambda done: self._broker.update_topic(name, changes, done))

    def check_new(self, name: str) -> None:
        """Raise `TopicExistsError` when there is a topic, or a partition, of that name."""
        self._broker.catalog.check_new(name)

    async def add_partition(self, name: str, partition: int, *, kind: str) -> None:
        """Have a partitioned topic have one more partition: the next, making the first as well.

        Raises `TopicExistsError` when it is there, or when `name` is a topic without partitions.
        """
        self.check_next(name, partition)
        await waiting.done(
            lambda done: self._broker.grow_topic(name, partition + 1, done, kind=kind)
        )

    def check_next(self, name: str, partition: int) -> None:
        """Raise unless a partitioned topic, there or not, can have that partition next."""
        count = self._broker.partition_count(name)
        if not count:
            self.check_new(name)
        if partition < count:
            raise TopicExistsError(partition_name(name, partition), f"among {count} partitions")
        if partition > count:
            raise BadRequestError(f"the next partition of {name!r} is {count}, not {partition}")

    async def delete(self, name: str) -> None:
        """Remove a topic with its partitions, everything in them, and its binding to a schema."""
        partition = find_partition(parse_topic(name))
        if partition is not None and self._broker.partition_count(partition[0]):
            raise BadRequestError(
                f"{name} is a partition: delete {partition[0]!r}, with all its partitions"
            )
        await waiting.whole(self._delete(name))

    async def _delete(self, name: str) -> None:
        registry, binding = self._registry, None

        def start(done: Callable[[IsterError | None], object]) -> None:
            def on_done(error: IsterError | None) -> None:
                nonlocal binding
                # At this very moment: whoever binds it later means another topic of its name.
                if error is None and registry is not None:
                    binding = registry.find_binding(name)
                done(error)

            self._broker.delete_topic(name, on_done)

        await waiting.done(start)
        if registry is not None and binding is not None:
            await registry.on_topic_deleted(binding)

    async def purge(self, name: str, *, before: int | None = None) -> int:
        """Drop the messages of a stream before an offset, or all; return how many they were."""
        if before is not None and before < 0:
            raise BadRequestError(f"an offset is not below 0: {before}")
        offset = -1 if before is None else before
        return await waiting.result(lambda done: self._broker.purge(name, offset, done))
