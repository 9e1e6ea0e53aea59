"""All messages go to one consumer: the only one, or the active one of a failover subscription."""

from collections.abc import Iterator, Sequence

from ister.codec import Batch
from ister.subscriptions.planning.effects import Deliver, Member, Plannable


class Exclusive:
    """Gives everything to the first consumer, in order."""

    in_order = True

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members

    @property
    def is_ready(self) -> bool:
        """Whether the consumer can be sent something now."""
        return self._members[0].ready

    @property
    def credit(self) -> int:
        """How many messages the consumer has credit for."""
        return self._members[0].credit_count

    def share(
        self, partition: Plannable, batch: Batch, slots: Sequence[int], attempt: int
    ) -> Iterator[Deliver]:
        """Give messages to the consumer, as far as it has credit."""
        first = self._members[0]
        if first.ready:
            yield Deliver(first, batch, slots[: first.credit_count], attempt)
