"""Schemas through Danube's client: registered, named by producers, told to consumers."""

import json
import secrets

import danube
import pytest
from grpc import StatusCode
from tests.e2e.grpc.danubes import Danube, code_of, new_topic

V1 = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
V2 = {**V1, "properties": {**V1["properties"], "note": {"type": "string"}}}  # type: ignore[dict-item]


async def register(client: Danube, subject: str, definition: object) -> int:
    builder = client.schemas.register_schema(subject).with_type(danube.SchemaType.JSON_SCHEMA)
    made: int = await builder.with_schema_data(json.dumps(definition).encode()).execute()
    return made


@pytest.fixture
async def subject(danube: Danube) -> str:
    """A subject with two versions."""
    name = f"subject-{secrets.token_hex(6)}"
    first = await register(danube, name, V1)
    assert await register(danube, name, V2) == first
    return name


async def test_a_subject_has_one_id_and_rising_versions(danube: Danube, subject: str) -> None:
    latest = await danube.schemas.get_latest_schema(subject)

    assert latest.version == 2
    assert json.loads(latest.schema_definition) == V2
    assert await danube.schemas.list_versions(subject) == [1, 2]
    first = await danube.schemas.get_schema_version(latest.schema_id, 1)
    assert json.loads(first.schema_definition) == V1


@pytest.mark.parametrize("reliable", [False, True], ids=["live", "reliable"])
@pytest.mark.parametrize(("version", "told"), [(1, 1), (0, 2)], ids=["pinned", "latest"])
async def test_a_producers_schema_travels_with_its_messages(
    danube: Danube, subject: str, version: int, told: int, *, reliable: bool
) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=reliable, subject=subject, version=version)
    inbox = await danube.consumer(topic)

    await producer.send(b'{"id": 1}')

    (got,) = await inbox.take(ack=True)
    assert got.schema_version == told
    assert got.schema_id == (await danube.schemas.get_latest_schema(subject)).schema_id


async def test_a_producer_without_a_schema_may_send_anything(danube: Danube, subject: str) -> None:
    topic = new_topic()
    await danube.producer(topic, "with", subject=subject)
    without = await danube.producer(topic, "without")
    inbox = await danube.consumer(topic)

    await without.send(b"\xff no json")

    (got,) = await inbox.take()
    assert got.payload == b"\xff no json"
    assert not got.HasField("schema_id")


async def test_the_second_subject_of_a_topic_is_refused(danube: Danube, subject: str) -> None:
    topic, other = new_topic(), f"other-{secrets.token_hex(6)}"
    await register(danube, other, V1)
    await danube.producer(topic, subject=subject)

    found = await code_of(danube.producer(topic, "b", subject=other))

    assert found is StatusCode.FAILED_PRECONDITION
    await danube.producer(topic, "c", subject=subject)


async def test_all_partitions_have_one_subject(danube: Danube, subject: str) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, partitions=3, subject=subject)
    inbox = await danube.consumer(topic)

    for _ in range(3):
        await producer.send(b'{"id": 1}')

    assert {m.schema_version for m in await inbox.take(3)} == {2}


async def test_a_subject_that_is_not_registered_is_refused(danube: Danube) -> None:
    topic = new_topic()

    found = await code_of(danube.producer(topic, subject="never-registered"))

    assert found is StatusCode.FAILED_PRECONDITION
    # And nothing was made.
    await danube.producer(topic, reliable=True)


@pytest.mark.parametrize("reliable", [False, True], ids=["live", "reliable"])
async def test_an_enforced_schema_refuses_what_breaks_it(
    danube: Danube, subject: str, *, reliable: bool
) -> None:
    topic = new_topic()
    producer = await danube.producer(topic, reliable=reliable, subject=subject)
    bare = await danube.producer(topic, "bare", reliable=reliable)
    inbox = await danube.consumer(topic)
    await danube.schemas.configure_topic_schema(topic, subject, "enforce", True)

    assert await code_of(producer.send(b'{"id": "no"}')) is StatusCode.INVALID_ARGUMENT
    assert await code_of(bare.send(b"x")) is StatusCode.INVALID_ARGUMENT
    # Large enough to be checked beside the event loop.
    large = json.dumps({"id": "no", "note": "x" * 2_000_000}).encode()
    assert await code_of(producer.send(large)) is StatusCode.INVALID_ARGUMENT
    good = json.dumps({"id": 1, "note": "x" * 2_000_000}).encode()
    await producer.send(good)

    assert await inbox.payloads(1, ack=True) == [good]
