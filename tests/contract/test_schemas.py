"""The schema registry, as both clients offer it."""

from typing import Any

import pytest
from tests.contract.harness import Harness

import ister
from ister.base import SchemaBinding, SchemaSubject
from ister.base.errors import (
    BadNameError,
    BadRequestError,
    BadSchemaError,
    SchemaBindingNotFoundError,
    SchemaIncompatibleError,
    SchemaMismatchError,
    SchemaNotFoundError,
    SchemaViolationError,
)

TOPIC = "/default/orders"
SUBJECT = "orders"


def order(**properties: str) -> ister.Schema:
    """A JSON schema of an object with a required id, and these optional properties."""
    return ister.Schema(
        "json_schema",
        {
            "type": "object",
            "required": ["id"],
            "properties": {
                "id": {"type": "integer"},
                **{name: {"type": kind} for name, kind in properties.items()},
            },
        },
    )


V1, V2, V3 = order(), order(note="string"), order(note="string", price="number")


async def test_versions_are_numbered_and_share_the_id_of_their_subject(
    client: ister.Client,
) -> None:
    first = await client.schemas.register(SUBJECT, V1)
    second = await client.schemas.register(SUBJECT, V2)
    other = await client.schemas.register("clicks", V1)

    assert (first.schema_id, first.version, first.is_new) == (1, 1, True)
    assert (second.schema_id, second.version, second.is_new) == (1, 2, True)
    assert (other.schema_id, other.version) == (2, 1)
    assert first.fingerprint == other.fingerprint != second.fingerprint


async def test_what_means_the_same_is_the_same_version(client: ister.Client) -> None:
    first = await client.schemas.register(SUBJECT, ister.Schema("string"))
    text = ister.Schema("json_schema", '{"type":  "integer", "title": "a"}')
    again = ister.Schema("json", b'{"title":"a","type":"integer"}')
    number = await client.schemas.register("number", text)

    assert await client.schemas.register(SUBJECT, str) == first._replace(is_new=False)
    assert await client.schemas.register("number", again) == number._replace(is_new=False)


async def test_a_version_is_found_by_subject_and_by_id(client: ister.Client) -> None:
    await client.schemas.register(
        SUBJECT, V1, description="what was ordered", created_by="shop", tags=["eu", "sales"]
    )
    await client.schemas.register(SUBJECT, V2)

    first = await client.schemas.get(SUBJECT, 1)
    assert (first.type, first.definition) == ("json_schema", V1.definition)
    assert (first.description, first.created_by, first.tags) == (
        "what was ordered",
        "shop",
        ["eu", "sales"],
    )
    assert first.created.year >= 2024
    assert await client.schemas.get(1, 1) == first
    assert await client.schemas.get(SUBJECT) == await client.schemas.latest(SUBJECT)
    assert (await client.schemas.latest(SUBJECT)).version == 2
    assert [one.version for one in await client.schemas.versions(SUBJECT)] == [1, 2]


async def test_versions_too_large_for_one_answer_all_come(client: ister.Client) -> None:
    wide = [
        ister.Schema("json_schema", {"type": "string", "description": f"{n}" + "x" * 300_000})
        for n in range(4)
    ]
    for schema in wide:
        await client.schemas.register(SUBJECT, schema, mode="none")

    versions = await client.schemas.versions(SUBJECT)
    assert [one.definition for one in versions] == [schema.definition for schema in wide]


async def test_a_definition_of_the_largest_size_goes_there_and_back(client: ister.Client) -> None:
    head, tail = b'{"type":"string","description":"', b'"}'
    definition = head + b"x" * (1024 * 1024 - len(head) - len(tail)) + tail
    await client.schemas.register(SUBJECT, ister.Schema("json_schema", definition))

    assert (await client.schemas.latest(SUBJECT)).definition == definition
    with pytest.raises(BadSchemaError):
        await client.schemas.register(SUBJECT, ister.Schema("json_schema", definition + b" "))


