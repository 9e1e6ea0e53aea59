"""A definition becomes DataFrames: every source, table and step a view, every sink a flow.

Nothing runs here. Spark analyses each step as it is built, so that a mistake in SQL is found
before the first query starts, and is told with the step's place in the file.

A pipeline is built twice: the first time shows which columns of its sources are needed. So the
functions of Python steps, which only describe what is to be done, are called twice as well.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ister.base.errors import IsterError
from ister.spark.dead_letters import (
    FAILED_COLUMN,
    letters_of_source,
    letters_of_step,
    rest_of_step,
)
from ister.spark.pipelines.analysis import call_function, import_beside
from ister.spark.pipelines.config import (
    DEAD_LETTERS,
    MESSAGE_COLUMNS,
    Deduplicate,
    Definition,
    FileLine,
    PayloadFormat,
    PipelineSink,
    PipelineSource,
    PipelineStep,
    PythonStep,
    ReferenceTable,
    SqlStep,
    TableFormat,
    TopicSink,
    Watermark,
    broker_options,
    reveal,
)
from ister.spark.pipelines.runtime.pruning import used_columns
from ister.spark.pipelines.sql import without_semicolon

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# What a dead letter of a source tells.
LETTER_COLUMNS = frozenset({"topic", "partition", "offset", "producer", "key", "payload"})
# Names of columns that no schema of a user has.
_VALUE = "_ister_value"
_CORRUPT = "_ister_corrupt"
_ITEMS = "_ister_items"
_REASON = "_ister_reason"

# What the data source calls `value_<name>` when the payload has a field of the name.
_TAKEN = (*MESSAGE_COLUMNS, "payload", "attributes", "error")

_NO_TEXT = "the payload is not UTF-8"
_WAY_OUT = (
    "mend it, or name a topic under `dead_letters` and the pipeline goes on without such rows"
)


class StepError(Exception):
    """Spark refused a part of the pipeline, or its function failed; the cause says why."""

    def __init__(self, origin: FileLine, part: str) -> None:
        super().__init__(f"{origin}: {part}")
        self.origin = origin
        self.part = part


@dataclass(frozen=True, slots=True)
class Flow:
    """A streaming query before it starts: its rows, its sink and the topics it reads."""

    sink: PipelineSink
    frame: "DataFrame"
    topics: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of its sink, and of its folder in the checkpoint."""
        return self.sink.name


def build(spark: "SparkSession", definition: Definition) -> list[Flow]:
    """Return the flows of a pipeline: those of its sinks, then those of its dead letters.

    Raises `StepError` with the part that Spark does not accept.
    """
    whole = _Builder(spark, definition, {})
    flows = whole.build()
    used = used_columns(spark, (flow.frame for flow in whole.on_views), whole.loaded)
    return _Builder(spark, definition, used).build() if used else flows


