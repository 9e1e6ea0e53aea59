"""Transactions: all of it or nothing, once, and never by a zombie."""

import errno

import pytest
from tests.unit.broker.streambench import TOPIC, Member, Outcome, StreamBench

from ister.base.errors import (
    BadNameError,
    BadRequestError,
    LimitReachedError,
    StorageFailedError,
    StorageUncertainError,
    TopicNotFoundError,
    TransactionError,
    WrongKindError,
)
from ister.base.limits import (
    BATCH_IDS_MAX,
    COMMIT_REMEMBERED_MS,
    TRANSACTION_ACKS_MAX,
    TRANSACTION_BATCHES_MAX,
    TRANSACTION_IDS_MAX,
    TRANSACTION_TOPICS_MAX,
)
from ister.broker import Transaction
from ister.broker.state.commit_answers import PART_COUNT
from ister.broker.transactions import transactions as module
from ister.testing import Crash, Fault, Keep

OUT = "/default/out"
KEEPS: tuple[Keep, ...] = ("none", "all", "torn")
MORE = "/default/more"


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    for topic in (TOPIC, OUT, MORE):
        bench.create(topic)
    return bench


def stored(bench: StreamBench, topic: str = OUT) -> list[bytes]:
    return [message.payload for message in bench.stored(topic)]


def process(bench: StreamBench, member: Member, word: str = "word") -> Outcome:
    """Acknowledge what a consumer has, and publish a result for each, in one transaction."""
    transaction = bench.begin(word)
    messages = member.take()
    bench.stage(transaction, 0, *(b"result of " + m.payload for m in messages))
    return bench.commit(transaction, [OUT], [(member, m) for m in messages])


def commit_one(
    bench: StreamBench, word: str, payload: bytes = b"x", *, topic: str = OUT
) -> Outcome:
    """Publish one message in a transaction."""
    transaction = bench.begin(word)
    bench.stage(transaction, 0, payload)
    return bench.commit(transaction, [topic])


# All of it


