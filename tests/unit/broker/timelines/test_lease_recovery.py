"""Leases that the name of a consumer has, handed to it when it comes back: a page at a time."""

import pytest
from tests.unit.broker.timelines.timelinebench import (
    LEASE_MS,
    TOPIC,
    Client,
    FailingStore,
    TimelineBench,
)

from ister.base.errors import IsterError
from ister.broker.timelines import TimelineConsumer
from ister.broker.timelines.leasing import topic as topic_module
from ister.timeline import Changed, Row

PAGE = 4


class WatchedStore(FailingStore):
    """Keeps how many leases were loaded by each call."""

    def __init__(self) -> None:
        super().__init__()
        self.pages: list[int] = []

    def held(self, topic: int, holder: str, after: tuple[int, int], limit: int) -> list[Row]:
        rows = super().held(topic, holder, after, limit)
        self.pages.append(len(rows))
        return rows


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> WatchedStore:
    monkeypatch.setattr(topic_module, "ROUND_COUNT_MAX", PAGE)
    return WatchedStore()


@pytest.fixture
def bench(store: WatchedStore) -> TimelineBench:
    return TimelineBench(store, max_leases=0)


def names(count: int) -> list[str]:
    return [f"{slot:02}" for slot in range(count)]


def test_many_leases_come_back_a_page_at_a_time(bench: TimelineBench, store: WatchedStore) -> None:
    bench.put_many(names(10), 0)
    bench.consume().close()
    store.pages.clear()

    again = bench.consume()

    assert again.ids == names(10)
    assert store.pages == [4, 4, 2]


def test_as_many_come_back_as_there_is_credit_for_and_the_others_when_these_are_done(
    bench: TimelineBench, store: WatchedStore
) -> None:
    bench.put_many(names(10), 0)
    bench.consume().close()
    bench.put_many(["new"], 0)
    store.pages.clear()

    again = bench.consume(credit=3)
    assert again.ids == names(3)
    assert store.pages == [3]

    for name in names(3):
        again.done(name)
    assert again.ids == names(6)
    for name in names(10)[3:]:
        again.done(name)
    assert again.ids == [*names(10), "new"]


def test_a_full_last_page_is_followed_by_what_is_new(bench: TimelineBench) -> None:
    bench.put_many(names(2 * PAGE), 0)
    bench.consume().close()
    bench.put("new", 0)

    assert bench.consume().ids == [*names(2 * PAGE), "new"]


def test_leases_of_others_and_leases_that_are_over_do_not_come_back(bench: TimelineBench) -> None:
    bench.put_many(names(6), 0)
    bench.consume("one", lease_ms=100).close()
    bench.put("two", 0)
    bench.consume("two").close()

    bench.advance(100)

    assert bench.consume("two", credit=1).ids == ["two"]


def test_a_page_that_cannot_be_loaded_is_loaded_when_the_storage_is_back(
    bench: TimelineBench, store: WatchedStore
) -> None:
    bench.put_many(names(10), 0)
    bench.consume().close()
    again = bench.consume(credit=PAGE)
    assert again.ids == names(4)
    store.fails_before = True
    again.grant(100)
    assert again.ids == names(4)

    store.fails_before = False
    bench.advance(1_000)

    assert sorted(again.ids) == names(10)
    assert isinstance(again.done("09"), Changed)


def test_a_consumer_that_leaves_between_two_pages_leaves_the_rest_to_their_end(
    bench: TimelineBench,
) -> None:
    bench.put_many(names(10), 0)
    bench.consume().close()
    bench.consume(credit=1).close()
    other = bench.consume("other")

    assert other.ids == []
    bench.advance(LEASE_MS)
    assert sorted(other.ids) == names(10)


def test_leases_that_come_back_are_told_to_be_and_count_as_delivered_once(
    bench: TimelineBench, store: WatchedStore
) -> None:
    bench.put_many(names(3), 0)
    bench.consume(credit=3).close()
    bench.put("new", 0)

    again = bench.consume()

    assert (again.ids, again.again) == ([*names(3), "new"], names(3))
    assert bench.report().delivered == 4


def test_leases_that_were_written_without_an_answer_count_as_delivered(
    bench: TimelineBench, store: WatchedStore
) -> None:
    client = bench.consume()
    bench.put("a", 100)
    store.fails_after = True
    bench.advance(100)
    store.fails_after = False
    bench.advance(2_000)

    assert (client.ids, client.again) == (["a"], ["a"])
    assert bench.report().delivered == 1


def test_a_fresh_consumer_ends_the_leases_of_its_name_and_they_count(
    bench: TimelineBench, store: WatchedStore
) -> None:
    bench.put_many(names(10), 0)
    bench.consume().close()
    other = bench.consume("other", credit=3)

    fresh = bench.consume(fresh=True, credit=100)

    assert sorted(other.ids + fresh.ids) == names(10)
    assert (len(other.ids), fresh.again) == (3, [])
    assert {row.leases for row in other.rows + fresh.rows} == {2}
    assert bench.report().lost == 10


def test_what_was_not_due_yet_costs_a_fresh_consumer_no_attempt(bench: TimelineBench) -> None:
    bench.put("a", 400)
    bench.consume(prefetch_ms=1_000)
    bench.crash()

    fresh = bench.consume(fresh=True)
    bench.advance(400)

    assert [(row.id, row.leases) for row in fresh.rows] == [("a", 1)]


def test_a_message_that_kills_each_of_its_consumers_becomes_a_dead_letter() -> None:
    bench = TimelineBench(max_leases=2)
    bench.put("a", 0)
    for _ in range(3):
        bench.consume(fresh=True).close()

    assert bench.consume(topic=f"{TOPIC}-dlq").ids == ["a"]


class Lost(Client):
    """Its connection is lost while it is being opened."""

    def opened(self, found: TimelineConsumer | IsterError) -> None:
        assert isinstance(found, TimelineConsumer)
        super().opened(found)
        found.close()


def test_a_connection_that_is_lost_while_it_opens_ends_no_lease_of_its_name(
    bench: TimelineBench,
) -> None:
    bench.put("a", 0)
    first = bench.consume("w")
    assert first.ids == ["a"]
    first.close()
    lost = Lost(bench, "w")
    bench.timelines.consume(
        TOPIC, "w", lost, 7, lease_ms=LEASE_MS, prefetch_ms=0, credit=10, done=lost.opened
    )
    bench.settle()

    other = bench.consume("other")
    assert other.ids == []
    bench.advance(LEASE_MS)
    assert other.ids == ["a"]
