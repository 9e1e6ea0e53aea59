"""The session: handshake, requests, resuming, leaving, time limits."""

import pytest
from tests.unit.client.session.wire_end import TIMEOUT_MS, TOPIC, Waiter, WireEnd, send, welcome

from ister.base.errors import (
    BadRequestError,
    ClosedError,
    ConnectionLostError,
    GoingAwayError,
    IsterError,
    NoResponderError,
    NotConnectedError,
    RequestTimeoutError,
    SubscriptionTakenError,
    VersionError,
)
from ister.client.session import Event, Link, Resumed
from ister.codec import encode
from ister.wire import (
    CloseConsumer,
    Command,
    CreateTopic,
    Done,
    GoingAway,
    NoResponder,
    OpenProducer,
    Subscribe,
    Subscribed,
    error_reply,
    reply_frame,
)


def test_a_session_opens_with_hello_and_welcome() -> None:
    end = WireEnd()

    hello = end.dial()
    assert (hello.client_id, hello.agent) == ("client-1", "test")
    assert "none" in hello.codecs
    greeting = end.session.link
    end.tell(welcome(message_bytes_max=123))
    assert (greeting, end.session.link) == (Link.GREETING, Link.OPEN)
    assert end.session.message_bytes_max == 123


def test_every_connection_has_the_same_client_id() -> None:
    end = WireEnd()
    first = end.dial()
    end.session.disconnected("test")

    assert end.dial().client_id == first.client_id


def test_each_connection_shows_its_own_token_and_the_session_keeps_none() -> None:
    end = WireEnd()
    for token in ("first-token", "", "last-token"):
        end.session.disconnected("test")
        assert end.dial(token).token == token

    assert "last-token" not in repr(vars(end.session))
    assert end.session._hello.token == ""


def test_a_broker_of_another_version_is_refused() -> None:
    end = WireEnd()
    end.dial()

    with pytest.raises(VersionError) as caught:
        end.tell(welcome(version=2))
    assert (caught.value.versions, caught.value.versions_accepted) == ("2", "1-1")


def test_a_request_gets_its_own_reply() -> None:
    end = WireEnd()
    end.connect()
    first: list[Command | IsterError] = []
    second: list[Command | IsterError] = []
    end.session.call(CreateTopic(topic="/default/a"), first.append)
    end.session.call(CreateTopic(topic="/default/b"), second.append)
    [(one, _), (two, _)] = end.commands()

    end.tell(error_reply(BadRequestError("no")), sequence=two)
    end.tell(Done(), sequence=one)
    end.tell(Done(), sequence=one)

    assert first == [Done()]
    [error] = second
    assert isinstance(error, BadRequestError)
    assert error.reason == "no"


def test_a_request_without_an_answer_ends_with_its_time() -> None:
    end = WireEnd()
    end.connect()
    replies: list[Command | IsterError] = []
    end.session.call(CreateTopic(topic="/default/a"), replies.append)

    end.now_ms += TIMEOUT_MS - 1
    end.session.pulse()
    assert replies == []
    end.now_ms += 1
    end.session.pulse()
    assert [type(r) for r in replies] == [RequestTimeoutError]


def test_a_request_is_refused_while_there_is_no_connection() -> None:
    end = WireEnd()
    replies: list[Command | IsterError] = []

    end.session.call(CreateTopic(topic="/default/a"), replies.append)
    assert [type(r) for r in replies] == [NotConnectedError]


def test_a_lost_connection_fails_what_was_asked() -> None:
    end = WireEnd()
    end.connect()
    replies: list[Command | IsterError] = []
    answer = Waiter()
    end.session.call(CreateTopic(topic="/default/a"), replies.append)
    end.session.ask(TOPIC, answer, 5.0)

    end.session.disconnected("reset")

    assert [type(r) for r in replies] == [ConnectionLostError]
    assert isinstance(answer.error, ConnectionLostError)
    assert answer.error.reason == "reset"


