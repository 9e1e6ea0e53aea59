"""The clock of the machine, the structured log with its throttles, and the console."""

from ister.telemetry.clock import SystemClock
from ister.telemetry.console import console_class, make_console
from ister.telemetry.library import library_logger
from ister.telemetry.log import configure_log
from ister.telemetry.occasions import Occasional, Occasions

__all__ = [
    "Occasional",
    "Occasions",
    "SystemClock",
    "configure_log",
    "console_class",
    "library_logger",
    "make_console",
]
