"""Deliveries that go wrong: nacks, attempts, consumers that leave, the end, and starting over."""

from tests.unit.subscriptions.leasing import TIMEOUT_MS, deliveries_of, fail, lease

from ister.base import AckSettings
from ister.base.limits import NACK_DELAY_MS_MAX
from ister.subscriptions import (
    NEVER_MS,
    UNUSED_MS,
    Cursor,
    Expired,
    NewRun,
    OffsetSet,
    Redelivery,
)

# Nacks, backoff, attempts.


def test_a_nacked_message_is_due_after_its_delay() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(4)).number

    deliveries.nack(number, 1, 3, now_ms=100, delay_ms=500)

    assert deliveries.due(599, 10) == []
    assert deliveries.next_due_ms() == 600
    assert deliveries.due(600, 10) == [Redelivery(range(1, 3), 2)]
    assert deliveries.in_flight == 2


def test_a_delay_is_no_longer_than_the_longest() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(1)).number

    deliveries.nack(number, 0, 1, now_ms=5, delay_ms=2**63)

    assert deliveries.next_due_ms() == 5 + NACK_DELAY_MS_MAX


def test_a_nack_without_delay_follows_the_backoff_list_whose_last_step_repeats() -> None:
    deliveries = deliveries_of(max_deliveries=0, backoff_ms=(100, 1_000))
    now_ms = 0
    waits = []
    for attempt in (1, 2, 3):
        number = lease(deliveries, range(1), now_ms=now_ms, attempt=attempt).number
        deliveries.nack(number, 0, 1, now_ms=now_ms)
        due_ms = deliveries.next_due_ms()
        assert due_ms is not None
        waits.append(due_ms - now_ms)
        now_ms = due_ms
        assert deliveries.due(now_ms, 1) == [Redelivery(range(1), attempt + 1)]

    assert waits == [100, 1_000, 1_000]


def test_a_rejected_run_is_exhausted_at_its_first_attempt() -> None:
    deliveries = deliveries_of(max_deliveries=5, backoff_ms=(100,))
    number = lease(deliveries, range(4)).number

    assert deliveries.nack(number, 1, 3, now_ms=0, delay_ms=NEVER_MS) == []
    assert deliveries.exhausted(10) == [(1, 1), (2, 1)]
    assert deliveries.next_due_ms() == TIMEOUT_MS
    assert deliveries.in_flight == 2


def test_a_run_that_is_given_back_unused_is_due_at_once_and_has_not_failed() -> None:
    deliveries = deliveries_of(max_deliveries=1, backoff_ms=(100,))
    number = lease(deliveries, range(4)).number

    assert deliveries.nack(number, 1, 3, now_ms=0, delay_ms=UNUSED_MS) == []
    assert deliveries.due(0, 10) == [Redelivery(range(1, 3), 1)]
    assert deliveries.in_flight == 2


def test_a_timeout_follows_the_backoff_list() -> None:
    deliveries = deliveries_of(backoff_ms=(100,))
    lease(deliveries, range(4))
    deliveries.expire(TIMEOUT_MS)

    assert deliveries.due(TIMEOUT_MS + 99, 10) == []
    assert deliveries.due(TIMEOUT_MS + 100, 10) == [Redelivery(range(4), 2)]


def test_a_nack_of_a_lease_that_is_over_is_refused_and_burns_nothing() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(4)).number
    deliveries.expire(TIMEOUT_MS)

    assert deliveries.nack(number, 0, 4, now_ms=TIMEOUT_MS) == [(0, 4)]
    assert deliveries.cursor.failures_of(0) == 1


def test_what_is_due_is_grouped_by_attempt_lowest_offset_first() -> None:
    deliveries = deliveries_of()
    fail(deliveries, 0, times=2)
    fail(deliveries, 1, times=1)
    fail(deliveries, 2, times=2)

    assert deliveries.due(0, 10) == [Redelivery([0, 2], 3), Redelivery(range(1, 2), 2)]
    assert deliveries.due(0, 2) == [Redelivery(range(1), 3), Redelivery(range(1, 2), 2)]


def test_what_is_due_can_be_asked_for_up_to_an_offset() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(6)).number
    deliveries.nack(number, 0, 6, now_ms=0)

    assert deliveries.due(0, 10, end=0) == []
    assert deliveries.due(0, 10, end=4) == [Redelivery(range(4), 2)]
    assert deliveries.due(0, 2, end=4) == [Redelivery(range(2), 2)]
    assert deliveries.due(0, 10, end=6) == [Redelivery(range(6), 2)]


