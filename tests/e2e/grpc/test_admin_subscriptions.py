"""Danube's admin API over a real channel: subscriptions, their failure policy and their limit."""

from collections.abc import Iterator
from typing import Any

import pytest
from grpc import StatusCode
from tests.e2e.conftest import BrokerProcess
from tests.e2e.grpc.admin_port import Port, new_name

from ister import sync

pytestmark = pytest.mark.e2e

RELIABLE = 1
FIXED, EXPONENTIAL = 0, 1
DEAD_LETTER, BLOCK, DROP = 0, 1, 2

POLICY = {
    "max_redelivery_count": 3,
    "ack_timeout_ms": 5_000,
    "base_redelivery_delay_ms": 100,
    "max_redelivery_delay_ms": 1_000,
    "backoff_strategy": EXPONENTIAL,
    "dead_letter_topic": "/default/dead",
    "poison_policy": DEAD_LETTER,
}


@pytest.fixture(scope="module")
def port(grpc_broker: BrokerProcess) -> Iterator[Port]:
    """Its admin port."""
    made = Port(grpc_broker.admin)
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(grpc_broker: BrokerProcess) -> Iterator[sync.Client]:
    """A client of ours, to subscribe with."""
    with sync.connect(grpc_broker.url) as made:
        yield made


@pytest.fixture
def topic(port: Port) -> str:
    """A reliable topic."""
    name = new_name("s")
    port.call("TopicAdmin/CreateTopic", name=name, dispatch_strategy=RELIABLE)
    return name


def set_policy(port: Port, topic: str, name: str = "billing", **changes: Any) -> None:
    policy = {key: value for key, value in (POLICY | changes).items() if value is not None}
    port.call(
        "TopicAdmin/SetSubscriptionFailurePolicy",
        topic=topic,
        subscription=name,
        failure_policy=policy,
    )


def get_policy(port: Port, topic: str, name: str = "billing") -> Any:
    return port.call("TopicAdmin/GetSubscriptionFailurePolicy", topic=topic, subscription=name)


def fields_of(policy: Any) -> dict[str, Any]:
    found = {key: getattr(policy, key) for key in POLICY}
    if not policy.HasField("dead_letter_topic"):
        found["dead_letter_topic"] = None
    return found


def settings(client: sync.Client, topic: str, name: str = "billing") -> Any:
    (row,) = [r for r in client.subscriptions(topic) if r.subscription == name]
    assert row.cursor is not None
    return row.cursor.settings


# Listing and removing


def test_subscriptions_of_a_topic_are_listed_by_name(
    port: Port, client: sync.Client, topic: str
) -> None:
    for name in ("mail", "billing"):
        with client.subscribe(topic, name):
            pass

    found = port.call("TopicAdmin/ListSubscriptions", name=topic).subscriptions
    assert found == ["billing", "mail"]
    assert port.call("TopicAdmin/DescribeTopic", name=topic).subscriptions == found


def test_a_subscription_is_removed_when_nobody_consumes_it(
    port: Port, client: sync.Client, topic: str
) -> None:
    fields = {"topic": topic, "subscription": "billing"}
    with client.subscribe(topic, "billing"):
        assert port.code("TopicAdmin/Unsubscribe", **fields) is StatusCode.NOT_FOUND
        assert port.call("TopicAdmin/ListSubscriptions", name=topic).subscriptions == ["billing"]

    assert port.call("TopicAdmin/Unsubscribe", **fields).success
    assert port.call("TopicAdmin/ListSubscriptions", name=topic).subscriptions == []
    assert port.code("TopicAdmin/Unsubscribe", **fields) is StatusCode.NOT_FOUND


def test_the_subscriptions_on_partitions_are_one_to_an_operator(
    port: Port, client: sync.Client
) -> None:
    """As Danube's clients subscribe: to each partition by itself."""
    topic = new_name("p")
    port.call(
        "TopicAdmin/CreatePartitionedTopic",
        base_name=topic,
        partitions=2,
        dispatch_strategy=RELIABLE,
    )
    parts = [f"{topic}-part-0", f"{topic}-part-1"]
    for part in parts:
        with client.subscribe(part, "billing"):
            pass

    set_policy(port, topic)
    assert [settings(client, part).max_deliveries for part in parts] == [4, 4]
    assert port.call("TopicAdmin/ListSubscriptions", name=topic).subscriptions == ["billing"]
    assert port.call("TopicAdmin/Unsubscribe", topic=topic, subscription="billing").success
    assert port.call("TopicAdmin/ListSubscriptions", name=parts[1]).subscriptions == []


# Failure policies


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"backoff_strategy": FIXED},
        {"poison_policy": BLOCK, "dead_letter_topic": None},
        {"poison_policy": DROP, "dead_letter_topic": None},
        # Numbers that have no effect, or none that a list of delays could say.
        {"backoff_strategy": FIXED, "base_redelivery_delay_ms": 1},
        {"base_redelivery_delay_ms": 0},
        {"base_redelivery_delay_ms": 5_000, "max_redelivery_delay_ms": 1_000},
        {"base_redelivery_delay_ms": 1, "max_redelivery_delay_ms": 12 * 3_600_000},
        {"ack_timeout_ms": 200},
        {"max_redelivery_count": 0},
        {"max_redelivery_count": 2**32 - 1},
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_policy_is_told_as_it_was_set(
    port: Port, client: sync.Client, topic: str, changes: dict[str, Any], exists: bool
) -> None:
    if exists:
        with client.subscribe(topic, "billing"):
            pass
    set_policy(port, topic, **changes)

    assert fields_of(get_policy(port, topic).failure_policy) == POLICY | changes


