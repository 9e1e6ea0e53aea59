"""Which messages of a batch a subscription wants."""

import time

import pytest

from ister.base.errors import BadRequestError
from ister.base.limits import FILTERS_BYTES_MAX, FILTERS_MAX, GLOB_LOOSE_MAX, KEY_BYTES_MAX
from ister.codec import Batch, encode
from ister.subscriptions import Filter, KeyMatcher, check_globs


def batch_of(
    *, keys: list[str | None] | None = None, attributes: list[dict[str, str] | None] | None = None
) -> Batch:
    count = len(keys or attributes or [None])
    return Batch(b"".join(encode([b""] * count, keys=keys, attributes=attributes)))


def test_a_filter_of_nothing_takes_all() -> None:
    assert Filter({}, ()).takes_all


def test_all_messages_are_told_as_none() -> None:
    assert Filter({"a": "1"}, ()).select(batch_of(attributes=[{"a": "1"}, {"a": "1"}])) is None


def test_no_messages_are_an_empty_list() -> None:
    assert Filter({"a": "1"}, ()).select(batch_of(attributes=[{"a": "2"}, None])) == []


def test_every_attribute_of_a_filter_must_match() -> None:
    rows: list[dict[str, str] | None] = [{"a": "1"}, {"a": "1", "b": "2"}, {"b": "2"}, None]

    assert Filter({"a": "1", "b": "2"}, ()).select(batch_of(attributes=rows)) == [1]


def test_an_attribute_matches_by_glob() -> None:
    rows: list[dict[str, str] | None] = [{"a": "eu.1"}, {"a": "us.1"}, {"a": "eu."}]

    assert Filter({"a": "eu.*"}, ()).select(batch_of(attributes=rows)) == [0, 2]


def test_a_missing_attribute_does_not_match_even_a_star() -> None:
    assert Filter({"a": "*"}, ()).select(batch_of(attributes=[{"a": ""}, {"b": "1"}])) == [0]


def test_a_batch_without_attributes_has_none_that_match() -> None:
    assert Filter({"a": "*"}, ()).select(batch_of(keys=["k", "l"])) == []


def test_one_key_glob_must_match() -> None:
    assert Filter({}, ("a*", "*z")).select(batch_of(keys=["ab", "b", "yz"])) == [0, 2]


def test_keys_and_attributes_must_both_match() -> None:
    batch = batch_of(keys=["a", "a", "b"], attributes=[{"x": "1"}, None, {"x": "1"}])

    assert Filter({"x": "1"}, ("a",)).select(batch) == [0]


@pytest.mark.parametrize("keys", [[None, None], ["", None]], ids=["nulls", "an empty key"])
def test_a_message_without_a_key_is_filtered_as_one_with_an_empty_key(
    keys: list[str | None],
) -> None:
    assert Filter({}, ("*",)).select(batch_of(keys=keys)) is None


def test_a_batch_without_keys_is_filtered_as_one_with_empty_keys() -> None:
    assert Filter({}, ("*",)).select(batch_of(attributes=[None, None])) is None


def test_a_batch_without_keys_has_none_that_match_a_word() -> None:
    assert Filter({}, ("a*",)).select(batch_of(attributes=[None, None])) == []


def test_a_bracket_in_a_filter_is_an_ordinary_character() -> None:
    assert Filter({"a": "[x]"}, ()).select(batch_of(attributes=[{"a": "x"}, {"a": "[x]"}])) == [1]


def test_as_many_filters_as_allowed_pass() -> None:
    check_globs({str(n): "x" for n in range(FILTERS_MAX - 1)}, ["x"])


def test_one_filter_too_many_is_refused() -> None:
    with pytest.raises(BadRequestError, match=str(FILTERS_MAX)):
        check_globs({str(n): "x" for n in range(FILTERS_MAX)}, ["x"])


def test_filters_of_as_many_bytes_together_as_allowed_pass() -> None:
    check_globs({}, ["ö" * (KEY_BYTES_MAX // 2)] * (FILTERS_BYTES_MAX // KEY_BYTES_MAX))


def test_filters_of_more_bytes_together_are_refused() -> None:
    with pytest.raises(BadRequestError, match=str(FILTERS_BYTES_MAX)):
        check_globs({}, [*["a" * KEY_BYTES_MAX] * (FILTERS_BYTES_MAX // KEY_BYTES_MAX), "a"])


@pytest.mark.parametrize("glob", ["a" * KEY_BYTES_MAX, "*a*b*c*"], ids=["long", "four stars"])
def test_a_filter_at_its_limit_passes(glob: str) -> None:
    check_globs({"a": glob}, [glob])


@pytest.mark.parametrize("glob", ["a" * (KEY_BYTES_MAX + 1), "*a*b*c*d*"], ids=["long", "stars"])
def test_a_filter_over_its_limit_is_refused(glob: str) -> None:
    with pytest.raises(BadRequestError, match="too long or has more than 4 stars"):
        check_globs({}, [glob])


@pytest.mark.parametrize(
    "glob",
    ["*?" + "a" * 16 + "?*", "*" + "a?" * 7 + "bc*", "?" * 100 + "*a" + "?" * 100, "a?" * 1_000],
    ids=["none inside", "at the limit", "at the ends", "without stars"],
)
def test_question_marks_that_are_quick_to_find_pass(glob: str) -> None:
    check_globs({"a": glob}, [glob])


def test_question_marks_in_a_long_part_between_stars_are_refused() -> None:
    glob = "*" + "a?" * (GLOB_LOOSE_MAX // 2) + "b*"

    with pytest.raises(BadRequestError, match=f"more than {GLOB_LOOSE_MAX} characters"):
        check_globs({"a": glob}, [])


@pytest.mark.parametrize(
    "glob",
    ["*a*a*a*b", "*" + "?" * 2_000 + "b", "*" + "a" * 2_000 + "b*", "*" + "a?" * 7 + "b*"],
    ids=["stars", "question marks", "a long part", "a loose part"],
)
def test_the_worst_globs_allowed_are_quick_on_the_worst_key_allowed(glob: str) -> None:
    # Going back for each place would take 4,096² steps for each, and 4,096³ with several stars.
    matcher = KeyMatcher([glob] * 64)
    # Of this thread alone: others may have the cores meanwhile.
    start = time.thread_time()
    matcher("a" * KEY_BYTES_MAX)

    assert time.thread_time() - start < 1.0
