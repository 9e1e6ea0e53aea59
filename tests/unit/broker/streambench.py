"""A broker with streams whose disk is memory, whose loop is a list, and whose clock is moved."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Unpack

from ister.base import AckSettings, Expected, Position, StreamSettings
from ister.base.errors import IsterError
from ister.base.limits import Limits
from ister.broker import (
    Broker,
    Budgets,
    InlineWorker,
    Membership,
    Producer,
    RecentBudget,
    SourceTopic,
    Spool,
    Spooling,
    Storage,
    StreamTopic,
    SubscribeOptions,
    Transaction,
    Workers,
    open_storage,
)
from ister.broker.durable.subscription import DurableSubscription
from ister.codec import Batch, encode
from ister.log import ChunkBackend, FileBackend, LogOptions
from ister.objects import LocalStore, open_store
from ister.objects.remote import RemoteStore
from ister.subscriptions import NEVER_MS, Responder
from ister.testing import FaultyDisk, VirtualClock
from ister.testing.clock import START_MS, VirtualTimer
from ister.testing.disk import Keep
from ister.wire import BACKOFF_DELAY

TOPIC = "/default/orders"
OWN = "own client"
# Files here are memory, if the system has such a place.
MEMORY = Path("/dev/shm")


class BenchClock(VirtualClock):
    """Lets the loop of the bench come to rest after every timer."""

    def __init__(self, now_ms: int, settle: Callable[[], object]) -> None:
        super().__init__(now_ms)
        self._settle = settle
        # What each look at it takes.
        self.tick_us = 0

    def monotonic_ms(self) -> int:
        self._elapsed_us += self.tick_us
        return super().monotonic_ms()

    def call_later(self, delay_s: float, call: Callable[[], object]) -> VirtualTimer:
        def act() -> None:
            call()
            self._settle()

        return super().call_later(delay_s, act)

    def set_wall(self, by_ms: int) -> None:
        """Somebody sets the wall clock of the machine."""
        self._start_ms += by_ms

    def stop_for(self, ms: int) -> None:
        """Move on without running what is due, as while the process is stopped."""
        self._elapsed_us += ms * 1_000


class HeldWorker(InlineWorker):
    """Runs calls at once, unless it is told to hold them until later."""

    def __init__(self, call_soon: Callable[..., object]) -> None:
        super().__init__(call_soon)
        self.holding = False
        self._held: deque[tuple[Callable[[], Any], Callable[[Any], object]]] = deque()

    def run(self, call: Callable[[], Any], done: Callable[[Any], object]) -> None:
        if self.holding:
            self._held.append((call, done))
        else:
            super().run(call, done)

    def release(self) -> None:
        """Run what was held, and from now on everything at once."""
        self.holding = False
        while self._held:
            super().run(*self._held.popleft())


class Delivered(NamedTuple):
    """One message as a consumer gets it."""

    topic: str
    offset: int
    payload: bytes
    lease: int
    attempt: int
    key: str | None
    attributes: dict[str, str]

    @property
    def run(self) -> tuple[int, int, int]:
        """What to name it by."""
        return self.lease, self.offset, self.offset + 1


class LeaseSink:
    """The outside end of a connection: writes down what it is sent."""

    def __init__(self) -> None:
        self.writable = True
        self.responder = Responder(lambda: 0)
        self.address = "memory"
        self.messages: list[Delivered] = []
        self.live: list[bytes] = []
        self.batches = 0
        self.active: list[bool] = []
        self.closed: list[str] = []
        self.errors: list[IsterError | None] = []
        self.lives: list[int] = []

    def deliver(self, channel: int, topic: SourceTopic, batch: Batch) -> None:
        self.live += batch.payloads

    def deliver_leased(
        self,
        channel: int,
        topic: SourceTopic,
        batch: Batch,
        lease: int,
        attempt: int,
        lease_ms: int,
    ) -> None:
        self.batches += 1
        keys = batch.keys or [None] * batch.count
        attributes = batch.attributes or [{}] * batch.count
        for row in zip(batch.offsets, batch.payloads, keys, attributes, strict=True):
            offset, payload, key, its_attributes = row
            self.messages.append(
                Delivered(topic.name, offset, payload, lease, attempt, key, dict(its_attributes))
            )

    def slow_consumer(self, channel: int, dropped: int) -> None:
        raise AssertionError("no live consumer is slow here")

    def active_changed(self, channel: int, *, active: bool) -> None:
        self.active.append(active)

    def consumer_closed(
        self, channel: int, reason: str, *, error: IsterError | None = None
    ) -> None:
        self.closed.append(reason)
        self.errors.append(error)

    def leases_void(self, channel: int, leases: int, *, active: bool) -> None:
        self.lives.append(leases)


class Outcome:
    """What somebody was told, once."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __call__(self, result: Any = None) -> None:
        self.told.append(result)

    @property
    def result(self) -> Any:
        """What it was; an error when nothing was told, or twice."""
        assert len(self.told) == 1, f"told {len(self.told)} times"
        return self.told[0]

    @property
    def error(self) -> IsterError | None:
        """What went wrong, if anything."""
        assert self.result is None or isinstance(self.result, IsterError)
        return self.result


