"""A log with its state: the one way into it, group commit, and checkpoints."""

from ister.broker.storage.commit_figures import CommitFigures
from ister.broker.storage.opening import open_storage
from ister.broker.storage.relocation import Relocated, relocate
from ister.broker.storage.salvage import SalvagedStreams, carry_out, plan_salvage
from ister.broker.storage.stopped_log import StoppedLog
from ister.broker.storage.storage import Storage
from ister.broker.storage.threads import Workers
from ister.broker.storage.writes import Publish, Write

__all__ = [
    "CommitFigures",
    "Publish",
    "Relocated",
    "SalvagedStreams",
    "StoppedLog",
    "Storage",
    "Workers",
    "Write",
    "carry_out",
    "open_storage",
    "plan_salvage",
    "relocate",
]
