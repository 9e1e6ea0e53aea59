"""How a pipeline comes to its broker: a token by reference, files of TLS, and their variables."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from ister.spark.pipelines.config.definition import Definition, broker_options, hide_secrets
from ister.spark.pipelines.loading import CheckedPipeline, read_file

TLS = "broker: isters://host:6655\n"
ON_THIS_MACHINE = "broker: ister://localhost:6655\n"
ELSEWHERE = "broker: ister://host:6655\n"


def read(folder: Path, head: str, environment: Mapping[str, str] | None = None) -> CheckedPipeline:
    """Read a pipeline whose first lines are `head`."""
    file = folder / "pipeline.yaml"
    rest = (
        "name: p\nsources: {rows: {topic: /default/rows}}\nsinks: [{console: true, from: rows}]\n"
    )
    file.write_text(head + rest, encoding="utf-8")
    return read_file(file, environment=environment or {})


def definition(folder: Path, head: str, **environment: str) -> Definition:
    return read(folder, head, environment).get()


def said(outcome: CheckedPipeline) -> list[str]:
    """Return the mistakes with their lines."""
    return [f"{one.origin.line}: {one.text}" for one in outcome.remarks if not one.is_warning]


def test_paths_begin_beside_the_file_and_the_token_stays_a_reference(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2\n", encoding="utf-8")
    keys = "token: ${file:token}\ntls_ca: ca.pem\ntls_cert: /etc/c.pem\ntls_key: c.key\n"

    found = definition(tmp_path, TLS + keys)

    assert "hunter2" not in repr(found)
    assert broker_options(found) == {
        "url": "isters://host:6655",
        "token": "hunter2",
        "tlsCa": str(tmp_path / "ca.pem"),
        "tlsCert": "/etc/c.pem",
        "tlsKey": str(tmp_path / "c.key"),
    }


def test_what_the_file_is_silent_about_comes_from_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("hunter2\n", encoding="utf-8")
    monkeypatch.setenv("ISTER_TOKEN", "hunter1")

    by_value = definition(tmp_path, TLS, ISTER_TOKEN="hunter1", ISTER_TLS_CA="/etc/ca.pem")
    by_file = definition(tmp_path, TLS, ISTER_TOKEN_FILE=str(tmp_path / "token"))

    assert "hunter1" not in repr(by_value)
    assert broker_options(by_value) == {
        "url": "isters://host:6655",
        "token": "hunter1",
        "tlsCa": "/etc/ca.pem",
    }
    assert broker_options(by_file) == {"url": "isters://host:6655", "token": "hunter2"}


def test_the_file_goes_before_the_variables(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2\n", encoding="utf-8")
    keys = "token: ${file:token}\ntls_ca: /own/ca.pem\n"

    found = definition(tmp_path, TLS + keys, ISTER_TOKEN="hunter1", ISTER_TLS_CA="/etc/ca.pem")

    assert broker_options(found)["token"] == "hunter2"
    assert broker_options(found)["tlsCa"] == "/own/ca.pem"


def test_variables_for_tls_mean_nothing_to_a_broker_without_it(tmp_path: Path) -> None:
    found = definition(tmp_path, ON_THIS_MACHINE, ISTER_TLS_CA="/etc/ca.pem")

    assert broker_options(found) == {"url": "ister://localhost:6655"}


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (TLS + "token: hunter2\n", "2: `token` is for everybody who reads this file: write"),
        (TLS + "token: ${OPEN}\n", "2: `token` is for everybody who reads this file: write"),
        (TLS + "token: ''\n", "2: `token` is for everybody who reads this file: write"),
        (TLS + "token: 1234\n", "2: `token` is a text; this is a number: put it in quotes"),
        (TLS + "token: ${file:none}\n", "2: `token` refers to a secret that is not here: "),
        (TLS + "tls_cert: c.pem\n", "2: `tls_cert` and `tls_key` belong together"),
        (TLS + "tls_key: c.key\n", "2: `tls_cert` and `tls_key` belong together"),
        (TLS + "tls_ca: ${file:here}\n", "2: `tls_ca` takes no secret: `broker`, `token`,"),
        (TLS + "tls_caa: ca.pem\n", "did you mean `tls_ca`?"),
        (TLS + "options: {token: x}\n", "2: option `token` is said with the key `token`"),
        (TLS + "options: {tlsCa: x}\n", "2: option `tlsCa` is said with the key `tls_ca`"),
        (ON_THIS_MACHINE + "tls_ca: ca.pem\n", "2: `tls_ca` is for TLS: write `broker` as"),
        (ELSEWHERE + "token: ${file:here}\n", "1: url 'ister://host:6655' is without TLS, so any"),
        ("broker: isters://hunter2@host\n", "1: `broker` has no user or token in it: write"),
        ("broker: tls://host\ntoken: ${file:here}\n", "1: `tls://host` is no broker: write ist"),
    ],
)
def test_a_mistake_is_told_once_with_its_line_and_without_the_token(
    tmp_path: Path, head: str, expected: str
) -> None:
    (tmp_path / "here").write_text("hunter2", encoding="utf-8")

    mistakes = said(read(tmp_path, head, {"OPEN": "hunter2"}))

    assert expected in mistakes[0]
    assert len(mistakes) == 1
    assert "hunter2" not in mistakes[0]


def test_two_variables_with_tokens_are_a_mistake(tmp_path: Path) -> None:
    both = {"ISTER_TOKEN": "hunter2", "ISTER_TOKEN_FILE": "/run/token"}

    expected = "1: ISTER_TOKEN and ISTER_TOKEN_FILE are both set: unset one of them"
    assert said(read(tmp_path, TLS, both)) == [expected]


@pytest.mark.parametrize("url", ["isters://hunter2@host", "isters://host?token=hunter2"])
def test_a_secret_in_the_variable_of_the_url_is_a_mistake_and_not_shown(
    tmp_path: Path, url: str
) -> None:
    expected = "1: ISTER_URL has no user or token in it: write `token`"

    assert said(read(tmp_path, "", {"ISTER_URL": url})) == [expected]


def test_a_token_needs_no_tls_on_this_machine(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2", encoding="utf-8")

    assert said(read(tmp_path, ON_THIS_MACHINE + "token: ${file:token}\n")) == []


def test_a_token_is_hidden_in_texts_also_without_the_spaces_around_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(" hunter2 \n", encoding="utf-8")

    found = definition(tmp_path, TLS + "token: ${file:token}\n")

    assert hide_secrets("no hunter2 here", found) == "no ${file:token} here"
