"""Deliveries under other cursors, and what transactions and dead letters ask of them."""

from itertools import count

from ister.base import AckSettings
from ister.subscriptions import Cursor, Deliveries, OffsetSet


def deliveries(cursor: Cursor | None = None, *, max_deliveries: int = 5) -> Deliveries:
    settings = AckSettings(max_deliveries=max_deliveries)
    return Deliveries(cursor or Cursor(), settings, count(1))


def lease(some: Deliveries, offsets: range | list[int], attempt: int = 1) -> int:
    return some.lease(
        offsets, consumer="c", now_ms=0, size_bytes=len(offsets), attempt=attempt
    ).number


def test_a_run_is_leased_when_all_of_it_is_in_the_lease() -> None:
    some = deliveries()
    number = lease(some, range(5))

    assert some.is_leased(number, 0, 5)
    assert some.is_leased(number, 1, 3)
    assert not some.is_leased(number, 0, 6)
    assert not some.is_leased(number, 2, 2)
    assert not some.is_leased(number + 1, 0, 5)


def test_what_is_acknowledged_is_not_leased_any_more() -> None:
    some = deliveries()
    number = lease(some, range(5))
    some.ack(number, 1, 2)

    assert not some.is_leased(number, 0, 3)
    assert some.is_leased(number, 2, 5)


def test_a_run_is_leased_over_parts_with_deadlines_of_their_own() -> None:
    some = deliveries()
    number = lease(some, range(6))
    for start, end in ((0, 2), (4, 6), (2, 4)):
        some.extend(number, start, end, now_ms=0, extension_ms=1_000 + start)

    assert some.is_leased(number, 0, 6)


def test_only_what_is_due_below_an_end_is_looked_at() -> None:
    some = deliveries()
    number = lease(some, range(10))
    some.nack(number, 2, 8, now_ms=0)

    assert [r.offsets for r in some.due(0, 100, end=5)] == [range(2, 5)]
    assert [r.offsets for r in some.due(0, 2, end=5)] == [range(2, 4)]
    assert some.due(0, 100, end=2) == []


def test_a_message_that_may_fail_more_often_and_was_never_passed_is_new_again() -> None:
    cursor = Cursor()
    cursor.fail_run(2, 3, 1)
    some = deliveries(cursor, max_deliveries=1)
    assert some.exhausted(10) == [(2, 1)]
    some.change(AckSettings(max_deliveries=2), besides=OffsetSet())

    assert some.exhausted(10) == []
    assert some.due(0, 10) == []
    assert [tuple(run) for run in some.next_new(5)] == [(0, 2, 1), (2, 3, 2), (3, 5, 1)]
    lease(some, range(2))
    lease(some, range(2, 3), attempt=2)
    assert some.due(0, 10) == []


def test_an_undone_commit_returns_no_bytes_of_messages_that_retention_removed() -> None:
    some = deliveries()
    given = lease(some, range(10))
    size_bytes = some.in_flight_bytes
    commit = some.begin_commit(given, 0, 10)
    some.trim(5)
    some.undo_commit(commit, deadline_ms=1_000)

    assert (some.in_flight, some.in_flight_bytes) == (5, size_bytes // 2)


def test_a_message_in_a_commit_is_not_exhausted_when_the_limit_is_lowered() -> None:
    cursor = Cursor()
    cursor.fail_run(0, 1, 2)
    some = Deliveries(cursor, AckSettings(max_deliveries=5), count(1))
    given = lease(some, range(1), attempt=3)
    commit = some.begin_commit(given, 0, 1)
    some.settings = AckSettings(max_deliveries=2)
    some.use(cursor)

    assert not some.any_exhausted
    some.end_commit(commit)
    assert cursor.floor == 1


def test_another_cursor_voids_every_lease() -> None:
    some = deliveries()
    number = lease(some, range(5))
    some.use(Cursor(3))

    assert some.ack(number, 0, 5) == [(0, 5)]
    assert some.in_flight == 0
    assert [tuple(run) for run in some.next_new(5)] == [(3, 5, 1)]


def test_changes_that_did_not_reach_the_journal_are_taken_again() -> None:
    cursor = Cursor()
    cursor.ack(0, 2)
    cursor.fail_run(4, 5, 3)
    runs, failed = cursor.take_changes(), cursor.take_failures()
    cursor.ack(2, 3)
    cursor.put_back(runs, failed)

    assert cursor.take_changes() == [(0, 3)]
    assert cursor.take_failures() == [(4, 5, 3)]
    assert cursor.take_changes() == []


def test_a_failure_that_was_acknowledged_meanwhile_is_not_taken_again() -> None:
    cursor = Cursor()
    cursor.fail_run(4, 5, 3)
    failed = cursor.take_failures()
    cursor.ack(4, 5)
    cursor.put_back([], failed)

    assert cursor.take_failures() == []
