"""Names of topics, patterns and everything else; which pattern covers which topic."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ister.base import (
    compile_pattern,
    find_partition,
    full_name,
    is_wildcard,
    matches,
    namespace_of,
    parse_pattern,
    parse_plain,
    parse_topic,
    partition_name,
)
from ister.base.errors import BadNameError
from ister.base.limits import NAME_BYTES_MAX


@pytest.mark.parametrize(
    "name",
    ["/default/a", "/n-s_1/a.b.c", "/default/a-b_c", "/default/größe", "/default/a-part-3"],
)
def test_a_namespace_and_dotted_tokens_are_a_topic(name: str) -> None:
    assert parse_topic(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "a",
        "default/a",
        "/default",
        "/default/",
        "//a",
        "/default/a/b",
        "/default/a..b",
        "/default/.a",
        "/default/a.",
        "/default/a b",
        "/default/a\n",
        "/default/a*",
        "/default/*",
        "/default/>",
        "/de.fault/a",
        "/default/a\0",
        "/default/\ud800",
    ],
)
def test_anything_else_is_no_topic(name: str) -> None:
    with pytest.raises(BadNameError):
        parse_topic(name)


@pytest.mark.parametrize("change", [-1, 0])
def test_a_topic_up_to_the_longest_name_passes(change: int) -> None:
    name = "/default/" + "a" * (NAME_BYTES_MAX - len("/default/") + change)

    assert parse_topic(name) == name


def test_a_topic_one_byte_over_the_longest_name_is_refused() -> None:
    with pytest.raises(BadNameError):
        parse_topic("/default/" + "a" * (NAME_BYTES_MAX - len("/default/") + 1))


def test_the_length_of_a_name_counts_bytes_not_characters() -> None:
    with pytest.raises(BadNameError):
        parse_topic("/default/" + "ö" * (NAME_BYTES_MAX // 2))


def test_the_error_of_a_long_name_does_not_repeat_all_of_it() -> None:
    with pytest.raises(BadNameError) as caught:
        parse_topic("/default/" + "a" * 100_000)

    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["/d/a", "/d/*", "/d/>", "/d/a.*.b", "/d/a.>", "/d/*.*.>"])
def test_a_wildcard_is_a_whole_token(name: str) -> None:
    assert parse_pattern(name) == name


@pytest.mark.parametrize("name", ["/d/>.a", "/d/a*", "/d/a.b>", "/d/**", "/*/a", "/d/a.>.>", "/d/"])
def test_a_wildcard_in_another_place_is_refused(name: str) -> None:
    with pytest.raises(BadNameError):
        parse_pattern(name)


@pytest.mark.parametrize(
    ("name", "wild"), [("/d/a", False), ("/d/a.*", True), ("/d/>", True), ("/d/a-part-1", False)]
)
def test_a_pattern_is_a_wildcard_only_with_a_star_or_an_arrow(name: str, wild: bool) -> None:
    assert is_wildcard(name) is wild


@pytest.mark.parametrize("name", ["a", "shop.eu:1@host-2_x", "ö", "a" * NAME_BYTES_MAX])
def test_a_plain_name_holds_letters_digits_and_a_few_signs(name: str) -> None:
    assert parse_plain(name, "a consumer name") == name


@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "a\n", "*", "a" * (NAME_BYTES_MAX + 1)])
def test_any_other_plain_name_is_refused(name: str) -> None:
    with pytest.raises(BadNameError, match="a consumer name"):
        parse_plain(name, "a consumer name")


def test_the_namespace_is_the_first_part() -> None:
    assert namespace_of("/default/a.b") == "default"


@given(st.integers(0, 10_000))
def test_a_partition_name_splits_into_what_it_was_made_of(number: int) -> None:
    assert find_partition(partition_name("/default/a", number)) == ("/default/a", number)


@pytest.mark.parametrize(
    "name", ["/d/a", "/d/a-part-", "/d/a-part-01", "/d/a-part-1x", "/d/a-part--1", "/d/a-part-²"]
)
def test_a_name_without_a_plain_number_is_no_partition(name: str) -> None:
    assert find_partition(name) is None


@pytest.mark.parametrize(
    ("pattern", "topic", "covers"),
    [
        ("/d/a", "/d/a", True),
        ("/d/a", "/d/b", False),
        ("/d/a", "/e/a", False),
        ("/d/*", "/d/a", True),
        ("/d/*", "/d/a.b", False),
        ("/d/a.*", "/d/a", False),
        ("/d/a.*", "/d/a.b", True),
        ("/d/a.*.c", "/d/a.b.c", True),
        ("/d/a.*.c", "/d/a.b.d", False),
        ("/d/>", "/d/a", True),
        ("/d/>", "/d/a.b.c", True),
        ("/d/>", "/e/a", False),
        ("/d/a.>", "/d/a", False),
        ("/d/a.>", "/d/a.b", True),
        ("/d/a.>", "/d/a.b.c", True),
        ("/d/a.>", "/d/b.b", False),
        ("/d/*.b.>", "/d/a.b.c", True),
    ],
)
def test_a_star_is_one_token_and_an_arrow_one_or_more(
    pattern: str, topic: str, covers: bool
) -> None:
    assert matches(pattern, topic) is covers


@pytest.mark.parametrize("pattern", ["/d/a.b", "/d/a.*", "/d/>", "/d/a.b-part-7"])
def test_a_partition_is_covered_by_what_covers_its_topic(pattern: str) -> None:
    assert matches(pattern, "/d/a.b-part-7")


def test_another_partition_is_not_covered_by_the_name_of_one() -> None:
    assert not matches("/d/a-part-1", "/d/a-part-11")


tokens = st.sampled_from(["a", "b", "ab"])


def naive(wanted: list[str], have: list[str]) -> bool:
    """The rule as the documentation says it, token by token."""
    if not wanted:
        return not have
    if wanted == [">"]:
        return bool(have)
    if not have:
        return False
    return wanted[0] in ("*", have[0]) and naive(wanted[1:], have[1:])


@given(
    wanted=st.lists(st.sampled_from(["a", "b", "ab", "*"]), min_size=1, max_size=5),
    arrow=st.booleans(),
    have=st.lists(tokens, min_size=1, max_size=6),
)
@example(wanted=["*"], arrow=True, have=["a"])
def test_matching_agrees_with_the_rule_read_token_by_token(
    wanted: list[str], arrow: bool, have: list[str]
) -> None:
    wanted = [*wanted, ">"] if arrow else wanted
    pattern = parse_pattern("/d/" + ".".join(wanted))

    assert matches(pattern, "/d/" + ".".join(have)) is naive(wanted, have)


@given(st.text(max_size=300))
def test_any_text_is_a_name_or_a_typed_error(text: str) -> None:
    for parse in (parse_topic, parse_pattern):
        try:
            parse("/default/" + text)
        except BadNameError:
            pass


_tokens = st.sampled_from(["a", "b", "a-part-0", "a-part-1", "a-part-01", "*"])


@given(
    pattern=st.lists(_tokens, min_size=1, max_size=3),
    several=st.booleans(),
    topic=st.lists(_tokens.filter(lambda token: token != "*"), min_size=1, max_size=4),
    namespace=st.sampled_from(["n", "m"]),
)
@example(pattern=["*", "a-part-0"], several=False, topic=["b", "a-part-0"], namespace="n")
@example(pattern=["a"], several=False, topic=["a-part-0-part-1"], namespace="n")
def test_a_compiled_pattern_matches_as_the_rule_says(
    pattern: list[str], several: bool, topic: list[str], namespace: str
) -> None:
    wanted = "/n/" + ".".join([*pattern, ">"] if several else pattern)
    name = f"/{namespace}/" + ".".join(topic)

    assert bool(compile_pattern(wanted)(name)) is matches(wanted, name)


def test_a_bare_name_is_in_the_default_namespace() -> None:
    assert full_name("orders.eu") == "/default/orders.eu"
    assert full_name(">") == "/default/>"
    assert full_name("orders", "shop") == "/shop/orders"
    for name in ("", "/default/orders", "default/orders", "/orders"):
        assert full_name(name) == name
