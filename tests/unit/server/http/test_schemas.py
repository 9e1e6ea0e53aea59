"""Schemas and bindings over HTTP."""

import msgspec
import pytest
from tests.unit.server.http.caller import Answer, Caller

from ister.server.operations import schemas

API = "/api/v1"
ORDER = f"{API}/schemas/order"
TOPIC = f"{API}/namespaces/default/topics/orders"

FIRST = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
SECOND = {"type": "object", "properties": {"a": {"type": "integer"}}}


async def register(call: Caller, definition: object, **more: object) -> Answer:
    text = msgspec.json.encode(definition).decode()
    body = {"type": "json_schema", "definition": text, **more}
    return await call("POST", f"{ORDER}/versions", body)


@pytest.fixture
async def order(call: Caller) -> None:
    """The subject `order` with one version."""
    assert (await register(call, FIRST, tags=["x"], description="An order.")).status == 201


async def test_the_same_definition_is_registered_once(call: Caller, order: None) -> None:
    again = await register(call, FIRST)

    assert again.status == 200
    assert again.json["schema_id"] == 1
    assert again.json["version"] == 1


async def test_a_version_is_told_as_it_was_registered(call: Caller, order: None) -> None:
    told = (await call("GET", f"{ORDER}/versions/1")).json

    assert msgspec.json.decode(told["definition"]) == FIRST
    assert (told["type"], told["encoding"], told["description"]) == (
        "json_schema",
        "text",
        "An order.",
    )
    assert told == (await call("GET", f"{ORDER}/versions/latest")).json
    assert told == (await call("GET", f"{API}/schema-ids/1")).json


async def test_versions_and_subjects_are_listed_by_page(call: Caller, order: None) -> None:
    assert (await register(call, SECOND)).json["version"] == 2

    first = (await call("GET", f"{ORDER}/versions?limit=1")).json
    second = (await call("GET", f"{ORDER}/versions?limit=1&after={first['next']}")).json

    assert [row["version"] for row in first["rows"] + second["rows"]] == [1, 2]
    assert second["next"] == 0
    (subject,) = (await call("GET", f"{API}/schemas")).json["rows"]
    assert subject == (await call("GET", ORDER)).json
    assert subject["versions"] == [1, 2]
    assert subject["mode"] == "backward"


async def test_a_schema_is_checked_without_being_registered(call: Caller, order: None) -> None:
    text = msgspec.json.encode({"type": "string"}).decode()

    told = await call("POST", f"{ORDER}/check", {"type": "json_schema", "definition": text})

    assert told.json["compatible"] is False
    assert told.json["reasons"]
    assert (await call("GET", ORDER)).json["latest_version"] == 1


async def test_what_breaks_readers_is_a_conflict_until_the_mode_allows_it(
    call: Caller, order: None
) -> None:
    refused = await register(call, {"type": "string"})
    relaxed = await call("PATCH", ORDER, {"mode": "none"})

    assert refused.error == (409, 4013, "SchemaIncompatibleError")
    assert relaxed.json["mode"] == "none"
    assert (await register(call, {"type": "string"})).status == 201


async def test_a_broken_definition_is_refused(call: Caller) -> None:
    answer = await register(call, {"type": "nothing"})

    assert answer.error == (400, 1014, "BadSchemaError")


async def test_versions_and_subjects_are_removed(call: Caller, order: None) -> None:
    await register(call, SECOND)

    assert (await call("DELETE", f"{ORDER}/versions/1")).status == 204
    gone = await call("GET", f"{ORDER}/versions/1")
    assert gone.error == (404, 3007, "SchemaNotFoundError")
    assert (await call("DELETE", ORDER)).status == 204
    assert (await call("GET", ORDER)).error == (404, 3007, "SchemaNotFoundError")


@pytest.mark.parametrize("version", ["0", "-1", "01", "newest", "1.0", "9999999999"])
async def test_a_version_is_a_number_from_one_or_the_latest(
    version: str, call: Caller, order: None
) -> None:
    answer = await call("GET", f"{ORDER}/versions/{version}")

    assert answer.error == (400, 1007, "BadRequestError")


async def test_a_topic_is_bound_and_let_go(call: Caller, order: None) -> None:
    await call("PUT", TOPIC, {"kind": "stream"})

    bound = await call("PUT", f"{TOPIC}/binding", {"subject": "order", "policy": "warn"})

    assert bound.json["policy"] == "warn"
    assert bound.json["schema_id"] == 1
    assert (await call("GET", f"{TOPIC}/binding")).json == bound.json
    assert (await call("GET", f"{API}/bindings")).json["rows"] == [bound.json]
    assert (await call("GET", TOPIC)).json["schema"]["subject"] == "order"
    assert (await call("DELETE", f"{TOPIC}/binding")).status == 204
    gone = await call("GET", f"{TOPIC}/binding")
    assert gone.error == (404, 3008, "SchemaBindingNotFoundError")


async def test_a_subject_that_a_topic_is_bound_to_stays(call: Caller, order: None) -> None:
    await call("PUT", f"{TOPIC}/binding", {"subject": "order"})

    assert (await call("DELETE", ORDER)).error == (409, 4014, "SchemaMismatchError")


async def test_a_page_of_versions_holds_only_so_many_bytes(
    call: Caller, order: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register(call, SECOND)
    monkeypatch.setattr(schemas, "LISTING_BYTES", 10)

    first = (await call("GET", f"{ORDER}/versions")).json
    second = (await call("GET", f"{ORDER}/versions?after={first['next']}")).json

    assert [row["version"] for row in first["rows"]] == [1]
    assert [row["version"] for row in second["rows"]] == [2]


async def test_checks_against_schemas_are_in_the_metrics(call: Caller, order: None) -> None:
    await call("PUT", TOPIC, {"kind": "live"})
    await call("PUT", f"{TOPIC}/binding", {"subject": "order"})

    metrics = (await call("GET", "/metrics")).body.decode()

    assert 'ister_schema_checked_batches_total{topic="/default/orders"} 0.0' in metrics
    assert 'ister_schema_violations_total{topic="/default/orders"} 0.0' in metrics


async def test_a_topic_is_not_bound_to_a_subject_that_is_not_there(call: Caller) -> None:
    answer = await call("PUT", f"{TOPIC}/binding", {"subject": "none"})

    assert answer.error == (404, 3007, "SchemaNotFoundError")
