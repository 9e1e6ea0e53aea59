"""`expected_key_offset`: a message is stored if the newest one of its key is where it was read."""

from collections.abc import Generator
from typing import Any

import pytest
from tests.unit.broker.streambench import TOPIC, StreamBench

from ister.base.errors import (
    BadRequestError,
    KeyOffsetMismatchError,
    LimitReachedError,
    StorageFailedError,
)
from ister.broker.state import key_offsets as keyoffsets
from ister.broker.state import state
from ister.testing import Crash, Fault, Keep

PLAIN = "/default/plain"


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create(key_offsets=True)
    return bench


def put(bench: StreamBench, key: str, expected: int, payload: bytes = b"x", **options: Any) -> int:
    """Publish a message that expects something of its key; return its offset."""
    [offset] = bench.publish(payload, keys=[key], expected_key_offset=expected, **options)
    return offset


def test_the_newest_message_of_a_key_is_where_it_is_expected_or_nothing_is_stored(
    bench: StreamBench,
) -> None:
    assert put(bench, "a", -1) == 0
    assert put(bench, "b", -1) == 1
    assert put(bench, "a", 0) == 2
    with pytest.raises(KeyOffsetMismatchError) as caught:
        put(bench, "a", 0)
    with pytest.raises(KeyOffsetMismatchError, match="at offset 1, not -1"):
        put(bench, "b", -1)

    error = caught.value
    assert (error.topic, error.key) == (TOPIC, "a")
    assert (error.expected_key_offset, error.key_offset) == (0, 2)
    assert put(bench, "c", -1) == 3


