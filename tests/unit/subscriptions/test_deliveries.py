"""Deliveries: what is handed out, acknowledged and timed out, one claim at a time."""

from itertools import count

import pytest
from tests.unit.subscriptions.leasing import TIMEOUT_MS, deliveries_of, lease

from ister.base import AckSettings
from ister.base.limits import ACK_TIMEOUT_MS_MAX
from ister.subscriptions import Confirmations, Cursor, Deliveries, Expired, NewRun, Redelivery
from ister.subscriptions.deliveries import GAPS_LOOKED_AT_MAX, REFUSED_RUNS_MAX

# Handing out.


def test_new_messages_begin_at_the_floor_and_skip_what_is_acked() -> None:
    cursor = Cursor(5)
    cursor.ack(7, 9)

    assert deliveries_of(cursor).next_new(12) == [NewRun(5, 7, 1), NewRun(9, 12, 1)]


def test_asking_for_new_messages_takes_none_of_them() -> None:
    deliveries = deliveries_of()

    assert deliveries.next_new(10) == deliveries.next_new(10)
    assert deliveries.position == 0


def test_there_is_nothing_new_at_the_end() -> None:
    deliveries = deliveries_of()
    lease(deliveries, range(10))

    assert deliveries.next_new(10) == []
    assert deliveries.next_new(11) == [NewRun(10, 11, 1)]


def test_only_the_first_runs_of_new_messages_are_worked_out() -> None:
    cursor = Cursor()
    for offset in range(1, 100_000, 2):
        cursor.ack(offset, offset + 1)

    runs = deliveries_of(cursor).next_new(10**12, runs_max=3)

    assert runs == [NewRun(0, 1, 1), NewRun(2, 3, 1), NewRun(4, 5, 1)]


def test_a_lease_counts_its_messages_and_bytes_until_they_are_acked() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(10)).number
    assert (deliveries.in_flight, deliveries.in_flight_bytes) == (10, 1_000)

    deliveries.ack(number, 2, 5)
    assert (deliveries.in_flight, deliveries.in_flight_bytes) == (7, 700)

    deliveries.ack(number, 0, 10)
    assert (deliveries.in_flight, deliveries.in_flight_bytes) == (0, 0)


def test_bytes_that_do_not_come_out_even_are_all_given_back_in_the_end() -> None:
    deliveries = deliveries_of()
    number = deliveries.lease(range(3), consumer="ann", now_ms=0, size_bytes=100).number

    left = []
    for offset in (1, 0, 2):
        deliveries.ack(number, offset, offset + 1)
        left.append(deliveries.in_flight_bytes)

    assert left == [67, 34, 0]


def test_lease_numbers_rise_over_all_topics_of_a_subscription() -> None:
    numbers = count(7)
    one = Deliveries(Cursor(), AckSettings(), numbers)
    other = Deliveries(Cursor(), AckSettings(), numbers)

    given = [lease(d, range(slot, slot + 1)).number for slot in (0, 1) for d in (one, other)]

    assert given == [7, 8, 9, 10]


def test_new_messages_passed_over_are_due_at_once() -> None:
    deliveries = deliveries_of()

    lease(deliveries, [1, 3])

    assert deliveries.position == 4
    assert deliveries.due(0, 10) == [Redelivery([0, 2], 1)]


def test_two_consumers_can_be_handed_every_second_message_each() -> None:
    deliveries = deliveries_of()

    lease(deliveries, [0, 2, 4], consumer="ann")
    lease(deliveries, [1, 3, 5], consumer="ben")

    assert deliveries.in_flight == 6
    assert deliveries.due(0, 10) == []
    assert deliveries.next_new(7) == [NewRun(6, 7, 1)]


def test_a_message_cannot_be_leased_twice() -> None:
    deliveries = deliveries_of()
    lease(deliveries, range(10))

    with pytest.raises(AssertionError):
        lease(deliveries, range(9, 12))


def test_a_skipped_message_is_acked_and_never_handed_out() -> None:
    deliveries = deliveries_of()

    deliveries.skip(2, 5)
    deliveries.skip(0, 1)

    assert deliveries.next_new(7) == [NewRun(1, 2, 1), NewRun(5, 7, 1)]
    assert deliveries.cursor.take_changes() == [(0, 1), (2, 5)]


def test_a_held_message_is_neither_new_nor_due() -> None:
    deliveries = deliveries_of()

    deliveries.hold([0, 1, 2])
    assert deliveries.due(0, 10) == []
    assert deliveries.next_new(3) == []
    assert deliveries.unsettled == 3