async def test_subjects_are_listed_by_name_and_over_pages(client: ister.Client) -> None:
    for number in range(1_001):
        await client.schemas.register(f"many-{number:04}", str)
    await client.schemas.register("a", V1, mode="full", tags=["x"])

    found = await client.schemas.list()
    assert [one.subject for one in found[1:]] == [f"many-{n:04}" for n in range(1_001)]
    assert found[0] == SchemaSubject(
        subject="a",
        schema_id=1_002,
        type="json_schema",
        mode="full",
        latest_version=1,
        versions=[1],
        tags=["x"],
    )
    assert await client.schemas.describe("a") == found[0]


async def test_an_incompatible_version_is_refused_with_every_reason(client: ister.Client) -> None:
    await client.schemas.register(SUBJECT, order(note="string", price="number"))
    broken = order(note="integer", price="string")

    reasons = await client.schemas.check(SUBJECT, broken)
    with pytest.raises(SchemaIncompatibleError) as caught:
        await client.schemas.register(SUBJECT, broken)

    assert len(reasons) == 2
    assert caught.value.reasons == reasons
    assert (caught.value.subject, caught.value.mode) == (SUBJECT, "backward")
    assert (await client.schemas.describe(SUBJECT)).versions == [1]
    assert await client.schemas.check(SUBJECT, broken, mode="none") == []


async def test_the_mode_says_what_is_compatible(client: ister.Client) -> None:
    await client.schemas.register(SUBJECT, V1)
    other = ister.Schema("json_schema", {"type": "string"})
    with pytest.raises(SchemaIncompatibleError):
        await client.schemas.register(SUBJECT, other)
    await client.schemas.set_mode(SUBJECT, "none")

    assert (await client.schemas.register(SUBJECT, other)).version == 2
    with pytest.raises(BadRequestError):
        await client.schemas.set_mode(SUBJECT, "sideways")


async def test_a_deleted_version_is_gone_and_its_number_never_comes_back(
    client: ister.Client,
) -> None:
    await client.schemas.register(SUBJECT, V1)
    await client.schemas.register(SUBJECT, V2)
    await client.schemas.delete(SUBJECT, 2)

    with pytest.raises(SchemaNotFoundError) as caught:
        await client.schemas.get(SUBJECT, 2)
    assert (caught.value.subject, caught.value.version) == (SUBJECT, 2)
    assert (await client.schemas.register(SUBJECT, V3)).version == 3
    await client.schemas.delete(SUBJECT)
    assert await client.schemas.list() == []
    assert (await client.schemas.register(SUBJECT, V1)).schema_id == 2


async def test_what_is_not_there_is_told(client: ister.Client) -> None:
    for work in (
        client.schemas.get(SUBJECT),
        client.schemas.get(7),
        client.schemas.latest(SUBJECT),
        client.schemas.versions(SUBJECT),
        client.schemas.describe(SUBJECT),
        client.schemas.delete(SUBJECT),
        client.schemas.delete(SUBJECT, 1),
        client.schemas.set_mode(SUBJECT, "none"),
        client.schemas.bind(TOPIC, SUBJECT),
    ):
        with pytest.raises(SchemaNotFoundError):
            await work
    for work in (client.schemas.binding(TOPIC), client.schemas.unbind(TOPIC)):
        with pytest.raises(SchemaBindingNotFoundError):
            await work


async def test_a_topic_is_bound_and_freed_again(client: ister.Client) -> None:
    await client.schemas.register(SUBJECT, V1)
    await client.schemas.register(SUBJECT, V2)
    bound = await client.schemas.bind(
        TOPIC, SUBJECT, policy="warn", validate_payload=False, min_version=2
    )

    assert bound == SchemaBinding(
        topic=TOPIC,
        subject=SUBJECT,
        schema_id=1,
        policy="warn",
        validate_payload=False,
        version=0,
        min_version=2,
    )
    assert await client.schemas.binding(TOPIC) == bound
    with pytest.raises(SchemaMismatchError):
        await client.schemas.delete(SUBJECT)
    await client.schemas.unbind(TOPIC)
    with pytest.raises(SchemaBindingNotFoundError):
        await client.schemas.binding(TOPIC)


