"""How a shared subscription divides a batch among its consumers.

A batch is cut into runs of neighbouring messages, at most one run for each consumer: cutting is
one copy of a slice, where dealing messages out one by one would touch each of them. Over time
every policy gives what its name says; inside one batch, a consumer's messages lie together.
"""

from collections.abc import Sequence
from enum import Enum

# Consumer slot, first message, end.
Share = tuple[int, int, int]


class Policy(Enum):
    """Who gets the next message."""

    LEAST_LOADED = "least_loaded"
    ROUND_ROBIN = "round_robin"
    RANDOM = "random"


def in_turn(count: int, consumers: int, *, first: int) -> list[Share]:
    """Divide `count` messages evenly over consumers, starting with consumer `first`.

    Round robin with `first` moving on by `count`; random with `first` drawn by the caller.
    """
    if count == 1 or consumers == 1:
        return [(first % consumers, 0, count)]
    even, extra = divmod(count, consumers)
    shares = []
    start = 0
    for turn in range(min(count, consumers)):
        end = start + even + (turn < extra)
        shares.append(((first + turn) % consumers, start, end))
        start = end
    return shares


def to_least_loaded(count: int, loads: Sequence[int], *, first: int = 0) -> list[Share]:
    """Divide `count` messages so that the loads come as close to each other as they can.

    Fills from the lowest load up, like water; what does not come out even goes to the lowest. Of
    equal loads the one at `first` or behind it comes first: idle consumers take turns.
    """
    if count == 1 or len(loads) == 1:
        lowest = min(loads)
        after = lowest in loads[first:]
        return [(loads.index(lowest, first if after else 0), 0, count)]
    slots = range(len(loads))
    order = sorted((*slots[first:], *slots[:first]), key=loads.__getitem__)
    filled = _level(count, [loads[slot] for slot in order])
    level, extra = divmod(count + sum(loads[slot] for slot in order[:filled]), filled)
    shares = []
    start = 0
    for turn, slot in enumerate(order[:filled]):
        size = level - loads[slot] + (turn < extra)
        if size > 0:
            shares.append((slot, start, start + size))
            start += size
    return shares


def _level(count: int, loads: Sequence[int]) -> int:
    """Return how many of the (rising) loads lie below the water."""
    below = 0
    for filled in range(1, len(loads)):
        below += loads[filled - 1]
        if loads[filled] * filled - below >= count:
            return filled
    return len(loads)
