"""Cron topics: when rules fire, what their owners may do to them, and that nothing fires twice."""

import pytest
from tests.unit.broker.timelines.cronbench import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    TO_MINUTE_MS,
    CronBench,
    slots,
)
from tests.unit.broker.timelines.timelinebench import TOPIC

from ister.base.errors import (
    BadRequestError,
    LimitReachedError,
    MessageChangedError,
    MessageExistsError,
    MessageLeasedError,
    MessageNotFoundError,
    MessageTooLargeError,
    NotOwnerError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import CRON_PAYLOAD_BYTES_MAX
from ister.broker.timelines.cron import rules as cron_module
from ister.timeline import AHEAD_MS, Changed, Move, parse_rule


def test_a_rule_fires_at_each_of_its_times_and_never_early() -> None:
    bench = CronBench()
    bench.rule("tick", payload=b"now")
    client = bench.consume(prefetch_ms=500)
    client.quick = True
    start_ms = bench.now_ms + TO_MINUTE_MS

    bench.advance(TO_MINUTE_MS - 1)
    assert client.begun == []
    bench.advance(1 + 2 * MINUTE_MS)

    assert slots(client.begun_ids) == ["22:14", "22:15", "22:16"]
    assert [at_ms for at_ms, _ in client.begun] == [start_ms + n * MINUTE_MS for n in range(3)]
    assert {row.payload for _, row in client.begun} == {b"now"}
    assert bench.get_rule("tick").report.fired == 3


def test_the_message_of_a_slot_is_made_before_it_is_due_and_prefetched() -> None:
    bench = CronBench()
    bench.rule("tick")
    client = bench.consume(prefetch_ms=500)

    bench.advance(TO_MINUTE_MS - AHEAD_MS - 1)
    assert bench.ids() == []
    bench.advance(1)
    assert slots(bench.ids()) == ["22:14"]
    bench.advance(AHEAD_MS - 250)

    assert slots(client.ids) == ["22:14"]
    assert client.begun == []


def test_a_message_that_is_not_due_yet_does_not_count_as_fired() -> None:
    bench = CronBench()
    bench.rule("tick")
    bench.advance(TO_MINUTE_MS - 1)

    before = bench.get_rule("tick").report
    bench.advance(1)
    after = bench.get_rule("tick").report

    assert (before.fired, before.last_ms, before.next_ms) == (0, 0, bench.now_ms)
    assert (after.fired, after.last_ms, after.next_ms) == (
        1,
        bench.now_ms,
        bench.now_ms + MINUTE_MS,
    )


# Owners


def test_a_rule_of_a_taken_id_is_refused() -> None:
    bench = CronBench()
    bench.rule("tick")

    refused = bench.rule("tick", "0 9 * * *")

    assert isinstance(refused, MessageExistsError)
    assert "cron rule 'tick' exists already: update it" in str(refused)
    assert bench.get_rule("tick").report.expression == "* * * * *"


def test_only_the_group_that_made_a_rule_changes_it() -> None:
    bench = CronBench()
    bench.rule("tick")

    refused = [
        bench.pause("tick", group="other"),
        bench.resume("tick", group="other"),
        bench.revise("tick", "0 9 * * *", group="other"),
        bench.drop("tick", group="other"),
    ]

    assert [type(one) for one in refused] == [NotOwnerError] * 4
    assert bench.get_rule("tick").report.expression == "* * * * *"


def test_a_version_stays_while_a_rule_fires_and_changes_with_its_owners_changes() -> None:
    bench = CronBench()
    made = bench.rule("tick")
    bench.advance(10 * MINUTE_MS)
    assert bench.get_rule("tick").row.version == made

    paused = bench.pause("tick", version=made)
    stale = bench.resume("tick", version=made)
    resumed = bench.resume("tick", version=paused)

    assert made < paused < resumed
    assert isinstance(stale, MessageChangedError)
    assert stale.version == paused
    assert bench.get_rule("tick").row.version == resumed


def test_a_rule_made_anew_under_the_id_of_another_has_another_version() -> None:
    bench = CronBench()
    seen = {bench.rule("tick")}
    for hour in range(3):
        seen.add(bench.revise("tick", f"0 {hour} * * *"))
    bench.drop("tick")

    assert len(seen) == 4
    assert bench.rule("tick") not in seen


def test_what_is_paused_or_resumed_already_stays_as_it_is() -> None:
    bench = CronBench()
    made = bench.rule("tick")
    bench.advance(TO_MINUTE_MS - 1)

    assert bench.resume("tick") == made
    paused = bench.pause("tick")
    assert bench.pause("tick") == paused


def test_a_rule_that_is_not_there_is_not_found() -> None:
    bench = CronBench()

    answers = [bench.pause("no"), bench.drop("no"), bench.revise("no", "0 9 * * *")]

    assert [type(one) for one in answers] == [MessageNotFoundError] * 3


def test_nothing_fires_while_a_rule_is_paused_and_nothing_of_that_later() -> None:
    bench = CronBench()
    bench.rule("tick")
    client = bench.consume()
    client.quick = True
    bench.advance(TO_MINUTE_MS)

    bench.pause("tick")
    bench.advance(5 * MINUTE_MS)
    assert bench.get_rule("tick").report.next_ms == 0
    bench.resume("tick")
    bench.advance(MINUTE_MS)

    assert slots(client.begun_ids) == ["22:14", "22:20"]
    report = bench.get_rule("tick").report
    assert (report.fired, report.missed, report.skipped) == (2, 0, 0)


@pytest.mark.parametrize("prefetch_ms", [0, 5_000])
@pytest.mark.parametrize("act", ["pause", "drop", "revise"])
def test_a_message_made_ahead_of_its_time_is_taken_back_with_a_change_of_its_rule(
    act: str, prefetch_ms: int
) -> None:
    bench = CronBench()
    bench.rule("tick")
    client = bench.consume(prefetch_ms=prefetch_ms)
    bench.advance(TO_MINUTE_MS - 1)
    assert slots(bench.ids()) == ["22:14"]
    assert bool(client.rows) == bool(prefetch_ms)

    if act == "revise":
        bench.revise("tick", "0 9 * * *")
    else:
        getattr(bench, act)("tick")

    assert bench.ids() == []
    bench.advance(10 * MINUTE_MS)
    assert client.begun == []


def test_a_rule_paused_and_resumed_just_before_its_time_fires_once() -> None:
    bench = CronBench()
    bench.rule("tick")
    client = bench.consume(prefetch_ms=5_000, lease_ms=HOUR_MS)
    bench.advance(TO_MINUTE_MS - 1_000)

    bench.pause("tick")
    bench.resume("tick")
    bench.advance(MINUTE_MS - 1)

    assert slots(client.begun_ids) == ["22:14"]
    assert bench.get_rule("tick").report.fired == 1


def test_a_pause_waits_while_a_consumer_does_not_let_go_of_the_message() -> None:
    bench = CronBench()
    bench.rule("tick")
    client = bench.consume(prefetch_ms=5_000, lease_ms=HOUR_MS)
    client.answers = False
    bench.advance(TO_MINUTE_MS - 2_000)
    told: list[object] = []

    bench.rules.pause("tick", group="shop", version=0, done=told.append)
    bench.advance(1_999)
    assert told == []
    bench.advance(MINUTE_MS)

    # It was due meanwhile: it fires, and the rule is paused behind it.
    assert [type(one) for one in told] == [int]
    assert slots(client.begun_ids) == ["22:14"]
    assert bench.get_rule("tick").report.paused


def test_a_message_that_was_given_back_for_later_stays_when_its_rule_is_deleted() -> None:
    bench = CronBench()
    bench.rule("tick", "14 * * * *")
    client = bench.consume()
    bench.advance(TO_MINUTE_MS)
    client.release("tick@2023-11-14T22:14:00Z", bench.now_ms + HOUR_MS)

    bench.drop("tick")
    bench.advance(HOUR_MS)

    assert slots(client.begun_ids) == ["22:14", "22:14"]


def test_a_revised_rule_fires_by_its_new_times_with_its_new_payload() -> None:
    bench = CronBench()
    bench.rule("tick", payload=b"old")
    client = bench.consume()
    client.quick = True
    bench.advance(TO_MINUTE_MS)

    bench.revise("tick", "*/10 * * * *", payload=b"new")
    bench.go_to("2023-11-14 22:31")

    assert slots(client.begun_ids) == ["22:14", "22:20", "22:30"]
    assert [row.payload for _, row in client.begun] == [b"old", b"new", b"new"]


def test_a_paused_rule_that_is_revised_stays_paused_until_it_is_resumed() -> None:
    bench = CronBench()
    bench.rule("tick")
    bench.pause("tick")

    bench.revise("tick", "*/10 * * * *")
    bench.go_to("2023-11-14 22:31")
    assert bench.ids() == []
    bench.resume("tick")
    bench.go_to("2023-11-14 22:41")

    assert slots(bench.ids()) == ["22:40"]


def test_an_update_without_times_changes_the_payload_alone() -> None:
    bench = CronBench()
    bench.rule("tick", payload=b"old")

    assert isinstance(bench.change(bench.updating("tick", b"new")), Changed)

    found = bench.get_rule("tick")
    assert (found.row.payload, found.report.expression) == (b"new", "* * * * *")


def test_a_rule_is_deleted_as_a_message_is() -> None:
    bench = CronBench()
    bench.rule("tick")

    assert isinstance(bench.change(bench.deleting("tick")), Changed)

    with pytest.raises(MessageNotFoundError):
        bench.get_rule("tick")
    bench.advance(DAY_MS)
    assert bench.ids() == []


def test_rules_and_messages_are_changed_together_each_for_itself() -> None:
    bench = CronBench()
    bench.rule("tick", "14 * * * *")
    bench.advance(TO_MINUTE_MS)

    made, moved, put, missing = bench.change(
        bench.updating("tick", b"new"),
        bench.moving("tick@2023-11-14T22:14:00Z", HOUR_MS),
        bench.putting("other", 0),
        bench.deleting("no"),
    )

    assert isinstance(made, Changed)
    assert isinstance(moved, Changed)
    assert isinstance(put, WrongKindError)
    assert isinstance(missing, MessageNotFoundError)


def test_rules_are_not_moved_and_not_changed_in_transactions() -> None:
    bench = CronBench()
    bench.rule("tick")

    assert isinstance(bench.change(Move(0, "tick", "shop", bench.now_ms)), BadRequestError)
    refused = bench.change(bench.deleting("tick"), bench.deleting("other"), atomic=True)
    assert isinstance(refused, BadRequestError)
    assert bench.get_rule("tick")


def test_a_rule_on_another_kind_of_topic_is_refused() -> None:
    bench = CronBench()
    bench.create("/default/plain")

    with pytest.raises(WrongKindError, match="make a topic of kind cron"):
        bench.timelines.get_rules("/default/plain")
    with pytest.raises(TopicNotFoundError):
        bench.timelines.get_rules("/default/none")


def test_ids_of_rules_leave_room_for_those_of_their_messages() -> None:
    bench = CronBench()

    assert isinstance(bench.rule("a@b"), BadRequestError)
    assert isinstance(bench.rule("x" * 250), BadRequestError)
    assert isinstance(bench.rule(""), BadRequestError)
    assert isinstance(bench.rule("x" * 234), int)


def test_a_payload_over_the_limit_is_refused() -> None:
    bench = CronBench()
    most = b"x" * CRON_PAYLOAD_BYTES_MAX

    assert isinstance(bench.rule("tick", payload=most), int)
    refused = bench.rule("tock", payload=most + b"x")
    assert isinstance(refused, MessageTooLargeError)
    assert "which is fixed" in str(refused)
    assert isinstance(bench.revise("tick", "@daily", payload=most + b"x"), MessageTooLargeError)


def test_a_topic_has_so_many_rules_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cron_module, "CRON_RULES_MAX", 2)
    bench = CronBench()
    bench.rule("one")
    bench.rule("two")

    assert isinstance(bench.rule("three"), LimitReachedError)
    bench.drop("one")
    assert isinstance(bench.rule("three"), int)


