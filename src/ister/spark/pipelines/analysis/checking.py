"""Whether the parts of a pipeline fit together, as far as can be told without Spark.

A mistake is certain: the pipeline could not run, or would do what nobody means. Where only Spark
can be sure (watermarks of aggregations and joins) it is a warning.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ister.base import did_you_mean, matches
from ister.spark.pipelines.analysis.functions import function_mistakes
from ister.spark.pipelines.config import (
    DEAD_LETTERS,
    MESSAGE_COLUMNS,
    ConsoleSink,
    Deduplicate,
    Definition,
    FileLine,
    Notes,
    OutputMode,
    PayloadFormat,
    PipelineSink,
    PipelineSource,
    PythonStep,
    SqlStep,
    TableSink,
    TopicSink,
    Watermark,
)
from ister.spark.pipelines.sql import BadDdlError, DdlColumn, Query, ViewName, analyse, parse_ddl

_TIMES = ("timestamp", "timestamp_ltz", "timestamp_ntz")
_WINDOWS = {"window", "session_window"}


@dataclass(slots=True)
class _View:
    """What is known about a view."""

    name: str
    origin: FileLine
    is_stream: bool
    # The columns of the watermarks that it and what it comes from have.
    watermarks: frozenset[str] = frozenset()
    # Steps with an aggregation that append mode cannot take.
    unbounded: tuple[str, ...] = ()
    is_aggregated: bool = False
    # Python can do anything: what is not seen may still be there.
    is_opaque: bool = False
    columns: tuple[DdlColumn, ...] | None = None
    is_source: bool = False


@dataclass(slots=True)
class _Views:
    """The views so far, by name in lower case: Spark tells no case apart."""

    notes: Notes
    later: frozenset[str]
    found: dict[str, _View] = field(default_factory=dict)

    def add(self, view: _View) -> None:
        before = self.found.get(view.name.lower())
        if before is not None:
            said = f"`{view.name}` is there twice, before at {before.origin}"
            self.notes.mistake(view.origin, said)
        elif view.name:
            self.found[view.name.lower()] = view

    def find(self, name: str, origin: FileLine, reader: str) -> _View | None:
        """Return a view, or note that it is not there."""
        view = self.found.get(name.lower())
        if view is not None:
            return view
        if name.lower() == reader.lower():
            said = f"step `{name}` reads itself"
        elif name.lower() in self.later:
            said = f"`{name}` is a step further down: move it above `{reader}`"
        else:
            said = f"there is no view `{name}`{self._hint(name)}"
        self.notes.mistake(origin, said)
        return None

    def _hint(self, name: str) -> str:
        known = [view.name for view in self.found.values()]
        # As they are written, whatever their case.
        near = did_you_mean(name, known) or did_you_mean(name.lower(), known)
        return near or (f"; there is {', '.join(f'`{one}`' for one in known)}" if known else "")


def check_definition(definition: Definition, notes: Notes) -> None:
    """Note what does not fit together."""
    names = frozenset(step.name.lower() for step in definition.steps)
    views = _Views(notes, names)
    for source in definition.sources:
        views.add(_source_view(source, notes))
    for table in definition.tables:
        columns = _columns(table.schema)
        views.add(_View(table.name, table.origin, is_stream=False, columns=columns))
    for step in definition.steps:
        if isinstance(step, SqlStep):
            views.add(_sql_view(step, views, notes))
        else:
            for view in _python_views(step, views, notes):
                views.add(view)
    for sink in definition.sinks:
        _check_sink(sink, views, notes)
    _check_places(definition, notes)
    _check_topics(definition, notes)


# -- sources --


def _source_view(source: PipelineSource, notes: Notes) -> _View:
    columns = _source_columns(source)
    if source.watermark is not None and columns is not None:
        _check_watermark(source.watermark, columns, f"source `{source.name}`", notes)
    if source.deduplicate is not None:
        if source.watermark is None:
            _say_unlimited(source.deduplicate, f"source `{source.name}`", notes)
        if columns is not None:
            _check_columns(source.deduplicate, columns, f"source `{source.name}`", notes)
    marks = frozenset({source.watermark.column.lower()} if source.watermark else ())
    return _View(
        source.name,
        source.origin,
        is_stream=True,
        watermarks=marks,
        columns=columns,
        is_source=True,
    )


def _source_columns(source: PipelineSource) -> tuple[DdlColumn, ...] | None:
    """Return the columns of a source's view; `None` where only the registry knows."""
    types = {"partition": "int", "offset": "bigint", "publish_time": "timestamp"}
    of_message = [DdlColumn(name, types.get(name, "string")) for name in MESSAGE_COLUMNS]
    if source.format in (PayloadFormat.BYTES, PayloadFormat.STRING):
        kind = "binary" if source.format is PayloadFormat.BYTES else "string"
        return (*of_message, DdlColumn("payload", kind))
    decoded = _columns(source.schema)
    if decoded is None:
        return None
    own = {column.name.lower() for column in decoded}
    return (*(column for column in of_message if column.name not in own), *decoded)


