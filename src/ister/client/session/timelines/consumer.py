"""One consumer of a timeline, without I/O: messages that wait for their time, and their leases.

    waiting --due by the broker's clock--> ready --take()--> live --finish()--> gone
    waiting, ready --revoked, connection lost, left, given back, lease over--> gone

Always true:
- nothing is handed over before it is due by the broker's clock, as far as that is known, nor when
  its lease may be over by that clock: this process may have been stopped for a while;
- a message that was revoked or given back before it was handed over never is;
- on a lost connection what was not handed over is dropped, because the broker gives it back; what
  was stays the application's, and is claimed again under the same name of the consumer. What the
  application says about it meanwhile waits for the next connection;
- the lease of what was handed over is renewed while the application works on it, for
  `max_renewal_ms` at most; what it has not finished when the consumer is closed is released.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from msgspec import UNSET
from msgspec.structs import replace

from ister.base.errors import (
    BadRequestError,
    ConflictError,
    ConnectionLostError,
    IsterError,
    MessageNotFoundError,
    NotConnectedError,
    NotFoundError,
    ProtocolError,
    TimelineLeaseLostError,
)
from ister.base.limits import (
    CONTROL_BYTES_MAX,
    KEPT_COUNT_MAX,
    TIMELINE_CHANGES_MAX,
    TIMELINE_CREDIT_MAX,
)
from ister.client.session.calls import ignore
from ister.client.session.checks import cut_reason
from ister.client.session.futures import Future
from ister.client.session.renewal import MAX_RENEWAL_MS, RENEWAL_SLACK
from ister.client.session.timelines.changes import outcomes_for
from ister.client.session.timelines.clock import Lateness
from ister.client.session.timelines.credit import Credit, is_left
from ister.wire import (
    EXTEND,
    NO_LATENESS,
    RELEASE,
    RETURN,
    CloseConsumer,
    Command,
    ConsumeTimeline,
    FinishLeases,
    LeasesRevoked,
    RevokeLeases,
    TimelineChanged,
    TimelineDue,
    check_due,
    column,
    credit_frame,
)

if TYPE_CHECKING:
    from ister.client.session.port import SessionPort

# Finished futures are swept out when more than this have gathered.
WAITERS_KEPT = 16
# Messages that the application has and leaves to others are swept out when there are more.
LIVE_KEPT = 1_000
# Reasons in one command, each with 3 bytes of its own: a field that is no payload has 64 KiB.
REASONS_BYTES = 60_000
# Names that fit into a command, 4 bytes for each character and a few for each name. Of a consumer
# that has more in its hands, what it has not handed over waits for the end of its lease.
KEPT_CHARS_MAX = CONTROL_BYTES_MAX // 8
# What a broker may send beyond the credit: messages that are not due yet, and leases of a former
# life of the consumer.
BEYOND_CREDIT_MAX = 2 * TIMELINE_CREDIT_MAX

OnOutcome = Callable[[int | IsterError], object]


class Held:
    """A message that the broker has leased to us."""

    __slots__ = (
        "again",
        "attempt",
        "attributes",
        "claimed",
        "due_ms",
        "ending",
        "gone",
        "id",
        "lateness_us",
        "level",
        "moved_ms",
        "payload",
        "renew_ms",
        "since_ms",
        "until_ms",
        "version",
    )

    def __init__(
        self,
        id: str,
        version: int,
        due_ms: int,
        until_ms: int,
        attempt: int,
        payload: bytes,
        attributes: bytes,
        level: int,
    ) -> None:
        self.id = id
        self.version = version
        self.due_ms = due_ms
        # Its lease does not end before this, nor after it unless the answer of an extension is
        # still to come.
        self.until_ms = until_ms
        self.attempt = attempt
        self.payload = payload
        self.attributes = attributes
        self.level = level
        # Whether it is not to be handed over any more.
        self.gone = False
        # Whether another life of its consumer may have been handed it, before this one began; and
        # whether it was leased to the name before this connection.
        self.again = False
        self.claimed = False
        self.lateness_us = NO_LATENESS
        # Since when it could be handed over: it was due, and here.
        self.since_ms = due_ms
        # Of one that was handed over: whether the application is done with it, or gives it back;
        # and by our own clock when it was handed over or last extended, and is to be renewed.
        self.ending = False
        self.moved_ms = 0
        self.renew_ms = 0


class Finish:
    """What the application has said about a message, and who is to be told what came of it."""

    __slots__ = ("done", "held", "kind", "reason", "repeated", "time_ms", "version")

    def __init__(
        self, kind: int, held: Held, time_ms: int, done: OnOutcome, reason: str = ""
    ) -> None:
        self.kind = kind
        self.held = held
        self.time_ms = time_ms
        self.done = done
        # For the dead letter, if it is given back or rejected.
        self.reason = reason
        # Whether it was sent before, and nobody knows what came of that.
        self.repeated = False
        # The version of the message that it is sent with, or was last.
        self.version = held.version


class TimelineChannel:
    """One consumer of a timeline: messages that wait until they are due, and their leases."""

    def __init__(
        self, session: "SessionPort", command: ConsumeTimeline, max_renewal_ms: int = MAX_RENEWAL_MS
    ) -> None:
        self.channel = command.channel
        self.closed: IsterError | None = None
        self.lateness = Lateness()
        self._session = session
        self._command = command
        self._credit = Credit(command.credit)
        self._max_renewal_ms = max_renewal_ms
        # How long a lease lasts, as deliveries tell.
        self._lease_ms = command.lease_ms
        # Whether the broker knows of this consumer, and how often it has been opened.
        self._open = False
        self._lives = 0
        self._offline_ms = session.now_ms()
        # By time; and those whose time has come, by priority.
        self._waiting: list[tuple[int, int, Held]] = []
        self._ready: list[tuple[int, int, int, Held]] = []
        self._number = 0
        # Those in the two, and those that the application has, by id.
        self._held: dict[str, Held] = {}
        self._live: dict[str, Held] = {}
        self._live_max = LIVE_KEPT
        # Of the latter, how many the application is done with, or gives back.
        self._ending = 0
        self._outbox: list[Finish] = []
        self._waiters: list[Future] = []

    @property
    def command(self) -> ConsumeTimeline:
        """What opens it, for the first time or again."""
        return replace(self._command, credit=self._credit.level, fresh=self._lives == 0)

    # What the application's side calls

    def take(self, now_us: int | None) -> Held | None:
        """Return the next message that is due at `now_us` of the broker's clock, if there is one.

        Nothing is, while that is not known. Raises what ended the consumer.
        """
        if self.closed is not None:
            raise self.closed
        if now_us is None:
            return None
        waiting, ready = self._waiting, self._ready
        now_ms = now_us // 1000
        while waiting and waiting[0][0] <= now_ms:
            due_ms, number, held = heappop(waiting)
            heappush(ready, (held.level, due_ms, number, held))
        latest_ms = (now_us + self._session.timelines.spread_us) // 1000
        while ready:
            held = heappop(ready)[3]
            if held.gone:
                continue
            if latest_ms < held.until_ms:
                if ready and is_left(now_ms, held.since_ms, held.until_ms):
                    self.give_back(now_ms, but=held)
                return self._hand_over(held, now_us)
            del self._held[held.id]  # It is somebody else's by now, or may be.
        if self._open:
            self._ask_for_more()
        return None

    def _ask_for_more(self) -> None:
        busy = len(self._live) - self._ending
        more = self._credit.on_empty(busy, self._session.now_ms())
        if more:
            self._session.send(credit_frame(self.channel, more, 0))

    def give_back(self, now_ms: int, *, but: Held | None = None) -> None:
        """Let others have what the application has not got to, as if nobody had been sent it.

        Only what came on this connection: of leases from before it nobody can be sure that no other
        process has begun with them under our name.
        """
        left = [
            held
            for held in self._held.values()
            if is_left(now_ms, held.since_ms, held.until_ms)
            and held is not but
            and not held.claimed
        ]
        if not left or not self._open:
            return
        for held in left:
            held.gone = True
            del self._held[held.id]
        self._credit.on_given_back(len(left))
        returns = [Finish(RETURN, held, held.due_ms, ignore) for held in left]
        # Said once: after a lost connection these may be here again.
        for start in range(0, len(returns), TIMELINE_CHANGES_MAX):
            some = returns[start : start + TIMELINE_CHANGES_MAX]
            self._session.call(self._finishing(some), ignore)

    def _hand_over(self, held: Held, now_us: int) -> Held:
        del self._held[held.id]
        self._live[held.id] = held
        if len(self._live) > self._live_max:
            self._sweep(now_us // 1000)
        if held.attempt <= 1 and not held.again:
            held.lateness_us = now_us - held.due_ms * 1000
            self.lateness.add(held.lateness_us)
        held.moved_ms = self._session.now_ms()
        if self._max_renewal_ms:
            self._plan_renewal(held, now_us // 1000)
        return held

    def _sweep(self, now_ms: int) -> None:
        """Forget messages that the application left to others: their leases are over."""
        self._live = {name: held for name, held in self._live.items() if held.until_ms > now_ms}
        self._live_max = max(LIVE_KEPT, 2 * len(self._live))

    @property
    def next_due_ms(self) -> int | None:
        """When to call `take` again, if it returned nothing; `None` when nothing waits."""
        waiting = self._waiting
        while waiting and waiting[0][2].gone:
            heappop(waiting)
        return waiting[0][0] if waiting else None

    @property
    def held_count(self) -> int:
        """Messages that wait here to be handed over."""
        return len(self._held)

    def wait(self, waiter: Future) -> None:
        """Finish `waiter` when something has come, or the consumer has ended."""
        if len(self._waiters) > WAITERS_KEPT:
            self._waiters = [w for w in self._waiters if not w.done()]
        self._waiters.append(waiter)

    def wake(self) -> None:
        """Finish everybody who waits."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def finish(
        self, kind: int, held: Held, time_ms: int, done: OnOutcome, reason: str = ""
    ) -> None:
        """Have the broker told what becomes of a message, with the others of this turn."""
        if self.closed is not None:
            done(self.closed)
            return
        if kind == EXTEND:
            held.moved_ms = self._session.now_ms()
        else:
            held.ending = True
            self._ending += 1
        self._add(Finish(kind, held, time_ms, done, cut_reason(reason) if reason else ""))

    def renew(self, now_ms: int) -> int | None:
        """Renew the leases that are due; return when to look again, if there is anything left."""
        if not self._open or not self._max_renewal_ms:
            return None
        soon_ms = now_ms + self._lease_ms // RENEWAL_SLACK
        next_ms = None
        for held in self._live.values():
            if held.ending or now_ms - held.moved_ms >= self._max_renewal_ms:
                continue
            if held.renew_ms <= soon_ms:
                held.renew_ms = now_ms + max(1, self._lease_ms * 2 // 3)
                self._add(Finish(EXTEND, held, 0, ignore))
            next_ms = held.renew_ms if next_ms is None else min(next_ms, held.renew_ms)
        return next_ms

    def flush(self) -> None:
        """Send what was collected, if the broker knows us."""
        if not self._open or not self._session.can_publish:
            return
        outbox, self._outbox = self._outbox, []
        for finishes in _cut_finishes(outbox):
            self._send(finishes)

    def leave(self, reason: str = "") -> CloseConsumer:
        """Say what was collected; return what gives back all that was not handed over.

        Others get it at once, and no attempt is counted. What was handed over and is not finished
        is released for the `reason`, and counts.
        """
        reason = cut_reason(reason)
        for name, held in self._live.items():
            if not held.ending and name not in self._held:
                held.ending = True
                self._ending += 1
                self._add(Finish(RELEASE, held, 0, ignore, reason))
        # What was lost and is here again has not been handed over this time.
        kept = [name for name in self._live if name not in self._held]
        self._drop()
        self.flush()
        if len(kept) > KEPT_COUNT_MAX or sum(map(len, kept)) > KEPT_CHARS_MAX:
            return CloseConsumer(channel=self.channel)
        return CloseConsumer(channel=self.channel, kept=kept)

    # What the session calls

    def on_opened(self) -> None:
        """The broker knows of this consumer, for the first time or again."""
        self._open = True
        self._lives += 1
        self.flush()
        if self._live and self._max_renewal_ms:
            # Leases may have come near their ends without a connection.
            self._session.receivers.renew_by(self._session.now_ms())
        # Whoever waits may have nothing to wait for before it asks for more.
        self.wake()

    def on_disconnected(self) -> None:
        """The connection is lost."""
        self._open = False
        self._offline_ms = self._session.now_ms()
        self._credit.on_lost()
        self._drop()

    def on_due(self, due: TimelineDue) -> None:
        """Messages have come. Raises `ProtocolError` when they make no sense, or are too many."""
        check_due(due)
        count = len(due.ids)
        if len(self._held) + count > self._credit.most + BEYOND_CREDIT_MAX:
            raise ProtocolError("more messages of a timeline than there was credit for")
        rows = zip(
            due.ids,
            due.versions,
            due.due_ms,
            due.until_ms,
            due.attempts,
            due.payloads,
            column(due.attributes, count, b""),
            column(due.levels, count, 0),
            strict=True,
        )
        now_us = self._session.timelines.find_now_us() or 0
        for row in rows:
            held = Held(*row)
            held.since_ms = max(held.due_ms, now_us // 1000)
            self._lease_ms = max(self._lease_ms, held.until_ms - held.since_ms)
            if not (due.again and self._is_live(held)):
                # After a reconnect we know ourselves what was handed over.
                held.again = due.again and self._lives <= 1
                held.claimed = due.again
                self._hold(held)
        self._credit.on_held(len(self._held) + len(self._live), self._session.now_ms())
        if self._waiters:
            self.wake()

    def on_revoke(self, notice: RevokeLeases) -> None:
        """An owner wants messages back: they are, unless the application has them."""
        versions = column(notice.versions, len(notice.ids), 0)
        kept = []
        for name, version in zip(notice.ids, versions, strict=True):
            held = self._held.get(name)
            if held is not None and held.version == version:
                held.gone = True
                del self._held[name]
            live = self._live.get(name)
            kept.append(live is not None and live.version == version)
        answer = LeasesRevoked(
            channel=self.channel, ids=notice.ids, versions=list(versions), kept=kept
        )
        self._session.call(answer, ignore)

    def expire(self, now_ms: int, timeout_ms: int) -> None:
        """Tell those who have waited too long for a connection."""
        if self._outbox and not self._open and now_ms - self._offline_ms >= timeout_ms:
            self._fail_outbox(NotConnectedError("the broker", "no connection for too long"))

    def fail(self, error: IsterError) -> None:
        """End it; whoever waits is told why."""
        if self.closed is None:
            self.closed = error
        self._open = False
        self._drop()
        self._fail_outbox(error)
        self.wake()

    # Inner workings

    def _add(self, finish: Finish) -> None:
        if not self._outbox:
            self._session.timelines.mark_dirty(self)
        self._outbox.append(finish)

    def _is_alive(self, held: Held) -> bool:
        """Return whether the lease of a message cannot be over, as far as is known."""
        timelines = self._session.timelines
        now_us = timelines.find_now_us()
        return now_us is not None and ((now_us + timelines.spread_us) // 1000 < held.until_ms)

    def _earliest_ms(self, span_ms: int) -> int:
        """Return before when nothing ends that the broker lets last so long from now."""
        now_us = self._session.timelines.find_now_us()
        return 0 if now_us is None else now_us // 1000 + span_ms

    def _is_live(self, held: Held) -> bool:
        """Return whether the application has a message that was claimed again."""
        live = self._live.get(held.id)
        if live is None or (live.attempt, live.due_ms) != (held.attempt, held.due_ms):
            # It has none of that id, or left the one it had to others.
            return False
        # What was said before the connection was lost may have changed it.
        live.version, live.until_ms = held.version, held.until_ms
        return True

    def _hold(self, held: Held) -> None:
        former = self._held.get(held.id)
        if former is not None:
            former.gone = True
        self._held[held.id] = held
        self._number += 1
        heappush(self._waiting, (held.due_ms, self._number, held))

    def _drop(self) -> None:
        self._waiting.clear()
        self._ready.clear()
        self._held.clear()

    def _send(self, finishes: list[Finish]) -> None:
        def on_reply(reply: Command | IsterError) -> None:
            if isinstance(reply, ConnectionLostError) and self.closed is None:
                for finish in finishes:
                    finish.repeated = True
                # It is told on the next connection, before anything that was said since.
                self._outbox[:0] = finishes
                return
            if isinstance(reply, BadRequestError) and self.closed is not None:
                # The broker had ended it by then, and knows nothing of it any more.
                reply = self.closed
            outcomes = outcomes_for(reply, len(finishes))
            for slot, finish in enumerate(finishes):
                outcome = outcomes[slot]
                if finish.kind == EXTEND and not isinstance(outcome, IsterError):
                    finish.held.until_ms = _end_of(reply, slot)
                self._on_outcome(finish, outcome)

        for finish in finishes:
            finish.version = finish.held.version
            if finish.kind == EXTEND and finish.time_ms:
                # It may be shortened by that, and we may never hear of it.
                finish.held.until_ms = min(finish.held.until_ms, self._earliest_ms(finish.time_ms))
        self._session.call(self._finishing(finishes), on_reply)

    def _finishing(self, finishes: list[Finish]) -> FinishLeases:
        reasons = [finish.reason for finish in finishes]
        return FinishLeases(
            channel=self.channel,
            kinds=bytes([finish.kind for finish in finishes]),
            ids=[finish.held.id for finish in finishes],
            versions=[finish.version for finish in finishes],
            times_ms=[finish.time_ms for finish in finishes],
            lateness_us=[finish.held.lateness_us for finish in finishes],
            reasons=reasons if any(reasons) else UNSET,
        )

    def _on_outcome(self, finish: Finish, outcome: int | IsterError) -> None:
        held = finish.held
        is_lost = isinstance(outcome, TimelineLeaseLostError)
        if is_lost and finish.version != held.version and self.closed is None:
            # It is ours under another version: an extension was made, and its answer was lost.
            self._add(finish)
            return
        is_gone = is_lost or isinstance(outcome, MessageNotFoundError)
        if is_gone and finish.repeated and finish.kind != EXTEND and self._is_alive(held):
            # It was carried out the first time, and the answer got lost: nobody else could do so.
            outcome = held.version
        if finish.kind == EXTEND and not isinstance(outcome, IsterError):
            held.version = outcome
            now_us = self._session.timelines.find_now_us()
            self._plan_renewal(held, None if now_us is None else now_us // 1000)
        elif _is_final(outcome) and self._live.get(held.id) is held:
            del self._live[held.id]
        elif finish.kind != EXTEND:
            held.ending = False
        elif not finish.time_ms:
            # A renewal that the storage of the broker could not do: again before the lease ends.
            held.renew_ms = self._session.now_ms() + self._lease_ms // RENEWAL_SLACK
            self._session.receivers.renew_by(held.renew_ms)
        self._tell(finish, outcome)

    def _plan_renewal(self, held: Held, now_ms: int | None) -> None:
        """Have a lease renewed when two thirds of it are over; `now_ms` is the broker's time."""
        left_ms = self._lease_ms if now_ms is None else max(held.until_ms - now_ms, 0)
        held.renew_ms = self._session.now_ms() + left_ms * 2 // 3
        self._session.receivers.renew_by(held.renew_ms)

    def _tell(self, finish: Finish, outcome: int | IsterError) -> None:
        self._ending -= finish.kind != EXTEND
        finish.done(outcome)

    def _fail_outbox(self, error: IsterError) -> None:
        outbox, self._outbox = self._outbox, []
        for finish in outbox:
            self._tell(finish, error)


def _cut_finishes(finishes: list[Finish]) -> Iterator[list[Finish]]:
    """Cut what was said into pieces that fit into a command each."""
    start = size_bytes = 0
    for slot, finish in enumerate(finishes):
        added = len(finish.reason.encode()) + 3
        if slot - start == TIMELINE_CHANGES_MAX or size_bytes + added > REASONS_BYTES:
            yield finishes[start:slot]
            start, size_bytes = slot, 0
        size_bytes += added
    if start < len(finishes):
        yield finishes[start:]


def _end_of(reply: Command | IsterError, slot: int) -> int:
    """Return when a lease ends that was extended; 0 when we were not told."""
    ends_ms = reply.until_ms if isinstance(reply, TimelineChanged) else []
    return ends_ms[slot] if ends_ms else 0


def _is_final(outcome: int | IsterError) -> bool:
    """Whether a message is not ours any more: finished, or lost. Else it can be tried again."""
    return not isinstance(outcome, IsterError) or isinstance(outcome, ConflictError | NotFoundError)