def test_rules_are_listed_as_they_were_made_a_page_at_a_time() -> None:
    bench = CronBench()
    for number in range(5):
        bench.rule(f"r-{number}")

    first = bench.told(lambda done: bench.rules.page((-1, 0), 2, done))
    last = first[-1].row
    rest = bench.told(lambda done: bench.rules.page((last.position_ms, last.seq), 100, done))

    assert [one.row.id for one in (*first, *rest)] == [f"r-{number}" for number in range(5)]


def test_a_preview_tells_when_messages_will_be_due_with_their_jitter() -> None:
    bench = CronBench()
    bench.rule("tick", "0 * * * *", "Europe/Vienna", jitter_ms=MINUTE_MS)
    client = bench.consume()
    client.quick = True

    zone, times = bench.told(lambda done: bench.rules.preview("tick", 3, done))
    bench.advance(3 * HOUR_MS)

    assert zone == "Europe/Vienna"
    assert times == [at_ms for at_ms, _ in client.begun]
    assert any(at_ms % HOUR_MS for at_ms in times)
    assert isinstance(
        bench.told(lambda done: bench.rules.preview("no", 3, done)), MessageNotFoundError
    )


# Overlaps


def test_a_slot_is_skipped_while_the_message_before_is_not_done() -> None:
    bench = CronBench()
    bench.rule("tick", overlap="skip")
    client = bench.consume(lease_ms=HOUR_MS)
    bench.advance(TO_MINUTE_MS + 2 * MINUTE_MS)
    assert slots(client.begun_ids) == ["22:14"]

    client.done("tick@2023-11-14T22:14:00Z")
    bench.advance(MINUTE_MS)

    assert slots(client.begun_ids) == ["22:14", "22:17"]
    assert bench.get_rule("tick").report.skipped == 2


