"""Message ids: how long they are known, what they take, and who forgets when there are too many."""

import tracemalloc
from random import Random

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.streambench import StreamBench

from ister.base.errors import LimitReachedError
from ister.base.limits import BATCH_ID_BYTES_MAX, BATCH_IDS_MAX
from ister.broker.state.message_ids import MessageIds, key_of
from ister.broker.state.shared_budget import FORGET_COUNT, SharedBudget


def forget(window: MessageIds, *, older_than_ms: int) -> int:
    """Forget all that is too old, and return in how many steps."""
    return sum(1 for _ in window.forget(older_than_ms=older_than_ms))


def filled(budget: SharedBudget, name: str, count: int, *, time_ms: int = 100) -> MessageIds:
    window = MessageIds(budget)
    add(window, name, range(count), time_ms=time_ms)
    return window


def add(window: MessageIds, name: str, numbers: range, *, time_ms: int = 100) -> None:
    for number in numbers:
        window.add(f"{name}{number}", number, time_ms)
    window.settle(len(numbers), older_than_ms=0)


def known(window: MessageIds, name: str, numbers: range) -> list[int]:
    return [n for n in numbers if window.find(f"{name}{n}", newer_than_ms=0) is not None]


# One window


def test_the_oldest_of_too_many_ids_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ister.broker.state.message_ids.DEDUP_IDS_MAX", 2)
    budget = SharedBudget(10)
    window = filled(budget, "a", 3)

    assert known(window, "a", range(3)) == [1, 2]
    assert (budget.size, budget.forgotten) == (2, 1)


def test_an_id_is_known_for_as_long_as_its_window() -> None:
    window = MessageIds(SharedBudget(10**6))
    window.add("a", 5, 100)

    assert window.find("a", newer_than_ms=99) == 5
    assert window.find("a", newer_than_ms=100) is None
    forget(window, older_than_ms=100)
    assert len(window) == 1
    forget(window, older_than_ms=101)
    assert len(window) == 0


def test_an_id_that_comes_again_after_its_time_is_known_for_as_long_as_the_second() -> None:
    window = MessageIds(SharedBudget(10**6))
    window.add("a", 5, 100)
    window.add("b", 6, 110)
    window.add("a", 7, 200)
    window.add("a", 7, 200)
    forget(window, older_than_ms=150)

    assert len(window) == 1
    assert window.find("a", newer_than_ms=0) == 7
    forget(window, older_than_ms=201)
    assert len(window) == 0
    assert list(window.rows()) == []


def test_ids_are_gone_over_while_they_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ister.broker.state.message_ids.CHUNK_COUNT", 2)
    window = MessageIds(SharedBudget(10**6))
    for number in range(6):
        window.add(str(number), number, number)
    rows = window.rows()
    assert next(rows) == [("0", 0, 0), ("1", 1, 1)]
    forget(window, older_than_ms=3)
    window.add("6", 6, 6)

    assert [row for some in rows for row in some] == [("3", 3, 3), ("4", 4, 4), ("5", 5, 5)]


def test_very_many_ids_are_forgotten_in_steps() -> None:
    window = filled(SharedBudget(10**6), "a", 10 * FORGET_COUNT)

    # What a few new ones have to do with is bounded, too.
    add(window, "b", range(3))
    window.settle(0, older_than_ms=200)
    assert len(window) == 9 * FORGET_COUNT + 3
    assert forget(window, older_than_ms=200) == 9
    assert len(window) == 0


def test_an_id_takes_as_much_memory_however_long_it_is() -> None:
    window = MessageIds(SharedBudget(10**6))
    tracemalloc.start()
    for number in range(10_000):
        window.add(key_of(f"{number:0255}"), number, 1_763_000_000_000 + number)
    taken_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert taken_bytes < 10_000 * 220
    assert window.find(key_of(f"{7:0255}"), newer_than_ms=0) == 7
    assert window.find(key_of(f"{7:0254}"), newer_than_ms=0) is None
    restored = MessageIds(SharedBudget(10**6))
    for rows in window.rows():
        for row in rows:
            restored.add(*row)
    assert restored.find(key_of(f"{9_999:0255}"), newer_than_ms=0) == 9_999


# All windows of a broker


def test_the_largest_windows_forget_when_there_are_too_many_ids() -> None:
    budget = SharedBudget(1_000)
    small, large = filled(budget, "s", 100), filled(budget, "l", 900)
    add(small, "s", range(100, 150))
    add(large, "l", range(900, 1_000))

    assert known(small, "s", range(150)) == list(range(150))
    assert known(large, "l", range(1_000)) == list(range(150, 1_000))
    assert (budget.size, budget.forgotten) == (1_000, 150)


