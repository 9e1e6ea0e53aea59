"""What the machine and the process tell: clock, structured log."""

from ister.telemetry.clock import SystemClock
from ister.telemetry.library import library_logger
from ister.telemetry.log import configure_log

__all__ = ["SystemClock", "configure_log", "library_logger"]
