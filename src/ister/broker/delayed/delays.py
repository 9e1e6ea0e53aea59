"""Messages that are sent now and published later: they wait in a timeline that nobody sees.

    sent --on the disk--> waiting --due--> leased to the broker itself --> published --> gone
    leased --refused by the stream--> waiting again, for longer each time
    leased --its topic was deleted--> gone, counted and logged

Always true:
- nothing is published before it is due, by the broker's clock;
- in a stream each message is once (see `outlet`). On a live topic it goes to whoever is there when
  it is due, and once more after a crash between that and its end here;
- what is in memory is bounded: what waits is in the store, and no more than `HELD_BYTES` and one
  round of leases is on its way.
"""

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from ister.base import Clock, DelayReport, TimelineSettings
from ister.base.errors import (
    BadRequestError,
    CorruptedError,
    DiskFullError,
    IsterError,
    LimitReachedError,
    MessageExistsError,
    MessageTooLargeError,
)
from ister.base.limits import (
    LEASE_MS_CEILING,
    MIB,
    TIMELINE_CHANGES_MAX,
    TIMELINE_MESSAGE_BYTES_MAX,
)
from ister.broker.delayed.envelope import Envelope, Letter, batches_of, open_row, pack, row_name
from ister.broker.delayed.outlet import Outlet
from ister.broker.live import Topic
from ister.broker.scheduling import Chores, Steps
from ister.broker.streams import StreamTopic
from ister.broker.timelines import (
    HoldersChange,
    TimelineConsumer,
    Timelines,
    TimelineTopic,
    change_messages,
    finish_leases,
)
from ister.broker.timelines.settings import DELAYED
from ister.broker.timelines.store import WAITING_BYTES_MAX
from ister.codec import NO_SCHEMA, Batch
from ister.telemetry import Occasions
from ister.timeline import Changed, Done, Outcomes, Put, Release, Row

if TYPE_CHECKING:
    from ister.broker.broker import Producer

# Who the broker is to its own timeline. Always the same name: what it had before a crash is its
# own again at once, so that leases may be as long as there are any.
HOLDER = "broker"
# On their way at once. A round of leases is 256; the disk and the journal work on four of them.
CREDIT = 1_024
HELD_BYTES = 16 * MIB
# When a stream refuses messages: for how long they wait the first time, and at most.
BACKOFF_MS = 250
BACKOFF_MS_MAX = 60_000
# After a start, what is due on a live topic waits for somebody to be there: clients of a broker
# that was away try again every 5 seconds at least.
COMEBACK_MS = 6_000
# When the store is asked again after it failed.
RETRY_S = 1.0
# Milliseconds since 1970 up to the year 9999.
DUE_MS_MAX = 253_402_300_800_000


class DelayedBatch(NamedTuple):
    """What a producer sends: messages, when each is due, and a word that makes it known again."""

    batch: Batch
    word: str
    due_ms: Sequence[int]