def test_a_slot_is_not_skipped_when_the_message_before_is_done_just_in_time() -> None:
    bench = CronBench()
    bench.rule("tick", overlap="skip")
    client = bench.consume(lease_ms=HOUR_MS)
    bench.advance(TO_MINUTE_MS + MINUTE_MS - 1)

    client.done("tick@2023-11-14T22:14:00Z")
    bench.advance(1)

    assert slots(client.begun_ids) == ["22:14", "22:15"]


def test_a_buffered_slot_fires_as_soon_as_the_message_before_is_done() -> None:
    bench = CronBench()
    bench.rule("tick", overlap="buffer")
    client = bench.consume(lease_ms=HOUR_MS)
    bench.advance(TO_MINUTE_MS + 2 * MINUTE_MS + 30_000)
    assert slots(client.begun_ids) == ["22:14"]

    client.done("tick@2023-11-14T22:14:00Z")

    assert slots(client.begun_ids) == ["22:14", "22:15"]
    assert bench.get_rule("tick").report.skipped == 1


def test_a_buffered_slot_fires_when_the_message_before_is_a_dead_letter() -> None:
    bench = CronBench(max_leases=1)
    bench.rule("tick", overlap="buffer")
    client = bench.consume(lease_ms=90_000)
    bench.advance(TO_MINUTE_MS + 90_000)

    assert slots(client.begun_ids) == ["22:14", "22:15"]
    assert bench.report().buried == 1