def test_due_messages_stay_due_until_they_are_leased() -> None:
    deliveries = deliveries_of()
    fail(deliveries, 0, times=1)
    assert deliveries.due(0, 10) == deliveries.due(0, 10)

    lease(deliveries, range(1), attempt=2)

    assert not deliveries.has_due(0)


def test_a_message_that_is_due_waits_for_no_time() -> None:
    deliveries = deliveries_of()
    fail(deliveries, 0, times=1)

    assert deliveries.has_due(0)
    assert deliveries.next_due_ms() is None


def test_waiting_messages_are_unsettled_though_no_longer_in_flight() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(10)).number
    deliveries.nack(number, 0, 4, now_ms=0, delay_ms=60_000)
    deliveries.ack(number, 8, 10)

    assert (deliveries.in_flight, deliveries.unsettled) == (4, 8)


def test_an_acknowledgement_by_the_journal_ends_waiting_and_leases() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(4)).number
    deliveries.nack(number, 0, 2, now_ms=0, delay_ms=500)

    deliveries.cursor.ack(0, 4)

    assert deliveries.due(500, 10) == []
    assert deliveries.expire(TIMEOUT_MS) == []
    assert deliveries.next_new(5) == [NewRun(4, 5, 1)]
    assert (deliveries.in_flight, deliveries.unsettled) == (0, 0)


# Consumers that leave.


def test_a_release_gives_everything_back_at_once_and_burns_no_attempt() -> None:
    deliveries = deliveries_of(backoff_ms=(1_000,))
    lease(deliveries, range(4))
    lease(deliveries, range(4, 6), consumer="ben")
    number = lease(deliveries, range(6, 8)).number

    assert deliveries.release("ann") == 6

    assert deliveries.due(0, 10) == [Redelivery([0, 1, 2, 3, 6, 7], 1)]
    assert deliveries.ack(number, 6, 8) == [(6, 8)]
    assert deliveries.in_flight == 2


def test_a_consumer_that_came_back_keeps_the_leases_it_still_holds() -> None:
    deliveries = deliveries_of()
    kept = lease(deliveries, range(4)).number
    lost = lease(deliveries, range(4, 6)).number

    assert deliveries.release("ann", besides={kept}) == 2

    assert deliveries.due(0, 10) == [Redelivery(range(4, 6), 1)]
    assert deliveries.ack(lost, 4, 6) == [(4, 6)]
    assert deliveries.ack(kept, 0, 4) == []
    assert (deliveries.in_flight, deliveries.release("ann")) == (0, 0)


def test_a_lost_consumer_keeps_its_leases_for_the_grace_time() -> None:
    deliveries = deliveries_of()
    lease(deliveries, range(4))
    lease(deliveries, range(4, 6), consumer="ben")

    deliveries.lost("ann", now_ms=1_000, grace_ms=5_000)

    assert deliveries.next_due_ms() == 6_000
    assert deliveries.expire(5_999) == []
    assert deliveries.expire(6_000) == [Expired("ann", 0, 4, 1)]
    assert deliveries.due(6_000, 10) == [Redelivery(range(4), 2)]


def test_the_grace_time_does_not_prolong_a_lease() -> None:
    deliveries = deliveries_of()
    lease(deliveries, range(4))

    deliveries.lost("ann", now_ms=TIMEOUT_MS - 1_000, grace_ms=5_000)

    assert deliveries.next_due_ms() == TIMEOUT_MS


def test_a_consumer_that_comes_back_in_time_has_the_full_timeout_again() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(4)).number
    deliveries.lost("ann", now_ms=1_000, grace_ms=5_000)

    deliveries.regained("ann", now_ms=5_999)

    assert deliveries.expire(5_998 + TIMEOUT_MS) == []
    assert deliveries.ack(number, 0, 4) == []


def test_coming_back_does_not_shorten_a_longer_extension() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(4)).number
    deliveries.extend(number, 1, 2, now_ms=0, extension_ms=3_600_000)

    deliveries.regained("ann", now_ms=10)

    assert deliveries.expire(10 + TIMEOUT_MS) == [Expired("ann", 0, 1, 1), Expired("ann", 2, 4, 1)]
    assert deliveries.next_due_ms() == 3_600_000


# The end of the line.