class _Builder:
    """Builds a pipeline once. Of a source that is in `used`, only those columns are read."""

    def __init__(
        self, spark: "SparkSession", definition: Definition, used: Mapping[str, set[str]]
    ) -> None:
        self._spark = spark
        self._definition = definition
        self._used = used
        # Sources as they come from the broker, before anything is decoded.
        self.loaded: dict[str, DataFrame] = {}
        # The flows that read views. Dead letters of a source read it for themselves.
        self.on_views: list[Flow] = []
        self._views: dict[str, DataFrame] = {}
        self._letters: list[Flow] = []

    def build(self) -> list[Flow]:
        for table in self._definition.tables:
            with _part(table.origin, f"table `{table.name}`"):
                self._show(table.name, _table(self._spark, table))
        for source in self._definition.sources:
            with _part(source.origin, f"source `{source.name}`"):
                self._show(source.name, self._source(source))
        for step in self._definition.steps:
            with _part(step.origin, f"step `{step.name}`"):
                self._step(step)
        topics = tuple(topic for source in self._definition.sources for topic in source.topics)
        flows = [Flow(sink, self._views[sink.view], topics) for sink in self._definition.sinks]
        self.on_views[:0] = flows
        return self.on_views + self._letters

    def _show(self, name: str, frame: "DataFrame") -> None:
        frame.createOrReplaceTempView(name)
        self._views[name] = frame

    def _source(self, source: PipelineSource) -> "DataFrame":
        dead_letters = self._definition.dead_letters
        if source.format is not PayloadFormat.BYTES and dead_letters is not None:
            # A source of its own, with what a letter says: the view may need far less.
            _, bad = _decode(source, self._load(source, LETTER_COLUMNS), may_refuse=False)
            name = self._definition.name
            letters = letters_of_source(bad, column(_REASON), pipeline=name)
            self._letters.append(self._letters_flow(source.name, letters))
        used = self._used.get(source.name, {*MESSAGE_COLUMNS, "payload"})
        good, _ = _decode(source, self._load(source, used), may_refuse=dead_letters is None)
        return _with_watermark(good, source.watermark, source.deduplicate)

    def _load(self, source: PipelineSource, used: Set[str]) -> "DataFrame":
        """Return the messages of a source; columns that nobody needs are there, and null."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        from ister.spark.source import COLUMNS

        options = read_options(self._definition, source)
        reader = self._spark.readStream.format("ister").options(**options)
        if by_source(source):
            return reader.load()
        names = (*MESSAGE_COLUMNS, "payload")
        # At least one: without any, Spark could not even count the rows.
        used = used or {"offset"}
        raw = reader.schema(StructType([COLUMNS[name] for name in names if name in used])).load()
        if used is not LETTER_COLUMNS:
            self.loaded[source.name] = raw
        return raw.select(
            *(
                f.col(name)
                if name in used
                else f.lit(None).cast(COLUMNS[name].dataType).alias(name)
                for name in names
            )
        )

    def _step(self, step: PipelineStep) -> None:
        if isinstance(step, SqlStep):
            made = {step.name: self._spark.sql(without_semicolon(step.sql))}
        else:
            send_modules_by_value(step)
            made = call_function(step, {name: self._views[name] for name in step.inputs})
        sifted: dict[int, DataFrame] = {}
        for name, frame in sorted(made.items()):
            # One DataFrame for several sinks: what fails in it is one dead letter, not several.
            if id(frame) not in sifted:
                sifted[id(frame)] = self._without_failed(name, frame)
            self._show(name, _with_watermark(sifted[id(frame)], step.watermark, step.deduplicate))

    def _without_failed(self, name: str, frame: "DataFrame") -> "DataFrame":
        """Return a step without the rows that it says have failed."""
        from pyspark.sql import functions as f

        if FAILED_COLUMN not in frame.columns:
            return frame
        if self._definition.dead_letters is None:
            where = f.lit(f"a row of step `{name}` failed")
            refused = _raise_on(frame, FAILED_COLUMN, where)
            return rest_of_step(refused)
        letters = letters_of_step(frame, step=name, pipeline=self._definition.name)
        self.on_views.append(self._letters_flow(name, letters))
        return rest_of_step(frame)

    def _letters_flow(self, view: str, letters: "DataFrame") -> Flow:
        sink = TopicSink(
            name=f"{DEAD_LETTERS}.{view}",
            view=view,
            topic=self._definition.dead_letters,
            key="key" if "key" in letters.columns else None,
            attributes="attributes",
        )
        return Flow(sink, letters)


def send_modules_by_value(step: PythonStep) -> None:
    """Have the code beside a pipeline go to Spark's workers with the functions that need it.

    They import modules by name, and know nothing of the pipeline's folder, which may be on another
    machine. So modules from there are sent by value; what is installed is not.
    """
    from pyspark.cloudpickle import register_pickle_by_value

    if isinstance(step.function, str):
        # If it cannot be imported, `call_function` says so.
        with suppress(ImportError):
            import_beside(step.function.partition(":")[0], step.folder)
        folder = Path(step.folder)
    else:
        folder = Path(inspect.getfile(inspect.unwrap(step.function))).parent
    for module in list(sys.modules.values()):
        path = Path(getattr(module, "__file__", None) or "/")
        is_installed = any(part in ("site-packages", "dist-packages") for part in path.parts)
        if path.is_relative_to(folder) and not is_installed and module.__name__ != "__main__":
            register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def read_options(definition: Definition, source: PipelineSource) -> dict[str, str]:
    """Return the options of the data source for a source of the pipeline."""
    options = broker_options(definition)
    if source.pattern is not None:
        options["pattern"] = source.pattern
    else:
        options["topics"] = ",".join(source.topics)
    if source.start in ("earliest", "latest"):
        options["startingOffsets"] = source.start
    else:
        options["startingTimestamp"] = source.start
    if source.max_rows_per_batch is not None:
        options["maxOffsetsPerTrigger"] = str(source.max_rows_per_batch)
    if source.max_bytes_per_batch is not None:
        options["maxBytesPerTrigger"] = str(source.max_bytes_per_batch)
    if by_source(source):
        options |= {"valueFormat": str(source.format), "decodeErrors": "null"}
        # A dead letter has the payload as it was.
        options["includePayload"] = "true"
        if source.schema is not None:
            options["valueSchema"] = source.schema
    for given in (definition.options, source.options):
        options |= {name: reveal(value) for name, value in given.items()}
    return options


def by_source(source: PipelineSource) -> bool:
    """Whether the data source decodes the payloads: Spark itself can do it only for JSON."""
    if source.format is PayloadFormat.JSON:
        return source.schema is None
    return source.format in (PayloadFormat.AVRO, PayloadFormat.PROTOBUF)


def _decode(
    source: PipelineSource, raw: "DataFrame", *, may_refuse: bool
) -> "tuple[DataFrame, DataFrame]":
    """Return the view of a source, and its undecodable messages with the reason.

    With `may_refuse` there is nobody to take the latter: the first one ends the query.
    """
    from pyspark.sql import functions as f

    if source.format is PayloadFormat.BYTES:
        return raw.select(*MESSAGE_COLUMNS, "payload"), raw.limit(0)
    if source.format is PayloadFormat.STRING:
        rows, values = _as_text(raw)
    elif by_source(source):
        rows, values = _as_decoded(raw)
    else:
        assert source.schema is not None, "by_source"
        rows, values = _as_json(raw, source.schema)
    if may_refuse:
        place = f.concat(f.lit("offset "), f.col("offset"), f.lit(" of "), f.col("topic"))
        where = f.concat(place, f.lit(", partition "), f.col("partition"))
        rows = _raise_on(rows, _REASON, where)
    is_good = column(_REASON).isNull()
    taken = {name.lower() for name in values}
    own = [name for name in MESSAGE_COLUMNS if name not in taken]
    view = rows.filter(is_good).select(*own, *(value.alias(name) for name, value in values.items()))
    return view, rows.filter(~is_good)


def _as_text(raw: "DataFrame") -> "tuple[DataFrame, dict[str, Column]]":
    from pyspark.sql import functions as f

    text = column("payload").cast("string")
    rows = raw.withColumn(_REASON, f.when(~f.is_valid_utf8(text), _NO_TEXT))
    return rows, {"payload": text}


def _as_decoded(raw: "DataFrame") -> "tuple[DataFrame, dict[str, Column]]":
    """Return what the data source has decoded: it tells the reason in a column `error`."""
    rows = raw.withColumnRenamed("error", _REASON)
    others = (*MESSAGE_COLUMNS, "payload", "attributes", _REASON)
    return rows, {
        # A field that is called as a column of the message goes before that.
        name.removeprefix("value_") if name.removeprefix("value_") in _TAKEN else name: column(name)
        for name in rows.columns
        if name not in others
    }


def _as_json(raw: "DataFrame", schema: str) -> "tuple[DataFrame, dict[str, Column]]":
    """Return JSON as Spark itself reads it.

    A field that is not there is null; one of the wrong type makes the whole message undecodable.
    Spark stops reading behind the first object, and would lose what follows it in the message. As
    the only item of a list, it has to be all there is.
    """
    from pyspark.sql import functions as f

    text = column("payload").cast("string")
    parsed = f.from_json(
        f.concat(f.lit(f'{{"{_ITEMS}":['), text, f.lit("]}")),
        f"`{_ITEMS}` array<struct<{schema}>>, `{_CORRUPT}` string",
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT},
    )
    items, corrupt = column(_VALUE)[_ITEMS], column(_VALUE)[_CORRUPT]
    value = f.get(items, f.lit(0))
    # `explode` keeps Spark from reading the JSON twice, once to filter and once for the columns.
    rows = raw.select("*", f.explode(f.array(parsed)).alias(_VALUE))
    reason = (
        f.when(f.length("payload") == 0, "the payload is empty")
        .when(~f.is_valid_utf8(text), _NO_TEXT)
        .when(
            value.isNull() | corrupt.isNotNull() | (f.size(items) > 1),
            "the payload is no JSON of the schema",
        )
    )
    names = rows.select(f.explode(items).alias("item")).select("item.*").columns
    return rows.withColumn(_REASON, reason), {name: value[name] for name in names}


def _raise_on(rows: "DataFrame", reason: str, where: "Column") -> "DataFrame":
    """Return rows that end the query with a clear text as soon as one of them has a reason."""
    from pyspark.sql import functions as f

    text = f.concat(where, f.lit(": "), column(reason), f.lit(f"; {_WAY_OUT}"))
    return rows.filter(f.when(column(reason).isNull(), f.lit(True)).otherwise(f.raise_error(text)))


def _with_watermark(
    frame: "DataFrame", watermark: Watermark | None, deduplicate: Deduplicate | None
) -> "DataFrame":
    if watermark is not None:
        frame = frame.withWatermark(watermark.column, watermark.delay)
    if deduplicate is not None:
        frame = frame.dropDuplicatesWithinWatermark(list(deduplicate.columns))
    return frame


def _table(spark: "SparkSession", table: ReferenceTable) -> "DataFrame":
    reader = spark.read.format(str(table.format))
    if table.format is TableFormat.CSV:
        # A file of names and values for people: the first line says what they are.
        reader = reader.option("header", "true")
    if table.schema is not None:
        reader = reader.schema(table.schema)
    return reader.options(**table.options).load(table.path)


def column(name: str) -> "Column":
    """Return a column by its name, whatever is in that."""
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")


@contextmanager
def _part(origin: FileLine, part: str) -> Iterator[None]:
    """Say which part of the pipeline it was that Spark refused, or whose function failed."""
    try:
        yield
    except IsterError:
        raise
    except Exception as error:
        raise StepError(origin, part) from error
