"""Cron rules over crashes, failing storage and two brokers on one store: once for every slot."""

from collections import Counter
from typing import Any

import pytest
from tests.unit.broker.timelines.cronbench import (
    HOUR_MS,
    MINUTE_MS,
    TO_MINUTE_MS,
    CronBench,
    slots,
)
from tests.unit.broker.timelines.timelinebench import TOPIC, FailingStore

from ister.base.errors import CorruptedError, StorageFailedError
from ister.timeline import (
    Delete,
    MemoryStore,
    Outcomes,
    Place,
    Put,
    Update,
    Work,
    first_row,
    parse_rule,
)

HIDDEN = f"{TOPIC}#rules"


class CrashError(Exception):
    """The broker has come to its end."""


class CrashingStore(MemoryStore):
    """Ends the broker at one of its calls: before it has happened, or after."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_left = -1
        self.after = False
        self.crashed = False

    def apply(self, now_ms: int, work: Any) -> list[Outcomes]:
        self._count(before=True)
        outcomes = super().apply(now_ms, work)
        self._count(before=False)
        return outcomes

    def get(self, topic: int, id: str) -> Any:
        self._count(before=True)
        return super().get(topic, id)

    def _count(self, *, before: bool) -> None:
        if self.calls_left < 0 or before is self.after:
            return
        if self.calls_left == 0:
            self.crashed = True
            raise CrashError
        self.calls_left -= 1


def fired(bench: CronBench) -> Counter[str]:
    return Counter(bench.ids())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("overlap", ["allow", "skip", "buffer"])
def test_every_slot_fires_once_wherever_the_broker_crashes(overlap: str, after: bool) -> None:
    crashes = 0
    for call in range(60):
        store = CrashingStore()
        bench = CronBench(store)
        bench.rule("tick", overlap=overlap)
        store.calls_left, store.after = call, after
        # The worker tells errors of the store: the broker goes on as if its storage had failed,
        # until it is begun anew.
        bench.advance(TO_MINUTE_MS + 30_000)
        crashes += store.crashed
        store.calls_left = -1
        bench.crash()
        bench.advance(2 * MINUTE_MS)

        expected = ["22:14", "22:15", "22:16"] if overlap == "allow" else ["22:14"]
        assert slots(bench.ids()) == expected, call
        assert max(fired(bench).values()) == 1
        assert bench.get_rule("tick").report.fired == len(expected)
    assert crashes


@pytest.mark.parametrize("act", ["pause", "drop"])
@pytest.mark.parametrize("after", [False, True])
def test_a_change_of_a_rule_takes_its_message_with_it_or_neither_happens(
    act: str, after: bool
) -> None:
    for call in range(6):
        store = CrashingStore()
        bench = CronBench(store)
        bench.rule("tick")
        bench.advance(TO_MINUTE_MS - 1_000)
        store.calls_left, store.after = call, after

        told = getattr(bench, act)("tick")
        store.calls_left = -1
        bench.crash()

        changed = not bench.list_rules() if act == "drop" else bench.get_rule("tick").report.paused
        assert changed or isinstance(told, StorageFailedError)
        assert bool(bench.ids()) is not changed


def test_what_was_missed_in_the_catch_up_window_fires_after_the_restart() -> None:
    bench = CronBench()
    bench.rule("tick", "*/15 * * * *", overlap="allow", catch_up_ms=HOUR_MS)
    bench.timelines.close()

    bench.clock.skew_ms += 2 * HOUR_MS
    bench.start()

    # 22:15 to 23:00 are too long ago: it is 00:13.
    assert slots(bench.ids()) == ["23:15", "23:30", "23:45", "00:00"]
    report = bench.get_rule("tick").report
    assert (report.fired, report.missed) == (4, 4)


def test_of_slots_that_were_missed_one_fires_where_they_may_not_overlap() -> None:
    bench = CronBench()
    bench.rule("tick", "*/15 * * * *", overlap="skip")
    bench.timelines.close()

    bench.clock.skew_ms += HOUR_MS
    bench.start()

    assert slots(bench.ids()) == ["22:15"]
    assert bench.get_rule("tick").report.skipped == 3


def test_a_rule_that_is_far_behind_catches_up_with_all_its_slots() -> None:
    bench = CronBench()
    bench.rule("tick", overlap="allow", catch_up_ms=16 * HOUR_MS)
    bench.timelines.close()

    bench.clock.skew_ms += 16 * HOUR_MS
    bench.start()

    assert len(bench.ids()) == 16 * 60
    assert max(fired(bench).values()) == 1


def test_a_rule_that_is_far_behind_is_paused_behind_what_is_due() -> None:
    bench = CronBench()
    bench.rule("tick", overlap="allow", catch_up_ms=16 * HOUR_MS)
    bench.clock.skew_ms += 16 * HOUR_MS

    assert isinstance(bench.pause("tick"), int)

    assert len(bench.ids()) == 16 * 60
    assert bench.get_rule("tick").report.paused


def test_a_paused_rule_stays_paused_over_a_restart() -> None:
    bench = CronBench()
    bench.rule("tick")
    bench.pause("tick")

    bench.crash()
    bench.advance(HOUR_MS)

    assert bench.ids() == []


def test_a_buffered_slot_fires_after_a_restart() -> None:
    bench = CronBench()
    bench.rule("tick", overlap="buffer")
    client = bench.consume(lease_ms=HOUR_MS)
    bench.advance(TO_MINUTE_MS + MINUTE_MS)

    bench.crash()
    again = bench.consume(lease_ms=HOUR_MS)
    again.done("tick@2023-11-14T22:14:00Z")

    assert slots(client.begun_ids) == ["22:14"]
    assert slots(again.begun_ids) == ["22:14", "22:15"]


@pytest.mark.parametrize("who", ["holder", "owner"])
def test_a_buffered_slot_fires_when_the_one_before_it_was_finished_and_nobody_was_told(
    who: str,
) -> None:
    store = FailingStore()
    bench = CronBench(store)
    bench.rule("tick", "*/5 * * * *", overlap="buffer")
    client = bench.consume(lease_ms=HOUR_MS)
    bench.go_to("2023-11-14 22:20:30")
    name = "tick@2023-11-14T22:15:00Z"
    if who == "owner":
        client.release(name, bench.now_ms + HOUR_MS)

    store.fails_after = True
    told = client.done(name) if who == "holder" else bench.change(bench.deleting(name))
    store.fails_after = False
    bench.advance(2_000)

    assert isinstance(told, StorageFailedError)
    assert slots(client.begun_ids) == ["22:15", "22:20"]


def test_two_brokers_on_one_store_fire_each_slot_once() -> None:
    one = CronBench(MemoryStore())
    one.rule("tick", overlap="allow")
    other = twin(one)

    one.advance(TO_MINUTE_MS + 3 * MINUTE_MS)

    assert slots(one.ids()) == ["22:14", "22:15", "22:16", "22:17"]
    assert one.get_rule("tick").report.fired == 4
    assert other.get_rule("tick").report.fired == 4


def test_of_two_brokers_that_decide_at_once_one_is_refused_and_looks_again() -> None:
    store = FailingStore()
    one = CronBench(store)
    one.rule("tick", overlap="allow")
    other = twin(one)
    store.applied.clear()

    one.clock.skew_ms += MINUTE_MS
    one.rules.schedule()
    other.rules.schedule()
    one.settle()

    tried = [change for group in store.applied for work in group for change in work.changes]
    assert [type(change) for change in tried] == [Update, Put, Update, Put]
    assert slots(one.ids()) == ["22:14"]
    assert one.get_rule("tick").report.fired == 1


@pytest.mark.parametrize("turns", range(8))
def test_a_pause_is_not_lost_to_another_broker_that_fires_meanwhile(turns: int) -> None:
    one = CronBench(MemoryStore())
    one.rule("tick", overlap="allow")
    other = twin(one)
    told: list[object] = []

    # The time to make the message has come, and it is not due yet.
    one.clock.skew_ms += TO_MINUTE_MS - 5_000
    other.rules.pause("tick", group="shop", version=0, done=told.append)
    one.turn(turns)
    one.rules.schedule()
    one.settle()

    assert told == [one.get_rule("tick").row.version]
    assert one.get_rule("tick").report.paused
    assert one.ids() == []


def twin(bench: CronBench) -> CronBench:
    """Return another broker on the same store, in the same loop, by the same clock."""
    other = CronBench.__new__(CronBench)
    other.__dict__.update(bench.__dict__)
    other.start()
    return other


def test_a_slot_whose_message_is_there_is_stored_as_fired() -> None:
    bench = CronBench()
    bench.rule("tick")
    number = bench.rules.topic.number
    name = "tick@2023-11-14T22:14:00Z"
    bench.store.apply(0, [Work([Put(number, name, "shop", bench.now_ms, b"")])])

    bench.advance(TO_MINUTE_MS)

    assert bench.ids() == [name]
    assert bench.get_rule("tick").report.fired == 1


def test_rules_fire_when_the_storage_is_back() -> None:
    store = FailingStore()
    bench = CronBench(store)
    bench.rule("tick", overlap="allow")
    bench.advance(TO_MINUTE_MS - 15_000)

    store.fails_before = True
    bench.advance(MINUTE_MS)
    assert isinstance(bench.pause("tick"), StorageFailedError)
    store.fails_before = False
    bench.advance(2_000)

    assert slots(bench.ids()) == ["22:14"]


@pytest.mark.parametrize("while_planning", [False, True])
def test_rules_that_another_broker_made_while_the_storage_failed_us_are_found(
    monkeypatch: pytest.MonkeyPatch, *, while_planning: bool
) -> None:
    store = FailingStore()
    bench = CronBench(store)
    bench.rule("ours", overlap="allow")
    bench.advance(MINUTE_MS)

    def fail(*_: object) -> None:
        raise StorageFailedError("another broker has it")

    with monkeypatch.context() as patch:
        if while_planning:
            patch.setattr(store, "get", fail)
        else:
            store.fails_before = True
        bench.advance(MINUTE_MS)
    store.fails_before = False
    rule = parse_rule("* * * * *", overlap="allow")
    hidden = bench.rules.topic
    place = Place(next(t.number for t in store.topics() if t.name == HIDDEN), hidden.number)
    store.apply(
        bench.now_ms,
        [Work([first_row(place, "theirs", "shop", rule, b"go", b"", bench.now_ms)])],
    )
    bench.advance(3 * MINUTE_MS)

    assert max(fired(bench).values()) == 1
    assert len([name for name in bench.ids() if name.startswith("theirs@")]) >= 2
    assert slots([name for name in bench.ids() if name.startswith("ours@")]) == [
        f"22:{minute}" for minute in range(14, 19)
    ]


def test_a_rule_that_does_not_decode_is_told_and_holds_up_no_other() -> None:
    bench = CronBench()
    bench.rule("bad")
    bench.rule("good")
    bench.store.apply(0, [Work([Update(bench.rules.number, "bad", "shop", b"\xc1")])])

    bench.crash()
    bench.advance(TO_MINUTE_MS)

    assert [row.id for row in bench.messages()] == ["good@2023-11-14T22:14:00Z"]
    with pytest.raises(CorruptedError):
        bench.get_rule("bad")


def test_a_rule_that_does_not_decode_can_be_deleted() -> None:
    bench = CronBench()
    bench.rule("bad")
    bench.store.apply(0, [Work([Update(bench.rules.number, "bad", "shop", b"\xc1")])])

    assert isinstance(bench.drop("bad"), int)
    assert bench.list_rules() == []


# Topics


def test_rules_without_their_topic_are_removed_at_the_start() -> None:
    bench = CronBench()
    bench.store.create_topic("/default/gone#rules", "cron-rules", b"")

    bench.crash()

    assert [row.name for row in bench.store.topics()] == [HIDDEN, TOPIC]


def test_a_topic_can_be_made_though_rules_of_its_name_were_left_over() -> None:
    bench = CronBench()
    bench.store.create_topic("/default/gone#rules", "cron-rules", b"")

    assert bench.create("/default/gone", kind="cron") is None


def test_a_topic_without_its_rules_stops_the_start() -> None:
    bench = CronBench()
    bench.store.delete_topic(bench.rules.number)

    with pytest.raises(CorruptedError):
        bench.crash()


def test_nobody_takes_a_message_back_twice() -> None:
    bench = CronBench()
    bench.rule("tick")
    bench.advance(TO_MINUTE_MS - 1_000)
    bench.change(Delete(0, "tick@2023-11-14T22:14:00Z", "shop"))

    assert isinstance(bench.pause("tick"), int)
    bench.resume("tick")
    bench.advance(MINUTE_MS)

    # Its owner had deleted the message: that slot has had its turn.
    assert slots(bench.ids()) == ["22:15"]
