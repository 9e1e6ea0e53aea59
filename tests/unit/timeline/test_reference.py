"""A store against a reference of a page: what the guide says of messages, in a dictionary.

The reference knows nothing of the store's rules, nor of positions: a message has an owner, a due
time and maybe a lease. Between any two steps the store may be killed.
"""

import shutil
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.unit.timeline.acts import everything

from ister.base.errors import (
    IsterError,
    MessageChangedError,
    MessageExistsError,
    MessageLeasedError,
    MessageNotFoundError,
    NotOwnerError,
    TimelineLeaseLostError,
)
from ister.timeline import (
    FILE_NAME,
    Change,
    Delete,
    Done,
    Extend,
    Lease,
    Move,
    Put,
    Release,
    SqliteStore,
    Update,
    Work,
)

TOPIC = 1
names = st.sampled_from(["a", "b", "c"])
groups = st.sampled_from(["shop", "shop", "shop", "other"])
workers = st.sampled_from(["w-1", "w-1", "w-2"])
spans = st.sampled_from([1, 5, 20])
bodies = st.binary(max_size=3)
are_stale = st.sampled_from([False, False, False, True])


@dataclass
class Message:
    """What the guide says a message has."""

    seq: int
    version: int
    owner: str
    due_ms: int
    body: bytes
    attempts: int = 0
    worker: str = ""
    until_ms: int = 0


Told = type[IsterError] | None
Act = Callable[[dict[str, Message], int], Told]


