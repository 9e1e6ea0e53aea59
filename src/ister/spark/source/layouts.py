"""Which columns a read has: those of every message, and those decoded from payloads.

Decoded columns come last. One that has the name of another column is called `value_<name>`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ister.base.errors import (
    BadSchemaError,
    ConfigError,
    NotFoundError,
    SchemaBindingNotFoundError,
    SchemaNotFoundError,
)
from ister.schemas import SchemaType, parse_schema, parse_type
from ister.spark.options import ReadOptions

if TYPE_CHECKING:
    from ister.client.sync import Client

    # The broker is asked only when there is something to ask: Spark plans in processes that are
    # new each time.
    Connect = Callable[[], Client]

# Says why a row was not decoded, with `decodeErrors` null.
ERROR_COLUMN: Final = "error"
# The one column of `valueFormat` string.
STRING_COLUMN: Final = "value"

COLUMNS: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("publish_time", TimestampType()),
        StructField("producer", StringType()),
        StructField("key", StringType()),
        StructField("payload", BinaryType()),
        StructField("attributes", MapType(StringType(), StringType())),
    ]
)
# What the registry calls the formats.
_TYPES: Final[Mapping[str, SchemaType]] = {
    "json": SchemaType.JSON_SCHEMA,
    "avro": SchemaType.AVRO,
    "protobuf": SchemaType.PROTOBUF,
}
_NAME: Final = re.compile(r"\s*(`(?:[^`]|``)+`|[^\s:`]+)\s*:?\s*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ValueSource:
    """How payloads are decoded: their format, the reader's schema, and renamed columns."""

    format: str
    type: str = ""
    definition: bytes = b""
    # Who is named in errors: a subject, or the format.
    name: str = ""
    # Columns that go by another name than in the payload, which is that of another column.
    renamed: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadLayout:
    """The columns of one read, in its order. It is pickled to executors."""

    schema: StructType
    # Of those, what comes with every message.
    own: tuple[str, ...]
    # Of those, what is decoded.
    decoded: tuple[str, ...] = ()
    with_error: bool = False
    source: ValueSource | None = None


def schema_of(options: ReadOptions, connect: "Connect") -> StructType | str:
    """Return all columns of a read, as types or in Spark's own words for them."""
    source, columns = _values(options, connect)
    back = {old: new for new, old in source.renamed.items()}
    if isinstance(columns, str):
        # Only Spark itself can read that.
        own = ", ".join(
            f"`{f.name}` {f.dataType.simpleString()}" for f in _message_columns(options)
        )
        fields = [f"{_quote(back.get(name, name))} {type_}" for name, type_ in split_ddl(columns)]
        tail = [f"`{ERROR_COLUMN}` string"] if options.null_errors else []
        return ", ".join([own, *fields, *tail])
    decoded = [StructField(back.get(f.name, f.name), f.dataType) for f in columns]
    tail_fields = [StructField(ERROR_COLUMN, StringType())] if options.null_errors else []
    return StructType([*_message_columns(options), *decoded, *tail_fields])


def layout_of(options: ReadOptions, schema: StructType, connect: "Connect") -> ReadLayout:
    """Return the layout of a read with exactly the columns of `schema`, or raise `ConfigError`."""
    names = [field.name for field in schema]
    known = COLUMNS.fieldNames()
    own = tuple(name for name in names if name in known)
    if options.value_format == "bytes":
        _check_known(names, known)
        return ReadLayout(schema, own)
    is_error = options.null_errors and ERROR_COLUMN in names
    decoded = tuple(n for n in names if n not in known and not (is_error and n == ERROR_COLUMN))
    if options.value_format == "json" and not options.value_schema and not options.value_subject:
        # The schema that the user gave says it all, unless it is the one that we gave Spark.
        source = _source_of_user_schema(options, connect)
        return ReadLayout(schema, own, decoded, with_error=is_error, source=source)
    source, columns = _values(options, connect)
    available = (
        [name for name, _ in split_ddl(columns)]
        if isinstance(columns, str)
        else columns.fieldNames()
    )
    back = {old: new for new, old in source.renamed.items()}
    error = [ERROR_COLUMN] if options.null_errors else []
    _check_known(names, [*known, *(back.get(name, name) for name in available), *error])
    return ReadLayout(schema, own, decoded, with_error=is_error, source=source)


