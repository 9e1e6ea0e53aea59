"""The schema registry: subjects with versions, topics bound to them, and the check of each.

Stands on `ister.schemas`, which knows what schemas mean, and `ister.metadata`, which keeps facts.
"""

from ister.registry.binding_check import BindingCheck, Tally
from ister.registry.records import Binding, Registered, SubjectReport, SubjectVersion
from ister.registry.registry import Registry
from ister.registry.salvage import repair_registry
from ister.registry.subject_store import RegistryLimits

__all__ = [
    "Binding",
    "BindingCheck",
    "Registered",
    "Registry",
    "RegistryLimits",
    "SubjectReport",
    "SubjectVersion",
    "Tally",
    "repair_registry",
]
