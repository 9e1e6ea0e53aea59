"""Sinks of a pipeline file: what the file says. `runtime/queries.py` writes to them."""

import re
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType

from ister.spark.pipelines.config.definition import (
    ConsoleSink,
    OutputMode,
    PayloadFormat,
    PipelineSink,
    TableSink,
    TopicSink,
)
from ister.spark.pipelines.config.elements import (
    NAME_LENGTH_MAX,
    absolute_path,
    check_name,
    is_url,
    label_of,
)
from ister.spark.pipelines.config.fields import Fields, Notes
from ister.spark.pipelines.config.options import check_options
from ister.spark.pipelines.config.positions import ConfigNode

TOPIC_SINK_KEYS = ("topic", "route", "key", "attributes", "format", "options")
TABLE_SINK_KEYS = ("table", "partition_by", "keys")
CONSOLE_SINK_KEYS = ("console", "rows")
SINK_KEYS = (
    "name", "from", "mode",
    *dict.fromkeys((*TOPIC_SINK_KEYS, *TABLE_SINK_KEYS, *CONSOLE_SINK_KEYS)),
)  # fmt: skip

# A console is for looking: more rows than a screen has say less.
CONSOLE_ROWS = 20


def sink(
    node: ConfigNode, notes: Notes, *, function: Callable[..., object] | None = None
) -> PipelineSink:
    """Return a sink. In a Python pipeline one without `from` takes what the function returns."""
    fields = Fields(node, what=label_of(node, "a sink", "sink"), known=SINK_KEYS, notes=notes)
    kinds = [key for key in ("topic", "table", "console") if fields.has(key)]
    if not kinds and fields.has("route"):
        kinds = ["topic"]
    if len(kinds) != 1 and fields.is_mapping:
        said = f"has {' and '.join(f'`{key}`' for key in kinds)}" if kinds else "leads nowhere"
        notes.mistake(node.origin, f"{fields.what} {said}: give one of `topic`, `table`, `console`")
    given = fields.text("name")
    view = _view_of(fields, given, function)
    kind = kinds[0] if kinds else "console"
    if len(kinds) == 1:
        _check_keys(fields, node, kind)
    if given is not None:
        check_name(given, "a sink", fields.origin_of("name"), notes)
    if kind == "topic":
        return _topic_sink(fields, given, view)
    if kind == "table":
        return _table_sink(fields, given, view, notes)
    if fields.has("console") and not fields.flag("console"):
        fields.mistake("console", "`console` is true, or the sink is left out")
    return ConsoleSink(
        name=given or f"console-{view}",
        view=view,
        rows=fields.count("rows") or CONSOLE_ROWS,
        mode=fields.choice("mode", OutputMode, OutputMode.APPEND),
        origin=node.origin,
        view_origin=fields.origin_of("from"),
    )


def _view_of(fields: Fields, name: str | None, function: Callable[..., object] | None) -> str:
    view = fields.text("from")
    if view is not None:
        return view
    if function is None:
        if not fields.has("from"):
            fields.missing("from", "the view that it takes")
        return ""
    return name or function.__name__


def _check_keys(fields: Fields, node: ConfigNode, kind: str) -> None:
    own = {"topic": TOPIC_SINK_KEYS, "table": TABLE_SINK_KEYS, "console": CONSOLE_SINK_KEYS}
    for entry in node.entries or ():
        if entry.key in SINK_KEYS and entry.key not in (*own[kind], "name", "from", "mode"):
            fields.note(entry.origin, f"a {kind} sink has no `{entry.key}`")


def _topic_sink(fields: Fields, name: str | None, view: str) -> TopicSink:
    topic, route = fields.topic("topic"), fields.text("route")
    derived = topic.strip("/").replace("/", ".") if topic else f"route-{route or view}"
    format_ = fields.choice("format", PayloadFormat, PayloadFormat.JSON)
    if format_ in (PayloadFormat.AVRO, PayloadFormat.PROTOBUF):
        said = f"a topic sink writes json, string or bytes; {format_} is read only"
        fields.mistake("format", said)
    options = fields.pairs("options")
    check_options(fields, options, writes=True)
    return TopicSink(
        name=name or derived[:NAME_LENGTH_MAX],
        view=view,
        topic=topic,
        route=route,
        key=fields.text("key"),
        attributes=fields.text("attributes"),
        format=format_,
        mode=fields.choice("mode", OutputMode, OutputMode.APPEND),
        options=options,
        origin=fields.origin,
        view_origin=fields.origin_of("from"),
    )


def _table_sink(fields: Fields, name: str | None, view: str, notes: Notes) -> TableSink:
    text = fields.text("table") or ""
    path = absolute_path(text, notes.folder)
    if is_url(path):
        fields.mistake("table", f"`{text}`: a table is a folder of this machine, by its path")
    mode, keys = fields.choice("mode", OutputMode, OutputMode.APPEND), fields.texts("keys")
    if mode is OutputMode.UPDATE and not keys:
        fields.missing("keys", "with `mode: update`, the columns that tell which row is replaced")
    elif keys and mode is not OutputMode.UPDATE:
        fields.mistake("keys", f"`keys` goes with `mode: update`, not `{mode}`")
    partition_by = fields.texts("partition_by")
    for column in sorted(set(partition_by) - set(keys)) if keys else ():
        fields.mistake("keys", f"`keys` needs the column `{column}` of `partition_by`, too")
    return TableSink(
        name=name or f"table-{re.sub(r'[^A-Za-z0-9_.-]', '-', Path(path).name) or view}",
        view=view,
        path=path,
        partition_by=partition_by,
        mode=mode,
        options=MappingProxyType({"keys": ",".join(keys)} if keys else {}),
        origin=fields.origin,
        view_origin=fields.origin_of("from"),
    )
