"""What a client connects with: urls, tokens and TLS that belong together, and secrets kept."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.base import is_loopback
from ister.base.errors import BadRequestError
from ister.base.limits import TOKEN_CHARACTERS_MAX
from ister.client.session import Access, Tls, access_of, check_token
from ister.client.session.url import parse_url

TOKEN = "vX3p9mQm2T7yLw0c"


def refused(url: Any, token: Any = None, tls: Any = None) -> str:
    with pytest.raises(BadRequestError) as caught:
        access_of(url, token, tls)
    return str(caught.value)


# Urls


@pytest.mark.parametrize(
    ("url", "scheme", "addresses"),
    [
        ("ister://a", "ister", [("a", 6655)]),
        ("isters://a:1,b", "isters", [("a", 1), ("b", 6655)]),
        ("isters://[::1]:2/", "isters", [("::1", 2)]),
    ],
)
def test_a_url_has_a_scheme_and_addresses(
    url: str, scheme: str, addresses: list[tuple[str, int]]
) -> None:
    assert parse_url(url) == (scheme, addresses)


@pytest.mark.parametrize(
    "url", ["isters", "isters://", "istersx://a", "tls://a", "isters://a/b", "isters://a:x", " "]
)
def test_a_url_that_is_none_is_refused_with_what_to_write(url: str) -> None:
    with pytest.raises(BadRequestError, match=r"isters?://host:port"):
        parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        f"ister://{TOKEN}@host:1",
        f"isters://me:{TOKEN}@host",
        f"isters://host,me:{TOKEN}@other",
        f"me:{TOKEN}@host",
        f"http://me:{TOKEN}@host",
        f"isters://me:{TOKEN}\udc00@host",
        f"isters://host?token={TOKEN}",
        f"isters://host:1#{TOKEN}",
    ],
)
def test_a_secret_in_a_url_is_refused_and_not_shown(url: str) -> None:
    said = refused(url)

    assert "give a token as `token=`, or by ISTER_TOKEN" in said
    assert TOKEN not in said


# TLS


def test_there_is_tls_exactly_with_isters() -> None:
    tls = Tls("ca.pem")

    assert access_of("isters://a").tls == Tls()
    assert access_of("isters://a", tls=tls).tls is tls
    assert access_of("ister://a").tls is None


def test_tls_that_would_do_nothing_is_refused() -> None:
    assert "write isters://" in refused("ister://localhost", tls=Tls("ca.pem"))


def test_tls_of_another_kind_is_refused() -> None:
    assert refused("isters://a", tls="ca.pem") == "tls is an `ister.Tls`, not str"
    assert refused("isters://a", tls=True) == "tls is an `ister.Tls`, not bool"


@pytest.mark.parametrize("given", [{"cert": "a"}, {"key": "a"}, {"cert": "a", "key": None}])
def test_half_of_a_certificate_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError, match="`cert` and `key` of `Tls` belong together"):
        Tls(ca="ca.pem", **given)


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
def test_a_file_that_is_no_path_is_refused(name: str) -> None:
    given: dict[str, Any] = {"cert": "a", "key": "b", name: b"-----BEGIN"}

    with pytest.raises(BadRequestError, match=f"`{name}` of `Tls` is a path, not bytes"):
        Tls(**given)


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
def test_an_empty_path_is_refused_and_does_not_stand_for_the_systems_authorities(name: str) -> None:
    given = {"cert": "a", "key": "b", name: ""}

    with pytest.raises(BadRequestError, match=f"`{name}` of `Tls` is empty: name a file"):
        Tls(**given)


def test_the_files_of_tls_are_those_that_were_given() -> None:
    assert Tls().files == []
    assert Tls(ca=Path("ca"), cert="cert", key="key").files == ["ca", "cert", "key"]


# Tokens


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.8.7", "::1"])
def test_a_token_may_go_without_tls_on_this_machine(host: str) -> None:
    url = f"ister://[{host}]" if ":" in host else f"ister://{host}"

    assert is_loopback(host)
    assert access_of(url, TOKEN).token == TOKEN


@pytest.mark.parametrize(
    "host", ["broker", "10.0.0.1", "0.0.0.0", "localhost.example", "127.0.0.1.example", "127.1"]
)
@pytest.mark.parametrize("token", [TOKEN, lambda: TOKEN], ids=["text", "function"])
def test_a_token_never_leaves_this_machine_without_tls(host: str, token: Any) -> None:
    assert "anybody on the way could read the token" in refused(f"ister://{host}", token)
    # One such address among several is enough.
    assert "could read the token" in refused(f"ister://localhost,{host}", token)
    assert access_of(f"isters://{host}", token).token is token


@pytest.mark.parametrize("token", [None, ""])
def test_without_a_token_no_tls_is_needed(token: str | None) -> None:
    assert access_of("ister://broker", token).token == ""


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (TOKEN.encode(), "a token is text, not bytes"),
        (7, "a token is text, not int"),
        (f"{TOKEN}\n", "without spaces or line breaks"),
        (f" {TOKEN}", "without spaces or line breaks"),
        (f"{TOKEN}\x00", "printable ASCII"),
        (f"{TOKEN}é", "printable ASCII"),
        (f"{TOKEN}\udc00", "printable ASCII"),
        ("t" * (TOKEN_CHARACTERS_MAX + 1), f"at most {TOKEN_CHARACTERS_MAX} characters"),
    ],
)
def test_what_is_no_token_is_refused_and_not_shown(token: Any, said: str) -> None:
    with pytest.raises(BadRequestError, match=said) as caught:
        check_token(token)

    assert TOKEN not in str(caught.value)
    assert said in refused("isters://a", token)


def test_the_longest_token_is_taken() -> None:
    token = "t" * TOKEN_CHARACTERS_MAX

    assert check_token(token) == token


# What is shown


def test_addresses_are_shown_as_a_url_that_can_be_used() -> None:
    access = access_of("isters://a:1,[::1]:2")

    assert access.shown() == "isters://a:1,[::1]:2"
    assert access.shown([("b", 3)]) == "isters://b:3"
    assert parse_url(access.shown()) == ("isters", access.addresses)
    assert access_of("ister://a").shown() == "ister://a:6655"


hosts = st.sampled_from(["localhost", "broker", "10.0.0.1:99", "[::1]", "a/b", "", "a:b"])


@given(
    scheme=st.sampled_from(["ister", "isters", "http", ""]),
    host=hosts,
    place=st.sampled_from(["{token}@", "me:{token}@", ""]),
    token=st.one_of(
        st.text(min_size=12, max_size=600).filter(lambda text: not text.isspace()),
        st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=12, max_size=520),
    ),
    tls=st.sampled_from([None, Tls("ca.pem"), "ca.pem"]),
)
def test_no_token_is_in_an_error_or_a_repr(
    scheme: str, host: str, place: str, token: str, tls: Any
) -> None:
    url = f"{scheme}://{place.format(token=token)}{host}"
    found: Access | None = None
    shown = ""
    try:
        found = access_of(url, token, tls)
    except BadRequestError as error:
        shown = f"{error} {error!r} {error.fields()}"
    else:
        shown = f"{found} {found!r} {found.shown()}"

    assert token not in shown
    assert repr(token)[1:-1] not in shown
