"""Numbers of leases: which track one belongs to can be told, and none is ever used twice.

    life of the broker, counting up     journal     slot of the track in its subscription
    46 bits                             1 bit       17 bits

The high bits start at the millisecond the broker was started, times 2^4: as long as a
subscription makes fewer than 16,000 leases a second on one topic, for as long as the broker runs,
no later life repeats a number. They fit into 64 bits until the year 2109.
"""

from collections.abc import Iterator
from itertools import count

SLOT_BITS = 17
TRACK_BITS = SLOT_BITS + 1
LIFE_BITS = 4

# Topics of one subscription in one journal.
SLOTS_MAX = 1 << SLOT_BITS


def lease_numbers(*, life_ms: int, journal: int, slot: int) -> Iterator[int]:
    """Yield the numbers for the leases of one track, rising."""
    track = (journal << SLOT_BITS) + slot
    return count((life_ms << LIFE_BITS << TRACK_BITS) + track, 1 << TRACK_BITS)


def slot_of(number: int) -> tuple[int, int]:
    """Return the journal and the slot that a number belongs to."""
    track = number & ((1 << TRACK_BITS) - 1)
    return track >> SLOT_BITS, track & (SLOTS_MAX - 1)
