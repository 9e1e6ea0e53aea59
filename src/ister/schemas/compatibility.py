"""Which readers a new version of a schema would break, by the mode of its subject."""

from collections.abc import Sequence

from ister.schemas.bounds import REASONS_MAX, Steps, compare_steps, shortened
from ister.schemas.breaks import Break
from ister.schemas.kinds import Mode
from ister.schemas.schema import Schema


def incompatibilities(
    mode: Mode,
    new: Schema,
    earlier: Sequence[Schema],
    steps: Steps | None = None,
    *,
    keep_required: bool = False,
) -> list[str]:
    """Return what `new` would break, each with its place and both sides; empty when nothing.

    `earlier` are the versions before it, oldest first: the transitive modes look at all of them,
    the others at the last. Where it cannot be decided whether something breaks, it counts as
    broken, and the text says so. Another type is incompatible in every mode: what reads a subject
    is made for its type.

    With `keep_required`, which is Danube's rule, a JSON Schema must not lose a required property
    where old data is to be read, nor gain one where the old schema is to read new data.

    Raises `SchemaTooComplexError` when comparing two schemas takes more than `COMPARE_STEPS_MAX`
    steps, or more than `steps` has left.
    """
    reasons: list[str] = []
    # The newest first: what it says is nearest to what was changed.
    for old in reversed(earlier if mode.is_transitive else earlier[-1:]):
        if old.type is not new.type:
            reasons.append(f"the type changed from {old.type.value} to {new.type.value}")
            continue
        if mode.reads_old:
            found = breaks(reader=new, writer=old, newer=new, steps=compare_steps(steps))
            reasons += [one.backward() for one in found]
            if keep_required:
                names = _required_only_by(old, new, compare_steps(steps))
                reasons += [f"required property {name!r} is removed" for name in names]
        if mode.is_read_by_old:
            found = breaks(reader=old, writer=new, newer=new, steps=compare_steps(steps))
            reasons += [one.forward() for one in found]
            if keep_required:
                names = _required_only_by(new, old, compare_steps(steps))
                reasons += [f"required property {name!r} is added" for name in names]
    return list(dict.fromkeys(shortened(reason) for reason in reasons))[:REASONS_MAX]


def breaks(*, reader: Schema, writer: Schema, newer: Schema, steps: Steps) -> list[Break]:
    """Return what keeps `reader` from reading data of `writer`, both of the same type.

    `newer` is the one of them that came later.
    """
    if reader.fingerprint == writer.fingerprint:
        return []
    # Here, because a broker that compares nothing starts sooner without.
    from ister.schemas.avro.compatibility import avro_breaks
    from ister.schemas.avro.model import AvroModel
    from ister.schemas.json.compatibility import json_breaks
    from ister.schemas.json.model import JsonModel
    from ister.schemas.protobuf.compatibility import protobuf_breaks
    from ister.schemas.protobuf.model import ProtobufModel

    match reader.model, writer.model:
        case JsonModel() as r, JsonModel() as w:
            return json_breaks(reader=r, writer=w, steps=steps)
        case AvroModel() as r, AvroModel() as w:
            return avro_breaks(reader=r, writer=w, steps=steps)
        case ProtobufModel() as r, ProtobufModel() as w:
            return protobuf_breaks(reader=r, writer=w, reader_is_newer=newer is reader, steps=steps)
        case _:
            return [Break("the schema", writer.type.value, reader.type.value)]


def _required_only_by(schema: Schema, other: Schema, steps: Steps) -> list[str]:
    from ister.schemas.json.model import JsonModel
    from ister.schemas.json.required import required_only_by

    match schema.model, other.model:
        case JsonModel() as one, JsonModel() as two:
            return required_only_by(one, two, steps)
        case _:
            return []
