"""The ids of many messages: a sequence that makes each id when it is looked at."""

import pickle

import pytest

from ister.client.session import MessageId, MessageIds, Stored, places_of

TWO = MessageIds([Stored("/default/a", 10, 2), Stored("/default/a", 20, 3)])


def test_ids_are_those_of_all_batches_in_order() -> None:
    expected = [MessageId("/default/a", offset) for offset in (10, 11, 20, 21, 22)]

    assert list(TWO) == expected
    assert [TWO[slot] for slot in range(5)] == expected
    assert len(TWO) == 5


def test_ids_count_from_the_end_and_are_cut_like_a_list() -> None:
    assert (TWO[-1].offset, TWO[-5].offset) == (22, 10)
    assert [mid.offset for mid in TWO[1:4]] == [11, 20, 21]
    assert [mid.offset for mid in TWO[::-2]] == [22, 20, 10]


@pytest.mark.parametrize("slot", [5, -6])
def test_there_is_no_id_beyond_the_last(slot: int) -> None:
    with pytest.raises(IndexError):
        TWO[slot]


def test_ids_are_equal_to_a_list_of_the_same() -> None:
    assert list(TWO) == TWO
    assert tuple(TWO) == TWO
    assert MessageIds([Stored("/default/a", 10, 2), Stored("/default/a", 20, 3)]) == TWO
    assert list(TWO)[:-1] != TWO
    assert MessageIds([Stored("/default/b", 10, 5)]) != TWO
    assert MessageIds([]) == []
    assert TWO != "ids"


def test_places_bring_ids_into_the_order_of_the_messages() -> None:
    # Messages 1 and 2 went to one partition, message 0 to another.
    stored = [Stored("/default/a-part-0", 7, 2), Stored("/default/a-part-1", 3, 1)]
    ids = MessageIds(stored, places_of([1, 2, 0]))

    assert [(mid.partition, mid.offset) for mid in ids] == [(1, 3), (0, 7), (0, 8)]
    assert ids[0] == MessageId("/default/a-part-1", 3)


def test_offsets_of_their_own_are_told_one_by_one() -> None:
    ids = MessageIds([Stored("/default/a", 0, 4, [8, ~2, 9, 2**64 - 1])])

    assert [mid.offset for mid in ids] == [8, 2, 9, -1]
    assert [mid.duplicate for mid in ids] == [False, True, False, False]


def test_a_duplicate_is_the_same_id_wherever_it_goes() -> None:
    [duplicate] = MessageIds([Stored("/default/a", 0, 1, [~2])])

    assert duplicate == MessageId("/default/a", 2) == pickle.loads(pickle.dumps(duplicate))
    assert hash(duplicate) == hash(MessageId("/default/a", 2))
    assert pickle.loads(pickle.dumps(duplicate)).duplicate


def test_many_ids_are_shown_by_a_few() -> None:
    assert repr(TWO).startswith("MessageIds([MessageId(topic='/default/a', offset=10), ")
    assert repr(TWO).endswith(", ...], count=5)")
    assert repr(MessageIds([])) == "MessageIds([], count=0)"