def test_producers_and_subscriptions_are_opened_again_in_one_go() -> None:
    end = WireEnd()
    events: list[Event] = []
    end.connect()
    producer = end.open_producer()
    subscription = end.subscribe(events=events)

    asked = end.resume()
    end.events()

    assert [type(c) for c in asked] == [OpenProducer, Subscribe]
    assert [c.channel for c in asked if isinstance(c, OpenProducer | Subscribe)] == [
        producer.channel,
        subscription.channel,
    ]
    assert producer.opened
    assert events == [Resumed("billing")]


def test_a_subscription_that_is_refused_on_the_way_back_ends_with_the_reason() -> None:
    end = WireEnd()
    end.connect()
    subscription = end.subscribe()
    end.session.disconnected("test")
    end.connect()
    [(sequence, _)] = end.commands()

    end.tell(error_reply(SubscriptionTakenError(TOPIC, "billing", "you")), sequence=sequence)

    with pytest.raises(SubscriptionTakenError):
        subscription.inbox.take()
    assert end.session.subscriptions == {}


def test_a_producer_that_is_refused_on_the_way_back_fails_what_it_holds() -> None:
    end = WireEnd()
    end.connect()
    producer = end.open_producer()
    end.session.disconnected("test")
    sent = send(producer, b"x")
    end.connect()
    [(sequence, _)] = end.commands()

    end.tell(error_reply(BadRequestError("no")), sequence=sequence)

    assert isinstance(sent.exception(), BadRequestError)
    with pytest.raises(BadRequestError):
        send(producer, b"y")


@pytest.mark.parametrize("what", ["producer", "subscription"])
def test_a_broker_that_leaves_while_things_come_back_is_no_refusal(what: str) -> None:
    end = WireEnd()
    end.connect()
    if what == "producer":
        end.open_producer()
    else:
        end.subscribe()
    end.session.disconnected("test")
    end.connect()
    [(sequence, _)] = end.commands()
    end.tell(error_reply(GoingAwayError("shutting down")), sequence=sequence)

    assert len(end.resume()) == 1


def test_an_attachment_nobody_waits_for_is_undone() -> None:
    end = WireEnd()
    end.connect()
    subscription = end.subscribe()
    channel = subscription.channel
    end.session.receivers.detach(subscription)

    [(_, command)] = end.commands()
    assert command == CloseConsumer(channel=channel)


def test_a_late_answer_to_an_attachment_that_was_undone_gives_no_credit() -> None:
    end = WireEnd()
    end.connect()
    subscription = end.subscribe()
    end.session.receivers.detach(subscription)
    end.session.receivers.subscribe(subscription, lambda _: None)
    end.session.receivers.detach(subscription)
    end.session.receivers.subscribe(subscription, lambda _: None)
    commands = end.commands()
    for sequence, command in commands:
        reply = Subscribed(active=True) if isinstance(command, Subscribe) else Done()
        end.tell(reply, sequence=sequence)

    assert len([command for _, command in commands if isinstance(command, Subscribe)]) == 2
    assert len(end.credit()) == 1


def test_a_consumer_whose_attachment_was_not_answered_in_time_is_closed() -> None:
    end = WireEnd()
    end.connect()
    subscription = end.subscribe()
    channel = subscription.channel
    end.session.disconnected("test")
    end.connect()
    end.commands()
    end.now_ms += TIMEOUT_MS
    end.session.pulse()

    assert CloseConsumer(channel=channel) in [c for _, c in end.commands()]
    with pytest.raises(RequestTimeoutError):
        subscription.inbox.take()


def test_a_broker_that_goes_away_gets_nothing_new() -> None:
    end = WireEnd()
    end.connect()
    producer = end.open_producer()
    send(producer, b"under way")
    [(_, first, _)] = end.published()
    end.tell(GoingAway(reason="restart"))
    send(producer, b"held back")

    assert end.session.link is Link.LEAVING
    assert end.published() == []
    end.acknowledge(producer, first, 5)
    assert end.published() == []
    end.resume()
    assert [payloads for _, _, payloads in end.published()] == [[b"held back"]]


