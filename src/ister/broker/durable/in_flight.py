"""What a subscription has in flight, on all of its topics together, and how much more it may.

Always true: only topics that were touched since the last look are counted anew, so that thousands
of them cost nothing while they rest.
"""

from typing import TYPE_CHECKING

from ister.base import AckSettings

if TYPE_CHECKING:
    from ister.broker.durable.partition import Partition


class Flight:
    """See the module. Whoever changes the deliveries of a partition touches it."""

    __slots__ = ("_count", "_settings", "_size_bytes", "_touched")

    def __init__(self, settings: AckSettings) -> None:
        self._settings = settings
        # Handed out and not settled; their bytes only while they are leased.
        self._count = 0
        self._size_bytes = 0
        self._touched: dict[Partition, None] = {}

    def set_limits(self, settings: AckSettings) -> None:
        """Have other limits from now on."""
        self._settings = settings

    def touch(self, partition: "Partition") -> None:
        """Have a partition counted anew."""
        self._touched[partition] = None

    @property
    def full(self) -> bool:
        """Whether so many bytes are leased that nothing more may be, new or again."""
        if self._touched:
            self._recount()
        return self._size_bytes >= self._settings.in_flight_bytes_max

    @property
    def room(self) -> int:
        """How many new messages may be handed out before others are settled."""
        if self._touched:
            self._recount()
        if self._size_bytes >= self._settings.in_flight_bytes_max:
            return 0
        return self._settings.in_flight_max - self._count

    def _recount(self) -> None:
        for partition in self._touched:
            deliveries = partition.deliveries
            count = deliveries.unsettled - deliveries.aside
            size_bytes = deliveries.in_flight_bytes
            counted, counted_bytes = partition.counted
            self._count += count - counted
            self._size_bytes += size_bytes - counted_bytes
            partition.counted = (count, size_bytes)
        self._touched.clear()
