"""The broker of reads and writes: options of TLS and tokens, and that no token is shown."""

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ister.base import DEFAULT_URL
from ister.base.errors import BadRequestError, ConfigError
from ister.client import Tls
from ister.spark.clients import BrokerEndpoint, client_of
from ister.spark.options import ReadOptions, read_options
from ister.spark.sink.options import WriteOptions, write_options

TOKEN = "vX3p9mQm2T7yLw0c"
FILES = {"tlsCa": "ca.pem", "tlsCert": "me.pem", "tlsKey": "me.key"}

Options = ReadOptions | WriteOptions
Parse = Callable[[Mapping[str, str]], Options]


@pytest.fixture(params=["read", "stream", "write", "sink"])
def parse(request: pytest.FixtureRequest) -> Parse:
    """What reads options, of every kind there is."""
    kinds: dict[str, Parse] = {
        "read": lambda given: read_options(given, streaming=False),
        "stream": lambda given: read_options(given, streaming=True),
        "write": lambda given: write_options(given, streaming=False),
        "sink": lambda given: write_options(given, streaming=True),
    }
    kind = kinds[request.param]
    return lambda given: kind({"topic": "/default/orders"} | dict(given))


def mistakes(parse: Parse, given: Mapping[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(given)
    return caught.value.mistakes


def test_without_options_the_broker_is_the_one_of_this_machine(parse: Parse) -> None:
    assert parse({}).broker == BrokerEndpoint(url=DEFAULT_URL)


def test_every_option_is_taken_in_the_case_that_spark_hands_it_over(parse: Parse) -> None:
    given = {"url": "isters://broker", "token": TOKEN} | FILES

    expected = BrokerEndpoint(
        url="isters://broker", token=TOKEN, tls_ca="ca.pem", tls_cert="me.pem", tls_key="me.key"
    )
    assert parse(given).broker == expected
    assert parse({name.lower(): value for name, value in given.items()}).broker == expected
    assert parse({"tokenFile": "/run/token"}).broker == BrokerEndpoint(token_file="/run/token")


def test_a_token_and_a_file_of_one_are_too_many(parse: Parse) -> None:
    assert mistakes(parse, {"token": TOKEN, "tokenFile": "t"}) == [
        "option of 'ister': `token` and `tokenFile` are both there: keep one"
    ]


@pytest.mark.parametrize("name", FILES)
def test_files_of_tls_need_isters(parse: Parse, name: str) -> None:
    given = FILES if name != "tlsCa" else {"tlsCa": "ca.pem"}

    for url in ({}, {"url": "ister://broker"}):
        [mistake] = mistakes(parse, given | url)
        assert "is for TLS: write `url` as isters://, or leave it out" in mistake


@pytest.mark.parametrize("name", ["tlsCert", "tlsKey"])
def test_half_of_a_certificate_is_refused(parse: Parse, name: str) -> None:
    assert mistakes(parse, {"url": "isters://broker", name: "me"}) == [
        "option of 'ister': `tlsCert` and `tlsKey` belong together: give both, or none"
    ]


def test_a_secret_in_the_url_is_refused_and_not_shown(parse: Parse) -> None:
    [mistake] = mistakes(parse, {"url": f"isters://me:{TOKEN}@broker"})

    assert mistake == "option of 'ister': `url` has no user or token in it: write option `token`"


def test_mistakes_beside_a_token_do_not_show_it(parse: Parse) -> None:
    said = mistakes(parse, {"token": TOKEN, "tokenfil": "t", "tlsCert": "c", "topic": "none"})

    assert len(said) >= 4
    assert TOKEN not in str(said)


def test_no_token_is_in_a_repr(parse: Parse) -> None:
    options = parse({"url": "isters://broker", "token": TOKEN})

    assert TOKEN not in f"{options} {options!r} {options.broker!r}"
    assert options.broker.token == TOKEN


def test_workers_get_all_that_they_connect_with(parse: Parse) -> None:
    options = parse({"url": "isters://broker", "token": TOKEN} | FILES)

    assert pickle.loads(pickle.dumps(options)) == options


# What clients are given


def test_files_are_given_only_when_there_are_some() -> None:
    assert BrokerEndpoint().credentials() == ("", None)
    assert BrokerEndpoint(url="isters://b", tls_ca="ca").credentials() == ("", Tls("ca"))
    assert BrokerEndpoint(tls_cert="c", tls_key="k").credentials() == ("", Tls(None, "c", "k"))


def test_a_file_of_a_token_is_read_whenever_somebody_connects(tmp_path: Path) -> None:
    path = tmp_path / "token"
    token, _ = BrokerEndpoint(token_file=str(path)).credentials()
    assert callable(token)

    path.write_text("first\n")
    assert token() == "first"
    path.write_text("second\n")
    assert token() == "second"


@pytest.mark.parametrize(
    ("broker", "said"),
    [
        (BrokerEndpoint(url="ister://elsewhere", token=TOKEN), "could read the token"),
        (BrokerEndpoint(url="ister://elsewhere", token_file="t"), "could read the token"),
        (BrokerEndpoint(url="ister://localhost:1", token=f"{TOKEN}\n"), "printable ASCII"),
        (
            BrokerEndpoint(url="ister://localhost:1", token_file="/nowhere/t"),
            "token file /nowhere/t: No",
        ),
        (
            BrokerEndpoint(url="isters://localhost:1", tls_ca="/nowhere/ca"),
            "tls: /nowhere/ca: No such",
        ),
        (BrokerEndpoint(url="ister://localhost:1", tls_ca="ca"), "write isters://"),
    ],
)
def test_what_would_be_no_protection_is_refused_and_no_token_shown(
    broker: BrokerEndpoint, said: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        client_of(broker)

    assert said in str(caught.value)
    assert TOKEN not in f"{caught.value} {caught.value!r} {pickle.dumps(caught.value)!r}"


@pytest.mark.parametrize("change", [{"token": "another"}, {"token_file": "t"}, {"tls_ca": "c"}])
def test_brokers_with_other_credentials_are_other_brokers(change: dict[str, Any]) -> None:
    # They have clients of their own: a connection is for who has shown the token.
    assert BrokerEndpoint(token=TOKEN) != BrokerEndpoint(**{"token": TOKEN} | change)
