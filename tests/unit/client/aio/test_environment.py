"""`ister.connect()` without a url: where the environment says the broker is."""

from pathlib import Path

import pytest

import ister
from ister.base.errors import BadRequestError
from ister.testing import ThreadedBroker

VARIABLES = (
    "ISTER_URL",
    "ISTER_TOKEN",
    "ISTER_TOKEN_FILE",
    "ISTER_TLS_CA",
    "ISTER_TLS_CLIENT_CERT",
    "ISTER_TLS_CLIENT_KEY",
)


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that says nothing."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_without_variables_the_broker_is_on_this_machine() -> None:
    assert ister.connect().url == "ister://127.0.0.1:6655"


def test_the_url_of_the_environment_is_obeyed_and_that_of_the_caller_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ISTER_URL", "ister://broker:1")

    assert ister.connect().url == "ister://broker:1"
    assert ister.connect("ister://other:2").url == "ister://other:2"


def test_a_token_is_read_from_the_file_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    monkeypatch.setenv("ISTER_TOKEN_FILE", str(file))

    token = ister.connect()._access.token
    assert callable(token)
    assert token() == "secret"
    # A token is for one broker: another one that the caller names does not get it.
    assert ister.connect("ister://127.0.0.1:1")._access.token == ""
    assert ister.connect(token="mine")._access.token == "mine"


def test_two_tokens_are_refused_by_the_names_of_the_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ISTER_TOKEN", "a")
    monkeypatch.setenv("ISTER_TOKEN_FILE", "b")

    with pytest.raises(BadRequestError, match="ISTER_TOKEN and ISTER_TOKEN_FILE are both set"):
        ister.connect()


def test_the_files_of_tls_are_obeyed_with_isters_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTER_TLS_CA", "ca")
    assert ister.connect()._access.tls is None
    monkeypatch.setenv("ISTER_URL", "isters://broker")
    monkeypatch.setenv("ISTER_TLS_CLIENT_CERT", "c")
    with pytest.raises(BadRequestError, match="ISTER_TLS_CLIENT_CERT and ISTER_TLS_CLIENT_KEY"):
        ister.connect()
    monkeypatch.setenv("ISTER_TLS_CLIENT_KEY", "k")

    assert ister.connect()._access.tls == ister.Tls("ca", "c", "k")


def test_the_blocking_client_obeys_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadedBroker() as broker:
        monkeypatch.setenv("ISTER_URL", broker.url)
        with ister.sync.connect() as client:
            assert client.url == broker.url
