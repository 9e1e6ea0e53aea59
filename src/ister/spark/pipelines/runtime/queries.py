"""Flows become streaming queries: rows into messages, tables, or lines on the terminal.

Always true: each batch of a query has its effect once, however often Spark repeats it. Topics get
it by a number in a series of the query's own, tables by a list of batches in the table; only the
console may show a batch twice.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from ister.base import printable
from ister.base.errors import BadRequestError
from ister.spark.pipelines.config import (
    ConsoleSink,
    Definition,
    OutputMode,
    PayloadFormat,
    TableSink,
    TopicSink,
    Trigger,
    broker_options,
    reveal,
)
from ister.spark.pipelines.runtime.building import Flow, column
from ister.spark.tables import batch_writer

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# Where Spark tells a batch which query it is of: the same after every restart of a checkpoint.
_QUERY_PROPERTY = "sql.streaming.queryId"
# What a cell of the console shows of its value.
_CELL_CHARACTERS_MAX = 60


def start_query(flow: Flow, definition: Definition, out: IO[str] | None = None) -> "StreamingQuery":
    """Start the query of a flow, from its checkpoint if it has one.

    `out` is where a console sink prints, stdout if not given.
    """
    sink = flow.sink
    if isinstance(sink, TopicSink):
        writer = _to_topic(flow, sink, write_options(definition, sink))
    elif isinstance(sink, TableSink):
        options = {name: reveal(value) for name, value in sink.options.items()}
        writer = flow.frame.writeStream.foreachBatch(
            batch_writer(
                sink.path,
                partition_by=sink.partition_by,
                mode=str(sink.mode),
                topics=flow.topics,
                options=options,
            )
        )
    else:
        writer = flow.frame.writeStream.foreachBatch(_printer(sink, out))
    writer = writer.queryName(flow.name).outputMode(str(sink.mode))
    writer = writer.option("checkpointLocation", checkpoint_of(definition, flow.name))
    return _with_trigger(writer, definition.trigger).start()


def checkpoint_of(definition: Definition, name: str) -> str:
    """Return the folder of a flow's own checkpoint."""
    return f"{definition.checkpoint.rstrip('/')}/{name}"


def write_options(definition: Definition, sink: TopicSink) -> dict[str, str]:
    """Return the options of the data source for a topic sink."""
    options = broker_options(definition)
    if sink.topic is not None and sink.route is None:
        options["topic"] = sink.topic
    for given in (definition.options, sink.options):
        options |= {name: reveal(value) for name, value in given.items()}
    return options


def messages(frame: "DataFrame", sink: TopicSink) -> "DataFrame":
    """Return rows as messages: payload, and key, attributes and topic where the sink has them."""
    from pyspark.sql import functions as f

    columns = [_payload(frame, sink).cast("binary").alias("payload")]
    if sink.key is not None:
        columns.append(column(sink.key).cast("string").alias("key"))
    if sink.attributes is not None:
        attributes = column(sink.attributes).cast("map<string,string>")
        columns.append(attributes.alias("attributes"))
    if sink.route is not None:
        route = column(sink.route).cast("string")
        if sink.topic is not None:
            route = f.coalesce(route, f.lit(sink.topic))
        columns.append(route.alias("topic"))
    return frame.select(*columns)


def _to_topic(flow: Flow, sink: TopicSink, options: Mapping[str, str]) -> "DataStreamWriter":
    if sink.mode is OutputMode.APPEND:
        return messages(flow.frame, sink).writeStream.format("ister").options(**options)
    # Spark gives sinks in Python no updates, and takes a complete result for an overwrite. A batch
    # of its own gets both as rows, and is told from its repetition by the number.
    rows = messages(flow.frame, sink)

    def write(frame: "DataFrame", batch: int) -> None:
        query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_PROPERTY)
        if not query:
            # Without it all queries would share one series, and take each other's batches for
            # repetitions of their own.
            raise BadRequestError(
                "Spark does not say which query a batch is of: use another version"
            )
        from ister.spark.sink import series_of

        own = {"series": series_of(query, sink.topic), "number": str(batch)}
        frame.write.format("ister").options(**options, **own).mode("append").save()

    return rows.writeStream.foreachBatch(write)


def _payload(frame: "DataFrame", sink: TopicSink) -> "Column":
    from pyspark.sql import functions as f

    if "payload" in frame.columns:
        return f.col("payload")
    apart = {sink.route, sink.attributes}
    names = [name for name in frame.columns if name not in apart]
    if sink.format is PayloadFormat.JSON:
        # Fields that are null are left out, as everywhere in Spark.
        return f.to_json(f.struct(*(column(name) for name in names)))
    if sink.format in (PayloadFormat.STRING, PayloadFormat.BYTES):
        others = [name for name in names if name != sink.key]
        if len(others) == 1:
            return column(others[0])
        raise BadRequestError(
            f"{sink.origin}: sink `{sink.name}` writes {sink.format}, and view `{sink.view}` has "
            f"{len(others)} columns for it: call one of them `payload`"
        )
    raise BadRequestError(
        f"{sink.origin}: sink `{sink.name}` cannot write {sink.format}: encode it in a step as "
        "column `payload`, or write json"
    )


def _with_trigger(writer: "DataStreamWriter", trigger: Trigger) -> "DataStreamWriter":
    if trigger.available_now:
        return writer.trigger(availableNow=True)
    if trigger.every is not None:
        return writer.trigger(processingTime=trigger.every)
    return writer


# The console


def _printer(sink: ConsoleSink, given: IO[str] | None) -> "Callable[[DataFrame, int], None]":
    def write(frame: "DataFrame", batch: int) -> None:
        rows = frame.take(sink.rows + 1)
        if not rows:
            return
        # Asked for each time: a live view puts itself between, so that the two do not mix.
        out = given or sys.stdout
        is_cut = len(rows) > sink.rows
        out.write(f"{sink.name}, batch {batch}\n")
        out.write(text_table(frame.columns, [tuple(row) for row in rows[: sink.rows]]))
        out.write("...\n\n" if is_cut else "\n")
        out.flush()

    return write


def text_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows as lines with aligned columns."""
    shown = [[_cell(value) for value in row] for row in rows]
    widths = [
        max(len(name), *(len(row[slot]) for row in shown)) for slot, name in enumerate(columns)
    ]
    lines = [columns, *shown]
    return "".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        + "\n"
        for row in lines
    )


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes | bytearray):
        value = bytes(value).decode("utf-8", "replace")
    if hasattr(value, "asDict"):
        # A window, or another struct.
        text = " .. ".join(_cell(part) for part in value)
    else:
        text = printable(str(value))
    return text if len(text) <= _CELL_CHARACTERS_MAX else text[: _CELL_CHARACTERS_MAX - 1] + "…"