def test_batches_and_acknowledgements_are_carried_out_together(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume()
    messages = member.take()
    transaction = bench.begin()
    bench.stage(transaction, 0, b"a", b"b")
    bench.stage(transaction, 1, b"c")
    bench.stage(transaction, 0, b"d")
    outcome = bench.commit(transaction, [OUT, MORE], [(member, messages[1])])

    assert outcome.result == [0, 0, 2]
    assert stored(bench) == [b"a", b"b", b"d"]
    assert stored(bench, MORE) == [b"c"]
    assert bench.lag() == 1
    bench.restart("none")
    assert stored(bench) == [b"a", b"b", b"d"]
    assert bench.consume().offsets == [0]


def test_consumers_see_nothing_before_the_journal_has_it(bench: StreamBench) -> None:
    reader = bench.consume(OUT)
    bench.publish(b"0")
    member = bench.consume()
    transaction = bench.begin()
    bench.stage(transaction, 0, b"a")
    outcome = bench.commit(transaction, [OUT], [(member, member.messages[0])], settle=False)
    assert (outcome.told, reader.offsets, bench.lag()) == ([], [], 1)

    bench.settle()
    assert (reader.payloads, bench.lag()) == ([b"a"], 0)


def test_a_transaction_may_acknowledge_only_or_send_only(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume()

    assert bench.commit(bench.begin("1"), [], [(member, member.messages[0])]).result == []
    assert bench.lag() == 0
    sending = bench.begin("2")
    bench.stage(sending, 0, b"a")
    assert bench.commit(sending, [OUT]).result == [0]
    assert bench.commit(bench.begin("3")).result == []


def test_an_acknowledged_message_does_not_come_again_when_its_lease_would_end(
    bench: StreamBench,
) -> None:
    bench.publish(b"0")
    member = bench.consume()
    process(bench, member)
    bench.advance(60_000)

    assert member.offsets == []
    assert bench.report().cursor.in_flight == 0


def test_a_transaction_makes_room_in_flight(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume(acks={"in_flight_max": 1})
    process(bench, member)

    assert member.offsets == [1]


def test_acknowledgements_of_several_subscriptions_are_one_transaction(bench: StreamBench) -> None:
    bench.publish(b"0")
    one, other = bench.consume(subscription="one"), bench.consume(subscription="other")
    bench.commit(bench.begin(), [], [(one, one.messages[0]), (other, other.messages[0])])

    assert bench.lag(subscription="one") == bench.lag(subscription="other") == 0


# Or nothing


def test_a_lease_that_is_over_aborts_all_of_it(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    zombie = bench.consume(type="shared", credit=2)
    other = bench.consume(type="shared")
    transaction = bench.begin()
    bench.stage(transaction, 0, b"zombie")
    messages = zombie.take()
    bench.advance(30_000)
    acked = [(zombie, message) for message in messages]
    outcome = bench.commit(transaction, [OUT], acked)

    assert isinstance(outcome.result, TransactionError)
    assert stored(bench) == []
    assert bench.lag() == 2
    assert other.messages


def test_a_message_that_somebody_else_has_acknowledged_aborts_a_zombie(
    bench: StreamBench,
) -> None:
    bench.publish(b"0")
    zombie = bench.consume(type="shared", credit=1)
    (message,) = zombie.take()
    bench.advance(30_000)
    other = bench.consume(type="shared")
    other.ack(*other.messages)
    assert bench.lag() == 0
    transaction = bench.begin()
    bench.stage(transaction, 0, b"zombie")

    outcome = bench.commit(transaction, [OUT], [(zombie, message)])
    assert isinstance(outcome.result, TransactionError)
    assert stored(bench) == []


def test_one_lost_lease_among_many_aborts_all_of_it(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", b"2")
    member = bench.consume()
    messages = member.take()
    member.ack(messages[1])
    outcome = bench.commit(bench.begin(), [], [(member, message) for message in messages])

    assert isinstance(outcome.result, TransactionError)
    assert bench.lag() == 2


@pytest.mark.parametrize(
    ("topic", "error"),
    [
        ("/default/none", TopicNotFoundError),
        ("/default/live", WrongKindError),
        ("/default/parts", BadRequestError),
    ],
)
def test_a_topic_that_cannot_be_sent_to_aborts_all_of_it(
    bench: StreamBench, topic: str, error: type[Exception]
) -> None:
    bench.broker.create_topic("/default/live")
    bench.create("/default/parts", partitions=2)
    transaction = bench.begin()
    bench.stage(transaction, 0, b"a")
    bench.stage(transaction, 1, b"b")

    assert isinstance(bench.commit(transaction, [OUT, topic]).result, error)
    assert stored(bench) == []


def test_a_batch_for_a_topic_that_is_not_named_aborts_all_of_it(bench: StreamBench) -> None:
    transaction = bench.begin()
    bench.stage(transaction, 0, b"a")
    bench.stage(transaction, 1, b"b")

    assert isinstance(bench.commit(transaction, [OUT]).result, BadRequestError)
    assert stored(bench) == []


def test_a_transaction_needs_a_word(bench: StreamBench) -> None:
    assert isinstance(bench.commit(bench.begin("")).result, BadRequestError)


def test_the_word_of_a_transaction_has_a_limit(bench: StreamBench) -> None:
    assert bench.commit(bench.begin("x" * 128), [OUT]).result == []
    with pytest.raises(BadNameError):
        bench.begin("x" * 129)
    with pytest.raises(BadNameError):
        bench.begin("ä" * 65)


def test_a_transaction_holds_so_much_and_no_more(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRANSACTION_BYTES_MAX", 1_000)
    transaction = bench.begin()
    bench.stage(transaction, 0, b"x" * 500)

    with pytest.raises(LimitReachedError):
        bench.stage(transaction, 0, b"x" * 500)
    full = Transaction("full", batches=[(0, transaction.batches[0][1])] * TRANSACTION_BATCHES_MAX)
    with pytest.raises(LimitReachedError):
        bench.stage(full, 0, b"x")


def test_a_transaction_has_so_many_messages_with_ids(bench: StreamBench) -> None:
    transaction = bench.begin()
    for part in range(2):
        ids = [f"{part}-{n}" for n in range(TRANSACTION_IDS_MAX // 2)]
        bench.stage(transaction, 0, *[b""] * len(ids), ids=ids)
    bench.stage(transaction, 0, b"without")

    with pytest.raises(LimitReachedError):
        bench.stage(transaction, 0, b"one more", ids=["one more"])


def test_messages_without_ids_do_not_count_as_ids_of_a_transaction(bench: StreamBench) -> None:
    transaction = bench.begin()
    bench.stage(transaction, 0, *[b""] * BATCH_IDS_MAX, ids=["one", *[None] * (BATCH_IDS_MAX - 1)])

    # But each of them is looked at.
    with pytest.raises(LimitReachedError):
        bench.stage(transaction, 0, b"", ids=["two"])


def test_a_commit_names_so_many_topics_and_runs(bench: StreamBench) -> None:
    bench.publish(*[b""] * (2 * TRANSACTION_ACKS_MAX + 1))
    member = bench.consume()
    messages = member.take()
    bench.stage(transaction := bench.begin("too many topics"), 0, b"a")
    too_many = [(member, m) for m in messages[::2]]
    refused = [
        bench.commit(transaction, [OUT] * (TRANSACTION_TOPICS_MAX + 1)).error,
        bench.commit(bench.begin("too many runs"), [], too_many).error,
    ]
    limits = [error.limit for error in refused if isinstance(error, LimitReachedError)]
    assert limits == ["transaction_topics_max", "transaction_acks_max"]
    assert stored(bench) == []

    bench.stage(transaction := bench.begin("as many"), 0, b"a")
    topics = [OUT] * TRANSACTION_TOPICS_MAX
    some = [(member, m) for m in messages[1::2]]
    assert len(some) == TRANSACTION_ACKS_MAX
    assert bench.commit(transaction, topics, some).result == [0]
    assert stored(bench) == [b"a"]


# Once


def test_a_commit_repeated_under_the_same_word_is_answered_alike(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume()
    message = member.messages[0]
    for _ in range(2):
        transaction = bench.begin()
        bench.stage(transaction, 0, b"a")
        assert bench.commit(transaction, [OUT], [(member, message)]).result == [0]
    bench.restart("none")
    transaction = bench.begin()
    bench.stage(transaction, 0, b"a")

    # Its lease is long void, and its topic is gone.
    bench.broker.delete_topic(MORE)
    bench.settle()
    again = bench.consume()
    assert bench.commit(transaction, [OUT, MORE], [(again, message)]).result == [0]
    assert stored(bench) == [b"a"]


def test_a_commit_repeated_while_the_first_is_on_its_way_is_carried_out_once(
    bench: StreamBench,
) -> None:
    bench.publish(b"0")
    member = bench.consume()
    outcomes = []
    for _ in range(3):
        transaction = bench.begin()
        bench.stage(transaction, 0, b"a")
        acked = [(member, member.messages[0])]
        outcomes.append(bench.commit(transaction, [OUT], acked, settle=False))
    bench.settle()

    assert [outcome.result for outcome in outcomes] == [[0], [0], [0]]
    assert stored(bench) == [b"a"]


def test_a_commit_is_recognised_after_very_many_of_other_clients(bench: StreamBench) -> None:
    transaction = bench.begin("first")
    bench.stage(transaction, 0, b"a")
    bench.commit(transaction, [OUT])
    commits = bench.storage.state.commits
    for number in range(10_001):
        time_ms = commits.stamp(bench.clock.monotonic_ms())
        commits.add("busy", f"{number}", time_ms, [0], {})
    again = bench.begin("first")
    bench.stage(again, 0, b"a")

    assert bench.commit(again, [OUT]).result == [0]
    assert stored(bench) == [b"a"]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("step_ms", [-24 * 3_600_000, 24 * 3_600_000])
def test_a_commit_is_recognised_after_the_wall_clock_was_set(
    bench: StreamBench, step_ms: int, *, restarted: bool
) -> None:
    commit_one(bench, "first", b"a")
    bench.clock.set_wall(step_ms)
    if restarted:
        bench.restart("none")
    for number in range(PART_COUNT):
        commit_one(bench, f"other-{number}", topic=MORE)

    assert commit_one(bench, "first", b"a").result == [0]
    assert stored(bench) == [b"a"]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_commit_is_forgotten_in_time_though_the_wall_clock_was_set_back(
    bench: StreamBench, *, restarted: bool
) -> None:
    commit_one(bench, "first")
    bench.clock.set_wall(-24 * 3_600_000)
    if restarted:
        bench.restart("none")
        commit_one(bench, "after the restart")
    bench.advance(COMMIT_REMEMBERED_MS + 1)
    for number in range(PART_COUNT):
        commit_one(bench, f"other-{number}")

    assert "first" not in bench.storage.state.commits


def test_words_are_remembered_by_a_checkpoint(bench: StreamBench) -> None:
    transaction = bench.begin()
    bench.stage(transaction, 0, b"a")
    bench.commit(transaction, [OUT])
    bench.storage.checkpoint(lambda _: None)
    bench.settle()
    bench.restart("none")
    transaction = bench.begin()
    bench.stage(transaction, 0, b"a")

    assert bench.commit(transaction, [OUT]).result == [0]
    assert stored(bench) == [b"a"]


def test_two_transactions_cannot_acknowledge_the_same_message(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume()
    outcomes = []
    for word in ("one", "other"):
        transaction = bench.begin(word)
        bench.stage(transaction, 0, word.encode())
        acked = [(member, member.messages[0])]
        outcomes.append(bench.commit(transaction, [OUT], acked, settle=False))
    bench.settle()

    assert outcomes[0].result == [0]
    assert isinstance(outcomes[1].result, TransactionError)
    assert stored(bench) == [b"one"]


# When the disk fails


@pytest.mark.parametrize("action", ["write", "sync"])
def test_of_a_transaction_that_the_disk_did_not_take_nothing_is_seen(
    bench: StreamBench, action: str
) -> None:
    bench.publish(b"0")
    member = bench.consume()
    reader = bench.consume(OUT)
    (message,) = member.take()
    bench.disk.fail(Fault(errno.EIO, actions=(action,)))  # type: ignore[arg-type]
    transaction = bench.begin()
    bench.stage(transaction, 0, b"a")
    outcome = bench.commit(transaction, [OUT], [(member, message)])
    assert isinstance(outcome.result, StorageFailedError)
    assert (reader.offsets, bench.lag()) == ([], 1)

    # The lease still holds: the same transaction can be tried again.
    bench.advance(1_000)
    transaction = bench.begin()
    bench.stage(transaction, 0, b"a")
    assert bench.commit(transaction, [OUT], [(member, message)]).result == [0]
    assert (reader.payloads, bench.lag()) == ([b"a"], 0)
    bench.restart("none")
    assert stored(bench) == [b"a"]
    assert bench.consume().offsets == []


def test_a_transaction_is_refused_while_storage_fails(bench: StreamBench) -> None:
    bench.disk.fail(Fault(lasting=True))
    bench.send([b"0"])
    transaction = bench.begin()
    bench.stage(transaction, 0, b"a")

    assert isinstance(bench.commit(transaction, [OUT]).result, StorageFailedError)


@pytest.mark.parametrize("keep", ["none", "all"])
def test_an_uncertain_transaction_can_be_repeated_and_happens_once(
    bench: StreamBench, keep: Keep
) -> None:
    def commit() -> object:
        transaction = bench.begin("word")
        bench.stage(transaction, 0, b"result")
        return bench.commit(transaction, [OUT], [(member, message)]).result

    bench.publish(b"0")
    member = bench.consume()
    (message,) = member.take()
    bench.disk.fail(Fault(errno.EIO, actions=("sync", "truncate"), lasting=True))
    assert isinstance(commit(), StorageUncertainError)
    # The lease ends while nobody knows: that it is over must not pass for an answer.
    bench.advance(60_000)
    assert isinstance(commit(), StorageFailedError)
    bench.restart(keep)
    if keep == "none":
        member = bench.consume()
        (message,) = member.take()

    assert commit() == [0]
    assert (stored(bench), bench.lag()) == ([b"result"], 0)


def test_a_crash_leaves_all_of_a_transaction_or_nothing() -> None:
    """Stops at every change of the disk, in the middle of a run of transactions."""

    def made() -> StreamBench:
        bench = StreamBench()
        for topic in (TOPIC, OUT, MORE):
            bench.create(topic)
        bench.publish(*(b"%d" % n for n in range(4)))
        return bench

    def work(bench: StreamBench) -> list[int]:
        member = bench.consume(credit=0)
        done = []
        for number in range(4):
            member.grant(1)
            (message,) = member.take()
            transaction = bench.begin(str(number))
            bench.stage(transaction, 0, message.payload)
            bench.stage(transaction, 1, message.payload)
            bench.commit(transaction, [OUT, MORE], [(member, message)])
            done.append(number)
        return done

    bench = made()
    start = len(bench.disk.operations)
    assert work(bench) == [0, 1, 2, 3]
    end = len(bench.disk.operations)
    assert end - start >= 8
    for number in range(start, end):
        for keep in KEEPS:
            bench = made()
            bench.disk.crash_at(number)
            with pytest.raises(Crash):
                work(bench)
            bench.restart(keep)
            out, more = stored(bench, OUT), stored(bench, MORE)
            member = bench.consume()

            assert out == more
            # What was not sent on is still there to be worked on, and nothing else.
            assert out + member.payloads == [b"0", b"1", b"2", b"3"]


# Message ids


def test_a_message_that_was_sent_before_is_left_out_and_its_offset_told(
    bench: StreamBench,
) -> None:
    bench.publish(b"0", b"1", topic=OUT, ids=["a", "b"])
    transaction = bench.begin()
    bench.stage(transaction, 0, b"new", b"1 again", b"newer", ids=["c", "b", None])
    bench.stage(transaction, 0, b"0 again", ids=["a"])
    bench.stage(transaction, 0, b"newest")

    assert bench.commit(transaction, [OUT]).result == [2, 0, 4]
    assert transaction.each == {0: [2, ~1, 3], 1: [~0]}
    assert stored(bench) == [b"0", b"1", b"new", b"newer", b"newest"]


def test_a_message_that_stands_twice_in_a_transaction_is_stored_once(bench: StreamBench) -> None:
    transaction = bench.begin()
    bench.stage(transaction, 0, b"0", b"again", ids=["a", "a"])
    bench.stage(transaction, 0, b"and again", ids=["a"])
    assert bench.commit(transaction, [OUT]).result == [0, 0]

    assert transaction.each == {0: [0, ~0], 1: [~0]}
    assert stored(bench) == [b"0"]


def test_a_producer_may_repeat_what_a_transaction_has_sent(bench: StreamBench) -> None:
    transaction = bench.begin()
    bench.stage(transaction, 0, b"0", ids=["a"])
    bench.commit(transaction, [OUT], settle=False)

    assert bench.publish(b"again", topic=OUT, ids=["a"]) == [~0]
    assert stored(bench) == [b"0"]


@pytest.mark.parametrize("restart", [False, True])
def test_a_repeated_commit_tells_which_messages_were_known(
    bench: StreamBench, restart: bool
) -> None:
    bench.publish(b"0", topic=OUT, ids=["a"])
    for attempt in range(2):
        transaction = bench.begin()
        bench.stage(transaction, 0, b"0", b"1", ids=["a", "b"])
        assert bench.commit(transaction, [OUT]).result == [0]
        assert transaction.each == {0: [~0, 1]}
        if restart and not attempt:
            bench.restart("none")

    assert stored(bench) == [b"0", b"1"]


def test_two_who_commit_at_once_are_told_the_same(bench: StreamBench) -> None:
    bench.publish(b"0", topic=OUT, ids=["a"])
    both = [bench.begin(), bench.begin()]
    outcomes = []
    for transaction in both:
        bench.stage(transaction, 0, b"0", ids=["a"])
        outcomes.append(bench.commit(transaction, [OUT], settle=False))
    bench.settle()

    assert [outcome.result for outcome in outcomes] == [[0], [0]]
    assert [transaction.each for transaction in both] == [{0: [~0]}] * 2


def test_ids_of_a_transaction_that_failed_are_not_known(bench: StreamBench) -> None:
    bench.disk.fail(Fault())
    transaction = bench.begin()
    bench.stage(transaction, 0, b"0", ids=["a"])
    assert isinstance(bench.commit(transaction, [OUT]).error, StorageFailedError)
    bench.advance(5_000)

    assert bench.publish(b"0", topic=OUT, ids=["a"]) == [0]


def test_without_a_window_ids_of_a_transaction_mean_nothing(bench: StreamBench) -> None:
    bench.create("/default/any", dedup_window_ms=0)
    for word in ("one", "two"):
        transaction = bench.begin(word)
        bench.stage(transaction, 0, b"0", ids=["a"])
        bench.commit(transaction, ["/default/any"])

    assert stored(bench, "/default/any") == [b"0", b"0"]
