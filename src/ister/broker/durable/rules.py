"""How a durable subscription treats messages: its settings, as the code that acts on them."""

from dataclasses import dataclass

from ister.base import AckSettings, Poison
from ister.broker.state import SubscriptionCreated
from ister.subscriptions import Filter, Policy, SubscriptionType


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of a durable subscription, parsed."""

    type: SubscriptionType
    policy: Policy
    filter: Filter
    acks: AckSettings

    @classmethod
    def of(cls, created: SubscriptionCreated) -> "Rules":
        """Return the rules that a subscription was created or changed with."""
        type_ = SubscriptionType(created.type)
        # Where keys are shared, key filters choose between its consumers.
        key_filters = () if type_ is SubscriptionType.KEY_SHARED else created.key_filters
        filter_ = Filter(created.filters, key_filters)
        return cls(type_, Policy(created.policy), filter_, created.acks)

    @property
    def ordered(self) -> bool:
        """Whether there is at most one message of a key in flight."""
        # A message can block its key only where the others of that key come after it.
        wanted = self.acks.ordered or self.acks.poison == Poison.BLOCK
        return wanted and self.type is SubscriptionType.KEY_SHARED
