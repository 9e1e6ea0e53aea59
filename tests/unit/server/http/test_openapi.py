"""The OpenAPI document says what the table of routes says."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from tests.unit.server.http.caller import Caller

from ister.server.http.api import ROUTES
from ister.server.http.openapi import document
from ister.server.http.routes import PREFIX

HTTP_PAGE = (Path(__file__).parents[4] / "docs" / "http.md").read_text(encoding="utf-8")
DOCUMENT = document(ROUTES.table)
SPECS = [route.operation.spec for route in ROUTES.table]


def operations(told: dict[str, Any] = DOCUMENT) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in told["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def test_every_route_is_in_the_document() -> None:
    told = {name for name, _ in operations()}

    assert told == {f"{spec.method} {PREFIX}{spec.path}" for spec in SPECS}


def test_every_reference_leads_somewhere_and_every_component_is_used() -> None:
    prefix = "#/components/schemas/"

    used = {reference.removeprefix(prefix) for reference in references(DOCUMENT)}

    assert used == set(DOCUMENT["components"]["schemas"])


def test_every_operation_has_a_name_of_its_own_and_says_what_it_does() -> None:
    names = [operation["operationId"] for _, operation in operations()]

    assert len(set(names)) == len(names)
    assert all(len(operation["summary"]) > 10 for _, operation in operations())


def test_every_parameter_of_a_path_is_described_and_required() -> None:
    for name, operation in operations():
        told = [row["name"] for row in operation["parameters"] if row["in"] == "path"]
        assert all(f"{{{parameter}}}" in name for parameter in told)
        assert len(told) == name.count("{")
        assert all(row["required"] for row in operation["parameters"] if row["in"] == "path")


def test_every_answer_that_is_no_success_has_the_shape_of_errors() -> None:
    for _, operation in operations():
        for status, answer in operation["responses"].items():
            if status.startswith("2"):
                continue
            schema = answer["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorBody"}


def test_the_documentation_has_every_operation_and_no_other() -> None:
    told = re.findall(r"^\| `([A-Z]+ /\S+)` \|", HTTP_PAGE, re.MULTILINE)

    assert sorted(told) == sorted(f"{spec.method} {spec.path}" for spec in SPECS)


def test_of_a_broker_that_asks_for_tokens_every_operation_says_so() -> None:
    told = document(ROUTES.table, tokens=True)

    schemes = told["components"].pop("securitySchemes")
    assert schemes == {"token": {"type": "http", "scheme": "bearer"}}
    assert told.pop("security") == [{"token": []}]
    for _, operation in operations(told):
        refusal = operation["responses"].pop("401")
        assert "WWW-Authenticate" in refusal["headers"]
        schema = refusal["content"]["application/json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/ErrorBody"}
    # And nothing else is another.
    assert told == DOCUMENT


def test_of_a_broker_without_tokens_no_operation_speaks_of_them() -> None:
    assert "security" not in DOCUMENT
    assert "securitySchemes" not in DOCUMENT["components"]
    assert not any("401" in operation["responses"] for _, operation in operations())


async def test_the_broker_serves_the_document(call: Caller) -> None:
    answer = await call("GET", "/api/openapi.json")

    assert answer.status == 200
    assert answer.json == msgspec.json.decode(msgspec.json.encode(DOCUMENT))
