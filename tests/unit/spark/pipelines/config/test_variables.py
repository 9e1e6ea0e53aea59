"""Variables are put in place once, and secrets stay references until they are asked for."""

import pickle
from pathlib import Path

import pytest

from ister.spark.pipelines.config.variables import (
    SECRET_BYTES_MAX,
    Secret,
    missing_secrets,
    names_in,
    substitute,
)


def put(text: str, **environment: str) -> str | Secret:
    value, mistakes = substitute(text, chosen={"SET": "chosen"}, environment=environment)
    assert mistakes == []
    return value


def mistakes(text: str) -> list[str]:
    return substitute(text, chosen={}, environment={})[1]


def test_a_value_of_the_command_line_wins_over_the_environment() -> None:
    assert put("${SET} ${OTHER}", SET="environment", OTHER="too") == "chosen too"


def test_a_default_is_for_a_variable_that_is_nowhere() -> None:
    assert put("${A:-one} ${B:-} ${SET:-two}", A="given") == "given  chosen"


def test_a_doubled_dollar_sign_keeps_the_braces() -> None:
    assert put("$${SET}") == "${SET}"


def test_a_value_is_not_looked_into_again() -> None:
    assert put("${A}", A="${SET}") == "${SET}"


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("${NOWHERE}", "NOWHERE has no value"),
        ("${1x}", "is no variable"),
        ("${open", "no closing brace"),
        ("${file:}", "names nothing"),
    ],
)
def test_a_reference_that_cannot_be_followed_is_a_mistake(text: str, part: str) -> None:
    [said] = mistakes(text)

    assert part in said


def test_the_names_of_a_text_are_its_variables_only() -> None:
    assert names_in("${A} ${B:-x} $${C} ${env:D} ${file:/e}") == {"A", "B"}


def test_a_secret_shows_its_reference_and_never_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    secret = put("Bearer ${env:TOKEN}")

    assert isinstance(secret, Secret)
    assert secret.reveal() == "Bearer hunter2"
    assert (str(secret), repr(secret)) == (
        "Bearer ${env:TOKEN}",
        "Secret('Bearer ${env:TOKEN}')",
    )
    assert b"hunter2" not in pickle.dumps(secret)


def test_a_variable_beside_a_secret_cannot_name_another_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    secret = put("${A}/${env:TOKEN}", A="${env:PATH}")

    assert isinstance(secret, Secret)
    assert secret.reveal() == "${env:PATH}/hunter2"


def test_the_last_line_break_of_a_secret_file_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\ntwo\n", encoding="utf-8")

    assert Secret("${file:token}", str(tmp_path)).reveal() == "one\ntwo"


def test_a_secret_that_is_not_there_is_told_without_a_value(tmp_path: Path) -> None:
    secret = Secret("${file:missing}", str(tmp_path))

    assert missing_secrets(secret) == [f"{tmp_path / 'missing'}: No such file or directory"]
    assert missing_secrets(Secret("${env:ISTER_NO_SUCH}")) == [
        "the environment has no ISTER_NO_SUCH"
    ]


def test_a_secret_is_hidden_in_a_text_that_has_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "host").write_text("inside.example\n")
    monkeypatch.setenv("SHORT", "1")
    monkeypatch.delenv("NOWHERE", raising=False)
    secret = Secret("ister://${file:host}:${env:SHORT}/${env:NOWHERE}", str(tmp_path))

    found = secret.hidden("no broker at ister://inside.example:1, 1 try")

    assert found == "no broker at ister://${file:host}:1, 1 try"


def test_a_secret_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(b"x" * SECRET_BYTES_MAX)
    assert missing_secrets(Secret(f"${{file:{path}}}")) == []

    path.write_bytes(b"x" * (SECRET_BYTES_MAX + 1))
    [said] = missing_secrets(Secret(f"${{file:{path}}}"))
    assert "over 65,536 bytes" in said
