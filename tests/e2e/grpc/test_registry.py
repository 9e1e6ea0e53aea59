"""Danube's schema registry over a real channel, on the client port and on the admin port."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from grpc import StatusCode
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.grpc.admin_port import Port, new_name

pytestmark = pytest.mark.e2e

V1 = b'{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}'
# One more property, which nobody has to have.
V2 = (
    b'{"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},'
    b' "required": ["id"]}'
)
# What was a number is text: data of before cannot be read.
BROKEN = b'{"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}'


@pytest.fixture(scope="module", params=["grpc", "admin"])
def port(request: pytest.FixtureRequest, grpc_broker: BrokerProcess) -> Iterator[Port]:
    """The client port, then the admin port."""
    made = Port(getattr(grpc_broker, request.param))
    yield made
    made.close()


@pytest.fixture
def admin(grpc_broker: BrokerProcess) -> Iterator[Port]:
    """The admin port, to make topics."""
    made = Port(grpc_broker.admin)
    yield made
    made.close()


@pytest.fixture
def subject() -> str:
    """The name of a subject that is not there."""
    return new_name("subject").rpartition("/")[2]


@pytest.fixture
def topic(admin: Port) -> str:
    """A topic."""
    name = new_name("bound")
    admin.call("TopicAdmin/CreateTopic", name=name, dispatch_strategy=1)
    return name


def call(port: Port, method: str, **fields: Any) -> Any:
    return port.call(f"SchemaRegistry/{method}", **fields)


def register(port: Port, subject: str, definition: bytes = V1, **fields: Any) -> Any:
    wanted = {"schema_type": "json_schema", "schema_definition": definition, **fields}
    return call(port, "RegisterSchema", subject=subject, **wanted)


def test_a_schema_is_registered_and_told_as_it_was(port: Port, subject: str) -> None:
    made = register(port, subject, description="orders", created_by="me", tags=["a", "b"])

    assert (made.version, made.is_new_version) == (1, True)
    assert made.schema_id > 0
    for found in (
        call(port, "GetSchema", schema_id=made.schema_id),
        call(port, "GetSchema", schema_id=made.schema_id, version=1),
        call(port, "GetLatestSchema", subject=subject),
    ):
        assert found.schema_definition == V1
        assert (found.subject, found.version, found.schema_type) == (subject, 1, "json_schema")
        assert (found.description, found.created_by, found.tags) == ("orders", "me", ["a", "b"])
        assert (found.fingerprint, found.compatibility_mode) == (made.fingerprint, "backward")
        # Seconds, not milliseconds: within this century.
        assert 1_700_000_000 < found.created_at < 4_000_000_000


AVRO = b'{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
PROTO = b'syntax = "proto3"; message Order { int64 id = 1; }'


@pytest.mark.parametrize(
    ("word", "type", "definition"),
    [
        ("bytes", "bytes", b""),
        ("string", "string", b"text"),
        ("number", "number", b"number"),
        ("int64", "int64", b""),
        ("JSON_Schema", "json_schema", V1),
        ("json", "json_schema", V1),
        ("Avro", "avro", AVRO),
        ("protobuf", "protobuf", PROTO),
        ("proto", "protobuf", PROTO),
    ],
)
def test_every_type_of_danube_is_taken(
    port: Port, subject: str, word: str, type: str, definition: bytes
) -> None:
    register(port, subject, definition, schema_type=word)

    found = call(port, "GetLatestSchema", subject=subject)
    assert (found.schema_type, found.schema_definition) == (type, definition)


def test_the_same_definition_is_the_same_version(port: Port, subject: str) -> None:
    first = register(port, subject)
    again = register(port, subject, json.dumps(json.loads(V1), indent=4).encode())

    assert not again.is_new_version
    assert (again.schema_id, again.version) == (first.schema_id, first.version)


def test_a_subject_has_one_id_for_all_its_versions(port: Port, subject: str) -> None:
    first, second = register(port, subject), register(port, subject, V2)

    assert (first.schema_id, second.version) == (second.schema_id, 2)
    rows = call(port, "ListVersions", subject=subject).versions
    assert [(row.version, row.schema_id) for row in rows] == [
        (1, first.schema_id),
        (2, first.schema_id),
    ]
    assert call(port, "GetSchema", schema_id=first.schema_id).version == 2
    assert call(port, "GetSchema", schema_id=first.schema_id, version=1).schema_definition == V1


def test_compatibility_is_checked_before_anything_is_registered(port: Port, subject: str) -> None:
    register(port, subject)

    fields = {"subject": subject, "schema_type": "json_schema"}
    good = call(port, "CheckCompatibility", new_schema_definition=V2, **fields)
    bad = call(port, "CheckCompatibility", new_schema_definition=BROKEN, **fields)
    assert (good.is_compatible, list(good.errors)) == (True, [])
    assert not bad.is_compatible
    assert any("id" in reason for reason in bad.errors)
    other = call(
        port,
        "CheckCompatibility",
        new_schema_definition=BROKEN,
        compatibility_mode="none",
        **fields,
    )
    assert other.is_compatible


def test_the_mode_of_a_subject_decides_what_is_taken(port: Port, subject: str) -> None:
    register(port, subject)
    assert call(port, "SetCompatibilityMode", subject=subject, compatibility_mode="NONE").success

    assert call(port, "GetLatestSchema", subject=subject).compatibility_mode == "none"
    assert register(port, subject, BROKEN).version == 2


# Without the property that V1 requires, and with one more that is required.
LESS = b'{"type": "object", "properties": {"note": {"type": "string"}}}'
MORE = (
    b'{"type": "object", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},'
    b' "required": ["id", "note"]}'
)
# All data can be read, and Danube refuses it all the same.
REFUSED_BY_DANUBE = [
    ("backward", LESS, "'id'"),
    ("forward", MORE, "'note'"),
    ("full", LESS, "'id'"),
    ("full", MORE, "'note'"),
]


@pytest.mark.parametrize(("mode", "definition", "name"), REFUSED_BY_DANUBE)
def test_required_properties_follow_danubes_rule(
    port: Port, subject: str, mode: str, definition: bytes, name: str
) -> None:
    register(port, subject)
    call(port, "SetCompatibilityMode", subject=subject, compatibility_mode=mode)

    fields = {"subject": subject, "schema_type": "json_schema"}
    told = call(port, "CheckCompatibility", new_schema_definition=definition, **fields)
    assert not told.is_compatible
    assert any(name in reason for reason in told.errors)
    code = port.code("SchemaRegistry/RegisterSchema", schema_definition=definition, **fields)
    assert code is StatusCode.INTERNAL
    assert call(port, "GetLatestSchema", subject=subject).version == 1


def test_a_version_is_deleted_once_or_twice(port: Port, subject: str) -> None:
    register(port, subject)
    register(port, subject, V2)

    for _ in range(2):
        assert call(port, "DeleteSchemaVersion", subject=subject, version=1).success
    assert [v.version for v in call(port, "ListVersions", subject=subject).versions] == [2]
    for missing in ("nothing", "no name", ""):
        assert call(port, "DeleteSchemaVersion", subject=missing, version=1).success


def test_subjects_are_listed(port: Port, subject: str) -> None:
    made = register(port, subject, tags=["a"])
    register(port, subject, V2, tags=["a"])

    rows = {row.subject: row for row in call(port, "ListSubjects").subjects}
    row = rows[subject]
    assert (row.schema_type, row.latest_version, row.compatibility_mode) == (
        "json_schema",
        2,
        "backward",
    )
    assert (row.schema_id, list(row.tags)) == (made.schema_id, ["a"])


def test_a_topic_is_bound_to_a_subject(port: Port, subject: str, topic: str) -> None:
    made = register(port, subject)
    answer = call(
        port,
        "ConfigureTopicSchema",
        topic_name=topic,
        schema_subject=subject,
        validation_policy="Enforce",
        enable_payload_validation=True,
    )

    assert answer.success
    found = call(port, "GetTopicSchemaConfig", topic_name=topic)
    assert (found.schema_subject, found.schema_id) == (subject, made.schema_id)
    assert (found.validation_policy, found.enable_payload_validation) == ("enforce", True)
    call(port, "UpdateTopicValidationPolicy", topic_name=topic, validation_policy="warn")
    found = call(port, "GetTopicSchemaConfig", topic_name=topic)
    assert (found.validation_policy, found.enable_payload_validation) == ("warn", False)
    assert found.schema_subject == subject


def test_a_topic_without_schema_checks_nothing(port: Port, topic: str) -> None:
    found = call(port, "GetTopicSchemaConfig", topic_name=topic)

    assert (found.schema_subject, found.schema_id) == ("", 0)
    assert found.validation_policy == "none"


def test_partitions_share_the_schema_of_their_topic(port: Port, admin: Port, subject: str) -> None:
    register(port, subject)
    name = new_name("parts")
    admin.call("TopicAdmin/CreatePartitionedTopic", base_name=name, partitions=2)
    call(
        port,
        "ConfigureTopicSchema",
        topic_name=f"{name}-part-0",
        schema_subject=subject,
        validation_policy="warn",
    )

    found = call(port, "GetTopicSchemaConfig", topic_name=f"{name}-part-1")
    assert found.schema_subject == subject


NOWHERE = "/default/nothing-here"
INTERNAL = StatusCode.INTERNAL
NOT_FOUND = StatusCode.NOT_FOUND
INVALID = StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("method", "fields", "code"),
    [
        ("RegisterSchema", {"subject": "s", "schema_definition": V1}, INTERNAL),
        (
            "RegisterSchema",
            {"subject": "s", "schema_type": "cobol", "schema_definition": V1},
            INTERNAL,
        ),
        (
            "RegisterSchema",
            {"subject": "s", "schema_type": "json_schema", "schema_definition": b"{"},
            INTERNAL,
        ),
        (
            "RegisterSchema",
            {"subject": "s", "schema_type": "avro", "schema_definition": b'{"type": "x"}'},
            INTERNAL,
        ),
        ("GetSchema", {}, NOT_FOUND),
        ("GetSchema", {"schema_id": 1_000_000}, NOT_FOUND),
        ("GetLatestSchema", {"subject": "nothing"}, NOT_FOUND),
        ("ListVersions", {"subject": "nothing"}, NOT_FOUND),
        (
            "CheckCompatibility",
            {"subject": "nothing", "schema_type": "json_schema", "new_schema_definition": V1},
            INTERNAL,
        ),
        (
            "SetCompatibilityMode",
            {"subject": "nothing", "compatibility_mode": "full"},
            INTERNAL,
        ),
        (
            "ConfigureTopicSchema",
            {"topic_name": NOWHERE, "schema_subject": "nothing", "validation_policy": "warn"},
            NOT_FOUND,
        ),
        ("ConfigureTopicSchema", {"topic_name": "orders"}, INVALID),
        ("UpdateTopicValidationPolicy", {"topic_name": NOWHERE}, NOT_FOUND),
        ("GetTopicSchemaConfig", {"topic_name": NOWHERE}, NOT_FOUND),
        ("GetTopicSchemaConfig", {"topic_name": "orders"}, INVALID),
    ],
)
def test_a_call_that_fails_is_answered_as_danube_does(
    port: Port, method: str, fields: dict[str, Any], code: StatusCode
) -> None:
    assert port.code(f"SchemaRegistry/{method}", **fields) is code


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("GetSchema", {"schema_id": 1_000_000}),
        ("GetLatestSchema", {"subject": "nothing"}),
        ("ListVersions", {"subject": "nothing"}),
        ("CheckCompatibility", {"subject": "nothing", "schema_type": "json_schema"}),
        ("SetCompatibilityMode", {"subject": "nothing", "compatibility_mode": "full"}),
    ],
)
def test_an_unknown_subject_is_not_found_in_so_many_words(
    port: Port, method: str, fields: dict[str, Any]
) -> None:
    """Danube's own clients and tests look for the words."""
    with pytest.raises(grpc.RpcError) as caught:
        call(port, method, **fields)

    failed: Any = caught.value
    assert "not found" in failed.details()