def test_windows_of_one_size_share_what_there_is() -> None:
    budget = SharedBudget(10 * FORGET_COUNT)
    windows = [filled(budget, str(n), 5 * FORGET_COUNT) for n in range(4)]

    assert budget.size == 10 * FORGET_COUNT
    assert min(map(len, windows)) >= FORGET_COUNT


def test_a_window_that_is_gone_makes_room() -> None:
    budget = SharedBudget(100)
    gone = filled(budget, "g", 100)
    gone.close()
    other = filled(budget, "o", 100)
    forget(gone, older_than_ms=1_000)

    assert (budget.size, budget.forgotten) == (100, 0)
    assert len(other) == 100


@pytest.mark.parametrize("seed", range(20))
def test_a_budget_counts_whatever_comes_and_goes(seed: int) -> None:
    random = Random(seed)
    budget = SharedBudget(500)
    windows = [MessageIds(budget) for _ in range(6)]
    most, now_ms = 0, 1_000
    for step in range(300):
        now_ms += random.randint(0, 20)
        window = random.choice(windows)
        match random.randrange(8):
            case 0:
                forget(window, older_than_ms=now_ms - 100)
            case 1 if random.random() < 0.2:
                window.close()
                windows[windows.index(window)] = MessageIds(budget)
            case _:
                for n in range(random.choice([1, 10, 200])):
                    name = str(random.randrange(400))
                    if window.find(name, newer_than_ms=now_ms - 100) is None:
                        window.add(name, 1_000 * step + n, now_ms)
                window.settle(200, older_than_ms=now_ms - 100)
        most = max(most, budget.size)

        assert budget.size == sum(map(len, windows)) <= 500
    assert most > 400


# A broker


def ids_of(name: str, count: int) -> list[str]:
    return [f"{name}{number}" for number in range(count)]


def test_a_broker_forgets_the_ids_of_its_largest_topic_and_says_so() -> None:
    bench = StreamBench(message_ids_max=100)
    for name in ("few", "many"):
        bench.create(f"/default/{name}")
    bench.publish(*[b""] * 10, ids=ids_of("f", 10), topic="/default/few")
    with capture_logs() as logs:
        for turn in range(3):
            bench.publish(*[b""] * 50, ids=ids_of(f"m{turn}.", 50), topic="/default/many")
            bench.advance(1_000)

    few, many = (bench.topic(f"/default/{name}").record.ids for name in ("few", "many"))
    assert (len(few), len(many)) == (10, 90)
    assert [log["count"] for log in logs if log["event"] == "message_ids_forgotten"] == [10]
    # What was forgotten since is told with the next line.
    with capture_logs() as logs:
        bench.advance(60_000)
    assert [log["count"] for log in logs if log["event"] == "message_ids_forgotten"] == [50]


def test_the_ids_of_all_topics_are_bounded_after_a_restart() -> None:
    bench = StreamBench(message_ids_max=100)
    for name in ("a", "b"):
        bench.create(f"/default/{name}")
        bench.publish(*[b""] * 80, ids=ids_of(name, 80), topic=f"/default/{name}")
    bench.restart()

    assert bench.broker.streams.budgets is not None
    budget = bench.broker.streams.budgets.ids
    assert budget.size == 100
    bench.broker.delete_topic("/default/a")
    bench.advance(1_000)
    assert budget.size == len(bench.topic("/default/b").record.ids) > 0


def test_a_batch_with_too_many_ids_is_refused() -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(*[b""] * BATCH_IDS_MAX, ids=ids_of("a", BATCH_IDS_MAX))

    with pytest.raises(LimitReachedError, match="batch_ids_max"):
        bench.publish(*[b""] * (BATCH_IDS_MAX + 1), ids=ids_of("b", BATCH_IDS_MAX + 1))


def test_a_batch_whose_ids_are_too_long_together_is_refused() -> None:
    bench = StreamBench()
    bench.create()
    count = BATCH_ID_BYTES_MAX // 250
    bench.publish(*[b""] * count, ids=[f"{n:0250}" for n in range(count)])

    with pytest.raises(LimitReachedError, match="batch_id_bytes_max"):
        bench.publish(*[b""] * count, ids=[f"{n:0251}" for n in range(count)])
