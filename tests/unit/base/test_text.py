"""Control characters are escaped, and secrets are hidden."""

import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ister.base import (
    hide_secrets,
    printable,
    printable_json,
    printable_lines,
    without_secrets,
)

# Controls of C0 and C1, marks of direction, characters without width, line separators.
CONTROL_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
# These two join or separate letters, and do nothing else.
JOINERS = "\u200c\u200d"
TEXTS = st.text(st.characters())


def control_characters_in(text: str, *, allowed: str = "") -> list[str]:
    return [c for c in text if unicodedata.category(c) in CONTROL_CATEGORIES and c not in allowed]


@given(TEXTS)
@example(JOINERS)
@example("\x1b]52;c;aGk=\x07\x9b2J\r\b\x7f\u202e\u2066\ufeff\u2028\ud800\U000e0001")
def test_a_printable_text_has_no_control_characters(text: str) -> None:
    assert not control_characters_in(printable(text))
    assert not control_characters_in(printable_lines(text), allowed=f"\n\t{JOINERS}")


@given(TEXTS)
def test_a_text_is_escaped_once(text: str) -> None:
    assert printable(printable(text)) == printable(text)
    assert printable_lines(printable(text)) == printable(text)


@given(st.dictionaries(st.text(), st.text()))
@example({"\x9b\u202e": "\x7f\U000e0001\n", "a": JOINERS})
def test_printable_json_decodes_to_the_same_value(value: dict[str, str]) -> None:
    shown = printable_json(json.dumps(value, ensure_ascii=False))

    assert not control_characters_in(shown, allowed=JOINERS)
    assert json.loads(shown) == value


@pytest.mark.parametrize("text", ["größe 漢　字", "two\nlines\tand a tab", "👍 à"])
def test_text_without_control_characters_is_not_changed(text: str) -> None:
    assert printable_lines(text) == text


SECRET = "sEcReT"
PIECES = st.text(st.sampled_from("ab/+:=%&.#?-@"), max_size=6)


@given(
    st.sampled_from(["s3", "gs", "az", "abfss", "https", "postgresql", "ister"]),
    PIECES,
    PIECES,
    st.sampled_from(["bucket", "box@account.net", "host:9000"]),
)
def test_a_password_is_removed_from_a_url(scheme: str, before: str, after: str, place: str) -> None:
    url = f"{scheme}://user:{before}{SECRET}{after}@{place}/folder"

    assert SECRET not in without_secrets(url)
    assert SECRET not in hide_secrets(f"no answer from '{url}': timed out")


@given(st.sampled_from(["s3", "https", "http", "postgresql", "ister"]), st.sampled_from(["", "("]))
def test_a_user_alone_is_removed_from_a_url(scheme: str, before: str) -> None:
    for slashes in ("//", "/"):
        told = hide_secrets(f"no answer from {before}{scheme}:{slashes}{SECRET}@host:9000/folder")

        assert told == f"no answer from {before}{scheme}:{slashes}***@host:9000/folder"


@pytest.mark.parametrize(
    "text", ["(abfss://box@account.dfs.core.windows.net/folder)", "topic:/default/orders@7"]
)
def test_text_without_a_user_is_not_changed(text: str) -> None:
    assert hide_secrets(text) == text


def test_a_password_is_removed_from_a_url_that_became_a_path() -> None:
    path = Path(f"https://user:{SECRET}@vault/x")

    assert hide_secrets(f"key file {path} cannot be read") == (
        "key file https:/***@vault/x cannot be read"
    )


@given(PIECES, PIECES)
def test_parameters_are_removed_from_a_url(before: str, after: str) -> None:
    for sign in "?#":
        url = f"az://box/folder{sign}{before}sig={SECRET}{after}"

        assert SECRET not in without_secrets(url)


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/folder@2026/x",
        "abfss://box@account.dfs.core.windows.net/folder",
        "https://host/folder/tick@2026",
        "file:///var/lib/ister",
        "file:///var/lib/tick@2026",
        "ister://127.0.0.1:6655",
    ],
)
def test_a_url_without_secrets_is_not_changed(text: str) -> None:
    assert without_secrets(text) == text
    assert hide_secrets(f"GET {text} in 3 ms: 500") == f"GET {text} in 3 ms: 500"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "PUT https://a.net/b?sv=1&sig=x%2F%3D&se=2 failed",
            "PUT https://a.net/b?sv=1&sig=***&se=2 failed",
        ),
        ("connect to host=db password=hunter2 user=me", "connect to host=db password=*** user=me"),
        ("AWS_SECRET_ACCESS_KEY=abc, AWS_REGION=x", "AWS_SECRET_ACCESS_KEY=***, AWS_REGION=x"),
        ("signal=15 key=orders-7", "signal=15 key=orders-7"),
    ],
)
def test_secrets_in_an_error_message_are_hidden(text: str, told: str) -> None:
    assert hide_secrets(text) == told


@pytest.mark.parametrize("part", ["://", ":", "token", "a.token-", "a:b@", "x="])
def test_long_texts_of_strangers_are_gone_through_once(part: str) -> None:
    # What goes back for each part would not end: two thousand characters took 0.8 s.
    text = f"://{part * 30_000} @ ="

    assert len(hide_secrets(text)) <= len(text) + len("***@")


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",  # A family.
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",  # Persian.
        "\u0915\u094d\u200d\u0937",  # Hindi.
        "10\u202f000\xa0\u20ac",  # French.
        "\u05e9\u05dc\u05d5\u05dd",  # Hebrew.
        "a\u0301\ufe0f\tb\nc",
    ],
)
def test_texts_of_all_languages_stay_readable(text: str) -> None:
    assert printable_lines(text) == text
    assert printable_json(text) == text
