"""Schemas through danube-client, unmodified and in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import BrokerProcess

pytestmark = pytest.mark.e2e

SCENARIO = "tests.e2e.grpc.registry_scenario"
ROOT = Path(__file__).parents[3]
WAIT_S = 50.0


@pytest.fixture(scope="module")
def seen(grpc_broker: BrokerProcess) -> dict[str, Any]:
    """What the client saw."""
    ran = subprocess.run(
        [sys.executable, "-m", SCENARIO, f"http://{grpc_broker.grpc}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr + grpc_broker.log_text()
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_versions_of_a_subject_evolve(seen: dict[str, Any]) -> None:
    evolved = seen["evolve"]

    assert evolved["ids"][0] == evolved["ids"][1]
    assert evolved["versions"] == [1, 2]
    version, kind, definition = evolved["latest"]
    assert (version, kind) == (2, "json_schema")
    # As it was registered: an application gives it to its own validator.
    assert "note" in json.loads(definition)["properties"]
    assert "note" not in json.loads(evolved["first"])["properties"]


def test_what_breaks_readers_is_refused_unless_the_mode_allows_it(seen: dict[str, Any]) -> None:
    evolved = seen["evolve"]

    assert evolved["good"] == [True, []]
    compatible, reasons = evolved["bad"]
    assert not compatible
    assert any("id" in reason for reason in reasons)
    assert (evolved["refused"], evolved["taken"]) == ("INTERNAL", "OK")


def test_versions_are_deleted_and_missing_ones_are_not_found(seen: dict[str, Any]) -> None:
    evolved = seen["evolve"]

    assert evolved["deleted"]
    assert evolved["left"] == [1, 2]
    assert evolved["unknown"] == "NOT_FOUND"


def test_messages_carry_the_version_their_producer_chose(seen: dict[str, Any]) -> None:
    exchanged = seen["exchange"]

    assert exchanged["schema_id"] == seen["evolve"]["ids"][0]
    assert exchanged["messages"] == [
        ['{"id": 1}', 2],
        ['{"id": 2}', 1],
        ["anything", None],
        ['{"id": 3}', 2],
        ['{"id": "one"}', 2],
    ]


def test_a_topic_has_one_subject(seen: dict[str, Any]) -> None:
    exchanged = seen["exchange"]

    assert exchanged["other"] == "FAILED_PRECONDITION"
    assert exchanged["missing"] == "FAILED_PRECONDITION"
    assert exchanged["config"] == ["orders-value", "enforce", seen["evolve"]["ids"][0]]


def test_an_enforced_schema_refuses_what_does_not_fit(seen: dict[str, Any]) -> None:
    exchanged = seen["exchange"]

    assert (exchanged["invalid"], exchanged["valid"]) == ("INVALID_ARGUMENT", "OK")
    assert exchanged["unchecked"] == "OK"
