"""A pipeline from its file, YAML or TOML, or from a decorated function. Checked whole."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ister.base.errors import ConfigError
from ister.spark.intervals import interval_ms, interval_text
from ister.spark.pipelines.analysis.checking import check
from ister.spark.pipelines.config.access import ACCESS_KEYS, access
from ister.spark.pipelines.config.definition import Definition, PythonStep, Sink, Text, Trigger
from ister.spark.pipelines.config.elements import check_name, located
from ister.spark.pipelines.config.fields import Fields, Notes
from ister.spark.pipelines.config.options import check_options
from ister.spark.pipelines.config.parsing import FILE_BYTES_MAX, MalformedError, parse
from ister.spark.pipelines.config.positions import Node, Origin, Remark
from ister.spark.pipelines.config.sinks import sink
from ister.spark.pipelines.config.sources import source, table
from ister.spark.pipelines.config.steps import step

PIPELINE_KEYS = (
    "name", *ACCESS_KEYS, "options", "sources", "tables", "steps", "sinks", "dead_letters",
    "trigger", "checkpoint", "settings",
)  # fmt: skip

LANGUAGES = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of reading a pipeline. With a mistake among the remarks there is no definition."""

    definition: Definition | None
    remarks: tuple[Remark, ...]

    @property
    def mistakes(self) -> list[Remark]:
        """What has to be corrected."""
        return [one for one in self.remarks if not one.is_warning]

    @property
    def warnings(self) -> list[Remark]:
        """What is most likely not meant."""
        return [one for one in self.remarks if one.is_warning]

    def get(self) -> Definition:
        """Return the definition, or raise `ConfigError` with every mistake."""
        if self.definition is None:
            raise ConfigError([str(one) for one in self.mistakes])
        return self.definition


def read_file(
    path: Path,
    *,
    chosen: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Outcome:
    """Read and check a pipeline file. `chosen` are the variables of `--set`."""
    notes = Notes(
        file=str(path),
        folder=str(path.absolute().parent),
        chosen=chosen or {},
        environment=os.environ if environment is None else environment,
    )
    try:
        text = _text_of(path)
        language = LANGUAGES[path.suffix.lower()]
        node = parse(text, file=notes.file, language=language, remarks=notes.remarks)
    except MalformedError as error:
        return Outcome(None, (*notes.remarks, error.remark))
    return outcome(node, notes)


def outcome(
    node: Node,
    notes: Notes,
    function: Callable[..., object] | None = None,
    inputs: tuple[str, ...] = (),
) -> Outcome:
    """Return what comes of the root of a pipeline.

    `function` is that of a Python pipeline, `inputs` the names of its parameters.
    """
    definition = _definition(node, notes, function, inputs)
    check(definition, notes)
    for name in sorted(set(notes.chosen) - notes.used):
        notes.mistake(Origin("--set"), f"the pipeline has no variable `${{{name}}}`")
    remarks = tuple(dict.fromkeys(sorted(notes.remarks)))
    is_wrong = any(not one.is_warning for one in remarks)
    return Outcome(None if is_wrong else definition, remarks)


def _text_of(path: Path) -> str:
    whole = Origin(str(path))
    if path.suffix.lower() not in LANGUAGES:
        said = "is no pipeline: a file ends in .yaml, .yml or .toml, a Python pipeline in .py"
        raise MalformedError(Remark(whole, said))
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise MalformedError(
            Remark(whole, f"cannot be read: {error.strerror or error}".lower())
        ) from None
    if len(data) > FILE_BYTES_MAX:
        raise MalformedError(Remark(whole, f"is larger than {FILE_BYTES_MAX:,} bytes"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise MalformedError(Remark(Origin(str(path), line), "is no text in UTF-8")) from None


def _definition(
    node: Node,
    notes: Notes,
    function: Callable[..., object] | None,
    inputs: tuple[str, ...],
) -> Definition:
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
    sinks: tuple[Sink, ...],
    notes: Notes,
    origin: Origin,
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
    return located(text or f".ister/{name}", notes.folder)


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
