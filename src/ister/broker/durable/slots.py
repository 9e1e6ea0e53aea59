"""The places of the partitions of a durable subscription: a lease number leads to its partition.

Always true: the numbers of leases of a slot are never given twice, also when its topic is gone and
another one has it.
"""

from collections.abc import Iterator

from ister.broker.durable.lease_numbers import SLOTS_MAX, is_of_epoch, lease_numbers, slot_of
from ister.broker.durable.partition import Partition


class Slots:
    """The partitions of a subscription by their slot, which is part of the number of each lease."""

    __slots__ = ("_epoch", "_free", "_journal", "_partitions")

    def __init__(self, *, epoch: int, journal: int) -> None:
        self._epoch = epoch
        self._journal = journal
        # `None` where a topic is gone; the numbers of leases go on there with the next.
        self._partitions: list[Partition | None] = []
        self._free: list[tuple[int, Iterator[int]]] = []

    def __len__(self) -> int:
        return len(self._partitions)

    def take(self) -> tuple[int, Iterator[int]]:
        """Return a free slot with the numbers for its leases."""
        if self._free:
            return self._free.pop()
        slot = len(self._partitions)
        if slot >= SLOTS_MAX:
            raise AssertionError("topics_max is above what a subscription can cover")
        self._partitions.append(None)
        return slot, lease_numbers(epoch=self._epoch, journal=self._journal, slot=slot)

    def put(self, partition: Partition) -> None:
        """Have a partition in the slot that was taken for it."""
        self._partitions[partition.slot] = partition

    def free(self, partition: Partition) -> None:
        """Have the slot of a partition for another one."""
        self._partitions[partition.slot] = None
        self._free.append((partition.slot, partition.leases))

    def find(self, number: int) -> Partition | None:
        """Return the partition that a lease number belongs to, if there is one."""
        journal, slot = slot_of(number)
        known = journal == self._journal and slot < len(self._partitions)
        return self._partitions[slot] if known and is_of_epoch(number, self._epoch) else None

    def clear(self) -> None:
        """Forget all partitions: the subscription is gone."""
        self._partitions.clear()
