"""How commands reach their broker: options for TLS and a token, and that no token is ever typed."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from ister.base.errors import BadRequestError
from ister.cli.app import make_app
from ister.cli.console.access import ACCESS_OPTIONS, URL, AccessGroup, BrokerUrl, UrlOption, connect
from ister.client import Tls

TOKEN = "vX3p9mQm2T7yLw0c"
VARIABLES = {
    "--token-file": "ISTER_TOKEN_FILE",
    "--tls-ca": "ISTER_TLS_CA",
    "--tls-cert": "ISTER_TLS_CLIENT_CERT",
    "--tls-key": "ISTER_TLS_CLIENT_KEY",
}
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def leaves(command: Any, path: str = "ister") -> Iterator[tuple[str, Any]]:
    """Return every command below one, by its words."""
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from leaves(child, f"{path} {name}")


ALL = dict(leaves(typer.main.get_command(make_app())))
WITH_URL = [words for words, one in ALL.items() if any("--url" in p.opts for p in one.params)]


def options_of(words: str) -> set[str]:
    return {option for one in ALL[words].params for option in one.opts}


@pytest.mark.parametrize("words", WITH_URL)
def test_every_command_with_a_url_has_the_options_for_a_token_and_for_tls(words: str) -> None:
    assert set(ACCESS_OPTIONS) <= options_of(words)


def test_most_commands_have_a_url_and_those_without_have_no_token_file() -> None:
    assert len(WITH_URL) > 40
    assert {"ister produce", "ister top", "ister timeline cron put"} <= set(WITH_URL)
    for words in set(ALL) - set(WITH_URL):
        assert "--token-file" not in options_of(words)


def test_no_option_of_any_command_is_the_token_itself() -> None:
    taken = {option for words in ALL for option in options_of(words) if "token" in option}

    # A file each: of the client, and of the broker.
    assert taken == {"--token-file", "--tokens"}


@pytest.mark.parametrize("words", ["topics list", "produce", "timeline cron list"])
def test_help_names_each_option_with_its_variable(words: str) -> None:
    result = CliRunner().invoke(make_app(), [*words.split(), "--help"], env={"COLUMNS": "200"})

    text = ANSI.sub("", result.stdout)
    assert "TLS and token" in text
    for option, variable in VARIABLES.items():
        [line] = [line for line in text.splitlines() if f" {option} " in line]
        assert variable in line or variable in text.split(line)[1].splitlines()[1]
    assert "or set ISTER_TOKEN to it" in text
    assert "isters:// with TLS" in text


# What a command is given


def invoke(*words: str, **environment: str) -> tuple[Result, list[str]]:
    """Run a command that only takes its url."""
    seen: list[str] = []
    app = typer.Typer(cls=AccessGroup)

    @app.callback()
    def root() -> None:
        """Make it a group, as `ister` is."""

    @app.command()
    def look(url: UrlOption = URL) -> None:
        seen.append(url)

    clean = dict.fromkeys(("ISTER_URL", "ISTER_TOKEN", *VARIABLES.values()))
    line = words if "look" in words else ("look", *words)
    return CliRunner().invoke(app, line, env={**clean, **environment}), seen


def given(*words: str, **environment: str) -> BrokerUrl:
    result, [url] = invoke(*words, **environment)
    assert result.exit_code == 0
    assert isinstance(url, BrokerUrl)
    return url


def refused(*words: str, **environment: str) -> str:
    result, seen = invoke(*words, **environment)
    assert seen == []
    assert isinstance(result.exception, BadRequestError)
    assert TOKEN not in result.output
    return str(result.exception)


def token_of(url: BrokerUrl) -> str | None:
    return url.token() if callable(url.token) else url.token


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return str(path)


def test_a_command_that_is_told_nothing_has_no_token_and_no_tls() -> None:
    url = given()

    assert (url, url.token, url.tls) == (URL, None, None)


@pytest.mark.parametrize(
    "words",
    [("--url", "ister://b", "look"), ("look", "--url", "ister://b")],
    ids=["before", "behind"],
)
def test_the_url_stands_before_the_command_or_behind_it(words: tuple[str, ...]) -> None:
    assert given(*words, ISTER_URL="ister://variable") == "ister://b"


def test_what_stands_behind_the_command_wins() -> None:
    assert given("--url", "ister://before", "look", "--url", "ister://behind") == "ister://behind"


def test_access_may_stand_before_the_command_and_wins_over_variables(file: str) -> None:
    url = given(
        "--url", "isters://b", "--tls-ca", "typed", "--token-file", file, "look",
        ISTER_TLS_CA="variable", ISTER_TOKEN_FILE="/nowhere",
    )  # fmt: skip

    assert (url, url.tls, token_of(url)) == ("isters://b", Tls("typed"), TOKEN)


@pytest.mark.parametrize("option", ["--url", "--token-file"])
def test_a_command_that_talks_to_no_broker_takes_no_options_for_one(option: str) -> None:
    result = CliRunner().invoke(make_app(["keys"]), [option, "x", "keys", "list"])

    assert isinstance(result.exception, BadRequestError)
    assert str(result.exception) == f"`ister keys` takes no {option}: leave it out"


def test_the_options_go_along_with_the_url_in_any_order(file: str) -> None:
    words = ["--tls-key", "k", "--token-file", file, "--tls-ca", "ca", "--tls-cert", "c"]

    for url in (
        given("--url", "isters://b", *words),
        given(*words, "--url", "isters://b"),
        given(*words, ISTER_URL="isters://b"),
    ):
        assert url == "isters://b"
        assert url.tls == Tls("ca", "c", "k")
        assert token_of(url) == TOKEN


def test_variables_say_the_same(file: str) -> None:
    url = given(
        ISTER_URL="isters://b",
        ISTER_TOKEN_FILE=file,
        ISTER_TLS_CA="ca",
        ISTER_TLS_CLIENT_CERT="c",
        ISTER_TLS_CLIENT_KEY="k",
    )

    assert (url, url.tls, token_of(url)) == ("isters://b", Tls("ca", "c", "k"), TOKEN)
    assert token_of(given(ISTER_TOKEN=TOKEN)) == TOKEN


def test_the_variables_of_a_broker_mean_nothing_to_commands() -> None:
    url = given(ISTER_TLS_CERT="c", ISTER_TLS_KEY="k", ISTER_TLS_CLIENT_CA="ca", ISTER_TOKENS="t")

    assert (url.token, url.tls) == (None, None)


def test_a_typed_file_wins_over_the_variables(file: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")

    assert token_of(given("--token-file", file, ISTER_TOKEN="other")) == TOKEN
    assert token_of(given("--token-file", file, ISTER_TOKEN_FILE=other)) == TOKEN
    both = given("--token-file", file, ISTER_TOKEN="other", ISTER_TOKEN_FILE=other)
    assert token_of(both) == TOKEN


def test_variables_that_contradict_each_other_are_refused(file: str) -> None:
    said = refused(ISTER_TOKEN=TOKEN, ISTER_TOKEN_FILE=file)

    assert said == "ISTER_TOKEN and ISTER_TOKEN_FILE are both set: unset one of them"


def test_an_empty_variable_is_none(file: str) -> None:
    assert token_of(given(ISTER_TOKEN="", ISTER_TOKEN_FILE=file)) == TOKEN
    assert token_of(given(ISTER_TOKEN=TOKEN, ISTER_TOKEN_FILE="")) == TOKEN
    assert given(ISTER_TLS_CA="").tls is None


@pytest.mark.parametrize("option", ["--tls-ca", "--tls-cert", "--tls-key"])
def test_typed_files_of_tls_without_isters_are_refused(option: str) -> None:
    url = f"ister://me:{TOKEN}@b"

    for said in (refused(option, "f", "--url", url), refused(option, "f", ISTER_URL=url)):
        assert "write --url as isters://, or leave them out" in said
        assert TOKEN not in said


@pytest.mark.parametrize("option", ["--tls-ca", "--tls-cert", "--tls-key"])
def test_variables_of_tls_mean_nothing_to_a_broker_without_it(option: str) -> None:
    assert given(ISTER_URL="ister://b", **{VARIABLES[option]: "f"}).tls is None


@pytest.mark.parametrize("url", ["ister://b", "isters://b"])
@pytest.mark.parametrize("option", ["--tls-ca", "--tls-cert", "--tls-key", "--token-file"])
def test_a_typed_file_without_a_name_is_refused(option: str, url: str) -> None:
    said = refused(option, "", "--url", url)

    assert said == f"{option} is empty: name a file, or leave it out"


@pytest.mark.parametrize("option", ["--tls-cert", "--tls-key"])
def test_half_of_a_certificate_is_refused(option: str) -> None:
    said = refused("--url", "isters://b", option, "f")

    assert said == "--tls-cert and --tls-key belong together: give both, or none"


@pytest.mark.parametrize("words", [["--token", TOKEN], [f"--token={TOKEN}"]])
def test_a_typed_token_is_refused_and_not_shown(words: list[str]) -> None:
    result, seen = invoke(*words)

    assert (result.exit_code, seen) == (2, [])
    assert TOKEN not in result.output


def test_the_token_of_one_command_is_not_that_of_the_next(file: str) -> None:
    given("--token-file", file)

    assert given().token is None


# As far as the client


def test_a_client_gets_what_the_url_carries() -> None:
    url = given(ISTER_URL="isters://b", ISTER_TOKEN=TOKEN, ISTER_TLS_CA="ca")

    access = connect(url, name="n")._access
    assert (access.url, access.token, access.tls) == ("isters://b", TOKEN, Tls("ca"))
    assert type(access.url) is str


def test_a_plain_url_has_nothing_to_show() -> None:
    access = connect("isters://b")._access

    assert (access.token, access.tls) == ("", Tls())


def test_no_token_is_in_what_is_shown_of_a_url() -> None:
    url = given(ISTER_TOKEN=TOKEN)

    assert TOKEN not in f"{url} {url!r}"


def test_a_token_does_not_go_to_another_machine_without_tls() -> None:
    url = given(ISTER_URL="ister://elsewhere", ISTER_TOKEN=TOKEN)

    with pytest.raises(BadRequestError, match="write isters://") as caught:
        connect(url)
    assert TOKEN not in str(caught.value)


# Bare names of topics


def test_every_topic_on_the_command_line_may_be_without_its_namespace() -> None:
    named = {
        words: one.name
        for words, command in ALL.items()
        for one in command.params
        if one.name in ("topic", "pattern", "dead_letter_topic")
    }

    assert len(named) > 30
    for words in named:
        for one in ALL[words].params:
            if one.name in ("topic", "pattern", "dead_letter_topic"):
                assert one.callback(None, one, "orders.>") == "/default/orders.>"
                assert one.callback(None, one, "/other/orders") == "/other/orders"
                assert one.callback(None, one, "") == ""
                assert one.callback(None, one, None) is None