class Delays:
    """Keeps delayed messages in a hidden timeline and publishes them when they are due.

    `find_topic` tells what topic or partition there is of a name.
    """

    def __init__(
        self,
        timelines: Timelines,
        *,
        clock: Clock,
        find_topic: Callable[[str], Topic | StreamTopic | None],
        batch_bytes_max: int,
    ) -> None:
        # Known to be in the store and not published. What has happened since the start.
        self.waiting = 0
        self.published = 0
        self.refused = 0
        self.dropped = 0
        self._timelines = timelines
        self._clock = clock
        self._chores = Chores(clock, self._on_failed)
        self._find_topic = find_topic
        self._batch_bytes = batch_bytes_max // 2
        self._logger: Any = structlog.get_logger("delayed")
        # Throttles the log for all topics together.
        self._told = Occasions(clock.monotonic_ms)
        self._topic: TimelineTopic | None = None
        # What waits for the timeline to be made.
        self._wanted: list[Callable[[TimelineTopic | IsterError], object]] = []
        self._consumer: TimelineConsumer | None = None
        self._held_bytes = 0
        self._alone_until_ms = clock.monotonic_ms() + COMEBACK_MS
        self._outlets: dict[StreamTopic, Outlet] = {}

    def start(self) -> None:
        """Go on with what waits in the store."""
        topic = self._timelines.find_hidden(DELAYED)
        if topic is not None:
            self._begin(topic)

    def report(self) -> DelayReport:
        """Return how many messages wait, and what became of others."""
        return DelayReport(
            waiting=self.waiting,
            published=self.published,
            refused=self.refused,
            dropped=self.dropped,
        )

    # Sending

    def add(
        self,
        producer: "Producer",
        delayed: DelayedBatch,
        done: Callable[[IsterError | None], object],
    ) -> None:
        """Keep messages until they are due; `done` is told when they are on the disk.

        Raises what is wrong with them, with nothing kept.
        """
        puts = _puts(producer, delayed)
        self._with_topic(partial(self._put, puts, done))

    def _put(
        self,
        puts: list[Put],
        done: Callable[[IsterError | None], object],
        topic: TimelineTopic | IsterError,
    ) -> None:
        if isinstance(topic, IsterError):
            done(topic)
        elif topic.committer.full:
            done(LimitReachedError("timelines_waiting_bytes", WAITING_BYTES_MAX))
        else:
            change_messages(topic, puts, partial(self._on_put, done), atomic=False)

    def _on_put(self, done: Callable[[IsterError | None], object], outcomes: Outcomes) -> None:
        if isinstance(outcomes, IsterError):
            done(outcomes)
            return
        self.waiting += sum(isinstance(outcome, Changed) for outcome in outcomes)
        errors = (outcome for outcome in outcomes if isinstance(outcome, IsterError))
        # What is there was sent before: under the same word, or with the same id.
        done(next((error for error in errors if not isinstance(error, MessageExistsError)), None))

    def _with_topic(self, call: Callable[[TimelineTopic | IsterError], object]) -> None:
        if self._topic is not None:
            call(self._topic)
            return
        self._wanted.append(call)
        if len(self._wanted) > 1:
            return
        # Random: what is noted in streams is of this very timeline, and not of one that a store
        # had which is lost.
        name = f"~delayed-{secrets.token_hex(8)}"
        settings = TimelineSettings(lease_ms_max=LEASE_MS_CEILING, max_leases=0)
        self._timelines.create_hidden(name, DELAYED, settings, self._on_created)

    def _on_created(self, topic: TimelineTopic | IsterError) -> None:
        if isinstance(topic, TimelineTopic):
            self._begin(topic)
        wanted, self._wanted = self._wanted, []
        for call in wanted:
            call(topic)

    # Its own consumer

    def _begin(self, topic: TimelineTopic) -> None:
        self._topic = topic
        self._count()
        self._consume(topic)

    def _count(self) -> None:
        assert self._topic is not None
        self._timelines.count_hidden(self._topic, self._on_counted)

    def _on_counted(self, count: int | IsterError) -> None:
        if isinstance(count, int):
            self.waiting = count
        else:
            self._clock.call_later(RETRY_S, self._count)

    def _consume(self, topic: TimelineTopic) -> None:
        topic.consume(
            HOLDER,
            self,
            0,
            lease_ms=LEASE_MS_CEILING,
            prefetch_ms=0,
            credit=CREDIT,
            done=self._on_opened,
        )

    def _on_opened(self, found: TimelineConsumer | IsterError) -> None:
        if isinstance(found, IsterError):
            self._logger.warning("delayed_waiting", reason=str(found))
            assert self._topic is not None
            self._clock.call_later(RETRY_S, partial(self._consume, self._topic))
            return
        self._consumer = found

    def deliver(self, channel: int, rows: list[Row], *, again: bool = False) -> None:
        """Publish messages that are due, and leased to the broker.

        `again`: they were leased before it was started, and may have been published then.
        """
        by_topic: dict[tuple[str, int, bool], list[Letter]] = {}
        for row in rows:
            self._held_bytes += len(row.payload) + len(row.attributes)
            try:
                letter = open_row(row)
            except CorruptedError as error:
                self._drop([Letter(row, Envelope("", 0, ""))], str(error))
                continue
            to = letter.envelope
            topic = self._find_topic(to.topic)
            # All that one stream gets in one go, or a note of the versions of some would cover
            # those of others that are not stored with them.
            is_stored = isinstance(topic, StreamTopic) and to.is_for(topic)
            by_topic.setdefault((to.topic, to.number, is_stored), []).append(letter)
        for letters in by_topic.values():
            self._publish(letters, again=again)
        self._set_credit()

    def revoke(self, channel: int, messages: list[tuple[str, int]]) -> None:
        """Nobody changes what waits here."""

    def consumer_closed(self, channel: int, reason: str) -> None:
        """The timeline was closed with the broker."""

    # Publishing

    def _publish(self, letters: list[Letter], *, again: bool) -> None:
        """Publish messages of one topic."""
        to = letters[0].envelope
        topic, number = self._find_topic(to.topic), to.number
        if isinstance(topic, StreamTopic) and to.is_for(topic):
            self._store(topic, letters, again=again)
        elif not number and self._is_too_soon(topic):
            self._release(letters)
        elif isinstance(topic, Topic) and not number:
            for batch in batches_of(letters, self._batch_bytes):
                # Behind what is due before it, if that takes long.
                if topic.busy or topic.is_long(batch) or not self._chores.idle:
                    self._chores.do(self._publish_in_steps(topic, batch))
                else:
                    topic.publish(batch, self._clock.now_ms())
            self.published += len(letters)
            self._finish(letters)
        else:
            self._drop(letters, f"there is no topic {to.topic!r} any more")

    def _publish_in_steps(self, topic: Topic, batch: Batch) -> Steps:
        while topic.busy:
            yield
        if not topic.deleted:
            for _ in topic.publish_in_steps(batch, self._clock.now_ms()):
                yield

    def _on_failed(self, error: Exception) -> None:
        self._logger.error("internal_error", exc_info=error)

    def _is_too_soon(self, topic: Topic | StreamTopic | None) -> bool:
        """Return whether those that a live message is for may not be back yet."""
        if self._clock.monotonic_ms() >= self._alone_until_ms:
            return False
        return topic is None or (isinstance(topic, Topic) and not topic.subscriptions)

    def _store(self, stream: StreamTopic, letters: list[Letter], *, again: bool) -> None:
        outlet = self._outlets.get(stream)
        if outlet is None:
            outlet = self._new_outlet(stream)
        if not again:
            outlet.add(letters)
            return
        stored = [letter for letter in letters if outlet.has_stored(letter.row.version)]
        left = [letter for letter in letters if not outlet.has_stored(letter.row.version)]
        if stored:
            self._finish(stored)
        if left:
            # To be leased once more: what is noted of them has to be above all before it.
            self._settle(left, [_unused(letter.row) for letter in left])

    def _new_outlet(self, stream: StreamTopic) -> Outlet:
        for other in [s for s, outlet in self._outlets.items() if outlet.idle]:
            del self._outlets[other]
        assert self._topic is not None
        outlet = self._outlets[stream] = Outlet(
            stream,
            self._topic.name,
            self._batch_bytes,
            finish=self._on_stored,
            release=self._on_refused,
            told=self._told,
        )
        return outlet

    def _on_stored(self, letters: Sequence[Letter]) -> None:
        self.published += len(letters)
        self._finish(letters)

    def _on_refused(self, letters: Sequence[Letter]) -> None:
        self.refused += len(letters)
        self._release(letters)

    def _drop(self, letters: list[Letter], reason: str) -> None:
        self.dropped += len(letters)
        if times := self._told.times("delayed_dropped"):
            count = len(letters)
            self._logger.warning("delayed_dropped", messages=count, reason=reason, times=times)
        self._finish(letters)

    # What becomes of rows

    def _finish(self, letters: Sequence[Letter]) -> None:
        """Have messages gone from the store."""
        self._settle(letters, [Done(0, row.id, "", row.version) for row, _ in letters])

    def _release(self, letters: Sequence[Letter]) -> None:
        """Have messages that nobody took due again later."""
        now_ms = self._clock.now_ms()
        changes = [
            Release(0, row.id, "", row.version, now_ms + backoff_ms(row.leases))
            for row, _ in letters
        ]
        self._settle(letters, changes)

    def _settle(self, letters: Sequence[Letter], changes: Sequence[HoldersChange]) -> None:
        """Make changes, as often as it takes until the store has them."""
        for start in range(0, len(changes), TIMELINE_CHANGES_MAX):
            end = start + TIMELINE_CHANGES_MAX
            self._settle_part(letters[start:end], changes[start:end])

    def _settle_part(self, letters: Sequence[Letter], changes: Sequence[HoldersChange]) -> None:
        assert self._consumer is not None

        def on_done(outcomes: Outcomes) -> None:
            if isinstance(outcomes, IsterError) or any(
                isinstance(outcome, DiskFullError) for outcome in outcomes
            ):
                # The timeline has logged it. These are ours until the store has it.
                self._clock.call_later(RETRY_S, partial(self._settle_part, letters, changes))
                return
            self.waiting -= sum(isinstance(change, Done) for change in changes)
            self._held_bytes -= sum(letter.size_bytes for letter in letters)
            self._set_credit()

        finish_leases(self._consumer, changes, on_done)

    def _set_credit(self) -> None:
        if self._consumer is not None:
            self._consumer.credit = CREDIT if self._held_bytes < HELD_BYTES else 0


