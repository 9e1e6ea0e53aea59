"""Anything may happen in any order, and still: never early, one lease, no change is undone.

Owners and consumers do as they like, connections and brokers vanish, the clock is set and the
storage fails, also between two turns of the loop. What is acknowledged is held against what
applications see; in the end every message that was not deleted was begun.
"""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.timelines.timelinebench import (
    GROUP,
    TOPIC,
    Client,
    FailingStore,
    TimelineBench,
)

from ister.base.errors import IsterError
from ister.broker.timelines import OwnersChange, TimelineTopic, finish_leases
from ister.broker.timelines.leasing import window as window_module
from ister.timeline import Changed, Delete, Done, Extend, Outcomes, Put, Release, Row

STEPS = 80
# A life takes about as long as ten examples of other properties.
LIVES = max(2, settings().max_examples // 10)
IDS = "abcdef"
WORKERS = ("one", "two", "three")
# So little that messages are left out and loaded again all the time.
NARROW = {
    "SLOTS_MAX": 4,
    "PRIORITY_SLOTS_MAX": 3,
    "SCAN_SLOTS": 2,
    "STALE_MAX": 2,
    "WINDOW_MS": 600,
    "LEAD_MS": 300,
}


class WatchedClient(Client):
    """Tells the model what it is sent, and what its application begins."""

    def __init__(self, model: "Model", name: str) -> None:
        super().__init__(model.bench, name)
        self.model = model

    def deliver(self, channel: int, rows: list[Row], *, again: bool = False) -> None:
        for row in rows:
            self.model.on_delivered(self, row)
        super().deliver(channel, rows, again=again)

    def begin(self) -> None:
        count = len(self.begun)
        super().begin()
        for now_ms, row in self.begun[count:]:
            self.model.on_begun(now_ms, row)


class Model:
    """One life of a timeline."""

    def __init__(self, seed: int, kind: str) -> None:
        self.random = Random(seed)
        self.store = FailingStore()
        self.bench = TimelineBench(self.store, kind=kind, max_leases=0)
        self.levels = 3 if kind == "priority" else 1
        self.clients: dict[str, WatchedClient] = {}
        # Also those that lost their connection: they may still be at work.
        self.workers: list[WatchedClient] = []
        # What owners were told, by seq.
        self.versions: dict[int, int] = {}
        self.deleted: set[int] = set()
        self.latest_ms = self.bench.now_ms
        self.wrong: list[str] = []

    @property
    def topic(self) -> TimelineTopic:
        return self.bench.timelines._topics[TOPIC]

    def step(self) -> None:
        steps: list[tuple[Callable[[], object], int]] = [
            (self.change, 12),
            (self.consume, 4),
            (self.lose, 2),
            (self.finish, 10),
            (self.advance, 10),
            (self.turn, 10),
            (self.set_clock, 1),
            (self.fail, 1),
            (self.repair, 2),
            (self.crash, 1),
        ]
        calls, weights = zip(*steps, strict=True)
        self.random.choices(calls, weights)[0]()
        self.latest_ms = max(self.latest_ms, self.bench.now_ms)
        self.check_counts()

    # Owners

    def change(self) -> None:
        changes = [self.any_change() for _ in range(self.random.randint(1, 4))]

        def done(outcomes: Outcomes) -> None:
            if isinstance(outcomes, IsterError):
                return
            for change, outcome in zip(changes, outcomes, strict=True):
                if isinstance(outcome, Changed):
                    self.on_changed(outcome)
                    self.versions[outcome.seq] = outcome.version
                    if isinstance(change, Delete):
                        self.deleted.add(outcome.seq)

        self.bench.timelines.change(TOPIC, changes, self.random.random() < 0.3, done)

    def any_change(self) -> OwnersChange:
        name, in_ms = self.random.choice(IDS), self.random.randint(-100, 3_000)
        match self.random.randrange(5):
            case 0:
                return self.bench.moving(name, in_ms)
            case 1:
                return self.bench.updating(name, b"other")
            case 2:
                return self.bench.deleting(name)
            case _:
                level = self.random.randrange(self.levels)
                return Put(0, name, GROUP, self.bench.now_ms + in_ms, b"x", b"", level)

    # Consumers

    def consume(self) -> None:
        client = WatchedClient(self, self.random.choice(WORKERS))
        client.answers = self.random.random() < 0.8
        self.clients[client.name] = client
        self.workers.append(client)
        self.bench.timelines.consume(
            TOPIC,
            client.name,
            client,
            1,
            lease_ms=self.random.choice([50, 1_000, 30_000]),
            prefetch_ms=self.random.choice([0, 200, 3_000]),
            credit=self.random.choice([1, 3, 100]),
            done=client.opened,
        )

    def any_client(self) -> WatchedClient | None:
        """Return a client that is connected, and not replaced."""
        clients = [c for c in self.clients.values() if c.consumer is not None and not c.closed]
        return self.random.choice(clients) if clients else None

    def lose(self) -> None:
        client = self.any_client()
        if client is not None and client.consumer is not None:
            client.heap.clear()
            client.consumer.close()
            del self.clients[client.name]

    def finish(self) -> None:
        client = self.any_client()
        if client is None or client.consumer is None or not client.working:
            return
        row = client.working.pop(self.random.choice(list(client.working)))
        at_ms = self.bench.now_ms + self.random.randint(-100, 3_000)
        match self.random.randrange(4):
            case 0:
                self.extend(client, row, at_ms)
            case 1:
                change = Release(0, row.id, "", row.version, at_ms)
                finish_leases(client.consumer, [change], lambda _: None)
            case _:
                finish_leases(client.consumer, [Done(0, row.id, "", row.version)], lambda _: None)

    def extend(self, client: WatchedClient, row: Row, until_ms: int) -> None:
        def done(outcomes: Outcomes) -> None:
            if isinstance(outcomes, list) and isinstance(outcomes[0], Changed):
                _, version, _, _, position_ms = outcomes[0]
                client.working[row.id] = row._replace(version=version, position_ms=position_ms)

        assert client.consumer is not None
        finish_leases(client.consumer, [Extend(0, row.id, "", row.version, until_ms)], done)

    # The world

    def advance(self) -> None:
        self.bench.advance(self.random.choice([1, 10, 100, 500, 2_000]))

    def turn(self) -> None:
        self.bench.turn(self.random.randint(1, 6))

    def set_clock(self) -> None:
        self.bench.clock.skew_ms += self.random.choice([-5_000, -50, 50, 5_000])

    def fail(self) -> None:
        setattr(self.store, self.random.choice(["fails_before", "fails_after"]), True)

    def repair(self) -> None:
        self.store.fails_before = self.store.fails_after = False

    def crash(self) -> None:
        for client in self.clients.values():
            client.heap.clear()
        self.clients.clear()
        if self.bench.now_ms < self.latest_ms:
            # The clock was set back, and nobody knows any more what was due before.
            for worker in self.workers:
                worker.working.clear()
        self.bench.crash()

    # What holds

    def on_delivered(self, client: WatchedClient, row: Row) -> None:
        self.latest_ms = max(self.latest_ms, self.bench.now_ms)
        self.expect(row.holder == client.name, "it is another one's")
        for other in self.workers:
            theirs = other.working.get(row.id)
            if theirs is None or theirs.seq != row.seq or other is client:
                continue
            if other.name == client.name:
                # It is this one's now, to finish it.
                del other.working[row.id]
            else:
                over = theirs.position_ms <= self.latest_ms
                self.expect(over, f"{client.name} has {row}, {other.name} has {theirs}")

    def on_changed(self, changed: Changed) -> None:
        self.latest_ms = max(self.latest_ms, self.bench.now_ms)
        for worker in self.workers:
            theirs = worker.working.get(changed.id)
            if theirs is not None and theirs.seq == changed.seq:
                over = theirs.position_ms <= self.latest_ms
                self.expect(over, f"changed while {worker.name} has {theirs}")

    def on_begun(self, now_ms: int, row: Row) -> None:
        self.expect(now_ms >= row.due_ms, "early")
        self.expect(row.seq not in self.deleted, "begun after it was deleted")
        known = self.versions.get(row.seq, 0)
        self.expect(row.version > known, f"begun as it was before change {known}: {row}")

    def expect(self, holds: bool, what: str) -> None:
        """Keep what is wrong for the end of the step: whoever tells us catches errors."""
        if not holds:
            self.wrong.append(what)

    def check_counts(self) -> None:
        assert self.wrong == []
        topic = self.topic
        held = {}
        for consumer in topic._consumers.values():
            assert consumer.early == sum(one.early for one in consumer.held.values())
            held.update(consumer.held)
            if not topic._throttle._rounds:
                assert consumer.reserved == consumer.early_reserved == 0
        assert topic.out == held
        assert topic._room.leases == len(held)
        levels = topic._window.levels
        assert self.bench.timelines.slots == sum(len(level.known) for level in levels)

    def check_window(self) -> None:
        """Every message that should be in memory is, when nothing is under way."""
        for row in self.store._rows.values():
            level = self.topic._window.levels[row.level]
            if (row.position_ms, row.seq) <= level.complete_to:
                slot = level.known[row.seq]
                assert (slot.position_ms, slot.version) == (row.position_ms, row.version)

    def end(self) -> None:
        """Let everything come to rest: nothing may be left over."""
        self.repair()
        self.bench.advance(5_000)
        self.check_window()
        last = WatchedClient(self, "last")
        last.quick = True
        self.bench.timelines.consume(
            TOPIC, "last", last, 1, lease_ms=1_000, prefetch_ms=200, credit=100, done=last.opened
        )
        while (client := self.any_client()) is not None:
            client.heap.clear()
            assert client.consumer is not None
            client.consumer.close()
            del self.clients[client.name]
        self.bench.advance(120_000)
        self.check_counts()
        assert not self.store._rows
        assert self.topic.out == {}
        assert self.bench.timelines.slots == 0


@pytest.mark.parametrize("window", [{}, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("kind", ["timeline", "priority"])
@settings(max_examples=LIVES)
@given(seed=st.integers(0, 2**32))
def test_a_timeline_keeps_its_promises_whatever_happens(
    kind: str, window: dict[str, int], seed: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in window.items():
            patch.setattr(window_module, name, value)
        model = Model(seed, kind)
        for _ in range(STEPS):
            model.step()
        model.end()