@dataclass(slots=True)
class Member:
    """One consumer of a durable subscription."""

    bench: "StreamBench"
    sink: LeaseSink
    membership: Membership

    @property
    def durable(self) -> DurableSubscription:
        return self.membership.durables[0]

    @property
    def messages(self) -> list[Delivered]:
        return self.sink.messages

    @property
    def offsets(self) -> list[int]:
        return [message.offset for message in self.messages]

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.messages]

    def take(self) -> list[Delivered]:
        """Return what was delivered since the last call."""
        messages, self.sink.messages = self.sink.messages, []
        return messages

    def take_offsets(self) -> list[int]:
        return [message.offset for message in self.take()]

    def grant(self, count: int, size_bytes: int = 1 << 30) -> None:
        self.membership.consumer.grant(count, size_bytes)
        self.bench.settle()

    def ack(self, *messages: Delivered, confirm: bool = False) -> list[tuple[int, int, int]]:
        refused = self.membership.ack([message.run for message in messages], confirm=confirm)
        self.bench.settle()
        return refused

    def ack_confirmed(self, *messages: Delivered) -> IsterError | None:
        """Acknowledge, and return what the confirmation says."""
        refused = self.membership.ack([message.run for message in messages], confirm=True)
        assert refused == []
        return self.bench.confirm()

    def ack_through(
        self, message: Delivered, *, confirm: bool = False
    ) -> list[tuple[int, int, int]]:
        refused = self.membership.ack_through([message.run], confirm=confirm)
        self.bench.settle()
        return refused

    def nack(
        self, *messages: Delivered, delay_ms: int | None = None, reject: bool = False
    ) -> list[Any]:
        delay = NEVER_MS if reject else BACKOFF_DELAY if delay_ms is None else delay_ms
        refused = self.membership.nack([(*m.run, delay) for m in messages], BACKOFF_DELAY)
        self.bench.settle()
        return refused

    def extend(self, *messages: Delivered, extension_ms: int) -> list[Any]:
        refused = self.membership.extend([(*m.run, extension_ms) for m in messages])
        self.bench.settle()
        return refused

    def leave(self) -> None:
        """Close in good order."""
        self.bench.broker.subscribers.unsubscribe(self.membership)
        self.bench.settle()

    def lose(self) -> None:
        """Lose the connection."""
        self.sink.writable = False
        self.bench.broker.subscribers.unsubscribe(self.membership, graceful=False)
        self.bench.settle()