def test_slots_overlap_where_that_is_allowed() -> None:
    bench = CronBench()
    bench.rule("tick", overlap="allow")
    client = bench.consume(lease_ms=HOUR_MS)

    bench.advance(TO_MINUTE_MS + 2 * MINUTE_MS)

    assert slots(client.begun_ids) == ["22:14", "22:15", "22:16"]
    assert len(client.working) == 3


# Clocks


def test_in_the_night_the_clocks_go_on_a_rule_of_the_skipped_hour_fires_once() -> None:
    bench = CronBench()
    bench.set_clock("2024-03-30 00:00")
    bench.rule("nightly", "30 2 * * *", "Europe/Vienna")
    client = bench.consume()
    client.quick = True

    bench.go_to("2024-04-01 12:00")

    # 02:30 is 01:30 UTC in winter and 00:30 in summer; on the 31st it is 03:00 instead.
    assert slots(client.begun_ids) == ["01:30", "01:00", "00:30"]


def test_in_the_night_the_clocks_go_back_a_rule_of_the_repeated_hour_fires_once() -> None:
    bench = CronBench()
    bench.set_clock("2024-10-26 12:00")
    bench.rule("nightly", "30 2 * * *", "Europe/Vienna")
    bench.rule("hourly", "0 * * * *", "Europe/Vienna")
    client = bench.consume()
    client.quick = True

    bench.go_to("2024-10-28 12:00")

    fired = [name for name in client.begun_ids if name.startswith("nightly")]
    assert slots(fired) == ["00:30", "01:30"]
    assert len(client.begun_ids) - len(fired) == 48


