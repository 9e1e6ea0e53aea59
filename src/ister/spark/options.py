"""The options of a read, checked whole: all mistakes are reported together. Pure.

Spark hands option names over in lower case; messages use the names as they are documented.
"""

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeVar

from ister.base import (
    DEFAULT_URL,
    MILLISECONDS_MIN,
    Origin,
    find_partition,
    full_name,
    is_wildcard,
    parse_pattern,
    parse_plain,
    parse_size,
    parse_span,
    parse_topic,
)
from ister.base.errors import BadNameError, ConfigError
from ister.base.limits import MIB, TIME_MS_MAX
from ister.spark.clients import BrokerEndpoint

# How long `latestOffset` waits for something new. Spark asks again at once, and stops a query
# without waiting for it; shorter only asks the broker more often.
POLL_S = 0.15
POLL_S_MAX = 60.0
# Of one micro-batch when no limit is given. A sink publishes up to 1 GiB at once, and what is
# stored compressed is larger there; 2.5 million rows of 100 B take a second or two.
BATCH_BYTES = 256 * MIB
# More tasks than this cost Spark's driver more than they gain.
TASKS_MAX = 100_000

VALUE_FORMATS = ("bytes", "string", "json", "avro", "protobuf")
STORE_PREFIX = "store."

# Of reads and writes: credentials, and the encryption of the connection.
ACCESS_NAMES = ("token", "tokenFile", "tlsCa", "tlsCert", "tlsKey")
READ_NAMES = (
    "url", "topic", "topics", "pattern",
    "startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp",
    "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions", "failOnDataLoss",
    "subscription", "includeAttributes", "includePayload",
    "valueFormat", "valueSchema", "valueSubject", "decodeErrors",
    "segments", "keyFile", "pushdown", "pollTimeout",
    *ACCESS_NAMES,
)  # fmt: skip
BATCH_ONLY = ("endingOffsets", "endingTimestamp", "pushdown")
STREAM_ONLY = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "subscription", "pollTimeout")
# Put there by Spark itself: `load("/default/orders")` is a topic; a folder of its warehouse, which
# `CREATE TABLE` adds, has a scheme. The others say nothing to us.
_PATH = "path"
_SCHEME = re.compile(r"\w+:")
_OF_SPARK = ("checkpointlocation", "queryname")

# As in Kafka's source: numbers that stand for words.
_LATEST = -1
_EARLIEST = -2
_T = TypeVar("_T")
_DIGITS = re.compile(r"-?\d+")


@dataclass(frozen=True, slots=True)
class ReadBound:
    """Where reading starts or ends.

    With origin OFFSET, `offsets` has it by topic and partition; what is not in it starts at the
    earliest and ends at the latest message. With TIME, `at_ms` is milliseconds since 1970.
    """

    origin: Origin
    at_ms: int = 0
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)

    def offset(self, topic: str, partition: int, *, otherwise: Origin) -> Origin | int:
        """Return what is wanted of one partition: an offset, or the word for it."""
        if self.origin is not Origin.OFFSET:
            return self.origin
        wanted = self.offsets.get((topic, partition))
        if wanted is None:
            return otherwise
        return {_LATEST: Origin.LATEST, _EARLIEST: Origin.EARLIEST}.get(wanted, wanted)


