"""A limit on what all streams of a broker remember together: of message ids, or of producers.

Always true: all members together have at most as much as the budget says. Beyond that the largest
members forget what is oldest. So a topic with more than any other shortens its own memory, and not
that of a topic with little. Refusing to publish instead would let the client of one topic stop the
clients of all others.
"""

from typing import Protocol

# What a member forgets in one step, unless a budget says otherwise: 1,024 ids take 0.5 ms.
FORGET_COUNT = 1_024


class Member(Protocol):
    """What one stream remembers."""

    # The budget's own: how much of it the budget has counted.
    counted: int

    @property
    def size(self) -> int:
        """How much of the budget it takes."""

    def forget_oldest(self, size: int) -> None:
        """Forget about so much, at least something, unless it has nothing."""


class SharedBudget:
    """Counts what all members have, and has the largest ones forget some."""

    __slots__ = ("_by_digits", "_forget_size", "forgotten", "size", "size_max")

    def __init__(self, size_max: int, *, forget_size: int = FORGET_COUNT) -> None:
        self.size = 0
        # How much was forgotten because there was too much.
        self.forgotten = 0
        self.size_max = size_max
        self._forget_size = forget_size
        # Members by the binary digits of their size: one of the largest is found at once, and those
        # of about one size take turns.
        self._by_digits: list[dict[Member, None]] = [{} for _ in range(64)]

    def on_changed(self, member: Member) -> None:
        """Count a member that has more or less than it had."""
        self._recount(member, member.size)
        while self.size > self.size_max:
            before = self.size
            largest = next(iter(next(filter(None, reversed(self._by_digits)))))
            largest.forget_oldest(min(before - self.size_max, self._forget_size))
            self._recount(largest, largest.size)
            self.forgotten += before - self.size

    def remove(self, member: Member) -> None:
        """A member is gone."""
        self._recount(member, 0)

    def _recount(self, member: Member, size: int) -> None:
        self._by_digits[member.counted.bit_length()].pop(member, None)
        self.size += size - member.counted
        member.counted = size
        if size:
            self._by_digits[size.bit_length()][member] = None
