"""Dead letters, storage that fails, clocks that are set, bursts, and a broker that crashes."""

import pytest
from tests.unit.broker.timelines.timelinebench import (
    LEASE_MS,
    TOPIC,
    Client,
    FailingStore,
    TimelineBench,
)

from ister.base import TimelineSettings
from ister.base.errors import (
    BadRequestError,
    CorruptedError,
    LimitReachedError,
    StorageFailedError,
    TimelineLeaseLostError,
    TopicExistsError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import NAME_BYTES_MAX
from ister.broker.timelines import Reject
from ister.broker.timelines.leasing import window as window_module
from ister.broker.timelines.store import committer as committer_module
from ister.timeline import RULES_KIND, Changed, TopicRow, Work

LETTERS = f"{TOPIC}-dlq"
PRIORITY = "/default/jobs"


def grant(client: Client) -> None:
    """Have the timeline look, and not more."""
    assert client.consumer is not None
    client.consumer.grant(0)


@pytest.fixture
def bench() -> TimelineBench:
    return TimelineBench()


def store_of(bench: TimelineBench) -> FailingStore:
    assert isinstance(bench.store, FailingStore)
    return bench.store


# Dead letters


def test_a_message_that_was_leased_too_often_goes_to_the_dead_letters() -> None:
    bench = TimelineBench(max_leases=2)
    client = bench.consume(lease_ms=1_000)
    bench.put("a", 0)

    bench.advance(5_000)

    assert client.ids == ["a", "a"]
    assert bench.report().buried == 1
    letters = bench.consume(topic=LETTERS)
    assert letters.ids == ["a"]
    assert isinstance(letters.done("a"), Changed)


def test_a_message_released_too_often_goes_to_the_dead_letters() -> None:
    bench = TimelineBench(max_leases=2, dead_letters="/default/dead")
    bench.create("/default/dead", max_leases=0)
    letters = bench.consume(topic="/default/dead")
    client = bench.consume()
    bench.put("a", 0)
    client.release("a", bench.now_ms)

    client.release("a", bench.now_ms)

    assert client.ids == ["a", "a"]
    assert letters.ids == ["a"]


def test_a_rejected_message_is_found_though_the_storage_failed_behind_that() -> None:
    bench = TimelineBench()
    bench.create(LETTERS, max_leases=0)
    letters = bench.consume(topic=LETTERS)
    client = bench.consume()
    bench.put("a", 0)

    store_of(bench).fails_after = True
    [error] = client.finish(Reject("a", client.rows[0].version))
    store_of(bench).fails_after = False
    bench.advance(2_000)

    assert isinstance(error, StorageFailedError)
    assert letters.ids == ["a"]


def test_a_message_that_its_consumer_does_not_have_is_not_rejected() -> None:
    bench = TimelineBench()
    client = bench.consume()
    bench.put("a", 0)

    [stale] = client.finish(Reject("a", client.rows[0].version - 1))
    [unknown] = client.finish(Reject("b", 1))

    assert isinstance(stale, TimelineLeaseLostError)
    assert isinstance(unknown, TimelineLeaseLostError)
    assert bench.report().buried == 0


def test_messages_given_back_unused_are_not_buried() -> None:
    bench = TimelineBench(max_leases=1)
    bench.put("a", 900)
    for _ in range(3):
        bench.consume(prefetch_ms=1_000).close()

    client = bench.consume()
    bench.advance(900)

    assert client.ids == ["a"]


def test_a_worn_message_waits_while_there_is_no_place_for_it() -> None:
    taken: list[str] = []
    bench = TimelineBench(find_kind=lambda name: "live" if name in taken else None)
    bench.create(PRIORITY, kind="priority", max_leases=1, dead_letters="/default/dead")
    taken.append("/default/dead")
    client = bench.consume(lease_ms=1_000, topic=PRIORITY)
    bench.put("a", 0, level=7, topic=PRIORITY)

    bench.advance(10_000)
    assert client.ids == ["a"]
    taken.clear()
    bench.advance(2_000)

    letters = bench.consume(topic="/default/dead")
    assert [(row.id, row.level) for row in letters.rows] == [("a", 7)]


def test_a_dead_letter_of_a_priority_topic_loses_its_level_in_a_plain_timeline() -> None:
    bench = TimelineBench()
    bench.create("/default/dead", max_leases=0)
    bench.create(PRIORITY, kind="priority", max_leases=1, dead_letters="/default/dead")
    letters = bench.consume(topic="/default/dead")
    client = bench.consume(topic=PRIORITY)
    bench.put("a", 0, level=7, topic=PRIORITY)

    client.release("a", bench.now_ms)

    assert [(row.id, row.level) for row in letters.rows] == [("a", 0)]
    assert isinstance(letters.done("a"), Changed)


def test_dead_letters_go_to_no_topic_of_rules(bench: TimelineBench) -> None:
    bench.create("/default/jobs", kind="cron")
    found = bench.create("/default/x", dead_letters="/default/jobs")

    assert isinstance(found, WrongKindError)
    assert not bench.timelines.has("/default/x")
    # Without dead letters it does not matter.
    assert bench.create("/default/x", dead_letters="/default/jobs", max_leases=0) is None


def test_a_name_that_leaves_no_room_for_that_of_the_dead_letters_needs_another(
    bench: TimelineBench,
) -> None:
    name = "/default/".ljust(NAME_BYTES_MAX, "x")

    assert isinstance(bench.create(name), BadRequestError)
    assert bench.create(name[:-4]) is None
    assert bench.create(name, dead_letters="/default/dead") is None


def test_a_topic_whose_making_seemed_to_fail_is_there_when_it_is_made_again() -> None:
    store = MakingStore()
    bench = TimelineBench(store)
    for kind in ("timeline", "cron"):
        name = f"/default/{kind}"
        store.is_silent = True
        assert isinstance(bench.create(name, kind=kind), StorageFailedError)
        store.is_silent = False
        assert not bench.timelines.has(name)

        assert isinstance(bench.create(name, kind=kind, max_leases=7), TopicExistsError)
        assert bench.report(name).settings.max_leases == 5
        assert bench.delete_topic(name) is None
        assert bench.create(name, kind=kind, max_leases=7) is None


def test_making_a_topic_again_that_seemed_to_fail_is_told_as_made() -> None:
    store = MakingStore()
    bench = TimelineBench(store)
    store.is_silent = True
    bench.create("/default/x")
    store.is_silent = False

    assert bench.create("/default/x") is None
    assert bench.timelines.has("/default/x")


class MakingStore(FailingStore):
    """Makes topics, and may not tell so."""

    is_silent = False

    def create_topic(self, name: str, kind: str, settings: bytes) -> TopicRow:
        made = super().create_topic(name, kind, settings)
        # The last one: that of a cron topic's rules is made before it.
        if self.is_silent and kind != RULES_KIND:
            raise StorageFailedError("the answer was lost")
        return made


def test_a_topic_is_not_its_own_topic_of_dead_letters(bench: TimelineBench) -> None:
    assert isinstance(bench.create("/default/x", dead_letters="/default/x"), BadRequestError)


# Storage that fails


@pytest.mark.parametrize("when", ["fails_before", "fails_after"])
def test_leases_that_may_have_been_written_are_handed_over_when_the_storage_is_back(
    bench: TimelineBench, when: str
) -> None:
    client = bench.consume()
    bench.put("a", 1_000)
    setattr(store_of(bench), when, True)
    bench.advance(2_500)
    assert client.ids == []

    setattr(store_of(bench), when, False)
    bench.advance(1_000)

    assert client.ids == ["a"]
    assert isinstance(client.done("a"), Changed)


def test_everybody_who_waits_is_told_that_the_storage_failed(bench: TimelineBench) -> None:
    store_of(bench).fails_before = True

    told = [bench.begin_change(bench.putting(str(slot), 0)) for slot in range(3)]
    bench.settle()

    assert all(isinstance(one[0], StorageFailedError) for one in told)
    assert bench.timelines.failures == 1


def test_what_was_written_by_work_that_failed_is_delivered(bench: TimelineBench) -> None:
    client = bench.consume()
    store_of(bench).fails_after = True
    assert isinstance(bench.put("a", 500), StorageFailedError)
    store_of(bench).fails_after = False

    bench.advance(1_000)

    assert client.ids == ["a"]


def test_a_message_taken_back_for_a_change_that_failed_comes_back(bench: TimelineBench) -> None:
    client = bench.consume(prefetch_ms=5_000)
    bench.put("a", 4_000)
    store_of(bench).fails_before = True

    assert isinstance(bench.change(bench.deleting("a")), StorageFailedError)
    store_of(bench).fails_before = False
    bench.advance(4_000)

    assert client.begun_ids == ["a"]


def test_a_bug_of_one_who_waits_costs_the_others_nothing(bench: TimelineBench) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError

    bench.timelines.change(TOPIC, [bench.putting("a", 0)], False, fail)
    told = bench.begin_change(bench.putting("b", 0))
    bench.settle()

    assert isinstance(told[0], list)
    assert bench.consume().ids == ["a", "b"]


def test_owners_are_held_up_when_too_much_waits(
    bench: TimelineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer_module, "WAITING_BYTES_MAX", 5)
    first = bench.begin_change(bench.putting("a", 0))

    second = bench.begin_change(bench.putting("b", 0))

    assert isinstance(second[0], LimitReachedError)
    bench.settle()
    assert isinstance(first[0], list)
    assert isinstance(bench.put("b", 0), Changed)


def test_work_that_gathers_is_committed_together_up_to_a_limit(
    bench: TimelineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer_module, "GROUP_CHANGES_MAX", 4)

    for slot in range(5):
        bench.begin_change(bench.putting(f"{slot}-a", 0), bench.putting(f"{slot}-b", 0))
    bench.settle()

    assert [len(work) for work in store_of(bench).applied] == [2, 2, 1]


# Clocks that are set


def test_a_clock_set_forward_makes_messages_due_within_a_second(bench: TimelineBench) -> None:
    client = bench.consume()
    bench.put("near", 5_000)
    bench.put("far", 3_600_000)

    bench.clock.skew_ms = 3_600_000
    bench.advance(1_000)

    assert client.ids == ["near", "far"]


def test_a_clock_set_back_makes_nothing_early(bench: TimelineBench) -> None:
    client = bench.consume(prefetch_ms=100)
    bench.put("a", 1_000)
    bench.advance(500)

    bench.clock.skew_ms = -10_000
    bench.advance(10_499)
    assert client.begun == []
    bench.advance(1)

    assert client.begun_ids == ["a"]


def test_a_lease_is_not_over_before_its_end_when_the_clock_is_set_back(
    bench: TimelineBench,
) -> None:
    first = bench.consume("first", lease_ms=1_000, credit=1)
    bench.put("a", 0)
    bench.advance(500)
    bench.clock.skew_ms = -5_000
    second = bench.consume("second")

    bench.advance(5_499)
    assert second.ids == []
    bench.advance(1)
    assert [*first.ids[1:], *second.ids] == ["a"]


# Bursts


def test_a_burst_at_one_millisecond_is_delivered_in_bounded_memory(bench: TimelineBench) -> None:
    count = 100_000
    number = bench.store.topics()[0].number
    burst = [bench.putting(str(slot), 20_000)._replace(topic=number) for slot in range(count)]
    bench.store.apply(bench.now_ms, [Work([*burst])])
    bench.crash()
    clients = [bench.consume(f"worker-{n}", credit=count) for n in range(4)]
    bench.advance(19_999)
    slots = [bench.timelines.slots]

    def on_delivered() -> bool:
        slots.append(bench.timelines.slots)
        return sum(len(client.rows) for client in clients) == count

    assert bench.begun == []
    bench.clock.skew_ms = 1
    grant(clients[0])
    bench.settle_until(on_delivered)

    assert max(slots) <= window_module.SLOTS_MAX
    assert len({row.id for _, _, row in bench.begun}) == count
    for client in clients:
        assert len(client.rows) == count // 4
        assert [row.seq for row in client.rows] == sorted(row.seq for row in client.rows)


def test_puts_into_the_window_stay_within_its_bounds(
    bench: TimelineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_module, "SLOTS_MAX", 100)
    bench.create("/default/b")
    for slot in range(1_000):
        bench.put(str(slot), 1_000 + (slot * 7_919) % 5_000, topic="/default/b")
        assert bench.timelines.slots <= 100

    client = bench.consume(credit=2_000, topic="/default/b")
    bench.advance(6_000)

    assert len(set(client.ids)) == len(client.ids) == 1_000
    assert [row.due_ms for row in client.rows] == sorted(row.due_ms for row in client.rows)


def test_slots_of_all_topics_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_module, "SLOTS_TOTAL", 200)
    bench = TimelineBench()
    names = [f"/default/t{n}" for n in range(5)]
    for name in names:
        bench.create(name)
        bench.change(*(bench.putting(str(n), 60_000) for n in range(500)), topic=name)
    bench.advance(55_000)
    assert bench.timelines.slots <= 500 + 5 * window_module.SLOTS_MIN
    clients = [bench.consume(credit=1_000, topic=name) for name in names]

    bench.advance(5_000)

    assert [len(client.ids) for client in clients] == [500] * 5


