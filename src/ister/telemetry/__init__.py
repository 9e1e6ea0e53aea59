"""What the machine and the process tell: clock, structured log."""

from ister.telemetry.clock import SystemClock

__all__ = ["SystemClock"]
