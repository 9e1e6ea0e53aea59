"""Messages in a commit are reserved for it until the journal has stored or refused the commit."""

import pytest
from tests.unit.broker.streambench import TOPIC, StreamBench

from ister.base import AckSettings
from ister.base.errors import StorageFailedError, TransactionError
from ister.broker.durable.holders import COUNT_MIN
from ister.testing import Fault

OUT = "/default/out"


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create()
    bench.create(OUT)
    return bench


def stored(bench: StreamBench) -> list[bytes]:
    return [message.payload for message in bench.stored(OUT)]


@pytest.mark.parametrize("type_", ["exclusive", "failover", "shared", "key_shared"])
@pytest.mark.parametrize("how", ["leaves", "is lost", "is late", "nacks"])
def test_a_message_in_a_commit_is_not_delivered_whatever_its_consumer_does(
    bench: StreamBench, type_: str, how: str
) -> None:
    first = bench.consume(type=type_, credit=1)
    bench.publish(b"0", b"1")
    (message,) = first.take()
    transaction = bench.begin("first")
    bench.stage(transaction, 0, b"first")
    bench.writing.holding = True
    outcome = bench.commit(transaction, [OUT], [(first, message)])
    if how == "leaves":
        first.leave()
    elif how == "is lost":
        first.lose()
    elif how == "is late":
        bench.advance(60_000)
        first.leave()
    else:
        assert first.nack(message, delay_ms=0) == [message.run]
        first.leave()
    bench.advance(60_000)
    second = bench.consume(type=type_)

    assert second.take_offsets() == [1]
    bench.writing.release()
    bench.settle()
    assert outcome.result == [0]
    assert stored(bench) == [b"first"]
    assert bench.lag() == 1
    assert second.take_offsets() == []


def test_a_message_in_a_commit_cannot_be_acknowledged_otherwise(bench: StreamBench) -> None:
    member = bench.consume()
    bench.publish(b"0", b"1", b"2")
    messages = member.take()
    bench.writing.holding = True
    outcome = bench.commit(bench.begin(), [], [(member, messages[1])])

    assert member.ack(messages[1]) == [messages[1].run]
    assert member.ack_through(messages[2]) == []
    assert bench.lag() == 1
    bench.disk.fail(Fault())
    bench.writing.release()
    bench.advance(5_000)
    assert isinstance(outcome.result, StorageFailedError)
    assert member.ack(messages[1]) == []
    assert bench.lag() == 0


def test_a_lease_can_be_extended_while_some_of_its_messages_are_in_a_commit(
    bench: StreamBench,
) -> None:
    member = bench.consume(type="shared")
    bench.publish(b"0", b"1", b"2")
    messages = member.take()
    bench.writing.holding = True
    bench.commit(bench.begin(), [], [(member, messages[1])])

    assert member.extend(*messages, extension_ms=60_000) == []
    assert bench.report().cursor.in_flight == 3


@pytest.mark.parametrize("is_there", [True, False])
def test_messages_of_a_failed_commit_are_redelivered_to_others_if_its_consumer_has_left(
    bench: StreamBench, is_there: bool
) -> None:
    first = bench.consume(type="shared", credit=1)
    second = bench.consume(type="shared", credit=0)
    bench.publish(b"0")
    (message,) = first.take()
    bench.writing.holding = True
    bench.commit(bench.begin(), [], [(first, message)])
    second.grant(1)
    if not is_there:
        first.leave()
    bench.disk.fail(Fault())
    bench.writing.release()
    bench.settle()

    assert second.take_offsets() == ([] if is_there else [0])
    bench.advance(29_999)
    assert second.take_offsets() == []
    bench.advance(1)
    assert second.take_offsets() == ([0] if is_there else [])


