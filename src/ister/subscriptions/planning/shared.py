"""Messages are divided among all consumers, as the policy of the subscription says."""

from collections.abc import Callable, Iterator, Sequence

from ister.codec import Batch
from ister.subscriptions.planning.effects import Deliver, Member, Plannable
from ister.subscriptions.sharing import Policy, Share, in_turn, to_least_loaded


class Shared:
    """Divides messages among the consumers that have room; `random_slot` draws one of so many."""

    in_order = False

    def __init__(
        self, members: Sequence[Member], policy: Policy, random_slot: Callable[[int], int]
    ) -> None:
        self.policy = policy
        self._members = members
        self._random_slot = random_slot
        self._turn = 0

    @property
    def is_ready(self) -> bool:
        """Whether any consumer can be sent something now."""
        return any(member.ready for member in self._members)

    @property
    def credit(self) -> int:
        """How many messages those that can be sent something have credit for."""
        return sum(member.credit_count for member in self._members if member.ready)

    def share(
        self, partition: Plannable, batch: Batch, slots: Sequence[int], attempt: int
    ) -> Iterator[Deliver]:
        """Divide messages, as far as there is credit."""
        ready = [member for member in self._members if member.ready]
        start = 0
        for place, share in self._shares(min(len(slots), self.credit), ready):
            member = ready[place]
            count = min(share, member.credit_count)
            if count > 0 and member.ready:
                yield Deliver(member, batch, slots[start : start + count], attempt)
                start += count

    def _shares(self, count: int, ready: Sequence[Member]) -> list[tuple[int, int]]:
        """Return consumers, by their place, with how many messages they get."""
        if len(ready) == 1:
            return [(0, count)]
        if not count or not ready:
            return []
        shares: list[Share]
        if self.policy is Policy.LEAST_LOADED:
            loads = [member.load for member in ready]
            shares = to_least_loaded(count, loads, first=self._turn % len(ready))
            self._turn += count
        elif self.policy is Policy.ROUND_ROBIN:
            shares = in_turn(count, len(ready), first=self._turn % len(ready))
            self._turn += count
        else:
            shares = in_turn(count, len(ready), first=self._random_slot(len(ready)))
        return [(place, end - start) for place, start, end in shares]
