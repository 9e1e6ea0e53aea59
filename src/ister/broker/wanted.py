"""What a consumer asks of a durable subscription."""

from dataclasses import dataclass

from ister.base import AckSettings, Position
from ister.broker.changes import SubscriptionCreated
from ister.subscriptions import Policy, SubscriptionType


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a consumer asks of a durable subscription; checked."""

    pattern: str
    name: str
    type: SubscriptionType
    policy: Policy
    filters: dict[str, str]
    key_filters: list[str]
    start: Position
    # As asked for; nothing asked for takes what is there.
    acks: AckSettings | None
    # Whether a pattern covers work queues, too.
    work_queues: bool = False

    def created(self, number: int) -> SubscriptionCreated:
        """Return the subscription to make."""
        return SubscriptionCreated(
            number,
            self.pattern,
            self.name,
            self.type.value,
            self.policy.value,
            self.filters,
            self.key_filters,
            self.acks or AckSettings(),
            self.work_queues,
        )
