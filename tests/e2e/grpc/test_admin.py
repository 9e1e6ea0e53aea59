"""Danube's admin API over a real channel: brokers, namespaces, topics, and every status code."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from grpc import StatusCode
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.grpc.admin_port import Port, new_name

pytestmark = pytest.mark.e2e

NON_RELIABLE, RELIABLE = 0, 1


@pytest.fixture(scope="module")
def port(grpc_broker: BrokerProcess) -> Iterator[Port]:
    """Its admin port."""
    made = Port(grpc_broker.admin)
    yield made
    made.close()


@pytest.fixture
def name() -> str:
    """The name of a topic that is not there."""
    return new_name()


@pytest.fixture
def stream(port: Port, name: str) -> str:
    """A reliable topic."""
    port.call("TopicAdmin/CreateTopic", name=name, dispatch_strategy=RELIABLE)
    return name


@pytest.fixture
def subject(port: Port, name: str) -> str:
    """A subject in the registry."""
    word = name.rpartition("/")[2]
    definition = b'{"type": "object"}'
    port.call(
        "SchemaRegistry/RegisterSchema",
        subject=word,
        schema_type="json_schema",
        schema_definition=definition,
    )
    return word


def topic_names(port: Port, **fields: Any) -> list[str]:
    found = port.call("TopicAdmin/ListNamespaceTopics", **{"name": "default", **fields})
    return [topic.name for topic in found.topics]


# Brokers and the cluster


def test_the_one_broker_is_listed_as_the_leader(grpc_broker: BrokerProcess, port: Port) -> None:
    (row,) = port.call("BrokerAdmin/ListBrokers").brokers

    assert row.broker_id == port.call("BrokerAdmin/GetLeaderBroker").leader == "1"
    assert (row.broker_role, row.broker_status) == ("Cluster_Leader", "active")
    assert row.broker_addr == f"http://{grpc_broker.grpc}"
    assert row.admin_addr == f"http://{port.address}"
    assert row.metrics_addr == grpc_broker.http


def test_a_broker_is_listed_under_the_address_it_advertises(start_broker: StartBroker) -> None:
    broker = start_broker("--advertise", "danube.example")
    port = Port(broker.admin)

    (row,) = port.call("BrokerAdmin/ListBrokers").brokers
    assert row.broker_addr == f"http://danube.example:{broker.grpc.rpartition(':')[2]}"
    port.close()


def test_this_broker_is_active_already(port: Port) -> None:
    assert port.call("BrokerAdmin/ActivateBroker", broker_id="1", reason="why not").success


def test_every_method_is_answered_by_intent(port: Port) -> None:
    """An empty request is a mistake, or fine, or for what needs a cluster; never a bug."""
    bugs = (StatusCode.INTERNAL, StatusCode.UNKNOWN, StatusCode.UNAVAILABLE)
    codes = {method: port.code(method) for method in port.methods("danube_admin")}

    assert len(codes) == 37
    assert not {method: code for method, code in codes.items() if code in bugs}
    refused = {m for m, code in codes.items() if code is StatusCode.UNIMPLEMENTED}
    assert {m for m in refused if not m.startswith(("ClusterAdmin", "SecurityAdmin"))} == {
        "BrokerAdmin/GetClusterBalance",
        "BrokerAdmin/TriggerRebalance",
        "TopicAdmin/UnloadTopic",
    }


# Namespaces


def test_a_namespace_lives_and_ends(port: Port) -> None:
    assert port.call("NamespaceAdmin/CreateNamespace", name="shop").success
    assert "shop" in port.call("BrokerAdmin/ListNamespaces").namespaces

    assert port.call("NamespaceAdmin/DeleteNamespace", name="shop").success
    assert "shop" not in port.call("BrokerAdmin/ListNamespaces").namespaces


def test_default_and_system_are_always_there(port: Port) -> None:
    assert {"default", "system"} <= set(port.call("BrokerAdmin/ListNamespaces").namespaces)


def test_a_namespace_lists_its_topics_without_the_first_slash(port: Port, stream: str) -> None:
    topics = port.call("NamespaceAdmin/GetNamespaceTopics", name="default").topics

    assert stream[1:] in topics
    assert not [topic for topic in topics if topic.startswith("/")]


def test_policies_of_a_namespace_are_json(port: Port) -> None:
    policies = json.loads(port.call("NamespaceAdmin/GetNamespacePolicies", name="default").policies)

    assert set(policies) == {
        "max_producers_per_topic",
        "max_subscriptions_per_topic",
        "max_consumers_per_topic",
        "max_consumers_per_subscription",
        "max_publish_rate",
        "max_subscription_dispatch_rate",
        "max_message_size",
    }
    assert policies["max_message_size"] > 0


# Topics


@pytest.mark.parametrize(
    ("strategy", "delivery"), [(NON_RELIABLE, "NonReliable"), (RELIABLE, "Reliable")]
)
def test_a_topic_lives_and_ends(port: Port, name: str, strategy: int, delivery: str) -> None:
    assert port.call("TopicAdmin/CreateTopic", name=name, dispatch_strategy=strategy).success

    assert name in topic_names(port)
    found = port.call("TopicAdmin/DescribeTopic", name=name)
    assert (found.name, found.delivery, found.broker_id) == (name, delivery, "1")
    assert not found.HasField("schema_subject")
    assert port.call("TopicAdmin/DeleteTopic", name=name).success
    assert name not in topic_names(port)


def test_a_partitioned_topic_is_its_partitions(port: Port, name: str) -> None:
    port.call(
        "TopicAdmin/CreatePartitionedTopic",
        base_name=name,
        partitions=3,
        dispatch_strategy=RELIABLE,
    )

    parts = [f"{name}-part-{number}" for number in range(3)]
    assert [topic for topic in topic_names(port) if topic.startswith(name)] == parts
    assert port.call("TopicAdmin/DescribeTopic", name=parts[1]).delivery == "Reliable"
    port.call("TopicAdmin/DeleteTopic", name=name)
    assert not [topic for topic in topic_names(port) if topic.startswith(name)]


def test_partitions_may_be_made_one_by_one(port: Port, name: str) -> None:
    for number in range(2):
        port.call("TopicAdmin/CreateTopic", name=f"{name}-part-{number}")

    assert f"{name}-part-1" in topic_names(port)
    assert port.code("TopicAdmin/CreateTopic", name=name) is StatusCode.NOT_FOUND


def test_the_topics_of_a_broker_are_all_of_them(port: Port, stream: str) -> None:
    found = port.call("TopicAdmin/ListBrokerTopics", broker_id="1").topics

    assert (stream, "1", "Reliable") in [(t.name, t.broker_id, t.delivery) for t in found]


def test_a_topic_is_made_with_a_schema(port: Port, name: str, subject: str) -> None:
    port.call("TopicAdmin/CreateTopic", name=name, schema_subject=subject)

    found = port.call("TopicAdmin/DescribeTopic", name=name)
    assert (found.schema_subject, found.schema_version) == (subject, 1)
    assert (found.schema_type, found.compatibility_mode) == ("json_schema", "backward")
    assert found.schema_id > 0


def test_a_partitioned_topic_is_made_with_a_schema(port: Port, name: str, subject: str) -> None:
    port.call(
        "TopicAdmin/CreatePartitionedTopic", base_name=name, partitions=2, schema_subject=subject
    )

    for each in (name, f"{name}-part-1"):
        assert port.call("TopicAdmin/DescribeTopic", name=each).schema_subject == subject


def test_a_further_partition_leaves_the_policy_of_the_topic_as_it_is(
    port: Port, name: str, subject: str
) -> None:
    port.call(
        "TopicAdmin/CreatePartitionedTopic", base_name=name, partitions=1, schema_subject=subject
    )
    port.call(
        "SchemaRegistry/ConfigureTopicSchema",
        topic_name=name,
        schema_subject=subject,
        validation_policy="enforce",
        enable_payload_validation=True,
    )
    port.call("TopicAdmin/CreateTopic", name=f"{name}-part-1", schema_subject=subject)

    found = port.call("SchemaRegistry/GetTopicSchemaConfig", topic_name=name)
    assert (found.validation_policy, found.enable_payload_validation) == ("enforce", True)


def test_a_partition_of_another_schema_is_not_made(port: Port, name: str, subject: str) -> None:
    port.call("SchemaRegistry/RegisterSchema", subject=f"{subject}-other", schema_type="string")
    port.call(
        "TopicAdmin/CreatePartitionedTopic", base_name=name, partitions=1, schema_subject=subject
    )
    code = port.code(
        "TopicAdmin/CreateTopic", name=f"{name}-part-1", schema_subject=f"{subject}-other"
    )

    assert code is StatusCode.NOT_FOUND
    assert port.code("TopicAdmin/DescribeTopic", name=f"{name}-part-1") is StatusCode.NOT_FOUND
    assert port.call("TopicAdmin/DescribeTopic", name=name).schema_subject == subject


def test_a_topic_that_exists_is_not_bound_by_who_wanted_to_make_it(
    port: Port, name: str, subject: str
) -> None:
    port.call("TopicAdmin/CreateTopic", name=name)
    code = port.code("TopicAdmin/CreateTopic", name=name, schema_subject=subject)

    assert code is StatusCode.NOT_FOUND
    assert not port.call("TopicAdmin/DescribeTopic", name=name).HasField("schema_subject")


def test_a_topic_with_an_unknown_schema_is_not_made(port: Port, name: str) -> None:
    code = port.code("TopicAdmin/CreateTopic", name=name, schema_subject="nothing")

    assert code is StatusCode.NOT_FOUND
    assert name not in topic_names(port)


def test_what_was_made_survives_a_crash(start_broker: StartBroker) -> None:
    broker = start_broker()
    port = Port(broker.admin)
    port.call("NamespaceAdmin/CreateNamespace", name="shop")
    port.call("TopicAdmin/CreateTopic", name="/shop/orders", dispatch_strategy=RELIABLE)
    policy = {"topic": "/shop/orders", "subscription": "billing"}
    port.call(
        "TopicAdmin/SetSubscriptionDispatchConfig",
        dispatch_config={"max_unacked_messages": 7},
        **policy,
    )
    port.close()
    broker.kill()
    broker.start()

    port = Port(broker.admin)
    assert topic_names(port, name="shop") == ["/shop/orders"]
    kept = port.call("TopicAdmin/GetSubscriptionDispatchConfig", **policy)
    assert kept.dispatch_config.max_unacked_messages == 7
    port.close()


# Status codes

NOT_FOUND = StatusCode.NOT_FOUND
INVALID = StatusCode.INVALID_ARGUMENT
UNFIT = StatusCode.FAILED_PRECONDITION
LACKING = StatusCode.UNIMPLEMENTED

NOTHING = "/default/nothing-here"


@pytest.mark.parametrize(
    ("method", "fields", "code"),
    [
        ("BrokerAdmin/UnloadBroker", {}, INVALID),
        ("BrokerAdmin/UnloadBroker", {"broker_id": "1"}, UNFIT),
        ("BrokerAdmin/UnloadBroker", {"broker_id": "1", "dry_run": True}, UNFIT),
        ("BrokerAdmin/ActivateBroker", {}, INVALID),
        ("BrokerAdmin/ActivateBroker", {"broker_id": "2"}, NOT_FOUND),
        ("BrokerAdmin/GetClusterBalance", {}, LACKING),
        ("BrokerAdmin/TriggerRebalance", {"dry_run": True}, LACKING),
        ("ClusterAdmin/ClusterStatus", {}, LACKING),
        ("ClusterAdmin/AddNode", {"addr": "http://x:7650", "node_id": 2}, LACKING),
        ("ClusterAdmin/PromoteNode", {"node_id": 2}, LACKING),
        ("ClusterAdmin/RemoveNode", {"node_id": 2}, LACKING),
        ("SecurityAdmin/ListRoles", {}, LACKING),
        ("NamespaceAdmin/GetNamespaceTopics", {"name": "nowhere"}, NOT_FOUND),
        ("NamespaceAdmin/GetNamespacePolicies", {"name": "nowhere"}, NOT_FOUND),
        ("NamespaceAdmin/CreateNamespace", {"name": "default"}, NOT_FOUND),
        ("NamespaceAdmin/CreateNamespace", {"name": "a b"}, INVALID),
        ("NamespaceAdmin/DeleteNamespace", {"name": "nowhere"}, NOT_FOUND),
        ("NamespaceAdmin/DeleteNamespace", {"name": "default"}, NOT_FOUND),
        ("TopicAdmin/ListNamespaceTopics", {"name": "nowhere"}, NOT_FOUND),
        ("TopicAdmin/ListBrokerTopics", {"broker_id": "2"}, NOT_FOUND),
        ("TopicAdmin/CreateTopic", {"name": "orders"}, INVALID),
        ("TopicAdmin/CreateTopic", {"name": "/nowhere/orders"}, NOT_FOUND),
        ("TopicAdmin/CreateTopic", {"name": NOTHING, "dispatch_strategy": 7}, NOT_FOUND),
        ("TopicAdmin/CreateTopic", {"name": f"{NOTHING}-part-3"}, NOT_FOUND),
        ("TopicAdmin/CreatePartitionedTopic", {"base_name": NOTHING}, NOT_FOUND),
        (
            "TopicAdmin/CreatePartitionedTopic",
            {"base_name": NOTHING, "partitions": 100_000},
            NOT_FOUND,
        ),
        ("TopicAdmin/CreatePartitionedTopic", {"base_name": "x", "partitions": 1}, INVALID),
        ("TopicAdmin/DeleteTopic", {"name": NOTHING}, NOT_FOUND),
        ("TopicAdmin/DeleteTopic", {"name": "orders"}, INVALID),
        ("TopicAdmin/UnloadTopic", {"name": NOTHING}, LACKING),
        ("TopicAdmin/DescribeTopic", {"name": NOTHING}, NOT_FOUND),
        ("TopicAdmin/DescribeTopic", {"name": "orders"}, INVALID),
        ("TopicAdmin/ListSubscriptions", {"name": NOTHING}, NOT_FOUND),
        ("TopicAdmin/Unsubscribe", {"topic": NOTHING, "subscription": "s"}, NOT_FOUND),
    ],
)
def test_a_call_that_fails_is_answered_as_danube_does(
    port: Port, method: str, fields: dict[str, Any], code: StatusCode
) -> None:
    assert port.code(method, **fields) is code


@pytest.mark.parametrize("again", ["TopicAdmin/CreateTopic", "TopicAdmin/CreatePartitionedTopic"])
def test_what_exists_is_not_made_again(port: Port, stream: str, again: str) -> None:
    word = "name" if again.endswith("CreateTopic") else "base_name"
    fields = {word: stream, "dispatch_strategy": RELIABLE}
    if word == "base_name":
        fields["partitions"] = 2

    assert port.code(again, **fields) is StatusCode.NOT_FOUND


def test_a_single_partition_is_not_deleted(port: Port, name: str) -> None:
    port.call("TopicAdmin/CreatePartitionedTopic", base_name=name, partitions=2)

    assert port.code("TopicAdmin/DeleteTopic", name=f"{name}-part-0") is StatusCode.NOT_FOUND
    assert f"{name}-part-0" in topic_names(port)
    port.call("TopicAdmin/DeleteTopic", name=name)


def test_a_namespace_with_topics_is_not_deleted(port: Port) -> None:
    port.call("NamespaceAdmin/CreateNamespace", name="full")
    port.call("TopicAdmin/CreateTopic", name="/full/orders")

    assert port.code("NamespaceAdmin/DeleteNamespace", name="full") is StatusCode.NOT_FOUND


# Hostile requests


def test_bytes_that_are_no_request_are_refused(port: Port) -> None:
    """Text that is not UTF-8, and a field that ends too early."""
    for method in [*port.methods("danube_admin"), *port.methods("danube_schema")]:
        assert port.code_of_bytes(method, b"\x0a\x05ab") is INVALID
    assert port.code_of_bytes("TopicAdmin/CreateTopic", b"\x0a\x02\xff\xfe") is INVALID


def test_requests_at_random_are_no_bugs(grpc_broker: BrokerProcess, port: Port) -> None:
    chance = random.Random(7)
    for method in [*port.methods("danube_admin"), *port.methods("danube_schema")]:
        for _ in range(10):
            # Mostly fields 1 to 3, as numbers or text, so that much of it can be parsed.
            data = b"".join(
                chance.choice(
                    (
                        bytes((8 * number, chance.randrange(128))),
                        bytes((8 * number + 2, 3)) + chance.randbytes(3),
                        bytes((8 * number + 2, 10)) + b"/default/x",
                    )
                )
                for number in range(1, 1 + chance.randrange(4))
            )
            assert port.code_of_bytes(method, data) is not StatusCode.UNKNOWN

    assert "internal_error" not in grpc_broker.log_text()
    assert port.call("BrokerAdmin/GetLeaderBroker").leader == "1"


def test_huge_names_are_refused(port: Port) -> None:
    huge = "x" * 2_000_000
    for method, field in (
        ("NamespaceAdmin/CreateNamespace", "name"),
        ("TopicAdmin/CreateTopic", "name"),
        ("TopicAdmin/DescribeTopic", "name"),
        ("TopicAdmin/ListBrokerTopics", "broker_id"),
        ("TopicAdmin/Unsubscribe", "subscription"),
        ("BrokerAdmin/ActivateBroker", "broker_id"),
        ("SchemaRegistry/GetLatestSchema", "subject"),
    ):
        assert port.code(method, **{field: huge}) in (INVALID, NOT_FOUND)
