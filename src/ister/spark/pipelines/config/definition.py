"""What a pipeline is: the frozen result of reading a pipeline file or a decorated function.

Always true of a `Definition`, however it was made:
- names of sources, tables and step outputs are distinct: each becomes one view of its name;
- a step reads only views that come before it, a sink only views that exist;
- spans are in Spark's own words (`30 seconds`), local paths are absolute, SQL files are read;
- a secret is a reference (`Secret`) until somebody asks for its value with `reveal`;
- origins (`file:line`) are for messages: they take no part in comparisons or in `to_json_values`.

Nothing here imports PySpark: a definition is checked before Spark starts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from types import MappingProxyType

from ister.spark.pipelines.config.positions import FileLine
from ister.spark.pipelines.config.variables import Secret

# A text that may be a secret by reference. `reveal(value)` gives the text itself.
Text = str | Secret

NOWHERE = FileLine("", 0)

# What every source view has besides its decoded columns, unless the schema has a field of that
# name. A view of format `bytes` or `string` has `payload` too.
MESSAGE_COLUMNS = ("topic", "partition", "offset", "publish_time", "producer", "key")

# A query of dead letters is called by the view they come from: `dead_letters.orders`.
DEAD_LETTERS = "dead_letters"


def _no_options() -> Mapping[str, Text]:
    return MappingProxyType({})


class PayloadFormat(StrEnum):
    """How a message's payload is read or written."""

    BYTES = "bytes"
    STRING = "string"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class TableFormat(StrEnum):
    """The files of a reference table."""

    CSV = "csv"
    PARQUET = "parquet"
    JSON = "json"


class OutputMode(StrEnum):
    """Which rows of a changing result a sink gets: Spark's output mode."""

    APPEND = "append"
    UPDATE = "update"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """How late rows may be: `withWatermark(column, delay)`."""

    column: str
    delay: str
    delay_ms: int
    origin: FileLine = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicate:
    """Drop rows whose columns were seen before, within the watermark."""

    columns: tuple[str, ...]
    origin: FileLine = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSource:
    """Topics that are read as one view.

    Either `topics` or `pattern` is given. `schema` is DDL; `None` with json, avro or protobuf
    means: from the registry. `start` is `earliest`, `latest` or a time in ISO 8601 with a zone.
    """

    name: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    format: PayloadFormat = PayloadFormat.BYTES
    schema: str | None = None
    watermark: Watermark | None = None
    deduplicate: Deduplicate | None = None
    start: str = "earliest"
    max_rows_per_batch: int | None = None
    max_bytes_per_batch: int | None = None
    options: Mapping[str, Text] = field(default_factory=_no_options)
    origin: FileLine = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceTable:
    """Local files that are read once as a view. `path` is absolute; `options` are Spark's."""

    name: str
    path: str
    format: TableFormat
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    origin: FileLine = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlStep:
    """A SELECT over the views before it, which becomes the view `name`.

    `sql_origin` is where the SQL begins: below the step's own line, or in a file of its own.
    """

    name: str
    sql: str
    watermark: Watermark | None = None
    deduplicate: Deduplicate | None = None
    origin: FileLine = field(default=NOWHERE, compare=False)
    sql_origin: FileLine = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonStep:
    """A function from DataFrames to DataFrames. `call_function(step, frames)` calls it.

    `inputs` are the views it is given, in the order of its parameters. `outputs` are the views it
    makes: `(name,)` for a step of a file; for a decorated function one for each sink that names no
    view. A function that returns one DataFrame stands for all of them.
    `function` is `module:function`, looked for in `folder` first, or the function itself.
    """

    name: str
    function: str | Callable[..., object]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    folder: str = ""
    watermark: Watermark | None = None
    deduplicate: Deduplicate | None = None
    origin: FileLine = field(default=NOWHERE, compare=False)


