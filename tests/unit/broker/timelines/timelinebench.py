"""Timelines on a store in memory, whose loop is a list and whose clock is moved, and clients."""

import pickle
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from ister.base import TimelineReport, TimelineSettings
from ister.base.errors import IsterError, StorageFailedError
from ister.broker import InlineWorker, WithStore
from ister.broker.timelines import (
    HoldersChange,
    OwnersChange,
    TimelineConsumer,
    Timelines,
    finish_leases,
)
from ister.testing import VirtualClock
from ister.testing.clock import START_MS, VirtualTimer
from ister.timeline import (
    FAR,
    Call,
    Delete,
    Done,
    Extend,
    MemoryStore,
    Move,
    Outcomes,
    Put,
    Release,
    Row,
    Update,
    Work,
)

TOPIC = "/default/reminders"
GROUP = "shop"
LEASE_MS = 10_000


class BenchClock(VirtualClock):
    """Lets the loop come to rest after every timer; its wall time can be set."""

    def __init__(self, settle: Callable[[], object]) -> None:
        super().__init__(START_MS)
        self._settle = settle
        self.skew_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.skew_ms

    def call_later(self, delay_s: float, call: Callable[[], object]) -> VirtualTimer:
        def act() -> None:
            call()
            self._settle()

        return super().call_later(delay_s, act)


