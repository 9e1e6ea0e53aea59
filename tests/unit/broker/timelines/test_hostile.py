"""Clients that do not keep to anything: what they cost is bounded, and others do not wait."""

from typing import Any

import pytest
from tests.unit.broker.timelines.timelinebench import TOPIC, Client, FailingStore, TimelineBench

from ister.base.errors import BadRequestError, IsterError, LimitReachedError, MessageLeasedError
from ister.base.limits import TIMELINE_CONSUMERS_MAX, TIMELINE_CREDIT_MAX
from ister.broker.timelines.leasing import window as window_module
from ister.broker.timelines.store import reads as reading_module
from ister.timeline import Changed, Outcomes, Row

OTHER = "/default/other"


class OrderedStore(FailingStore):
    """Keeps the order of what it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def get(self, topic: int, id: str) -> Row | None:
        self.order.append("get")
        return super().get(topic, id)

    def apply(self, now_ms: int, work: Any) -> list[Outcomes]:
        self.order.append("apply")
        return super().apply(now_ms, work)


@pytest.fixture
def bench() -> TimelineBench:
    return TimelineBench()


# Questions


def test_what_is_to_be_committed_waits_for_few_of_many_questions() -> None:
    store = OrderedStore()
    bench = TimelineBench(store, max_leases=0)
    store.order.clear()
    told: list[Row | IsterError] = []

    for _ in range(50):
        bench.timelines.get(TOPIC, "a", told.append)
    bench.begin_change(bench.putting("a", 0))
    bench.settle()

    assert store.order.index("apply") < 5
    assert len(told) == 50


def test_questions_without_end_are_refused(
    bench: TimelineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_module, "READS_MAX", 3)
    told: list[Row | IsterError] = []

    for _ in range(6):
        bench.timelines.get(TOPIC, "a", told.append)

    # One is under way, three wait.
    assert [type(one) for one in told] == [LimitReachedError] * 2
    bench.settle()
    assert len(told) == 6
    bench.timelines.get(TOPIC, "a", told.append)
    bench.settle()
    assert not isinstance(told[-1], LimitReachedError)


# Leases


def test_leases_of_all_topics_together_are_bounded(
    bench: TimelineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_module, "LEASES_TOTAL", 3)
    bench.create(OTHER)
    greedy = bench.consume(credit=TIMELINE_CREDIT_MAX)
    bench.put_many(list("abcde"), 0)
    assert greedy.ids == ["a", "b", "c"]
    other = bench.consume(topic=OTHER)
    bench.put("x", 0, topic=OTHER)
    bench.advance(1_000)
    assert other.ids == []

    greedy.done("a")
    bench.advance(1_000)
    assert len(greedy.ids + other.ids) == 4
    for client in (greedy, other):
        while client.working:
            client.done(next(iter(client.working)))
    bench.advance(1_000)

    assert greedy.ids == ["a", "b", "c", "d", "e"]
    assert other.ids == ["x"]


def test_leases_of_a_topic_that_was_deleted_leave_room_for_others(
    bench: TimelineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_module, "LEASES_TOTAL", 1)
    bench.create(OTHER)
    bench.consume()
    bench.put("a", 0)
    other = bench.consume(topic=OTHER)
    bench.put("x", 0, topic=OTHER)

    bench.delete_topic()
    bench.advance(1_000)

    assert other.ids == ["x"]


@pytest.mark.parametrize("credit", [-1, TIMELINE_CREDIT_MAX + 1, 2**63])
def test_a_credit_out_of_bounds_is_refused(bench: TimelineBench, credit: int) -> None:
    assert isinstance(bench.consume(credit=credit).error, BadRequestError)


def test_credit_does_not_add_up_beyond_its_bound(bench: TimelineBench) -> None:
    client = bench.consume()
    for _ in range(3):
        client.grant(2**31)

    assert client.consumer is not None
    assert client.consumer.credit == TIMELINE_CREDIT_MAX


# Consumers


def test_consumers_are_bounded_and_those_who_leave_make_room(bench: TimelineBench) -> None:
    clients = [bench.consume(f"worker-{n}") for n in range(TIMELINE_CONSUMERS_MAX)]

    assert isinstance(bench.consume("one more").error, LimitReachedError)
    clients[0].close()
    assert bench.consume("one more").error is None


def test_a_name_of_64_kib_is_refused(bench: TimelineBench) -> None:
    assert isinstance(bench.consume("x" * 65_536).error, BadRequestError)


def test_who_opens_one_name_again_and_again_leaves_one_consumer(bench: TimelineBench) -> None:
    clients = [bench.consume(settle=False) for _ in range(50)]
    bench.settle()
    bench.put("a", 0)

    assert [client.ids for client in clients[:-1]] == [[]] * 49
    assert clients[-1].ids == ["a"]
    assert bench.report().consumers == 1


# Answers


class Liar(Client):
    """Answers that it has let go of messages, with wrong versions, or of those it never had."""

    def revoke(self, channel: int, messages: list[tuple[str, int]]) -> None:
        assert self.consumer is not None
        for name, version in messages:
            self.consumer.revoked(name, version - 1, False)
            self.consumer.revoked(name, 0, False)
            self.consumer.revoked("nobody", version, False)


def test_wrong_answers_are_none(bench: TimelineBench) -> None:
    liar = Liar(bench, "liar")
    bench.open(liar, prefetch_ms=5_000)
    bench.settle()
    bench.put("a", 2_000)
    assert liar.ids == ["a"]
    told = bench.begin_change(bench.deleting("a"))

    bench.advance(999)
    assert told == []
    bench.advance(1)

    assert isinstance(told[0], list)
    assert isinstance(told[0][0], MessageLeasedError)


def test_who_never_answers_holds_up_no_other_message(bench: TimelineBench) -> None:
    mute = bench.consume(prefetch_ms=5_000, credit=1)
    mute.answers = False
    bench.put("a", 2_000)
    waiting = [bench.begin_change(bench.deleting("a")) for _ in range(100)]
    bench.settle()
    bench.put("b", 100)

    assert isinstance(bench.change(bench.deleting("b")), Changed)
    bench.advance(1_000)
    for [outcomes] in waiting:
        assert isinstance(outcomes, list)
        assert isinstance(outcomes[0], MessageLeasedError)


def test_who_opens_consumers_all_the_time_does_not_have_owners_wait_for_ever(
    bench: TimelineBench,
) -> None:
    bench.put("a", 60_000)
    bench.consume("w-0", settle=False)
    told = bench.begin_change(bench.deleting("a"))

    # In every turn of the loop another one: there is always one under way.
    for turn in range(1, 100):
        bench.consume(f"w-{turn}", settle=False)
        bench.turn(1)

    assert told != []
    bench.settle()
    assert bench.report().consumers == 100
    bench.put("b", 0)
    assert len(bench.begun) == 1


def test_owners_who_change_messages_all_the_time_do_not_keep_others_from_theirs(
    bench: TimelineBench,
) -> None:
    client = bench.consume(credit=1)
    bench.put_many(["a", "b"], 0)
    bench.put("far", 60_000)
    client.done("a")

    for _ in range(100):
        bench.begin_change(bench.moving("far", 60_000))
        bench.turn(1)

    assert client.begun_ids == ["a", "b"]
