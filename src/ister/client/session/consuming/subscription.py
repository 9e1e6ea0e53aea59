"""The receiving half of one subscription, without I/O: what has come, and what to say about it.

Always true:
- after a lost connection the buffer and the leases stay, when the broker is the same as before;
  when it is another, leased messages that the application has not got are dropped, because the
  broker delivers them again;
- the same after a seek: what was in flight is void.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from ister.base.errors import IsterError
from ister.base.limits import CREDIT_COUNT
from ister.client.session.consuming.inbox import Inbox
from ister.client.session.consuming.leases import LeasedBatch, Leases, Span
from ister.client.session.consuming.message import BaseMessage
from ister.client.session.consuming.sharing_window import PATIENCE_MS
from ister.client.session.events import Event, Promoted, Resumed, SlowConsumer
from ister.client.session.renewal import MAX_RENEWAL_MS
from ister.wire import LEASE, Subscribe, Subscribed

if TYPE_CHECKING:
    from ister.client.session.port import SessionPort


class SubscriptionChannel:
    """One consumer of a subscription: its buffer, its leases and its events."""

    def __init__(
        self,
        session: "SessionPort",
        command: Subscribe,
        *,
        credit_count: int | None,
        credit_bytes: int,
        on_event: Callable[[Event], object] | None,
        pull: bool = False,
        max_renewal_ms: int = MAX_RENEWAL_MS,
    ) -> None:
        """Without a `credit_count` it is the usual one, or what suits one who shares."""
        self.command = command
        self.channel = command.channel
        self.active = False
        # As the broker has it: that of a subscription that exists stays unless one is asked for.
        self.type = command.type
        self.dropped = 0
        self.inbox = Inbox(
            session,
            channel=command.channel,
            credit_count=CREDIT_COUNT if credit_count is None else credit_count,
            credit_bytes=credit_bytes,
            pull=pull,
        )
        # Round robin and random are for those who want an equal share for each, however slow it is.
        self._may_share = credit_count is None and not pull and command.policy == "least_loaded"
        self.leases = Leases(session, channel=command.channel, max_renewal_ms=max_renewal_ms)
        # Where messages wait between the inbox and the application.
        self.buffers: list[deque[Any]] = []
        self._session = session
        self._on_event = on_event
        self._dropped_before = 0
        self._attached = False
        # What our leases belong to, as the broker names it.
        self.life = 0

    @property
    def held(self) -> list[int] | None:
        """The leases that a broker should know of when this consumer comes back."""
        return self.leases.held() if self._attached else None

    @property
    def is_durable(self) -> bool:
        """Whether the subscription stays without consumers."""
        return bool(self.command.chosen is UNSET or self.command.chosen.durable)

    def renumber(self, channel: int) -> None:
        """Use another channel from the next attachment on."""
        self.channel = self.command.channel = channel
        self.inbox.channel = self.leases.channel = channel
        self.leases.end()

    def on_leased(self, topic: str, body: memoryview) -> None:
        """A batch of a stream has come, with the lease it is to be acknowledged under."""
        number, attempt, lease_ms = LEASE.unpack_from(body)
        batch = LeasedBatch(body[LEASE.size :])
        batch.topic = topic
        self.leases.on_leased(batch, number, attempt, lease_ms)
        self.inbox.on_deliver(batch)

    def on_subscribed(self, reply: Subscribed) -> None:
        """The broker has attached this consumer, for the first time or again."""
        self.active = reply.active
        self.type = reply.type or self.command.type
        # Told to the broker the next time: it may have been started anew and know no topics.
        self.command.partitions = reply.partitions
        if self._attached:
            self._emit(Resumed(self.command.subscription))
        self._attached = True
        self.command.kind = "stream" if reply.leases else "live"
        if reply.leases != self.life:
            self.life = reply.leases
            self.void()
        if self._may_share:
            self.inbox.share(shares=self.type == "shared")
        self.inbox.on_opened()
        self.leases.on_attached()

    def void(self) -> None:
        """Drop what the application has not got, if there are leases, which end with it.

        For live messages alone nothing happens: they come only once.
        """
        if self.leases.used:
            self.leases.end()
            self.inbox.drop()
            for buffer in self.buffers:
                buffer.clear()

    def nack_handed_out(self, reason: str = "") -> None:
        """Nack the messages of streams that the application has received and not settled."""
        waiting = [
            (lease, message.slot)
            for buffer in self.buffers
            for message in buffer.copy()
            if isinstance(message, BaseMessage) and (lease := message.find_lease()) is not None
        ]
        self.leases.nack_handed_out(waiting, reason)

    def give_back(self, now_ms: int) -> None:
        """Let others have the messages of streams that have waited for the application too long.

        With them goes all that came after them. Of a subscription that other consumers share:
        elsewhere nobody else would be sent them, or not in order.
        """
        inbox = self.inbox
        if not inbox.shares or not self._session.can_publish or not self.leases.used:
            return
        queues: list[deque[Any]] = [*self.buffers, inbox.batches]
        if any(_has_waited(queue, now_ms) for queue in queues):
            inbox_bytes = sum(batch.size_bytes for batch in inbox.batches)
            spans = [span for queue in queues for span in _take_leased(queue)]
            inbox.withdraw(inbox_bytes - sum(batch.size_bytes for batch in inbox.batches))
            self.leases.give_back(spans, lambda _: inbox.on_withdrawn())

    def on_moved(self, life: int) -> None:
        """The subscription was moved to another place: what was in flight is void."""
        self.life = life
        self.void()
        self.inbox.pay()

    def on_slow(self, dropped: int) -> None:
        """The broker has dropped messages; its count starts anew with each connection."""
        self.dropped = self._dropped_before + dropped
        self._emit(SlowConsumer(self.command.subscription, self.dropped))

    def on_active(self, *, active: bool) -> None:
        """This standby was promoted."""
        self.active = active
        if active:
            self._emit(Promoted(self.command.subscription))

    def on_disconnected(self) -> None:
        """The connection is lost; the buffer stays."""
        self._dropped_before = self.dropped
        self.active = False
        self.leases.on_detached()

    def fail(self, error: IsterError) -> None:
        """End the subscription; who waits gets `error` once the buffer is empty."""
        self.void()
        self.leases.on_closed(error)
        self.inbox.fail(error)

    def _emit(self, event: Event) -> None:
        if self._on_event is not None:
            self._session.events.append((self._on_event, event))


def _has_waited(queue: deque[Any], now_ms: int) -> bool:
    """Return whether the first message of a queue has waited for too long."""
    try:
        span = _span_of(queue[0])
    except IndexError:
        return False
    return span is not None and now_ms - span[0].came_ms > PATIENCE_MS


def _take_leased(queue: deque[Any]) -> Iterator[Span]:
    """Take messages from the end of a queue, as far as they can be given back.

    The application may take from the other end meanwhile, in a thread of its own.
    """
    while queue:
        try:
            item = queue.pop()
        except IndexError:
            return
        span = _span_of(item)
        if span is None:
            # Of a live topic, which a pattern may cover as well.
            queue.append(item)
            return
        yield span


def _span_of(item: object) -> Span | None:
    """Return which part of a lease waits here; live messages have none."""
    if isinstance(item, BaseMessage):
        lease = item.find_lease()
        return None if lease is None else (lease, item.slot, item.slot + 1)
    return (item.lease, 0, item.count) if isinstance(item, LeasedBatch) else None
