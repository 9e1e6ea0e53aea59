"""Publishing to a stream: stored once, in order, or refused with nothing changed."""

import errno

import pytest
from tests.unit.broker.streambench import TOPIC, Sent, StreamBench

from ister.base.errors import (
    BadBatchError,
    OffsetMismatchError,
    ProducerFencedError,
    SequenceError,
    StorageFailedError,
    StorageUncertainError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.broker.state.producers import OFFSET_UNKNOWN, RUNS_REMEMBERED, ProducerRecord
from ister.codec import Batch, encode
from ister.testing import Fault, Keep


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create()
    return bench


def stored(bench: StreamBench, topic: str = TOPIC) -> list[bytes]:
    return [message.payload for message in bench.stored(topic)]


# Offsets


def test_offsets_rise_by_one_for_each_message(bench: StreamBench) -> None:
    assert bench.publish(b"0", b"1") == [0, 1]
    assert bench.publish(b"2", name="other") == [2]
    assert bench.topic().next_offset == 3


def test_nothing_is_told_or_seen_before_the_journal_has_it(bench: StreamBench) -> None:
    member = bench.consume()
    sent = bench.send([b"0"], settle=False)
    assert (sent.answers, member.offsets, bench.topic().next_offset) == ([], [], 0)

    bench.settle()
    assert (sent.offsets, member.offsets, bench.topic().next_offset) == ([0], [0], 1)


def test_with_durability_memory_the_producer_is_told_at_once() -> None:
    bench = StreamBench()
    bench.create(durability="memory")
    sent = bench.send([b"0"], settle=False)

    assert sent.offsets == [0]
    assert bench.topic().next_offset == 0
    bench.settle()
    assert bench.topic().next_offset == 1


@pytest.mark.parametrize(("durability", "kept"), [("fsync", [b"0"]), ("os", [])])
def test_a_power_cut_takes_what_was_not_synced(durability: str, kept: list[bytes]) -> None:
    bench = StreamBench()
    bench.create(durability=durability)
    bench.publish(b"0")
    bench.restart("none")

    assert stored(bench) == kept


def test_a_kill_takes_nothing_that_was_written() -> None:
    bench = StreamBench()
    bench.create(durability="os")
    bench.publish(b"0")
    bench.restart()

    assert stored(bench) == [b"0"]


def test_offsets_go_on_after_a_restart(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    bench.restart("none")

    assert bench.publish(b"2") == [2]


# Idempotent producers


def test_a_batch_sent_again_is_stored_once_and_answered_alike(bench: StreamBench) -> None:
    bench.publish(b"other", name="q")
    assert bench.publish(b"0", b"1", sequence=0) == [1, 2]

    assert bench.publish(b"0", b"1", sequence=0) == [1, 2]
    assert stored(bench) == [b"other", b"0", b"1"]


def test_a_batch_sent_again_while_it_is_on_its_way_is_stored_once(bench: StreamBench) -> None:
    first = bench.send([b"0"], sequence=0, settle=False)
    second = bench.send([b"0"], sequence=0, settle=False)
    assert second.answers == []
    bench.settle()

    assert first.offsets == second.offsets == [0]
    assert stored(bench) == [b"0"]


def test_a_batch_sent_again_while_it_is_on_its_way_fails_with_it(bench: StreamBench) -> None:
    bench.disk.fail(Fault())
    first = bench.send([b"0"], sequence=0, settle=False)
    second = bench.send([b"0"], sequence=0, settle=False)
    bench.settle()

    assert isinstance(first.error, StorageFailedError)
    assert isinstance(second.error, StorageFailedError)
    bench.advance(1_000)
    assert bench.publish(b"0", sequence=0) == [0]
    assert stored(bench) == [b"0"]


@pytest.mark.parametrize("keep", [None, "none", "all"])
def test_a_batch_sent_again_after_a_restart_is_stored_once(
    bench: StreamBench, keep: str | None
) -> None:
    bench.publish(b"0", b"1", sequence=0)
    bench.restart(keep)  # type: ignore[arg-type]

    assert bench.topic().sent.next_sequence("p") == 2
    assert bench.publish(b"0", b"1", sequence=0) == [0, 1]
    assert bench.publish(b"2", sequence=2) == [2]
    assert stored(bench) == [b"0", b"1", b"2"]


def test_a_checkpoint_remembers_producers(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", sequence=0)
    bench.storage.checkpoint(lambda _: None)
    bench.settle()
    bench.restart("none")

    assert bench.publish(b"0", b"1", sequence=0) == [0, 1]


def test_producers_are_numbered_each_for_itself_and_for_each_topic(bench: StreamBench) -> None:
    bench.create("/default/other")
    for topic in (TOPIC, "/default/other"):
        for name in ("p", "q"):
            bench.publish(b"x", topic=topic, name=name, sequence=0)

    assert len(stored(bench)) == len(stored(bench, "/default/other")) == 2


def test_a_batch_that_is_only_partly_new_is_refused(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", sequence=0)

    with pytest.raises(SequenceError):
        bench.publish(b"1", b"2", sequence=1)
    assert stored(bench) == [b"0", b"1"]


def test_numbers_may_leave_out_a_batch_that_was_refused(bench: StreamBench) -> None:
    bench.publish(b"0", sequence=0)
    with pytest.raises(OffsetMismatchError):
        bench.publish(b"1", sequence=1, expected_offset=7)

    assert bench.publish(b"2", sequence=2) == [1]


def test_a_refused_batch_is_not_taken_for_stored_when_it_is_sent_again(bench: StreamBench) -> None:
    bench.publish(b"0", sequence=0)
    with pytest.raises(OffsetMismatchError):
        bench.send([b"1"], sequence=1, expected_offset=7)
    bench.publish(b"2", sequence=2)
    # The answer was lost, and the client repeats what it does not know of.
    with pytest.raises(OffsetMismatchError):
        bench.send([b"1"], sequence=1, expected_offset=7)
    assert bench.publish(b"1", sequence=1) == [2]

    assert bench.publish(b"1", sequence=1) == [2]
    assert bench.publish(b"2", sequence=2) == [1]
    bench.restart("none")
    assert bench.publish(b"1", sequence=1) == [2]
    assert bench.topic().sent.next_sequence("p") == 3
    assert stored(bench) == [b"0", b"2", b"1"]


def test_a_refused_batch_is_known_while_a_later_one_is_on_its_way(bench: StreamBench) -> None:
    with pytest.raises(OffsetMismatchError):
        bench.send([b"0"], sequence=0, expected_offset=7)
    later = bench.send([b"1"], sequence=1, settle=False)
    again = bench.send([b"0"], sequence=0, settle=False)
    bench.settle()

    assert (later.offsets, again.offsets) == ([0], [1])


def test_of_a_batch_from_long_ago_the_offset_is_unknown() -> None:
    record = ProducerRecord()
    for number in range(2 * RUNS_REMEMBERED + 1):
        record.on_stored(number, 2 * number, 1)

    assert record.offset_of(0) == OFFSET_UNKNOWN
    assert not record.is_hole(0, 1)
    assert record.offset_of(2 * RUNS_REMEMBERED) == 4 * RUNS_REMEMBERED


def test_a_producer_alone_on_its_topic_is_one_run() -> None:
    record = ProducerRecord()
    for number in range(1_000):
        record.on_stored(number, number, 1)

    assert record.runs == [(0, 0, 1_000)]


# Fencing


def test_a_producer_opened_again_fences_the_former_one(bench: StreamBench) -> None:
    former = bench.producer()
    bench._producers.clear()
    bench.publish(b"0")
    head, body = encode([b"zombie"], producer=b"p", first_sequence=9)

    with pytest.raises(ProducerFencedError):
        bench.broker.store(former, Batch(head + body), lambda *_: None)
    assert stored(bench) == [b"0"]


def test_a_former_producer_that_closes_does_not_take_the_right_of_the_new_one(
    bench: StreamBench,
) -> None:
    former = bench.producer()
    bench._producers.clear()
    bench.producer()
    bench.broker.close_producer(former)

    assert bench.publish(b"0") == [0]


def test_a_producer_of_a_deleted_topic_is_told(bench: StreamBench) -> None:
    bench.producer()
    bench.broker.delete_topic(TOPIC)
    bench.settle()

    with pytest.raises(TopicNotFoundError):
        bench.publish(b"0")


# Expected offsets


def test_a_batch_is_stored_only_at_the_offset_it_expects(bench: StreamBench) -> None:
    assert bench.publish(b"0", expected_offset=0) == [0]
    with pytest.raises(OffsetMismatchError):
        bench.publish(b"1", expected_offset=0)
    assert bench.publish(b"1", expected_offset=1) == [1]


def test_of_two_that_expect_the_same_offset_one_is_stored(bench: StreamBench) -> None:
    first = bench.send([b"0"], name="a", expected_offset=0, settle=False)
    with pytest.raises(OffsetMismatchError):
        bench.send([b"0"], name="b", expected_offset=0, settle=False)
    bench.settle()

    assert first.offsets == [0]


def test_a_repetition_counts_more_than_the_offset_it_expects(bench: StreamBench) -> None:
    bench.publish(b"0", sequence=0, expected_offset=0)

    assert bench.publish(b"0", sequence=0, expected_offset=0) == [0]


def test_after_a_failure_the_expected_offset_is_that_of_what_is_stored(bench: StreamBench) -> None:
    bench.disk.fail(Fault())
    assert isinstance(bench.send([b"0"], expected_offset=0).error, StorageFailedError)
    bench.advance(1_000)

    assert bench.publish(b"1", expected_offset=0) == [0]


# Message ids


def test_an_id_is_stored_once_within_its_window(bench: StreamBench) -> None:
    assert bench.publish(b"0", ids=["a"]) == [0]

    assert bench.publish(b"0", ids=["a"], name="q") == [~0]
    assert stored(bench) == [b"0"]


def test_an_id_is_new_again_when_its_window_is_over() -> None:
    bench = StreamBench()
    bench.create(dedup_window_ms=5_000)
    bench.publish(b"0", ids=["a"])
    bench.advance(4_999)
    assert bench.publish(b"0", ids=["a"]) == [~0]
    bench.advance(1)

    assert bench.publish(b"0", ids=["a"]) == [1]


def test_ids_are_remembered_over_a_restart(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", ids=["a", "b"])
    bench.restart("none")
    assert bench.publish(b"1", ids=["b"], name="q") == [~1]

    bench.storage.checkpoint(lambda _: None)
    bench.settle()
    bench.restart("none")
    assert bench.publish(b"0", ids=["a"], name="r") == [~0]


def test_without_a_window_ids_mean_nothing() -> None:
    bench = StreamBench()
    bench.create(dedup_window_ms=0)

    assert bench.publish(b"0", ids=["a"]) == [0]
    assert bench.publish(b"0", ids=["a"]) == [1]


def test_of_a_batch_only_what_is_new_is_stored(bench: StreamBench) -> None:
    bench.publish(b"a", ids=["a"])

    assert bench.publish(b"x", b"a", b"b", b"b", ids=[None, "a", "b", "b"]) == [1, ~0, 2, ~2]
    assert stored(bench) == [b"a", b"x", b"b"]
    assert bench.publish(b"y", ids=["y"]) == [3]


def test_an_id_on_its_way_is_known(bench: StreamBench) -> None:
    first = bench.send([b"0"], ids=["a"], settle=False)
    second = bench.send([b"0"], ids=["a"], name="q", settle=False)
    bench.settle()

    assert (first.offsets, second.offsets) == ([0], [~0])


def test_an_id_whose_message_was_not_stored_is_new(bench: StreamBench) -> None:
    bench.disk.fail(Fault())
    first = bench.send([b"0"], ids=["a"], settle=False)
    second = bench.send([b"0"], ids=["a"], name="q", settle=False)
    bench.settle()
    assert isinstance(first.error, StorageFailedError)
    assert isinstance(second.error, StorageFailedError)
    bench.advance(1_000)

    assert bench.publish(b"0", ids=["a"]) == [0]


def test_a_batch_with_ids_sent_again_is_answered_by_its_ids(bench: StreamBench) -> None:
    bench.publish(b"a", ids=["a"], name="q")
    assert bench.publish(b"a", b"b", ids=["a", "b"], sequence=0) == [~0, 1]

    assert bench.publish(b"a", b"b", ids=["a", "b"], sequence=0) == [~0, ~1]
    bench.restart("none")
    assert bench.publish(b"a", b"b", ids=["a", "b"], sequence=0) == [~0, ~1]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_batch_of_which_a_part_was_known_is_stored_once_however_late_it_is_sent_again(
    bench: StreamBench, *, restarted: bool
) -> None:
    bench.publish(b"a", ids=["a"], name="q")
    batch = (b"a", b"no id", b"b")
    assert bench.publish(*batch, ids=["a", None, "b"], sequence=0) == [~0, 1, 2]
    if restarted:
        bench.restart("none")
    assert bench.topic().sent.next_sequence("p") == 3
    # Its window is over.
    bench.advance(200_000)
    again = bench.send(batch, ids=["a", None, "b"], sequence=0)

    assert again.error is None
    assert again.batch.base_offset == OFFSET_UNKNOWN
    assert stored(bench) == [b"a", b"no id", b"b"]
    assert bench.publish(b"c", sequence=3) == [3]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_batch_of_which_all_was_known_is_not_stored_however_late_it_is_sent_again(
    bench: StreamBench, *, restarted: bool
) -> None:
    bench.publish(b"a", ids=["a"], name="q")
    assert bench.publish(b"a", ids=["a"], sequence=0) == [~0]
    if restarted:
        bench.restart("none")
    bench.advance(200_000)
    bench.send([b"a"], ids=["a"], sequence=0)

    assert stored(bench) == [b"a"]


def test_a_part_that_the_disk_did_not_take_is_new_when_it_is_sent_again(
    bench: StreamBench,
) -> None:
    bench.publish(b"a", ids=["a"], name="q")
    bench.disk.fail(Fault())
    first = bench.send([b"a", b"b"], ids=["a", "b"], sequence=0)
    assert isinstance(first.error, StorageFailedError)
    bench.advance(1_000)

    assert bench.publish(b"a", b"b", ids=["a", "b"], sequence=0) == [~0, 1]


# What is refused


def test_requests_are_not_for_streams(bench: StreamBench) -> None:
    head, body = encode([b"?"], producer=b"p", replies=[(1, 1)])

    with pytest.raises(WrongKindError):
        bench.broker.store(bench.producer(), Batch(head + body), lambda *_: None)


def test_a_batch_under_another_name_is_refused(bench: StreamBench) -> None:
    head, body = encode([b"x"], producer=b"somebody")

    with pytest.raises(BadBatchError):
        bench.broker.store(bench.producer(), Batch(head + body), lambda *_: None)


@pytest.mark.parametrize("action", ["write", "sync"])
def test_what_the_disk_did_not_take_is_refused_and_never_seen(
    bench: StreamBench, action: str
) -> None:
    bench.publish(b"0")
    member = bench.consume()
    bench.disk.fail(Fault(errno.ENOSPC, actions=(action,)))  # type: ignore[arg-type]
    some = [bench.send([payload], settle=False) for payload in (b"1", b"2")]
    bench.settle()

    assert all(isinstance(sent.error, StorageFailedError) for sent in some)
    assert member.payloads == [b"0"]
    assert bench.topic().next_offset == 1
    for keep in ("none", "all"):
        assert stored(StreamBench(bench.disk.reopen(keep))) == [b"0"]

    assert bench.publish(b"4", sequence=4) == [1]
    assert member.payloads == [b"0", b"4"]
    bench.restart("none")
    assert stored(bench) == [b"0", b"4"]


def test_while_the_disk_has_no_room_for_another_file_what_it_did_not_take_is_not_stored(
    bench: StreamBench,
) -> None:
    bench.publish(b"0")
    bench.disk.fail(Fault(errno.ENOSPC, actions=("write", "create"), lasting=True))
    sent = bench.send([b"1"])
    with pytest.raises(StorageFailedError, match="No space"):
        bench.send([b"2"])

    assert isinstance(sent.error, StorageFailedError)
    assert stored(StreamBench(bench.disk.reopen("all"))) == [b"0"]


@pytest.mark.parametrize(("keep", "found"), [("none", [b"0"]), ("all", [b"0", b"1"])])
def test_what_is_uncertain_can_be_repeated_and_is_stored_once(
    bench: StreamBench, keep: Keep, found: list[bytes]
) -> None:
    bench.publish(b"0")
    bench.disk.fail(Fault(errno.EIO, actions=("sync", "truncate"), lasting=True))
    sent = bench.send([b"1"])
    assert isinstance(sent.error, StorageUncertainError)
    assert bench.topic().next_offset == 1
    bench.restart(keep)
    assert stored(bench) == found

    assert bench.publish(b"1", sequence=1) == [1]
    assert stored(bench) == [b"0", b"1"]


def test_a_batch_whose_answer_goes_wrong_is_there_all_the_same(bench: StreamBench) -> None:
    member = bench.consume()
    batch = Batch(b"".join(encode([b"a"], producer=b"p")))
    bench.broker.store(bench.producer(), batch, lambda *_: 1 // 0)
    bench.settle()

    assert member.payloads == [b"a"]
    assert bench.topic().next_offset == 1


def test_a_transaction_under_the_name_of_a_producer_hides_none_of_its_repetitions(
    bench: StreamBench,
) -> None:
    staged = Batch(b"".join(encode([b"staged"], producer=b"p")))
    transaction = bench.begin()
    bench.broker.stage(transaction, 0, staged)
    repeated: list[Sent] = []

    def on_committed(_: object) -> None:
        repeated.append(bench.send([b"sent"], sequence=0, settle=False))

    bench.broker.commit(transaction, [TOPIC], [], on_committed)
    # The transaction is with the disk: this is in the group after it.
    bench.step()
    first = bench.send([b"sent"], sequence=0, settle=False)
    bench.settle()

    assert (first.offsets, [one.offsets for one in repeated]) == ([1], [[1]])
    assert stored(bench) == [b"staged", b"sent"]
