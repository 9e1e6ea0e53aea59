"""What keeps leases small: heaps without the dead, few parts, and work by runs."""

from itertools import count

from ister.subscriptions import OffsetSet
from ister.subscriptions.leases import HEAP_COUNT_MIN, PARTS_MAX, Lease, Leases


def open_lease(leases: Leases, start: int, end: int, *, deadline_ms: int = 1_000) -> Lease:
    return leases.open(
        OffsetSet(start, end), consumer="ann", attempt=1, deadline_ms=deadline_ms, size_bytes=0
    )


def heap_entries(leases: Leases) -> int:
    return len(leases._deadlines) + len(leases._starts)


def test_leases_that_have_ended_do_not_pile_up() -> None:
    leases = Leases(count(1))

    for offset in range(10_000):
        number = open_lease(leases, offset, offset + 1).number
        assert leases.take_whole(number, offset, offset + 1)

    assert heap_entries(leases) <= HEAP_COUNT_MIN


def test_heaps_are_made_anew_only_when_half_of_them_may_be_out_of_date() -> None:
    class CountingLeases(Leases):
        rebuilds = 0

        def _rebuild_heaps(self) -> None:
            self.rebuilds += 1
            super()._rebuild_heaps()

    leases = CountingLeases(count(1))

    for offset in range(10_000):
        open_lease(leases, offset, offset + 1)

    # 256 entries, doubled until they are more than 20,000.
    assert leases.rebuilds == 7


def test_leases_in_any_order_are_found_after_the_heaps_are_made_anew() -> None:
    leases = Leases(count(1))
    for offset in reversed(range(HEAP_COUNT_MIN)):
        open_lease(leases, offset, offset + 1, deadline_ms=1_000 + offset)

    leases.drop_below(10)
    expired = leases.take_expired(1_011, 100)

    assert sorted(offsets.first for _, offsets in expired) == [10, 11]
    assert leases.count == HEAP_COUNT_MIN - 12


def test_renewals_do_not_pile_up() -> None:
    leases = Leases(count(1))
    lease = open_lease(leases, 0, 10)

    for deadline_ms in range(1_000, 11_000):
        leases.extend(lease, 0, 10, deadline_ms=deadline_ms)

    assert heap_entries(leases) <= HEAP_COUNT_MIN
    assert leases.next_deadline_ms() == 10_999


def test_single_messages_renewed_at_once_share_a_part() -> None:
    leases = Leases(count(1))
    lease = open_lease(leases, 0, 1_000)

    for offset in range(0, 1_000, 2):
        leases.extend(lease, offset, offset + 1, deadline_ms=5_000)

    assert len(lease.parts) == 1
    assert lease.parts[0].offsets.count == 500


def test_a_lease_renewed_bit_by_bit_is_in_one_piece_again() -> None:
    leases = Leases(count(1))
    lease = open_lease(leases, 0, 10)

    leases.extend(lease, 0, 4, deadline_ms=5_000)
    leases.extend(lease, 4, 10, deadline_ms=5_000)

    assert not lease.parts
    assert (lease.offsets.runs(), lease.deadline_ms) == ([(0, 10)], 5_000)


def test_a_lease_has_few_parts_and_nobody_loses_time_by_that() -> None:
    leases = Leases(count(1))
    lease = open_lease(leases, 0, 1_000)

    for offset in range(1_000):
        leases.extend(lease, offset, offset + 1, deadline_ms=2_000 + offset)

    assert len(lease.parts) == PARTS_MAX
    for part in lease.parts:
        assert part.deadline_ms >= 2_000 + part.offsets.end - 1
    assert sum(part.offsets.count for part in lease.parts) == lease.count == 1_000


def test_a_part_that_has_to_share_a_deadline_shares_the_later_one() -> None:
    leases = Leases(count(1))
    lease = open_lease(leases, 0, 100)
    for offset in range(PARTS_MAX):
        leases.extend(lease, offset, offset + 1, deadline_ms=2_000 + offset)

    leases.extend(lease, 50, 51, deadline_ms=1_500)

    last = lease.parts[-1]
    assert last.offsets.runs() == [(PARTS_MAX - 1, PARTS_MAX), (50, 51)]
    assert last.deadline_ms == 2_000 + PARTS_MAX - 1


def test_a_lease_in_parts_begins_with_the_lowest_of_them() -> None:
    leases = Leases(count(1))
    lease = open_lease(leases, 0, 10)
    leases.extend(lease, 5, 10, deadline_ms=2_000)

    leases.drop_below(3)
    leases.drop_below(4)

    assert (lease.first, leases.count) == (4, 6)


def test_a_lease_whose_parts_are_all_renewed_lives_on_in_them() -> None:
    leases = Leases(count(1))
    lease = open_lease(leases, 0, 10)
    leases.extend(lease, 0, 5, deadline_ms=2_000)
    leases.extend(lease, 5, 10, deadline_ms=3_000)

    assert leases.take_expired(1_000, 10) == []
    assert leases.next_deadline_ms() == 2_000
    [(_, first)] = leases.take_expired(2_000, 10)
    assert first.runs() == [(0, 5)]
    assert leases.find(lease.number) is lease
    assert lease.first == 5


def test_dropping_what_is_below_looks_at_no_lease_beyond() -> None:
    leases = Leases(count(1))
    for start in range(0, 100, 10):
        open_lease(leases, start, start + 10)

    leases.drop_below(25)

    assert leases.count == 75
    assert leases._starts[0] == (25, 3)
    assert heap_entries(leases) == 8 + 10


def test_a_lease_keeps_the_end_it_began_with() -> None:
    leases = Leases(count(1))
    lease = open_lease(leases, 0, 10)

    leases.take(lease, 5, 10)

    assert (lease.end, lease.count) == (10, 5)


def test_everything_of_a_consumer_means_the_parts_of_its_leases_too() -> None:
    leases = Leases(count(1))
    lease = open_lease(leases, 0, 10, deadline_ms=1_000)
    leases.extend(lease, 4, 6, deadline_ms=2_000)

    leases.end_by("ann", 500)
    assert [part.deadline_ms for part in lease.all_parts()] == [500, 500]

    leases.last_until("ann", 900)
    assert [part.deadline_ms for part in lease.all_parts()] == [900, 900]

    [(number, taken)] = leases.take_all("ann")
    assert (number, taken.runs()) == (lease.number, [(0, 10)])
    assert leases.count == 0
