"""One connection that takes messages of a timeline, and what it has of them.

Always true:
- a message that was handed out stands in `held` until it is finished, given back, or its lease is
  over; those that are not due yet are counted apart (`early`);
- a message that is due now needs room among those that are due, and one sent ahead of its time
  room beside all of them: so the second kind never keeps out the first.
"""

from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from ister.base import span_text
from ister.base.errors import BadRequestError, IsterError
from ister.base.limits import (
    LEASE_MS_MIN,
    NAME_BYTES_MAX,
    PREFETCH_COUNT_MAX,
    PREFETCH_MS_MAX,
    TIMELINE_BYTES,
    TIMELINE_CHANGES_MAX,
    TIMELINE_CREDIT_MAX,
)
from ister.timeline import FAR, Row

if TYPE_CHECKING:
    from ister.broker.timelines.leasing.lease_recovery import LeaseRecovery
    from ister.broker.timelines.leasing.topic import TimelineTopic


class Reclaim(Protocol):
    """Changes of owners that wait until it is known who has their messages, or has let go of them.

    Known by identity.
    """

    def advance(self) -> object:
        """Go on: it is known who has which message."""

    def answered(self, held: "Held", *, kept: bool) -> None:
        """A consumer has let go of a message, or `kept` it, or cannot answer any more."""

    def fail(self, error: IsterError) -> None:
        """The topic is gone."""


class TimelineSink(Protocol):
    """The outside end of a connection."""

    def deliver(self, channel: int, rows: list[Row], *, again: bool = False) -> None:
        """Messages for a consumer, leased to it: due now, or to be kept back until they are.

        `again`: leases that its name had. One of that name may have begun with them before this
        one was opened, and their versions are in no order.
        """

    def revoke(self, channel: int, messages: list[tuple[str, int]]) -> None:
        """Ask for messages (id and version) that are not due yet: `revoked` is to be called."""

    def consumer_closed(self, channel: int, reason: str) -> None:
        """A consumer is gone, and not because it wanted to be."""


def check_consumer(
    name: str, *, lease_ms: int, lease_ms_max: int, prefetch_ms: int, credit: int
) -> None:
    """Raise `BadRequestError` for a consumer that cannot be."""
    if not 0 < len(name.encode(errors="replace")) <= NAME_BYTES_MAX:
        raise BadRequestError(f"the name of a consumer has 1 to {NAME_BYTES_MAX} bytes")
    if not LEASE_MS_MIN <= lease_ms <= lease_ms_max:
        raise BadRequestError(
            f"a lease is {span_text(LEASE_MS_MIN)} to {span_text(lease_ms_max)} (the topic's "
            f"max_lease), not {span_text(lease_ms)}"
        )
    if not 0 <= prefetch_ms <= PREFETCH_MS_MAX:
        raise BadRequestError(
            f"prefetch is 0 to {span_text(PREFETCH_MS_MAX)}, not {span_text(prefetch_ms)}"
        )
    if not 0 <= credit <= TIMELINE_CREDIT_MAX:
        raise BadRequestError(f"credit is 0 to {TIMELINE_CREDIT_MAX}, not {credit}")


class Held:
    """A message that a consumer has."""

    __slots__ = (
        "calls",
        "consumer",
        "due_ms",
        "early",
        "former",
        "group",
        "id",
        "level",
        "seq",
        "until_ms",
        "version",
    )

    def __init__(self, consumer: "TimelineConsumer", row: Row, former: int, *, early: bool) -> None:
        self.consumer = consumer
        self.id = row.id
        self.version = row.version
        # The version before it was leased, which its owner may know; 0 when that is not known.
        self.former = former
        self.group = row.group
        self.seq = row.seq
        self.level = row.level
        self.due_ms = row.due_ms
        self.until_ms = row.position_ms
        # Whether it was not due yet when somebody last looked.
        self.early = early
        # Owners that want it back, in order.
        self.calls: dict[Reclaim, None] = {}


