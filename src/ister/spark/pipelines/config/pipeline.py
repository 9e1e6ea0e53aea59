"""A whole `Definition` from the values of a pipeline file or of a decorator's arguments."""

from collections.abc import Callable, Mapping

from ister.spark.intervals import interval_ms, interval_text
from ister.spark.pipelines.config.access import ACCESS_KEYS, access
from ister.spark.pipelines.config.definition import (
    Definition,
    PipelineSink,
    PythonStep,
    Text,
    Trigger,
)
from ister.spark.pipelines.config.elements import absolute_path, check_name
from ister.spark.pipelines.config.fields import Fields, Notes
from ister.spark.pipelines.config.options import check_options
from ister.spark.pipelines.config.positions import ConfigNode, FileLine
from ister.spark.pipelines.config.sinks import sink
from ister.spark.pipelines.config.sources import source, table
from ister.spark.pipelines.config.steps import step

PIPELINE_KEYS = (
    "name", *ACCESS_KEYS, "options", "sources", "tables", "steps", "sinks", "dead_letters",
    "trigger", "checkpoint", "settings",
)  # fmt: skip


def definition_of(
    node: ConfigNode,
    notes: Notes,
    function: Callable[..., object] | None = None,
    inputs: tuple[str, ...] = (),
) -> Definition:
    """Return the definition that the root of a pipeline describes; mistakes are in the notes.

    `function` is that of a Python pipeline, `inputs` the names of its parameters.
    """
    fields = Fields(node, what="a pipeline", known=PIPELINE_KEYS, notes=notes)
    name = _name(fields, notes)
    for key, hint in (("sources", "what it reads"), ("sinks", "where the result goes")):
        found = fields.find(key)
        is_empty = found is None or found.entries == () or found.items == ()
        if fields.is_mapping and is_empty:
            fields.missing(key, hint)
    steps = [step(one, notes) for one in fields.items("steps")]
    sinks = tuple(sink(one, notes, function=function) for one in fields.items("sinks"))
    if function is not None:
        steps.append(_function_step(function, inputs, sinks, notes, node.origin))
    options = fields.pairs("options")
    check_options(fields, options, reads=True, writes=True)
    way = access(fields, notes)
    return Definition(
        name=name,
        broker=way.broker,
        token=way.token,
        tls_ca=way.tls_ca,
        tls_cert=way.tls_cert,
        tls_key=way.tls_key,
        sources=tuple(source(*one, notes) for one in fields.named("sources")),
        tables=tuple(table(*one, notes) for one in fields.named("tables")),
        steps=tuple(steps),
        sinks=sinks,
        checkpoint=_checkpoint(fields, notes, name),
        dead_letters=fields.topic("dead_letters"),
        trigger=_trigger(fields),
        options=options,
        settings=_settings(fields),
        file=notes.file,
        folder=notes.folder,
        origin=node.origin,
    )


def _name(fields: Fields, notes: Notes) -> str:
    name = fields.text("name")
    if name is None:
        if fields.is_mapping and not fields.has("name"):
            fields.missing("name", "as in `orders-per-minute`")
        return "pipeline"
    check_name(name, "a pipeline", fields.origin_of("name"), notes)
    return name


def _function_step(
    function: Callable[..., object],
    inputs: tuple[str, ...],
    sinks: tuple[PipelineSink, ...],
    notes: Notes,
    origin: FileLine,
) -> PythonStep:
    known = {one.name for one in sinks} | {function.__name__}
    views = [one.view for one in sinks if one.view in known]
    return PythonStep(
        name=function.__name__,
        function=function,
        inputs=inputs,
        outputs=tuple(dict.fromkeys(views)) or (function.__name__,),
        folder=notes.folder,
        origin=origin,
    )


def _checkpoint(fields: Fields, notes: Notes, name: str) -> str:
    text = fields.text("checkpoint")
    return absolute_path(text or f".ister/{name}", notes.folder)


def _trigger(fields: Fields) -> Trigger:
    text = fields.text("trigger")
    if text is None:
        return Trigger()
    if text == "available_now":
        return Trigger(available_now=True)
    try:
        milliseconds = interval_ms(text)
    except ValueError as error:
        fields.mistake("trigger", f"`trigger: {text}` {error}, or `available_now`")
        return Trigger()
    return Trigger(every=interval_text(milliseconds)) if milliseconds else Trigger()


def _settings(fields: Fields) -> Mapping[str, Text]:
    node = fields.find("settings")
    for entry in (node.entries or ()) if node else ():
        if not entry.key.startswith("spark."):
            said = f"`{entry.key}` is no setting of Spark: they begin with `spark.`"
            fields.note(entry.origin, said)
    return fields.pairs("settings")
