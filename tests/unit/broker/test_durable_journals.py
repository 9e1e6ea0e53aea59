"""Durable subscriptions over two journals: a data folder and an object store."""

import pytest
from tests.unit.broker.streambench import Member, Outcome, StreamBench, saved

from ister.base import Position
from ister.base.errors import TransactionError
from ister.broker.durable.lease_numbers import SLOTS_MAX, lease_numbers, slot_of

LOCAL = "/default/a.local"
REMOTE = "/default/a.remote"
ALL = "/default/a.*"


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench(objects=True)
    bench.create(LOCAL)
    bench.create(REMOTE, durability="object")
    return bench


def confirm(bench: StreamBench) -> None:
    """Have all acknowledgements in both journals."""
    for storage in bench.broker.streams.storages:
        outcome = Outcome()
        bench.broker.durables.confirm(storage, outcome)
        bench.settle()
        assert outcome.result is None


def places(member: Member) -> list[tuple[str, int]]:
    return sorted((message.topic, message.offset) for message in member.take())


def test_a_pattern_covers_streams_of_both(bench: StreamBench) -> None:
    member = bench.consume(ALL)
    bench.publish(b"0", b"1", topic=LOCAL)
    bench.publish(b"0", b"1", topic=REMOTE)
    messages = member.take()
    assert len(member.membership.durables) == 2

    assert member.ack(*[m for m in messages if m.offset == 0]) == []
    confirm(bench)
    bench.restart("none")
    assert places(bench.consume(ALL)) == [(LOCAL, 1), (REMOTE, 1)]


def test_an_acknowledgement_hits_the_topic_it_is_for(bench: StreamBench) -> None:
    member = bench.consume(ALL)
    bench.publish(b"0", topic=REMOTE)
    bench.publish(b"0", topic=LOCAL)
    remote = next(m for m in member.messages if m.topic == REMOTE)
    local = next(m for m in member.messages if m.topic == LOCAL)
    assert remote.lease != local.lease
    member.ack(remote)

    floors = {d.storage.name: t.cursor.floor for d in bench.broker.durables for t in d.partitions}
    assert floors == {"local": 0, "object": 1}
    assert member.nack(local) == []


def test_no_two_leases_of_a_consumer_have_one_number() -> None:
    numbers = [
        number
        for journal in (0, 1)
        for slot in (0, 1, SLOTS_MAX - 1)
        for number, _ in zip(
            lease_numbers(epoch=7, journal=journal, slot=slot),
            range(100),
            strict=False,
        )
    ]

    assert len(set(numbers)) == len(numbers)
    assert max(numbers) < 2**64
    number = next(lease_numbers(epoch=7, journal=1, slot=5))
    assert slot_of(number) == (1, 5)
    assert next(lease_numbers(epoch=8, journal=0, slot=0)) > max(numbers)


def test_a_seek_moves_both_and_is_answered_once(bench: StreamBench) -> None:
    bench.publish(b"0", topic=LOCAL)
    bench.publish(b"0", topic=REMOTE)
    member = bench.consume(ALL)
    member.ack(*member.take())
    assert bench.seek("earliest", ALL) is None

    assert places(member) == [(LOCAL, 0), (REMOTE, 0)]


def test_every_change_of_a_subscription_is_answered_once(bench: StreamBench) -> None:
    bench.publish(b"0", topic=LOCAL)
    bench.publish(b"0", topic=REMOTE)
    member = bench.consume(ALL)
    assert bench.change("save_cursor", ALL, "s", "then") is None
    member.ack(*member.take())
    assert bench.seek(saved("then"), ALL) is None
    assert places(member) == [(LOCAL, 0), (REMOTE, 0)]
    assert bench.change("drop_cursor", ALL, "s", "then") is None
    assert bench.change("pause", ALL, "s", paused=True) is None
    assert bench.change("pause", ALL, "s", paused=False) is None
    assert bench.change("delete", ALL, "s") is None

    # Told by one of them, and detached from all.
    assert len(member.sink.closed) == 1
    assert len(bench.broker.durables) == 0


