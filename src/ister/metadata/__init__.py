"""A table of small facts that outlive a broker: who is bound to what, which schemas there are.

Not for messages, nor for anything that changes with them: those are the journal's (ADR 8).
"""

from ister.metadata.check import FactsReport, check_facts, copied
from ister.metadata.facts import Change, Delete, Fact, Metadata, Put, facts_below
from ister.metadata.memory import MemoryMetadata
from ister.metadata.salvage import SalvagedFacts, salvage_facts, write_facts
from ister.metadata.sqlite import FILE_NAME, SqliteMetadata

__all__ = [
    "FILE_NAME",
    "Change",
    "Delete",
    "Fact",
    "FactsReport",
    "MemoryMetadata",
    "Metadata",
    "Put",
    "SalvagedFacts",
    "SqliteMetadata",
    "check_facts",
    "copied",
    "facts_below",
    "salvage_facts",
    "write_facts",
]