def test_a_policy_takes_effect_while_a_consumer_is_attached(
    port: Port, client: sync.Client, topic: str
) -> None:
    with client.subscribe(topic, "billing", type="shared"):
        set_policy(port, topic)

        found = settings(client, topic)
        assert (found.ack_timeout_ms, found.max_deliveries) == (5_000, 4)
        assert found.backoff_ms == (100, 200, 400, 800, 1_000)
        assert (found.poison, found.dead_letter_topic) == ("dead_letter", "/default/dead")
        assert get_policy(port, topic).subscription_type == 1


def test_a_policy_that_was_changed_elsewhere_is_told_as_it_is(
    port: Port, client: sync.Client, topic: str
) -> None:
    set_policy(port, topic)
    with client.subscribe(topic, "billing", max_deliveries=9, backoff=[2.0]):
        pass

    found = get_policy(port, topic).failure_policy
    assert (found.max_redelivery_count, found.base_redelivery_delay_ms) == (8, 2_000)


def test_a_subscription_that_is_not_there_has_no_policy(port: Port, topic: str) -> None:
    assert not get_policy(port, topic).HasField("failure_policy")


def test_a_policy_ends_with_its_subscription(port: Port, client: sync.Client, topic: str) -> None:
    with client.subscribe(topic, "billing"):
        pass
    set_policy(port, topic)
    port.call("TopicAdmin/Unsubscribe", topic=topic, subscription="billing")

    assert not get_policy(port, topic).HasField("failure_policy")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"dead_letter_topic": None}, StatusCode.INVALID_ARGUMENT),
        ({"dead_letter_topic": ""}, StatusCode.INVALID_ARGUMENT),
        ({"dead_letter_topic": "dead"}, StatusCode.INVALID_ARGUMENT),
        ({"ack_timeout_ms": 0}, StatusCode.INVALID_ARGUMENT),
        ({"ack_timeout_ms": 2**64 - 1}, StatusCode.INVALID_ARGUMENT),
        (
            {"base_redelivery_delay_ms": 2**64 - 1, "max_redelivery_delay_ms": 2**64 - 1},
            StatusCode.INVALID_ARGUMENT,
        ),
        ({"max_redelivery_delay_ms": 2**64 - 1}, StatusCode.INVALID_ARGUMENT),
        ({"backoff_strategy": 7}, StatusCode.INVALID_ARGUMENT),
        ({"poison_policy": 7}, StatusCode.INVALID_ARGUMENT),
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_policy_that_cannot_be_is_refused(
    port: Port,
    client: sync.Client,
    topic: str,
    changes: dict[str, Any],
    code: StatusCode,
    exists: bool,
) -> None:
    if exists:
        with client.subscribe(topic, "billing"):
            pass
    policy = {key: value for key, value in (POLICY | changes).items() if value is not None}

    assert code is port.code(
        "TopicAdmin/SetSubscriptionFailurePolicy",
        topic=topic,
        subscription="billing",
        failure_policy=policy,
    )


def test_a_topic_is_not_that_of_its_own_dead_letters(port: Port, topic: str) -> None:
    method = "TopicAdmin/SetSubscriptionFailurePolicy"
    policy = POLICY | {"dead_letter_topic": topic}

    code = port.code(method, topic=topic, subscription="billing", failure_policy=policy)
    assert code is StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("strategy", [0, None], ids=["live", "missing"])
def test_settings_are_for_reliable_topics(port: Port, strategy: int | None) -> None:
    name = new_name("live")
    if strategy is not None:
        port.call("TopicAdmin/CreateTopic", name=name, dispatch_strategy=strategy)
    fields = {"topic": name, "subscription": "billing"}

    unfit = StatusCode.FAILED_PRECONDITION
    method = "TopicAdmin/SetSubscriptionFailurePolicy"
    assert port.code(method, failure_policy=POLICY, **fields) is unfit
    method = "TopicAdmin/SetSubscriptionDispatchConfig"
    assert port.code(method, dispatch_config={"max_unacked_messages": 1}, **fields) is unfit


# Dispatch limits


def test_a_limit_of_unacknowledged_messages_takes_effect(
    port: Port, client: sync.Client, topic: str
) -> None:
    fields = {"topic": topic, "subscription": "billing"}
    with client.subscribe(topic, "billing"):
        port.call(
            "TopicAdmin/SetSubscriptionDispatchConfig",
            dispatch_config={"max_unacked_messages": 3},
            **fields,
        )

        assert settings(client, topic).in_flight_max == 3
    found = port.call("TopicAdmin/GetSubscriptionDispatchConfig", **fields)
    assert found.dispatch_config.max_unacked_messages == 3


def test_a_limit_and_a_policy_are_kept_beside_each_other(port: Port, topic: str) -> None:
    fields = {"topic": topic, "subscription": "billing"}
    port.call(
        "TopicAdmin/SetSubscriptionDispatchConfig",
        dispatch_config={"max_unacked_messages": 3},
        **fields,
    )
    set_policy(port, topic)

    found = port.call("TopicAdmin/GetSubscriptionDispatchConfig", **fields)
    assert found.dispatch_config.max_unacked_messages == 3
    assert get_policy(port, topic).failure_policy.max_redelivery_count == 3


@pytest.mark.parametrize("count", [0, 10_001])
def test_a_limit_is_within_what_danube_takes(port: Port, topic: str, count: int) -> None:
    code = port.code(
        "TopicAdmin/SetSubscriptionDispatchConfig",
        topic=topic,
        subscription="billing",
        dispatch_config={"max_unacked_messages": count},
    )

    assert code is StatusCode.INVALID_ARGUMENT
    found = port.call(
        "TopicAdmin/GetSubscriptionDispatchConfig", topic=topic, subscription="billing"
    )
    assert not found.HasField("dispatch_config")
