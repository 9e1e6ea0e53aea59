"""Which topics of a subscription each consumer has leases on.

When a consumer joins or leaves, only these topics are affected, of maybe ten thousand. Always true:
every topic that a consumer has a lease on is recorded. Topics that it had a lease on before may be
recorded as well. They are removed when the number of records has doubled since the last clean-up.
"""

from collections.abc import Hashable

from ister.broker.durable.partition import Partition

# With fewer records than this, a clean-up does not pay.
COUNT_MIN = 64


class Holders:
    """The topics of a subscription, by the consumer that has leases on them."""

    __slots__ = ("_count", "_count_max", "_partitions")

    def __init__(self) -> None:
        self._partitions: dict[Hashable, dict[Partition, None]] = {}
        self._count = 0
        self._count_max = COUNT_MIN

    def add(self, consumer: Hashable, partition: Partition) -> None:
        """Record that a consumer has a lease on a topic."""
        partitions = self._partitions.get(consumer)
        if partitions is None:
            partitions = self._partitions[consumer] = {}
        if partition not in partitions:
            partitions[partition] = None
            self._count += 1
            if self._count > self._count_max:
                self._clean()

    def of(self, consumer: Hashable) -> list[Partition]:
        """Return the topics that a consumer may have leases on."""
        return list(self._partitions.get(consumer, ()))

    def clear(self) -> None:
        """Remove all records."""
        self._partitions.clear()
        self._count = 0

    def _clean(self) -> None:
        left: dict[Hashable, dict[Partition, None]] = {}
        for consumer, partitions in self._partitions.items():
            kept = {
                partition: None
                for partition in partitions
                if partition.deliveries.is_holding(consumer)
            }
            if kept:
                left[consumer] = kept
        self._partitions = left
        self._count = sum(map(len, left.values()))
        self._count_max = max(COUNT_MIN, 2 * self._count)