def test_a_message_is_exhausted_after_as_many_failures_as_deliveries_are_allowed() -> None:
    deliveries = deliveries_of(max_deliveries=3)

    fail(deliveries, 0, times=2)
    assert deliveries.exhausted(10) == []

    lease(deliveries, range(1), attempt=3)
    deliveries.expire(TIMEOUT_MS)
    assert deliveries.exhausted(10) == [(0, 3)]
    assert deliveries.due(10**9, 10) == []


def test_without_an_end_of_deliveries_nothing_is_exhausted() -> None:
    deliveries = deliveries_of(max_deliveries=0)

    fail(deliveries, 0, times=50)

    assert deliveries.exhausted(10) == []
    assert deliveries.due(0, 10) == [Redelivery(range(1), 51)]


def test_an_exhausted_message_is_gone_when_its_dead_letter_is_safe() -> None:
    deliveries = deliveries_of(max_deliveries=1)
    fail(deliveries, 0, times=1)
    fail(deliveries, 1, times=1)

    deliveries.skip(0, 1)
    deliveries.cursor.ack(1, 2)

    assert deliveries.exhausted(10) == []
    assert deliveries.cursor.floor == 2


def test_a_message_that_may_fail_more_often_by_other_settings_is_due_again() -> None:
    deliveries = deliveries_of(max_deliveries=1)
    fail(deliveries, 0, times=1)

    deliveries.change(AckSettings(max_deliveries=2), besides=OffsetSet())

    assert deliveries.exhausted(10) == []
    assert deliveries.due(0, 10) == [Redelivery(range(1), 2)]
    number = lease(deliveries, range(1), attempt=2).number
    deliveries.nack(number, 0, 1, now_ms=1_200)
    assert deliveries.exhausted(10) == [(0, 2)]


def test_other_settings_spare_nothing_that_is_on_its_way_to_the_dead_letters() -> None:
    deliveries = deliveries_of(max_deliveries=1)
    fail(deliveries, 0, times=1)

    deliveries.change(AckSettings(max_deliveries=2), besides=OffsetSet(0, 1))

    assert deliveries.exhausted(10) == [(0, 1)]
    assert deliveries.due(0, 10) == []


# Starting over.


def test_another_cursor_voids_every_lease() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(10)).number

    deliveries.use(Cursor(4))

    assert deliveries.ack(number, 4, 10) == [(4, 10)]
    assert deliveries.next_new(10) == [NewRun(4, 10, 1)]
    assert (deliveries.in_flight, deliveries.next_due_ms()) == (0, None)


def test_a_seek_and_a_clear_begin_a_new_epoch() -> None:
    deliveries = deliveries_of()

    deliveries.use(Cursor(4))
    deliveries.clear()

    assert deliveries.epoch == 2


def test_after_a_restart_messages_come_in_order_with_the_attempts_they_had() -> None:
    deliveries = deliveries_of(max_deliveries=2)
    fail(deliveries, 0, times=1)
    fail(deliveries, 1, times=2)
    number = lease(deliveries, range(2, 6)).number
    deliveries.ack(number, 3, 4)

    restarted = deliveries_of(Cursor.decode(deliveries.cursor.encode()), max_deliveries=2)

    assert restarted.next_new(8) == [NewRun(0, 1, 2), NewRun(2, 3, 1), NewRun(4, 8, 1)]
    assert restarted.exhausted(10) == [(1, 2)]


def test_messages_removed_by_retention_leave_their_leases() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(10)).number
    deliveries.nack(number, 0, 2, now_ms=0, delay_ms=0)

    deliveries.trim(5)

    assert deliveries.due(0, 10) == []
    assert deliveries.in_flight == 5
    # Two were given back before.
    assert deliveries.ack(number, 0, 10) == [(0, 2)]


def test_retention_that_overtakes_a_subscription_moves_it_on() -> None:
    deliveries = deliveries_of()

    deliveries.trim(100)

    assert deliveries.position == 100
    assert deliveries.next_new(101) == [NewRun(100, 101, 1)]


def test_a_delay_from_before_a_seek_does_not_come_back_with_one_after_it() -> None:
    deliveries = deliveries_of()
    deliveries.nack(lease(deliveries, range(4)).number, 0, 2, now_ms=0, delay_ms=500)
    deliveries.use(Cursor(0))

    deliveries.nack(lease(deliveries, range(4)).number, 3, 4, now_ms=0, delay_ms=500)

    assert deliveries.next_due_ms() == 500
    assert deliveries.due(500, 10) == [Redelivery(range(3, 4), 2)]
