"""Credit in pull mode, and while paused."""

import pytest
from tests.unit.client.session.wire_end import WireEnd


@pytest.fixture
def end() -> WireEnd:
    """A connected session."""
    made = WireEnd()
    made.connect()
    return made


def counts(end: WireEnd) -> list[int]:
    """Return the credit the client has given, in messages."""
    return [count for count, _ in end.credit()]


def test_a_pull_consumer_gives_no_credit_by_itself(end: WireEnd) -> None:
    end.subscribe(count=10, pull=True)

    assert sum(counts(end)) == 0


def test_a_pull_consumer_asks_for_exactly_what_is_wanted(end: WireEnd) -> None:
    sub = end.subscribe(count=10, pull=True)
    end.frames()
    sub.inbox.ask(5)
    first = counts(end)
    end.deliver(sub, [b"0", b"1"])
    sub.inbox.ask(5)
    nothing = counts(end)
    sub.inbox.take()
    sub.inbox.ask(5)

    assert first == [5]
    # Two are at hand, three are on their way.
    assert nothing == []
    # Two were taken, three are on their way.
    assert counts(end) == [2]


def test_taking_gives_no_credit_in_pull_mode(end: WireEnd) -> None:
    sub = end.subscribe(count=10, pull=True)
    sub.inbox.ask(10)
    end.frames()
    end.deliver(sub, [b"x"] * 10)
    sub.inbox.take()

    assert end.credit() == []


def test_bytes_that_were_taken_go_back_with_the_next_question(end: WireEnd) -> None:
    sub = end.subscribe(count=10, size_bytes=1_000, pull=True)
    sub.inbox.ask(1)
    end.frames()
    end.deliver(sub, [b"x"])
    batch = sub.inbox.take()
    sub.inbox.ask(1)

    assert batch is not None
    assert end.credit() == [(1, batch.size_bytes)]


def test_what_was_asked_for_and_has_not_come_is_asked_for_again(end: WireEnd) -> None:
    sub = end.subscribe(count=10, pull=True)
    sub.inbox.ask(5)
    end.deliver(sub, [b"0", b"1"])
    end.frames()
    end.resume()

    assert counts(end) == [3]


def test_what_was_asked_for_while_offline_is_asked_for_once(end: WireEnd) -> None:
    sub = end.subscribe(count=10, pull=True)
    end.frames()
    end.session.disconnected("reset")
    sub.inbox.ask(4)
    sub.inbox.ask(4)
    end.resume()

    assert counts(end) == [4]


def test_dropped_messages_are_asked_for_again_in_pull_mode(end: WireEnd) -> None:
    sub = end.subscribe(count=10, pull=True)
    sub.inbox.ask(5)
    end.deliver_leased(sub, [b"0", b"1"])
    end.resume(leases=7)

    assert counts(end) == [5]


def test_a_paused_consumer_gives_no_credit_until_it_goes_on(end: WireEnd) -> None:
    sub = end.subscribe(count=10)
    end.frames()
    sub.inbox.pause()
    end.deliver(sub, [b"x"] * 10)
    sub.inbox.take()
    while_paused = end.credit()
    sub.inbox.resume()

    assert while_paused == []
    assert counts(end) == [10]


def test_a_paused_consumer_stays_paused_over_a_reconnect(end: WireEnd) -> None:
    sub = end.subscribe(count=10)
    end.frames()
    sub.inbox.pause()
    end.resume()
    while_paused = end.credit()
    sub.inbox.resume()

    assert while_paused == []
    assert end.credit() == [(10, 1_000_000)]


def test_what_is_asked_for_while_paused_waits(end: WireEnd) -> None:
    sub = end.subscribe(count=10, pull=True)
    end.frames()
    sub.inbox.pause()
    sub.inbox.ask(3)
    while_paused = end.credit()
    sub.inbox.resume()

    assert while_paused == []
    assert counts(end) == [3]


def test_credit_goes_back_when_a_message_is_settled(end: WireEnd) -> None:
    sub = end.subscribe(count=4)
    sub.inbox.until_settled = True
    end.frames()
    end.deliver(sub, [b"x"] * 4)
    sub.inbox.take()
    taken = counts(end)
    sub.inbox.settle(1)

    assert taken == []
    assert counts(end) == [1]
