"""What there is in a broker: namespaces, topics and partitioned topics, by name.

Always true:
- a topic's name is taken by a topic, by a partitioned topic or by a timeline, never by two;
- the partitions of a topic are numbered from 0 without gaps, are all of one kind, and have the
  same settings;
- what is made is there at once, and taken back when the journal does not take it; what is deleted
  is there until the journal has that.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from ister.base import (
    DEFAULT_NAMESPACE,
    OFF,
    SYSTEM_NAMESPACE,
    AutoCreate,
    Pattern,
    StreamSettings,
    TimelineSettings,
    TopicName,
    check_not_reserved,
    compile_pattern,
    find_partition,
    is_wildcard,
    namespace_of,
    parse_topic,
    partition_name,
)
from ister.base.errors import (
    BadNameError,
    BadRequestError,
    ConfigError,
    IsterError,
    LimitReachedError,
    NamespaceNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import Limits
from ister.broker.catalog.namespaces import Namespaces
from ister.broker.catalog.reports import SortedNames, Totals
from ister.broker.catalog.wanted import (
    TIMELINE_KINDS,
    check_same_settings,
    check_wanted,
    not_for_dead_letters,
)
from ister.broker.durable import OnTopic, takes_dead_letters
from ister.broker.live import AnyTopic, Topic
from ister.broker.scheduling import Done, Steps, ignore
from ister.broker.schema_checks import SchemaCheckOf, no_schema_check
from ister.broker.state import NamespaceCreated, State
from ister.broker.storage import Storage, Write
from ister.broker.streams import Streams, StreamTopic
from ister.broker.subscriptions import Durables
from ister.broker.timelines import Timelines

if TYPE_CHECKING:
    from ister.broker.catalog.subscribers import Subscribers
    from ister.broker.live import Subscription

# Of these, every storage knows without having been told.
ALWAYS_THERE = frozenset({DEFAULT_NAMESPACE, SYSTEM_NAMESPACE})

# Of names that two topics have, so many are listed.
CLASHES_SHOWN = 5


class Catalog:
    """The topics of a broker. Set `subscribers` before anything is made."""

    subscribers: "Subscribers"

    def __init__(
        self,
        *,
        limits: Limits,
        streams: Streams,
        durables: Durables,
        new_number: Callable[[], int],
        auto_create: AutoCreate,
    ) -> None:
        self.topics: dict[str, AnyTopic] = {}
        # The same, for listings.
        self.names = SortedNames()
        # Of a broker that has a store for them.
        self.timelines: Timelines | None = None
        self.schema_check_of: SchemaCheckOf = no_schema_check
        # Told of a partitioned topic that was made or has grown.
        self.on_partitions_added: Callable[[TopicName], object] = lambda _: None
        # What deleted topics had counted: totals never fall.
        self.gone = Totals()
        self.namespaces = Namespaces(
            always=ALWAYS_THERE,
            namespaces_max=limits.namespaces_max,
            storages=streams.storages,
            find_use=self._find_use,
        )
        self._limits = limits
        self._streams = streams
        self._durables = durables
        self._new_number = new_number
        self._auto_create = auto_create
        self._partitioned: dict[str, list[AnyTopic]] = {}
        # On their way out, with what is to be done then.
        self._deleting: dict[str, list[Callable[[], object]]] = {}

    def check_adoptable(self, state: State) -> None:
        """Raise `ConfigError` when a state has topics whose names are taken.

        One of the two would hide the other, with all its messages.
        """
        taken = sorted(name for name in state.names() if self.is_taken(name))
        if taken:
            listed = ", ".join(map(repr, taken[:CLASHES_SHOWN]))
            more = f" and {len(taken) - CLASHES_SHOWN} more" if len(taken) > CLASHES_SHOWN else ""
            mistake = (
                f"{listed}{more}: the data folder and the object store both have topics of these "
                "names, or the names are in use: run an interrupted `ister storage move` again, or "
                "start with only one of --data and --object-store, and delete the topics there"
            )
            raise ConfigError([mistake])

    def adopt(self, storage: Storage) -> None:
        """Take over what the state of a storage knows."""
        self.namespaces.adopt(storage.state.namespaces)
        for topic in self._streams.topics_of(storage).values():
            self._add(topic)
        for name, partitions in storage.state.partitioned.items():
            self._partitioned[name] = [
                self.topics[partition_name(name, n)] for n in range(partitions)
            ]

    def adopt_timelines(self, timelines: Timelines) -> None:
        """Take over the timelines of a store."""
        self.timelines = timelines
        self.namespaces.adopt(namespace_of(name) for name in timelines.names())

    # Finding

    def is_taken(self, name: str) -> bool:
        """Whether a topic has that name which is no timeline."""
        return name in self.topics or name in self._partitioned

    def find_kind(self, name: str) -> str | None:
        """Return the kind of the topic that has that name, unless it is a timeline."""
        parts = self._partitioned.get(name)
        topic = parts[0] if parts else self.topics.get(name)
        return None if topic is None else topic.kind

    def timeline_names(self) -> list[str]:
        """Return the names of the timelines."""
        return [] if self.timelines is None else self.timelines.names()

    def partitions(self, name: str, *, known: int = 0, kind: str = "") -> int:
        """Return the number of partitions, 0 for a topic without, making the topic if needed.

        `known` is the number a client remembers from before this broker was started anew: the
        topic, or that of which `name` is a partition, is made with as many again. So is `kind`,
        that of the topic when the client had it open.
        """
        topic = parse_topic(name)
        self._check_no_timeline(topic)
        if topic not in self._partitioned and topic not in self.topics:
            partition = find_partition(topic)
            forgotten = partition[0] if partition is not None and known else topic
            if kind == "stream":
                # It was deleted since: what is published is not for a live topic of its name.
                raise TopicNotFoundError(topic)
            again = known or kind
            made = "live" if again else self.kind_to_make(topic)
            self.create(forgotten, kind=made, partitions=known)
        if topic in self._partitioned:
            return len(self._partitioned[topic])
        if topic not in self.topics:
            raise TopicNotFoundError(topic)
        return 0

    def kind_to_make(self, name: TopicName) -> str:
        """Return the kind of a topic that is made by its use, or raise `TopicNotFoundError`."""
        kind = self._auto_create.kind_of(namespace_of(name))
        if kind == OFF:
            raise TopicNotFoundError(name)
        # A live topic would take no dead letters: they would come again and again.
        named = (durable.acks.dead_letter_topic for durable in self._durables)
        return "stream" if takes_dead_letters(name, named) else kind

    def partition_count(self, name: str) -> int:
        """Return the number of partitions of a topic, 0 for any other topic or pattern."""
        return len(self._partitioned.get(name, ()))

    def partitioned(self) -> dict[str, int]:
        """Return the partitioned topics by name, with the number of their partitions."""
        return {name: len(parts) for name, parts in self._partitioned.items()}

    def find(self, pattern: Pattern) -> list[AnyTopic]:
        """Return every topic that a name or pattern covers; none when there is none."""
        if is_wildcard(pattern):
            is_covered = compile_pattern(pattern)
            return [topic for name, topic in self.topics.items() if is_covered(name)]
        if pattern in self._partitioned:
            return list(self._partitioned[pattern])
        topic = self.topics.get(pattern)
        return [topic] if topic is not None else []

    def check_new(self, name: str) -> None:
        """Raise `TopicExistsError` when there is a topic, a partition or a timeline of a name."""
        if self.timelines is not None and self.timelines.has(name):
            raise TopicExistsError(name, f"as a {self.timelines.settings(name).kind} topic")
        found = self.find(Pattern(parse_topic(name)))
        if found:
            count = self.partition_count(name)
            parts = f" with {count} partitions" if count else ""
            raise TopicExistsError(name, f"as a {found[0].kind} topic{parts}")

    def get(self, name: str, kind: str = "") -> list[AnyTopic]:
        """Return a topic or the partitions of one, or raise `TopicNotFoundError` for a `kind`."""
        found = self.find(Pattern(parse_topic(name)))
        if not found:
            self._check_no_timeline(name)
            raise TopicNotFoundError(name, kind)
        return found

    def streams_of(self, name: str) -> list[StreamTopic]:
        """Return a stream topic or the partitions of one, or raise what is wrong with the name.

        Raises `ShardMovedError` when another broker has it.
        """
        streams = [t for t in self.get(name, "stream") if isinstance(t, StreamTopic)]
        if not streams:
            raise WrongKindError(name, "live", "this works on kind 'stream' only")
        streams[0].storage.committer.check_owned()
        return streams

    def plain_stream(self, name: str) -> StreamTopic:
        """Return a stream topic that has no partitions, or raise what is wrong with the name."""
        found = self.streams_of(name)
        if found[0].name != name:
            raise BadRequestError(f"topic {name!r} is partitioned: name its partitions")
        return found[0]

    def stream_to_write(self, name: str) -> StreamTopic:
        """Return a stream topic that has no partitions for a client to publish to, or raise."""
        check_not_reserved(name)
        return self.plain_stream(name)

    def find_stream(self, name: TopicName, settings: StreamSettings, done: OnTopic) -> None:
        """Find a stream topic without partitions, or make it."""
        check_not_reserved(name)
        found = self.topics.get(name)
        if isinstance(found, StreamTopic):
            done(found)
        elif found is not None or name in self._partitioned:
            done(not_for_dead_letters(name))
        else:

            def on_done(error: IsterError | None) -> None:
                # It may have been deleted again meanwhile.
                made = self._streams.by_name.get(name)
                done(error or made or TopicNotFoundError(name))

            self.create(name, on_done, kind="stream", stream=settings)

    def check_dead_letters(self, names: Collection[str]) -> None:
        """Raise when no dead letters may go to a topic, or when it is one that cannot take them.

        Several names are in one namespace and end alike: those of a subscription on many topics. Of
        those that are not there yet, one stands for all.
        """
        timelines, looked = self.timelines, False
        for name in names:
            is_there = name in self.topics or name in self._partitioned
            is_there = is_there or (timelines is not None and timelines.has(name))
            if is_there or not looked:
                self._check_dead_letters(name)
            looked = looked or not is_there

    def _check_dead_letters(self, name: str) -> None:
        check_not_reserved(name)
        found = self.topics.get(name)
        self._check_no_timeline(name)
        if name in self._partitioned or isinstance(found, Topic):
            raise not_for_dead_letters(name)
        if found is not None:
            return
        # As for anybody who creates a topic.
        if namespace_of(name) not in self.namespaces:
            raise NamespaceNotFoundError(namespace_of(name))
        if find_partition(name) is not None:
            raise BadNameError(name, "names ending in '-part-N' belong to partitioned topics")

    def refresh_schema_checks(self, topics: Iterable[AnyTopic]) -> None:
        """Look up the schema checks of some topics again."""
        for topic in topics:
            topic.schema_check = self.schema_check_of(topic.name)

    # Making

    def create(
        self,
        name: str,
        done: Done = ignore,
        *,
        kind: str = "live",
        partitions: int = 0,
        stream: StreamSettings | None = None,
        timeline: TimelineSettings | None = None,
    ) -> None:
        """Make a topic. Nothing happens when it exists with the same settings.

        It is there on return, and for good when `done` is told so; a timeline is there by then.
        """
        topic = parse_topic(name)
        check_not_reserved(topic)
        check_wanted(kind, partitions, stream, timeline)
        if kind in TIMELINE_KINDS:
            self._create_timeline(topic, timeline or TimelineSettings(kind=kind), done)
            return
        self._check_no_timeline(topic)
        if topic in self._partitioned or topic in self.topics:
            self._check_same(topic, kind, partitions, stream)
            self._tell_when_safe(topic, done)
            return
        if find_partition(topic) is not None:
            raise BadNameError(topic, "names ending in '-part-N' belong to partitioned topics")
        names = [partition_name(topic, n) for n in range(partitions)] or [topic]
        parse_topic(names[-1])  # The longest of the names.
        self._check_room(topic, len(names))
        if kind == "stream":
            self._create_streams(topic, names, stream or StreamSettings(), done)
            return
        topics = self._add_live(names)
        if partitions:
            self._partitioned[topic] = list(topics)
        done(None)

    def grow(
        self,
        name: str,
        partitions: int,
        done: Done = ignore,
        *,
        kind: str = "live",
        stream: StreamSettings | None = None,
    ) -> None:
        """Have a topic with that many partitions at least: made, or given more of them.

        The subscriptions on it cover the new ones from their first message on. Nothing happens
        when it has as many; raises `TopicExistsError` when it is another topic than was asked for.
        """
        topic = parse_topic(name)
        check_not_reserved(topic)
        check_wanted(kind, partitions, stream)
        if not partitions:
            raise BadRequestError("a topic grows by partitions: ask for 1 or more")
        if topic in self._deleting:
            # What is added now would be left over: it is not among what is deleted.
            again = _grow_again(self, topic, partitions, done, kind=kind, stream=stream)
            self._deleting[topic].append(again)
            return
        has = self.partition_count(topic)
        if not has and topic not in self.topics:
            self.create(topic, done, kind=kind, partitions=partitions, stream=stream)
            return
        first = self._check_same(topic, kind, has or partitions, stream)
        if has >= partitions:
            self._tell_when_safe(topic, done)
            return
        names = [partition_name(topic, n) for n in range(has, partitions)]
        parse_topic(names[-1])
        self._check_room(topic, len(names))
        if isinstance(first, StreamTopic):
            self._create_streams(topic, names, first.settings, done)
            return
        grown = self._add_live(names)
        self._partitioned[topic] += grown
        self.subscribers.on_grown(topic, first, grown)
        done(None)

    def _create_timeline(self, topic: TopicName, settings: TimelineSettings, done: Done) -> None:
        settings.check()
        if self.timelines is None:
            raise BadRequestError("this broker has no place for timelines")
        if self.is_taken(topic):
            self._check_same(topic, settings.kind, 0, None)
        if self.timelines.has(topic):
            check_same_settings(topic, self.timelines.report(topic).settings, settings)
            done(None)
            return
        if find_partition(topic) is not None:
            raise BadNameError(topic, "names ending in '-part-N' belong to partitioned topics")
        if settings.dead_letters:
            parse_topic(settings.dead_letters)
        self._check_room(topic, 1)
        self.timelines.create(topic, settings, done)

    def _create_streams(
        self, topic: TopicName, names: list[TopicName], settings: StreamSettings, done: Done
    ) -> None:
        """Make a stream, or partitions of one."""
        partitioned = names != [topic]
        known = topic in self._partitioned
        storage = self._streams.storage_for(settings.durability)
        if not known and (topic in self._partitioned or topic in self.topics):
            # It was in the data folder, which was opened only now: somebody else has filled it.
            self._check_same(topic, "stream", len(names) if partitioned else 0, settings)
            self._tell_when_safe(topic, done)
            return
        namespace = namespace_of(topic)
        if namespace not in ALWAYS_THERE and namespace not in storage.state.namespaces:
            storage.commit(Write(changes=[NamespaceCreated(namespace)]), ignore)
        made: list[StreamTopic] = []

        def on_done(error: IsterError | None) -> None:
            if error is not None:
                self._take_back(topic, made)
            done(error)

        made += self._streams.create(
            names,
            settings,
            on_done,
            partitioned=topic if partitioned else "",
            partitions=self.partition_count(topic) + len(names),
            cover=self._durables.plan_cover(names, storage, settings),
        )
        for part in made:
            self._add(part)
        if partitioned:
            self._partitioned.setdefault(topic, []).extend(made)
        self.subscribers.on_streams(made)
        if partitioned:
            self.on_partitions_added(topic)

    def _take_back(self, topic: TopicName, made: list[StreamTopic]) -> None:
        for part in made:
            if self.topics.get(part.name) is part:
                self._remove(part.name)
        left = [part for part in self._partitioned.pop(topic, ()) if part not in made]
        if left:
            self._partitioned[topic] = left

    def _add_live(self, names: Sequence[TopicName]) -> list[Topic]:
        topics = [Topic(name, self._new_number()) for name in names]
        for topic in topics:
            self._add(topic)
        self.subscribers.on_live(topics)
        return topics

    def _add(self, topic: AnyTopic) -> None:
        if topic.name not in self.topics:
            self.names.add(topic.name)
        self.topics[topic.name] = topic
        topic.schema_check = self.schema_check_of(topic.name)

    def _remove(self, name: str) -> None:
        if self.topics.pop(name, None) is not None:
            self.names.discard(name)

    def _tell_when_safe(self, topic: TopicName, done: Done) -> None:
        """Tell who finds a topic there: whoever made it may still wait for the journal."""
        part = self.get(topic)[-1]
        if isinstance(part, StreamTopic):
            part.storage.committer.after(done)
        else:
            done(None)

    def _check_same(
        self, topic: TopicName, kind: str, partitions: int, stream: StreamSettings | None
    ) -> AnyTopic:
        """Return the topic, or its first partition; raise when it is not the one asked for."""
        has = self.partition_count(topic)
        first = self.get(topic)[0]
        if has != partitions:
            raise TopicExistsError(topic, f"with {has} partitions, not {partitions}")
        if first.kind != kind:
            raise TopicExistsError(topic, f"as a {first.kind} topic, not {kind}")
        if isinstance(first, StreamTopic):
            check_same_settings(topic, first.record.settings, stream)
        return first

    def _check_room(self, name: TopicName, count: int) -> None:
        if namespace_of(name) not in self.namespaces:
            raise NamespaceNotFoundError(namespace_of(name))
        if len(self.topics) + len(self.timeline_names()) + count > self._limits.topics_max:
            raise LimitReachedError("topics_max", self._limits.topics_max)

    # Deleting

    def delete(self, name: str, done: Done = ignore) -> None:
        """Remove a topic with its partitions. Consumers of nothing else are closed."""
        topic = parse_topic(name)
        check_not_reserved(topic)
        if self.timelines is not None and self.timelines.has(topic):
            self.timelines.delete(topic, done)
            return
        partitioned = topic in self._partitioned
        if self._is_partition(topic):
            raise TopicNotFoundError(name)
        gone = self.get(topic)
        streams = [t for t in gone if isinstance(t, StreamTopic)]

        def on_deleted(error: IsterError | None) -> None:
            if error is None:
                forgotten = self._forget_parts(topic, gone)
                ended = self.subscribers.on_topics_gone({topic, *(t.name for t in forgotten)})
                self._streams.deletions.do(self._release(topic, forgotten, ended, done))
            else:
                self._end_deleting(topic, done, error)

        if streams:
            self._streams.delete(streams, on_deleted, partitioned=topic if partitioned else "")
            self._deleting.setdefault(topic, [])
        else:
            on_deleted(None)

    def _forget_parts(self, name: TopicName, parts: list[AnyTopic]) -> list[AnyTopic]:
        """Forget a topic, unless somebody else who deleted it has done so; return its parts."""
        gone = [part for part in parts if self.topics.get(part.name) is part]
        if gone:
            self._partitioned.pop(name, None)
        for part in gone:
            part.deleted = True
            self._remove(part.name)
        return gone

    def _release(
        self, name: TopicName, gone: list[AnyTopic], ended: "list[Subscription]", done: Done
    ) -> Steps:
        """End everybody who reads or subscribes to a deleted topic, then answer its deletion.

        There may be ten thousand of them. Nobody finds the topic any more; one of the same name
        that is created meanwhile is another topic, with subscriptions of its own.
        """
        reason = f"topic {name} was deleted"
        live = [part for part in gone if isinstance(part, Topic)]
        try:
            yield from self.subscribers.end(ended, live, reason)
            yield from self._streams.end_followers([t for t in gone if isinstance(t, StreamTopic)])
            names = {name, *(part.name for part in gone)}
            yield from self._durables.on_topics_gone(names, reason)
        finally:
            # Last: closing has counted what was still queued as dropped.
            for part in gone:
                self.gone.add(part)
            if live:
                # A stream of the same name may be under way by now, which others wait for.
                done(None)
            else:
                self._end_deleting(name, done, None)

    def _end_deleting(self, name: TopicName, done: Done, error: IsterError | None) -> None:
        done(error)
        for call in self._deleting.pop(name, ()):
            call()

    def _check_no_timeline(self, name: str) -> None:
        """Raise `WrongKindError` for what is not for timelines."""
        if self.timelines is not None and self.timelines.is_taken(name):
            raise WrongKindError(name, "timeline", "it is used by `client.timeline`")

    def _is_partition(self, name: str) -> bool:
        found = find_partition(name)
        return found is not None and found[0] in self._partitioned

    def _find_use(self, namespace: str) -> str:
        """Return what a namespace is in use by, empty when it is by nothing."""
        start = f"/{namespace}/"
        names = (*self.topics, *self.timeline_names())
        topics = sum(name.startswith(start) for name in names)
        if topics:
            return f"it has {topics} topics: delete them first"
        pattern = next((p for p in self.subscribers.patterns() if p.startswith(start)), "")
        return f"a subscription covers {pattern!r}: delete it first" if pattern else ""


def _grow_again(
    catalog: Catalog,
    topic: TopicName,
    partitions: int,
    done: Done,
    *,
    kind: str,
    stream: StreamSettings | None,
) -> Callable[[], None]:
    """Return what to do for who wants more of a topic that is being deleted."""

    def again() -> None:
        try:
            catalog.grow(topic, partitions, done, kind=kind, stream=stream)
        except IsterError as error:
            done(error)

    return again