def test_calls_on_what_exists_are_answered_as_danube_does(
    port: Port, subject: str, topic: str
) -> None:
    made = register(port, subject)

    def code(method: str, **fields: Any) -> StatusCode:
        return port.code(f"SchemaRegistry/{method}", **fields)

    schema = {"subject": subject, "schema_type": "json_schema"}
    assert code("RegisterSchema", schema_definition=BROKEN, **schema) is INTERNAL
    assert code("CheckCompatibility", new_schema_definition=b"{", **schema) is INTERNAL
    assert code("GetSchema", schema_id=made.schema_id, version=9) is NOT_FOUND
    assert code("SetCompatibilityMode", subject=subject, compatibility_mode="upward") is INVALID
    bind = {"topic_name": topic, "schema_subject": subject}
    assert code("ConfigureTopicSchema", validation_policy="maybe", **bind) is INVALID
    bind["schema_subject"] = "nothing"
    assert code("ConfigureTopicSchema", validation_policy="warn", **bind) is NOT_FOUND
    update = {"topic_name": topic, "validation_policy": "warn"}
    unfit = StatusCode.FAILED_PRECONDITION
    assert code("UpdateTopicValidationPolicy", **update) is unfit


def test_a_long_list_of_reasons_is_no_reason_to_try_again(port: Port, subject: str) -> None:
    """gRPC answers RESOURCE_EXHAUSTED when a text is too long, which clients repeat for ever."""
    names = [f"property-{number:04}-é" for number in range(2_000)]

    def definition(kind: str) -> bytes:
        properties = {name: {"type": kind} for name in names}
        return json.dumps({"type": "object", "properties": properties}).encode()

    register(port, subject, definition("integer"))
    fields = {"subject": subject, "schema_type": "json_schema"}
    code = port.code(
        "SchemaRegistry/RegisterSchema", schema_definition=definition("string"), **fields
    )
    assert code is INTERNAL


