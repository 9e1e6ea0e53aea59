"""The four types of subscription."""

from enum import Enum


class SubscriptionType(Enum):
    """How the consumers of one subscription relate to each other."""

    EXCLUSIVE = "exclusive"  # one consumer; a second is refused
    SHARED = "shared"  # each message to one of them
    FAILOVER = "failover"  # all to the first; the next takes over when it leaves
    KEY_SHARED = "key_shared"  # messages of one key always to the same one

    @property
    def has_one_active(self) -> bool:
        """Whether one consumer at a time gets every message."""
        return self in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)