def test_slots_that_a_clock_jumps_over_are_caught_up_with() -> None:
    bench = CronBench()
    bench.rule("tick", overlap="allow")
    client = bench.consume()
    client.quick = True
    bench.advance(TO_MINUTE_MS)

    bench.clock.skew_ms += 3 * MINUTE_MS
    bench.advance(2_000)

    assert slots(client.begun_ids) == ["22:14", "22:15", "22:16", "22:17"]


def test_a_rule_fires_in_time_by_a_clock_that_was_set_on_while_it_waited() -> None:
    bench = CronBench()
    bench.rule("tick", "0 * * * *")
    client = bench.consume()
    bench.advance(1_000)

    bench.clock.skew_ms += 20 * MINUTE_MS
    bench.advance(2_000)
    bench.go_to("2023-11-14 23:00")

    assert slots(client.begun_ids) == ["23:00"]


def test_no_slot_fires_again_when_the_clock_goes_back() -> None:
    bench = CronBench()
    bench.rule("tick")
    client = bench.consume()
    client.quick = True
    bench.advance(TO_MINUTE_MS + 2 * MINUTE_MS)

    bench.clock.skew_ms -= 2 * MINUTE_MS
    bench.advance(4 * MINUTE_MS)

    assert slots(client.begun_ids) == ["22:14", "22:15", "22:16", "22:17", "22:18"]


# Many


def test_thousands_of_rules_of_one_time_all_fire_and_few_timers_wait() -> None:
    bench = CronBench()
    names = [f"r-{number}" for number in range(2_000)]
    for name in names:
        bench.rules.put(
            name,
            group="shop",
            rule=parse_rule("0 * * * *"),
            payload=b"",
            attributes=b"",
            done=lambda _: None,
        )
    bench.settle()
    client = bench.consume(credit=5_000)
    client.quick = True

    bench.go_to("2023-11-14 23:00")

    assert sorted(client.begun_ids) == sorted(f"{name}@2023-11-14T23:00:00Z" for name in names)
    assert {at_ms for at_ms, _ in client.begun} == {bench.now_ms}


# Topics


def test_the_topic_of_the_rules_is_not_to_be_seen_and_goes_with_its_own() -> None:
    bench = CronBench()
    bench.rule("tick")

    assert bench.timelines.names() == [TOPIC]
    assert bench.delete_topic() is None
    assert bench.store.topics() == []
    bench.advance(DAY_MS)


def test_a_topic_made_anew_has_no_rules() -> None:
    bench = CronBench()
    bench.rule("tick")
    bench.delete_topic()

    bench.create(TOPIC, kind="cron")

    assert bench.list_rules() == []
    bench.advance(HOUR_MS)
    assert bench.ids() == []


def test_a_refused_pause_names_the_consumer_that_has_the_message() -> None:
    bench = CronBench()
    bench.rule("tick")
    client = bench.consume(prefetch_ms=5_000)
    bench.advance(TO_MINUTE_MS - 1_000)
    # The consumer says that its application has it, though it is not due.
    client.heap.clear()

    refused = bench.pause("tick")

    assert isinstance(refused, MessageLeasedError)
    assert refused.holder == "worker-1"


def test_a_message_is_handed_over_in_time_by_a_clock_that_was_set_on_just_before() -> None:
    bench = CronBench()
    bench.rule("tick")
    client = bench.consume()
    bench.advance(TO_MINUTE_MS - 5_000)

    bench.clock.skew_ms += 2_500
    bench.go_to("2023-11-14 22:14:00")

    assert slots(client.begun_ids) == ["22:14"]