def test_schemas_and_bindings_survive_a_crash(start_broker: StartBroker) -> None:
    broker = start_broker()
    port = Port(broker.admin)
    made = register(port, "orders")
    port.call("TopicAdmin/CreateTopic", name="/default/orders", dispatch_strategy=1)
    bind = {"topic_name": "/default/orders", "schema_subject": "orders"}
    call(port, "ConfigureTopicSchema", validation_policy="enforce", **bind)
    port.close()
    broker.kill()
    broker.start()

    port = Port(broker.admin)
    assert call(port, "GetLatestSchema", subject="orders").schema_id == made.schema_id
    found = call(port, "GetTopicSchemaConfig", topic_name="/default/orders")
    assert (found.schema_subject, found.validation_policy) == ("orders", "enforce")
    assert register(port, "others").schema_id == made.schema_id + 1
    port.close()


def test_a_topic_that_is_bound_while_it_is_deleted_is_not_bound_afterwards(
    port: Port, admin: Port, subject: str
) -> None:
    register(port, subject)
    with ThreadPoolExecutor(2) as pool:
        for number in range(20):
            topic = new_name("brief")
            admin.call("TopicAdmin/CreateTopic", name=topic, dispatch_strategy=number % 2)
            binding = pool.submit(
                port.code,
                "SchemaRegistry/ConfigureTopicSchema",
                topic_name=topic,
                schema_subject=subject,
                validation_policy="enforce",
            )
            deleting = pool.submit(admin.call, "TopicAdmin/DeleteTopic", name=topic)
            assert binding.result() in (StatusCode.OK, StatusCode.NOT_FOUND)
            assert deleting.result().success
            admin.call("TopicAdmin/CreateTopic", name=topic)
            assert not call(port, "GetTopicSchemaConfig", topic_name=topic).schema_subject
