"""When durable subscriptions without consumers end, and which of them that are.

    durable          never, or when it has had no consumers for `expire_after`
    not durable      when its last consumer leaves; or some seconds after its connection broke or
                     the broker was started, within which the consumer may come back

Always true:
- none ends early. The time of one with `expire_after` runs from when its last consumer left, which
  the journal has. A broker that crashed under its consumers counts from its next start;
- a consumer that comes while a subscription ends waits for that, and makes another one.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from msgspec.structs import replace

from ister.base import Clock
from ister.base.errors import IsterError
from ister.broker.durable import DurableSubscription
from ister.broker.state import SubscriptionCreated, SubscriptionDeleted
from ister.broker.storage import Write
from ister.broker.subscriptions.settings import Settings

# A client tries to connect every 5 seconds at least: twice, and some time to be served.
COMES_BACK_MS = 12_000
# When ending a subscription is tried again that the journal did not take.
AGAIN_MS = 5_000
# Subscriptions that end in one second, at 50 µs each.
ENDED_AT_ONCE = 64


class Expiry:
    """Ends durable subscriptions that have had no consumers for too long."""

    def __init__(
        self,
        clock: Clock,
        settings: Settings,
        forget: Callable[[DurableSubscription, str], object],
    ) -> None:
        """`forget` takes a subscription that has ended from everywhere, for a reason."""
        self._clock = clock
        self._settings = settings
        self._forget = forget
        self._idle = IdleSubscriptions(clock)
        # Those that end when the journal has that.
        self._ending: set[DurableSubscription] = set()

    def adopt(self, durable: DurableSubscription) -> None:
        """A subscription was found at the start of the broker."""
        created, now_ms = durable.record.created, self._clock.now_ms()
        idle_ms = max(now_ms - (created.idle_since_ms or now_ms), 0)
        # A consumer may be on its way back that the journal does not know of.
        idle_ms = min(idle_ms, created.expire_after_ms - COMES_BACK_MS) if created.durable else 0
        self._idle.watch(durable, idle_ms)
        self._keep_since(durable)

    def on_joined(self, durable: DurableSubscription) -> None:
        """A subscription has a consumer, or is gone."""
        self._idle.forget(durable)

    def on_left(self, durable: DurableSubscription, *, graceful: bool) -> None:
        """A consumer has left a subscription, maybe the last one."""
        if durable.consumers or durable.closed:
            return
        self._idle.watch(durable)
        if graceful and not durable.record.created.durable:
            self._end(durable)
        else:
            self._keep_since(durable)

    def maintain(self) -> None:
        """End subscriptions that have had no consumers for too long. Called once a second."""
        for durable in self._idle.due():
            self._end(durable)

    def is_ending(self, durable: DurableSubscription) -> bool:
        """Whether a subscription has ended, or will when the journal has that."""
        return durable.closed or durable in self._ending

    def _keep_since(self, durable: DurableSubscription) -> None:
        """Have the journal say since when a subscription has no consumers, if that counts."""
        created = durable.record.created
        if (
            created.expire_after_ms
            and not created.idle_since_ms
            and not durable.storage.committer.error
        ):
            idle = replace(created, idle_since_ms=self._clock.now_ms())
            self._settings.change(durable, idle, lambda _: None)

    def _end(self, durable: DurableSubscription) -> None:
        if durable.consumers or self.is_ending(durable):
            return
        if self._settings.is_waiting(durable) or durable.storage.committer.error is not None:
            self._idle.postpone(durable, AGAIN_MS)
            return

        def on_done(error: IsterError | None) -> None:
            self._ending.discard(durable)
            if error is None:
                self._forget(durable, "it had no consumers")
            else:
                self._idle.postpone(durable, AGAIN_MS)
            self._settings.on_stored(durable, durable)

        self._ending.add(durable)
        self._settings.hold(durable)
        durable.storage.commit(Write(changes=[SubscriptionDeleted(durable.number)]), on_done)


class IdleSubscriptions:
    """The subscriptions without consumers that may end, by the time when they do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Since when they have none, and the number of their last entry in the heap.
        self._known: dict[DurableSubscription, tuple[int, int]] = {}
        # When to look at them, number of the entry, subscription.
        self._heap: list[tuple[int, int, DurableSubscription]] = []
        self._count = 0

    def watch(self, durable: DurableSubscription, idle_ms: int = 0) -> None:
        """A subscription has had no consumers for `idle_ms`, and may end."""
        wait_ms = _wait_ms(durable.record.created)
        if wait_ms is None:
            self.forget(durable)
            return
        since_ms = self._clock.monotonic_ms() - idle_ms
        self._push(durable, since_ms, since_ms + wait_ms)

    def postpone(self, durable: DurableSubscription, by_ms: int) -> None:
        """Look at a subscription again after a time."""
        now_ms = self._clock.monotonic_ms()
        since_ms, _ = self._known.get(durable, (now_ms, 0))
        self._push(durable, since_ms, now_ms + by_ms)

    def forget(self, durable: DurableSubscription) -> None:
        """A subscription does not end."""
        self._known.pop(durable, None)

    def due(self) -> list[DurableSubscription]:
        """Return some subscriptions whose time is over."""
        now_ms = self._clock.monotonic_ms()
        due: list[DurableSubscription] = []
        while self._heap and self._heap[0][0] <= now_ms and len(due) < ENDED_AT_ONCE:
            _, count, durable = heappop(self._heap)
            since_ms, last = self._known.get(durable, (0, -1))
            if last != count:
                continue
            # Its settings may have changed.
            wait_ms = _wait_ms(durable.record.created)
            if wait_ms is None:
                self.forget(durable)
            elif since_ms + wait_ms > now_ms:
                self._push(durable, since_ms, since_ms + wait_ms)
            else:
                due.append(durable)
        return due

    def _push(self, durable: DurableSubscription, since_ms: int, due_ms: int) -> None:
        self._count += 1
        self._known[durable] = since_ms, self._count
        heappush(self._heap, (due_ms, self._count, durable))
        if len(self._heap) > 2 * len(self._known) + ENDED_AT_ONCE:
            # Consumers that come and go must not make it grow.
            self._heap = [
                entry for entry in self._heap if self._known.get(entry[2], (0, -1))[1] == entry[1]
            ]
            heapify(self._heap)


def _wait_ms(created: SubscriptionCreated) -> int | None:
    """Return for how long a subscription stays without consumers; `None`: for good."""
    return (created.expire_after_ms or None) if created.durable else COMES_BACK_MS
