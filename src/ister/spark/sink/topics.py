"""The topics that rows are written to: looked up, and created when they are missing."""

from contextlib import suppress
from weakref import WeakKeyDictionary

from ister.base import parse_topic
from ister.base.errors import TopicExistsError, WrongKindError
from ister.client import sync
from ister.spark.sink.options import WriteOptions

# Partitions that are added are written to after so long; until then a key stays where it was.
KNOWN_S = 10.0
# Topics of one process, with 100 B each.
KNOWN_MAX = 10_000


def ensure_topic(client: sync.Client, topic: str, *, partitions: int, create: bool) -> int:
    """Return how many partitions a stream has, 0 without any; with `create`, create a missing one.

    Raises `WrongKindError` for a topic that stores nothing.
    """
    # The name comes from a row: empty or with wildcards, it would stand for topics of others.
    reports = client.topics(parse_topic(topic))
    if not reports and create:
        with suppress(TopicExistsError):  # Another task has made it in this very moment.
            client.create_topic(topic, kind="stream", partitions=partitions)
        reports = client.topics(topic)
    for report in reports:
        if report.kind != "stream":
            raise WrongKindError(
                topic,
                report.kind,
                "Spark writes to stream topics only; name another one, or delete it with "
                f"`ister topics delete {topic}`",
            )
    return sum(1 for report in reports if report.topic != topic)


class TopicPartitions:
    """The partition counts of the topics that a process writes to, cached for `KNOWN_S` seconds."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}

    def partitions_of(
        self, client: sync.Client, options: WriteOptions, topic: str, *, now_s: float
    ) -> int:
        """Return how many partitions a stream topic has, 0 without any; create it if it is missing.

        Raises `WrongKindError` for a topic that stores nothing.
        """
        partitions, learned_s = self._known.get(topic, (0, -KNOWN_S))
        if now_s - learned_s < KNOWN_S:
            return partitions
        partitions = ensure_topic(
            client, topic, partitions=options.partitions, create=options.create_topic
        )
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[topic] = partitions, now_s
        return partitions

    def forget(self) -> None:
        """Empty the cache: a topic was not as it was known."""
        self._known.clear()


# For all tasks of a process, as the clients are: a micro-batch of one row must not wait for an
# answer that the one before it got already.
_topics: WeakKeyDictionary[sync.Client, TopicPartitions] = WeakKeyDictionary()


def topics_of(client: sync.Client) -> TopicPartitions:
    """Return what this process knows of the topics of a broker."""
    return _topics.setdefault(client, TopicPartitions())
