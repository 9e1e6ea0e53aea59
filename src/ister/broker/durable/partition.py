"""One topic of a durable subscription: its cursor, what is handed out, and where to read on."""

from collections.abc import Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING

from ister.base.errors import ShardMovedError
from ister.broker.durable.deadlines import NEVER_MS
from ister.broker.durable.selection import Sieve
from ister.broker.state.changes import FailedRuns, Runs
from ister.broker.streams.read_ahead import ReadAhead, ReadAheadBudget
from ister.broker.streams.stream import StreamTopic
from ister.codec import Batch
from ister.subscriptions import Cursor, Deliveries, KeyGate, OffsetSet

if TYPE_CHECKING:
    from ister.broker.durable.subscription import DurableSubscription


class Again(Enum):
    """Why to read what was passed before."""

    REDELIVERY = auto()
    PARKED = auto()
    DEAD_LETTER = auto()


class Partition:
    """See the module."""

    __slots__ = (
        "_shared",
        "_window",
        "_windows",
        "bury_again_ms",
        "burying",
        "counted",
        "cursor",
        "deliveries",
        "gate",
        "held_back",
        "held_up",
        "leases",
        "moved",
        "numbers",
        "parked",
        "parked_count",
        "shown",
        "sieve",
        "slot",
        "subscription",
        "topic",
        "watched_ms",
    )

    def __init__(
        self,
        subscription: "DurableSubscription",
        topic: StreamTopic,
        cursor: Cursor,
        *,
        slot: int,
        leases: Iterator[int],
        shared: ReadAheadBudget,
    ) -> None:
        """`slot` is its place among the subscription's partitions, `leases` numbers its leases."""
        self.subscription = subscription
        self.topic = topic
        self.cursor = cursor
        self.slot = slot
        self.leases = leases
        self.numbers = (subscription.number, topic.record.topic)
        self.deliveries = Deliveries(cursor, subscription.acks, leases)
        self.sieve = Sieve(subscription.filter)
        # Key-shared: offsets with their keys that wait for room at the owner of the key, as a heap
        # for each owner by name; and how many they are.
        self.parked: dict[str, list[tuple[int, str]]] = {}
        self.parked_count = 0
        # Key-shared with ordering: one message of a key at a time.
        self.gate = KeyGate() if subscription.ordered else None
        # With ordering: whether there are dead messages that the gate has to see before others.
        self.held_back = self.gate is not None and self.deliveries.any_exhausted
        # Which of the subscription's moves it follows.
        self.moved = 0
        # Whether new messages have to wait for redeliveries that are being read.
        self.held_up = False
        # On their way to the dead letters.
        self.burying = OffsetSet()
        # Of those that block their keys, which ones the gate has seen after a start.
        self.shown = OffsetSet()
        # Not before this time: it has just failed.
        self.bury_again_ms = 0
        # What `Flight` has counted of it.
        self.counted = (0, 0)
        # When `Alarm` looks at it.
        self.watched_ms = NEVER_MS
        self._shared = shared
        # Made when something is not in memory any more: a subscription may have a hundred thousand
        # partitions, of which most keep up.
        self._window: ReadAhead | None = None
        # For going back. One for each purpose: two that take turns in different places would each
        # throw away what the other has read.
        self._windows: dict[Again, ReadAhead] = {}

    def new_batch(self, offset: int) -> Batch | None:
        """Return the batch with the next message to hand out; `None` while it is read."""
        window = self._window
        if window is None:
            batch = self.topic.find(offset)
            if batch is not None:
                return batch
            window = self._window = ReadAhead(self.topic, self._shared, self._on_loaded)
        return window.batch_at(offset)

    def old_batch(self, offset: int, purpose: Again) -> Batch | None:
        """Return the batch with a message that was passed before; `None` while it is read.

        When the message is not there any more, it is the next one that is.
        """
        window = self._windows.get(purpose)
        if window is None:
            # Mostly it is in memory.
            batch = self.topic.find(offset)
            if batch is not None:
                return batch
            window = self._windows[purpose] = ReadAhead(self.topic, self._shared, self._on_loaded)
        return window.batch_at(offset)

    def is_gone(self, purpose: Again | None = None) -> bool:
        """Whether what was asked for last, and not given, is not to be had: it is not stored.

        Compaction and salvage alone do that: what retention drops is below the start of the topic.
        """
        if not self.topic.holes_end:
            return False
        window = self._window if purpose is None else self._windows.get(purpose)
        return window is not None and not window.loading

    def end_reading(self, purpose: Again) -> None:
        """Let go of what was read for a purpose: there is nothing more for now."""
        window = self._windows.pop(purpose, None)
        if window is not None:
            window.clear()

    def start_over(self, cursor: Cursor, *, ordered: bool) -> None:
        """Go on from a cursor, with what was handed out forgotten; leases are void.

        Under the same cursor, what is on its way to a journal will be done all the same.
        """
        if cursor is not self.cursor:
            self.burying.clear()
        self.cursor = cursor
        # Letters on their way must not be delivered meanwhile.
        self.deliveries.use(cursor, dead=self.burying)
        self.close()
        self.bury_again_ms = 0
        self.gate = KeyGate() if ordered else None
        self.shown.clear()
        self.held_back = ordered and self.deliveries.any_exhausted
        self.held_up = False

    def take_changes(self) -> tuple[Runs, FailedRuns]:
        """Return what is to be written to the journal, and forget it."""
        return self.cursor.take_changes(), self.cursor.take_failures()

    def put_back(self, cursor: Cursor, runs: Runs, failed: FailedRuns) -> None:
        """The journal did not take these, which were of that cursor."""
        cursor.put_back(runs, failed)
        self.topic.storage.on_acked(self)

    @property
    def is_durable(self) -> bool:
        """See `Follower`."""
        return True

    @property
    def listening(self) -> bool:
        """See `Follower`."""
        return bool(self.subscription.consumers)

    def on_new(self) -> None:
        """See `Follower`."""
        self.subscription.dispatch.on_new(self)

    def on_trimmed(self) -> None:
        """Messages at the start of the topic are gone."""
        self.subscription.on_trimmed(self)

    def on_topic_deleted(self) -> None:
        """See `Follower`."""
        self.close()
        self.subscription.on_topic_deleted(self)

    def on_lost(self, error: ShardMovedError) -> None:
        """See `Follower`: the subscription closes its consumers."""
        self.close()

    def close(self) -> None:
        """Read no more, and let go of what was read."""
        if self._window is not None:
            self._window.clear()
        for purpose in list(self._windows):
            self.end_reading(purpose)
        self.sieve.clear()

    def _on_loaded(self, error: Exception | None) -> None:
        if error is not None:
            self.subscription.on_read_failed(self, error)
        else:
            self.subscription.on_loaded(self)
