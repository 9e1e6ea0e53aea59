"""What a consumer that shares messages gives back when the application does not get to it."""

import pytest
from tests.unit.client.session.wire_end import Waiter, WireEnd

from ister.client.session.consuming.sharing_window import PATIENCE_MS
from ister.client.session.consuming.subscription import SubscriptionChannel
from ister.wire import Done, NackMessages

WINDOW = 8


@pytest.fixture
def end() -> WireEnd:
    """A connected session."""
    made = WireEnd()
    made.connect()
    return made


@pytest.fixture
def sub(end: WireEnd) -> SubscriptionChannel:
    """A consumer whose window has grown, with the credit for all of it at the broker."""
    made = end.subscribe(count=None, type="shared")
    lease = 1
    while made.inbox.credit_count < WINDOW:
        count = made.inbox.credit_count
        end.deliver_leased(made, [b"x"] * count, lease=lease)
        made.inbox.take()
        made.inbox.wait(Waiter())
        lease += 1
    made.inbox.wake()
    end.frames()
    return made


def given_back(end: WireEnd) -> list[tuple[int, NackMessages]]:
    """Return what the client gives back, with the numbers of the calls."""
    return [(number, one) for number, one in end.commands() if isinstance(one, NackMessages)]


@pytest.mark.parametrize(("waited_ms", "count"), [(PATIENCE_MS, 0), (PATIENCE_MS + 1, 1)])
def test_a_message_is_given_back_when_it_has_waited_for_too_long(
    end: WireEnd, sub: SubscriptionChannel, waited_ms: int, count: int
) -> None:
    end.deliver_leased(sub, [b"x"] * 3, lease=77, base_offset=100)
    end.now_ms += waited_ms
    end.session.receivers.give_back(end.now_ms)

    runs = [one.runs for _, one in given_back(end)]
    assert runs == [[(77, 100, 103, 0)]] * count


def test_what_came_later_goes_along(end: WireEnd, sub: SubscriptionChannel) -> None:
    end.deliver_leased(sub, [b"x"] * 3, lease=77, base_offset=100)
    end.now_ms += PATIENCE_MS + 1
    end.deliver_leased(sub, [b"x"] * 2, lease=78, base_offset=103)
    end.session.receivers.give_back(end.now_ms)

    [(_, nack)] = given_back(end)
    assert sorted(nack.runs) == [(77, 100, 103, 0), (78, 103, 105, 0)]
    assert nack.unused is True


def test_live_messages_stay(end: WireEnd, sub: SubscriptionChannel) -> None:
    end.deliver_leased(sub, [b"x"] * 2, lease=77)
    end.deliver(sub, [b"live"])
    end.deliver_leased(sub, [b"x"] * 2, lease=78)
    end.now_ms += PATIENCE_MS + 1
    end.session.receivers.give_back(end.now_ms)

    [(_, nack)] = given_back(end)
    assert [run[0] for run in nack.runs] == [78]
    assert [batch.count for batch in sub.inbox.batches] == [2, 1]


def test_no_credit_is_given_until_the_broker_has_taken_back_what_it_had(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    end.deliver_leased(sub, [b"x"] * 3, lease=77)
    end.now_ms += PATIENCE_MS + 1
    end.session.receivers.give_back(end.now_ms)
    [(number, _)] = given_back(end)
    # On its way since before the broker heard of it.
    end.deliver_leased(sub, [b"x"], lease=78)
    sub.inbox.take()
    sub.inbox.wait(Waiter())
    before = end.credit()
    end.tell(Done(), sequence=number)

    assert before == []
    assert [count for count, _ in end.credit()] == [1]


def test_nothing_is_given_back_without_a_connection(end: WireEnd, sub: SubscriptionChannel) -> None:
    end.deliver_leased(sub, [b"x"] * 3, lease=77)
    end.session.disconnected("test")
    end.now_ms += PATIENCE_MS + 1
    end.session.receivers.give_back(end.now_ms)

    assert [batch.count for batch in sub.inbox.batches] == [3]


def test_a_connection_that_is_lost_meanwhile_begins_with_a_small_window(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    end.deliver_leased(sub, [b"x"] * 3, lease=77)
    end.now_ms += PATIENCE_MS + 1
    end.session.receivers.give_back(end.now_ms)
    end.frames()
    end.resume()

    assert [count for count, _ in end.credit()] == [1]
