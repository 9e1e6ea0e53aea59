"""The attributes that the broker adds to a message when it becomes a dead letter."""

ORIGIN_ATTRIBUTE = "x-original-topic"
# The subscription that gave up on it.
OWNER_ATTRIBUTE = "x-original-subscription"
OFFSET_ATTRIBUTE = "x-original-topic-offset"
PRODUCER_ATTRIBUTE = "x-original-producer"
PRODUCER_ID_ATTRIBUTE = "x-original-producer-id"
BROKER_ATTRIBUTE = "x-original-broker-addr"
ATTEMPT_ATTRIBUTE = "x-delivery-attempt"
REASON_ATTRIBUTE = "x-failure-reason"
POLICY_ATTRIBUTE = "x-poison-policy"

DEAD_LETTER_ATTRIBUTES = frozenset(
    (
        ORIGIN_ATTRIBUTE,
        OWNER_ATTRIBUTE,
        OFFSET_ATTRIBUTE,
        PRODUCER_ATTRIBUTE,
        PRODUCER_ID_ATTRIBUTE,
        BROKER_ATTRIBUTE,
        ATTEMPT_ATTRIBUTE,
        REASON_ATTRIBUTE,
        POLICY_ATTRIBUTE,
    )
)
