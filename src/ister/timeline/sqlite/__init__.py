"""Timelines in one file of SQLite: the store, its file and tables, and checking them."""

from ister.timeline.sqlite.check import TimelinesReport, check_timelines
from ister.timeline.sqlite.salvage import SalvagedTimelines, salvage_timelines
from ister.timeline.sqlite.store import FILE_NAME, SqliteStore

__all__ = [
    "FILE_NAME",
    "SalvagedTimelines",
    "SqliteStore",
    "TimelinesReport",
    "check_timelines",
    "salvage_timelines",
]
