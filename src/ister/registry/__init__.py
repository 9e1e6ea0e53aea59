"""The schema registry: subjects with versions, topics bound to them, and the check of each.

Stands on `ister.schemas`, which knows what schemas mean, and `ister.metadata`, which keeps facts.
"""

from ister.registry.binding_check import BindingCheck, Tally
from ister.registry.holdings import RegistryLimits
from ister.registry.records import Binding, Registered, SubjectReport, SubjectVersion
from ister.registry.registry import Registry

__all__ = [
    "Binding",
    "BindingCheck",
    "Registered",
    "Registry",
    "RegistryLimits",
    "SubjectReport",
    "SubjectVersion",
    "Tally",
]