EARLIEST = ReadBound(Origin.EARLIEST)
LATEST = ReadBound(Origin.LATEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The checked options of a read. No two of them contradict each other."""

    broker: BrokerEndpoint = field(default_factory=BrokerEndpoint)
    # Either topics, or a pattern.
    topics: tuple[str, ...] = ()
    pattern: str = ""
    start: ReadBound = EARLIEST
    end: ReadBound = LATEST
    # Of one micro-batch; 0: no limit.
    rows_max: int = 0
    bytes_max: int = 0
    # At least so many tasks, where there are rows enough.
    partitions_min: int = 1
    fail_on_data_loss: bool = True
    subscription: str = ""
    with_attributes: bool = False
    with_payload: bool = True
    value_format: str = "bytes"
    value_schema: str = ""
    value_subject: str = ""
    # Undecodable rows are null, with a column `error`; else they end the query.
    null_errors: bool = False
    from_segments: bool = True
    key_file: str = ""
    store_options: Mapping[str, str] = field(default_factory=dict)
    pushdown: bool = False
    poll_s: float = POLL_S


def read_options(given: Mapping[str, str], *, streaming: bool | None = None) -> ReadOptions:
    """Return the options of a read, or raise `ConfigError` with every mistake.

    `streaming` is true for a stream, false for a batch, and `None` where Spark has not said yet.
    """
    form = OptionForm(given, READ_NAMES)
    _check_mode(form, streaming=streaming)
    topics, pattern = _topics(form)
    value_format = form.word("valueFormat", VALUE_FORMATS, "bytes")
    is_decoded = value_format != "bytes"
    _check_values(form, value_format)
    options = ReadOptions(
        broker=broker_of(form),
        topics=topics,
        pattern=pattern,
        start=_bound(form, "starting", LATEST if streaming else EARLIEST, topics),
        end=_bound(form, "ending", LATEST, topics),
        rows_max=form.count("maxOffsetsPerTrigger", 0, most=2**53),
        bytes_max=form.convert("maxBytesPerTrigger", _bytes_max(form, streaming=streaming), _size),
        partitions_min=form.count("minPartitions", 1, most=TASKS_MAX),
        fail_on_data_loss=form.flag("failOnDataLoss", default=True),
        subscription=form.convert("subscription", "", lambda t: parse_plain(t, "a subscription")),
        with_attributes=form.flag("includeAttributes", default=False),
        with_payload=form.flag("includePayload", default=not is_decoded),
        value_format=value_format,
        value_schema=form.text("valueSchema"),
        value_subject=form.text("valueSubject"),
        null_errors=form.word("decodeErrors", ("fail", "null"), "fail") == "null",
        from_segments=form.word("segments", ("auto", "off"), "auto") == "auto",
        key_file=form.text("keyFile"),
        store_options=form.with_prefix(STORE_PREFIX),
        pushdown=form.flag("pushdown", default=False),
        poll_s=form.convert("pollTimeout", POLL_S, _poll),
    )
    _check_bounds(form, options)
    if not options.from_segments and (options.key_file or options.store_options):
        form.mistakes.append(
            "`segments` is off, so `keyFile` and `store.*` would do nothing: leave one out"
        )
    form.finish("ister")
    return options


def _bytes_max(form: "OptionForm", *, streaming: bool | None) -> int:
    """Return the limit of a stream that was given none."""
    return BATCH_BYTES if streaming and not form.has("maxOffsetsPerTrigger") else 0


class OptionForm:
    """Options by name, as Spark passes them. Mistakes are collected until `finish` reports them."""

    def __init__(self, given: Mapping[str, str], names: Sequence[str]) -> None:
        self.mistakes: list[str] = []
        self._names = names
        self._given = {str(name).lower(): str(value).strip() for name, value in given.items()}
        for name in _OF_SPARK:
            self._given.pop(name, None)
        if _SCHEME.match(self._given.get(_PATH, "")):
            del self._given[_PATH]
        if _PATH in self._given and "topic" in names:
            path = self._given.pop(_PATH)
            if self._given.setdefault("topic", path) != path:
                self.mistakes.append(f"`load({path!r})` and `topic` name two topics: keep one")
        self._check_names()

    def has(self, name: str) -> bool:
        """Whether an option was given."""
        return bool(self._given.get(name.lower()))

    def text(self, name: str, default: str = "") -> str:
        """Return an option as it is."""
        return self._given.get(name.lower()) or default

    def word(self, name: str, words: Sequence[str], default: str) -> str:
        """Return one of `words`, in any case."""
        found = self.text(name, default).lower()
        if found in words:
            return found
        self.mistakes.append(f"`{name}` is {' | '.join(words)}, not {found!r}")
        return default

    def flag(self, name: str, *, default: bool) -> bool:
        """Return whether an option is 'true'."""
        return self.word(name, ("true", "false"), "true" if default else "false") == "true"

    def count(self, name: str, default: int, *, most: int) -> int:
        """Return a whole number from 1 on."""
        return self.convert(name, default, lambda text: _count(text, most))

    def convert(self, name: str, default: _T, parse: Callable[[str], _T]) -> _T:
        """Return the option converted by `parse`, which raises `ValueError` for a mistake."""
        if not self.has(name):
            return default
        try:
            return parse(self.text(name))
        except (ValueError, BadNameError) as error:
            self.mistakes.append(f"`{name}`: {error}")
            return default

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """Return the options below a prefix, without it."""
        return {
            name.removeprefix(prefix): value
            for name, value in self._given.items()
            if name.startswith(prefix)
        }

    def finish(self, source: str) -> None:
        """Raise `ConfigError` when there were mistakes."""
        if self.mistakes:
            raise ConfigError([f"option of {source!r}: {mistake}" for mistake in self.mistakes])

    def _check_names(self) -> None:
        known = {name.lower(): name for name in self._names}
        unknown = [
            name for name in self._given if name not in known and not name.startswith(STORE_PREFIX)
        ]
        for name in unknown:
            near = difflib.get_close_matches(name, known, n=2)
            hint = f": did you mean {' or '.join(f'`{known[n]}`' for n in near)}?" if near else ""
            self.mistakes.append(f"`{name}` is unknown{hint}")
        if unknown:
            listed = ", ".join((*self._names, f"{STORE_PREFIX}*"))
            self.mistakes.append(f"the known ones are {listed}")


def broker_of(form: OptionForm) -> BrokerEndpoint:
    """Return the broker of a read or a write, with the credentials for it."""
    url = form.text("url", DEFAULT_URL)
    if "@" in url:
        # The text before `@` is most likely a secret: it is not shown.
        form.mistakes.append("`url` has no user or token in it: write option `token`")
    if form.has("token") and form.has("tokenFile"):
        form.mistakes.append("`token` and `tokenFile` are both there: keep one")
    if form.has("tlsCert") != form.has("tlsKey"):
        form.mistakes.append("`tlsCert` and `tlsKey` belong together: give both, or none")
    files = [name for name in ("tlsCa", "tlsCert", "tlsKey") if form.has(name)]
    if files and not url.startswith("isters://"):
        form.mistakes.append(f"`{files[0]}` is for TLS: write `url` as isters://, or leave it out")
    return BrokerEndpoint(
        url=url,
        token=form.text("token"),
        token_file=form.text("tokenFile"),
        tls_ca=form.text("tlsCa"),
        tls_cert=form.text("tlsCert"),
        tls_key=form.text("tlsKey"),
    )


# Contradictions


def _check_mode(form: OptionForm, *, streaming: bool | None) -> None:
    wrong = () if streaming is None else BATCH_ONLY if streaming else STREAM_ONLY
    for name in wrong:
        if form.has(name):
            here, there = ("batch read", "stream") if streaming else ("stream", "batch read")
            form.mistakes.append(f"`{name}` is for a {here}: leave it out of a {there}")


def _topics(form: OptionForm) -> tuple[tuple[str, ...], str]:
    given = [name for name in ("topic", "topics", "pattern") if form.has(name)]
    if len(given) != 1:
        what = f"{' and '.join(f'`{name}`' for name in given)} are both there" if given else "none"
        form.mistakes.append(
            f"one of `topic`, `topics` (joined by commas) and `pattern` is needed; {what}"
        )
        return (), ""
    if form.has("pattern"):
        return (), str(form.convert("pattern", "", lambda text: parse_pattern(full_name(text))))
    names = form.text(given[0]).split(",") if form.has("topics") else [form.text("topic")]
    found: dict[str, None] = {}
    for name in map(str.strip, names):
        if is_wildcard(name):
            form.mistakes.append(f"`{given[0]}`: {name!r} is a pattern: give it as `pattern`")
            continue
        try:
            found[parse_topic(full_name(name))] = None
        except BadNameError as error:
            form.mistakes.append(f"`{given[0]}`: {error}")
    for name in list(found):
        part = find_partition(name)
        if part is not None and part[0] in found:
            form.mistakes.append(f"`topics`: {name!r} is a partition of {part[0]!r}, named as well")
    return tuple(found), ""


def _check_values(form: OptionForm, value_format: str) -> None:
    if value_format == "bytes":
        for name in ("valueSchema", "valueSubject", "decodeErrors"):
            if form.has(name):
                form.mistakes.append(f"`{name}` needs a `valueFormat` other than bytes")
        if form.has("includePayload") and not form.flag("includePayload", default=True):
            form.mistakes.append("`includePayload` is false, and nothing is decoded: say `.schema`")
    if value_format == "string":
        for name in ("valueSchema", "valueSubject"):
            if form.has(name):
                form.mistakes.append(f"`{name}` has no meaning with `valueFormat` string")
    if form.has("valueSchema") and form.has("valueSubject") and value_format == "json":
        form.mistakes.append("`valueSchema` and `valueSubject` both say what the columns are")


def _check_bounds(form: OptionForm, options: ReadOptions) -> None:
    start, end = options.start, options.end
    if start.origin is Origin.TIME and end.origin is Origin.TIME and start.at_ms > end.at_ms:
        form.mistakes.append("`startingTimestamp` is later than `endingTimestamp`")
    for key, offset in start.offsets.items():
        until = end.offsets.get(key, _LATEST)
        if 0 <= until < offset:
            form.mistakes.append(
                f"partition {key[1]} of {key[0]!r} starts at {offset} and ends at {until}"
            )


# Values


def _bound(form: OptionForm, which: str, default: ReadBound, topics: Sequence[str]) -> ReadBound:
    offsets, time = f"{which}Offsets", f"{which}Timestamp"
    if form.has(offsets) and form.has(time):
        form.mistakes.append(f"`{offsets}` and `{time}` are both there: keep one")
    if form.has(time):
        return form.convert(time, default, lambda text: ReadBound(Origin.TIME, parse_time_ms(text)))
    bound = form.convert(offsets, default, _offsets)
    is_first = bound.origin is Origin.EARLIEST or _EARLIEST in bound.offsets.values()
    if which == "ending" and is_first:
        form.mistakes.append(f"`{offsets}`: nothing is before the earliest (-2) message")
    bases = {found[0] if (found := find_partition(name)) else name for name in topics}
    for topic in sorted({topic for topic, _ in bound.offsets} - bases):
        if topics:
            form.mistakes.append(f"`{offsets}` names {topic!r}, which is not read")
    return bound


def parse_time_ms(text: str) -> int:
    """Return milliseconds since 1970 of ISO 8601 with a zone, or of such a number."""
    if _DIGITS.fullmatch(text):
        found = int(text)
        if 0 < found < MILLISECONDS_MIN:
            raise ValueError(f"{text!r} is in seconds since 1970: write milliseconds, {found}000")
    else:
        try:
            time = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(
                f"{text!r} is no time: write 2026-01-31T12:00:00Z, or milliseconds since 1970"
            ) from None
        if time.tzinfo is None:
            raise ValueError(f"{text!r} has no time zone: write {time.isoformat()}Z")
        found = round(time.timestamp() * 1000)
    if not 0 <= found < TIME_MS_MAX:
        raise ValueError(f"{text!r} is before 1970, or after 9999: are these milliseconds?")
    return found


def _offsets(text: str) -> ReadBound:
    if text.lower() in ("earliest", "latest"):
        return EARLIEST if text.lower() == "earliest" else LATEST
    shape = (
        'is earliest, latest, or JSON as {"/default/orders": {"0": 12, "1": -2}} '
        "(-2 earliest, -1 latest)"
    )
    try:
        given = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError(f"{shape}, not {text[:60]!r}") from None
    if not isinstance(given, dict):
        raise ValueError(f"{shape}, not {text[:60]!r}")
    found: dict[tuple[str, int], int] = {}
    for topic, partitions in given.items():
        name = parse_topic(full_name(topic))
        if not isinstance(partitions, dict):
            raise ValueError(f"{shape}; {topic!r} has no offsets by partition")
        for partition, offset in partitions.items():
            if not partition.isdecimal() or type(offset) is not int or offset < _EARLIEST:
                raise ValueError(f"{shape}; {partition!r}: {offset!r} of {topic!r} is none")
            found[name, int(partition)] = offset
    return ReadBound(Origin.OFFSET, offsets=found)


def _count(text: str, most: int) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ValueError(f"{text!r} is no whole number from 1 to {most}")
    return int(text)


def _size(text: str) -> int:
    try:
        found = parse_size(text)
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None
    if found < 1:
        raise ValueError("is 1 byte or more")
    return found


def _poll(text: str) -> float:
    try:
        found = parse_span(text)
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None
    if found > POLL_S_MAX:
        raise ValueError(f"is at most {POLL_S_MAX:.0f} s")
    return found
