"""What all streams of a broker together remember of their producers."""

import tracemalloc

from structlog.testing import capture_logs
from tests.unit.broker.streambench import StreamBench

from ister.broker.state.producers import PRODUCER_BYTES, RUN_BYTES, RUNS_REMEMBERED, Producers
from ister.broker.state.shared_budget import SharedBudget

ONE = PRODUCER_BYTES + RUN_BYTES + 4


def filled(budget: SharedBudget, start: int, end: int) -> Producers:
    producers = Producers(budget)
    for number in range(start, end):
        producers.on_stored(f"{number:04}", 0, number, 1)
    return producers


def numbers(producers: Producers) -> list[int]:
    return [int(name) for rows in producers.rows() for name, _ in rows]


def test_the_topic_with_the_most_producers_forgets_those_silent_longest() -> None:
    budget = SharedBudget(100 * ONE)
    few = filled(budget, 0, 10)
    many = filled(budget, 0, 200)

    assert numbers(few) == list(range(10))
    assert numbers(many) == list(range(110, 200))
    assert budget.size == few.size + many.size == 100 * ONE
    assert budget.forgotten == 110 * ONE
    assert many.next_sequence("0000") == 0
    assert many.next_sequence("0199") == 1


def test_runs_of_messages_count() -> None:
    budget = SharedBudget(10**6)
    producers = Producers(budget)
    for number in range(10 * RUNS_REMEMBERED):
        producers.on_stored("p", 2 * number, 2 * number, 1)

    found = producers.find("p")
    assert found is not None
    assert budget.size == PRODUCER_BYTES + 1 + RUN_BYTES * len(found.runs)
    assert RUNS_REMEMBERED <= len(found.runs) <= 2 * RUNS_REMEMBERED


def test_a_stream_that_is_gone_gives_back_its_share() -> None:
    budget = SharedBudget(100 * ONE)
    gone, left = filled(budget, 0, 50), filled(budget, 0, 20)
    gone.close()
    gone.on_stored("more", 0, 0, 1)

    assert budget.size == left.size


def test_restored_producers_are_counted_and_known() -> None:
    budget = SharedBudget(100 * ONE)
    producers = filled(SharedBudget(10**6), 0, 200)
    restored = Producers(budget)
    restored.restore([row for rows in producers.rows() for row in rows])

    assert budget.size == 100 * ONE
    assert numbers(restored) == list(range(100, 200))
    assert restored.offset_of("0150", 0) == 150


def test_a_producer_takes_as_much_memory_as_is_counted() -> None:
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        producers = Producers(SharedBudget(10**9))
        for number in range(2_000):
            producers.on_stored(f"{number}".rjust(100), 10**6 + number, 10**9 + number, 500)
            producers.on_stored(
                f"{number}".rjust(100), 10**6 + 9 * number + 500, 10**9 + 9 * number, 500
            )
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert 0.75 < (after - before) / producers.size < 1.25


def test_the_broker_forgets_producers_beyond_its_limit_and_says_so() -> None:
    bench = StreamBench(producers_bytes_max=50 * ONE)
    bench.create("/default/a")
    bench.create("/default/b")
    for topic, count in (("/default/a", 5), ("/default/b", 100)):
        for number in range(count):
            bench.publish(b"", topic=topic, name=f"{number:04}")
    with capture_logs() as logs:
        bench.advance(2_000)

    assert len(bench.topic("/default/a").record.producers) == 5
    assert len(bench.topic("/default/b").record.producers) == 45
    assert [log["size_bytes"] for log in logs if log["event"] == "producers_forgotten"] == [
        55 * ONE
    ]
    bench.restart()
    assert bench.broker.streams.budgets is not None
    assert bench.broker.streams.budgets.producers.size <= 50 * ONE