class TimelineConsumer:
    """One connection that takes messages of a timeline."""

    __slots__ = (
        "_dues",
        "_first_end_ms",
        "channel",
        "closed",
        "credit",
        "drift_us",
        "early",
        "early_reserved",
        "fresh",
        "held",
        "lease_ms",
        "name",
        "opened",
        "prefetch_ms",
        "recovery",
        "replaced",
        "reserved",
        "sink",
        "topic",
    )

    def __init__(
        self,
        topic: "TimelineTopic",
        name: str,
        sink: TimelineSink,
        channel: int,
        *,
        lease_ms: int,
        prefetch_ms: int,
        credit: int,
        fresh: bool = False,
    ) -> None:
        self.topic = topic
        self.name = name
        self.sink = sink
        self.channel = channel
        self.lease_ms = lease_ms
        self.prefetch_ms = prefetch_ms
        self.credit = credit
        # Whether a new process has opened it, whose application has none of the leases of its name.
        self.fresh = fresh
        # How far our clock is ahead of its own, by its own account.
        self.drift_us = 0
        # Whether it has been handed the leases its name has; whether it is gone, and whether
        # another connection of its name has taken its place.
        self.opened = False
        self.closed = False
        self.replaced = False
        # The leases of its name that it is yet to be handed.
        self.recovery: LeaseRecovery | None = None
        self.held: dict[str, Held] = {}
        # Of these, how many are not due yet.
        self.early = 0
        # On their way to be leased: due, and not.
        self.reserved = 0
        self.early_reserved = 0
        # When those that are not due yet are, with their ids; and before when no lease ends.
        self._dues: list[tuple[int, str]] = []
        self._first_end_ms = FAR

    # For doors

    def grant(self, credit: int) -> None:
        """Let it have so many messages more at once."""
        self.credit = min(self.credit + credit, TIMELINE_CREDIT_MAX)
        self.topic.schedule()

    def lower(self, credit: int) -> None:
        """Let it have so many messages less at once, maybe none until it is granted some."""
        self.credit = max(0, self.credit - credit)

    def revoked(self, id: str, version: int, kept: bool) -> None:  # noqa: FBT001 - the door's shape
        """Answer to `TimelineSink.revoke`: `kept` when the application has the message."""
        self.topic.on_revoked(self, id, version, kept=kept)

    def add_lateness(self, lateness_us: Sequence[int]) -> None:
        """Count how much later than due messages were handed to the application."""
        self.topic.figures.add_lateness(lateness_us)

    def leave(self, kept: Collection[str] | None, done: Callable[[], object]) -> None:
        """It is gone by its own will, and its application has the messages `kept`.

        What else it was sent is given back; `done` is called when that is stored, also of what was
        on its way to it. `None`: which ones its application has is not known.
        """
        self.topic.close_consumer(self, kept)
        self.topic.committer.flush(done)

    def close(self) -> None:
        """It is gone: what is not due yet is given back. Harmless when it was gone before."""
        self.topic.close_consumer(self)

    # For its topic

    @property
    def room(self) -> int:
        """How many messages that are due it may be given."""
        return self.credit - (len(self.held) - self.early) - self.reserved

    @property
    def early_room(self) -> int:
        """How many messages it may be sent ahead of their time.

        Those count against the credit that is left, or a busy consumer would be sent what others
        have time for.
        """
        if not self.prefetch_ms:
            return 0
        return min(self.room, PREFETCH_COUNT_MAX) - self.early - self.early_reserved

    def hold(self, row: Row, former: int, begun_ms: int) -> Held:
        """It has a message now."""
        early = begun_ms < row.due_ms
        held = self.held[row.id] = Held(self, row, former, early=early)
        if early:
            self.early += 1
            heappush(self._dues, (row.due_ms, row.id))
        self._first_end_ms = min(self._first_end_ms, row.position_ms)
        return held

    def drop(self, held: Held) -> None:
        """It does not have a message any more."""
        if self.held.get(held.id) is held:
            del self.held[held.id]
            self.early -= held.early

    def extended(self, held: Held, version: int, until_ms: int) -> None:
        """It has a message for longer, or shorter."""
        held.version = version
        held.until_ms = until_ms
        self._first_end_ms = min(self._first_end_ms, until_ms)

    def refresh(self, now_ms: int) -> list[Held]:
        """Count what has become due; return the messages whose leases are over."""
        while self._dues and self._dues[0][0] <= now_ms:
            due_ms, name = heappop(self._dues)
            held = self.held.get(name)
            if held is not None and held.early and held.due_ms == due_ms:
                held.early = False
                self.early -= 1
        if now_ms < self._first_end_ms:
            return []
        ends = [held for held in self.held.values() if held.until_ms <= now_ms]
        lasting = (held.until_ms for held in self.held.values() if held.until_ms > now_ms)
        self._first_end_ms = min(lasting, default=FAR)
        return ends

    def next_ms(self) -> int:
        """Return when it has room again by itself."""
        if self.room <= 0:
            return self._first_end_ms
        if self.early >= PREFETCH_COUNT_MAX and self._dues:
            return self._dues[0][0]
        return FAR

    def deliver(self, rows: Sequence[Row], *, again: bool) -> Sequence[Row]:
        """Send messages, in batches that a door can send as they are.

        Returns those that are left because the door closed it meanwhile.
        """
        start = size = 0
        for slot, row in enumerate(rows):
            row_size = len(row.payload) + len(row.attributes) + len(row.id)
            is_full = slot - start == TIMELINE_CHANGES_MAX or size + row_size > TIMELINE_BYTES
            if is_full and slot > start:
                self.sink.deliver(self.channel, list(rows[start:slot]), again=again)
                start, size = slot, 0
                if self.closed:
                    return rows[start:]
            size += row_size
        if start < len(rows):
            self.sink.deliver(self.channel, list(rows[start:]), again=again)
        return ()