class Timeline(RuleBasedStateMachine):
    """One topic of a store, and the reference beside it."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        self._lives = 0
        self._store = SqliteStore(Path(self._folder.name) / "0" / FILE_NAME)
        self._store.create_topic("/default/reminders", "timeline", b"")
        self._known: dict[str, Message] = {}
        self._now_ms = 1_000
        self._versions = {0}

    # What owners do

    @rule(name=names, group=groups, after_ms=spans, body=bodies)
    def put(self, name: str, group: str, after_ms: int, body: bytes) -> None:
        self._make([self._put(name, group, after_ms, body)])

    @rule(name=names, group=groups, stale=are_stale, after_ms=spans)
    def move(self, name: str, group: str, stale: bool, after_ms: int) -> None:
        self._make([self._move(name, group, stale, after_ms)])

    @rule(name=names, group=groups, stale=are_stale, body=bodies)
    def update(self, name: str, group: str, stale: bool, body: bytes) -> None:
        def act(message: Message) -> None:
            message.body = body

        change = Update(TOPIC, name, group, body, b"", self._version(name, stale))
        self._make([(change, self._owners(name, group, stale, act))])

    @rule(name=names, group=groups, stale=are_stale)
    def delete(self, name: str, group: str, stale: bool) -> None:
        self._make([self._delete(name, group, stale)])

    @rule(some=st.lists(st.tuples(st.integers(0, 2), names, groups, spans), min_size=2, max_size=4))
    def change_together(self, some: Sequence[tuple[int, str, str, int]]) -> None:
        changes = []
        for kind, name, group, after_ms in some:
            if kind == 0:
                changes.append(self._put(name, group, after_ms, b"tx"))
            elif kind == 1:
                changes.append(self._move(name, group, None, after_ms))
            else:
                changes.append(self._delete(name, group, None))
        self._make(changes, atomic=True)

    # What workers do

    @rule(name=names, worker=workers, span_ms=spans)
    def lease(self, name: str, worker: str, span_ms: int) -> None:
        message = self._known.get(name)
        if message is None:
            return
        until_ms = max(self._now_ms, message.due_ms) + span_ms

        def act(known: dict[str, Message], version: int) -> Told:
            found = known[name]
            if self._now_ms < found.until_ms:
                return MessageLeasedError
            found.worker, found.until_ms, found.version = worker, until_ms, version
            found.attempts += 1
            return None

        change = Lease(TOPIC, message.seq, message.version, worker, until_ms)
        self._make([(change, act)])

    @rule(name=names, worker=workers, stale=are_stale)
    def done(self, name: str, worker: str, stale: bool) -> None:
        change = Done(TOPIC, name, worker, self._version(name, stale, 1))
        self._make([(change, self._workers(name, worker, stale, None))])

    @rule(name=names, worker=workers, stale=are_stale, span_ms=spans)
    def extend(self, name: str, worker: str, stale: bool, span_ms: int) -> None:
        due_ms = self._known[name].due_ms if name in self._known else 0
        until_ms = max(self._now_ms, due_ms) + span_ms

        def act(message: Message) -> None:
            message.until_ms = until_ms

        change = Extend(TOPIC, name, worker, self._version(name, stale, 1), until_ms)
        self._make([(change, self._workers(name, worker, stale, act))])

    @rule(name=names, worker=workers, stale=are_stale, after_ms=spans, unused=st.booleans())
    def release(self, name: str, worker: str, stale: bool, after_ms: int, unused: bool) -> None:
        due_ms = self._now_ms + after_ms

        def act(message: Message) -> None:
            message.due_ms = due_ms
            message.attempts -= unused
            message.worker, message.until_ms = "", 0

        change = Release(TOPIC, name, worker, self._version(name, stale, 1), due_ms, unused)
        self._make([(change, self._workers(name, worker, stale, act))])

    # What happens

    @rule(span_ms=spans)
    def wait(self, span_ms: int) -> None:
        self._now_ms += span_ms

    @rule()
    def kill(self) -> None:
        """Go on with what is in the files at this moment, as another process would."""
        before = Path(self._folder.name) / f"{self._lives}"
        self._lives += 1
        after = before.with_name(f"{self._lives}")
        shutil.copytree(before, after)
        self._store.close()
        shutil.rmtree(before)
        self._store = SqliteStore(after / FILE_NAME)

    @rule()
    def close(self) -> None:
        self._store.close()

    @invariant()
    def nothing_else_is_there(self) -> None:
        found = {
            row.id: Message(
                row.seq,
                row.version,
                row.group,
                row.due_ms,
                row.payload,
                row.leases,
                row.holder,
                row.position_ms if row.holder else 0,
            )
            for row in everything(self._store, TOPIC)
        }
        assert found == self._known

    def teardown(self) -> None:
        self._store.close()
        self._folder.cleanup()

    # The reference

    def _put(self, name: str, group: str, after_ms: int, body: bytes) -> tuple[Change, Act]:
        due_ms = self._now_ms + after_ms

        def act(known: dict[str, Message], version: int) -> Told:
            if name in known:
                return MessageExistsError
            known[name] = Message(version, version, group, due_ms, body)
            return None

        return Put(TOPIC, name, group, due_ms, body), act

    def _move(self, name: str, group: str, stale: bool | None, after_ms: int) -> tuple[Change, Act]:
        due_ms = self._now_ms + after_ms

        def act(message: Message) -> None:
            message.due_ms = due_ms

        change = Move(TOPIC, name, group, due_ms, self._version(name, stale))
        return change, self._owners(name, group, bool(stale), act)

    def _delete(self, name: str, group: str, stale: bool | None) -> tuple[Change, Act]:
        change = Delete(TOPIC, name, group, self._version(name, stale))
        return change, self._owners(name, group, bool(stale), None)

    def _version(self, name: str, stale: bool | None, least: int = 0) -> int:
        """Return the version to ask for: `None` is any."""
        version = self._known[name].version if name in self._known else 7
        if stale is None:
            return 0
        # Not the version before: of the first message that would be 0, which is any.
        return version + 1_000 if stale else max(version, least)

    def _owners(
        self, name: str, group: str, stale: bool, act: Callable[[Message], None] | None
    ) -> Act:
        """Return what an owner's change comes to; without `act` the message is gone."""

        def run(known: dict[str, Message], version: int) -> Told:
            found = known.get(name)
            if found is None:
                return MessageNotFoundError
            if found.owner != group:
                return NotOwnerError
            if stale:
                return MessageChangedError
            is_due = found.due_ms <= self._now_ms
            if is_due and self._now_ms < found.until_ms:
                return MessageLeasedError
            if act is None:
                del known[name]
                return None
            # Who had it before its time has not had it.
            found.attempts -= bool(found.worker) and not is_due
            found.worker, found.until_ms, found.version = "", 0, version
            act(found)
            return None

        return run

    def _workers(
        self, name: str, worker: str, stale: bool, act: Callable[[Message], None] | None
    ) -> Act:
        """Return what a change of whoever has a message comes to; without `act` it is gone."""

        def run(known: dict[str, Message], version: int) -> Told:
            found = known.get(name)
            if found is None:
                return MessageNotFoundError
            if found.worker != worker or stale or found.until_ms <= self._now_ms:
                return TimelineLeaseLostError
            if act is None:
                del known[name]
                return None
            found.version = version
            act(found)
            return None

        return run

    def _make(self, pairs: Sequence[tuple[Change, Act]], *, atomic: bool = False) -> None:
        """Have changes made by both, and compare what is told of them."""
        work = Work([change for change, _ in pairs], atomic=atomic)
        [told] = self._store.apply(self._now_ms, [work])
        if isinstance(told, IsterError):
            refused = self._first_refusal(deepcopy(self._known), [act for _, act in pairs])
            assert type(told) is refused
            return
        for (_, act), outcome in zip(pairs, told, strict=True):
            version = 0 if isinstance(outcome, IsterError) else outcome.version
            expected = act(self._known, version)
            assert (type(outcome) if isinstance(outcome, IsterError) else None) is expected
            if expected is None:
                assert version > max(self._versions)
                self._versions.add(version)

    def _first_refusal(self, known: dict[str, Message], acts: Sequence[Act]) -> Told:
        for slot, act in enumerate(acts, max(self._versions) + 1):
            refused = act(known, slot)
            if refused is not None:
                return refused
        return None


TestTimeline = Timeline.TestCase
TestTimeline.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
