"""Every operation says what it does, which right it needs, and where it is to be had."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from ister.base import Position, StreamChanges
from ister.base.errors import IsterError
from ister.operations import OPERATIONS, CreateTopic, ListBrokers, Operation, RegisterSchema, Right
from ister.server.http.routes import Routes
from ister.server.native.commands import ACTIONS
from ister.server.native.control import CONTROLS, RIGHTS
from ister.server.operations.table import ACTIONS as FUNCTIONS
from ister.wire import Chosen

HTTP_PAGE = (Path(__file__).parents[3] / "docs" / "http.md").read_text(encoding="utf-8")
SUMMARIES = dict(re.findall(r"^\| `([A-Z]+ /\S+)` \| (.+) \|$", HTTP_PAGE, re.MULTILINE))

# Operations that no command of the native protocol asks for: a client does the same on channels
# of its own (messages, subscriptions), or a report has it.
NOT_NATIVE = {
    "change_settings",
    "create_subscription",
    "describe_balance",
    "describe_namespace",
    "describe_settings",
    "describe_subscription",
    "describe_topic",
    "grow_topic",
    "list_bindings",
    "list_brokers",
    "list_partitions",
    "list_subscriptions_of_topic",
    "list_topics_of_namespace",
    "peek_messages",
    "publish_message",
}
# Commands about what is open on a connection: it was allowed when it was opened.
ON_A_CHANNEL = {
    "abort_transaction",
    "ask_time",
    "begin_transaction",
    "close_consumer",
    "close_producer",
    "close_reader",
    "drop_stages",
    "finish_leases",
    "leases_revoked",
    "nack_messages",
    "open_stage",
    "publish_stages",
    "send_delayed",
}


def names(commands: Iterable[type[Any]]) -> set[str]:
    return {str(one.__struct_config__.tag) for one in commands}


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.spec.name)
def test_an_operation_is_complete(operation: type[Operation[Any]]) -> None:
    spec = operation.spec

    assert isinstance(spec.right, Right)
    assert all(issubclass(error, IsterError) for error in spec.errors)
    assert operation.__doc__
    assert FUNCTIONS[operation].__name__ == spec.name
    assert FUNCTIONS[operation].__doc__
    if spec.method in ("GET", "DELETE"):
        assert spec.body is None


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.spec.name)
def test_the_documentation_says_of_an_operation_what_its_docstring_does(
    operation: type[Operation[Any]],
) -> None:
    summary = " ".join((operation.__doc__ or "").split("\n\n")[0].split()).rstrip(".")

    assert SUMMARIES[f"{operation.spec.method} {operation.spec.path}"].lower() == summary.lower()


def test_what_changes_nothing_needs_no_more_than_to_look() -> None:
    reading = {one for one in OPERATIONS if one.spec.method == "GET"}
    changing = set(OPERATIONS) - reading

    assert {one.spec.right for one in reading} == {Right.LOOKUP, Right.CONSUME}
    lookups = {one.spec.name for one in changing if one.spec.right is Right.LOOKUP}
    assert lookups == {"check_schema"}


def test_every_operation_is_to_be_had_by_http() -> None:
    assert [route.operation for route in Routes(OPERATIONS).table] == OPERATIONS


def test_every_operation_is_a_native_command_or_known_not_to_be() -> None:
    asked = set()
    for command, control in CONTROLS.items():
        made: Any = command
        fields = {field.name: _some(field.name) for field in structs.fields(made)}
        asked.add(control.operation(made(**fields)).spec.name)
    # Commands that stand for two operations, one by one.
    asked |= {"describe_schema_id", "resume_subscription", "delete_subject"}

    assert {one.spec.name for one in OPERATIONS} - asked == NOT_NATIVE


def _some(name: str) -> object:
    found: dict[str, object] = {
        "changes": StreamChanges(),
        "chosen": Chosen(),
        "to": Position(),
        "schema_id": 0,
    }
    return found.get(name, 1)


def test_every_native_command_needs_a_right_or_is_about_a_channel() -> None:
    assert names(ACTIONS) == names(RIGHTS) | ON_A_CHANNEL
    assert not names(CONTROLS) & names(ACTIONS)


def test_an_operation_is_about_a_topic_a_subject_or_the_broker() -> None:
    assert CreateTopic("/default/orders").resource == "/default/orders"
    assert RegisterSchema("order", "string").resource == "order"
    assert ListBrokers().resource == ""