@pytest.mark.parametrize("kind", ["live", "stream"])
async def test_a_bound_topic_refuses_what_does_not_fit(client: ister.Client, kind: str) -> None:
    await client.create_topic(TOPIC, kind=kind)
    await client.schemas.register(SUBJECT, V1)
    async with client.producer(TOPIC) as producer:
        await producer.send(b"anything")
        await client.schemas.bind(TOPIC, SUBJECT)

        with pytest.raises(SchemaViolationError) as caught:
            await producer.send(b'{"id": "one"}')
        assert (caught.value.topic, caught.value.subject) == (TOPIC, SUBJECT)
        assert "/id" in caught.value.reason
        assert (await producer.send(b'{"id": 1}')).offset == 1
        await client.schemas.unbind(TOPIC)
        assert (await producer.send(b"anything")).offset == 2


async def test_a_topic_under_warn_takes_what_does_not_fit(client: ister.Client) -> None:
    await client.schemas.register(SUBJECT, V1)
    await client.schemas.bind(TOPIC, SUBJECT, policy="warn")
    async with client.producer(TOPIC) as producer:
        assert (await producer.send(b"anything")).offset == 0


async def test_a_transaction_into_a_bound_topic_is_refused_as_a_whole(
    client: ister.Client,
) -> None:
    for topic in (TOPIC, "/default/audit"):
        await client.create_topic(topic, kind="stream")
    await client.schemas.register(SUBJECT, V1)
    await client.schemas.bind(TOPIC, SUBJECT)

    tx = client.transaction()
    tx.send("/default/audit", b"ordered")
    tx.send(TOPIC, b"no order")
    with pytest.raises(SchemaViolationError):
        await tx.commit()
    assert [row.next_offset for row in await client.topics()] == [0, 0]


async def test_schemas_and_bindings_outlive_a_restart(harness: Harness) -> None:
    async with harness.connect() as client:
        await client.create_topic(TOPIC, kind="stream")
        await client.schemas.register(SUBJECT, V1)
        await client.schemas.bind(TOPIC, SUBJECT)
        async with client.producer(TOPIC) as producer:
            await harness.restart()

            assert [one.subject for one in await client.schemas.list()] == [SUBJECT]
            with pytest.raises(SchemaViolationError):
                await producer.send(b"no order")
            await producer.send(b'{"id": 1}')


@pytest.mark.parametrize("wrong", [5, None, b"x", [], "", "a b", "x" * 300])
async def test_a_wrong_subject_gets_a_typed_error(client: ister.Client, wrong: Any) -> None:
    for work in (
        client.schemas.register(wrong, V1),
        client.schemas.check(wrong, V1),
        client.schemas.set_mode(wrong, "none"),
        client.schemas.bind(TOPIC, wrong),
    ):
        with pytest.raises((BadRequestError, BadNameError, SchemaNotFoundError)):
            await work


async def test_wrong_arguments_get_typed_errors(client: ister.Client) -> None:
    wrong: Any = "eu"
    for work in (
        client.schemas.register(SUBJECT, V1, tags=wrong),
        client.schemas.register(SUBJECT, V1, mode="sideways"),
        client.schemas.register(SUBJECT, wrong),
        client.schemas.delete(SUBJECT, 0),
        client.schemas.get(SUBJECT, -1),
    ):
        with pytest.raises((BadRequestError, SchemaNotFoundError)):
            await work
    for broken in (ister.Schema("json_schema", b"{"), ister.Schema("avro", {"type": "x"})):
        with pytest.raises(BadSchemaError):
            await client.schemas.register(SUBJECT, broken)
    with pytest.raises(BadSchemaError):
        await client.schemas.register(SUBJECT, ister.Schema("jason", b"{}"))
    with pytest.raises(BadRequestError):
        ister.Schema("json_schema", wrong_definition())


def wrong_definition() -> object:
    return {"type": object()}
