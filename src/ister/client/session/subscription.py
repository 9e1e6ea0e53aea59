"""The receiving half of one subscription, without I/O: a buffer bounded by credit.

Always true: what the broker may send and what the application has not taken yet are together
at most one credit window; credit goes back a half window at a time, so that a busy consumer
costs one small frame for thousands of messages.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ister.base.errors import IsterError, ProtocolError
from ister.client.session.pending import Future
from ister.codec import Batch
from ister.wire import Subscribe, credit_frame

if TYPE_CHECKING:
    from ister.client.session.session import Session


# Finished futures are swept out when more than this have gathered.
WAITERS_KEPT = 16


@dataclass(frozen=True, slots=True)
class SlowConsumer:
    """The broker dropped messages because this consumer was too slow: so many in all so far."""

    subscription: str
    dropped: int


@dataclass(frozen=True, slots=True)
class Promoted:
    """This consumer of a failover subscription is the active one from now on."""

    subscription: str


@dataclass(frozen=True, slots=True)
class Resumed:
    """The connection was lost and is back; live messages of the time between are lost."""

    subscription: str


Event = SlowConsumer | Promoted | Resumed


class SubscriptionChannel:
    """See the module."""

    def __init__(
        self,
        session: "Session",
        command: Subscribe,
        *,
        credit_count: int,
        credit_bytes: int,
        on_event: Callable[[Event], object] | None,
    ) -> None:
        self.command = command
        self.channel = command.channel
        self.active = False
        self.dropped = 0
        self.closed: IsterError | None = None
        self.batches: deque[Batch] = deque()
        self._session = session
        self._credit_count = credit_count
        self._credit_bytes = credit_bytes
        self._on_event = on_event
        # Messages that the broker may still send: what bounds our memory, whatever it does.
        self._credit_left = 0
        self._owed_count = 0
        self._owed_bytes = 0
        self._dropped_before = 0
        self._attached = False
        self._waiters: list[Future] = []

    def renumber(self, channel: int) -> None:
        """Use another channel from the next attachment on."""
        self.channel = self.command.channel = channel

    def wait(self, waiter: Future) -> None:
        """Finish `waiter` when there is something to take, or the subscription has ended."""
        if len(self._waiters) > WAITERS_KEPT:
            # Those that timed out or were cancelled leave their futures behind.
            self._waiters = [w for w in self._waiters if not w.done()]
        self._waiters.append(waiter)

    def take(self) -> Batch | None:
        """Return the next batch, or `None` when there is none yet.

        Its credit goes back to the broker. Raises what ended the subscription, once the buffer
        is empty.
        """
        if not self.batches:
            if self.closed is not None:
                raise self.closed
            return None
        batch = self.batches.popleft()
        self._owed_count += batch.count
        self._owed_bytes += batch.size_bytes
        if self._owed_count * 2 >= self._credit_count or self._owed_bytes * 2 >= self._credit_bytes:
            self._pay()
        return batch

    def on_deliver(self, batch: Batch) -> None:
        """A batch has come. Raises `ProtocolError` when the broker had no credit for it."""
        self._credit_left -= batch.count
        if self._credit_left < 0:
            raise ProtocolError("more messages than there was credit for")
        self.batches.append(batch)
        if self._waiters:
            self._wake()

    def on_subscribed(self, *, active: bool, partitions: int) -> None:
        """The broker has attached this consumer, for the first time or again."""
        self.active = active
        # Told to the broker the next time: it may have been started anew and know no topics.
        self.command.partitions = partitions
        if self._attached:
            self._emit(Resumed(self.command.subscription))
        self._attached = True
        # A new consumer has no credit yet: give it a whole window less what is still unread.
        self._owed_count = self._credit_count - sum(b.count for b in self.batches)
        self._owed_bytes = self._credit_bytes - sum(b.size_bytes for b in self.batches)
        self._credit_left = 0
        self._pay()

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

    def fail(self, error: IsterError) -> None:
        """End the subscription; who waits gets `error` once the buffer is empty."""
        if self.closed is None:
            self.closed = error
        self._wake()

    def _pay(self) -> None:
        count, size_bytes = max(self._owed_count, 0), max(self._owed_bytes, 0)
        self._owed_count = self._owed_bytes = 0
        self._credit_left += count
        self._session.send(credit_frame(self.channel, count, size_bytes))

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _emit(self, event: Event) -> None:
        if self._on_event is not None:
            self._session.events.append((self._on_event, event))