def _check_known(names: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        listed = ", ".join(f"`{name}`" for name in unknown)
        raise ConfigError([f"a read has no column {listed}: it has {', '.join(known)}"])


def _message_columns(options: ReadOptions) -> list[StructField]:
    left_out = set()
    if not options.with_attributes:
        left_out.add("attributes")
    if not options.with_payload:
        left_out.add("payload")
    return [field for field in COLUMNS if field.name not in left_out]


def _source_of_user_schema(options: ReadOptions, connect: "Connect") -> ValueSource:
    try:
        return _values(options, connect)[0]
    except (ConfigError, NotFoundError, BadSchemaError):
        return ValueSource("json", name="json")


# What payloads are


def _values(options: ReadOptions, connect: "Connect") -> tuple[ValueSource, StructType | str]:
    """Return how payloads are decoded, and into what: types, or a list of fields in DDL."""
    match options.value_format:
        case "bytes":
            return ValueSource("bytes"), StructType([])
        case "string":
            columns = StructType([StructField(STRING_COLUMN, StringType())])
            return ValueSource("string", name="string"), columns
    given = options.value_schema
    if options.value_format == "json" and given:
        source = ValueSource("json", name="json")
        return replace(source, renamed=_renames([n for n, _ in split_ddl(given)], options)), given
    type_ = _TYPES[options.value_format]
    if given and _is_definition(given, options.value_format):
        definition, name = given.encode(), "valueSchema"
        given = ""
    else:
        definition, name = _fetch_schema(options, connect, type_)
    source = ValueSource(options.value_format, type_.value, definition, name)
    if given:
        return replace(source, renamed=_renames([n for n, _ in split_ddl(given)], options)), given
    from ister.spark.source.spark_types import columns_of

    found = columns_of(parse_schema(type_, definition))
    return replace(source, renamed=_renames(found.fieldNames(), options)), found


def _is_definition(text: str, value_format: str) -> bool:
    """Whether `valueSchema` is an Avro or Protobuf schema itself, and not a list of fields."""
    if value_format == "avro":
        return text.lstrip().startswith("{")
    return value_format == "protobuf" and re.search(r"\bmessage\s+\w+\s*\{", text) is not None


def _fetch_schema(options: ReadOptions, connect: "Connect", type_: SchemaType) -> tuple[bytes, str]:
    """Return the newest definition that the registry has for the topics, and its subject."""
    subject = options.value_subject or _subject(options, connect)
    try:
        found = connect().schemas.latest(subject)
    except SchemaNotFoundError:
        mistake = (
            f"no schema {subject!r} is registered for these topics: give `valueSchema`, or the "
            "`valueSubject` it goes by (`ister schemas list`)"
        )
        raise ConfigError([mistake]) from None
    if parse_type(found.type) is not type_:
        raise ConfigError(
            [f"schema {subject!r} is of type {found.type}, so `valueFormat` is not {type_.value}"]
        )
    return found.definition, subject


def _subject(options: ReadOptions, connect: "Connect") -> str:
    topics = list(options.topics)
    if options.pattern:
        topics = [one.topic for one in connect().topics(options.pattern) if one.kind == "stream"]
    subjects = sorted({_subject_of(topic, connect) for topic in topics})
    if len(subjects) != 1:
        what = f"are of schemas {', '.join(subjects)}" if subjects else "do not exist yet"
        raise ConfigError([f"the topics {what}: say which by `valueSubject`, or `valueSchema`"])
    return subjects[0]


def _subject_of(topic: str, connect: "Connect") -> str:
    from ister.client import default_subject

    try:
        return connect().schemas.binding(topic).subject
    except SchemaBindingNotFoundError:
        return default_subject(topic)


def _renames(names: Sequence[str], options: ReadOptions) -> dict[str, str]:
    """Return the columns, by their new names, that would have the name of another.

    In any case: Spark does not tell `Key` from `key`. Raises `ConfigError` when that is of no use.
    """
    taken = {*COLUMNS.fieldNames(), *([ERROR_COLUMN] if options.null_errors else [])}
    found = {f"value_{name}": name for name in names if name.lower() in taken}
    for new in {*found} & {*names}:
        raise ConfigError(
            [f"fields `{found[new]}` and `{new}` would be one column: leave one out of the schema"]
        )
    return found


# Lists of fields in DDL


def split_ddl(text: str) -> list[tuple[str, str]]:
    """Split `a int, b struct<c: int, d: decimal(10,2)>` into names and types.

    Only as far as that: the types are Spark's business. Raises `ConfigError`.
    """
    fields: list[tuple[str, str]] = []
    depth, start = 0, 0
    quoted = ""
    for slot, letter in enumerate(text + ","):
        if quoted:
            quoted = "" if letter == quoted else quoted
        elif letter in "`'\"":
            quoted = letter
        elif letter in "<(":
            depth += 1
        elif letter in ">)":
            depth -= 1
        elif letter == "," and depth == 0:
            fields.append(_field(text[start:slot]))
            start = slot + 1
    if depth or quoted:
        raise ConfigError([f"`valueSchema` {text[:60]!r}: brackets or quotes do not match"])
    return fields


def _field(text: str) -> tuple[str, str]:
    found = _NAME.fullmatch(text)
    if found is None or not found[2].strip():
        raise ConfigError(
            [f"`valueSchema` is a list as `id bigint, name string`, and {text.strip()!r} is none"]
        )
    name = found[1]
    if name.startswith("`"):
        name = name[1:-1].replace("``", "`")
    return name, found[2].strip()


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
