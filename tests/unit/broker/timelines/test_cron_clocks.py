"""Cron rules that are changed while the clock is behind what it has shown: no time comes twice."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.timelines.cronbench import HOUR_MS, MINUTE_MS, CronBench, slots

ACTS = ["revise", "replace", "pause and resume"]


def change(bench: CronBench, act: str) -> None:
    """Have an owner change the rule, in a way that leaves it at every minute."""
    if act == "revise":
        bench.revise("tick", "*/1 * * * *", overlap="allow")
    elif act == "replace":
        bench.change(bench.updating("tick", b"new"))
    else:
        bench.pause("tick")
        bench.resume("tick")


def busy_bench() -> CronBench:
    """Return one whose rule of every minute has fired three times, and once ahead of its time."""
    bench = CronBench()
    consume(bench)
    bench.rule("tick")
    bench.go_to("2023-11-14 22:16:55")
    assert slots([row.id for _, _, row in bench.begun]) == ["22:14", "22:15", "22:16"]
    assert slots(bench.ids()) == ["22:17"]
    return bench


def consume(bench: CronBench) -> None:
    client = bench.consume(lease_ms=HOUR_MS, settle=False)
    # Before it has a message: one that is not finished is delivered again after a crash.
    client.quick = True
    bench.settle()


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("to", ["22:16:50", "22:14:30", "21:00:00"])
def test_no_slot_fires_twice_when_a_rule_is_changed_after_the_clock_was_set_back(
    to: str, act: str, restarted: bool
) -> None:
    bench = busy_bench()
    if restarted:
        bench.timelines.close()
    bench.set_clock(f"2023-11-14 {to}")
    if restarted:
        bench.start()
        consume(bench)
    change(bench, act)
    bench.go_to("2023-11-14 22:18:30")

    begun = [row.id for _, _, row in bench.begun]
    assert slots(begun) == ["22:14", "22:15", "22:16", "22:17", "22:18"]
    assert bench.get_rule("tick").report.fired == 5


def test_slots_that_were_dropped_are_not_decided_again_when_a_later_one_is_taken_back() -> None:
    bench = CronBench()
    client = bench.consume(lease_ms=HOUR_MS)
    bench.rule("tick", overlap="skip")
    bench.go_to("2023-11-14 22:16:30")
    client.done("tick@2023-11-14T22:14:00Z")
    bench.go_to("2023-11-14 22:16:55")
    assert slots(bench.ids()) == ["22:17"]

    bench.set_clock("2023-11-14 22:14:30")
    bench.pause("tick")
    bench.resume("tick")
    bench.go_to("2023-11-14 22:17:30")

    assert slots(client.begun_ids) == ["22:14", "22:17"]
    report = bench.get_rule("tick").report
    assert (report.fired, report.skipped) == (2, 2)


def test_a_slot_that_waits_does_not_fire_twice_when_the_one_before_it_was_made_ahead() -> None:
    bench = CronBench()
    bench.rule("tick", overlap="buffer")
    bench.go_to("2023-11-14 22:15:30")
    assert slots(bench.ids()) == ["22:14"]
    bench.timelines.close()

    bench.set_clock("2023-11-14 22:13:30")
    bench.start()
    bench.change(bench.updating("tick", b"new"))
    consume(bench)
    bench.go_to("2023-11-14 22:16:30")

    begun = [row.id for _, _, row in bench.begun]
    assert slots(begun) == ["22:14", "22:15", "22:16"]


def test_a_revised_rule_fires_at_its_own_times_though_one_of_the_former_was_taken_back() -> None:
    bench = CronBench()
    consume(bench)
    bench.rule("tick", "17 * * * *")
    bench.go_to("2023-11-14 22:16:55")
    bench.set_clock("2023-11-14 22:14:30")

    bench.revise("tick", "* * * * *")
    bench.go_to("2023-11-14 22:17:30")

    assert slots([row.id for _, _, row in bench.begun]) == ["22:15", "22:16", "22:17"]


acts = st.one_of(
    st.tuples(st.just("advance"), st.integers(1, 2 * MINUTE_MS)),
    st.tuples(st.just("set"), st.integers(-3 * MINUTE_MS, 2 * MINUTE_MS)),
    st.tuples(st.sampled_from([*ACTS, "pause", "resume", "crash"]), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["allow", "skip", "buffer"]), st.lists(acts, max_size=15))
def test_no_slot_fires_twice_however_the_clock_is_set(
    overlap: str, script: list[tuple[str, int]]
) -> None:
    bench = CronBench()
    consume(bench)
    bench.rule("tick", overlap=overlap)
    for act, number in script:
        match act:
            case "advance":
                bench.advance(number)
            case "set":
                bench.clock.skew_ms += number
                bench.advance(1_000)
            case "crash":
                bench.crash()
                consume(bench)
            case "pause" | "resume":
                getattr(bench, act)("tick")
            case _:
                change(bench, act)
    begun = Counter(row.id for _, _, row in bench.begun)

    assert max(begun.values(), default=1) == 1
