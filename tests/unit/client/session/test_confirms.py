"""Confirmed acknowledgements and extensions: what their callers are told, and when."""

import pytest
from tests.unit.client.session.leasing import acked, lease, take
from tests.unit.client.session.wire_end import TIMEOUT_MS, TOPIC, Waiter, WireEnd

from ister.base.errors import LeaseLostError, RequestTimeoutError, StorageFailedError
from ister.base.limits import ACKS_PER_FRAME_MAX
from ister.client.session import SubscriptionChannel
from ister.wire import Opcode, error_reply


@pytest.fixture
def end() -> WireEnd:
    """A connected session."""
    made = WireEnd()
    made.connect()
    return made


@pytest.fixture
def sub(end: WireEnd) -> SubscriptionChannel:
    """A consumer."""
    made = end.subscribe()
    end.frames()
    return made


def test_a_confirmed_ack_is_done_when_the_broker_answers(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    one, waiter = lease(end, sub), Waiter()
    one.leases.confirm(one, 0, 1, waiter)
    [(opcode, sequence, runs)] = end.said()

    assert (opcode, runs) == (Opcode.ACK, [(1, 0, 1)])
    assert sequence != 0
    assert not waiter.done()
    assert one.left == 4
    acked(end, sub, sequence, [])
    assert (waiter.done(), waiter.error) == (True, None)
    assert one.left == 3


def test_confirms_of_one_turn_share_a_frame(end: WireEnd, sub: SubscriptionChannel) -> None:
    one, waiters = lease(end, sub), [Waiter() for _ in range(4)]
    for slot in (2, 0, 1, 3):
        one.leases.confirm(one, slot, slot + 1, waiters[slot])
    [(_, sequence, runs)] = end.said()
    acked(end, sub, sequence, [(1, 2, 3)])

    assert runs == [(1, 0, 4)]
    assert [type(w.error) for w in waiters] == [type(None)] * 2 + [LeaseLostError, type(None)]
    lost = waiters[2].error
    assert isinstance(lost, LeaseLostError)
    assert (lost.topic, lost.offset) == (TOPIC, 2)


def test_a_confirmed_batch_tells_the_first_offset_that_was_refused(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    end.deliver_leased(sub, [b"x"] * 4, lease=5, offsets=[3, 4, 8, 9])
    one, waiter = take(end, sub), Waiter()
    one.leases.confirm(one, 0, 4, waiter)
    [(_, sequence, runs)] = end.said()
    acked(end, sub, sequence, [(5, 9, 10), (5, 4, 5)])

    assert runs == [(5, 3, 5), (5, 8, 10)]
    assert isinstance(waiter.error, LeaseLostError)
    assert waiter.error.offset == 4


def test_a_confirm_of_more_runs_than_a_frame_takes_waits_for_all_frames(end: WireEnd) -> None:
    sub = end.subscribe(count=100_000, size_bytes=100_000_000)
    end.frames()
    count = ACKS_PER_FRAME_MAX + 1
    end.deliver_leased(sub, [b"x"] * count, offsets=range(0, 2 * count, 2))
    one, waiter = take(end, sub), Waiter()
    one.leases.confirm(one, 0, count, waiter)
    [(_, first, _), (_, second, _)] = end.said()

    acked(end, sub, second, [])
    assert not waiter.done()
    acked(end, sub, first, [])
    assert waiter.done()
    assert one.left == 0


def test_what_the_broker_could_not_store_stays_leased(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    one, waiter = lease(end, sub), Waiter()
    one.leases.confirm(one, 0, 1, waiter)
    [(_, sequence, _)] = end.said()
    error = StorageFailedError("no room")
    end.tell(error_reply(error), channel=sub.channel, sequence=sequence)

    assert isinstance(waiter.error, StorageFailedError)
    assert one.left == 4


def test_an_unanswered_confirm_is_sent_again_on_the_next_connection(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    one, waiter = lease(end, sub), Waiter()
    one.leases.confirm(one, 0, 2, waiter)
    before = end.said()
    end.resume()
    [(_, sequence, _)] = again = end.said()
    acked(end, sub, sequence, [])

    assert again == before
    assert (waiter.done(), waiter.error) == (True, None)


def test_an_unanswered_confirm_is_sent_again_to_a_broker_that_was_restarted(
    end: WireEnd, sub: SubscriptionChannel
) -> None:
    one, waiter = lease(end, sub), Waiter()
    one.leases.confirm(one, 0, 2, waiter)
    before = end.said()
    end.resume(leases=77)
    [(_, sequence, _)] = again = end.said()
    acked(end, sub, sequence, [(1, 1, 2)])

    assert again == before
    assert isinstance(waiter.error, LeaseLostError)
    assert waiter.error.offset == 1


def test_a_confirm_ends_with_its_time(end: WireEnd, sub: SubscriptionChannel) -> None:
    one, sent, unsent = lease(end, sub), Waiter(), Waiter()
    one.leases.confirm(one, 0, 1, sent)
    end.frames()
    end.session.disconnected("reset")
    one.leases.confirm(one, 1, 2, unsent)

    end.now_ms += TIMEOUT_MS - 1
    end.session.pulse()
    assert not sent.done()
    assert not unsent.done()
    end.now_ms += 1
    end.session.pulse()
    assert isinstance(sent.error, RequestTimeoutError)
    assert isinstance(unsent.error, RequestTimeoutError)


def test_an_extension_says_how_long(end: WireEnd, sub: SubscriptionChannel) -> None:
    one, kept, lost = lease(end, sub, 4, number=7, start=100), Waiter(), Waiter()
    one.leases.extend(one, 1, 60_000, kept)
    one.leases.extend(one, 3, 90_000, lost)
    [(opcode, sequence, runs)] = end.said()
    acked(end, sub, sequence, [(7, 103, 104)])

    assert (opcode, runs) == (Opcode.EXTEND, [(7, 101, 102, 60_000), (7, 103, 104, 90_000)])
    assert kept.done()
    assert kept.error is None
    assert isinstance(lost.error, LeaseLostError)
