"""Staging the rows of one task with a broker, invisible until they are published.

Always true of what `stage_rows` returns: it is staged whole, under words that nobody else has, so
that of two attempts at one task each can be published or forgotten alone.
"""

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4
from weakref import WeakKeyDictionary

from ister.base import full_name, parse_span, parse_topic
from ister.base.errors import IsterError, TopicExistsError, WrongKindError
from ister.base.limits import (
    KIB,
    MIB,
    NAME_BYTES_MAX,
    PARTITIONS_MAX,
    STAGE_KEEP_MS_MAX,
    STAGE_KEEP_MS_MIN,
    STAGE_TOPICS_MAX,
)
from ister.client import sync
from ister.codec import Codec, available
from ister.spark.clients import Broker
from ister.spark.options import ACCESS_NAMES, Form, broker_of
from ister.spark.sink.encoder import Encoded, Layout, RowEncoder, Target

if TYPE_CHECKING:
    import pyarrow as pa

WRITE_NAMES = (
    "url", "topic", "partitions", "createTopic", "compression", "producer",
    "stageKeep", "series", "number",
    *ACCESS_NAMES,
)  # fmt: skip

# A stage is published whole, and a publish has up to 1 GiB: with a quarter of it in a stage, a
# large job goes in steps that are nearly full.
STAGE_BYTES = 256 * MIB

# What is no more than this in the end goes to the broker in one step: the only event of a
# micro-batch takes one round trip, and one change of threads.
SMALL_BYTES = 64 * KIB

# Partitions that are added are written to after so long; until then a key stays where it was.
KNOWN_S = 10.0
# Topics of one process, with 100 B each.
KNOWN_MAX = 10_000

# An orphan keeps its place on the broker's disk for as long. A micro-batch takes seconds, or
# minutes when it catches up; a batch job may take hours from its first task to its commit.
STREAM_KEEP_S = 3_600.0
BATCH_KEEP_S = STAGE_KEEP_MS_MAX / 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What a write was told; nothing in it contradicts anything else."""

    broker: Broker = field(default_factory=Broker)
    # `None`: a column says it.
    topic: str | None = None
    # Of a topic that does not exist yet, and whether to make it.
    partitions: int = 0
    create_topic: bool = True
    codec: Codec = Codec.NONE
    producer: str = "spark"
    keep_s: float = STREAM_KEEP_S
    # Only of a batch: what tells a repetition of the same write.
    series: str = ""
    number: int = 0


def write_options(given: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Return the options of a write, or raise `ConfigError` with every mistake."""
    form = Form(given, WRITE_NAMES)
    for name in ("series", "number"):
        if streaming and form.has(name):
            form.mistakes.append(f"`{name}` is for a batch write: a stream numbers its own")
    if form.has("series") != form.has("number"):
        form.mistakes.append("`series` and `number` belong together: give both, or none")
    codec = Codec.parse(form.word("compression", ("none", "lz4", "zstd"), "none"))
    if codec not in available():
        form.mistakes.append("`compression`: run `pip install 'ister[compression]'`")
    options = WriteOptions(
        broker=broker_of(form),
        topic=form.parsed("topic", None, lambda text: parse_topic(full_name(text))),
        partitions=form.parsed("partitions", 0, _partitions),
        create_topic=form.flag("createTopic", default=True),
        codec=codec,
        producer=form.parsed("producer", "spark", _name),
        keep_s=form.parsed("stageKeep", STREAM_KEEP_S if streaming else BATCH_KEEP_S, _keep_s),
        series=form.parsed("series", "", _name),
        number=form.parsed("number", 0, _number),
    )
    form.finish("ister")
    return options


@dataclass(frozen=True, slots=True)
class Staged:
    """What one task has staged, and how many rows that is."""

    stages: tuple["StageSize", ...]
    rows: int


@dataclass(frozen=True, slots=True)
class StageSize:
    """A stage by its word, and how much is in it."""

    word: str
    size_bytes: int
    batches: int