def test_a_held_message_can_be_leased_from_where_it_is() -> None:
    deliveries = deliveries_of()
    deliveries.hold([0, 1, 2])

    number = lease(deliveries, [1]).number

    assert deliveries.ack(number, 1, 2) == []
    assert deliveries.cursor.gaps(0, 3) == [(0, 1), (2, 3)]


# Acknowledging.


def test_acks_of_a_lease_in_any_order_move_the_floor() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(6)).number

    refused = [deliveries.ack(number, o, o + 1) for o in (3, 1, 5, 0, 4, 2)]

    assert refused == [[]] * 6
    assert deliveries.cursor.floor == 6


def test_a_repeated_ack_is_not_refused() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(4)).number
    deliveries.ack(number, 0, 4)

    assert deliveries.ack(number, 0, 4) == []
    assert deliveries.refused == 0


def test_a_late_ack_is_refused_and_counted() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(4)).number
    deliveries.expire(TIMEOUT_MS)

    assert deliveries.ack(number, 0, 4) == [(0, 4)]
    assert deliveries.refused == 4
    assert deliveries.cursor.floor == 0


def test_a_late_ack_of_what_another_consumer_acked_is_refused() -> None:
    deliveries = deliveries_of()
    late = lease(deliveries, range(4)).number
    deliveries.ack(late, 0, 1)
    deliveries.expire(TIMEOUT_MS)
    again = lease(deliveries, range(1, 4), consumer="ben", now_ms=TIMEOUT_MS, attempt=2).number
    deliveries.ack(again, 1, 3)

    # The first was acknowledged under this lease.
    assert deliveries.ack(late, 0, 4) == [(1, 4)]
    assert deliveries.ack(again, 1, 3) == []


def test_a_lease_from_before_a_restart_is_refused_whatever_was_acknowledged_then() -> None:
    numbers = count(1)
    former = Deliveries(Cursor(), AckSettings(), numbers)
    late = lease(former, range(4)).number
    former.expire(TIMEOUT_MS)
    former.ack(lease(former, range(2), now_ms=TIMEOUT_MS, attempt=2).number, 0, 2)
    deliveries = Deliveries(former.cursor, AckSettings(), numbers)
    lease(deliveries, [3], attempt=2)

    assert deliveries.ack(late, 0, 4) == [(0, 4)]
    assert not deliveries.ack_through(late, 2)


def test_of_very_many_lost_leases_none_can_acknowledge_what_another_one_did() -> None:
    deliveries = deliveries_of()
    late = [lease(deliveries, [offset]).number for offset in range(3_000)]
    while deliveries.expire(TIMEOUT_MS):
        pass
    again = [
        lease(deliveries, [o], consumer="ben", now_ms=TIMEOUT_MS, attempt=2).number
        for o in range(3_000)
    ]
    assert not any(deliveries.ack(again[o], o, o + 1) for o in range(3_000))

    assert [o for o in range(3_000) if not deliveries.ack(late[o], o, o + 1)] == []
    assert not any(deliveries.ack(again[o], o, o + 1) for o in range(3_000))


def test_an_open_lease_that_is_forgotten_keeps_what_it_has() -> None:
    deliveries = Deliveries(Cursor(), AckSettings(), count(1), lost_leases_max=1)
    old = lease(deliveries, range(4)).number
    for start in (4, 5):
        deliveries.nack(lease(deliveries, [start]).number, start, start + 1, now_ms=0)
    deliveries.nack(old, 0, 1, now_ms=0)

    assert deliveries.ack(old, 0, 4) == [(0, 1)]
    assert deliveries.cursor.gaps(0, 4) == [(0, 1)]


def test_a_released_message_cannot_be_acknowledged_under_its_former_lease() -> None:
    deliveries = deliveries_of()
    late = lease(deliveries, range(4), consumer="ann").number
    deliveries.release("ann")
    again = lease(deliveries, range(4), consumer="ben").number
    assert deliveries.ack(again, 0, 4) == []

    assert deliveries.ack(late, 0, 4) == [(0, 4)]


def test_a_run_is_known_as_confirmed_only_under_its_lease() -> None:
    confirmations = Confirmations()
    confirmations.add(1, 7, 0, 4)
    confirmations.add(1, 7, 6, 8)

    assert confirmations.missing(1, [(7, 0, 4), (7, 2, 7), (8, 0, 4)]) == [(7, 4, 6), (8, 0, 4)]
    assert confirmations.missing(2, [(7, 0, 4)]) == [(7, 0, 4)]


