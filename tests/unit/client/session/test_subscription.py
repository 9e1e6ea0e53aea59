"""The receiving half: credit, the buffer, events."""

import pytest
from tests.unit.client.session.wire_end import TOPIC, Waiter, WireEnd

from ister.base.errors import ClosedError, ProtocolError, ShardMovedError
from ister.client.session import Event, Promoted, Resumed, SlowConsumer
from ister.wire import ActiveChanged, ConsumerClosed, Subscribed, error_reply
from ister.wire import SlowConsumer as SlowNotice


@pytest.fixture
def end() -> WireEnd:
    """A connected session."""
    made = WireEnd()
    made.connect()
    return made


def test_a_new_consumer_gives_a_whole_window(end: WireEnd) -> None:
    end.subscribe(count=100, size_bytes=5_000)

    assert end.credit() == [(100, 5_000)]


def test_credit_goes_back_at_half_a_window_of_messages(end: WireEnd) -> None:
    subscription = end.subscribe(count=10)
    end.credit()
    for number in range(5):
        end.deliver(subscription, [b"%d" % number])

    for _ in range(4):
        subscription.inbox.take()
    assert end.credit() == []
    subscription.inbox.take()
    [(count, _)] = end.credit()
    assert count == 5


def test_credit_goes_back_at_half_a_window_of_bytes(end: WireEnd) -> None:
    subscription = end.subscribe(count=1_000, size_bytes=10_000)
    end.credit()
    end.deliver(subscription, [bytes(4_000)])
    end.deliver(subscription, [bytes(4_000)])

    first = subscription.inbox.take()
    assert end.credit() == []
    second = subscription.inbox.take()
    assert first is not None
    assert second is not None
    assert end.credit() == [(2, first.size_bytes + second.size_bytes)]


def test_unread_messages_count_against_the_window_of_a_new_connection(end: WireEnd) -> None:
    subscription = end.subscribe(count=10)
    end.deliver(subscription, [b"0", b"1", b"2"])
    unread_bytes = sum(batch.size_bytes for batch in subscription.inbox.batches)

    end.resume()
    assert end.credit() == [(7, 1_000_000 - unread_bytes)]
    batch = subscription.inbox.take()
    assert batch is not None
    assert batch.payloads == [b"0", b"1", b"2"]


def test_credit_taken_back_while_offline_is_not_given_twice(end: WireEnd) -> None:
    subscription = end.subscribe(count=10)
    end.deliver(subscription, [b"%d" % n for n in range(10)])
    end.frames()
    end.session.disconnected("reset")
    subscription.inbox.take()

    end.connect()
    [(sequence, _)] = end.commands()
    assert end.credit() == []
    end.tell(Subscribed(active=True), sequence=sequence)
    assert end.credit() == [(10, 1_000_000)]


def test_a_broker_that_sends_more_than_it_has_credit_for_is_left(end: WireEnd) -> None:
    subscription = end.subscribe(count=3)
    end.deliver(subscription, [b"0", b"1", b"2"])

    with pytest.raises(ProtocolError):
        end.deliver(subscription, [b"3"])


def test_a_batch_wakes_everybody_who_waits(end: WireEnd) -> None:
    subscription = end.subscribe()
    waiters = [Waiter(), Waiter()]
    for waiter in waiters:
        subscription.inbox.wait(waiter)
    end.deliver(subscription, [b"x"])

    assert all(waiter.done() for waiter in waiters)
    batch = subscription.inbox.take()
    assert batch is not None
    assert batch.topic == TOPIC
    assert subscription.inbox.take() is None


def test_what_was_received_is_taken_before_the_end_is_told(end: WireEnd) -> None:
    subscription = end.subscribe()
    end.deliver(subscription, [b"x"])
    end.tell(ConsumerClosed(reason="topic was deleted"), channel=subscription.channel)

    assert subscription.inbox.take() is not None
    with pytest.raises(ClosedError) as caught:
        subscription.inbox.take()
    assert "topic was deleted" in caught.value.what


def test_consumer_that_was_closed_by_an_error_gets_that_error(end: WireEnd) -> None:
    subscription = end.subscribe()
    moved = error_reply(ShardMovedError("object", "chunks/7"))
    closed = ConsumerClosed("moved", moved.code, moved.text, moved.fields)
    end.tell(closed, channel=subscription.channel)

    with pytest.raises(ShardMovedError) as caught:
        subscription.inbox.take()
    assert caught.value.place == "chunks/7"


def test_events_are_told_in_order(end: WireEnd) -> None:
    events: list[Event] = []
    subscription = end.subscribe(events=events)
    end.tell(SlowNotice(dropped=5), channel=subscription.channel)
    end.tell(ActiveChanged(active=True), channel=subscription.channel)
    assert events == []
    end.events()

    assert events == [SlowConsumer("billing", 5), Promoted("billing")]
    assert subscription.dropped == 5


def test_drops_add_up_over_connections(end: WireEnd) -> None:
    events: list[Event] = []
    subscription = end.subscribe(events=events)
    end.tell(SlowNotice(dropped=5), channel=subscription.channel)
    end.resume()
    end.tell(SlowNotice(dropped=2), channel=subscription.channel)
    end.events()

    assert subscription.dropped == 7
    assert events == [SlowConsumer("billing", 5), Resumed("billing"), SlowConsumer("billing", 7)]


def test_a_consumer_is_not_active_while_offline(end: WireEnd) -> None:
    subscription = end.subscribe()
    assert subscription.active
    end.session.disconnected("reset")

    assert not subscription.active
