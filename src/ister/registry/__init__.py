"""The schema registry: subjects with versions, topics bound to them, and what guards a topic.

Stands on `ister.schemas`, which knows what schemas mean, and `ister.metadata`, which keeps facts.
"""

from ister.registry.guard import Guard, Tally
from ister.registry.records import Binding, Registered, SubjectReport, SubjectVersion
from ister.registry.registry import Registry
from ister.registry.salvage import repair_registry
from ister.registry.subject_store import RegistryLimits

__all__ = [
    "Binding",
    "Guard",
    "Registered",
    "Registry",
    "RegistryLimits",
    "SubjectReport",
    "SubjectVersion",
    "Tally",
    "repair_registry",
]
