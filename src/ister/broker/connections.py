"""How many connections each kind of door has, for metrics."""

from dataclasses import dataclass


@dataclass(slots=True)
class ConnectionCounts:
    """Connections of a door: those that are there, and all since it opened."""

    open: int = 0
    accepted: int = 0
    refused: int = 0