def test_confirmed_runs_above_the_limit_are_forgotten_oldest_first() -> None:
    confirmations = Confirmations(runs_max=2)
    for start in (0, 4, 4, 8):
        confirmations.add(1, 7, start, start + 2)

    assert list(confirmations) == [(1, 7, 4, 6), (1, 7, 8, 10)]
    assert confirmations.missing(1, [(7, 0, 2), (7, 4, 6), (7, 8, 10)]) == [(7, 0, 2)]


def test_missing_parts_of_a_wide_run_are_told_in_a_few_runs() -> None:
    confirmations = Confirmations()
    for offset in range(1, 200, 2):
        confirmations.add(1, 7, offset, offset + 1)

    missing = confirmations.missing(1, [(7, 0, 2**63)])

    assert missing[:2] == [(7, 0, 1), (7, 2, 3)]
    assert missing[-1] == (7, 30, 2**63)
    assert len(missing) == 16


def test_an_ack_that_reaches_beyond_its_lease_is_refused_only_there() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(4, 8)).number

    assert deliveries.ack(number, 2, 10) == [(2, 4), (8, 10)]
    assert deliveries.cursor.gaps(0, 10) == [(0, 4), (8, 10)]


def test_an_ack_of_the_widest_range_is_refused_in_one_piece() -> None:
    deliveries = deliveries_of()
    lease(deliveries, range(3))

    assert deliveries.ack(99, 0, 2**64 - 1) == [(0, 2**64 - 1)]
    assert deliveries.refused == 3


def test_an_empty_or_backward_run_is_nothing() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(4)).number

    assert deliveries.ack(number, 2, 2) == []
    assert deliveries.ack(number, 3, 1) == []
    assert deliveries.nack(number, 3, 1, now_ms=0) == []
    assert deliveries.extend(number, 3, 1, now_ms=0, extension_ms=1) == []
    assert deliveries.in_flight == 4


def test_ack_through_acks_other_leases_and_what_waits() -> None:
    deliveries = deliveries_of()
    first = lease(deliveries, range(4), consumer="ben").number
    lease(deliveries, range(4, 6))
    deliveries.nack(first, 1, 2, now_ms=0, delay_ms=0)
    number = lease(deliveries, range(6, 10)).number

    assert deliveries.ack_through(number, 8)

    assert deliveries.cursor.floor == 8
    assert deliveries.in_flight == 2
    assert deliveries.due(0, 10) == []


@pytest.mark.parametrize(("end", "good"), [(9, True), (10, True), (11, False), (2**63, False)])
def test_ack_through_reaches_no_further_than_its_lease(end: int, good: bool) -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(10)).number
    lease(deliveries, range(10, 20))

    assert deliveries.ack_through(number, end) is good
    assert deliveries.cursor.floor == (end if good else 0)


def test_ack_through_of_a_lease_that_is_over_is_refused_unless_it_is_done_already() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(10)).number
    deliveries.ack_through(number, 5)
    deliveries.expire(TIMEOUT_MS)

    assert deliveries.ack_through(number, 5)
    assert not deliveries.ack_through(number, 6)
    assert deliveries.refused == 1


# Deadlines.


def test_unacked_messages_are_due_again_when_their_ack_timeout_ends() -> None:
    deliveries = deliveries_of()
    lease(deliveries, range(4), now_ms=1_000)

    assert deliveries.next_due_ms() == 1_000 + TIMEOUT_MS
    assert deliveries.expire(999 + TIMEOUT_MS) == []
    assert deliveries.due(999 + TIMEOUT_MS, 10) == []
    assert deliveries.expire(1_000 + TIMEOUT_MS) == [Expired("ann", 0, 4, 1)]
    assert deliveries.due(1_000 + TIMEOUT_MS, 10) == [Redelivery(range(4), 2)]


def test_only_what_is_left_of_a_lease_expires() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(6)).number
    deliveries.ack(number, 2, 4)

    assert deliveries.expire(TIMEOUT_MS) == [Expired("ann", 0, 2, 1), Expired("ann", 4, 6, 1)]
    assert deliveries.in_flight == 0


def test_a_lease_that_is_acked_leaves_no_deadline() -> None:
    deliveries = deliveries_of()
    deliveries.ack(lease(deliveries, range(6)).number, 0, 6)

    assert deliveries.next_due_ms() is None


