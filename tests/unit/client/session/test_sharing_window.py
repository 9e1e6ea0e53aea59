"""How many messages a consumer that shares them with others is sent ahead."""

import pytest
from tests.unit.client.session.wire_end import Waiter, WireEnd

from ister.base.limits import CREDIT_COUNT
from ister.client.session.consuming.sharing_window import (
    FIRST,
    LONG_MS,
    QUICK_PER_MS,
    ROUND_TRIPS,
    SOON_MS,
    SharingWindow,
)

MOST = 64


def second(spent_ms: int, *, round_trip_ms: int = 0) -> int:
    """Return the change when the second message is taken so long after the first."""
    window = SharingWindow(MOST)
    window.on_taken(1, 0, round_trip_ms)
    return window.on_taken(1, spent_ms, round_trip_ms)


def grown(level: int) -> SharingWindow:
    """Return a window that has grown to `level`, at time 0."""
    window = SharingWindow(level)
    while window.level < level:
        window.on_taken(window.level, 0, 0)
    return window


def test_a_window_begins_with_one_message() -> None:
    assert SharingWindow(MOST).level == FIRST == 1


def test_the_first_half_says_nothing_about_how_long_one_takes() -> None:
    assert SharingWindow(MOST).on_taken(1, 0, 0) == 0


@pytest.mark.parametrize(("spent_ms", "change"), [(SOON_MS, 1), (SOON_MS + 1, 0), (LONG_MS, 0)])
def test_who_is_soon_through_may_have_twice_as_many(spent_ms: int, change: int) -> None:
    assert second(spent_ms) == change


def test_round_trips_to_the_broker_are_added() -> None:
    last_ms = SOON_MS + ROUND_TRIPS * 100

    assert second(last_ms, round_trip_ms=100) == 1
    assert second(last_ms + 1, round_trip_ms=100) == 0


def test_who_takes_many_in_a_millisecond_may_have_them_all() -> None:
    window = grown(10_000)
    window.most = CREDIT_COUNT
    window.on_taken(5_000, 0, 0)

    assert window.on_taken(10_000, 10_000 // QUICK_PER_MS, 0) == 20_000


def test_a_window_grows_to_the_usual_one_and_no_further() -> None:
    window = SharingWindow(CREDIT_COUNT)
    levels = []
    for _ in range(20):
        window.on_taken(window.level, 0, 0)
        levels.append(window.level)

    assert levels == [1, *(2**n for n in range(1, 17)), *[CREDIT_COUNT] * 3]


def test_less_than_half_of_a_window_changes_nothing() -> None:
    window = grown(8)
    window.most = MOST

    assert window.on_taken(3, 0, 0) == 0
    assert window.on_taken(1, 0, 0) == 8


@pytest.mark.parametrize(("spent_ms", "change"), [(LONG_MS - 1, 0), (LONG_MS, -4)])
def test_who_takes_long_may_have_half_as_many(spent_ms: int, change: int) -> None:
    window = grown(8)
    window.on_taken(8, 0, 0)

    assert window.on_taken(4, spent_ms, 0) == change


def test_a_window_of_one_stays_one() -> None:
    window = SharingWindow(MOST)
    window.on_taken(1, 0, 0)

    assert window.on_taken(1, 10 * LONG_MS, 0) == 0
    assert window.level == 1


def test_a_window_begins_again_when_the_consumer_is_attached_again() -> None:
    window = grown(MOST)
    window.on_attached()

    assert window.level == FIRST


# As part of a consumer


@pytest.fixture
def end() -> WireEnd:
    """A connected session."""
    made = WireEnd()
    made.connect()
    return made


def counts(end: WireEnd) -> list[int]:
    """Return the credit the client has given, in messages."""
    return [count for count, _ in end.credit()]


def test_a_shared_consumer_asks_for_one_message_and_then_for_more(end: WireEnd) -> None:
    sub = end.subscribe(count=None, type="shared")
    given = [counts(end)]
    for _ in range(4):
        end.deliver(sub, [b"x"] * sub.inbox.credit_count)
        sub.inbox.take()
        sub.inbox.wait(Waiter())
        given.append(counts(end))

    assert given == [[1], [1], [2], [4], [8]]


def test_the_second_message_is_asked_for_when_it_is_waited_for(end: WireEnd) -> None:
    sub = end.subscribe(count=None, type="shared")
    end.deliver(sub, [b"a job of minutes"])
    before = counts(end)
    sub.inbox.take()
    taken = counts(end)
    sub.inbox.wait(Waiter())

    assert (before, taken, counts(end)) == ([1], [], [1])


@pytest.mark.parametrize(
    ("type_", "policy"),
    [
        ("exclusive", "least_loaded"),
        ("failover", "least_loaded"),
        ("key_shared", "least_loaded"),
        ("shared", "round_robin"),
        ("shared", "random"),
    ],
)
def test_a_consumer_that_does_not_share_by_load_has_the_usual_window_at_once(
    end: WireEnd, type_: str, policy: str
) -> None:
    end.subscribe(count=None, type=type_, policy=policy)

    assert counts(end) == [CREDIT_COUNT]


def test_the_type_that_the_broker_says_decides(end: WireEnd) -> None:
    end.subscribe(count=None, type="exclusive", found_type="shared")

    assert counts(end) == [FIRST]


def test_a_window_that_was_asked_for_stays_as_it_is(end: WireEnd) -> None:
    sub = end.subscribe(count=10, type="shared")
    first = counts(end)
    end.deliver(sub, [b"x"] * 10)
    sub.inbox.take()

    assert (first, counts(end)) == ([10], [10])


def test_a_window_that_shrank_is_granted_less(end: WireEnd) -> None:
    sub = end.subscribe(count=None, type="shared")
    while sub.inbox.credit_count < 8:
        end.deliver(sub, [b"x"] * sub.inbox.credit_count)
        sub.inbox.take()
        sub.inbox.wait(Waiter())
    end.frames()
    end.deliver(sub, [b"x"] * 8)
    end.now_ms += LONG_MS
    sub.inbox.take()

    assert (counts(end), sub.inbox.credit_count) == ([4], 4)


def test_what_waits_after_a_reconnect_counts_for_the_small_window(end: WireEnd) -> None:
    sub = end.subscribe(count=None, type="shared")
    while sub.inbox.credit_count < 8:
        end.deliver(sub, [b"x"] * sub.inbox.credit_count)
        sub.inbox.take()
        sub.inbox.wait(Waiter())
    end.deliver(sub, [b"x"] * 8)
    end.frames()
    end.resume()
    before = counts(end)
    sub.inbox.take()
    sub.inbox.wait(Waiter())

    assert (before, counts(end)) == ([0], [1])
