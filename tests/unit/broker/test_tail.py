"""The newest batches of streams in memory."""

from ister.broker.streams.recent import BATCH_OVERHEAD_BYTES, RecentBatches, RecentBudget
from ister.codec import Batch, encode


def batch(base_offset: int, count: int = 1, size: int = 100) -> Batch:
    head, body = encode([b"x" * size] * count)
    made = Batch(head + body)
    made.stamp(base_offset, 0)
    return made


COST = batch(0).size_bytes + BATCH_OVERHEAD_BYTES


def test_a_batch_is_found_by_each_of_its_offsets() -> None:
    tail = RecentBatches(RecentBudget(10 * COST))
    first, second = batch(5, count=3), batch(8, count=2)
    tail.append(first)
    tail.append(second)

    assert tail.find(4) is None
    assert [tail.find(offset) for offset in (5, 7)] == [first, first]
    assert [tail.find(offset) for offset in (8, 9)] == [second, second]
    assert tail.find(10) is None


def test_what_came_while_nobody_listened_is_not_found() -> None:
    tail = RecentBatches(RecentBudget(10 * COST))
    tail.append(batch(0))
    tail.append(batch(5))

    assert tail.find(3) is None
    assert tail.find(5) is not None


def test_the_oldest_batch_of_all_tails_makes_room() -> None:
    budget = RecentBudget(3 * COST)
    one, other = RecentBatches(budget), RecentBatches(budget)
    one.append(batch(0))
    other.append(batch(0))
    other.append(batch(1))

    assert one.find(0) is not None
    other.append(batch(2))

    assert one.find(0) is None
    assert [other.find(offset) is not None for offset in range(3)] == [True, True, True]
    assert budget.size_bytes == one.size_bytes + other.size_bytes == 3 * COST


def test_a_thousand_tails_stay_within_the_budget_together() -> None:
    budget = RecentBudget(50 * COST)
    tails = [RecentBatches(budget) for _ in range(1_000)]
    for turn in range(3):
        for tail in tails:
            tail.append(batch(turn))
            assert budget.size_bytes <= 50 * COST

    assert sum(tail.size_bytes for tail in tails) == budget.size_bytes


def test_a_batch_larger_than_the_budget_is_kept_alone() -> None:
    tail = RecentBatches(RecentBudget(COST))
    tail.append(batch(0))
    tail.append(batch(1, size=10_000))

    assert tail.find(0) is None
    assert tail.find(1) is not None


def test_dropping_many_batches_keeps_the_others_findable() -> None:
    tail = RecentBatches(RecentBudget(10 * COST))
    for offset in range(1_000):
        tail.append(batch(offset))

    assert [o for o in range(1_000) if tail.find(o) is not None] == list(range(990, 1_000))


def test_the_budget_forgets_a_deleted_topic() -> None:
    budget = RecentBudget(10 * COST)
    gone, stays = RecentBatches(budget), RecentBatches(budget)
    for offset in range(3):
        gone.append(batch(offset))
        stays.append(batch(offset))

    budget.forget(gone)

    assert budget.size_bytes == stays.size_bytes
    for offset in range(3, 20):
        stays.append(batch(offset))
    assert budget.size_bytes == stays.size_bytes == 10 * COST


def test_a_small_batch_does_not_hold_on_to_a_large_read() -> None:
    head, body = encode([b"x"])
    read = bytes(100_000) + head + body
    small = Batch(memoryview(read)[100_000:])
    tail = RecentBatches(RecentBudget(10 * COST))

    tail.append(small)

    assert small.tail.obj is not read