def test_the_first_answer_wins() -> None:
    end = WireEnd()
    end.connect()
    answer, other = Waiter(), Waiter()
    address = end.session.ask(TOPIC, answer, 5.0)
    end.session.ask(TOPIC, other, 5.0)

    for payload in (b"first", b"second"):
        parts = encode([payload], replies=[address], attributes=[{"a": "1"}])
        end.session.receive(b"".join(reply_frame(parts)))

    assert address[0] == 99
    assert (answer.result, answer.result.attributes) == (b"first", {"a": "1"})
    assert not other.done()


def test_no_responder_fails_the_requests_it_names() -> None:
    end = WireEnd()
    end.connect()
    first, second = Waiter(), Waiter()
    _, number = end.session.ask(TOPIC, first, 5.0)
    end.session.ask(TOPIC, second, 5.0)

    end.tell(NoResponder(requests=[number, 12345]))

    assert isinstance(first.error, NoResponderError)
    assert first.error.topic == TOPIC
    assert not second.done()


def test_a_forgotten_request_takes_no_answer() -> None:
    end = WireEnd()
    end.connect()
    answer = Waiter()
    address = end.session.ask(TOPIC, answer, 5.0)
    end.session.requests.forget(address[1])

    end.session.receive(b"".join(reply_frame(encode([b"x"], replies=[address]))))
    assert not answer.done()


def test_a_silent_broker_is_pinged_and_then_dead() -> None:
    end = WireEnd()
    end.connect()
    end.session.pulse()

    for _ in range(29):
        end.now_ms += 1_000
        assert end.session.pulse() is False
    assert end.session.outgoing()
    end.now_ms += 1_000
    assert end.session.pulse() is True


def test_closing_tells_everybody_why() -> None:
    end = WireEnd()
    end.connect()
    producer, subscription = end.open_producer(), end.subscribe()
    end.frames()
    flying = send(producer, b"x")
    end.frames()
    queued = send(producer, b"y")
    waiter = Waiter()
    subscription.inbox.wait(waiter)

    end.session.close(ClosedError("the client"))

    assert isinstance(flying.exception(), ConnectionLostError)
    assert isinstance(queued.exception(), ClosedError)
    assert waiter.done()
    with pytest.raises(ClosedError):
        subscription.inbox.take()
    replies: list[Command | IsterError] = []
    end.session.call(CreateTopic(topic="/default/a"), replies.append)
    assert [type(r) for r in replies] == [ClosedError]


def test_an_argument_of_a_wrong_type_is_refused_without_a_frame() -> None:
    end = WireEnd()
    end.connect()
    replies: list[Command | IsterError] = []

    end.session.call(CreateTopic(topic=5), replies.append)  # type: ignore[arg-type]

    assert [type(r) for r in replies] == [BadRequestError]
    assert end.frames() == []


def test_a_message_that_crosses_the_closing_can_be_taken() -> None:
    end = WireEnd()
    end.connect()
    subscription = end.subscribe()
    end.frames()
    end.session.receivers.unsubscribe(subscription, lambda _: None)
    end.deliver(subscription, [b"sent before the broker heard"])
    [(sequence, _)] = end.commands()
    end.tell(Done(), sequence=sequence)
    end.deliver(subscription, [b"of a broker that did not listen"])

    batch = subscription.inbox.take()
    assert batch is not None
    assert batch.payloads == [b"sent before the broker heard"]
    with pytest.raises(ClosedError):
        subscription.inbox.take()


def test_a_subscription_closed_while_the_connection_is_lost_stays_closed() -> None:
    end = WireEnd()
    end.connect()
    subscription = end.subscribe()
    replies: list[Command | IsterError] = []
    end.session.receivers.unsubscribe(subscription, replies.append)

    assert end.resume() == []
    assert [type(r) for r in replies] == [ConnectionLostError]
    with pytest.raises(ClosedError):
        subscription.inbox.take()
