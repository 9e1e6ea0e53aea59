"""`ister schemas`, `ister brokers` and `ister namespaces delete`, in this process."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from ister.base.errors import ConflictError, InvalidError, IsterError, NotFoundError
from ister.cli.messages.produce import produce
from ister.cli.topics.brokers import brokers
from ister.cli.topics.namespaces import namespaces
from ister.cli.topics.schemas import schemas
from ister.cli.topics.topics import topics
from ister.testing import ThreadedBroker

ORDER: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "integer"}},
}
WIDER = {**ORDER, "properties": {**ORDER["properties"], "note": {"type": "string"}}}
BROKEN = {**ORDER, "properties": {"id": {"type": "string"}}}


class Shell:
    """Runs `ister` commands in this process, against one broker."""

    def __init__(self, url: str) -> None:
        # Without what all commands share: that sets up the log of the whole process.
        self._app = typer.Typer()
        self._app.command("produce")(produce)
        for name, group in (
            ("schemas", schemas),
            ("brokers", brokers),
            ("namespaces", namespaces),
            ("topics", topics),
        ):
            self._app.add_typer(group, name=name)
        self._url = url

    def run(self, *args: str, input: bytes = b"", code: int = 0) -> Result:
        """Run a command to its end and check its exit code."""
        environment = {"ISTER_URL": self._url, "COLUMNS": "200"}
        result = CliRunner().invoke(self._app, args, input=input, env=environment)
        found = result.exit_code
        if isinstance(result.exception, IsterError):
            # What `ister` itself makes of an error.
            found = result.exception.exit_code
        assert found == code, result.output + repr(result.exception)
        return result

    def json(self, *args: str, code: int = 0) -> Any:
        """Run a command with `--json` and return what it printed."""
        return json.loads(self.run(*args, "--json", code=code).stdout)


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    """The command line, with one broker for the tests of this file."""
    with ThreadedBroker() as broker:
        yield Shell(broker.url)


@pytest.fixture
def subject(request: pytest.FixtureRequest) -> str:
    """A subject that no other test uses."""
    return re.sub(r"[^\w-]+", "-", request.node.name)[:100]


def written(folder: Path, name: str, schema: object) -> str:
    """Write a definition to a file and return its path."""
    path = folder / name
    path.write_text(json.dumps(schema))
    return str(path)


def test_a_schema_is_registered_from_a_file_and_printed_again(
    shell: Shell, subject: str, tmp_path: Path
) -> None:
    file = written(tmp_path, "order.json", ORDER)
    first = shell.run("schemas", "register", subject, file, "--tag", "eu")
    again = shell.json("schemas", "register", subject, file)

    assert first.stdout == ""
    assert f"version 1 of {subject} is registered" in first.stderr
    assert (again["version"], again["is_new"]) == (1, False)
    assert json.loads(shell.run("schemas", "get", subject).stdout) == ORDER
    row = shell.json("schemas", "get", subject, "--version", "1")
    assert (row["type"], row["tags"], json.loads(row["definition"])) == (
        "json_schema",
        ["eu"],
        ORDER,
    )


def test_a_schema_is_registered_from_stdin(shell: Shell, subject: str) -> None:
    definition = json.dumps({"type": "record", "name": "A", "fields": []}).encode()
    shell.run("schemas", "register", subject, "-", "--type", "avro", input=definition)

    assert shell.run("schemas", "get", subject).stdout_bytes == definition + b"\n"


def test_a_plain_type_needs_no_definition(shell: Shell, subject: str) -> None:
    shell.run("schemas", "register", subject, "--type", "double")

    row = shell.json("schemas", "get", subject)
    assert row["type"] == "double"


def test_subjects_and_versions_are_listed(shell: Shell, subject: str, tmp_path: Path) -> None:
    for number, schema in enumerate((ORDER, WIDER)):
        shell.run("schemas", "register", subject, written(tmp_path, f"{number}.json", schema))

    subjects = shell.json("schemas", "list")
    [row] = [one for one in subjects if one["subject"] == subject]
    assert (row["mode"], row["versions"]) == ("backward", [1, 2])
    versions = shell.json("schemas", "list", subject)
    assert [json.loads(one["definition"]) for one in versions] == [ORDER, WIDER]
    assert subject in shell.run("schemas", "list").stdout
    assert "json_schema" in shell.run("schemas", "list", subject).stdout


def test_what_breaks_is_told_line_by_line_with_the_code_of_a_conflict(
    shell: Shell, subject: str, tmp_path: Path
) -> None:
    shell.run("schemas", "register", subject, written(tmp_path, "order.json", ORDER))
    broken, wider = (
        written(tmp_path, "broken.json", BROKEN),
        written(tmp_path, "wider.json", WIDER),
    )
    code = ConflictError.exit_code

    assert shell.run("schemas", "check", subject, wider).stdout == ""
    checked = shell.run("schemas", "check", subject, broken, code=code)
    assert "id" in checked.stdout
    assert len(checked.stdout.splitlines()) == 1
    told = shell.json("schemas", "check", subject, broken, code=code)
    assert told == {"compatible": False, "reasons": [checked.stdout.strip()]}
    refused = shell.run("schemas", "register", subject, broken, code=code)
    assert "id" in str(refused.exception)
    assert shell.json("schemas", "check", subject, broken, "--mode", "none") == {
        "compatible": True,
        "reasons": [],
    }


def test_the_mode_is_printed_and_set(shell: Shell, subject: str) -> None:
    shell.run("schemas", "register", subject, "--type", "string")
    assert shell.run("schemas", "mode", subject).stdout == "backward\n"
    shell.run("schemas", "mode", subject, "full_transitive")

    assert shell.json("schemas", "mode", subject) == {"subject": subject, "mode": "full_transitive"}
    shell.run("schemas", "mode", subject, "sideways", code=InvalidError.exit_code)


def test_a_bound_topic_refuses_what_does_not_fit_until_it_is_unbound(
    shell: Shell, subject: str, tmp_path: Path
) -> None:
    topic = f"/default/{subject}"
    shell.run("schemas", "register", subject, written(tmp_path, "order.json", ORDER))
    shell.run("schemas", "bind", topic, subject)

    refused = shell.run("produce", topic, "no order", code=InvalidError.exit_code)
    assert f"schema '{subject}'" in str(refused.exception)
    shell.run("produce", topic, '{"id": 1}')
    row = shell.json("schemas", "binding", topic)
    assert (row["subject"], row["policy"], row["validate_payload"]) == (subject, "enforce", True)
    assert subject in shell.run("schemas", "binding", topic).stdout
    shell.run("schemas", "delete", subject, "--yes", code=ConflictError.exit_code)
    shell.run("schemas", "unbind", topic)
    shell.run("schemas", "binding", topic, code=NotFoundError.exit_code)
    shell.run("produce", topic, "no order")


def test_versions_and_subjects_are_deleted_after_a_question(
    shell: Shell, subject: str, tmp_path: Path
) -> None:
    for number, schema in enumerate((ORDER, WIDER)):
        shell.run("schemas", "register", subject, written(tmp_path, f"{number}.json", schema))
    asked = shell.run("schemas", "delete", subject, code=2)
    assert "with its 2 versions" in asked.stderr
    shell.run("schemas", "delete", subject, "--version", "1", "--yes")
    shell.run("schemas", "delete", subject, "--yes")

    shell.run("schemas", "get", subject, code=NotFoundError.exit_code)


def test_a_file_whose_name_says_nothing_needs_a_type(
    shell: Shell, subject: str, tmp_path: Path
) -> None:
    file = written(tmp_path, "order", ORDER)
    refused = shell.run("schemas", "register", subject, file, code=InvalidError.exit_code)

    assert "--type" in str(refused.exception)


def test_brokers_are_listed(shell: Shell) -> None:
    [row] = json.loads(shell.run("brokers", "list", "--json").stdout)

    assert row["version"]
    assert row["broker"] in shell.run("brokers", "list").stdout


def test_a_namespace_is_deleted_once_it_is_empty(shell: Shell) -> None:
    shell.run("namespaces", "create", "team-z")
    shell.run("topics", "create", "/team-z/a")
    shell.run("namespaces", "delete", "team-z", "--yes", code=ConflictError.exit_code)
    shell.run("topics", "delete", "/team-z/a", "--yes")
    shell.run("namespaces", "delete", "team-z", "--yes")

    assert "team-z" not in json.loads(shell.run("namespaces", "list", "--json").stdout)
