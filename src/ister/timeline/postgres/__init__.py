"""Timelines in PostgreSQL, whose libraries are loaded when a store is opened."""

from ister.timeline.postgres.opening import postgres_timelines

__all__ = ["postgres_timelines"]