PipelineStep = SqlStep | PythonStep


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    """A sink that writes rows as messages.

    `topic` is where they go, `route` a column that names the topic of each row; with both, `topic`
    takes the rows whose route is null. `key` and `attributes` are columns as well (text, and a map
    of texts). A json payload is an object of all columns but `route` and `attributes`: the key is
    part of it. A view with a column `payload` sends that as it is, whatever the format; string
    and bytes need it, or a view with one other column.
    """

    name: str
    view: str
    topic: str | None = None
    route: str | None = None
    key: str | None = None
    attributes: str | None = None
    format: PayloadFormat = PayloadFormat.JSON
    mode: OutputMode = OutputMode.APPEND
    options: Mapping[str, Text] = field(default_factory=_no_options)
    origin: FileLine = field(default=NOWHERE, compare=False)
    view_origin: FileLine = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink:
    """A sink that writes a Parquet table at `path`, in folders by the columns `partition_by`.

    `options` are those of `tables.batch_writer`: with mode `update`, `keys` tells by which columns
    a row replaces another, with commas between.
    """

    name: str
    view: str
    path: str
    partition_by: tuple[str, ...] = ()
    mode: OutputMode = OutputMode.APPEND
    options: Mapping[str, Text] = field(default_factory=_no_options)
    origin: FileLine = field(default=NOWHERE, compare=False)
    view_origin: FileLine = field(default=NOWHERE, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSink:
    """A sink that prints on the terminal, at most `rows` rows of each batch."""

    name: str
    view: str
    rows: int = 20
    mode: OutputMode = OutputMode.APPEND
    origin: FileLine = field(default=NOWHERE, compare=False)
    view_origin: FileLine = field(default=NOWHERE, compare=False)


PipelineSink = TopicSink | TableSink | ConsoleSink


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """When a batch starts: `every` so often, or when the one before has ended.

    With `available_now` the pipeline ends after the messages that were there at its start.
    """

    every: str | None = None
    available_now: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A whole pipeline.

    `broker`, what it wants to see, and `options` hold for every source and topic sink; an option
    of a source or a sink wins over them. `checkpoint` is an absolute folder or a URL; each sink's
    query has its own folder `<checkpoint>/<sink name>`. `file` is what the pipeline was read from,
    `folder` where its relative paths and its Python modules are. `settings` are Spark's.
    """

    name: str
    broker: Text
    sources: tuple[PipelineSource, ...]
    sinks: tuple[PipelineSink, ...]
    checkpoint: str
    # For the broker: a secret, and absolute paths; empty for none.
    token: Text = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tables: tuple[ReferenceTable, ...] = ()
    steps: tuple[PipelineStep, ...] = ()
    dead_letters: str | None = None
    trigger: Trigger = Trigger()
    options: Mapping[str, Text] = field(default_factory=_no_options)
    settings: Mapping[str, Text] = field(default_factory=_no_options)
    file: str = ""
    folder: str = ""
    origin: FileLine = field(default=NOWHERE, compare=False)

    def overridden(
        self,
        *,
        start: str | None = None,
        available_now: bool = False,
        checkpoint: str | None = None,
    ) -> "Definition":
        """Return the definition with values of the command line instead of those of the file.

        `start` holds for every source; it matters only where there is no checkpoint yet.
        """
        changed = self
        if start is not None:
            sources = tuple(replace(source, start=start) for source in self.sources)
            changed = replace(changed, sources=sources)
        if available_now:
            changed = replace(changed, trigger=Trigger(available_now=True))
        if checkpoint is not None:
            changed = replace(changed, checkpoint=checkpoint)
        return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How `ister pipeline run` runs a definition: the options of `run_pipeline`.

    `master` `None` is the machine itself, `local[*]`. With `as_json` progress is one JSON object
    per batch on stdout. `restart` repeats after failures that can pass. `start` is what the command
    line said for `Definition.overridden`, in its words: a sink with a checkpoint does not follow
    it, and somebody should be told.
    """

    master: str | None = None
    metrics_port: int | None = None
    as_json: bool = False
    restart: bool = True
    start: str | None = None


def reveal(value: Text) -> str:
    """Return a text, of a secret its value. Never print or store what this returns."""
    return value.reveal() if isinstance(value, Secret) else value


def broker_options(definition: Definition) -> dict[str, str]:
    """Return the options of the data source for the broker. Never print or store them."""
    options = {
        "url": reveal(definition.broker),
        "token": reveal(definition.token),
        "tlsCa": definition.tls_ca,
        "tlsCert": definition.tls_cert,
        "tlsKey": definition.tls_key,
    }
    return {name: value for name, value in options.items() if value}


def hide_secrets(text: str, definition: Definition) -> str:
    """Return a text with the secrets of a pipeline, wherever they are in it, as references."""
    parts = (definition, *definition.sources, *definition.sinks)
    given = [value for part in parts for value in getattr(part, "options", {}).values()]
    own = (definition.broker, definition.token)
    for value in (*own, *given, *definition.settings.values()):
        if isinstance(value, Secret):
            text = value.hidden(text)
    return text


def to_json_values(value: object) -> object:
    """Return a definition, or a part of it, as JSON values: for programs and for fingerprints.

    Secrets are their references, functions their names; origins are left out.
    """
    if is_dataclass(value) and not isinstance(value, type | Secret):
        found = {one.name: getattr(value, one.name) for one in fields(value) if one.compare}
        kind = {"kind": _KINDS[type(value)]} if type(value) in _KINDS else {}
        return kind | {key: to_json_values(inner) for key, inner in found.items()}
    if isinstance(value, Mapping):
        return {str(key): to_json_values(inner) for key, inner in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [to_json_values(inner) for inner in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    if callable(value):
        return f"{value.__module__}:{getattr(value, '__qualname__', '?')}"
    return str(value)


_KINDS: dict[type, str] = {
    SqlStep: "sql",
    PythonStep: "python",
    TopicSink: "topic",
    TableSink: "table",
    ConsoleSink: "console",
}
