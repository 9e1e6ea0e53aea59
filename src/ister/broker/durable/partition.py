"""One topic of a durable subscription: its cursor, what is handed out, and where to read on.

Whether new messages may be handed out is its `State`; what is delivered is in its `Deliveries`.
"""

from collections.abc import Iterator
from typing import Protocol

from ister.base import AckSettings
from ister.base.errors import ShardMovedError
from ister.broker.streams import ReadAhead, ReadAheadBudget, StreamTopic
from ister.codec import Batch
from ister.subscriptions import Cursor, Deliveries, Filter, KeyGate, OffsetSet
from ister.subscriptions.planning import Purpose, Selector, State

# Later than any time: when a partition is due that waits for nothing.
NOT_DUE_MS = 2**63


class Owner(Protocol):
    """A subscription, as its partitions see it."""

    @property
    def pattern(self) -> str:
        """The topic that it is on, or the pattern of those it covers."""

    @property
    def name(self) -> str:
        """What consumers call it."""

    @property
    def has_consumers(self) -> bool:
        """Whether anybody is there to take messages."""

    def on_new(self, partition: "Partition") -> None:
        """A topic has new messages."""

    def on_trimmed(self, partition: "Partition") -> None:
        """Messages at the start of a topic are gone."""

    def on_topic_deleted(self, partition: "Partition") -> None:
        """A covered topic is gone."""

    def on_loaded(self, partition: "Partition", error: Exception | None) -> None:
        """Stored messages have been read, or cannot be."""


class DeadMessages:
    """What becomes of a partition's messages that were delivered too often."""

    __slots__ = ("pending", "retry_ms", "shown")

    def __init__(self) -> None:
        # On their way to the dead letters.
        self.pending = OffsetSet()
        # Of those that block their keys, which ones the gate has seen after a start.
        self.shown = OffsetSet()
        # Not before this time: it has just failed.
        self.retry_ms = 0


class Partition:
    """One topic that a durable subscription covers."""

    __slots__ = (
        "_shared",
        "_windows",
        "dead",
        "deliveries",
        "due_ms",
        "gate",
        "leases",
        "move",
        "numbers",
        "owner",
        "queued",
        "queued_count",
        "selector",
        "slot",
        "state",
        "topic",
    )

    def __init__(
        self,
        owner: Owner,
        topic: StreamTopic,
        cursor: Cursor,
        acks: AckSettings,
        filter_: Filter,
        *,
        number: int,
        ordered: bool,
        slot: int,
        leases: Iterator[int],
        shared: ReadAheadBudget,
    ) -> None:
        """`slot` is its place among the partitions of subscription `number`.

        `leases` numbers its leases, and `ordered` says whether the keys are kept in order.
        """
        self.owner = owner
        self.topic = topic
        self.slot = slot
        self.leases = leases
        self.numbers = (number, topic.record.topic)
        self.deliveries = Deliveries(cursor, acks, leases)
        self.selector = Selector(filter_)
        # See `Plannable`.
        self.queued: dict[str, list[tuple[int, str]]] = {}
        self.queued_count = 0
        self.dead = DeadMessages()
        self._keep_order(ordered=ordered)
        # Which of the subscription's moves it follows.
        self.move = 0
        # When `Deadlines` looks at it.
        self.due_ms = NOT_DUE_MS
        self._shared = shared
        # Made when something is not in memory any more: a subscription may have a hundred thousand
        # partitions, of which most keep up. One for each purpose: two that take turns in different
        # places would each throw away what the other has read.
        self._windows: dict[Purpose, ReadAhead] = {}

    @property
    def cursor(self) -> Cursor:
        """What is acknowledged."""
        return self.deliveries.cursor

    @property
    def end_offset(self) -> int:
        """See `Plannable`."""
        return self.topic.record.next_offset

    @property
    def ttl_ms(self) -> int:
        """See `Plannable`."""
        return self.topic.record.settings.ttl_ms

    def batch_at(self, offset: int, purpose: Purpose) -> Batch | None:
        """See `Plannable`."""
        window = self._windows.get(purpose)
        if window is None:
            # Mostly it is in memory.
            batch = self.topic.find(offset)
            if batch is not None:
                return batch
            window = self._windows[purpose] = ReadAhead(self.topic, self._shared, self._on_loaded)
        return window.batch_at(offset)

    def is_gone(self, purpose: Purpose) -> bool:
        """See `Plannable`.

        Compaction and salvage alone do that: what retention drops is below the start of the topic.
        """
        if not self.topic.holes_end:
            return False
        window = self._windows.get(purpose)
        return window is not None and not window.loading

    def end_reading(self, purpose: Purpose) -> None:
        """See `Plannable`."""
        window = self._windows.pop(purpose, None)
        if window is not None:
            window.clear()

    def start_over(self, cursor: Cursor, *, ordered: bool) -> None:
        """Go on from a cursor, with what was handed out forgotten; leases are void.

        Under the same cursor, what is on its way to a journal will be done all the same.
        """
        if cursor is not self.cursor:
            self.dead.pending.clear()
        # Dead letters on their way must not be delivered meanwhile.
        self.deliveries.use(cursor, dead=self.dead.pending)
        self.close()
        self.dead.retry_ms = 0
        self.dead.shown.clear()
        self._keep_order(ordered=ordered)

    def _keep_order(self, *, ordered: bool) -> None:
        # Key-shared with ordering: one message of a key at a time.
        self.gate = KeyGate() if ordered else None
        restoring = ordered and self.deliveries.any_exhausted
        self.state = State.RESTORING if restoring else State.OPEN

    @property
    def is_durable(self) -> bool:
        """See `Follower`."""
        return True

    @property
    def floor(self) -> int:
        """See `Follower`."""
        return self.cursor.floor

    @property
    def listening(self) -> bool:
        """See `Follower`."""
        return self.owner.has_consumers

    def on_new(self) -> None:
        """See `Follower`."""
        self.owner.on_new(self)

    def on_trimmed(self) -> None:
        """Messages at the start of the topic are gone."""
        self.owner.on_trimmed(self)

    def on_topic_deleted(self) -> None:
        """See `Follower`."""
        self.close()
        self.owner.on_topic_deleted(self)

    def on_lost(self, error: ShardMovedError) -> None:
        """See `Follower`: the subscription closes its consumers."""
        self.close()

    def close(self) -> None:
        """Read no more, and let go of what was read."""
        for purpose in list(self._windows):
            self.end_reading(purpose)
        self.selector.clear()

    def _on_loaded(self, error: Exception | None) -> None:
        self.owner.on_loaded(self, error)