def test_an_extended_lease_leaves_little_behind(bench: TimelineBench) -> None:
    client = bench.consume(lease_ms=5_000)
    bench.put("a", 0)

    for _ in range(2_500):
        client.extend("a", bench.now_ms + 5_000)

    assert bench.timelines.slots == 1


# A broker that crashes


def test_after_a_crash_everything_goes_on(bench: TimelineBench) -> None:
    client = bench.consume("worker", prefetch_ms=1_000)
    bench.put("live", 0)
    bench.put("early", 800)
    bench.put("late", 50_000)

    bench.crash()
    other = bench.consume("other")
    again = bench.consume("worker")

    assert again.rows == client.rows
    assert isinstance(again.done("live"), Changed)
    again.quick = other.quick = True
    bench.advance(50_000)
    assert sorted(again.begun_ids + other.begun_ids) == ["early", "late", "live"]


def test_leases_of_one_that_does_not_come_back_after_a_crash_end(bench: TimelineBench) -> None:
    bench.consume("worker")
    bench.put("a", 0)

    bench.crash()
    other = bench.consume("other")

    bench.advance(LEASE_MS - 1)
    assert other.ids == []
    bench.advance(1)
    assert other.ids == ["a"]


# Topics


def test_topics_are_there_after_a_crash_with_their_settings() -> None:
    bench = TimelineBench(kind="priority", lease_ms_max=77_000, max_leases=3, dead_letters="/a/b")
    bench.crash()

    settings = TimelineSettings(
        kind="priority", lease_ms_max=77_000, max_leases=3, dead_letters="/a/b"
    )
    assert bench.timelines.names() == [TOPIC]
    assert bench.report().settings == settings


