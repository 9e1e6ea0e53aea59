"""Numbers of leases: which partition one belongs to can be told, and none is used twice.

    start of the log     counting up     journal     slot of the partition in its subscription
    15 bits              30 bits         1 bit       17 bits

The high bits are the last ones of the log's epoch, which rises with every start whatever the clock
says. The numbers of a start come again 32,768 starts later, and within one start after a billion
leases on one topic, which is 18 hours at 16,000 a second. They fit into 63 bits.
"""

from collections.abc import Iterator

SLOT_BITS = 17
PARTITION_BITS = SLOT_BITS + 1
EPOCH_BITS = 15
COUNT_BITS = 63 - EPOCH_BITS - PARTITION_BITS

# Topics of one subscription in one journal.
SLOTS_MAX = 1 << SLOT_BITS
# Leases of a partition before their numbers come again.
COUNT_MAX = 1 << COUNT_BITS


def lease_numbers(*, epoch: int, journal: int, slot: int) -> Iterator[int]:
    """Yield the numbers for the leases of one partition, rising."""
    start = (epoch % (1 << EPOCH_BITS)) << COUNT_BITS
    partition = (journal << SLOT_BITS) + slot
    first = (start << PARTITION_BITS) + partition
    while True:
        yield from range(first, first + (COUNT_MAX << PARTITION_BITS), 1 << PARTITION_BITS)


def slot_of(number: int) -> tuple[int, int]:
    """Return the journal and the slot that a number belongs to."""
    partition = number & ((1 << PARTITION_BITS) - 1)
    return partition >> SLOT_BITS, partition & (SLOTS_MAX - 1)


def is_of_epoch(number: int, epoch: int) -> bool:
    """Tell whether a number is from that start of the log: others have other topics in a slot."""
    return number >> (COUNT_BITS + PARTITION_BITS) == epoch % (1 << EPOCH_BITS)
