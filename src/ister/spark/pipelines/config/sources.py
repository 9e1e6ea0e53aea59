"""Sources and reference tables of a pipeline file: what the file says."""

from datetime import datetime
from pathlib import Path

from ister.base import parse_size
from ister.spark.pipelines.config.definition import (
    PayloadFormat,
    PipelineSource,
    ReferenceTable,
    TableFormat,
)
from ister.spark.pipelines.config.elements import (
    absolute_path,
    as_mapping,
    check_view,
    deduplicate,
    is_url,
    watermark,
)
from ister.spark.pipelines.config.fields import Fields, Notes
from ister.spark.pipelines.config.options import check_options
from ister.spark.pipelines.config.positions import ConfigNode, FileLine
from ister.spark.pipelines.sql import BadDdlError, check_type, parse_ddl

SOURCE_KEYS = (
    "topic", "topics", "pattern", "format", "schema", "watermark", "deduplicate", "start",
    "max_rows_per_batch", "max_bytes_per_batch", "options",
)  # fmt: skip
TABLE_KEYS = ("path", "format", "schema", "options")

_SUFFIXES = {
    ".csv": TableFormat.CSV, ".json": TableFormat.JSON, ".jsonl": TableFormat.JSON,
    ".ndjson": TableFormat.JSON, ".parquet": TableFormat.PARQUET,
}  # fmt: skip


def source(name: str, node: ConfigNode, origin: FileLine, notes: Notes) -> PipelineSource:
    """Return a source. A text alone is its topic."""
    check_view(name, origin, notes)
    if isinstance(node.scalar, str) and node.given is None:
        node = as_mapping(node, "topic")
    fields = Fields(node, what=f"source `{name}`", known=SOURCE_KEYS, notes=notes)
    topics, pattern = _topics(fields)
    # A format with a mistake in it is said once; the schema is looked at all the same.
    is_typed = fields.has("format") and fields.has("schema")
    format_ = fields.choice(
        "format", PayloadFormat, PayloadFormat.JSON if is_typed else PayloadFormat.BYTES
    )
    schema = _schema(fields)
    if schema is not None and format_ is not PayloadFormat.JSON:
        fields.mistake("schema", _NO_SCHEMA[format_])
        schema = None
    found = PipelineSource(
        name=name,
        topics=topics,
        pattern=pattern,
        format=format_,
        schema=schema,
        watermark=watermark(fields, notes),
        deduplicate=deduplicate(fields, notes),
        start=_start(fields),
        max_rows_per_batch=fields.count("max_rows_per_batch"),
        max_bytes_per_batch=_size(fields, "max_bytes_per_batch"),
        options=fields.pairs("options"),
        origin=origin,
    )
    check_options(fields, found.options, reads=True, format_=found.format)
    return found


_NO_SCHEMA = {
    PayloadFormat.BYTES: "`schema` needs a `format`: add `format: json`",
    PayloadFormat.STRING: "`schema` does not go with format string, whose only column is `payload`",
    PayloadFormat.AVRO: "the schema of avro comes from the registry: leave `schema` out",
    PayloadFormat.PROTOBUF: "the schema of protobuf comes from the registry: leave `schema` out",
}


def table(name: str, node: ConfigNode, origin: FileLine, notes: Notes) -> ReferenceTable:
    """Return a reference table, whose files must be there."""
    check_view(name, origin, notes)
    if isinstance(node.scalar, str) and node.given is None:
        node = as_mapping(node, "path")
    fields = Fields(node, what=f"table `{name}`", known=TABLE_KEYS, notes=notes)
    text = fields.text("path")
    path = ""
    if text is None:
        if not fields.has("path"):
            fields.missing("path", "a file or a folder, relative to this file")
    else:
        path = absolute_path(text, notes.folder)
        if not is_url(path) and not Path(path).exists():
            fields.mistake("path", f"there is no `{text}` in {notes.folder or '.'}")
    guessed = _SUFFIXES.get(Path(path).suffix.lower())
    if guessed is None and path and not fields.has("format"):
        fields.missing("format", "csv, parquet or json")
    return ReferenceTable(
        name=name,
        path=path,
        format=fields.choice("format", TableFormat, guessed or TableFormat.PARQUET),
        schema=_schema(fields),
        options=fields.plain_pairs("options"),
        origin=origin,
    )


def parse_start(text: str) -> str:
    """Return `earliest`, `latest` or a time in ISO 8601 with its zone, or raise `ValueError`."""
    if text in ("earliest", "latest"):
        return text
    hint = "write earliest, latest or a time as 2026-11-15T10:00:00Z"
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"is no place to start: {hint}") from None
    if time.tzinfo is None:
        raise ValueError(f"has no time zone: {hint}")
    return time.isoformat()


def _topics(fields: Fields) -> tuple[tuple[str, ...], str | None]:
    given = [key for key in ("topic", "topics", "pattern") if fields.has(key)]
    if not given:
        fields.missing("topic", "or `topics`, or `pattern`")
    elif len(given) > 1:
        both = " and ".join(f"`{key}`" for key in given)
        fields.mistake(given[1], f"{fields.what} has {both}: give one of them")
    one = fields.topic("topic")
    many = [fields.check_topic("topics", text) for text in fields.texts("topics")]
    names = tuple(name for name in (one, *many) if name is not None)
    for name in sorted({name for name in names if names.count(name) > 1}):
        fields.mistake("topics", f"topic `{name}` is there twice")
    return names, fields.pattern("pattern")


def _start(fields: Fields) -> str:
    text = fields.text("start")
    if text is None:
        return "earliest"
    try:
        return parse_start(text)
    except ValueError as error:
        fields.mistake("start", f"`start: {text}` {error}")
        return "earliest"


def _size(fields: Fields, key: str) -> int | None:
    node = fields.find(key)
    if node is None or not isinstance(node.scalar, str):
        return fields.count(key)
    text = fields.text(key)
    if text is None:
        return None
    try:
        size = parse_size(text)
    except ValueError as error:
        fields.mistake(key, f"`{key}: {text}` {error}")
        return None
    if size < 1:
        fields.mistake(key, f"`{key}` is at least 1; this is {size}")
        return None
    return size


def _schema(fields: Fields) -> str | None:
    """Return the schema as DDL: it is written so, or as a list or mapping of fields."""
    node = fields.find("schema")
    if node is None:
        return None
    if node.items is not None or node.entries is not None:
        return _schema_of_fields(fields, node)
    text = fields.text("schema")
    if text is None:
        return None
    try:
        parse_ddl(text)
    except BadDdlError as error:
        fields.mistake("schema", f"schema of {fields.what}: {error}")
    return " ".join(text.split())


def _schema_of_fields(fields: Fields, node: ConfigNode) -> str | None:
    pairs: list[tuple[str, ConfigNode]] = []
    for item in node.items or (node,):
        if item.find("name") is not None and item.find("type") is not None:
            name, type_ = item.find("name"), item.find("type")
            assert name is not None
            assert type_ is not None
            pairs.append((str(name.scalar), type_))
        else:
            pairs.extend((entry.key, entry.value) for entry in item.entries or ())
    columns: list[str] = []
    for column, type_ in pairs:
        try:
            columns.append(f"`{column}` {check_type(str(type_.scalar))}")
        except BadDdlError as error:
            fields.note(type_.origin, f"schema of {fields.what}: column `{column}`: {error}")
    if not pairs:
        said = f"schema of {fields.what}: a field is `name: type`, as in `region: string`"
        fields.note(node.origin, said)
    return ", ".join(columns) or None
