"""Dead letters: messages delivered too often, and their way into a topic of their own."""

import errno

import pytest
from tests.unit.broker.streambench import TOPIC, Member, Outcome, StreamBench

from ister.base import AckSettings
from ister.base.errors import (
    BadNameError,
    IsterError,
    NamespaceNotFoundError,
    ReservedNamespaceError,
    StorageUncertainError,
)
from ister.base.limits import NACK_REASONS_MAX
from ister.broker import default_dead_letter_topic
from ister.broker.durable.poison import REFUSED_RETRY_MS
from ister.codec import Batch, Column, encode
from ister.testing import Crash, Fault, Keep
from ister.wire import BACKOFF_DELAY

LETTERS = f"{TOPIC}-s-dlq"
KEEPS: tuple[Keep, ...] = ("none", "all", "torn")


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create()
    return bench


def payloads(bench: StreamBench, topic: str = LETTERS) -> list[bytes]:
    """Return what a topic holds; nothing when it was never made."""
    if topic not in bench.broker.streams.by_name:
        return []
    return [message.payload for message in bench.stored(topic)]


def fail(member: Member, times: int) -> None:
    """Give everything back, again and again."""
    for _ in range(times):
        member.nack(*member.take(), delay_ms=0)


def test_a_message_goes_to_the_dead_letters_after_its_last_delivery(bench: StreamBench) -> None:
    bench.publish(b"bad", b"good")
    member = bench.consume(acks={"max_deliveries": 3})
    bad, good = member.take()
    member.ack(good)
    member.nack(bad, delay_ms=0)
    fail(member, 1)
    assert [m.attempt for m in member.messages] == [3]
    assert payloads(bench) == []
    fail(member, 1)

    assert member.offsets == []
    assert payloads(bench) == [b"bad"]
    assert bench.lag() == 0
    assert bench.report().cursor.dead_lettered == 1


def test_counters_of_a_subscription_outlive_a_restart(bench: StreamBench) -> None:
    bench.publish(b"bad")
    member = bench.consume(acks={"max_deliveries": 3})
    fail(member, 3)
    bench.storage.checkpoint(lambda _: None)
    bench.settle()
    bench.restart()

    cursor = bench.report().cursor
    assert (cursor.redelivered, cursor.dead_lettered) == (2, 1)


def test_a_dead_letter_tells_where_it_comes_from_and_why(bench: StreamBench) -> None:
    bench.publish(b"0", b"bad", keys=[None, "k"], attributes=[None, {"own": "yes"}], ids=["a", "b"])
    member = bench.consume(acks={"max_deliveries": 1})
    member.nack(member.take()[1])
    (letter,) = bench.stored(LETTERS)

    assert letter.payload == b"bad"
    assert letter.key == "k"
    assert letter.attributes == {
        "own": "yes",
        "x-original-topic": TOPIC,
        "x-original-subscription": "s",
        "x-original-topic-offset": "1",
        "x-original-producer": "p",
        "x-original-producer-id": "0",
        "x-original-broker-addr": "bench",
        "x-delivery-attempt": "1",
        "x-failure-reason": "not acknowledged in 1 deliveries",
        "x-poison-policy": "dead_letter",
    }


def test_a_deadline_counts_as_a_delivery_that_went_wrong(bench: StreamBench) -> None:
    bench.publish(b"slow")
    member = bench.consume(acks={"max_deliveries": 2, "ack_timeout_ms": 1_000})
    bench.advance(2_000)

    assert [m.attempt for m in member.messages] == [1, 2]
    assert payloads(bench) == [b"slow"]


def test_a_lost_consumer_counts_and_one_that_leaves_does_not(bench: StreamBench) -> None:
    bench.publish(b"0")
    for _ in range(5):
        bench.consume(acks={"max_deliveries": 1}).leave()
    assert payloads(bench) == []

    bench.consume(acks={"max_deliveries": 1}).lose()
    bench.advance(5_000)
    assert payloads(bench) == [b"0"]


def test_later_messages_are_delivered_when_keys_become_ordered_while_a_letter_is_written(
    bench: StreamBench,
) -> None:
    bench.publish(b"bad", keys=["k"])
    member = bench.consume(type="key_shared", acks={"max_deliveries": 1})
    bench.writing.holding = True
    fail(member, 1)
    told = Outcome()
    ordered = AckSettings(max_deliveries=1, ordered=True)
    bench.broker.durables.set_acks(TOPIC, "s", ordered, told)
    bench.settle()
    bench.writing.release()
    bench.settle()
    assert told.error is None
    bench.publish(b"next", keys=["k"])

    assert member.payloads == [b"next"]
    assert payloads(bench) == [b"bad"]


