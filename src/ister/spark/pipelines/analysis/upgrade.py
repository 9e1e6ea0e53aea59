"""What may change about a pipeline that has a checkpoint, and what may not. Pure.

A checkpoint holds, for each sink, how far each source was read and the state of every operator
that has one. Spark finds both again by their place in the query, not by name. A changed pipeline
that no longer fits would read other offsets, or count into other groups, or fail with a Java
exception. So a fingerprint of the shape lies beside the checkpoint, and is compared before Spark
starts.

May change: triggers, limits, starts, decoding, filters and columns of steps without state, the
delay of a watermark, options, keys and topics of sinks, reference tables, dead letters, code of
Python steps; sinks may be added and taken away.
May not, for one sink: its sources, their order and topics; and, where it has state: the groups,
aggregates, joins of streams, deduplications, columns of watermarks, the mode, the number of
shuffle partitions, the kind of state store.

SQL is read roughly: by the words of its clauses. State that hides elsewhere (a Python step) is
checked by Spark itself, whose complaint `failures` explains.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from ister.base.errors import CheckpointMismatchError
from ister.spark.pipelines.config import (
    Deduplicate,
    Definition,
    PipelineSink,
    PipelineSource,
    PipelineStep,
    PythonStep,
    SqlStep,
    Watermark,
    reveal,
)
from ister.spark.pipelines.sql import analyse, stateful_parts

VERSION = 1
SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
# Spark writes these into the first batch of a checkpoint and from then on ignores what is set.
FROZEN_SETTINGS = (SHUFFLE_PARTITIONS, "spark.sql.streaming.stateStore.providerClass")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryInput:
    """A source where a query reads it."""

    source: str
    topics: tuple[str, ...]

    def __str__(self) -> str:
        return f"`{self.source}` ({', '.join(self.topics)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryShape:
    """What the checkpoint of one sink depends on.

    `state` has a text for every operator with state, `watermarks` one for every watermark, both
    in the order of the query.
    """

    inputs: tuple[QueryInput, ...]
    state: tuple[str, ...] = ()
    watermarks: tuple[str, ...] = ()
    mode: str = "append"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The shapes of a pipeline's sinks, and the settings that their checkpoints froze."""

    shapes: Mapping[str, QueryShape]
    settings: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Return it as JSON values."""
        return {"version": VERSION, **asdict(self)}


def parse_fingerprint(saved: object) -> Fingerprint | None:
    """Return a saved fingerprint; `None` for one of another version, which cannot be compared."""
    match saved:
        case {"version": int(version), "shapes": dict(shapes), "settings": dict(settings)} if (
            version == VERSION
        ):
            return Fingerprint(
                shapes={str(name): _shape(shape) for name, shape in shapes.items()},
                settings={str(name): str(value) for name, value in settings.items()},
            )
    return None


def fingerprint(definition: Definition, defaults: Mapping[str, str]) -> Fingerprint:
    """Return the fingerprint of a pipeline; `defaults` are settings where it sets none itself."""
    chosen = dict(defaults) | {name: reveal(text) for name, text in definition.settings.items()}
    return Fingerprint(
        shapes={sink.name: shape_of(definition, sink) for sink in definition.sinks},
        settings={name: chosen[name] for name in FROZEN_SETTINGS if name in chosen},
    )


def shape_of(definition: Definition, sink: PipelineSink) -> QueryShape:
    """Return what the checkpoint of a sink depends on."""
    walk = _Walk(definition)
    walk.visit(sink.view)
    return QueryShape(
        inputs=tuple(walk.inputs),
        state=tuple(walk.state),
        watermarks=tuple(walk.watermarks),
        mode=str(sink.mode),
    )


def check_upgrade(
    definition: Definition, saved: Fingerprint, defaults: Mapping[str, str]
) -> tuple[Fingerprint, list[str]]:
    """Compare a pipeline with what its checkpoint was made by.

    Returns the fingerprint to keep from now on, and remarks on what has no effect. Raises
    `CheckpointMismatchError` with everything that does not fit.
    """
    now = fingerprint(definition, defaults)
    changes = [
        change
        for name, shape in now.shapes.items()
        if name in saved.shapes
        for change in compare(name, saved.shapes[name], shape)
    ]
    has_state = any(saved.shapes[name].state for name in now.shapes if name in saved.shapes)
    for name, value in saved.settings.items():
        explicit = definition.settings.get(name)
        if explicit is not None and reveal(explicit) != value and has_state:
            changes.append(
                f"setting {name} is {reveal(explicit)} now, the state was made with {value}"
            )
    if changes:
        raise CheckpointMismatchError(definition.checkpoint, changes)
    gone = [name for name in saved.shapes if name not in now.shapes]
    remarks = [f"sink {name!r} is gone; its checkpoint is kept" for name in gone]
    # What Spark froze stays frozen, and a sink that is gone may come back.
    kept = Fingerprint(
        shapes={**saved.shapes, **now.shapes}, settings={**now.settings, **saved.settings}
    )
    return kept, remarks


def compare(name: str, before: QueryShape, now: QueryShape) -> Iterator[str]:
    """Yield what about a sink does not fit its checkpoint any more."""
    where = f"sink {name!r}"
    # Names are for people: a source or a step may be called something else.
    if [one.topics for one in before.inputs] != [one.topics for one in now.inputs]:
        yield f"{where} reads {_join_inputs(now.inputs)} now, it was {_join_inputs(before.inputs)}"
    was, is_now = _without_step_names(before.state), _without_step_names(now.state)
    if was != is_now:
        yield from (
            f"{where} has state of `{text}`, which is gone"
            for text, part in zip(before.state, was, strict=True)
            if part not in is_now
        )
        yield from (
            f"{where} has no state for `{text}`, which is new"
            for text, part in zip(now.state, is_now, strict=True)
            if part not in was
        )
        if set(was) == set(is_now):
            yield f"{where} has the same operators with state in another order or number"
    if not (before.state or now.state):
        return
    if _columns(before.watermarks) != _columns(now.watermarks):
        yield (
            f"{where} has {_words(now.watermarks) or 'no watermark'} now, "
            f"it was {_words(before.watermarks) or 'none'}"
        )
    if before.mode != now.mode:
        yield f"{where} is in mode {now.mode} now, it was {before.mode}"


class _Walk:
    """Follows a view back to its sources, in the order in which Spark meets them."""

    def __init__(self, definition: Definition) -> None:
        self.inputs: list[QueryInput] = []
        self.state: list[str] = []
        self.watermarks: list[str] = []
        self._sources = {source.name.lower(): source for source in definition.sources}
        self._steps: dict[str, PipelineStep] = {}
        for step in definition.steps:
            names = step.outputs if isinstance(step, PythonStep) else (step.name,)
            self._steps |= {name.lower(): step for name in names}

    def visit(self, view: str) -> bool:
        """Add what lies behind a view; return whether it is a stream."""
        if source := self._sources.get(view.lower()):
            self._add_source(source)
            return True
        step = self._steps.get(view.lower())
        if step is None:
            return False
        if isinstance(step, SqlStep):
            names: Sequence[str] = [found.name for found in analyse(step.sql).views]
        else:
            names = step.inputs
        streams = sum([self.visit(name) for name in names])
        if isinstance(step, SqlStep) and streams:
            parts = stateful_parts(step.sql, joins_streams=streams > 1)
            self.state += [f"{step.name}: {part}" for part in parts]
        self._add_marks(step.name, step.watermark, step.deduplicate)
        return streams > 0

    def _add_source(self, source: PipelineSource) -> None:
        topics = source.topics or (f"pattern {source.pattern}",)
        self.inputs.append(QueryInput(source=source.name, topics=topics))
        self._add_marks(source.name, source.watermark, source.deduplicate)

    def _add_marks(
        self, name: str, watermark: Watermark | None, deduplicate: Deduplicate | None
    ) -> None:
        if watermark is not None:
            self.watermarks.append(f"a watermark on {name}.{watermark.column}")
        if deduplicate is not None:
            self.state.append(f"{name}: deduplicate {', '.join(deduplicate.columns)}")


def _shape(saved: Mapping[str, object]) -> QueryShape:
    def texts(value: object) -> tuple[str, ...]:
        return tuple(str(one) for one in value) if isinstance(value, list) else ()

    inputs = saved.get("inputs")
    return QueryShape(
        inputs=tuple(
            QueryInput(source=str(one["source"]), topics=texts(one["topics"]))
            for one in (inputs if isinstance(inputs, list) else ())
        ),
        state=texts(saved.get("state")),
        watermarks=texts(saved.get("watermarks")),
        mode=str(saved.get("mode")),
    )


def _without_step_names(state: Sequence[str]) -> list[str]:
    """Return the operators without the names of their steps."""
    return [text.partition(": ")[2] for text in state]


def _join_inputs(inputs: Sequence[QueryInput]) -> str:
    return ", then ".join(str(one) for one in inputs) or "no source"


def _columns(watermarks: Sequence[str]) -> list[str]:
    return [text.rpartition(".")[2] for text in watermarks]


def _words(texts: Sequence[str]) -> str:
    return " and ".join(texts)