class StreamBench:
    """A broker with one line for each thing a test does to it.

    What would happen in later turns of an event loop happens in `settle`, which most lines call at
    their end.
    """

    def __init__(
        self,
        disk: FaultyDisk | None = None,
        *,
        tail_bytes: int = 1 << 24,
        # Small: a restart looks at all of it.
        segment_bytes: int = 1 << 20,
        random_slot: Callable[[int], int] = lambda _: 0,
        # Whether there is an object store as well, with a journal of its own.
        objects: bool = False,
        # One that other brokers use as well.
        store: LocalStore | RemoteStore | None = None,
        **limits: int,
    ) -> None:
        self.store = store or (open_store("memory://bench") if objects else None)
        self.disk = FaultyDisk() if disk is None else disk
        self._tail_bytes = tail_bytes
        self._segment_bytes = segment_bytes
        self._limits = Limits(**limits)
        self._random_slot = random_slot
        self._ready: deque[Callable[[], object]] = deque()
        self._channel = 0
        self._sequences: dict[tuple[str, str], int] = {}
        self._word = 0
        self._start(START_MS)

    # Lives

    def restart(self, keep: Keep | None = None, *, after_ms: int = 1_000) -> None:
        """Start anew as after `kill -9`, or with `keep` as after a power cut."""
        if keep is not None:
            self.disk = self.disk.reopen(keep)
        self._start(self.clock.now_ms() + after_ms)

    def _start(self, now_ms: int) -> None:
        # What a former life has left to do will never be done, and its timers never run.
        self._ready.clear()
        self.clock = BenchClock(now_ms, self.settle)
        self._producers: dict[tuple[str, str], Producer] = {}
        self._budgets = Budgets(self._limits)
        self.broker = Broker(
            name="bench",
            limits=self._limits,
            clock=self.clock,
            random_slot=self._random_slot,
            recent=RecentBudget(self._tail_bytes),
            open_local=self._open,
            spooling=Spooling(new_spool=lambda: Spool(MEMORY), new_worker=self._new_worker),
        )
        if self.disk.names("segments"):
            self.broker.adopt(self._open())
        if self.store is not None:
            self.broker.adopt(self._open(ChunkBackend(self.store)), is_object=True)
        self.settle()

    def _open(self, backend: ChunkBackend | None = None) -> Storage:
        worker = InlineWorker(self._call_soon)
        # What a disk that is slow to write keeps waiting: see `hold_writes`.
        self.writing = HeldWorker(self._call_soon)
        return open_storage(
            backend or FileBackend(self.disk),
            LogOptions(now_ms=self.clock.now_ms, segment_bytes=self._segment_bytes),
            workers=lambda: Workers(writing=self.writing, reading=worker, housekeeping=worker),
            clock=self.clock,
            budgets=self._budgets,
            call_soon=self._call_soon,
        )

    def _new_worker(self, _: str, __: int) -> InlineWorker:
        return InlineWorker(self._call_soon)

    def _call_soon(self, call: Callable[..., object], *args: object) -> None:
        self._ready.append(lambda: call(*args))

    @property
    def storage(self) -> Storage:
        return self.broker.streams.storages[0]

    # Time

    def settle(self) -> None:
        """Let everything happen that needs no time."""
        self.broker.end_of_turn.run()
        while self._ready:
            self._ready.popleft()()
            self.broker.end_of_turn.run()

    def step(self) -> None:
        """Let the first of these things happen, and what it sets off wait."""
        self._ready.popleft()()
        self.broker.end_of_turn.run()

    def advance(self, ms: int) -> None:
        """Move the clock."""
        self.settle()
        self.clock.advance(ms / 1000)
        self.settle()

    # Topics and messages

    def create(self, topic: str = TOPIC, *, partitions: int = 0, **settings: Any) -> None:
        """Make a stream."""
        outcome = Outcome()
        self.broker.create_topic(
            topic,
            outcome,
            kind="stream",
            partitions=partitions,
            stream=StreamSettings(**settings) if settings else None,
        )
        self.settle()
        assert outcome.result is None

    def topic(self, name: str = TOPIC) -> StreamTopic:
        return self.broker.streams.by_name[name]

    def producer(self, topic: str = TOPIC, name: str = "p") -> Producer:
        if (topic, name) not in self._producers:
            self._producers[topic, name] = self.broker.open_producer(topic, name)
        return self._producers[topic, name]

    def send(
        self,
        payloads: Sequence[bytes],
        *,
        topic: str = TOPIC,
        name: str = "p",
        sequence: int | None = None,
        keys: Sequence[str | None] | None = None,
        attributes: Sequence[dict[str, str] | None] | None = None,
        ids: Sequence[str | None] | None = None,
        settle: bool = True,
        **expected: Unpack[Expected],
    ) -> "Sent":
        """Publish one batch; sequence numbers count up unless told otherwise."""
        number = self._sequences.get((topic, name), 0) if sequence is None else sequence
        self._sequences[topic, name] = max(
            self._sequences.get((topic, name), 0), number + len(payloads)
        )
        head, body = encode(
            payloads,
            keys=keys,
            attributes=attributes,
            ids=ids,
            producer=name.encode(),
            first_sequence=number,
        )
        sent = Sent(Batch(head + body))
        self.broker.store(self.producer(topic, name), sent.batch, sent.told, **expected)
        if settle:
            self.settle()
        return sent

    def publish(self, *payloads: bytes, topic: str = TOPIC, **columns: Any) -> list[int]:
        """Publish one batch that is to be stored, and return its offsets."""
        return self.send(payloads, topic=topic, **columns).offsets

    def publish_many(self, count: int, *, topic: str = TOPIC, each: int = 1) -> None:
        """Publish numbered messages in batches of `each`."""
        start = self.topic(topic).next_offset
        for base in range(start, start + count, each):
            payloads = [b"%d" % n for n in range(base, min(base + each, start + count))]
            self.publish(*payloads, topic=topic)

    def stored(self, topic: str) -> list[Delivered]:
        """Return everything a topic holds, as a new subscription gets it."""
        self._word += 1
        member = self.consume(topic, f"look-{self._word}", start="earliest")
        messages = member.take()
        member.leave()
        self.change("delete", topic, f"look-{self._word}")
        return messages

    # Subscriptions

    def subscribe(
        self,
        topic: str = TOPIC,
        subscription: str = "s",
        *,
        start: str | int | Position = "earliest",
        acks: dict[str, Any] | None = None,
        owner: str = OWN,
        sink: LeaseSink | None = None,
        **options: Any,
    ) -> tuple[LeaseSink, Outcome]:
        """Ask for a consumer."""
        self._channel += 1
        sink = sink or LeaseSink()
        outcome = Outcome()
        options = {"consumer": f"c{self._channel}", "filters": {}} | options
        self.broker.subscribers.subscribe(
            SubscribeOptions(
                topic=topic,
                subscription=subscription,
                start=_position(start),
                acks=None if acks is None else AckSettings(**acks),
                **options,
            ),
            outcome,
            owner=owner,
            sink=sink,
            channel=self._channel,
        )
        return sink, outcome

    def consume(
        self,
        topic: str = TOPIC,
        subscription: str = "s",
        *,
        credit: int = 1_000_000,
        credit_bytes: int = 1 << 30,
        **options: Any,
    ) -> Member:
        """Attach a consumer with plenty of credit unless told otherwise."""
        sink, outcome = self.subscribe(topic, subscription, **options)
        self.settle()
        if isinstance(outcome.result, IsterError):
            raise outcome.result
        member = Member(self, sink, outcome.result)
        if credit:
            member.grant(credit, credit_bytes)
        return member

    def change(self, action: str, *args: Any, **options: Any) -> IsterError | None:
        """Do something to durable subscriptions, and return what was told of it."""
        outcome = Outcome()
        getattr(self.broker.durables, action)(*args, outcome, **options)
        self.settle()
        return outcome.error

    def seek(
        self, to: str | int | Position, topic: str = TOPIC, subscription: str = "s"
    ) -> IsterError | None:
        return self.change("seek", topic, subscription, _position(to))

    def confirm(self) -> IsterError | None:
        """Wait until all acknowledgements are in the journal; return what went wrong."""
        outcome = Outcome()
        self.broker.durables.confirm(self.storage, outcome)
        self.settle()
        return outcome.error

    def report(self, topic: str = TOPIC, subscription: str = "s") -> Any:
        """Return the figures of a durable subscription."""
        rows = self.broker.subscriptions("", after="", limit=1_000)[0]
        return next(r for r in rows if r.topic == topic and r.subscription == subscription)

    def lag(self, topic: str = TOPIC, subscription: str = "s") -> int:
        return int(self.report(topic, subscription).cursor.lag)

    # Transactions

    def begin(self, word: str = "word") -> Transaction:
        return Transaction(word)

    def stage(
        self,
        transaction: Transaction,
        slot: int,
        *payloads: bytes,
        ids: Sequence[str | None] | None = None,
        keys: Sequence[str | None] | None = None,
        **expected: Unpack[Expected],
    ) -> None:
        head, body = encode(payloads, ids=ids, keys=keys)
        self.broker.stage(transaction, slot, Batch(head + body), **expected)

    def commit(
        self,
        transaction: Transaction,
        topics: Sequence[str] = (),
        acked: Iterable[tuple[Member, Delivered]] = (),
        *,
        settle: bool = True,
    ) -> Outcome:
        """Commit; what the broker raises is told as well, as a door does."""
        outcome = Outcome()
        acks = [(member.membership.durables, *message.run) for member, message in acked]
        try:
            self.broker.commit(transaction, topics, acks, outcome)
        except IsterError as error:
            outcome(error)
        if settle:
            self.settle()
        return outcome


class Sent:
    """A batch on its way."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.answers: list[tuple[IsterError | None, list[int] | None]] = []

    def told(self, error: IsterError | None, offsets: list[int] | None) -> None:
        self.answers.append((error, offsets))

    @property
    def error(self) -> IsterError | None:
        """What it was answered, once."""
        assert len(self.answers) == 1, f"answered {len(self.answers)} times"
        return self.answers[0][0]

    @property
    def offsets(self) -> list[int]:
        """The offset of each message; of those known before, negative as on the wire."""
        if self.error is not None:
            raise self.error
        offsets = self.answers[0][1]
        if offsets is not None:
            return offsets
        return list(range(self.batch.base_offset, self.batch.base_offset + self.batch.count))


def _position(place: str | int | Position) -> Position:
    if isinstance(place, Position):
        return place
    return Position(origin="offset", at=place) if isinstance(place, int) else Position(origin=place)


def at_time(time_ms: int) -> Position:
    return Position(origin="time", at=time_ms)


def saved(name: str) -> Position:
    return Position(origin="snapshot", name=name)
