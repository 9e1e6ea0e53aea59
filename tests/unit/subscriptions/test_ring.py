"""Consistent hashing: few keys move, and a key is never with a consumer that refuses it."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ister.codec import Batch, encode
from ister.subscriptions import KeyMatcher, Ring, keys_of
from ister.subscriptions.globs import compile_glob
from ister.subscriptions.ring import (
    CACHED_KEY_CHARACTERS_MAX,
    CACHED_KEYS_MAX,
    FEW_CONSUMERS,
    POINTS,
    _hash,
)

ALL = KeyMatcher(())
KEYS = [f"key-{n}" for n in range(2_000)]


def ring_of(*names: str) -> Ring:
    ring = Ring()
    for name in names:
        ring.join(name, ALL)
    return ring


def owners(ring: Ring) -> dict[str, str | None]:
    return {key: ring.owner(key) for key in KEYS}


def owner_by_the_rule(members: dict[str, KeyMatcher], key: str) -> str | None:
    """The owner of a key, found by looking at every point of every consumer."""
    around = [
        ((_hash(f"{name}\0{number}") - _hash(key)) % 2**64, name)
        for name, matcher in members.items()
        if matcher(key)
        for number in range(POINTS)
    ]
    return min(around)[1] if around else None


@pytest.mark.parametrize("count", [1, 3, FEW_CONSUMERS, FEW_CONSUMERS + 1, FEW_CONSUMERS + 9])
def test_the_owner_is_whose_point_comes_next_among_those_that_take_the_key(count: int) -> None:
    filters = [ALL, KeyMatcher(["key-1*"]), KeyMatcher(["*7", "key-2*"])]
    members = {f"c{n}": filters[n % len(filters)] for n in range(count)}
    ring = Ring()
    for name, matcher in members.items():
        ring.join(name, matcher)
    ring.join("gone", ALL)
    ring.leave("gone")

    found = [ring.owner(key) for key in KEYS[:40]]

    assert found == [owner_by_the_rule(members, key) for key in KEYS[:40]]


def test_consumers_with_the_same_filters_count_them_once() -> None:
    ring = ring_of("a")
    ring.join("b", KeyMatcher(["x", "y"]))
    ring.join("c", KeyMatcher(["x", "y"]))

    assert ring.globs_with(KeyMatcher(["x", "y"])) == 2
    assert ring.globs_with(KeyMatcher(["x", "z"])) == 4


def test_a_long_key_is_not_remembered() -> None:
    ring = ring_of("a")
    ring.owner("k" * (CACHED_KEY_CHARACTERS_MAX + 1))

    assert not ring._cache


def test_an_empty_ring_has_no_owner() -> None:
    assert Ring().owner("k") is None


def test_a_lone_consumer_owns_every_key() -> None:
    assert set(owners(ring_of("a")).values()) == {"a"}


def test_a_message_without_a_key_goes_by_the_name_of_its_producer() -> None:
    some = Batch(b"".join(encode([b"1", b"2", b"3"], keys=["k", None, ""], producer=b"shop")))
    none = Batch(b"".join(encode([b"1", b"2"], producer=b"shop")))

    assert (keys_of(some), keys_of(none)) == (["k", "shop", ""], ["shop", "shop"])


def test_owners_do_not_depend_on_the_order_of_joining() -> None:
    assert owners(ring_of("a", "b", "c")) == owners(ring_of("c", "a", "b"))


def test_a_joining_consumer_only_takes_keys_and_moves_none_between_others() -> None:
    ring = ring_of("a", "b", "c")
    before = owners(ring)
    ring.join("d", ALL)
    after = owners(ring)

    assert {after[key] for key in KEYS if after[key] != before[key]} == {"d"}


def test_a_joining_consumer_takes_about_its_share() -> None:
    ring = ring_of("a", "b", "c")
    ring.join("d", ALL)
    share = Counter(owners(ring).values())["d"] / len(KEYS)

    assert 0.15 < share < 0.35


def test_a_leaving_consumer_gives_up_only_its_own_keys() -> None:
    ring = ring_of("a", "b", "c", "d")
    before = owners(ring)
    ring.leave("d")
    after = owners(ring)

    assert {before[key] for key in KEYS if after[key] != before[key]} == {"d"}


def test_leaving_undoes_joining() -> None:
    ring = ring_of("a", "b")
    before = owners(ring)
    ring.join("c", ALL)
    ring.leave("c")

    assert owners(ring) == before


def test_keys_are_spread_over_all_consumers() -> None:
    shares = Counter(owners(ring_of("a", "b", "c", "d", "e")).values())

    assert min(shares.values()) > len(KEYS) / 5 * 0.5


def test_a_key_goes_only_to_a_consumer_whose_filter_takes_it() -> None:
    ring = ring_of()
    ring.join("eu", KeyMatcher(["eu.*"]))
    ring.join("us", KeyMatcher(["us.*"]))

    assert [ring.owner(key) for key in ("eu.1", "us.1", "asia.1")] == ["eu", "us", None]


def test_a_key_somebody_starts_to_refuse_finds_another_owner() -> None:
    ring = ring_of("a", "b")
    key = next(key for key in KEYS if ring.owner(key) == "a")
    ring.leave("a")
    ring.join("a", KeyMatcher(["nothing"]))

    assert ring.owner(key) == "b"


def test_no_more_owners_are_remembered_than_the_limit() -> None:
    ring = ring_of("a", "b")
    for number in range(CACHED_KEYS_MAX + 1):
        ring.owner(str(number))

    assert len(ring._cache) <= CACHED_KEYS_MAX


@given(
    steps=st.lists(st.tuples(st.booleans(), st.sampled_from("abcdef")), max_size=12),
    keys=st.lists(st.text(max_size=5), min_size=1, max_size=30),
)
def test_any_joining_and_leaving_moves_keys_only_to_or_from_the_one_who_moves(
    steps: list[tuple[bool, str]], keys: list[str]
) -> None:
    ring = ring_of("z")
    members = {"z"}
    history: list[tuple[dict[str, str | None], str]] = [({}, "z")]
    for joins, name in steps:
        if joins == (name in members):
            continue
        if joins:
            members.add(name)
            ring.join(name, ALL)
        else:
            members.discard(name)
            ring.leave(name)
        history.append(({key: ring.owner(key) for key in keys}, name))

    for (before, _), (after, name) in pairwise(history[1:]):
        moved = {(before[key], after[key]) for key in keys if before[key] != after[key]}
        assert all(name in pair for pair in moved)


@pytest.mark.parametrize(
    ("glob", "key", "takes"),
    [
        ("eu.*", "eu.1", True),
        ("eu.*", "eu.", True),
        ("eu.*", "eu", False),
        ("eu.?", "eu.1", True),
        ("eu.?", "eu.12", False),
        ("*", "", True),
        ("", "", True),
        ("", "a", False),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("a.b", "axb", False),
        ("*\n*", "a\nb", True),
        ("Eu", "eu", False),
    ],
)
def test_a_star_is_any_run_a_question_mark_one_character_and_nothing_else_is_special(
    glob: str, key: str, takes: bool
) -> None:
    assert KeyMatcher([glob])(key) is takes


def test_one_of_several_globs_is_enough() -> None:
    matcher = KeyMatcher(["a*", "*z"])

    assert [matcher(key) for key in ("ab", "yz", "by")] == [True, True, False]


def naive(glob: str, key: str) -> bool:
    """The rule as the documentation says it, character by character."""
    if not glob:
        return not key
    if glob[0] == "*":
        return any(naive(glob[1:], key[n:]) for n in range(len(key) + 1))
    return bool(key) and glob[0] in ("?", key[0]) and naive(glob[1:], key[1:])


letters = st.sampled_from("ab[]!-^\\.|\n")


@given(
    globs=st.lists(st.text(st.sampled_from("ab[]!-^\\.|\n*?"), max_size=6), min_size=1, max_size=3),
    key=st.text(letters, max_size=8),
)
@example(globs=["[!a]"], key="[!a]")
def test_globs_agree_with_the_rule_read_character_by_character(globs: list[str], key: str) -> None:
    globs = [glob for glob in globs if glob.count("*") <= 4]

    assert KeyMatcher(globs)(key) is (not globs or any(naive(glob, key) for glob in globs))
    for glob in globs:
        assert bool(compile_glob(glob)(key)) is naive(glob, key)
