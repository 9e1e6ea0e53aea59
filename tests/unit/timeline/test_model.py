"""Whatever happens, the store in a file says and has the same as the one in memory."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.unit.timeline.acts import END, START, behind, everything

from ister.base.errors import IsterError
from ister.timeline import (
    FILE_NAME,
    Bury,
    Change,
    Delete,
    Done,
    Extend,
    Lease,
    MemoryStore,
    Move,
    Outcome,
    Outcomes,
    Put,
    Redrive,
    Release,
    Row,
    SqliteStore,
    Store,
    Update,
    Work,
)

TOPICS = (1, 2, 3)
topics = st.sampled_from(TOPICS)
names = st.sampled_from(["a", "b", "ä", "d-1"])
groups = st.sampled_from(["shop", "shop", "other"])
holders = st.sampled_from(["c-1", "c-1", "c-2"])
times = st.integers(0, 40)
payloads = st.sampled_from([b"", b"1", b"payload"])
# Versions and seqs: small numbers, which are often those of messages that are there.
numbers = st.integers(0, 60)


class Picks:
    """Changes that fit the messages that are there, as far as they are to."""

    def __init__(self, store: Store, draw: st.DataObject) -> None:
        self._rows = [row for topic in TOPICS for row in everything(store, topic)]
        self._draw = draw

    def change(self) -> Change:
        """Return any change: of a message that is there, or of numbers drawn by lot."""
        pick = self._draw.draw
        if len(self._rows) > 0 and pick(st.booleans()):
            return self._fitting(pick(st.sampled_from(self._rows)))
        topic, name, version = pick(topics), pick(names), pick(numbers)
        return pick(
            st.one_of(
                st.builds(Put, topics, names, groups, times, payloads, payloads, st.integers(0, 3)),
                st.just(Move(topic, name, "shop", pick(times), version)),
                st.just(Done(topic, name, "c-1", version)),
                st.just(Lease(topic, pick(numbers), version, pick(holders), pick(times))),
                st.builds(pick(st.sampled_from([Bury, Redrive])), topics, numbers, numbers, topics),
            )
        )

    def _fitting(self, row: Row) -> Change:
        pick = self._draw.draw
        topic, name, version = row.topic, row.id, pick(st.sampled_from([row.version, 0]))
        holder, time_ms = row.holder or "c-1", pick(times)
        changes: list[Change] = [
            Move(topic, name, row.group, time_ms, version),
            Update(topic, name, row.group, pick(payloads), pick(payloads), version),
            Delete(topic, name, row.group, version),
            Lease(topic, row.seq, row.version, pick(holders), time_ms),
            Lease(topic, row.seq, row.version, "c-1", time_ms),
            Extend(topic, name, holder, row.version, time_ms),
            Release(topic, name, holder, row.version, time_ms, pick(st.booleans())),
            Release(topic, name, holder, row.version, row.due_ms, True, pick(numbers)),
            Done(topic, name, holder, row.version, pick(st.sampled_from([0, row.seq]))),
            Bury(topic, row.seq, row.version, pick(topics), pick(st.booleans())),
            Bury(topic, row.seq, row.version, pick(topics), False, holder, "/a/1", "bad"),
            Redrive(topic, row.seq, row.version, pick(topics), pick(st.booleans())),
            Put(topic, name, row.group, time_ms, b"again"),
        ]
        return pick(st.sampled_from(changes))


class Stores(RuleBasedStateMachine):
    """Two stores that are given the same."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        self._memory = MemoryStore()
        self._sqlite = SqliteStore(Path(self._folder.name) / FILE_NAME)
        self._now_ms = 0

    @initialize()
    def create_topics(self) -> None:
        for name in ("/a/1", "/a/2", "/a/3"):
            assert self._memory.create_topic(name, "timeline", b"") == self._sqlite.create_topic(
                name, "timeline", b""
            )

    @rule(draw=st.data(), step_ms=st.integers(0, 5))
    def apply(self, draw: st.DataObject, step_ms: int) -> None:
        self._now_ms += step_ms
        picks = Picks(self._memory, draw)
        work = [
            Work(
                [picks.change() for _ in range(draw.draw(st.integers(0, 5)))],
                atomic=draw.draw(st.booleans()),
                begun_ms=self._now_ms + draw.draw(st.integers(-5, 5)),
            )
            for _ in range(draw.draw(st.integers(1, 3)))
        ]
        expected = self._memory.apply(self._now_ms, work)
        assert plain(self._sqlite.apply(self._now_ms, work)) == plain(expected)

    @rule(topic=topics)
    def delete_topic(self, topic: int) -> None:
        # Seldom: a topic that is gone is not made again.
        if self._now_ms > 60:
            self._memory.delete_topic(topic)
            self._sqlite.delete_topic(topic)

    @rule()
    def reopen(self) -> None:
        self._sqlite.close()

    @invariant()
    def they_have_the_same(self) -> None:
        one, two = self._memory, self._sqlite
        assert one.topics() == two.topics()
        for topic in TOPICS:
            rows = everything(one, topic)
            assert everything(two, topic) == rows
            assert one.levels(topic) == two.levels(topic)
            assert one.count(topic, 5, 20) == two.count(topic, 5, 20)
            for level in range(4):
                slots = one.scan(topic, level, START, END, 99)
                assert two.scan(topic, level, START, END, 99) == slots
            for holder in ("c-1", "c-2"):
                held = one.held(topic, holder, behind(self._now_ms), 999)
                assert two.held(topic, holder, behind(self._now_ms), 999) == held
            for row in rows:
                assert (row.holder == "") == (row.position_ms == row.due_ms)
                assert row.position_ms >= row.due_ms
                assert two.get(topic, row.id) == row

    def teardown(self) -> None:
        self._sqlite.close()
        self._folder.cleanup()


def plain(outcomes: Sequence[Outcomes]) -> list[object]:
    """Return outcomes that can be compared: errors by what they are and say."""

    def told(outcome: Outcome) -> object:
        if isinstance(outcome, IsterError):
            return (type(outcome), str(outcome))
        return (type(outcome), outcome)

    return [told(o) if isinstance(o, IsterError) else [told(one) for one in o] for o in outcomes]


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