def stage_rows(
    client: sync.Client,
    batches: "Iterable[pa.RecordBatch]",
    *,
    options: WriteOptions,
    layout: Layout,
    turn: int,
) -> Staged:
    """Stage all rows, or raise with nothing staged, as far as the broker can still be reached.

    `turn`: which partition the first rows without a key go to.
    """
    message_bytes_max, batch_bytes_max = client.batch_limits
    topics = _topics.setdefault(client, Topics())
    target = Target(
        layout,
        topic=options.topic,
        partitions_of=lambda topic: topics.partitions_of(
            client, options, topic, now_s=time.monotonic()
        ),
        message_bytes_max=message_bytes_max,
        batch_bytes_max=batch_bytes_max,
        producer=options.producer.encode(),
        codec=options.codec,
    )
    encoder = RowEncoder(target, turn=turn)
    staging = _Staging(client, options.keep_s)
    try:
        for rows in batches:
            for stream, batch in encoder.add(rows):
                staging.add(stream, batch)
        for stream, batch in encoder.finish():
            staging.add(stream, batch)
        staging.close()
    except BaseException:
        # A topic may have been made anew, with other partitions.
        topics.forget()
        staging.drop()
        raise
    return Staged(tuple(staging.closed), encoder.rows)


def ensure_topic(client: sync.Client, topic: str, *, partitions: int, create: bool) -> int:
    """Return how many partitions a stream has, 0 without any; with `create`, make a missing one.

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


def drop_stages(client: sync.Client, words: Iterable[str]) -> None:
    """Forget stages if the broker is there; otherwise they go when they are too old."""
    names = list(words)
    if not names or not client.connected:
        return
    try:
        client.drop_stages(names)
    except IsterError:
        pass  # As said: they go by themselves, and the caller has an error of its own.


class _Staging:
    """The stages of one task, one after the other."""

    def __init__(self, client: sync.Client, keep_s: float) -> None:
        self._client = client
        self._keep_s = keep_s
        # Of the stage that is being filled; its word, once the broker may know of it.
        self._word = ""
        self._open: sync.Stage | None = None
        self._bytes = 0
        self._batches = 0
        self._streams: set[str] = set()
        # Its first batches, as long as they are few.
        self._first: list[Encoded] = []
        self.closed: list[StageSize] = []

    def add(self, stream: str, batch: tuple[bytes, bytes]) -> None:
        """Stage a batch. Waits while the broker is behind."""
        self._bytes += len(batch[1])
        self._batches += 1
        self._streams.add(stream)
        self._first.append((stream, batch))
        if self._open is None and self._bytes > SMALL_BYTES:
            # It is opened with the first batch: a round trip less.
            self._open = self._client.stage(self._new_word(), keep=self._keep_s)
        if self._open is not None:
            for row in self._first:
                self._open.add(*row)
            self._first.clear()
        if self._bytes >= STAGE_BYTES or len(self._streams) >= STAGE_TOPICS_MAX:
            self.close()

    def close(self) -> None:
        """End the stage that is being filled: only now the broker says what is wrong."""
        if not self._batches:
            return
        if self._open is not None:
            report = self._open.close()
        else:
            word = self._new_word()
            report = self._client.stage_batches(word, self._first, keep=self._keep_s)
        self.closed.append(StageSize(self._word, report.size_bytes, self._batches))
        self._word, self._open = "", None
        self._bytes = self._batches = 0
        self._streams, self._first = set(), []

    def drop(self) -> None:
        """Forget everything."""
        words = [stage.word for stage in self.closed]
        drop_stages(self._client, [*words, self._word] if self._word else words)

    def _new_word(self) -> str:
        self._word = f"spark-{uuid4().hex}"
        return self._word


class Topics:
    """How many partitions the topics have that a process writes to."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, float]] = {}

    def partitions_of(
        self, client: sync.Client, options: WriteOptions, topic: str, *, now_s: float
    ) -> int:
        """Return how many partitions a stream topic has, 0 without any; make it if need be.

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
        """Ask anew: something was not as it was known."""
        self._known.clear()


# For all tasks of a process, as the clients are: a micro-batch of one row must not wait for an
# answer that the one before it got already.
_topics: WeakKeyDictionary[sync.Client, Topics] = WeakKeyDictionary()


def _partitions(text: str) -> int:
    return _whole(text, most=PARTITIONS_MAX)


def _number(text: str) -> int:
    return _whole(text, most=2**62)


def _whole(text: str, *, most: int) -> int:
    if not text.isdecimal() or int(text) > most:
        raise ValueError(f"is a whole number from 0 to {most}, not {text!r}")
    return int(text)


def _name(text: str) -> str:
    if len(text.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"is longer than {NAME_BYTES_MAX} B")
    return text


def _keep_s(text: str) -> float:
    seconds = parse_span(text)
    if not STAGE_KEEP_MS_MIN <= seconds * 1_000 <= STAGE_KEEP_MS_MAX:
        raise ValueError("is from 1s to 24h")
    return seconds
