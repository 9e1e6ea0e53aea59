"""The messages of one topic that `Deliveries` hands out or takes back, as ranges of offsets."""

from collections.abc import Hashable
from typing import NamedTuple

# The delay of what is not to be delivered again.
NEVER_MS = -1
# The delay of what the application has not received: none, and no attempt counts.
UNUSED_MS = -2


class NewRun(NamedTuple):
    """Messages not delivered yet. `attempt` is above 1 if they failed before a restart."""

    start: int
    end: int
    attempt: int


class Redelivery(NamedTuple):
    """Messages to redeliver, in rising order; a `range` if they are one run."""

    offsets: range | list[int]
    attempt: int


class Expired(NamedTuple):
    """Messages that were not acknowledged in time."""

    consumer: Hashable
    start: int
    end: int
    attempt: int


class InCommit(NamedTuple):
    """Messages that a transaction is acknowledging, and the lease they were in."""

    start: int
    end: int
    number: int
    consumer: Hashable
    attempt: int
    size_bytes: int
    # If the epoch has changed since, the lease is void.
    epoch: int