def test_a_message_cannot_be_acknowledged_twice_in_one_transaction(bench: StreamBench) -> None:
    member = bench.consume()
    bench.publish(b"0", b"1")
    messages = member.take()
    outcome = bench.commit(bench.begin(), [], [(member, messages[0]), (member, messages[0])])

    assert isinstance(outcome.result, TransactionError)
    assert bench.lag() == 2
    assert member.ack(*messages) == []


def test_a_message_that_is_being_committed_does_not_become_a_dead_letter(
    bench: StreamBench,
) -> None:
    member = bench.consume(acks={"max_deliveries": 1})
    bench.publish(b"0")
    (message,) = member.take()
    outcome = bench.commit(bench.begin(), [], [(member, message)], settle=False)
    assert member.membership.nack([(*message.run, 0)], -1) == [message.run]
    bench.settle()
    bench.advance(100)

    assert outcome.result == []
    assert bench.report().cursor.dead_lettered == 0
    assert bench.lag() == 0


def test_a_dead_message_whose_transaction_failed_becomes_a_dead_letter(bench: StreamBench) -> None:
    member = bench.consume(acks={"max_deliveries": 1})
    bench.publish(b"0")
    (message,) = member.take()
    bench.disk.fail(Fault())
    outcome = bench.commit(bench.begin(), [], [(member, message)])
    assert member.nack(message) == []
    bench.advance(10_000)

    assert isinstance(outcome.result, StorageFailedError)
    assert bench.report().cursor.dead_lettered == 1
    assert bench.lag() == 0


@pytest.mark.parametrize("fails", [False, True])
def test_changed_settings_leave_a_message_in_its_commit(bench: StreamBench, fails: bool) -> None:
    member = bench.consume(type="key_shared")
    bench.publish(b"0")
    (message,) = member.take()
    transaction = bench.begin()
    bench.stage(transaction, 0, b"first")
    if fails:
        bench.disk.fail(Fault())
    outcome = bench.commit(transaction, [OUT], [(member, message)], settle=False)
    # Leases are void.
    bench.broker.durables.set_acks(TOPIC, "s", AckSettings(ordered=True), lambda _: None)
    member.membership.consumer.grant(1, 1 << 20)

    assert member.take() == []
    bench.advance(5_000)
    assert isinstance(outcome.result, StorageFailedError if fails else list)
    assert stored(bench) == ([] if fails else [b"first"])
    # The settings were not stored either, before anything was handed out by them.
    assert member.take_offsets() == ([0] if fails else [])


def test_a_seek_during_a_commit_brings_its_messages_back(
    bench: StreamBench,
) -> None:
    bench.publish(b"0")
    member = bench.consume()
    (message,) = member.take()
    transaction = bench.begin()
    bench.stage(transaction, 0, b"a")
    bench.commit(transaction, [OUT], [(member, message)], settle=False)
    bench.seek("earliest")

    assert member.take_offsets() == [0]
    assert bench.lag() == 1
    bench.restart("none")
    assert bench.consume().offsets == [0]
    assert stored(bench) == [b"a"]


def test_a_consumer_that_leaves_gives_back_what_a_failed_commit_gave_back_to_it() -> None:
    bench = StreamBench()
    names = [f"/default/t.{number}" for number in range(COUNT_MIN + 2)]
    for name in names:
        bench.create(name)
        bench.publish(b"x", topic=name)
    first = bench.consume("/default/t.*", type="shared", credit=1)
    second = bench.consume("/default/t.*", type="shared", credit=0)
    bench.writing.holding = True
    outcome = bench.commit(bench.begin(), [], [(first, first.take()[0])])
    # With so many leases, topics that the consumer has none of are forgotten.
    first.grant(len(names))
    bench.disk.fail(Fault())
    bench.writing.release()
    bench.advance(2_000)
    assert isinstance(outcome.result, StorageFailedError)

    first.leave()
    second.grant(len(names))

    assert sorted(message.topic for message in second.messages) == sorted(names)
    assert {message.attempt for message in second.messages} == {1}
