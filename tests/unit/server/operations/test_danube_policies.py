"""Danube's failure policies as settings of ours, and back; and what is kept of them."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json
from msgspec.structs import replace as replace_struct
from structlog.testing import capture_logs

import ister
from ister.base import AckSettings
from ister.base.errors import BadRequestError, InvalidError, IsterError
from ister.metadata import MemoryMetadata, Put
from ister.operations import CreateSubscription, CreateTopic, DescribeSettings
from ister.server.grpc.admin.policies import (
    DANUBE_ACKS,
    EXPONENTIAL,
    FIXED,
    FailurePolicy,
    apply_policy,
    policy_of,
)
from ister.server.grpc.admin.settings import Kept, SubscriptionSettings
from ister.server.grpc.admin.subscriptions import SubscriptionAdmin
from ister.server.grpc.calls.status import Refusal
from ister.server.grpc.messages import message
from ister.server.operations import Dispatcher, topic_exists, topic_identity
from ister.testing import MemoryBroker

TOPIC = "/default/orders"
U32, U64 = 2**32 - 1, 2**64 - 1

any_policy = st.builds(
    FailurePolicy,
    max_redelivery_count=st.integers(0, U32),
    ack_timeout_ms=st.integers(0, U64) | st.integers(1_000, 100_000),
    base_redelivery_delay_ms=st.integers(0, U64) | st.integers(0, 10_000),
    max_redelivery_delay_ms=st.integers(0, U64) | st.integers(0, 100_000),
    backoff_strategy=st.integers(0, 2),
    dead_letter_topic=st.none() | st.sampled_from(["", "/default/dead", "dead"]),
    poison_policy=st.integers(0, 3),
)


def test_a_danube_subscription_has_danubes_defaults() -> None:
    assert DANUBE_ACKS.max_deliveries == 6
    assert DANUBE_ACKS.backoff_ms == (1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000)
    assert (DANUBE_ACKS.ack_timeout_ms, DANUBE_ACKS.in_flight_max) == (30_000, 10)
    assert DANUBE_ACKS.poison == "block"


@pytest.mark.parametrize(
    ("strategy", "base_ms", "most_ms", "delays_ms"),
    [
        (FIXED, 500, 60_000, (500,)),
        (FIXED, 5_000, 1_000, (1_000,)),
        (EXPONENTIAL, 100, 800, (100, 200, 400, 800)),
        (EXPONENTIAL, 100, 799, (100, 200, 400, 799)),
        (EXPONENTIAL, 100, 801, (100, 200, 400, 800, 801)),
        (EXPONENTIAL, 0, 60_000, (0,)),
        (EXPONENTIAL, 500, 500, (500,)),
    ],
)
def test_delays_are_listed_up_to_the_longest(
    strategy: int, base_ms: int, most_ms: int, delays_ms: tuple[int, ...]
) -> None:
    policy = FailurePolicy(
        backoff_strategy=strategy,
        base_redelivery_delay_ms=base_ms,
        max_redelivery_delay_ms=most_ms,
    )

    assert apply_policy(policy, AckSettings()).backoff_ms == delays_ms


@given(policy=any_policy)
def test_any_policy_is_taken_or_refused(policy: FailurePolicy) -> None:
    try:
        acks = apply_policy(policy, AckSettings(ordered=True, in_flight_max=7))
    except InvalidError:
        return
    acks.check()
    # What a policy does not speak of stays.
    assert (acks.ordered, acks.in_flight_max) == (True, 7)
    told = policy_of(acks)
    if acks.poison != "dead_letter" or told.dead_letter_topic:
        assert apply_policy(told, acks) == acks


@pytest.mark.parametrize("count", [999_999, U32])
def test_a_large_count_is_the_largest_or_no_end(count: int) -> None:
    acks = apply_policy(FailurePolicy(max_redelivery_count=count), AckSettings())

    assert acks.max_deliveries == (1_000_000 if count == 999_999 else 0)
    assert policy_of(acks).max_redelivery_count == count


@pytest.mark.parametrize(("asked_ms", "ms"), [(1, 1_000), (1_000, 1_000), (1_001, 1_001)])
def test_a_short_ack_timeout_is_a_second(asked_ms: int, ms: int) -> None:
    acks = apply_policy(FailurePolicy(ack_timeout_ms=asked_ms), AckSettings())

    assert acks.ack_timeout_ms == ms


# What is kept


@pytest.fixture
def metadata() -> MemoryMetadata:
    """A table of facts."""
    return MemoryMetadata()


@pytest.fixture
def settings(metadata: MemoryMetadata) -> SubscriptionSettings:
    """What was set, kept in the table."""
    return SubscriptionSettings(metadata)


ODD = FailurePolicy(backoff_strategy=FIXED, base_redelivery_delay_ms=5)


async def test_what_was_set_before_a_subscription_is_for_it(
    settings: SubscriptionSettings,
) -> None:
    await settings.keep_policy(TOPIC, "billing", ODD)
    await settings.keep_unacked_max(TOPIC, "billing", 3)

    assert settings.acks(TOPIC, "billing") == replace(
        apply_policy(ODD, DANUBE_ACKS), in_flight_max=3
    )
    assert settings.acks(TOPIC, "mail") == DANUBE_ACKS


async def test_what_was_set_for_a_topic_is_for_its_partitions(
    settings: SubscriptionSettings,
) -> None:
    await settings.keep_unacked_max(TOPIC, "billing", 3)
    await settings.keep_unacked_max(f"{TOPIC}-part-1", "billing", 4)
    await settings.keep_policy(TOPIC, "billing", ODD)

    assert settings.acks(f"{TOPIC}-part-0", "billing").in_flight_max == 3
    assert settings.acks(f"{TOPIC}-part-1", "billing").in_flight_max == 4
    assert settings.policy(f"{TOPIC}-part-1", "billing", None) == ODD


async def test_a_policy_is_told_as_it_was_set_until_the_subscription_changes(
    settings: SubscriptionSettings,
) -> None:
    await settings.keep_policy(TOPIC, "billing", ODD)
    acks = apply_policy(ODD, AckSettings())

    assert settings.policy(TOPIC, "billing", acks) == ODD
    changed = replace(acks, ack_timeout_ms=5_000)
    assert settings.policy(TOPIC, "billing", changed) == policy_of(changed)


async def test_what_was_set_is_there_after_a_restart(
    settings: SubscriptionSettings, metadata: MemoryMetadata
) -> None:
    await settings.keep_policy(TOPIC, "billing", ODD)
    await settings.keep_unacked_max(TOPIC, "billing", 3)
    again = SubscriptionSettings(metadata)
    await again.load(exists=lambda _: True)

    assert again.acks(TOPIC, "billing") == settings.acks(TOPIC, "billing")
    assert again.policy(TOPIC, "billing", None) == ODD


async def test_what_is_of_a_topic_that_is_gone_ends_with_the_next_start(
    settings: SubscriptionSettings, metadata: MemoryMetadata
) -> None:
    for topic in (TOPIC, "/default/gone"):
        await settings.keep_unacked_max(topic, "billing", 3)
    again = SubscriptionSettings(metadata)
    await again.load(exists=lambda topic: topic == TOPIC)

    assert again.unacked_max(TOPIC, "billing", None) == 3
    assert again.unacked_max("/default/gone", "billing", None) is None
    assert [fact.key for fact in await metadata.list("danube/settings/")] == [
        f"danube/settings{TOPIC}/billing"
    ]


async def test_a_topic_that_is_forgotten_takes_its_partitions_along(
    settings: SubscriptionSettings, metadata: MemoryMetadata
) -> None:
    kept = "/default/orders-of-others"
    for topic in (TOPIC, f"{TOPIC}-part-0", kept):
        await settings.keep_unacked_max(topic, "billing", 3)
    await settings.forget(TOPIC)
    again = SubscriptionSettings(metadata)
    await again.load(exists=lambda _: True)

    for found in (settings, again):
        assert found.unacked_max(TOPIC, "billing", None) is None
        assert found.unacked_max(f"{TOPIC}-part-0", "billing", None) is None
        assert found.unacked_max(kept, "billing", None) == 3


async def test_nothing_is_kept_of_what_cannot_be(settings: SubscriptionSettings) -> None:
    with pytest.raises(BadRequestError):
        await settings.keep_unacked_max(TOPIC, "billing", 0)
    with pytest.raises(BadRequestError):
        await settings.keep_policy(TOPIC, "billing", FailurePolicy(ack_timeout_ms=0))

    assert settings.acks(TOPIC, "billing") == DANUBE_ACKS


async def test_a_fact_that_cannot_be_read_costs_itself_only(
    settings: SubscriptionSettings, metadata: MemoryMetadata
) -> None:
    await settings.keep_unacked_max(TOPIC, "billing", 3)
    await metadata.write(Put("danube/settings/default/orders/mail", b"{broken"))
    again = SubscriptionSettings(metadata)
    await again.load(exists=lambda _: True)

    assert again.acks(TOPIC, "billing").in_flight_max == 3
    assert again.acks(TOPIC, "mail") == DANUBE_ACKS


async def test_kept_policy_with_reserved_dead_letter_topic_is_ignored_at_start(
    settings: SubscriptionSettings, metadata: MemoryMetadata
) -> None:
    # Earlier versions accepted dead-letter topics in `/system`.
    policy = replace_struct(ODD, dead_letter_topic="/system/dead", poison_policy=0)
    await settings.keep_policy(TOPIC, "billing", ODD)
    kept = json.encode(Kept(policy=policy))
    await metadata.write(Put("danube/settings/default/orders/mail", kept))
    again = SubscriptionSettings(metadata)
    with capture_logs() as lines:
        await again.load(exists=lambda _: True)

    assert again.policy(TOPIC, "billing", None) == ODD
    assert again.acks(TOPIC, "mail") == DANUBE_ACKS
    assert [line["event"] for line in lines] == ["settings_not_readable"]


@pytest.mark.parametrize("letters", ["/default/live", f"{TOPIC}-part-1", "/system/dead"])
async def test_refused_policy_is_not_kept(
    settings: SubscriptionSettings, dispatcher: Dispatcher, client: ister.Client, letters: str
) -> None:
    await client.create_topic("/default/live")
    await dispatcher.run(CreateTopic(TOPIC, kind="stream", partitions=2))
    for partition in (0, 1):
        await dispatcher.run(CreateSubscription(f"{TOPIC}-part-{partition}", "billing"))
    request = message("danube_admin.SetSubscriptionFailurePolicyRequest")(
        topic=TOPIC, subscription="billing"
    )
    request.failure_policy.CopyFrom(
        message("danube_admin.SubscriptionFailurePolicy")(
            ack_timeout_ms=1_000, dead_letter_topic=letters, poison_policy=0
        )
    )
    before = await dispatcher.run(DescribeSettings(f"{TOPIC}-part-0", "billing"))
    set_policy = SubscriptionAdmin(dispatcher, settings).handlers()["SetSubscriptionFailurePolicy"]
    with pytest.raises((IsterError, Refusal)):
        await set_policy(request, None)

    assert settings.policy(TOPIC, "billing", None) is None
    assert (await dispatcher.run(DescribeSettings(f"{TOPIC}-part-0", "billing"))) == before


async def test_a_later_topic_of_the_name_has_nothing_to_do_with_what_was_set(
    metadata: MemoryMetadata, memory: MemoryBroker, dispatcher: Dispatcher, client: ister.Client
) -> None:
    settings = SubscriptionSettings(metadata, identity_of=partial(topic_identity, dispatcher.node))
    await dispatcher.run(CreateTopic(TOPIC, kind="stream", partitions=2))
    await settings.keep_policy(TOPIC, "billing", ODD)
    assert settings.policy(f"{TOPIC}-part-1", "billing", None) == ODD

    # By somebody who knows nothing of these settings.
    await client.delete_topic(TOPIC)
    assert settings.policy(TOPIC, "billing", None) is None
    await client.create_topic(TOPIC, kind="stream", partitions=2)
    assert settings.policy(TOPIC, "billing", None) is None
    assert settings.acks(f"{TOPIC}-part-1", "billing") == DANUBE_ACKS

    await settings.keep_unacked_max(TOPIC, "billing", 3)
    assert settings.policy(TOPIC, "billing", None) is None
    await memory.restart()
    node = Dispatcher(memory.engine).node
    again = SubscriptionSettings(metadata, identity_of=partial(topic_identity, node))
    await again.load(exists=partial(topic_exists, node))
    assert again.unacked_max(TOPIC, "billing", None) == 3