def test_without_a_limit_a_message_is_delivered_for_ever(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume(acks={"max_deliveries": 0})
    fail(member, 50)

    assert [m.attempt for m in member.messages] == [51]


def test_dead_letters_go_to_the_topic_that_was_named(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = bench.consume(acks={"max_deliveries": 1, "dead_letter_topic": "/default/dead"})
    fail(member, 1)

    assert payloads(bench, "/default/dead") == [b"0"]


def test_a_message_that_dies_twice_tells_of_the_last_time(bench: StreamBench) -> None:
    bench.publish(b"0")
    fail(bench.consume(acks={"max_deliveries": 1}), 1)
    fail(bench.consume(LETTERS, acks={"max_deliveries": 2}), 2)
    (letter,) = bench.stored(f"{LETTERS}-s-dlq")

    assert letter.attributes["x-original-topic"] == LETTERS
    assert letter.attributes["x-delivery-attempt"] == "2"


def test_a_dead_letter_does_not_end_with_the_message_it_was(bench: StreamBench) -> None:
    bench.publish(b"0", attributes=[{"ister-ttl-ms": "5"}])
    fail(bench.consume(acks={"max_deliveries": 1}), 1)
    bench.advance(1_000)

    assert payloads(bench) == [b"0"]


def test_the_time_of_a_message_is_that_of_its_letter(bench: StreamBench) -> None:
    head, body = encode([b"0"], timestamps_ms=[123], producer=b"p")
    bench.broker.store(bench.producer(), Batch(head + body), lambda *_: None)
    bench.settle()
    fail(bench.consume(acks={"max_deliveries": 1}), 1)
    found: list[list[Batch] | Exception] = []
    bench.topic(LETTERS).load(0, 1_000, found.append)
    bench.settle()
    assert isinstance(found[0], list)
    (batch,) = found[0]

    assert batch.columns & Column.TIMESTAMP
    assert list(batch.timestamps_ms) == [123]


def test_thousands_of_dead_letters_arrive_each_once(bench: StreamBench) -> None:
    bench.publish(*[b"%d" % n for n in range(3_000)])
    member = bench.consume(acks={"max_deliveries": 1})
    fail(member, 1)
    bench.advance(100)

    assert sorted(map(int, payloads(bench))) == list(range(3_000))
    assert bench.lag() == 0


def test_large_dead_letters_are_batches_of_a_reasonable_size(bench: StreamBench) -> None:
    for _ in range(5):
        bench.publish(b"x" * 700_000, b"y" * 700_000)
    fail(bench.consume(acks={"max_deliveries": 1}), 1)
    bench.advance(100)
    reader = bench.consume(LETTERS, "look")

    assert len(reader.offsets) == 10
    assert reader.sink.batches == 10


def kill(bench: StreamBench) -> None:
    """Have the one message of the topic die."""
    fail(bench.consume(acks={"max_deliveries": 1}), 1)
    bench.advance(1_000)


def test_a_letter_and_the_acknowledgement_of_its_original_are_one_thing() -> None:
    """Stops at every change of the disk: the message is in exactly one of the two places."""
    bench = StreamBench()
    bench.create()
    bench.publish(b"bad")
    start = len(bench.disk.operations)
    kill(bench)
    end = len(bench.disk.operations)
    seen = set()
    for number in range(start, end):
        for keep in KEEPS:
            bench = StreamBench()
            bench.create()
            bench.publish(b"bad")
            bench.disk.crash_at(number)
            with pytest.raises(Crash):
                kill(bench)
            bench.restart(keep)
            bench.advance(10)
            letters = payloads(bench)
            member = bench.consume(acks={"max_deliveries": 1})
            seen.add(bool(letters))

            assert [m.payload for m in member.messages] == ([] if letters else [b"bad"])
            fail(member, 1)
            assert payloads(bench) == [b"bad"]
            assert bench.lag() == 0
    assert seen == {True, False}


def test_a_dead_message_found_after_a_restart_is_buried_without_a_consumer(
    bench: StreamBench,
) -> None:
    bench.publish(b"0")
    bench.consume(acks={"max_deliveries": 1}).leave()
    # The failure is in the journal, the letter is not.
    durable = next(iter(bench.broker.durables))
    (partition,) = durable.partitions
    partition.cursor.fail_run(0, 1, 1)
    durable.ack_journal.mark_dirty(partition)
    assert bench.confirm() is None
    bench.restart("none")
    bench.advance(0)

    assert payloads(bench) == [b"0"]
    assert bench.lag() == 0


def test_a_dead_message_is_not_delivered_after_a_restart(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume(acks={"max_deliveries": 1})
    bench.disk.fail(Fault(errno.ENOSPC, lasting=True))
    fail(member, 1)
    assert bench.storage.committer.error is not None

    bench.disk.heal()
    bench.advance(5_000)
    assert sorted(payloads(bench)) == [b"0", b"1"]
    assert member.offsets == []


def test_while_storage_fails_a_dead_message_waits_and_is_not_delivered_again(
    bench: StreamBench,
) -> None:
    bench.publish(b"0")
    member = bench.consume(acks={"max_deliveries": 1})
    (message,) = member.take()
    bench.disk.fail(Fault(lasting=True))
    sent = bench.send([b"1"])
    assert isinstance(sent.error, StorageUncertainError)
    member.nack(message)
    bench.advance(10_000)
    assert member.offsets == []

    bench.disk.heal()
    bench.advance(3_000)
    assert payloads(bench) == [b"0"]
    assert bench.lag() == 0


def test_messages_that_die_one_after_the_other_while_storage_fails_are_all_buried(
    bench: StreamBench,
) -> None:
    member = bench.consume(acks={"max_deliveries": 1, "ack_timeout_ms": 1_000})
    bench.publish(b"0")
    bench.advance(500)
    bench.publish(b"1")
    bench.advance(450)
    bench.disk.fail(Fault(lasting=True))
    bench.send([b"2"])
    # One at the end of its time, the other when the first is about to be tried again.
    bench.advance(600)
    bench.disk.heal()
    bench.advance(5_000)

    assert sorted(payloads(bench)) == [b"0", b"1"]
    assert member.durable.record.dead_lettered == 2


def test_letters_of_many_places_do_not_keep_the_broker_busy_while_storage_fails() -> None:
    bench = StreamBench(tail_bytes=1, segment_bytes=4_096)
    bench.create()
    for _ in range(40):
        bench.publish(b"x" * 1_000)
    member = bench.consume(acks={"max_deliveries": 1})
    messages = member.take()
    bench.disk.fail(Fault(actions=["write", "sync", "create"], lasting=True))
    bench.send([b"never"])
    member.nack(messages[0], messages[20], messages[39])
    bench.advance(3_000)
    bench.disk.heal()
    bench.advance(3_000)

    assert len(payloads(bench)) == 3


def test_a_message_that_cannot_be_buried_waits_until_it_can(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume(acks={"max_deliveries": 1, "dead_letter_topic": "/default/dead"})
    bench.broker.create_topic("/default/dead")
    bad, good = member.take()
    member.nack(bad, delay_ms=0)
    bench.advance(10 * REFUSED_RETRY_MS)
    assert member.ack(good) == [good.run]
    assert member.offsets == []
    assert bench.lag() == 2
    bench.broker.delete_topic("/default/dead")
    bench.advance(REFUSED_RETRY_MS)

    assert sorted(payloads(bench, "/default/dead")) == [b"0", b"1"]
    assert bench.lag() == 0


def test_a_dead_message_found_after_a_restart_waits_as_well(bench: StreamBench) -> None:
    bench.publish(b"0", b"1", b"2")
    acks = {"max_deliveries": 1, "dead_letter_topic": "/default/dead"}
    member = bench.consume(acks=acks, credit=2)
    bench.create("/default/dead", partitions=2)
    member.nack(member.take()[1])
    assert bench.confirm() is None
    bench.restart("none")
    bench.advance(10)
    again = bench.consume()

    assert [(m.offset, m.attempt) for m in again.messages] == [(0, 1), (2, 1)]
    bench.broker.delete_topic("/default/dead")
    bench.advance(REFUSED_RETRY_MS)
    assert b"1" in payloads(bench, "/default/dead")


def test_a_dead_message_that_retention_drops_is_no_letter(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume(acks={"max_deliveries": 1})
    bench.disk.fail(Fault(lasting=True))
    fail(member, 1)
    bench.disk.heal()
    bench.advance(1_000)
    bench.broker.purge(TOPIC, 1, lambda _: None)
    bench.settle()
    bench.advance(2_000)

    assert bench.lag() == 0


@pytest.mark.parametrize("topic_exists", [True, False])
def test_a_seek_while_a_letter_is_on_its_way_brings_the_message_back(
    bench: StreamBench, *, topic_exists: bool
) -> None:
    member = bench.consume(acks={"max_deliveries": 1})
    if topic_exists:
        bench.create(LETTERS)
    bench.publish(b"0")
    (message,) = member.take()
    member.membership.nack([(*message.run, 0)], -1)
    bench.seek("earliest")

    assert [m.attempt for m in member.messages] == [1]
    assert bench.lag() == 1
    # Before the seek it was dead already, or it will not be.
    assert payloads(bench) == ([b"0"] if topic_exists else [])
    bench.restart("none")
    assert bench.consume().offsets == [0]


def test_the_name_of_a_dead_letter_topic_is_one_that_a_topic_can_have() -> None:
    assert default_dead_letter_topic("/default/a", "team:a.b@c") == "/default/a-team_a_b_c-dlq"


def test_a_message_waits_when_the_name_for_its_letter_is_too_long(bench: StreamBench) -> None:
    topic = "/default/" + "t" * 240
    bench.create(topic)
    bench.publish(b"0", topic=topic)
    member = bench.consume(topic, "subscription", acks={"max_deliveries": 1})
    fail(member, 1)
    bench.advance(REFUSED_RETRY_MS)
    assert member.offsets == []
    member.leave()

    acks = {"max_deliveries": 1, "dead_letter_topic": "/default/dead"}
    bench.consume(topic, "subscription", acks=acks)
    bench.advance(10)
    assert payloads(bench, "/default/dead") == [b"0"]


def test_a_message_on_its_way_to_the_dead_letters_is_not_delivered_under_other_settings(
    bench: StreamBench,
) -> None:
    bench.publish(b"0", b"1")
    member = bench.consume(type="key_shared", acks={"max_deliveries": 1})
    first, second = member.take()
    # The topic of the letters is there from now on.
    member.nack(first)
    bench.writing.holding = True
    member.nack(second)
    # Leases are void, and messages may fail more often.
    acks = AckSettings(max_deliveries=5, ordered=True)
    bench.broker.durables.set_acks(TOPIC, "s", acks, lambda _: None)
    bench.settle()

    assert member.take() == []
    bench.writing.release()
    bench.settle()
    assert [letter.payload for letter in bench.stored(LETTERS)] == [b"0", b"1"]
    assert bench.lag() == 0
    assert member.take() == []


def test_messages_behind_one_on_its_way_to_the_dead_letters_come_when_keys_are_kept_in_order(
    bench: StreamBench,
) -> None:
    member = bench.consume(type="key_shared", acks={"max_deliveries": 1})
    bench.publish(b"0", keys=["k"])
    bench.writing.holding = True
    member.nack(*member.take())
    settings = AckSettings(max_deliveries=1, ordered=True)
    told: list[IsterError | None] = []
    bench.broker.durables.set_acks(TOPIC, "s", settings, told.append)
    bench.writing.release()
    bench.advance(1_000)
    assert told == [None]

    bench.publish(b"1", keys=["k"])
    bench.publish(b"2", keys=["j"])

    assert member.payloads == [b"1", b"2"]
    assert payloads(bench) == [b"0"]


def test_a_dead_letter_says_why_its_message_was_given_back(bench: StreamBench) -> None:
    bench.publish(b"told", b"not told", b"told at length")
    member = bench.consume(acks={"max_deliveries": 1})
    told, not_told, long = member.take()
    for message, reason in ((told, "no such customer"), (not_told, ""), (long, "ä" * 1_000)):
        member.membership.nack([(*message.run, 0)], BACKOFF_DELAY, reason)
    bench.advance(100)

    reasons = [letter.attributes["x-failure-reason"] for letter in bench.stored(LETTERS)]
    assert reasons == ["no such customer", "not acknowledged in 1 deliveries", "ä" * 512]


def test_the_last_reason_counts_and_those_of_very_many_messages_are_forgotten(
    bench: StreamBench,
) -> None:
    bench.publish_many(NACK_REASONS_MAX + 1, each=100)
    member = bench.consume(acks={"max_deliveries": 2})
    for reason in ("first", "last"):
        for message in member.take():
            member.membership.nack([(*message.run, 0)], BACKOFF_DELAY, reason)
        bench.advance(100)
    bench.advance(10_000)

    letters = sorted(bench.stored(LETTERS), key=lambda letter: int(letter.payload))
    reasons = [letter.attributes["x-failure-reason"] for letter in letters]
    assert len(reasons) == NACK_REASONS_MAX + 1
    assert set(reasons[1:]) == {"last"}


@pytest.mark.parametrize(
    ("letters", "error"),
    [
        ("/system/letters", ReservedNamespaceError),
        ("/nowhere/letters", NamespaceNotFoundError),
        (f"{TOPIC}-part-1", BadNameError),
    ],
)
def test_dead_letters_go_only_where_their_subscriber_could_publish(
    bench: StreamBench, letters: str, error: type[IsterError]
) -> None:
    with pytest.raises(error):
        bench.consume(acks={"max_deliveries": 1, "dead_letter_topic": letters})
    bench.consume(acks={"max_deliveries": 1})
    acks = AckSettings(max_deliveries=1, dead_letter_topic=letters)

    with pytest.raises(error):
        bench.change("set_acks", TOPIC, "s", acks)