def test_one_call_ends_no_more_leases_than_asked() -> None:
    deliveries = deliveries_of()
    for offset in range(5):
        lease(deliveries, range(offset, offset + 1))

    assert len(deliveries.expire(TIMEOUT_MS, leases_max=3)) == 3
    assert deliveries.next_due_ms() == TIMEOUT_MS
    assert len(deliveries.expire(TIMEOUT_MS, leases_max=3)) == 2
    assert deliveries.next_due_ms() is None


def test_an_extension_counts_from_now_for_the_whole_lease() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(4)).number

    assert deliveries.extend(number, 0, 4, now_ms=20_000, extension_ms=30_000) == []

    assert deliveries.next_due_ms() == 50_000
    assert deliveries.expire(49_999) == []
    assert deliveries.expire(50_000) == [Expired("ann", 0, 4, 1)]


def test_a_part_of_a_lease_can_be_extended_alone() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(6)).number

    assert deliveries.extend(number, 2, 4, now_ms=0, extension_ms=2 * TIMEOUT_MS) == []

    expired = deliveries.expire(TIMEOUT_MS)
    assert expired == [Expired("ann", 0, 2, 1), Expired("ann", 4, 6, 1)]
    assert deliveries.ack(number, 0, 6) == [(0, 2), (4, 6)]
    assert deliveries.cursor.gaps(0, 6) == [(0, 2), (4, 6)]


def test_an_extension_may_bring_the_deadline_forward() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(4)).number

    deliveries.extend(number, 0, 4, now_ms=0, extension_ms=0)

    assert deliveries.expire(0) == [Expired("ann", 0, 4, 1)]


def test_an_extension_is_no_longer_than_the_longest_ack_timeout() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(4)).number

    deliveries.extend(number, 0, 4, now_ms=5, extension_ms=2**64 - 1)

    assert deliveries.next_due_ms() == 5 + ACK_TIMEOUT_MS_MAX


def test_an_extension_of_a_lease_that_is_over_is_refused_but_for_what_is_acked() -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(4)).number
    deliveries.ack(number, 0, 2)
    deliveries.expire(TIMEOUT_MS)

    refused = deliveries.extend(number, 0, 4, now_ms=TIMEOUT_MS, extension_ms=1_000)

    assert refused == [(2, 4)]


def test_a_refusal_across_many_gaps_is_told_in_few_runs_that_cover_all_of_it() -> None:
    deliveries = deliveries_of()
    late = lease(deliveries, range(1_000)).number
    deliveries.expire(TIMEOUT_MS)
    again = lease(deliveries, range(1_000), consumer="ben", now_ms=TIMEOUT_MS, attempt=2).number
    for offset in range(0, 1_000, 2):
        deliveries.ack(again, offset, offset + 1)

    # An ack is refused as a whole: the lease has lost all of it.
    refused = deliveries.nack(late, 0, 1_000, now_ms=TIMEOUT_MS)

    assert refused[:2] == [(1, 2), (3, 4)]
    assert len(refused) == REFUSED_RUNS_MAX
    assert refused[-1] == (2 * REFUSED_RUNS_MAX - 1, 1_000)
    assert deliveries.refused == 500


@pytest.mark.parametrize("act", ["nack", "extend"])
def test_what_a_lease_has_left_is_not_refused_however_many_gaps_it_has(act: str) -> None:
    deliveries = deliveries_of()
    number = lease(deliveries, range(1_000)).number
    for offset in range(0, 1_000, 2):
        deliveries.ack(number, offset, offset + 1)

    if act == "nack":
        refused = deliveries.nack(number, 0, 1_000, now_ms=0)
    else:
        refused = deliveries.extend(number, 0, 1_000, now_ms=0, extension_ms=1)

    assert refused == []
    assert deliveries.refused == 0


def test_looking_for_what_is_refused_ends_after_so_many_gaps() -> None:
    deliveries = deliveries_of()
    messages = 4 * GAPS_LOOKED_AT_MAX
    number = lease(deliveries, range(messages)).number
    for offset in range(0, messages, 2):
        deliveries.ack(number, offset, offset + 1)

    refused = deliveries.extend(number, 0, messages + 1, now_ms=0, extension_ms=1)

    # Too much, never too little: only the last one is not in the lease.
    assert refused == [(2 * GAPS_LOOKED_AT_MAX, messages + 1)]
