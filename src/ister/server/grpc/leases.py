"""What Danube's consumers hold: which lease a message is acknowledged under.

Danube's Ack names topic, subscription and offset; the broker knows leases (ADR 6). So every
message that is sent is entered here until it is settled.

Always true: an entry is of the last delivery of its message; what is over for good is removed when
its consumer leaves, or when there are too many.
"""

from dataclasses import dataclass

from ister.broker import Membership

# A subscription's entries are looked through for those that are over when there are so many:
# twice what may be in flight at Danube's largest setting.
HELD_MAX = 20_000


@dataclass(slots=True)
class Held:
    """One message a consumer has."""

    membership: Membership
    lease: int
    # Which delivery of the message it was, from 1.
    attempt: int
    # When the lease ends, by the monotonic clock.
    due_ms: int


class Leases:
    """By topic and subscription, and there by offset."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], dict[int, Held]] = {}
        # How many make the next look through a subscription's worth while, where it is more.
        self._look_at: dict[tuple[str, str], int] = {}

    def add(self, topic: str, subscription: str, offset: int, held: Held, *, now_ms: int) -> None:
        """Enter a message that is being sent."""
        key = (topic, subscription)
        some = self._held.setdefault(key, {})
        some[offset] = held
        if len(some) > HELD_MAX and len(some) > self._look_at.get(key, HELD_MAX):
            for old in [o for o, one in some.items() if one.due_ms < now_ms]:
                del some[old]
            # Subscriptions of native clients may have far more in flight.
            self._look_at[key] = 2 * len(some)

    def take(self, topic: str, subscription: str, offset: int) -> Held | None:
        """Return and remove who has a message, if anybody."""
        some = self._held.get((topic, subscription))
        return some.pop(offset, None) if some is not None else None

    def leave(self, topic: str, subscription: str, membership: Membership) -> None:
        """Remove everything a consumer has of a subscription."""
        some = self._held.get((topic, subscription))
        if some is None:
            return
        for offset in [o for o, one in some.items() if one.membership is membership]:
            del some[offset]
        if not some:
            del self._held[topic, subscription]
            self._look_at.pop((topic, subscription), None)
