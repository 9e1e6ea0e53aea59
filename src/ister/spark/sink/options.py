"""The options of a write, checked whole: all mistakes are reported together. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from ister.base import full_name, parse_span, parse_topic
from ister.base.limits import (
    NAME_BYTES_MAX,
    PARTITIONS_MAX,
    STAGE_KEEP_MS_MAX,
    STAGE_KEEP_MS_MIN,
)
from ister.codec import Codec, available
from ister.spark.clients import BrokerEndpoint
from ister.spark.options import ACCESS_NAMES, OptionForm, broker_of

WRITE_NAMES = (
    "url", "topic", "partitions", "createTopic", "compression", "producer",
    "stageKeep", "series", "number",
    *ACCESS_NAMES,
)  # fmt: skip

# An orphan keeps its place on the broker's disk for as long. A micro-batch takes seconds, or
# minutes when it catches up; a batch job may take hours from its first task to its commit.
STREAM_KEEP_S = 3_600.0
BATCH_KEEP_S = STAGE_KEEP_MS_MAX / 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The checked options of a write. No two of them contradict each other."""

    broker: BrokerEndpoint = field(default_factory=BrokerEndpoint)
    # `None`: a column of the rows names it.
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
    form = OptionForm(given, WRITE_NAMES)
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
        topic=form.convert("topic", None, lambda text: parse_topic(full_name(text))),
        partitions=form.convert("partitions", 0, _partitions),
        create_topic=form.flag("createTopic", default=True),
        codec=codec,
        producer=form.convert("producer", "spark", _name),
        keep_s=form.convert("stageKeep", STREAM_KEEP_S if streaming else BATCH_KEEP_S, _keep_s),
        series=form.convert("series", "", _name),
        number=form.convert("number", 0, _number),
    )
    form.finish("ister")
    return options


def series_of(query: str, topic: str | None) -> str:
    """Return the name of the series that the batches of a query are numbered in.

    With the topic in it, the same query may write to another one, and begin anew there.
    """
    series = f"spark/{query}/{topic or '*'}"
    if len(series.encode()) <= NAME_BYTES_MAX:
        return series
    return f"spark/{hashlib.sha256(series.encode()).hexdigest()}"


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