def test_any_publish_moves_the_newest_message_of_its_keys(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", b"2", b"3", keys=["a", "b", "a", None])
    transaction = bench.begin()
    bench.stage(transaction, 0, b"4", keys=["b"])
    bench.commit(transaction, [TOPIC])

    assert put(bench, "a", 2) == 5
    assert put(bench, "b", 4) == 6


def test_of_two_on_their_way_that_expect_the_same_one_is_stored(bench: StreamBench) -> None:
    first = bench.send([b"1"], keys=["a"], settle=False, name="p", expected_key_offset=-1)
    with pytest.raises(KeyOffsetMismatchError):
        put(bench, "a", -1, settle=False, name="q")
    bench.settle()

    assert first.offsets == [0]
    assert put(bench, "a", 0) == 1


def test_what_a_producer_sends_again_is_answered_though_its_key_has_moved_on(
    bench: StreamBench,
) -> None:
    put(bench, "a", -1, sequence=0)

    assert put(bench, "a", -1, sequence=0) == 0
    assert bench.topic().next_offset == 1


def test_a_key_whose_message_was_not_stored_stays_as_it_was(bench: StreamBench) -> None:
    put(bench, "a", -1)
    bench.disk.fail(Fault())
    with pytest.raises(StorageFailedError):
        put(bench, "a", 0)
    bench.advance(2_000)

    assert put(bench, "a", 0) == 1


@pytest.mark.parametrize("keep", [None, "none"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_keys_are_known_after_a_restart(
    bench: StreamBench, keep: Keep | None, checkpoint: bool
) -> None:
    bench.publish(*[b""] * 9_000, keys=[f"{n}" for n in range(9_000)])
    put(bench, "7", 7)
    if checkpoint:
        bench.storage.checkpoint(lambda _: None)
        bench.settle()
        put(bench, "8", 8)
    bench.restart(keep)

    assert put(bench, "7", 9_000) == bench.topic().next_offset - 1
    assert put(bench, "8", 9_001 if checkpoint else 8)
    assert put(bench, "8999", 8_999)
    assert put(bench, "new", -1)


@pytest.mark.parametrize("keep", ["none", "all", "torn"])
def test_after_a_crash_a_key_has_moved_on_if_and_only_if_its_message_is_stored(keep: Keep) -> None:
    for step in range(4):
        bench = StreamBench()
        bench.create(key_offsets=True)
        put(bench, "a", -1)
        bench.disk.crash_at(len(bench.disk.operations) + step)
        told = False
        try:
            put(bench, "a", 0, b"contested")
            told = True
        except Crash:
            pass
        bench.restart(keep)
        stored = bench.topic().next_offset

        assert stored == 2 if told else stored in (1, 2)
        if stored == 2:
            with pytest.raises(KeyOffsetMismatchError):
                put(bench, "a", 0)
        assert put(bench, "a", stored - 1) == stored


def test_messages_that_retention_has_dropped_do_not_count(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", keys=["a", "b"])
    bench.topic().trim(1, lambda _: None)
    bench.advance(2_000)
    known = bench.topic().record.key_offsets

    assert put(bench, "a", -1) == 2
    assert put(bench, "b", 1) == 3
    assert known is not None
    assert known.size == 2


def test_a_tombstone_of_a_compacted_topic_leaves_its_key_without_messages() -> None:
    bench = StreamBench()
    bench.create(key_offsets=True, retention="compact")
    bench.publish(b"1", b"", b"2", keys=["a", "a", "b"])
    assert put(bench, "a", -1, b"again") == 3
    put(bench, "b", 2, b"")
    bench.restart()

    assert put(bench, "b", -1) == 5
    assert put(bench, "a", 3) == 6


def test_beyond_the_limit_a_key_that_may_be_forgotten_is_refused_and_the_others_go_on() -> None:
    bench = StreamBench(key_offsets_max=2)
    bench.create(key_offsets=True)
    bench.publish(b"0", b"1", b"2", keys=["a", "b", "c"])
    with pytest.raises(LimitReachedError) as caught:
        put(bench, "a", 0)
    with pytest.raises(LimitReachedError):
        put(bench, "new", -1)

    assert (caught.value.limit, caught.value.value) == ("key_offsets_max", 2)
    assert put(bench, "c", 2) == 3
    # A key that is published to is known again.
    bench.publish(b"4", keys=["a"])
    assert put(bench, "a", 4) == 5
    bench.storage.checkpoint(lambda _: None)
    bench.settle()
    bench.restart()
    with pytest.raises(LimitReachedError):
        put(bench, "b", 1)


def test_once_what_was_forgotten_is_dropped_all_keys_are_known() -> None:
    bench = StreamBench(key_offsets_max=1)
    bench.create(key_offsets=True)
    bench.publish(b"0", b"1", keys=["a", "b"])
    bench.topic().trim(1, lambda _: None)
    bench.settle()

    assert put(bench, "a", -1) == 2


def test_a_deleted_topic_gives_its_keys_back() -> None:
    bench = StreamBench(key_offsets_max=2)
    bench.create(PLAIN, key_offsets=True)
    bench.publish(b"0", b"1", topic=PLAIN, keys=["a", "b"])
    bench.broker.delete_topic(PLAIN)
    bench.advance(2_000)
    bench.create(key_offsets=True)
    bench.publish(b"0", b"1", keys=["a", "b"])

    assert put(bench, "a", 0) == 2


def test_other_topics_and_messages_without_a_key_are_refused(bench: StreamBench) -> None:
    bench.create(PLAIN)
    with pytest.raises(BadRequestError, match="key_offsets=True"):
        put(bench, "a", -1, topic=PLAIN)
    with pytest.raises(BadRequestError, match="one message with a key"):
        bench.publish(b"0", expected_key_offset=-1)
    with pytest.raises(BadRequestError, match="one message with a key"):
        bench.publish(b"0", b"1", keys=["a", "a"], expected_key_offset=-1)


def test_a_transaction_has_so_many_keys_and_no_more(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyoffsets, "BATCH_KEYS_MAX", 2)
    bench.create(PLAIN)
    for count in (2, 3):
        transaction = bench.begin(f"{count}")
        bench.stage(transaction, 0, *[b""] * count, keys=["a"] * count)
        bench.stage(transaction, 1, b"", b"", keys=["a", "b"])
        outcome = bench.commit(transaction, [TOPIC, PLAIN])

    assert isinstance(outcome.result, LimitReachedError)
    assert outcome.result.limit == "batch_keys_max"
    with pytest.raises(LimitReachedError):
        bench.publish(b"", b"", b"", keys=["a", "a", "b"])
    bench.publish(b"", b"", b"", topic=PLAIN, keys=["a", "a", "b"])
    assert (bench.topic().next_offset, bench.topic(PLAIN).next_offset) == (2, 5)


def test_a_snapshot_with_keys_of_a_topic_that_was_made_meanwhile_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state, "WORK_AT_ONCE", 1)
    monkeypatch.setattr(state, "ROWS_AT_ONCE", 1)
    bench = StreamBench()
    bench.create(PLAIN)
    encoding = bench.storage.state.encoding()
    # The topics are in it, and what follows them is not.
    next(encoding)
    bench.create(key_offsets=True)
    put(bench, "a", -1)
    snapshot = _finish(encoding)
    restored = state.State()
    restored.restore(snapshot)

    assert b"key_offsets" in snapshot
    assert [record.name for record in restored.topics.values()] == [PLAIN]


def _finish(encoding: Generator[None, None, bytes]) -> bytes:
    while True:
        try:
            next(encoding)
        except StopIteration as end:
            return bytes(end.value)


def test_all_messages_of_a_transaction_expect_what_was_there_before_it(bench: StreamBench) -> None:
    put(bench, "a", -1)
    transaction = bench.begin("1")
    for payload, key, expected in ((b"1", "a", 0), (b"2", "a", 0), (b"3", "b", -1)):
        bench.stage(transaction, 0, payload, keys=[key], expected_key_offset=expected)
    assert bench.commit(transaction, [TOPIC]).result == [1, 2, 3]

    late = bench.begin("2")
    bench.stage(late, 0, b"lost", keys=["new"], expected_key_offset=-1)
    bench.stage(late, 0, b"lost", keys=["a"], expected_key_offset=1)
    assert isinstance(bench.commit(late, [TOPIC]).result, KeyOffsetMismatchError)
    assert bench.topic().next_offset == 4
    assert put(bench, "new", -1) == 4
