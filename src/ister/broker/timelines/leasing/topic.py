"""One timeline: hands each message to one consumer, when it is due or shortly before.

Always true:
- nothing is delivered before the store has its lease, nor to two consumers at once;
- the message that is due first, of the lowest level that has any, is leased first;
- a few rounds of leases are with the store at most. While one is, and while somebody is handed
  the leases of its name (*unsettled*), changes of owners wait: whether a consumer has a message
  that they are about is not known until then. While any of them waits nothing of this is begun
  anew, or those who open consumers all the time would have owners wait for ever;
- what is known of the store is void after it failed: everything is loaded anew.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial

from ister.base import Clock, TimelineKind, TimelineReport, TimelineSettings, Timer
from ister.base.errors import (
    CorruptedError,
    DiskFullError,
    IsterError,
    LimitReachedError,
    MessageLeasedError,
    StorageFailedError,
    TopicNotFoundError,
)
from ister.base.limits import KIB, MIB, PRIORITY_LEVELS, TIMELINE_CONSUMERS_MAX
from ister.broker.timelines.leasing.consumer import (
    Held,
    Reclaim,
    TimelineConsumer,
    TimelineSink,
    check_consumer,
)
from ister.broker.timelines.leasing.dead_letters import DeadLetterSink
from ister.broker.timelines.leasing.figures import TimelineFigures
from ister.broker.timelines.leasing.host import Host
from ister.broker.timelines.leasing.lease_recovery import LeaseRecovery
from ister.broker.timelines.leasing.rounds import Pick, pick, reach_ms
from ister.broker.timelines.leasing.throttle import ROUND_COUNT_MAX, Throttle
from ister.broker.timelines.leasing.unused_returns import UnusedReturns
from ister.broker.timelines.leasing.wake import Wake
from ister.broker.timelines.leasing.window import Room, Window, free_slot
from ister.broker.timelines.store import Committer
from ister.timeline import (
    FAR,
    Changed,
    Lease,
    Outcome,
    Outcomes,
    Release,
    Row,
    Scan,
    Slot,
    Work,
    run_scans,
)

# What the messages of a round may take in memory, going by those before them.
ROUND_BYTES = 4 * MIB
ROW_BYTES = 64 * KIB
# When the storage is tried again after it failed.
RETRY_S = 1.0
# When to look again while consumers of all topics have as many messages as they may.
FULL_MS = 100


class TimelineTopic:
    """One timeline, and who has which of its messages."""

    def __init__(
        self,
        name: str,
        number: int,
        settings: TimelineSettings,
        *,
        host: Host,
        clock: Clock,
        committer: Committer,
        room: Room,
    ) -> None:
        self.name = name
        self.number = number
        self.settings = settings
        self.levels = PRIORITY_LEVELS if settings.kind == TimelineKind.PRIORITY else 1
        self.figures = TimelineFigures()
        self.clock = clock
        self.committer = committer
        # Every message that a connected consumer has, by id.
        self.out: dict[str, Held] = {}
        self.closed = False
        # Told the number of every message that is gone.
        self.on_gone: Callable[[int], object] = lambda _: None
        self._unused_returns = UnusedReturns(settings.max_leases)
        # On their way to be everybody's: id and version.
        self._returning: set[tuple[str, int]] = set()
        # Called when the storage has come back.
        self.on_recovered: Callable[[], object] = lambda: None
        self._host = host
        self._room = room
        self._window = Window(room, self.levels)
        self._consumers: dict[str, TimelineConsumer] = {}
        # Those that are opened; who is first in the next round.
        self._rotation: deque[TimelineConsumer] = deque()
        self.dead_letters = DeadLetterSink(self, host)
        self._row_bytes = float(ROW_BYTES)
        self._throttle = Throttle(host.gives_way)
        self._loading = False
        self._unsettled = 0
        self._calls: deque[Reclaim] = deque()
        self._failed = False
        self._wake = Wake(clock, self.schedule)
        self._retry: Timer | None = None

    def report(self) -> TimelineReport:
        """Return what to tell of it."""
        now_ms = self.clock.now_ms()
        early = sum(held.due_ms > now_ms for held in self.out.values())
        due = self._window.count_due(now_ms)
        return TimelineReport(
            topic=self.name,
            settings=self.settings,
            consumers=len(self._consumers),
            due=due,
            due_ms=now_ms - self._window.next_ms() if due else 0,
            leases=len(self.out) - early,
            prefetched=early,
            delivered=self.figures.delivered,
            lost=self.figures.lost,
            buried=self.figures.buried,
            lateness=self.figures.buckets(),
            lateness_count=sum(self.figures.counts),
            lateness_s=self.figures.seconds,
            window=len(self._window),
            drift_us=max((c.drift_us for c in self._consumers.values()), key=abs, default=0),
        )

    @property
    def slots(self) -> int:
        """How many messages it has in memory that nobody has."""
        return len(self._window)

    def stop(self) -> None:
        """Do nothing more."""
        self.closed = True
        self._wake.stop()
        if self._retry is not None:
            self._retry.cancel()

    def close(self, reason: str) -> None:
        """It is gone: so are its consumers, and whoever waits for them is told."""
        self.stop()
        for consumer in list(self._consumers.values()):
            consumer.closed = True
            consumer.sink.consumer_closed(consumer.channel, reason)
        self._consumers.clear()
        self._rotation.clear()
        calls = {call: None for held in self.out.values() for call in held.calls}
        self._room.leases -= len(self.out)
        self.out.clear()
        self._window.clear()
        waiting, self._calls = self._calls, deque()
        for call in (*calls, *waiting):
            call.fail(TopicNotFoundError(self.name))

    # Consumers

    def consume(
        self,
        name: str,
        sink: TimelineSink,
        channel: int,
        *,
        lease_ms: int,
        prefetch_ms: int,
        credit: int,
        done: Callable[[TimelineConsumer | IsterError], object],
        fresh: bool = False,
    ) -> None:
        """Open a consumer. One of the same name gives way to it, with all it has."""
        try:
            check_consumer(
                name,
                lease_ms=lease_ms,
                lease_ms_max=self.settings.lease_ms_max,
                prefetch_ms=prefetch_ms,
                credit=credit,
            )
            if name not in self._consumers and len(self._consumers) >= TIMELINE_CONSUMERS_MAX:
                raise LimitReachedError("timeline_consumers_max", TIMELINE_CONSUMERS_MAX)
        except IsterError as error:
            done(error)
            return
        former = self._consumers.get(name)
        consumer = TimelineConsumer(
            self,
            name,
            sink,
            channel,
            lease_ms=lease_ms,
            prefetch_ms=prefetch_ms,
            credit=credit,
            fresh=fresh,
        )
        self._consumers[name] = consumer
        consumer.recovery = LeaseRecovery(self, consumer, done)
        consumer.recovery.advance()
        if former is not None:
            self._replace(former)

    def close_consumer(
        self, consumer: TimelineConsumer, kept: Collection[str] | None = None
    ) -> None:
        """A consumer is gone, be it by its own will or with its connection.

        Its application has the messages `kept`, or any that were due: then it is `None`.
        """
        if consumer.closed:
            return
        consumer.closed = True
        self._leave(consumer)
        del self._consumers[consumer.name]
        self.unsettle()
        given: tuple[list[Held], list[Held]] = ([], [])
        names = None if kept is None else frozenset(kept)
        begun_ms = self.begun_ms()
        for held in list(consumer.held.values()):
            early = held.early and begun_ms < held.due_ms
            unused = early if names is None else held.id not in names
            wanted = early and bool(held.calls)
            if unused and not wanted:
                given[self.allow_unused(held)].append(held)
            # It does not have those any more either that owners want to have.
            self.drop(held, kept=not (unused and early))
        for spared, messages in enumerate(given):
            self.give_back(messages, unused=bool(spared))
        self.settle()

    def _replace(self, former: TimelineConsumer) -> None:
        former.closed = former.replaced = True
        self._leave(former)
        self.unsettle()
        for held in list(former.held.values()):
            # It may not know yet that it is replaced, and hand these out.
            self.drop(held, kept=True)
        self.settle()
        former.sink.consumer_closed(former.channel, "another connection has taken its name")

    def _leave(self, consumer: TimelineConsumer) -> None:
        if consumer.opened:
            self._rotation.remove(consumer)

    def on_opened(self, consumer: TimelineConsumer) -> None:
        """A consumer may be given messages from now on."""
        consumer.opened = True
        self._rotation.append(consumer)

    def on_not_opened(self, consumer: TimelineConsumer) -> None:
        """The storage failed before a consumer was handed the leases of its name."""
        consumer.closed = True
        del self._consumers[consumer.name]

    def is_unknown(self, row: Row) -> bool:
        """Return whether nobody has a message, and nobody is giving it back."""
        return row.id not in self.out and (row.id, row.version) not in self._returning

    # Changes

    def wait_until_settled(self, call: Reclaim) -> bool:
        """Return whether `call` has to wait until it is known who has which message.

        It goes on then: `Reclaim.advance` is called.
        """
        if self._unsettled:
            self._calls.append(call)
        return self._unsettled > 0

    def revoke(self, call: Reclaim, messages: list[Held]) -> None:
        """Ask consumers for messages that are not due yet, unless they are being asked."""
        asked: dict[TimelineConsumer, list[tuple[str, int]]] = {}
        for held in messages:
            if not held.calls:
                asked.setdefault(held.consumer, []).append((held.id, held.version))
            held.calls[call] = None
        for consumer, names in asked.items():
            consumer.sink.revoke(consumer.channel, names)

    def on_revoked(
        self, consumer: TimelineConsumer, name: str, version: int, *, kept: bool
    ) -> None:
        """A consumer has answered. It may be too late for whoever wanted the message."""
        held = consumer.held.get(name)
        if held is None or held.version != version:
            return
        if kept:
            calls, held.calls = held.calls, {}
            for call in calls:
                call.answered(held, kept=True)
            return
        wanted = bool(held.calls)
        self.drop(held, kept=False)
        if not wanted:
            # It is due by now, or nobody asked: its consumer has let go of it all the same.
            self.give_back([held], unused=self.allow_unused(held))
        self.mark_dirty()

    def drop(self, held: Held, *, kept: bool) -> None:
        """A consumer does not have a message any more; `kept` if it might have dealt with it."""
        held.consumer.drop(held)
        if self.out.get(held.id) is held:
            del self.out[held.id]
            self._room.leases -= 1
        calls, held.calls = held.calls, {}
        for call in calls:
            call.answered(held, kept=kept)

    def allow_unused(self, held: Held) -> bool:
        """Return whether a message that its consumer gives back unused counts as no attempt."""
        return self.begun_ms() < held.due_ms or self._unused_returns.allow(held.seq)

    def as_owner_sees(self, row: Row) -> Row:
        """Return a message as its owner knows it: being sent ahead makes no other version."""
        held = self.out.get(row.id)
        if held is None or not held.former or held.version != row.version:
            return row
        is_early = held.early and self.begun_ms() < held.due_ms
        return row._replace(version=held.former) if is_early else row

    def give_back(self, messages: Sequence[Held], *, unused: bool = True) -> None:
        """Have messages that nobody was handed be everybody's again."""
        given = [held for held in messages if not self._is_out(held)]
        if not given or self.closed:
            return
        releases = [
            Release(self.number, h.id, h.consumer.name, h.version, h.due_ms, unused, h.former)
            for h in given
        ]
        # One of its name that comes meanwhile is not handed these.
        self._returning.update((held.id, held.version) for held in given)
        self.committer.add(Work([*releases]), lambda outcomes: self._on_given_back(given, outcomes))

    def _is_out(self, held: Held) -> bool:
        """Return whether a consumer was handed a message once more, as it is."""
        other = self.out.get(held.id)
        return other is not None and other.version == held.version

    def _on_given_back(self, given: list[Held], outcomes: Outcomes) -> None:
        self._returning.difference_update((held.id, held.version) for held in given)
        if isinstance(outcomes, IsterError):
            self.fail()
            return
        for held, outcome in zip(given, outcomes, strict=True):
            if isinstance(outcome, Changed):
                self.record(free_slot(outcome), held.level)

    def record(self, slot: Slot, level: int | None) -> None:
        """A message stands at `slot` by a commit. `None`: its level is not known."""
        if not self.closed and self._window.add(slot, level, self.clock.now_ms()):
            self.mark_dirty()

    def mark_dirty(self) -> None:
        """Look when this turn's share of the commit was told of."""
        self._host.mark_dirty(self)

    def forget(self, seq: int) -> None:
        """A message is gone by a commit."""
        self._window.forget(seq)
        self._unused_returns.forget(seq)
        self.dead_letters.forget(seq)
        self.on_gone(seq)

    # Handing out

    def schedule(self) -> None:
        """Do what is to be done now, and set the timer for the next thing."""
        if self.closed or self._failed:
            return
        self._serve()
        now_ms = self.clock.now_ms()
        for consumer in list(self._consumers.values()):
            for held in consumer.refresh(now_ms):
                self.drop(held, kept=True)
            if consumer.recovery is not None:
                consumer.recovery.advance()
        self._load(now_ms)
        self._lease(now_ms)
        self._wake.set(self._next_ms(now_ms), now_ms)

    def fail(self) -> None:
        """The storage failed: what it has is not known any more. Look again in a while."""
        if self.closed or self._failed:
            return
        self._failed = True
        self._window.clear()
        self._wake.stop()
        self._retry = self.clock.call_later(RETRY_S, self._recover)

    def is_failure(self, error: IsterError) -> bool:
        """Return whether an error says that nobody knows what the store has.

        Of a full disk that is known: what was to be changed is what it was.
        """
        if isinstance(error, DiskFullError):
            return False
        return isinstance(error, StorageFailedError | CorruptedError)

    def _recover(self) -> None:
        self._retry = None
        self._failed = False
        for consumer in list(self._rotation):
            # Leases may have been written that nobody was told of.
            consumer.recovery = LeaseRecovery(self, consumer)
        self.on_recovered()
        self.schedule()

    def _load(self, now_ms: int) -> None:
        scans = [] if self._loading else self._window.plan(now_ms)
        if not scans:
            return
        self._loading = True
        self.committer.query(partial(run_scans, topic=self.number, scans=scans), self._on_loaded)

    def _on_loaded(self, scans: list[Scan] | IsterError) -> None:
        self._loading = False
        if isinstance(scans, IsterError):
            self.fail()
        elif not self.closed and not self._failed:
            for scan in scans:
                self._window.loaded(scan)
            self.mark_dirty()

    def _lease(self, now_ms: int) -> None:
        """Begin a round of leases, unless enough are under way."""
        room = self._throttle.room(now_ms)
        if not room or self.is_awaited or not self._rotation:
            return
        limit = min(room, self.round_max(), self._room.leases_left)
        consumers = [consumer for consumer in self._rotation if consumer.recovery is None]
        run_max = self._throttle.run_max(now_ms)
        picks = pick(self._window, consumers, now_ms=now_ms, limit=limit, run_max=run_max)
        if not picks:
            return
        # Only now: a look without picks would have the same one be first again and again.
        self._rotation.rotate(-1 - self._rotation.index(picks[-1].consumer))
        leases = [
            Lease(
                self.number,
                slot.seq,
                slot.version,
                consumer.name,
                max(now_ms, slot.due_ms) + consumer.lease_ms,
            )
            for consumer, _, slot, _ in picks
        ]
        self._throttle.begin(min(one.slot.position_ms for one in picks), now_ms)
        self.unsettle()
        self.committer.add(Work([*leases]), lambda outcomes: self._on_leased(picks, outcomes))

    def _on_leased(self, picks: list[Pick], outcomes: Outcomes) -> None:
        self._throttle.end(self.clock.now_ms())
        for consumer, _, _, early in picks:
            consumer.reserved -= not early
            consumer.early_reserved -= early
        if self.closed:
            return
        try:
            if isinstance(outcomes, IsterError):
                self.fail()
            else:
                self.hand_over(self._leased(picks, outcomes))
        finally:
            # Also when a door fails on it: others wait.
            self.settle()

    def _leased(
        self, picks: list[Pick], outcomes: list[Outcome]
    ) -> dict[TimelineConsumer, list[tuple[Row, int]]]:
        """Return what consumers have been leased, each message with its version before."""
        handed: dict[TimelineConsumer, list[tuple[Row, int]]] = {}
        for (consumer, level, slot, _), outcome in zip(picks, outcomes, strict=True):
            if isinstance(outcome, Row):
                self.figures.lost += slot.held
                # Of one that was lost its owner knows nothing: it was handed out since.
                former = 0 if slot.held else slot.version
                handed.setdefault(consumer, []).append((outcome, former))
            elif isinstance(outcome, MessageLeasedError) and outcome.until_ms == slot.position_ms:
                # The clock went back. Of any other lease we were told.
                self.record(slot, level)
            elif isinstance(outcome, DiskFullError):
                self.fail()
        return handed

    def hand_over(
        self, handed: dict[TimelineConsumer, list[tuple[Row, int]]], *, again: bool = False
    ) -> None:
        """Send messages that are leased, each with its version before, to their consumers.

        `again`: they may have been handed over before, under the same leases, and were counted.
        """
        now_ms, begun_ms = self.clock.now_ms(), self.begun_ms()
        count = size = 0
        for consumer, pairs in handed.items():
            rows = []
            unsent: list[Held] = []
            for row, former in pairs:
                size += len(row.payload) + len(row.attributes)
                self._window.lease(row, now_ms)
                if 0 < self.settings.max_leases < row.leases:
                    self.dead_letters.add(row)
                elif not consumer.closed:
                    if row.id in self.out:
                        # It was finished without anybody being told: the storage failed then.
                        self.drop(self.out[row.id], kept=True)
                    self.out[row.id] = consumer.hold(row, former, begun_ms)
                    self._room.leases += 1
                    rows.append(row)
                elif not consumer.replaced:
                    unsent.append(Held(consumer, row, former, early=False))
            count += len(pairs)
            self.figures.delivered += 0 if again else len(rows)
            left = consumer.deliver(rows, again=again)
            unsent += [Held(consumer, row, 0, early=False) for row in left]
            if again:
                # A former life of it may deal with these: they are its until their leases end.
                unsent = [held for held in unsent if begun_ms < held.due_ms]
            self.give_back(unsent)
        if count:
            self._row_bytes = max(size / count, self._row_bytes * 0.5, KIB)
        self.dead_letters.begin()

    def round_max(self) -> int:
        """Return how many messages may be loaded with their payloads at once."""
        return max(1, min(ROUND_COUNT_MAX, int(ROUND_BYTES / self._row_bytes)))

    def has_room(self, consumer: TimelineConsumer) -> bool:
        """Return whether a consumer may have more messages."""
        return consumer.room > 0 and self._room.leases_left > 0

    def unsettle(self) -> None:
        """It is not known who has which message, until `settle` is called."""
        self._unsettled += 1

    def settle(self) -> None:
        """It is known who has what again: let changes of owners go on that waited for it."""
        self._unsettled -= 1
        self.mark_dirty()
        self._serve()

    @property
    def is_awaited(self) -> bool:
        """Whether owners wait until it is known who has which message."""
        return bool(self._calls)

    def _serve(self) -> None:
        while self._calls and not self._unsettled:
            self._calls.popleft().advance()

    # Time

    def begun_ms(self) -> int:
        """Return up to when messages have been due, whatever the clock says by now."""
        return self._host.max_clock.latest_ms()

    def _next_ms(self, now_ms: int) -> int:
        """Return when there is something to do, unless something is told to us before."""
        next_ms = FAR if self._loading else self._window.load_ms()
        if not self._throttle.room(now_ms):
            return min(next_ms, self._throttle.next_ms(now_ms))
        if not self._room.leases_left:
            # Nobody tells us when consumers of other topics have finished some.
            next_ms = min(next_ms, now_ms + FULL_MS)
        if any(consumer.room > 0 for consumer in self._rotation):
            due_ms = self._window.next_ms()
            if due_ms > now_ms:
                next_ms = min(next_ms, due_ms)
        reach = reach_ms(self._rotation)
        free_ms = self._window.next_free_ms()
        if reach and free_ms > now_ms:
            next_ms = min(next_ms, free_ms - reach // 2)
        return min(next_ms, *(consumer.next_ms() for consumer in self._rotation), FAR)
