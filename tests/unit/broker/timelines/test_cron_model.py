"""A rule that is paused, resumed, crashed with and whose clock is moved, against a model of it."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.broker.timelines.cronbench import MINUTE_MS, CronBench

from ister.timeline import firing_id

# Around the edges: of a slot, and of the time in which its message is made before it is due.
steps_ms = st.one_of(
    st.sampled_from([1, 5_000, 9_999, 10_000, 30_000, 40_000, MINUTE_MS, 3 * MINUTE_MS]),
    st.integers(1, 2 * MINUTE_MS),
)
acts = st.one_of(
    st.tuples(st.just("advance"), steps_ms),
    st.tuples(st.just("skip"), steps_ms),
    st.tuples(st.sampled_from(["pause", "resume", "revise", "crash"]), st.just(0)),
    # The broker crashes so many turns of its loop after it was asked.
    st.tuples(st.sampled_from(["half pause", "half resume"]), st.integers(0, 12)),
)


class Model:
    """What a rule of every minute that may overlap must have made."""

    def __init__(self, consuming: bool) -> None:
        self.bench = CronBench()
        self.bench.rule("tick", overlap="allow")
        if consuming:
            self.bench.consume(prefetch_ms=5_000, lease_ms=3_600_000, credit=1_000)
        self.consuming = consuming
        self.paused = False
        # Slots behind this one are not accounted for yet.
        self.from_ms = self.bench.now_ms
        self.expected: set[str] = set()

    def act(self, act: str, number: int) -> None:
        bench = self.bench
        match act:
            case "advance":
                bench.advance(number)
            case "skip":
                # The clock is set on: the broker sees that within a second.
                bench.clock.skew_ms += number
                bench.advance(1_000)
            case "crash":
                self.crash()
            case "half pause" | "half resume":
                call = bench.rules.pause if act == "half pause" else bench.rules.resume
                call("tick", group="shop", version=0, done=lambda _: None)
                bench.turn(number)
                self.crash()
            case "revise":
                bench.revise("tick", "*/1 * * * *", overlap="allow")
            case _:
                getattr(bench, act)("tick")
        self.account()

    def crash(self) -> None:
        self.bench.crash()
        if self.consuming:
            self.bench.consume(prefetch_ms=5_000, lease_ms=3_600_000, credit=1_000)

    def account(self) -> None:
        """Have slots expected that have come since the last time, unless the rule was paused."""
        now_ms = self.bench.now_ms
        if not self.paused:
            first = self.from_ms // MINUTE_MS + 1
            for minute in range(first, now_ms // MINUTE_MS + 1):
                self.expected.add(firing_id("tick", minute * MINUTE_MS))
        self.from_ms = now_ms
        self.paused = self.bench.get_rule("tick").report.paused

    def check(self) -> None:
        now_ms = self.bench.now_ms
        made = self.bench.messages()
        assert {row.id for row in made if row.due_ms <= now_ms} == self.expected
        assert len(made) - len(self.expected) in (0, 1)
        assert self.bench.get_rule("tick").report.fired == len(self.expected)
        assert self.bench.get_rule("tick").report.missed == 0


@settings(max_examples=150, deadline=None)
@given(st.booleans(), st.lists(acts, max_size=12))
def test_every_slot_fires_once_unless_its_rule_is_paused(
    consuming: bool, script: list[tuple[str, int]]
) -> None:
    model = Model(consuming)
    for act, number in script:
        model.act(act, number)
        model.check()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([0, 1_000, 59_000]),
    st.integers(0, 9),
    st.lists(
        st.one_of(
            st.tuples(st.just("advance"), steps_ms),
            st.tuples(st.sampled_from(["set", "revise", "crash"]), st.integers(-MINUTE_MS, 0)),
        ),
        max_size=8,
    ),
)
# Set back by a millisecond, right before the first slot: it is due later than the timer rings.
@example(0, 0, [("advance", 39_001), ("set", -1)])
# The broker crashes when the client has a message that is not due yet.
@example(0, 0, [("advance", 39_996), ("crash", 0)])
def test_the_first_of_a_preview_is_always_what_comes_next(
    jitter_ms: int, rule: int, script: list[tuple[str, int]]
) -> None:
    # Which slots have which jitter follows from the id.
    name = f"tick-{rule}"
    bench = CronBench()
    client = bench.consume(prefetch_ms=5_000)
    client.quick = True
    bench.rule(name, overlap="allow", jitter_ms=jitter_ms)
    for act, number in script:
        match act:
            case "advance":
                bench.advance(number)
            case "set":
                bench.clock.skew_ms += number
                bench.advance(1_000)
            case "revise":
                bench.revise(name, "*/1 * * * *", overlap="allow", jitter_ms=jitter_ms)
            case _:
                bench.crash()
                # The client comes back, and gets again what it waits to begin with.
                client.heap.clear()
                client = bench.consume(prefetch_ms=5_000)
                client.quick = True
        _, preview = bench.told(lambda done: bench.rules.preview(name, 3, done))

        assert bench.get_rule(name).report.next_ms == preview[0]
    _, preview = bench.told(lambda done: bench.rules.preview(name, 3, done))
    begun = len(bench.begun)
    bench.go_to_ms(preview[-1])

    assert [row.due_ms for _, _, row in bench.begun[begun:]] == preview
