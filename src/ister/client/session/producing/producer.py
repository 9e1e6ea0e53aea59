"""The sending half of one topic or partition, without I/O: collects messages into batches.

    open batch --full, or end of the tick--> queue --window free--> in flight --> acknowledged

Always true:
- batches leave in the order they were filled, and are acknowledged or failed exactly once;
- open, queued and in-flight bytes together stay below `PRODUCER_PENDING_BYTES_MAX` plus one
  batch; in-flight bytes below `PRODUCER_WINDOW_BYTES` plus one batch;
- after a lost connection, queued batches wait for the next one. In-flight batches go back to the
  head of the queue on a stream, where each is stored once however often it is sent (see
  `numbering`), and with `resend=True`; else they fail. A batch of a stream of which the broker
  cannot say whether it is stored goes back in the same way, and waits for the next pulse. Nothing
  is sent behind it before it is answered: what comes after it must not be stored before it.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, TypeVar

from msgspec import UNSET, UnsetType

from ister.base.errors import (
    IsterError,
    MessageTooLargeError,
    ProducerFencedError,
    ProducerFullError,
    ProtocolError,
    RequestTimeoutError,
    StorageFailedError,
    StorageUncertainError,
)
from ister.base.limits import (
    PRODUCER_BATCH_BYTES,
    PRODUCER_BATCH_COUNT,
    PRODUCER_PENDING_BYTES_MAX,
    PRODUCER_WINDOW_BYTES,
)
from ister.client.session.checks import as_bytes, attributes_size, check_extras
from ister.client.session.ids import OFFSET_FORGOTTEN
from ister.client.session.producing.delayed import DelayBox, Due
from ister.client.session.producing.numbering import number_anew
from ister.client.session.producing.pending import ANY_OFFSET, UNNUMBERED, PendingBatch, Sent
from ister.codec import NO_SCHEMA, Attributes, Codec, ReplyAddress, SchemaRef, encode, encode_bare
from ister.wire import SEQUENCE_MASK, Opcode, expecting, publish_bare_frame, publish_frame

if TYPE_CHECKING:
    from ister.client.session.port import SessionPort
    from ister.client.session.values import SchemaRegistration

# Counted for each message on top of its payload, so that one sum bounds both the bytes and the
# number of messages of a batch: 512 KiB / 32 B = 16,384 empty messages.
MESSAGE_OVERHEAD_BYTES = PRODUCER_BATCH_BYTES // PRODUCER_BATCH_COUNT


# Requests leave in groups of this size, although more may come in the same turn: the responder
# works on the first while the others are still being made (measured with 100 in flight: 15 %
# more than in one group; groups of 16 cost more in system calls than they gain).
REQUESTS_AT_ONCE = 48

# With so many batches under way, nobody waits for the answer to this very one.
BULK_IN_FLIGHT = 2


_Receipt = TypeVar("_Receipt", bound=Sent)


class ProducerChannel:
    """One producer of a topic or partition: collects messages into batches and sends them."""

    def __init__(
        self,
        session: "SessionPort",
        *,
        topic: str,
        name: str,
        channel: int,
        codec: Codec,
        resend: bool,
        partitions: int = 0,
        schema: SchemaRef = NO_SCHEMA,
        registration: "SchemaRegistration | None" = None,
        close: "Callable[[ProducerChannel], object]",
    ) -> None:
        """`close` has the session forget it, when it cannot go on."""
        self.topic = topic
        self.name = name
        self.channel = channel
        # Of the topic that this is a partition of; 0 for any other topic.
        self.partitions = partitions
        self.opened = False
        # Whether the topic is a stream, as far as known.
        self.stream = False
        self.closed: IsterError | None = None
        self.producer_id = 0
        self.pending_bytes = 0
        self.in_flight: dict[int, PendingBatch] = {}
        # The first batch that failed without anybody waiting for it; `flush` tells of it.
        self._failed: PendingBatch | None = None
        self._session = session
        self._close = close
        self._codec = codec
        # What batches say that they are, from the next one on.
        self.schema = schema
        # How the broker is told of the schema when it has forgotten it; `None`: it is not.
        self.registration = registration
        self._resend = resend
        # Whether batches keep their messages until acknowledged, to send them again.
        self._keep = resend
        self._name_bytes = name.encode()
        self._open: PendingBatch | None = None
        # The open batch, while it takes messages that are nothing but a payload; the fast path
        # of `Producer.send_nowait` adds to it directly. Never set when there is a schema: values
        # have to be encoded first.
        self.plain: PendingBatch | None = None
        self._queue: deque[PendingBatch] = deque()
        # Whether the queue waits for the next pulse, or for the answer to an uncertain batch.
        self._held = False
        self._in_flight_bytes = 0
        self._sequence = 0
        # The number of the next message.
        self._messages = 0
        self.message_bytes_max = session.message_bytes_max
        self._batch_bytes = session.batch_bytes
        # What is to be published later; most producers have nothing of that.
        self._delays: DelayBox | None = None

    @property
    def collecting(self) -> bool:
        """Whether a batch is open."""
        return self._open is not None

    @property
    def full(self) -> bool:
        """Whether `send` should wait for acknowledgements first."""
        return self.pending_bytes >= PRODUCER_WINDOW_BYTES

    def send(
        self,
        payload: bytes,
        key: str | None,
        attributes: Attributes | None,
        message_id: str | None,
        reply: ReplyAddress | None,
        receipt: "type[_Receipt]",
    ) -> "_Receipt":
        """Add a message to the open batch; returns a `receipt` of it.

        Raises `ProducerFullError` when too much is pending.
        """
        if type(payload) is not bytes:
            payload = as_bytes(payload)
        size = len(payload)
        if size > self.message_bytes_max:
            raise MessageTooLargeError(self.topic, size, self.message_bytes_max)
        extras = (
            key is not None or attributes is not None or message_id is not None or reply is not None
        )
        if extras:
            check_extras(key, attributes, message_id)
        batch = self._open
        if batch is None:
            batch = self._start()
        slot = len(batch.payloads)
        batch.payloads.append(payload)
        if extras or batch.extras:
            self.plain = None
            size += batch.add_extras(key, attributes, message_id, reply)
        batch.room_bytes -= size + MESSAGE_OVERHEAD_BYTES
        if batch.room_bytes <= 0:
            self.close_batch(batch)
        return receipt(batch, slot)

    def send_request(self, payload: bytes, reply: ReplyAddress) -> bool:
        """Add a bare request to the open batch, if there is one of requests.

        What `send` does, for the many requests of one turn. Returns whether it was done.
        """
        batch = self._open
        if (
            batch is None
            or batch.replies is None
            or batch.keys is not None
            or batch.attributes is not None
            or type(payload) is not bytes
            or (size := len(payload)) > self.message_bytes_max
        ):
            return False
        batch.payloads.append(payload)
        batch.replies.append(reply)
        batch.room_bytes -= size + MESSAGE_OVERHEAD_BYTES
        if batch.room_bytes <= 0 or len(batch.payloads) >= REQUESTS_AT_ONCE:
            self.close_batch(batch)
            self.pump()
        return True

    def send_lone(
        self, payload: bytes, receipt: "type[_Receipt]", reply: ReplyAddress | None = None
    ) -> "_Receipt | None":
        """Send a bare payload as a batch of its own, if nothing is pending that it must follow.

        The latency path: the same as `send`, `cut` and `pump`, in one go. Returns `None`, with
        nothing done, when it does not apply.
        """
        session = self._session
        if (
            self.pending_bytes
            or self._open is not None
            or not self.opened
            or not session.can_publish
            or type(payload) is not bytes
            or (size := len(payload) + MESSAGE_OVERHEAD_BYTES) > PRODUCER_BATCH_BYTES
            or size > self.message_bytes_max
            or self._codec
        ):
            return None
        batch = PendingBatch(self.topic, session.pulse_ms)
        self.pending_bytes = self._in_flight_bytes = batch.size_bytes = size
        self._sequence = batch.sequence = sequence = (self._sequence + 1) & SEQUENCE_MASK
        self.in_flight[sequence] = batch
        encoded = encode_bare(
            payload,
            reply=reply,
            producer=self._name_bytes,
            producer_id=self.producer_id,
            first_sequence=self._messages,
            schema=self.schema,
        )
        self._messages += 1
        if reply is not None:
            batch.replies = [reply]
        if self._keep:
            batch.payloads.append(payload)
            if self.stream:
                batch.first_sequence = self._messages - 1
        session.connection.send(publish_bare_frame(self.channel, sequence, encoded))
        return receipt(batch, 0)

    def send_expecting(
        self,
        payload: bytes,
        key: str | None,
        attributes: Attributes | None,
        message_id: str | None,
        expected_offset: int,
        receipt: "type[_Receipt]",
    ) -> "_Receipt":
        """Send a message in a batch of its own, to be stored at `expected_offset` or not at all."""
        self.cut()
        sent = self.send(payload, key, attributes, message_id, None, receipt)
        sent.batch.expected_offset = expected_offset
        self.cut()
        return sent

    def send_delayed(
        self,
        payload: bytes,
        key: str | None,
        attributes: Attributes | None,
        message_id: str | None,
        due: Due,
        receipt: "type[_Receipt]",
    ) -> "_Receipt":
        """Send a message that the broker keeps until it is due."""
        if self._delays is None:
            self._delays = DelayBox(self._session, self)
        return self._delays.add(payload, key, attributes, message_id, due, receipt)

    def send_batch(
        self,
        payloads: list[bytes],
        keys: list[str | None] | None,
        *,
        attributes: list[Attributes | None] | None = None,
        ids: list[str | None] | None = None,
    ) -> list[Sent]:
        """Send many payloads as they are, in as few batches as the limits allow.

        Returns what tells when each of those batches is done.
        """
        if set(map(type, payloads)) - {bytes}:
            payloads = [as_bytes(p) for p in payloads]
        sizes = list(map(len, payloads))
        largest = max(sizes, default=0)
        if largest > self.message_bytes_max:
            raise MessageTooLargeError(self.topic, largest, self.message_bytes_max)
        if keys is not None:
            sizes = [size + len(key or "") for size, key in zip(sizes, keys, strict=True)]
        if attributes is not None:
            sizes = [size + attributes_size(a) for size, a in zip(sizes, attributes, strict=True)]
        if ids is not None:
            sizes = [size + len(id_ or "") for size, id_ in zip(sizes, ids, strict=True)]
        self.cut()
        sent = []
        for start, end, size in cut_batches(sizes, self._batch_bytes):
            batch = self._start()
            self.plain = None
            batch.payloads = payloads[start:end]
            batch.set_extras(
                keys and keys[start:end],
                attributes and attributes[start:end],
                ids and ids[start:end],
            )
            batch.room_bytes -= size + MESSAGE_OVERHEAD_BYTES * (end - start)
            self.close_batch(batch)
            sent.append(Sent(batch, end - start - 1))
        return sent

    def cut(self) -> None:
        """End the open batch: what is sent from now on goes into another."""
        if self._open is not None:
            if self._open.payloads:
                self.close_batch(self._open)
            else:
                self._open = self.plain = None

    def pump(self) -> None:
        """Send queued batches while the connection and the window allow."""
        if not self.opened or not self._queue or self._held or not self._session.can_publish:
            return
        queue, connection = self._queue, self._session.connection
        while queue and self._in_flight_bytes < PRODUCER_WINDOW_BYTES:
            batch = queue.popleft()
            self._sequence = sequence = (self._sequence + 1) & SEQUENCE_MASK
            batch.sequence = sequence
            first_sequence = batch.first_sequence
            if first_sequence == UNNUMBERED:
                first_sequence = self._messages
                self._messages += len(batch.payloads)
                if self.stream:
                    batch.first_sequence = first_sequence
            head, body = encode(
                batch.payloads,
                keys=batch.keys,
                attributes=batch.attributes,
                ids=batch.ids,
                replies=batch.replies,
                producer=self._name_bytes,
                producer_id=self.producer_id,
                first_sequence=first_sequence,
                schema=self.schema,
                codec=self._codec,
            )
            bulk = len(self.in_flight) >= BULK_IN_FLIGHT
            opcode = Opcode.PUBLISH_BULK if bulk else Opcode.PUBLISH
            if batch.expected_offset != ANY_OFFSET:
                opcode = Opcode.PUBLISH_EXPECT
                head = expecting(head, batch.expected_offset)
            self.in_flight[sequence] = batch
            self._in_flight_bytes += batch.size_bytes
            connection.send_all(publish_frame(self.channel, sequence, head, body, opcode=opcode))
            if not self._keep:
                batch.release()
            if batch.uncertain is not None:
                self._held = True
                return

    def on_published(self, sequence: int, base_offset: int) -> None:
        """The broker has acknowledged a batch."""
        batch = self.in_flight.pop(sequence, None)
        if batch is not None:
            batch.base_offset = base_offset
            if self._keep:
                if base_offset == OFFSET_FORGOTTEN:
                    batch.offsets = [OFFSET_FORGOTTEN] * len(batch.payloads)
                batch.release()
            self._in_flight_bytes -= batch.size_bytes
            self.pending_bytes -= batch.size_bytes
            batch.finish(None)
            if batch.uncertain is not None:
                self._held = False
            if self._queue:
                self.pump()

    def on_published_each(self, sequence: int, offsets: list[int]) -> None:
        """The broker has acknowledged a batch of which it knew some messages by their ids."""
        batch = self.in_flight.get(sequence)
        if batch is not None:
            if len(offsets) != len(batch.payloads):
                raise ProtocolError(f"{len(offsets)} offsets for {len(batch.payloads)} messages")
            batch.offsets = offsets
            self.on_published(sequence, 0)

    def on_refused(self, sequence: int, error: IsterError) -> None:
        """The broker has refused a batch, or it took too long."""
        if isinstance(error, ProducerFencedError):
            self._end(error)
            return
        batch = self.in_flight.pop(sequence, None)
        if batch is not None:
            if isinstance(error, StorageUncertainError):
                batch.uncertain = error
            # That a repetition was not stored says nothing of the first time.
            is_open = isinstance(error, StorageUncertainError | StorageFailedError)
            if batch.uncertain and is_open and batch.first_sequence != UNNUMBERED:
                self._send_again(batch)
                return
            self._settle(batch, error)
            if batch.uncertain is not None:
                self._held = False
            if self._queue:
                self.pump()

    @property
    def kind(self) -> Literal["live", "stream"] | UnsetType:
        """The kind of the topic, once it was open: a broker that was restarted may not know it."""
        if not self.producer_id:
            return UNSET
        return "stream" if self.stream else "live"

    def on_opened(self, producer_id: int, *, kind: str = "live", next_sequence: int = 0) -> None:
        """The broker is ready for this producer, and for message `next_sequence` of a stream."""
        came_back, self.stream = self.stream, kind == "stream"
        self._keep = self._resend or self.stream
        if self.stream:
            ours = number_anew(self._queue, next_sequence)
            if came_back and (next_sequence > self._messages or not ours):
                self._end(ProducerFencedError(self.topic, self.name))
                return
            self._messages = next_sequence
        self.opened = True
        self._held = False
        self.producer_id = producer_id
        self.message_bytes_max = self._session.message_bytes_max
        self._set_batch_bytes(self._session.batch_bytes)
        self.pump()
        if self._delays is not None:
            self._delays.pump()

    def on_disconnected(self, error: IsterError) -> None:
        """The connection is lost: fail what was in flight, or get ready to send it again."""
        self.opened = False
        flying = list(self.in_flight.values())
        self.in_flight.clear()
        self._in_flight_bytes = 0
        if self._keep:
            self._queue.extendleft(reversed(flying))
            return
        for batch in flying:
            self.finish(batch, error)

    def expire(self, now_ms: int, timeout_ms: int) -> None:
        """Fail what has waited too long for a connection or an acknowledgement."""
        error = RequestTimeoutError(f"publish to {self.topic!r}", timeout_ms / 1000)
        for batch in [b for b in self.in_flight.values() if now_ms - b.queued_ms >= timeout_ms]:
            self.on_refused(batch.sequence, error)
        while self._queue and now_ms - self._queue[0].queued_ms >= timeout_ms:
            self.finish(self._queue.popleft(), error)
        if self._held and not any(batch.uncertain for batch in self.in_flight.values()):
            self._held = False
            self.pump()
        if self._delays is not None:
            self._delays.expire(now_ms, timeout_ms)

    def fail(self, error: IsterError) -> None:
        """Fail everything that is pending, now and later. The first error stays."""
        if self.closed is None:
            self.closed = error
        self.opened = False
        for batch in list(self.pending()):
            self.finish(batch, error)
        self.in_flight.clear()
        self._queue.clear()
        self._in_flight_bytes = 0
        if self._delays is not None:
            self._delays.clear()

    def pending(self) -> Iterator[PendingBatch]:
        """Yield every batch that is not done."""
        self.cut()
        yield from self.in_flight.values()
        yield from self._queue
        if self._delays is not None:
            yield from self._delays.pending()

    def _set_batch_bytes(self, batch_bytes: int) -> None:
        """Make batches of another size; an open one goes on with what that leaves it."""
        if self._open is not None:
            self._open.room_bytes += batch_bytes - self._batch_bytes
        self._batch_bytes = batch_bytes

    def _start(self) -> PendingBatch:
        if self.closed is not None:
            raise self.closed
        if self.pending_bytes >= PRODUCER_PENDING_BYTES_MAX:
            raise ProducerFullError(self.topic, self.pending_bytes)
        batch = self._open = PendingBatch(self.topic, self._session.pulse_ms)
        if self.schema is NO_SCHEMA:
            self.plain = batch
        batch.room_bytes = self._batch_bytes
        self._session.mark_dirty(self)
        return batch

    def close_batch(self, batch: PendingBatch) -> None:
        """End the open batch, which is full or whose tick is over."""
        self._open = self.plain = None
        batch.size_bytes = self._batch_bytes - batch.room_bytes
        self.pending_bytes += batch.size_bytes
        self._queue.append(batch)

    def _end(self, error: IsterError) -> None:
        """Give up for good: also after a reconnect this producer is not opened again."""
        self.fail(error)
        self._close(self)

    def _send_again(self, batch: PendingBatch) -> None:
        """Put a batch back to its place in the queue, under its numbers; send it a little later."""
        self._in_flight_bytes -= batch.size_bytes
        slot = 0
        for other in self._queue:
            if other.first_sequence == UNNUMBERED or other.first_sequence > batch.first_sequence:
                break
            slot += 1
        self._queue.insert(slot, batch)
        self._held = True

    def _settle(self, batch: PendingBatch, error: IsterError | None) -> None:
        self._in_flight_bytes -= batch.size_bytes
        self.finish(batch, error)

    def finish(self, batch: PendingBatch, error: IsterError | None) -> None:
        """A batch is done: tell everybody who waits for it."""
        self.pending_bytes -= batch.size_bytes
        if error is not None:
            # Whatever became of its repetition, it may be stored.
            error = batch.uncertain or error
            if batch.replies is not None:
                self._session.fail_requests([request for _, request in batch.replies], error)
            elif self._failed is None and not batch.awaited:
                self._failed = batch
        batch.finish(error)

    def unseen_error(self) -> IsterError | None:
        """Return the first error since the last call that nobody was told by a future."""
        failed, self._failed = self._failed, None
        return failed.failure() if failed is not None and not failed.awaited else None


def cut_batches(sizes: list[int], batch_bytes: int) -> Iterator[tuple[int, int, int]]:
    """Cut messages of these sizes into runs that fit a batch: start, end and bytes of each."""
    ends = list(accumulate(sizes))
    start = taken = 0
    while start < len(sizes):
        end = bisect_right(ends, taken + batch_bytes, start)
        end = min(max(end, start + 1), start + PRODUCER_BATCH_COUNT)
        yield start, end, ends[end - 1] - taken
        start, taken = end, ends[end - 1]
