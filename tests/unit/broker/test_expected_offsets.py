"""Expected offsets of a transaction: each message is where it was expected, or nothing is done."""

import pytest
from tests.unit.broker.streambench import TOPIC, Outcome, StreamBench

from ister.base.errors import OffsetMismatchError, StorageFailedError
from ister.testing import Crash, Fault, Keep

OUT = "/default/out"


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create(TOPIC)
    bench.create(OUT)
    return bench


def stored(bench: StreamBench, topic: str = OUT) -> list[bytes]:
    return [message.payload for message in bench.stored(topic)]


def commit(
    bench: StreamBench, word: str, *batches: tuple[bytes, int | None], settle: bool = True
) -> Outcome:
    """Commit batches of one message for one topic, each with the offset it expects."""
    transaction = bench.begin(word)
    for payload, expected in batches:
        if expected is None:
            bench.stage(transaction, 0, payload)
        else:
            bench.stage(transaction, 0, payload, expected_offset=expected)
    return bench.commit(transaction, [OUT], settle=settle)


def test_a_commit_whose_expected_offset_is_the_next_one_is_carried_out(bench: StreamBench) -> None:
    assert commit(bench, "1", (b"0", 0)).result == [0]
    assert commit(bench, "2", (b"1", 1), (b"2", 2), (b"3", None), (b"4", 4)).result == [1, 2, 3, 4]
    assert stored(bench) == [b"0", b"1", b"2", b"3", b"4"]


def test_one_wrong_expected_offset_aborts_all_of_it(bench: StreamBench) -> None:
    bench.publish(b"0")
    bench.publish(b"before", topic=OUT)
    member = bench.consume()
    transaction = bench.begin()
    bench.stage(transaction, 0, b"a")
    bench.stage(transaction, 1, b"b")
    bench.stage(transaction, 0, b"c", expected_offset=1)
    outcome = bench.commit(transaction, [OUT, TOPIC], [(member, member.messages[0])])

    assert isinstance(outcome.result, OffsetMismatchError)
    error = outcome.result
    assert (error.topic, error.expected_offset, error.next_offset) == (OUT, 1, 2)
    assert (stored(bench), stored(bench, TOPIC), bench.lag()) == ([b"before"], [b"0"], 1)
    assert bench.publish(b"next", topic=OUT) == [1]


def test_a_message_known_by_its_id_takes_no_offset_from_those_behind_it(
    bench: StreamBench,
) -> None:
    bench.publish(b"0", topic=OUT, ids=["known"])
    transaction = bench.begin()
    bench.stage(transaction, 0, b"0", b"1", ids=["known", "new"])
    bench.stage(transaction, 0, b"1 again", ids=["new"])
    bench.stage(transaction, 0, b"2", expected_offset=2)

    assert bench.commit(transaction, [OUT]).result == [0, 1, 2]
    assert stored(bench) == [b"0", b"1", b"2"]


def test_messages_on_their_way_to_the_journal_count(bench: StreamBench) -> None:
    first = commit(bench, "1", (b"0", 0), settle=False)
    second = commit(bench, "2", (b"lost", 0), settle=False)
    bench.settle()

    assert first.result == [0]
    assert isinstance(second.result, OffsetMismatchError)


def test_a_repeated_commit_is_answered_though_its_offset_is_taken(bench: StreamBench) -> None:
    first = commit(bench, "word", (b"0", 0), settle=False)
    again = commit(bench, "word", (b"0", 0))

    assert first.result == again.result == [0]
    assert commit(bench, "word", (b"0", 0)).result == [0]
    bench.restart("none")
    assert commit(bench, "word", (b"0", 0)).result == [0]
    assert stored(bench) == [b"0"]


def test_an_offset_whose_commit_failed_is_free_again(bench: StreamBench) -> None:
    bench.disk.fail(Fault())
    assert isinstance(commit(bench, "1", (b"0", 0)).result, StorageFailedError)
    bench.advance(2_000)

    assert commit(bench, "2", (b"0", 0)).result == [0]


@pytest.mark.parametrize("keep", ["none", "all", "torn"])
def test_after_a_crash_the_commit_is_stored_at_its_offset_or_not_at_all(keep: Keep) -> None:
    for step in range(4):
        bench = StreamBench()
        bench.create(OUT)
        commit(bench, "before", (b"before", 0))
        bench.disk.crash_at(len(bench.disk.operations) + step)
        try:
            done = commit(bench, "word", (b"1", 1), (b"2", 2)).told
        except Crash:
            done = []
        bench.restart(keep)
        held = stored(bench)

        assert held in ([b"before"], [b"before", b"1", b"2"])
        assert not done or len(held) == 3
        # The client that got no answer repeats the commit; another finds the offset taken.
        assert commit(bench, "word", (b"1", 1), (b"2", 2)).result == [1, 2]
        assert isinstance(commit(bench, "other", (b"x", 1)).result, OffsetMismatchError)
        assert stored(bench) == [b"before", b"1", b"2"]