def _columns(schema: str | None) -> tuple[DdlColumn, ...] | None:
    if schema is None:
        return None
    try:
        return parse_ddl(schema)
    except BadDdlError:
        return None  # That has been said where the schema was read.


def _find_column(name: str, columns: Sequence[DdlColumn]) -> DdlColumn | None:
    return next((one for one in columns if one.name.lower() == name.lower()), None)


def _check_watermark(
    watermark: Watermark, columns: Sequence[DdlColumn], what: str, notes: Notes
) -> None:
    if not watermark.column:
        return
    column = _find_column(watermark.column, columns)
    if column is None:
        _say_no_column(watermark.column, columns, what, watermark.origin, notes)
    elif column.type not in _TIMES:
        said = f"a watermark needs a timestamp; `{column.name}` of {what} is {column.type}"
        notes.mistake(watermark.origin, said)


def _check_columns(
    deduplicate: Deduplicate, columns: Sequence[DdlColumn], what: str, notes: Notes
) -> None:
    for name in deduplicate.columns:
        if _find_column(name, columns) is None:
            _say_no_column(name, columns, what, deduplicate.origin, notes)


def _say_no_column(
    name: str, columns: Sequence[DdlColumn], what: str, origin: FileLine, notes: Notes
) -> None:
    known = [one.name for one in columns]
    hint = did_you_mean(name, known) or f"; it has {', '.join(known)}"
    notes.mistake(origin, f"{what} has no column `{name}`{hint}")


def _say_unlimited(deduplicate: Deduplicate, what: str, notes: Notes) -> None:
    said = (
        f"`deduplicate` of {what} needs a watermark: else every row ever seen would have to be kept"
    )
    notes.mistake(deduplicate.origin, said)


# -- steps --


def _sql_view(step: SqlStep, views: _Views, notes: Notes) -> _View:
    query = analyse(step.sql)
    _check_statement(step, query, notes)
    read = [view for one in query.views if (view := _find_at(step, one, views)) is not None]
    streams = {view.name: view for view in read if view.is_stream}
    marks = frozenset().union(*(view.watermarks for view in read))
    if query.has_join and len(streams) > 1:
        _warn_join(step, streams.values(), notes)
    unbounded = tuple(dict.fromkeys(one for view in read for one in view.unbounded))
    if streams and query.has_aggregation and _is_unbounded(query, streams.values(), marks):
        unbounded = (*unbounded, step.name)
    if step.deduplicate is not None and step.watermark is None and not marks and not _opaque(read):
        _say_unlimited(step.deduplicate, f"step `{step.name}`", notes)
    if step.watermark is not None:
        marks |= {step.watermark.column.lower()}
    return _View(
        step.name,
        step.origin,
        # Where a view is not known its mistake is said already: it may have been a stream.
        is_stream=bool(streams) or len(read) < len(query.views),
        watermarks=marks,
        unbounded=unbounded,
        is_aggregated=query.has_aggregation or any(view.is_aggregated for view in read),
        is_opaque=_opaque(read),
    )


def _find_at(step: SqlStep, one: ViewName, views: _Views) -> _View | None:
    start = step.sql_origin
    return views.find(one.name, FileLine(start.file, start.line + one.line), step.name)


def _check_statement(step: SqlStep, query: Query, notes: Notes) -> None:
    if query.statement_count > 1:
        said = f"step `{step.name}` has {query.statement_count} statements: give each its own step"
        notes.mistake(step.sql_origin, said)
    elif step.sql and query.statement_count == 0:
        notes.mistake(step.sql_origin, f"the SQL of step `{step.name}` is empty")
    elif not query.is_query:
        notes.mistake(
            step.sql_origin, f"step `{step.name}` is no query: it begins with SELECT or WITH"
        )


def _is_unbounded(query: Query, streams: Iterable[_View], marks: frozenset[str]) -> bool:
    """Whether append mode would never know that a group is done. When in doubt, it would."""
    if not marks:
        return not _opaque(streams)
    if not all(view.is_source for view in streams):
        return False  # A window may come from the step before, under any name.
    return not query.grouped_by & (_WINDOWS | marks)