def backoff_ms(leases: int) -> int:
    """Return for how long a message waits that was tried so many times."""
    return min(BACKOFF_MS << min(leases - 1, 16), BACKOFF_MS_MAX)


def _puts(producer: "Producer", delayed: DelayedBatch) -> list[Put]:
    """Return the rows of messages, or raise what is wrong with one of them."""
    batch, word, due_ms = delayed
    count, topic, stream = batch.count, producer.topic.name, producer.stream
    none = [None] * count
    keys, ids, attributes = batch.keys or none, batch.ids or none, batch.attributes or none
    number, journal = (0, "") if stream is None else (stream.record.topic, stream.storage.name)
    schema = batch.schema or NO_SCHEMA
    puts: list[Put] = []
    for slot, payload in enumerate(batch.payloads):
        if not 0 <= due_ms[slot] < DUE_MS_MAX:
            raise BadRequestError(f"{due_ms[slot]} is no time in milliseconds since 1970")
        id_, name = ids[slot], f"{word}-{slot}"
        if stream is not None:
            # On a stream every message has an id: who was not told that it is safe sends it again,
            # and it may have been due and be gone from here by then.
            name = id_ = name if id_ is None else id_
        envelope = Envelope(
            topic, number, producer.name, schema, keys[slot], id_, attributes[slot] or None, journal
        )
        packed = pack(envelope)
        if len(payload) + len(packed) > TIMELINE_MESSAGE_BYTES_MAX:
            size_bytes = len(payload) + len(packed)
            raise MessageTooLargeError(topic, size_bytes, TIMELINE_MESSAGE_BYTES_MAX, setting="")
        puts.append(Put(0, row_name(envelope, name), "", due_ms[slot], payload, packed))
    batch.forget_columns()
    return puts


def _unused(row: Row) -> Release:
    return Release(0, row.id, "", row.version, row.due_ms, unused=True)