def test_a_seek_to_an_offset_that_one_of_them_does_not_have_is_an_error(
    bench: StreamBench,
) -> None:
    bench.publish(b"0", topic=LOCAL)
    bench.consume(ALL)

    assert bench.seek(Position(origin="offset", at=1), ALL) is not None


def test_a_stream_of_the_other_journal_that_appears_is_covered() -> None:
    bench = StreamBench(objects=True)
    bench.create(LOCAL)
    member = bench.consume(ALL)
    bench.publish(b"0", topic=LOCAL)
    (message,) = member.take()
    bench.create(REMOTE, durability="object")
    bench.publish(b"0", topic=REMOTE)

    assert places(member) == [(REMOTE, 0)]
    assert member.ack(message) == []
    assert len(member.membership.durables) == 2


def test_a_transaction_is_of_one_journal(bench: StreamBench) -> None:
    transaction = bench.begin()
    bench.stage(transaction, 0, b"a")
    bench.stage(transaction, 1, b"b")

    outcome = bench.commit(transaction, [LOCAL, REMOTE])
    assert isinstance(outcome.result, TransactionError)
    assert bench.topic(LOCAL).next_offset == 0


def test_a_transaction_in_an_object_store_is_carried_out(bench: StreamBench) -> None:
    bench.publish(b"0", topic=REMOTE)
    member = bench.consume(REMOTE)
    transaction = bench.begin()
    bench.stage(transaction, 0, b"a")
    outcome = bench.commit(transaction, [REMOTE], [(member, member.messages[0])])

    assert outcome.result == [1]
    bench.restart("none")
    assert bench.consume(REMOTE).payloads == [b"a"]


def test_dead_letters_go_to_a_topic_of_the_other_journal_before_they_are_acknowledged(
    bench: StreamBench,
) -> None:
    bench.create("/default/dead")
    acks = {"max_deliveries": 1, "dead_letter_topic": "/default/dead"}
    member = bench.consume(REMOTE, acks=acks)
    bench.publish(b"0", b"1", topic=REMOTE)
    member.nack(*member.take())

    assert [m.payload for m in bench.stored("/default/dead")] == [b"0", b"1"]
    assert bench.lag(REMOTE) == 0
    confirm(bench)
    bench.restart("none")
    assert bench.consume(REMOTE).offsets == []


@pytest.mark.parametrize("letters", ["/default/dead", "/default/dead-there"])
def test_two_dead_messages_of_one_id_are_two_letters(bench: StreamBench, letters: str) -> None:
    bench.create("/default/dead")
    bench.create("/default/dead-there", durability="object")
    acks = {"max_deliveries": 1, "dead_letter_topic": letters}
    for topic in (LOCAL, REMOTE):
        member = bench.consume(topic, acks=acks)
        bench.publish(topic.encode(), topic=topic, ids=["same"])
        member.nack(*member.take())

    assert [m.payload for m in bench.stored(letters)] == [LOCAL.encode(), REMOTE.encode()]


def test_dead_letters_stay_in_the_journal_they_come_from(bench: StreamBench) -> None:
    member = bench.consume(REMOTE, acks={"max_deliveries": 1})
    bench.publish(b"0", topic=REMOTE)
    member.nack(*member.take())

    letters = bench.topic(f"{REMOTE}-s-dlq")
    assert letters.storage.name == "object"
    assert letters.next_offset == 1


def test_an_object_store_that_is_taken_by_another_broker_refuses_everything(
    bench: StreamBench,
) -> None:
    bench.publish(b"0", topic=REMOTE)
    other = StreamBench(objects=True)
    other.store = bench.store
    other.restart()
    other.publish(b"1", topic=REMOTE, name="q")
    sent = bench.send([b"2"], topic=REMOTE)

    assert sent.error is not None
    assert [m.payload for m in other.stored(REMOTE)] == [b"0", b"1"]
