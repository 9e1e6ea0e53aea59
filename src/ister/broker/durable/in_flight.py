"""What a subscription has in flight, on all of its topics together, and how much more it may.

Always true: only partitions whose deliveries have changed are counted again, so that thousands of
them cost nothing while they rest.
"""

from ister.base import AckSettings
from ister.subscriptions import Deliveries


class InFlight:
    """The messages of a subscription that are handed out and not settled."""

    __slots__ = ("_count", "_settings", "_size_bytes")

    def __init__(self) -> None:
        self._settings = AckSettings()
        # Their bytes count only while they are leased.
        self._count = 0
        self._size_bytes = 0

    def set_limits(self, settings: AckSettings) -> None:
        """Have other limits from now on."""
        self._settings = settings

    def count(self, deliveries: Deliveries) -> None:
        """The deliveries of a partition have changed."""
        count, size_bytes = deliveries.take_growth()
        self._count += count
        self._size_bytes += size_bytes

    @property
    def is_full(self) -> bool:
        """Whether so many bytes are leased that nothing more may be, new or again."""
        return self._size_bytes >= self._settings.in_flight_bytes_max

    @property
    def room(self) -> int:
        """How many new messages may be handed out before others are settled."""
        return 0 if self.is_full else self._settings.in_flight_max - self._count
