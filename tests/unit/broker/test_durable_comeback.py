"""A consumer that lost its connection and comes back: what it has, and what got lost on the way."""

import pytest
from tests.unit.broker.streambench import TOPIC, StreamBench

from ister.base import AckSettings


def test_what_got_lost_on_the_way_is_delivered_again_at_once() -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"had", b"had too")
    first = bench.consume(consumer="c")
    [had, _] = first.take()
    bench.publish(b"lost on the way")
    first.lose()

    back = bench.consume(consumer="c", held=[had.lease])

    assert [(m.payload, m.attempt) for m in back.messages] == [(b"lost on the way", 1)]


def test_a_lease_that_is_still_held_stays_valid() -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"had")
    first = bench.consume(consumer="c")
    [had] = first.take()
    first.lose()
    back = bench.consume(consumer="c", held=[had.lease])

    assert back.messages == []
    assert back.ack(had) == []


def test_a_lease_that_is_not_held_any_more_is_refused() -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"had")
    first = bench.consume(consumer="c")
    [had] = first.take()
    first.lose()
    back = bench.consume(consumer="c", held=[])
    [again] = back.take()

    assert back.ack(had) == [had.run]
    assert back.ack(again) == []


def test_a_client_that_does_not_say_keeps_all_its_leases() -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"had")
    first = bench.consume(consumer="c")
    [had] = first.take()
    first.lose()
    back = bench.consume(consumer="c")

    assert back.messages == []
    assert back.ack(had) == []


def test_another_consumer_of_the_same_client_keeps_what_it_holds() -> None:
    bench = StreamBench()
    bench.create()
    one = bench.consume(consumer="one", type="shared", credit=1)
    other = bench.consume(consumer="other", type="shared", credit=1)
    bench.publish(b"a", b"b")
    assert [len(one.messages), len(other.messages)] == [1, 1]
    [kept] = other.take()
    one.lose()
    bench.consume(consumer="one", type="shared", held=[])

    assert other.ack(kept) == []


@pytest.mark.parametrize("restart", ["never", "before", "after", "checkpoint", "twice"])
def test_of_two_who_held_a_message_only_one_can_confirm_it(restart: str) -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"0")
    first = bench.consume(consumer="a", type="shared")
    [held] = first.take()
    if restart in ("before", "twice"):
        bench.restart("none")
    else:
        bench.advance(30_000)
        first.leave()
    second = bench.consume(consumer="b", type="shared")
    assert second.ack_confirmed(*second.take()) is None
    if restart == "checkpoint":
        bench.storage.checkpoint(lambda _: None)
        bench.settle()
    if restart not in ("never", "before"):
        bench.restart("none")
    # What its client repeats on the next connection.
    first = bench.consume(consumer="a", type="shared")

    assert first.ack(held) == [held.run]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_confirmation_whose_answer_a_restart_has_lost_can_be_repeated(checkpoint: bool) -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"0")
    first = bench.consume(consumer="a", type="shared")
    [held] = first.take()
    assert first.ack_confirmed(held) is None
    if checkpoint:
        bench.storage.checkpoint(lambda _: None)
        bench.settle()
    bench.restart("none")
    back = bench.consume(consumer="a", type="shared")

    assert back.ack(held) == []
    assert back.messages == []


def test_a_cumulative_acknowledgement_can_be_repeated_after_a_restart() -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"0", b"1", b"2")
    first = bench.consume(consumer="a")
    _, second, _ = first.take()
    assert first.ack_through(second, confirm=True) == []
    assert bench.confirm() is None
    bench.restart("none")
    back = bench.consume(consumer="a")

    assert back.ack_through(second) == []


def test_a_lease_from_before_a_restart_is_not_looked_up_in_another_topic() -> None:
    bench = StreamBench()
    bench.create("/default/a")
    bench.create("/default/b")
    first = bench.consume("/default/*", consumer="a")
    bench.publish(b"0", topic="/default/b")
    [held] = first.take()
    assert first.ack_confirmed(held) is None
    # The other topic has its place now.
    bench.broker.delete_topic("/default/a")
    bench.settle()
    bench.restart("none")
    back = bench.consume("/default/*", consumer="a")

    assert back.ack(held) == []


@pytest.mark.parametrize("type_", ["exclusive", "failover"])
def test_a_consumer_whose_place_was_taken_cannot_confirm_what_the_other_confirmed(
    type_: str,
) -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"0")
    first = bench.consume(consumer="a", type=type_)
    [held] = first.take()
    first.leave()
    second = bench.consume(consumer="b", type=type_)
    assert second.ack_confirmed(*second.take()) is None
    second.leave()
    first = bench.consume(consumer="a", type=type_)

    assert first.ack(held) == [held.run]


def test_a_change_of_the_order_does_not_let_a_late_consumer_confirm() -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"0")
    first = bench.consume(consumer="a", type="key_shared")
    [held] = first.take()
    bench.advance(30_000)
    first.leave()
    second = bench.consume(consumer="b", type="key_shared")
    [again] = second.take()
    assert second.ack_confirmed(again) is None
    bench.change("set_acks", TOPIC, "s", AckSettings(ordered=True))

    assert second.ack(held) == [held.run]
    assert second.ack(again) == []
