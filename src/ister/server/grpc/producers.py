"""Producers of Danube's clients: CreateProducer and SendMessage.

Always true:
- the same name on the same topic is the same producer, with the same id, also after a restart;
- a message to a stream is answered when it is as safe as the topic promises;
- what waits for a journal is bounded: beyond it, clients are told to come again.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

import structlog

from ister.base import TopicName, find_partition, parse_plain, parse_topic
from ister.base.errors import (
    BadRequestError,
    GoingAwayError,
    IsterError,
    LimitReachedError,
    MessageTooLargeError,
    ProducerFencedError,
    TopicExistsError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import MIB
from ister.broker import Broker, LongCheck, Producer, StreamTopic
from ister.codec import Batch
from ister.server.grpc.calls.calls import Reply
from ister.server.grpc.calls.status import Refusal, StatusCode
from ister.server.grpc.messages import message
from ister.server.grpc.roll import ProducerRecord, Roll, id_of
from ister.server.grpc.schemas import SchemaRefs
from ister.server.grpc.translation import (
    DELIVERED_BYTES_MAX,
    DELIVERY_BYTES,
    ENVELOPE_BYTES_MAX,
    StreamMessage,
    batch_of,
    is_plain,
    messages_of,
    run_of,
)

logger = structlog.get_logger("grpc")

ProducerResponse = message("danube.ProducerResponse")
MessageResponse = message("danube.MessageResponse")

# By dispatch strategy: NonReliable, Reliable.
KINDS = ("live", "stream")
# Handed to journals and to threads by all clients, and not yet answered: 64 of the largest.
WAITING_BYTES_MAX = 256 * MIB
# What is published as one batch: of one read of a socket, mostly.
RUN_COUNT_MAX = 1_024
RUN_BYTES_MAX = 256 * 1024
# Clients ask every five seconds whether their producer is well.
SILENCE_MS = 60_000


class Producers:
    """Danube's producers of one port: opens them and publishes what they send."""

    def __init__(
        self,
        broker: Broker,
        roll: Roll,
        schemas: SchemaRefs,
        *,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
    ) -> None:
        self.closing = False
        # How clients reach this broker.
        self.broker_url = ""
        self._broker = broker
        self._roll = roll
        self._schemas = schemas
        self._open: dict[int, Producer] = {}
        # When each was created or asked after its health.
        self._seen_ms: dict[int, int] = {}
        # By the id of a producer: what it has sent since the last `publish_runs`.
        self._runs: dict[int, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting_bytes = 0
        self._waiting_bytes_max = waiting_bytes_max
        # Whatever is below needs no second look.
        limits = broker.limits
        self._message_bytes_max = min(
            DELIVERED_BYTES_MAX - ENVELOPE_BYTES_MAX,
            limits.message_bytes_max,
            limits.batch_bytes_max,
        )

    async def create(self, request: Any, _: object) -> Any:
        """Open a producer, making the topic if it is not there."""
        if self.closing:
            raise GoingAwayError("shutting down")
        topic = parse_topic(request.topic_name)
        name = parse_plain(request.producer_name, "a producer name")
        if not 0 <= request.dispatch_strategy < len(KINDS):
            raise BadRequestError(f"there is no dispatch strategy {request.dispatch_strategy}")
        kind = KINDS[request.dispatch_strategy]
        reference = request.schema_ref if request.HasField("schema_ref") else None
        if reference is not None:
            self._schemas.check(topic, reference)
        await self._make_topic(topic, kind)
        if reference is not None:
            await self._schemas.bind(topic, reference)
        client_id = id_of(topic, name)
        self._adopt(client_id, topic, name)
        self._roll.enroll_producer(client_id, ProducerRecord(topic, name, kind))
        return ProducerResponse(
            request_id=request.request_id, producer_id=client_id, producer_name=name
        )

    def send(self, data: bytes, reply: Reply) -> None:
        """Publish one message, given and answered in the bytes of the wire.

        Messages of one read that follow each other are published as one batch, by `publish_runs`.
        """
        sent = StreamMessage.FromString(data)
        msg_id = sent.msg_id
        producer = self._open.get(msg_id.producer_id)
        if producer is None or producer.topic.deleted:
            producer = self._find(sent)
        topic = producer.topic
        if msg_id.topic_name != topic.name:
            raise BadRequestError(
                f"producer {msg_id.producer_id} is for topic {topic.name!r}, "
                f"not {msg_id.topic_name[:100]!r}"
            )
        size = len(data) + DELIVERY_BYTES
        if size > self._message_bytes_max:
            self._check_size(sent, topic.name, size)
        elif topic.schema_check is None and is_plain(sent):
            self._add_to_run(producer, sent, size, reply)
            return
        # In the order they came.
        self.publish_runs()
        batch = batch_of(sent, producer.name_bytes)
        if size > DELIVERED_BYTES_MAX - ENVELOPE_BYTES_MAX:
            self._check_delivered(batch, topic.name)
        run = Run(producer, size, [reply], [sent.request_id])
        check = None if topic.schema_check is None else self._broker.long_check(producer, batch)
        if check is None:
            # Without a schema there is nothing left to check: we have made the batch ourselves.
            self._publish(run, batch, checked=topic.schema_check is None)
        else:
            self._check_room(size)
            self._in_task(self._publish_checked(run, batch, check), run)

    def publish_runs(self) -> None:
        """Publish what was sent since the last call."""
        if not self._runs:
            return
        runs, self._runs = self._runs, {}
        for run in runs.values():
            try:
                self._publish(run, run.batch(), checked=True)
            except Exception as error:  # noqa: BLE001 - a bug must cost these calls, not the broker
                run.fail(error)

    def _add_to_run(self, producer: Producer, sent: Any, size_bytes: int, reply: Reply) -> None:
        client_id = sent.msg_id.producer_id
        run = self._runs.get(client_id)
        if run is not None and (
            sent.request_id != run.request_ids[-1] + 1
            or run.size_bytes + size_bytes > RUN_BYTES_MAX
            or len(run.replies) >= RUN_COUNT_MAX
            or run.producer is not producer
        ):
            self.publish_runs()
            run = None
        if run is None:
            run = self._runs[client_id] = Run(producer, 0, [], [])
        run.size_bytes += size_bytes
        run.replies.append(reply)
        run.request_ids.append(sent.request_id)
        run.messages.append(sent)

    def _publish(self, run: "Run", batch: Batch, *, checked: bool) -> None:
        if run.producer.stream is not None:
            self._store(run, batch, checked=checked)
            return
        steps = self._broker.publish(run.producer, batch, checked=checked)
        if steps is None:
            run.answer()
        else:
            self._in_task(_take(steps, run), run)

    async def _publish_checked(self, run: "Run", batch: Batch, check: LongCheck) -> None:
        """Have a thread check a long message against its schema, and publish it then."""
        self._waiting_bytes += run.size_bytes
        try:
            await asyncio.get_running_loop().run_in_executor(None, check)
        finally:
            self._waiting_bytes -= run.size_bytes
        self._publish(run, batch, checked=True)

    def _in_task(self, work: Coroutine[Any, Any, None], run: "Run") -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)

        def done(task: "asyncio.Task[None]") -> None:
            self._tasks.discard(task)
            if task.cancelled():
                run.fail(GoingAwayError("shutting down"))
            elif (error := task.exception()) is not None:
                run.fail(error)

        task.add_done_callback(done)

    def make_again(self, topic: str) -> None:
        """Make a live topic that was here before a restart, if it can be."""
        broker, partition = self._broker, find_partition(topic)
        if topic in broker.catalog.topics:
            return
        try:
            if partition is not None:
                broker.grow_topic(partition[0], partition[1] + 1, kind="live")
            else:
                broker.create_topic(topic, kind="live")
        except IsterError as error:
            # The namespace is gone, or another topic has the name: that counts.
            logger.info("topic_not_made_again", topic=topic, reason=str(error))

    def is_known(self, client_id: int) -> bool:
        """Whether a producer is one of ours, and its topic there."""
        record = self._roll.producers.get(client_id)
        if record is None or record.topic not in self._broker.catalog.topics:
            return False
        self._roll.use(client_id, record)
        if client_id in self._open:
            self._seen_ms[client_id] = self._broker.clock.monotonic_ms()
        return True

    def sweep(self) -> None:
        """Give producers back that were not heard of: Danube's clients never say goodbye.

        Whoever sends again all the same is found again.
        """
        heard_ms = self._broker.clock.monotonic_ms() - SILENCE_MS
        for client_id in [i for i, seen_ms in self._seen_ms.items() if seen_ms < heard_ms]:
            del self._seen_ms[client_id]
            producer = self._open.pop(client_id, None)
            if producer is not None:
                self._broker.close_producer(producer)

    def close(self) -> None:
        """Give every producer back."""
        self.closing = True
        for producer in self._open.values():
            self._broker.close_producer(producer)
        self._open.clear()

    # Inner workings

    async def _make_topic(self, topic: TopicName, kind: str) -> None:
        """Make sure that a topic of that kind is there, and will be after a crash."""
        broker = self._broker
        found = broker.catalog.topics.get(topic)
        partitions = broker.partition_count(topic)
        if partitions:
            raise TopicExistsError(topic, f"with {partitions} partitions: name one of them")
        if found is not None and found.kind != kind:
            raise WrongKindError(topic, found.kind, f"this producer wants kind {kind!r}")
        made: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done = settle(made)
        partition = find_partition(topic)
        if isinstance(found, StreamTopic):
            # Whoever makes it may still wait for the journal.
            found.storage.committer.after(done)
        elif found is not None:
            done(None)
        else:
            # Of which kind it is the producer says, whether it may be made the broker.
            broker.catalog.kind_to_make(topic)
            if partition is not None:
                broker.grow_topic(partition[0], partition[1] + 1, done, kind=kind)
            else:
                broker.create_topic(topic, done, kind=kind)
        await made

    def _adopt(self, client_id: int, topic: TopicName, name: str) -> Producer:
        """Return the producer of a name on a topic that is there, opening it if need be."""
        producer = self._open.get(client_id)
        if producer is None or producer.topic.deleted:
            producer = self._open[client_id] = self._broker.open_producer(topic, name)
        self._seen_ms[client_id] = self._broker.clock.monotonic_ms()
        return producer

    def _find(self, sent: Any) -> Producer:
        """Return the producer of a message whose id is not open: from before a restart, mostly."""
        if not sent.HasField("msg_id"):
            raise BadRequestError("msg_id is missing")
        if self.closing:
            raise GoingAwayError("shutting down")
        record = self._roll.producers.get(sent.msg_id.producer_id)
        if record is not None:
            topic, name = TopicName(record.topic), record.name
        else:
            topic = parse_topic(sent.msg_id.topic_name)
            name = parse_plain(sent.producer_name, "a producer name")
        if topic not in self._broker.catalog.topics:
            if record is not None:
                raise TopicNotFoundError(topic)
            # A client that is told so makes its producer anew, and the topic with it.
            raise Refusal(StatusCode.UNAVAILABLE, f"no producer and no topic {topic!r} is here")
        return self._adopt(id_of(topic, name), topic, name)

    def _check_size(self, sent: Any, topic: str, size_bytes: int) -> None:
        """Raise unless a large message can be delivered, and is within the broker's own limit."""
        if size_bytes > DELIVERED_BYTES_MAX:
            raise MessageTooLargeError(topic, size_bytes, DELIVERED_BYTES_MAX, setting="")
        payload_bytes, most = len(sent.payload), self._broker.limits.message_bytes_max
        if payload_bytes > most:
            raise MessageTooLargeError(topic, payload_bytes, most)

    def _check_delivered(self, batch: Batch, topic: str) -> None:
        """Raise when a message is too large with what delivering adds: it would block streams."""
        ((_, encoded),) = messages_of(batch, topic, self.broker_url)
        size_bytes = len(encoded) + DELIVERY_BYTES
        if size_bytes > DELIVERED_BYTES_MAX:
            raise MessageTooLargeError(topic, size_bytes, DELIVERED_BYTES_MAX, setting="")

    def _check_room(self, size_bytes: int) -> None:
        if self._waiting_bytes + size_bytes > self._waiting_bytes_max:
            raise LimitReachedError("waiting_bytes_max", self._waiting_bytes_max)

    def _store(self, run: "Run", batch: Batch, *, checked: bool) -> None:
        size_bytes = run.size_bytes
        self._check_room(size_bytes)
        producer = run.producer

        def told(error: IsterError | None, _: object) -> None:
            self._waiting_bytes -= size_bytes
            if error is None:
                run.answer()
            else:
                run.fail(error)

        # First: a lone message may be on a quick disk, and answered, before `store` returns.
        self._waiting_bytes += size_bytes
        try:
            self._broker.store(producer, batch, told, checked=checked)
        except BaseException as error:
            self._waiting_bytes -= size_bytes
            if isinstance(error, ProducerFencedError):
                self._on_fenced(producer)
            raise

    def _on_fenced(self, producer: Producer) -> None:
        # By a native producer of that name. Ours has no numbers that could be mixed up.
        # Not by the id that the client says: it may be one of another broker's.
        client_id = id_of(producer.topic.name, producer.name)
        if self._open.get(client_id) is producer:
            del self._open[client_id]
            self._broker.close_producer(producer)


@dataclass(slots=True)
class Run:
    """Messages of one producer that are published as one batch, and who waits for each."""

    producer: Producer
    size_bytes: int
    replies: list[Reply]
    request_ids: list[int]
    messages: list[Any] = field(default_factory=list)

    def batch(self) -> Batch:
        """Return the messages as a batch, unstamped."""
        return run_of(self.messages, self.producer.name_bytes)

    def answer(self) -> None:
        """Say that every message is published."""
        for reply, request_id in zip(self.replies, self.request_ids, strict=True):
            reply(MessageResponse(request_id=request_id).SerializeToString())

    def fail(self, error: BaseException) -> None:
        """Say why none is."""
        for reply in self.replies:
            reply(error)


async def _take(steps: Iterable[object], run: Run) -> None:
    """Publish a batch in steps, a turn of the loop for each."""
    for _ in steps:
        await asyncio.sleep(0)
    run.answer()


def settle(future: "asyncio.Future[None]") -> Callable[[IsterError | None], None]:
    """Return what finishes `future` once the broker says so, if anybody still waits."""

    def done(error: IsterError | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    return done