def test_a_name_is_given_once(bench: TimelineBench) -> None:
    told: list[object] = []
    bench.timelines.create("/default/b", TimelineSettings(), told.append)
    bench.timelines.create("/default/b", TimelineSettings(), told.append)
    bench.settle()

    assert isinstance(told[0], TopicExistsError)
    assert told[1] is None
    assert isinstance(bench.create(TOPIC), TopicExistsError)


@pytest.mark.parametrize(
    "settings",
    [{"kind": "later"}, {"lease_ms_max": 1}, {"max_leases": -1}, {"dead_letters": "x" * 256}],
)
def test_settings_out_of_bounds_are_refused(bench: TimelineBench, settings: dict[str, int]) -> None:
    assert isinstance(bench.create("/default/b", **settings), BadRequestError)


def test_a_topic_that_is_not_there_cannot_be_deleted(bench: TimelineBench) -> None:
    assert isinstance(bench.delete_topic("/default/b"), TopicNotFoundError)


@pytest.mark.parametrize("settings", [b"", b"\xc1", b"\x90", b"\x81\xa4kind\xa5later"])
def test_settings_that_cannot_be_read_stop_the_start(settings: bytes) -> None:
    bench = TimelineBench()

    with pytest.raises(CorruptedError):
        bench.timelines.adopt([TopicRow(9, "/default/x", "timeline", settings)])


def test_topics_of_kinds_that_come_later_are_left_alone(bench: TimelineBench) -> None:
    bench.timelines.adopt([TopicRow(9, "/default/x", "later", b"")])

    assert not bench.timelines.has("/default/x")


# Figures


def test_figures_tell_what_is_due_leased_and_late(bench: TimelineBench) -> None:
    client = bench.consume(credit=1, prefetch_ms=1_000)
    bench.put_many(["a", "b", "c"], 0)
    assert client.consumer is not None
    client.consumer.add_lateness([900, 1_500, 70_000_000])
    bench.advance(300)

    report = bench.report()
    assert (report.due, report.due_ms, report.leases, report.prefetched) == (2, 300, 1, 0)
    assert (report.consumers, report.delivered) == (1, 1)
    assert report.lateness[:3] == [(0.0005, 0), (0.001, 1), (0.002, 2)]
    assert report.lateness_count == 3