def _opaque(views: Iterable[_View]) -> bool:
    return any(view.is_opaque for view in views)


def _warn_join(step: SqlStep, streams: Iterable[_View], notes: Notes) -> None:
    bare = [view.name for view in streams if not view.watermarks and not view.is_opaque]
    if bare:
        said = (
            f"step `{step.name}` joins streams, and {_and(bare)} has no watermark: all of its "
            "rows would be kept for ever"
        )
        notes.warn(step.origin, said)


def _python_views(step: PythonStep, views: _Views, notes: Notes) -> Iterable[_View]:
    read = [
        view
        for name in step.inputs
        if (view := views.find(name, step.origin, step.name)) is not None
    ]
    for said in function_mistakes(step):
        notes.mistake(said.origin, said.text)
    marks = frozenset().union(*(view.watermarks for view in read))
    if step.watermark is not None:
        marks |= {step.watermark.column.lower()}
    for name in step.outputs:
        yield _View(
            name,
            step.origin,
            is_stream=any(view.is_stream for view in read) or len(read) < len(step.inputs),
            watermarks=marks,
            is_opaque=True,
        )


# -- sinks --


def _check_sink(sink: PipelineSink, views: _Views, notes: Notes) -> None:
    if not sink.view:
        return
    view = views.find(sink.view, sink.view_origin, "")
    if view is None:
        return
    if not view.is_stream:
        said = f"sink `{sink.name}` takes `{view.name}`, which reads tables only and no source"
        notes.mistake(sink.origin, said)
    if sink.mode is OutputMode.APPEND and view.unbounded:
        said = (
            f"`mode: append` gives out a group once it is done, and in step "
            f"{_and(view.unbounded)} none ever is: group by a window of a column with a "
            f"watermark{_or_update(sink)}"
        )
        notes.warn(sink.origin, said)
    if sink.mode is OutputMode.COMPLETE and not view.is_aggregated and not view.is_opaque:
        said = f"`mode: complete` is for aggregations, and `{view.name}` has none"
        notes.warn(sink.origin, said)
    if view.columns is not None:
        for name in _columns_of(sink):
            if _find_column(name, view.columns) is None:
                _say_no_column(name, view.columns, f"view `{view.name}`", sink.origin, notes)


def _or_update(sink: PipelineSink) -> str:
    return "" if isinstance(sink, TableSink) else ", or use `mode: update`"


def _columns_of(sink: PipelineSink) -> tuple[str, ...]:
    if isinstance(sink, TopicSink):
        return tuple(one for one in (sink.key, sink.route, sink.attributes) if one)
    return sink.partition_by if isinstance(sink, TableSink) else ()


def _check_places(definition: Definition, notes: Notes) -> None:
    names: dict[str, PipelineSink] = {}
    places: dict[str, PipelineSink] = {}
    for sink in definition.sinks:
        place = _place(sink)
        if place and place in places:
            said = f"sinks at line {places[place].origin.line} and here both write {place}"
            notes.mistake(sink.origin, f"{said}: UNION their views in a step")
        elif sink.name in names:
            said = f"two sinks are named `{sink.name}`: give one another `name`"
            notes.mistake(sink.origin, said)
        elif sink.name.startswith(f"{DEAD_LETTERS}."):
            said = f"`{sink.name}` is what the dead letters of a view are called: give the sink"
            notes.mistake(sink.origin, f"{said} another `name`")
        names.setdefault(sink.name, sink)
        if place:
            places.setdefault(place, sink)


def _place(sink: PipelineSink) -> str:
    """Return what nobody else may write, in the words of a message."""
    match sink:
        case TopicSink(topic=topic) if topic:
            return f"topic `{topic}`"
        case TableSink():
            return f"table `{sink.path}`"
        case TopicSink() | ConsoleSink():
            return ""


def _check_topics(definition: Definition, notes: Notes) -> None:
    """Note topics that are read and written by the same pipeline."""
    for sink in definition.sinks:
        if isinstance(sink, TopicSink) and sink.topic:
            for source in _readers(definition.sources, sink.topic):
                said = f"source `{source.name}` reads what this sink writes: rows may go round"
                notes.warn(sink.origin, said)
    if definition.dead_letters:
        for source in _readers(definition.sources, definition.dead_letters):
            said = f"source `{source.name}` reads the dead letters it would write itself"
            notes.mistake(source.origin, said)


def _readers(sources: Iterable[PipelineSource], topic: str) -> list[PipelineSource]:
    return [
        source
        for source in sources
        if topic in source.topics or (source.pattern and matches(source.pattern, topic))
    ]


def _and(names: Sequence[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)
