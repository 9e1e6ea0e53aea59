"""Danube's failure policy and dispatch limit of a subscription, and what they are here.

Danube says a delay as base, maximum and strategy; here it is a list of delays. Every policy has
its list, but not every list a policy, and some numbers have no effect: a policy that was set is
kept as it was (`Settings`), and told again as long as the subscription is set as it says.
"""

from dataclasses import replace

from msgspec import Struct

from ister.base import AckSettings, check_not_reserved, parse_topic
from ister.base.errors import BadRequestError
from ister.base.limits import ACK_TIMEOUT_MS_MIN, BACKOFF_STEPS_MAX, MAX_DELIVERIES_MAX

# Of a subscription, not of each consumer.
UNACKED_MAX = 10_000
# No end: the largest number there is on the wire.
REDELIVERIES_NO_END = 2**32 - 1

FIXED, EXPONENTIAL = 0, 1
# By their numbers on the wire.
POISON = ("dead_letter", "block", "drop")


class FailurePolicy(Struct, frozen=True, kw_only=True):
    """What happens to a message that is not acknowledged. The defaults are Danube's."""

    max_redelivery_count: int = 5
    ack_timeout_ms: int = 30_000
    base_redelivery_delay_ms: int = 1_000
    max_redelivery_delay_ms: int = 60_000
    backoff_strategy: int = EXPONENTIAL
    dead_letter_topic: str | None = None
    poison_policy: int = POISON.index("block")


def apply_policy(policy: FailurePolicy, acks: AckSettings) -> AckSettings:
    """Return the settings of a subscription with a policy put in; raise if it cannot be."""
    if policy.poison_policy not in range(len(POISON)):
        raise BadRequestError(f"poison policy {policy.poison_policy} is not one of 0, 1, 2")
    if policy.backoff_strategy not in (FIXED, EXPONENTIAL):
        raise BadRequestError(f"backoff strategy {policy.backoff_strategy} is not one of 0, 1")
    poison = POISON[policy.poison_policy]
    if poison == "dead_letter" and not policy.dead_letter_topic:
        raise BadRequestError("poison policy DeadLetter needs a dead_letter_topic")
    if not policy.ack_timeout_ms:
        raise BadRequestError("ack_timeout_ms is missing")
    if policy.dead_letter_topic:
        check_not_reserved(parse_topic(policy.dead_letter_topic))
    # One delivery, and then again and again.
    deliveries = policy.max_redelivery_count + 1
    made = replace(
        acks,
        # Shorter ones are not worth their trouble: a message is lent for a second at least.
        ack_timeout_ms=max(policy.ack_timeout_ms, ACK_TIMEOUT_MS_MIN),
        max_deliveries=deliveries if deliveries <= MAX_DELIVERIES_MAX else 0,
        backoff_ms=_delays_of(policy),
        dead_letter_topic=policy.dead_letter_topic or "",
        poison=poison,
    )
    made.check()
    return made


def policy_of(acks: AckSettings) -> FailurePolicy:
    """Return the policy that comes nearest to the settings of a subscription."""
    delays = acks.backoff_ms or (0,)
    return FailurePolicy(
        max_redelivery_count=acks.max_deliveries - 1
        if acks.max_deliveries
        else REDELIVERIES_NO_END,
        ack_timeout_ms=acks.ack_timeout_ms,
        base_redelivery_delay_ms=delays[0],
        max_redelivery_delay_ms=max(delays),
        backoff_strategy=FIXED if len(delays) == 1 else EXPONENTIAL,
        dead_letter_topic=acks.dead_letter_topic or None,
        poison_policy=POISON.index(acks.poison),
    )


def check_unacked(count: int) -> None:
    """Raise unless a number of unacknowledged messages is within what Danube takes."""
    if not 0 < count <= UNACKED_MAX:
        raise BadRequestError(f"max_unacked_messages is 1 to {UNACKED_MAX}, not {count}")


def _delays_of(policy: FailurePolicy) -> tuple[int, ...]:
    most = policy.max_redelivery_delay_ms
    delay = min(policy.base_redelivery_delay_ms, most)
    if policy.backoff_strategy == FIXED or delay == 0:
        return (delay,)
    delays = [delay]
    # A delay is at most 12 hours: from 1 ms on, that is doubled 26 times. What is longer is
    # refused with the settings as a whole.
    while delays[-1] < most and len(delays) < BACKOFF_STEPS_MAX:
        delays.append(min(2 * delays[-1], most))
    return tuple(delays)


# What a subscription of a Danube client is like when nobody has set anything.
DANUBE_ACKS = apply_policy(FailurePolicy(), AckSettings(in_flight_max=10))
