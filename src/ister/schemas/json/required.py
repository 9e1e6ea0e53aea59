"""Properties that one JSON Schema requires and another one does not have.

Danube refuses to remove a required property (backward) and to add one (forward), although all data
can still be read. As in Danube, only the top-level object of a schema is checked. Unlike in Danube,
its references and `allOf` are followed.
"""

from ister.schemas.bounds import Steps
from ister.schemas.json.facts import Facts, flattened, gathered
from ister.schemas.json.model import JsonModel


def required_only_by(model: JsonModel, other: JsonModel, steps: Steps) -> list[str]:
    """Return the properties that `model` requires and `other` neither requires nor declares."""
    mine, others = _facts(model, steps), _facts(other, steps)
    if mine is None or others is None:
        return []  # One of the two accepts no value at all.
    return sorted(mine.required() - others.required() - others.names().keys())


def _facts(model: JsonModel, steps: Steps) -> Facts | None:
    parts = flattened(model, [model.document], steps.spend)
    return None if parts is None else gathered(model, parts, steps.spend)