class FailingStore(MemoryStore):
    """Fails when it is told to: before a change was written, or after."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_before = False
        self.fails_after = False
        self.applied: list[list[Work]] = []

    def apply(self, now_ms: int, work: Any) -> list[Outcomes]:
        if self.fails_before:
            self._check()
        self.applied.append(list(work))
        outcomes = super().apply(now_ms, work)
        self._check()
        return outcomes

    def held(self, topic: int, holder: str, after: tuple[int, int], limit: int) -> list[Row]:
        self._check()
        return super().held(topic, holder, after, limit)

    def _check(self) -> None:
        if self.fails_before or self.fails_after:
            raise StorageFailedError("the disk does not answer")


class Client:
    """A consumer as the SDK is one: keeps messages back until they are due, then begins them."""

    def __init__(self, bench: "TimelineBench", name: str) -> None:
        self.bench = bench
        self.name = name
        self.consumer: TimelineConsumer | None = None
        self.error: IsterError | None = None
        # What came, in order; and what was begun, each with the time.
        self.rows: list[Row] = []
        self.begun: list[tuple[int, Row]] = []
        self.working: dict[str, Row] = {}
        self.heap: list[tuple[int, int, Row]] = []
        self.batches: list[int] = []
        # Of those that came, the leases of a former life.
        self.again: list[str] = []
        self.asked: list[tuple[str, int]] = []
        self.closed: list[str] = []
        self.answers = True
        # Finishes each message at once.
        self.quick = False

    def opened(self, found: TimelineConsumer | IsterError) -> None:
        if isinstance(found, IsterError):
            self.error = found
        else:
            self.consumer = found

    # The sink

    def deliver(self, channel: int, rows: list[Row], *, again: bool = False) -> None:
        assert self.consumer is not None, "delivered before it was opened"
        assert not self.closed
        self.batches.append(len(rows))
        self.again += [row.id for row in rows if again]
        self.rows += rows
        for row in rows:
            heappush(self.heap, (row.due_ms, row.seq, row))
        for due_ms in {row.due_ms for row in rows}:
            self.begin_at(due_ms)

    def revoke(self, channel: int, messages: list[tuple[str, int]]) -> None:
        self.asked += messages
        if self.answers:
            for name, version in messages:
                self.bench.call_soon(lambda n=name, v=version: self.answer(n, v))

    def consumer_closed(self, channel: int, reason: str) -> None:
        self.closed.append(reason)
        self.heap.clear()
        self.working.clear()

    # The application

    def answer(self, name: str, version: int) -> None:
        if self.consumer is None or self.consumer.closed:
            return
        kept = not any(row.id == name and row.version == version for *_, row in self.heap)
        if not kept:
            self.heap = [one for one in self.heap if one[2].id != name]
            self.heap.sort()
        self.consumer.revoked(name, version, kept)

    def begin_at(self, due_ms: int) -> None:
        """Begin with what is due then. A timer goes by another clock, so look again."""
        self.begin()
        delay_ms = due_ms - self.bench.now_ms
        if delay_ms > 0:
            self.bench.clock.call_later(delay_ms / 1000, lambda: self.begin_at(due_ms))

    def begin(self) -> None:
        now_ms = self.bench.now_ms
        done = []
        while self.heap and self.heap[0][0] <= now_ms:
            row = heappop(self.heap)[2]
            if row.position_ms <= now_ms:
                continue  # The clock was set: it is somebody else's by now.
            self.begun.append((now_ms, row))
            self.bench.begun.append((now_ms, self.name, row))
            self.working[row.id] = row
            done.append(row)
        if self.quick and done:
            for row in done:
                del self.working[row.id]
            assert self.consumer is not None
            changes = [Done(0, row.id, "", row.version) for row in done]
            finish_leases(self.consumer, [*changes], lambda _: None)

    @property
    def is_awaiting(self) -> bool:
        """Whether a lease for it is with the store."""
        assert self.consumer is not None
        return self.consumer.reserved + self.consumer.early_reserved > 0

    @property
    def ids(self) -> list[str]:
        return [row.id for row in self.rows]

    @property
    def begun_ids(self) -> list[str]:
        return [row.id for _, row in self.begun]

    def finish(self, *changes: HoldersChange) -> list[Any]:
        """Make changes, and return what came of them."""
        assert self.consumer is not None
        told: list[Outcomes] = []
        finish_leases(self.consumer, list(changes), told.append)
        self.bench.settle()
        (outcomes,) = told
        return outcomes if isinstance(outcomes, list) else [outcomes]

    def done(self, name: str) -> Any:
        return self.finish(Done(0, name, "", self.working.pop(name).version))[0]

    def release(self, name: str, due_ms: int) -> Any:
        return self.finish(Release(0, name, "", self.working.pop(name).version, due_ms))[0]

    def extend(self, name: str, until_ms: int) -> Any:
        row = self.working[name]
        outcome = self.finish(Extend(0, name, "", row.version, until_ms))[0]
        if not isinstance(outcome, IsterError):
            self.working[name] = row._replace(version=outcome.version)
        return outcome

    def grant(self, credit: int) -> None:
        assert self.consumer is not None
        self.consumer.grant(credit)
        self.bench.settle()

    def close(self) -> None:
        """Close it, or lose its connection: what was not begun is dropped."""
        assert self.consumer is not None
        self.heap.clear()
        self.consumer.close()
        self.bench.settle()


class TravellingCalls(WithStore):
    """What is asked of a store goes to another process and back: here it is copied as for that."""

    def run(self, call: Call[Any], done: Callable[[Any], object]) -> None:
        copied = pickle.loads(pickle.dumps(call))
        super().run(copied, lambda told: done(pickle.loads(pickle.dumps(told))))


class TimelineBench:
    """Timelines with one line for each thing a test does to them."""

    def __init__(
        self,
        store: MemoryStore | None = None,
        *,
        find_kind: Callable[[str], str | None] = lambda _: None,
        **settings: Any,
    ) -> None:
        self._find_kind = find_kind
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self.store = store or FailingStore()
        self.clock = BenchClock(self.settle)
        self.begun: list[tuple[int, str, Row]] = []
        # How often somebody has published to a topic that is no timeline.
        self.published = 0
        self.start()
        if settings or store is None:
            self.create(TOPIC, **settings)

    def start(self) -> None:
        """Begin anew on the same store, as after a crash."""
        self._calls.clear()
        self.timelines = Timelines(
            TravellingCalls(self.store, InlineWorker(self.call_soon)),
            clock=self.clock,
            call_soon=self.call_soon,
            find_kind=self._find_kind,
            count_published=lambda: self.published,
        )
        self.timelines.adopt(self.store.topics())
        self.settle()

    def crash(self) -> None:
        """Forget everything but the store; nothing of what is under way is told to anybody."""
        self.timelines.close()
        self.start()

    def call_soon(self, call: Callable[..., object], *arguments: object) -> None:
        self._calls.append((call, arguments))

    def settle(self) -> None:
        while self._calls:
            call, arguments = self._calls.popleft()
            call(*arguments)

    def turn(self, calls: int) -> None:
        """Let the loop make some calls, and no more."""
        for _ in range(min(calls, len(self._calls))):
            call, arguments = self._calls.popleft()
            call(*arguments)

    def settle_until(self, holds: Callable[[], bool]) -> None:
        """Let the loop run until something holds, and stop right there."""
        while not holds():
            call, arguments = self._calls.popleft()
            call(*arguments)

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def advance(self, ms: int) -> None:
        self.settle()
        self.clock.advance(ms / 1000)
        self.settle()

    def create(self, name: str, **settings: Any) -> IsterError | None:
        told: list[IsterError | None] = []
        self.timelines.create(name, TimelineSettings(**settings), told.append)
        self.settle()
        return told[0]

    def delete_topic(self, name: str = TOPIC) -> IsterError | None:
        told: list[IsterError | None] = []
        self.timelines.delete(name, told.append)
        self.settle()
        return told[0]

    def report(self, name: str = TOPIC) -> TimelineReport:
        return self.timelines.report(name)

    def get(self, name: str, topic: str = TOPIC) -> Any:
        """Return a message, or why there is none."""
        told: list[Row | IsterError] = []
        self.timelines.get(topic, name, told.append)
        self.settle()
        return told[0]

    def page(self, topic: str = TOPIC) -> Any:
        """Return all messages in order."""
        told: list[list[Row] | IsterError] = []
        self.timelines.page(topic, 0, FAR, (0, 0), 100, told.append)
        self.settle()
        return told[0]

    # Owners

    def begin_change(
        self, *changes: OwnersChange, atomic: bool = False, topic: str = TOPIC
    ) -> list[Outcomes]:
        """Ask for changes; return the list that will have what came of them."""
        told: list[Outcomes] = []
        self.timelines.change(topic, list(changes), atomic, told.append)
        return told

    def change(self, *changes: OwnersChange, atomic: bool = False, topic: str = TOPIC) -> Any:
        """Make changes, and return what came of them; of one, alone."""
        told = self.begin_change(*changes, atomic=atomic, topic=topic)
        self.settle()
        (outcomes,) = told
        if isinstance(outcomes, list) and len(outcomes) == 1:
            return outcomes[0]
        return outcomes

    def put(self, name: str, in_ms: int, *, level: int = 0, topic: str = TOPIC) -> Any:
        return self.change(self.putting(name, in_ms, level), topic=topic)

    def put_many(self, names: list[str], in_ms: int) -> None:
        for start in range(0, len(names), 1_000):
            part = names[start : start + 1_000]
            self.change(*(self.putting(name, in_ms) for name in part))

    def putting(self, name: str, in_ms: int, level: int = 0) -> Put:
        return Put(0, name, GROUP, self.now_ms + in_ms, b"payload", b"", level)

    def moving(self, name: str, in_ms: int, version: int = 0) -> Move:
        return Move(0, name, GROUP, self.now_ms + in_ms, version)

    def updating(self, name: str, payload: bytes, version: int = 0) -> Update:
        return Update(0, name, GROUP, payload, b"", version)

    def deleting(self, name: str, version: int = 0) -> Delete:
        return Delete(0, name, GROUP, version)

    # Consumers

    def consume(
        self,
        name: str = "worker-1",
        *,
        lease_ms: int = LEASE_MS,
        prefetch_ms: int = 0,
        credit: int = 100,
        topic: str = TOPIC,
        settle: bool = True,
        fresh: bool = False,
    ) -> Client:
        client = Client(self, name)
        self.open(
            client,
            lease_ms=lease_ms,
            prefetch_ms=prefetch_ms,
            credit=credit,
            topic=topic,
            fresh=fresh,
        )
        if settle:
            self.settle()
        return client

    def open(
        self,
        client: Client,
        *,
        lease_ms: int = LEASE_MS,
        prefetch_ms: int = 0,
        credit: int = 100,
        topic: str = TOPIC,
        fresh: bool = False,
    ) -> None:
        """Open a consumer for a client, without waiting for it."""
        self.timelines.consume(
            topic,
            client.name,
            client,
            1,
            lease_ms=lease_ms,
            prefetch_ms=prefetch_ms,
            credit=credit,
            fresh=fresh,
            done=client.opened,
        )
