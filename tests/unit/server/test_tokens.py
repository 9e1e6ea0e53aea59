"""The file of tokens: what it may say, and that nothing of a token is ever shown."""

import hashlib
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ister.base.errors import ConfigError
from ister.server.tokens import TOKENS_BYTES_MAX, load_tokens, parse_tokens

TOKEN = "vX3p9mQm2T7yLw0c"
OTHER = "0123456789abcdef-0123456789abcdef"
DIGITS = hashlib.sha256(TOKEN.encode()).hexdigest()
DIGEST = f"sha256:{DIGITS}"


def mistakes(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_tokens(text, "tokens.txt")
    return caught.value.mistakes


def write(path: Path, text: str, mode: int) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_line_is_a_name_and_its_token_and_comments_are_none() -> None:
    tokens = parse_tokens(f"# who comes\n\n  billing\t{TOKEN} \r\n\nreports {OTHER}", "f")

    assert tokens.find(TOKEN) == "billing"
    assert tokens.find(OTHER) == "reports"
    assert tokens.find("") is None
    assert tokens.find(TOKEN + "x") is None


def test_a_digest_stands_for_its_token_and_is_none_itself() -> None:
    tokens = parse_tokens(f"billing sha256:{DIGITS.upper()}", "f")

    assert tokens.find(TOKEN) == "billing"
    assert tokens.find(DIGEST) is None
    assert not tokens.plain


def test_a_name_may_have_several_tokens() -> None:
    tokens = parse_tokens(f"billing {TOKEN}\nbilling {OTHER}", "f")

    assert tokens.find(TOKEN) == tokens.find(OTHER) == "billing"


def test_every_mistake_is_told_with_its_line() -> None:
    text = (
        f"billing\n# fine\na b c\nb@d! {TOKEN}\nx {'s' * 15}\nx {'l' * 513}\nx sha256:12\n"
        f"x {'é' * 16}"
    )
    sizes = "and needs 16 to 512: make one with `openssl rand -hex 32`"

    assert mistakes(text) == [
        "tokens.txt line 1: is not `NAME TOKEN`: write two words",
        "tokens.txt line 3: is not `NAME TOKEN`: write two words",
        "tokens.txt line 4: a name holds letters, digits and . _ : @ - only",
        f"tokens.txt line 5: the token has 15 characters, {sizes}",
        f"tokens.txt line 6: the token has 513 characters, {sizes}",
        "tokens.txt line 7: sha256: is not followed by 64 hexadecimal digits",
        "tokens.txt line 8: the token has characters that are not printable ASCII",
    ]


@pytest.mark.parametrize("size", [16, 512])
def test_the_shortest_and_the_longest_token_are_taken(size: int) -> None:
    assert parse_tokens(f"x {'t' * size}", "f").find("t" * size) == "x"


def test_a_token_of_two_names_is_a_mistake_also_as_its_digest() -> None:
    assert mistakes(f"a {TOKEN}\nb {DIGEST}") == [
        "tokens.txt line 2: the token is in the file twice: give everybody their own"
    ]


@pytest.mark.parametrize("text", ["", "\n# nobody\n"])
def test_a_file_without_tokens_has_none(text: str) -> None:
    assert parse_tokens(text, "f").names == {}


words = st.one_of(
    st.text(max_size=40), st.just(TOKEN), st.just(DIGEST), st.sampled_from(" \t#\n\r")
)


@given(st.lists(words, max_size=12).map("".join))
def test_any_text_gives_tokens_or_mistakes(text: str) -> None:
    told = []
    try:
        parse_tokens(text, "f")
    except ConfigError as error:
        told = error.mistakes

    assert all(mistake.startswith("f") for mistake in told)


@given(
    token=st.text(st.characters(min_codepoint=0x21, max_codepoint=0x2FF), min_size=8, max_size=600),
    name=st.text(max_size=20),
    more=st.sampled_from(["", " more", " # comment"]),
)
def test_no_mistake_shows_anything_of_a_token(token: str, name: str, more: str) -> None:
    # Also with the two mixed up, and the last line is a mistake unless it is a comment.
    assume(not token.startswith("#"))
    with pytest.raises(ConfigError) as caught:
        parse_tokens(f"{name} {token}{more}\n{token} {name}\n{token}", "f")

    shown = "\n".join(caught.value.mistakes)
    assert all(token[i : i + 8] not in shown for i in range(len(token) - 7))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610])
def test_plain_tokens_that_others_may_read_are_refused(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "tokens", f"a {TOKEN}", mode)

    with pytest.raises(ConfigError, match=f"run `chmod 600 {path}`"):
        load_tokens(path)


def test_digests_may_be_read_by_others_and_not_written(tmp_path: Path) -> None:
    path = write(tmp_path / "tokens", f"a {DIGEST}", 0o644)
    assert load_tokens(path).find(TOKEN) == "a"

    path.chmod(0o664)
    with pytest.raises(ConfigError, match="chmod go-w"):
        load_tokens(path)


def test_a_file_that_is_missing_no_text_or_too_large_is_told(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_tokens(path)
    path.write_bytes(b"a \xff\xfe" + TOKEN.encode())
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        load_tokens(path)
    path.write_bytes(b"#" * (TOKENS_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="larger than 1MiB"):
        load_tokens(path)
