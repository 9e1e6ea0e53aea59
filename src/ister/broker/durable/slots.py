"""The places of the tracks of a durable subscription: a lease number leads to its track.

Always true: the numbers of leases of a slot are never given twice, also when its topic is gone and
another one has it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ister.broker.durable.lease_numbers import SLOTS_MAX, is_of_epoch, lease_numbers, slot_of

if TYPE_CHECKING:
    from ister.broker.durable.partition import Track


class Slots:
    """See the module."""

    __slots__ = ("_epoch", "_free", "_journal", "_tracks")

    def __init__(self, *, epoch: int, journal: int) -> None:
        self._epoch = epoch
        self._journal = journal
        # `None` where a topic is gone; the numbers of leases go on there with the next.
        self._tracks: list[Track | None] = []
        self._free: list[tuple[int, Iterator[int]]] = []

    def __len__(self) -> int:
        return len(self._tracks)

    def take(self) -> tuple[int, Iterator[int]]:
        """Return a free slot with the numbers for its leases."""
        if self._free:
            return self._free.pop()
        slot = len(self._tracks)
        if slot >= SLOTS_MAX:
            raise AssertionError("topics_max is above what a subscription can cover")
        self._tracks.append(None)
        return slot, lease_numbers(epoch=self._epoch, journal=self._journal, slot=slot)

    def put(self, track: "Track") -> None:
        """Have a track in the slot that was taken for it."""
        self._tracks[track.slot] = track

    def free(self, track: "Track") -> None:
        """Have the slot of a track for another one."""
        self._tracks[track.slot] = None
        self._free.append((track.slot, track.leases))

    def find(self, number: int) -> "Track | None":
        """Return the track that a lease number belongs to, if there is one."""
        journal, slot = slot_of(number)
        known = journal == self._journal and slot < len(self._tracks)
        return self._tracks[slot] if known and is_of_epoch(number, self._epoch) else None

    def clear(self) -> None:
        """Forget all tracks: the subscription is gone."""
        self._tracks.clear()
