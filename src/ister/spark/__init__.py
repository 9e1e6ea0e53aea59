"""Streams of Ister in Spark: a data source, a sink, and pipelines. Needs the extra `spark`."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ister.spark.dead_letters import safely
    from ister.spark.pipelines import pipeline
    from ister.spark.stateful import per_key
    from ister.spark.tuning import session

__all__ = ["per_key", "pipeline", "safely", "session"]


def __getattr__(name: str) -> object:
    """Import a name on first use: every worker of Spark imports this package and needs none."""
    places = {
        "per_key": "ister.spark.stateful",
        "pipeline": "ister.spark.pipelines",
        "safely": "ister.spark.dead_letters",
        "session": "ister.spark.tuning",
    }
    if name not in places:
        raise AttributeError(f"module 'ister.spark' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(places[name]), name)
    return found
