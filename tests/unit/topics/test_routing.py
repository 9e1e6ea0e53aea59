"""Which partition a message goes to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.topics import Router, fnv1a
from ister.topics.routing import CACHED_KEYS_MAX


@pytest.mark.parametrize(
    ("data", "value"),
    [
        # From the authors' own list of test vectors.
        (b"", 0xCBF29CE484222325),
        (b"a", 0xAF63DC4C8601EC8C),
        (b"b", 0xAF63DF4C8601F1A5),
        (b"foobar", 0x85944171F73967E8),
    ],
)
def test_the_hash_is_the_published_one(data: bytes, value: int) -> None:
    assert fnv1a(data) == value


def test_a_key_goes_to_its_hash_modulo_the_partitions() -> None:
    assert Router(7).route("foobar") == 0x85944171F73967E8 % 7


def test_a_key_is_hashed_as_utf_8() -> None:
    assert Router(5).route("größe") == fnv1a("größe".encode()) % 5


def test_an_empty_key_is_a_key() -> None:
    router = Router(3)

    assert {router.route("") for _ in range(6)} == {fnv1a(b"") % 3}


def test_messages_without_a_key_go_in_turn() -> None:
    router = Router(3)

    assert [router.route(None) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_messages_with_a_key_do_not_disturb_the_turn() -> None:
    router = Router(3)
    router.route(None)
    router.route("k")

    assert router.route(None) == 1


def test_a_key_stays_where_it_is_when_more_keys_are_in_use_than_are_remembered() -> None:
    router = Router(16)
    before = router.route("first")
    for number in range(CACHED_KEYS_MAX + 1):
        router.route(str(number))

    assert (router.route("first"), len(router._cache) <= CACHED_KEYS_MAX) == (before, True)


@given(st.text(max_size=20), st.integers(1, 1024))
def test_any_key_has_one_partition(key: str, partitions: int) -> None:
    router = Router(partitions)
    first = router.route(key)

    assert 0 <= first < partitions
    assert router.route(key) == Router(partitions).route(key) == first
