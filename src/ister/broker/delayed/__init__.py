"""Messages that are sent now and published later, on live and stream topics."""

from ister.broker.delayed.delays import DelayedBatch, Delays

__all__ = ["DelayedBatch", "Delays"]
