"""The broker's end of one native connection: frames in, calls to the broker, frames out.

Always true:
- a request is answered once, by a reply or by an error with its sequence number;
- a broken frame or batch costs the connection or the request, never the broker;
- a peer that does not read what it is sent is not read from either, so what we hold for it is
  bounded by the send buffer.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ister.base.errors import (
    GoingAwayError,
    InternalError,
    IsterError,
    LimitReachedError,
    ProtocolError,
)
from ister.base.limits import BATCH_BYTES_EXCESS
from ister.broker import (
    Attachment,
    Producer,
    Reader,
    Stage,
    StreamTopic,
    Topic,
    Transaction,
    Watch,
)
from ister.codec import Batch, Codec, available
from ister.server.native.commands import answer
from ister.server.native.publishing import publish
from ister.server.native.streams import (
    acknowledge,
    end_old_transactions,
    end_transaction,
    hold_up_if_full,
    stage_batch,
)
from ister.server.native.timelines import TimelineOutlet
from ister.server.security import Pass
from ister.wire import (
    CREDIT,
    ActiveChanged,
    Command,
    Connection,
    ConsumerClosed,
    Frame,
    GoingAway,
    NoResponder,
    Opcode,
    Pulse,
    ReaderEnded,
    SlowConsumer,
    State,
    Subscribed,
    TopicNumber,
    Welcome,
    accept_hello,
    control_frame,
    decode_command,
    deliver_frame,
    error_reply,
    leased_frame,
    reply_frame,
)

if TYPE_CHECKING:
    from ister.server.native.door import NativeDoor

# Enough to keep a fast reader's socket full between two turns of the loop; what a slow reader
# costs us beyond its queues.
SEND_BUFFER_BYTES = 1024 * 1024

# Half of a client's window of 8 batches, so that it never stands still for an answer.
LATE_ANSWERS_MAX = 4

# A reply from this size on is sent at once, so that we notice when nobody reads what we answer.
LARGE_REPLY_BYTES = 8 * 1024


class NativeSession(asyncio.BufferedProtocol):
    """One connection. Also the broker's `Sink` and `ReplySink` for its consumers and requests."""

    def __init__(
        self, door: "NativeDoor", session: int, below: asyncio.Transport | None = None
    ) -> None:
        clock = door.broker.clock
        self.door = door
        self.broker = door.broker
        self.id = session
        self.address = ""
        self.writable = True
        self.client_id = ""
        # What it was let in by.
        self.shown = Pass()
        # Of an incomplete frame, as the door has counted them.
        self.buffered_bytes = 0
        self.connected_ms = clock.monotonic_ms()
        self.connection = Connection(
            now_ms=self.connected_ms, heartbeat_ms=door.heartbeat_ms, pool=door.pool
        )
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Attachment] = {}
        self.readers: dict[int, Reader] = {}
        self.watches: set[Watch] = set()
        self.transactions: dict[int, Transaction] = {}
        self.stages: dict[int, Stage] = {}
        self.timelines = TimelineOutlet(self)
        # When each transaction was begun.
        self.begun_ms: dict[int, int] = {}
        # Channels of consumers and readers that wait for a journal or a disk.
        self.opening: set[int] = set()
        self._transport: asyncio.Transport | None = None
        # What TLS goes over.
        self._below = below
        self._codecs = {Codec.NONE}
        self._known_topics: set[int] = set()
        self._dirty = False
        # Acknowledgements queued for a bulk producer that may wait a moment.
        self._late_answers = 0
        # Where the read under way goes, if into a large frame.
        self._space: memoryview | None = None
        # What was read before the peer turned out not to read its answers.
        self._held: list[Frame] = []
        # Whether a journal has so much to write that we do not read for now.
        self._held_up = False
        # Whether a thread checks what came last, and the rest has to wait.
        self._checking = False

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or refuse it when there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "memory"
        self.door.on_connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything this connection had."""
        self.connection.close()
        self.broker.replies.sinks.pop(self.id, None)
        self.writable = False
        for producer in self.producers.values():
            self.broker.close_producer(producer)
        # Copies: whoever is told may be detached here as well.
        attachments, readers = list(self.consumers.values()), list(self.readers.values())
        for channel in list(self.transactions):
            end_transaction(self, channel)
        for stage in self.stages.values():
            self.broker.staging.abandon(stage)
        for held in (self.producers, self.consumers, self.readers, self.stages):
            held.clear()
        self.opening.clear()
        for attachment in attachments:
            self.broker.subscribers.unsubscribe(attachment, graceful=False)
        for reader in readers:
            reader.close()
        for watch in self.watches:
            watch.close()
        self.watches.clear()
        self.timelines.close()
        self.door.on_disconnected(self)
        self.door.flush()

    def eof_received(self) -> None:
        """The peer has ended its half. TLS would still take what we write, and drop it."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()

    def pause_writing(self) -> None:
        """The peer reads too slowly: queue its messages, and stop reading from it."""
        self.writable = False
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        if self._transport is None or self._transport.is_closing():
            return
        self.writable = True
        for attachment in list(self.consumers.values()):
            attachment.consumer.resume()
        for reader in list(self.readers.values()):
            reader.pump()
        held, self._held = self._held, []
        try:
            self._act(held)
        except Exception as error:  # noqa: BLE001 - see `data_received`
            self._on_failure(error)
        self.door.flush()
        self._resume_reading()

    def hold_up(self) -> None:
        """Read no more for now: a journal has enough to write."""
        transport = self._transport
        if not self._held_up and transport is not None and not transport.is_closing():
            self._held_up = True
            transport.pause_reading()

    def go_on(self) -> None:
        """The journal has caught up."""
        if self._held_up:
            self._held_up = False
            self._resume_reading()

    def hold_back(self) -> None:
        """Act on no more frames for now: a thread checks the last one."""
        self._checking = True
        if self._transport is not None:
            self._transport.pause_reading()

    def let_go(self, act: Callable[[], object]) -> None:
        """The check is over: act on it, and on what came meanwhile."""
        self._checking = False
        if self._transport is None or self._transport.is_closing():
            return
        try:
            act()
            if self.writable and not self._checking:
                held, self._held = self._held, []
                self._act(held)
        except Exception as error:  # noqa: BLE001 - see `data_received`
            self._on_failure(error)
        self.door.flush()
        self._resume_reading()

    def _resume_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.writable and not self._held_up and not self._checking:
            transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the socket puts what it reads."""
        self._space = space = self.connection.space()
        return self.door.scratch if space is None else space

    def buffer_updated(self, nbytes: int) -> None:
        """Act on the frames that the bytes just read complete."""
        if self._space is None:
            self.data_received(bytes(self.door.scratch[:nbytes]))
        else:
            self._space = None
            self.data_received(None, nbytes)

    def data_received(self, data: bytes | None, count: int = 0) -> None:
        """Act on the frames completed by `data`, or by `count` bytes read in place."""
        self.door.reading = True
        try:
            if data is None:
                frames = self.connection.filled(count)
            else:
                frames = self.connection.receive(data)
            if self.connection.buffered_bytes != self.buffered_bytes:
                self.door.count_buffered(self)
            if frames:
                self._act(frames)
            else:
                # Nothing, or nothing but a ping, whose answer waits to be sent.
                self.flush()
        except Exception as error:  # noqa: BLE001 - a bug must cost one connection, not all
            self._on_failure(error)
        self.door.reading = False
        if data is None:
            self.door.flush_soon()
        else:
            self.door.flush()
            self.door.conversation.on_received(len(data))

    # The broker's sinks

    def _prepared(self, topic: StreamTopic, batch: Batch) -> Batch:
        """Tell the topic's number if the client does not know it; unpack what it cannot."""
        if topic.number not in self._known_topics:
            self._known_topics.add(topic.number)
            self.send(TopicNumber(number=topic.number, topic=topic.name))
        return batch.plain() if batch.codec and batch.codec not in self._codecs else batch

    def deliver(self, channel: int, topic: Topic | StreamTopic, batch: Batch) -> None:
        """Send a batch, after the topic's number if the client does not know it."""
        if topic.number not in self._known_topics:
            self._known_topics.add(topic.number)
            self.send(TopicNumber(number=topic.number, topic=topic.name))
        if batch.codec and batch.codec not in self._codecs:
            # Unpacked it may be a thousand times larger than what was counted against its credit:
            # sent at once, so that we notice before the next one when the peer does not read.
            self.connection.send_all(deliver_frame(channel, topic.number, batch.plain()))
            self.flush()
            return
        self.connection.send_all(deliver_frame(channel, topic.number, batch))
        if not self._dirty:
            self.mark_dirty()

    def deliver_leased(
        self,
        channel: int,
        topic: StreamTopic,
        batch: Batch,
        lease: int,
        attempt: int,
        lease_ms: int,
    ) -> None:
        """Send a batch of a stream, to be acknowledged under `lease`."""
        batch = self._prepared(topic, batch)
        frame = leased_frame(channel, topic.number, batch, lease, attempt, lease_ms)
        self.connection.send_all(frame)
        if not self._dirty:
            self.mark_dirty()

    def reader_ended(self, channel: int, error: IsterError | None) -> None:
        """Tell that a reader has had everything, or why no more comes."""
        self.readers.pop(channel, None)
        told = error_reply(error) if error is not None else None
        ended = ReaderEnded(told.code, told.text, told.fields) if told else ReaderEnded()
        self.send(ended, channel=channel)

    def slow_consumer(self, channel: int, dropped: int) -> None:
        """Tell a consumer what it has lost so far."""
        self.send(SlowConsumer(dropped=dropped), channel=channel)

    def active_changed(self, channel: int, *, active: bool) -> None:
        """Tell a standby that it was promoted."""
        self.send(ActiveChanged(active=active), channel=channel)

    def consumer_closed(self, channel: int, reason: str) -> None:
        """Tell a consumer that the broker closed it."""
        self.consumers.pop(channel, None)
        self.send(ConsumerClosed(reason=reason), channel=channel)

    def leases_void(self, channel: int, leases: int, *, active: bool) -> None:
        """Tell a consumer that what it holds of streams is void."""
        self.send(Subscribed(active=active, leases=leases), channel=channel)

    def reply(self, batch: Batch) -> None:
        """Send answers to this client's requests."""
        if self.overrun:
            return
        if batch.codec and batch.codec not in self._codecs:
            batch = batch.plain()
        self.connection.send_all(reply_frame(batch))
        self.mark_dirty()

    def no_responder(self, requests: list[int]) -> None:
        """Tell this client that some requests reached nobody."""
        if not self.overrun:
            self.send(NoResponder(requests=requests))

    # For the door

    def send(self, command: Command, *, channel: int = 0, sequence: int = 0) -> None:
        """Queue a control frame."""
        self.connection.send(control_frame(command, channel=channel, sequence=sequence))
        self.mark_dirty()

    def send_frame(self, frame: bytes) -> None:
        """Queue an encoded frame."""
        self.connection.send(frame)
        self.mark_dirty()

    def uses(self, channel: int) -> bool:
        """Whether a channel is taken by anything."""
        return (
            channel in self.producers
            or channel in self.consumers
            or channel in self.readers
            or channel in self.transactions
            or channel in self.stages
            or channel in self.timelines.consumers
            or channel in self.opening
        )

    def flush(self) -> None:
        """Hand everything queued to the socket."""
        self._dirty = False
        self._late_answers = 0
        parts = self.connection.outgoing()
        if parts and self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(parts)

    def fail(self, error: IsterError) -> None:
        """Tell the peer why, then close the connection."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.writelines([*self.connection.outgoing(), control_frame(error_reply(error))])
        self.close()
        self.door.on_refused(self, error)

    def close(self) -> None:
        """Close the connection once everything queued is sent."""
        self.flush()
        self.connection.close()
        if self._transport is not None:
            # A peer that is not reading would keep a polite close waiting for ever.
            if not self.writable:
                self._transport.abort()
            elif not self._transport.is_closing():
                self._transport.close()
        # From here on its messages queue, and go to the others when the connection is gone.
        self.writable = False

    def abort(self) -> None:
        """Close the connection at once."""
        self.connection.close()
        self.writable = False
        if self._transport is not None:
            self._transport.abort()

    def go_away(self, reason: str) -> None:
        """Ask the client to leave."""
        if self.connection.state is State.OPEN:
            self.send(GoingAway(reason=reason))
        else:
            self.close()

    def pulse(self, now_ms: int) -> bool:
        """Send a ping when it is time; return whether the peer is dead."""
        if self.begun_ms:
            end_old_transactions(self, now_ms)
        if self._held_up or self._checking:
            # We do not listen: what it says is not heard before the journal has caught up.
            self.connection.heard_ms = now_ms
        if self.connection.pulse(now_ms) is Pulse.DEAD:
            return True
        self.flush()
        return False

    @property
    def drained(self) -> bool:
        """Whether nothing is queued for this client any more."""
        transports = [one for one in (self._transport, self._below) if one is not None]
        sent = not any(one.get_write_buffer_size() for one in transports)
        return sent and not any(a.consumer.queued_count for a in self.consumers.values())

    @property
    def overrun(self) -> bool:
        """Whether more waits for this client than any queue may hold, because it does not read.

        Other clients decide how many answers come here, and no credit bounds them: beyond this
        they are dropped, as a slow consumer's messages are.
        """
        if self.writable or self._transport is None:
            return False
        return self._transport.get_write_buffer_size() > self.broker.limits.queue_bytes_max

    @property
    def _must_wait(self) -> bool:
        """Whether frames wait already, or are to wait for a check."""
        return self._checking or bool(self._held)

    # Frames

    def _act(self, frames: list[Frame]) -> None:
        """Deal with frames until the peer turns out not to read its answers; hold the rest.

        A flood of small questions would else cost us all of its large answers.
        """
        if self._must_wait:
            self._held += frames
            return
        rest = iter(frames)
        for frame in rest:
            if frame[0] == Opcode.PUBLISH:
                if publish(self, frame) and not self._dirty:
                    self.mark_dirty()
            elif frame[0] == Opcode.PUBLISH_BULK:
                if publish(self, frame) and not self._dirty:
                    self._answer_later()
            else:
                self._on_frame(frame)
                if not self.writable:
                    self._held = list(rest)
                    return
            if self._checking:
                self._held = list(rest)
                return

    def _on_failure(self, error: Exception) -> None:
        if not isinstance(error, IsterError):
            self.door.on_bug(self, error)
            error = InternalError(type(error).__name__)
        self.fail(error)

    def _on_frame(self, frame: Frame) -> None:
        opcode, channel, sequence, body = frame
        if opcode == Opcode.CREDIT:
            self._on_credit(channel, body)
        elif opcode == Opcode.REPLY:
            self.broker.reply(Batch(body))
        elif opcode in _ACKS:
            acknowledge(self, self.consumers.get(channel), frame)
        elif opcode == Opcode.STAGE:
            stage_batch(self, frame)
        elif opcode == Opcode.PUBLISH_EXPECT:
            publish(self, frame)
        elif opcode == Opcode.CONTROL and self.connection.state is State.OPEN:
            self._on_command(sequence, decode_command(body))
        elif opcode == Opcode.CONTROL:
            self._on_hello(frame)
        else:
            raise ProtocolError(f"opcode {opcode} is not for a broker")

    def _answer_later(self) -> None:
        """Send the acknowledgements of a bulk producer a few at a time: each wakes it up."""
        self._late_answers += 1
        if self._late_answers >= LATE_ANSWERS_MAX:
            self.mark_dirty()
        elif self._late_answers == 1:
            self.door.flush_late(self)

    def _on_credit(self, channel: int, body: memoryview) -> None:
        count, size_bytes = CREDIT.unpack(body)
        found = self.consumers.get(channel)
        if found is not None:
            found.consumer.grant(count, size_bytes)
            return
        # A closed one is no error: the frame may have crossed its closing.
        reader = self.readers.get(channel)
        if reader is not None:
            reader.grant(count, size_bytes)
        else:
            self.timelines.grant(channel, count)

    def _on_hello(self, frame: Frame) -> None:
        hello, version = accept_hello(frame)
        self.shown = self.door.guard.check(hello.token, door="native", address=self.address)
        if self.door.closing:
            raise GoingAwayError("shutting down")
        self.client_id = hello.client_id
        self._codecs |= {c for c in available() if c.name.lower() in hello.codecs}
        limits = self.broker.limits
        self.connection.opened(limits.batch_bytes_max + BATCH_BYTES_EXCESS)
        self.broker.replies.sinks[self.id] = self
        self.door.on_opened(self, hello.agent)
        self.send(
            Welcome(
                version=version,
                broker=self.broker.name,
                session=self.id,
                codecs=[c.name.lower() for c in available()],
                message_bytes_max=limits.message_bytes_max,
                batch_bytes_max=limits.batch_bytes_max,
                heartbeat_ms=self.door.heartbeat_ms,
            ),
            sequence=frame[2],
        )

    def _on_command(self, sequence: int, command: Command) -> None:
        def reply(result: Command | IsterError) -> None:
            command = error_reply(result) if isinstance(result, IsterError) else result
            try:
                frame = control_frame(command, sequence=sequence)
            except IsterError as error:
                frame = control_frame(error_reply(error), sequence=sequence)
            self.send_frame(frame)
            if len(frame) >= LARGE_REPLY_BYTES:
                self.flush()

        try:
            answer(self, command, reply)
        except ProtocolError:
            raise
        except IsterError as error:
            reply(error)
        for vault in self.broker.streams.vaults:
            hold_up_if_full(self, vault)

    def check_room(self, held: int, limit: str) -> None:
        """Raise `LimitReachedError` when this connection has too many of something."""
        most = getattr(self.broker.limits, limit)
        if held >= most:
            raise LimitReachedError(limit, most)

    def mark_dirty(self) -> None:
        """Have what is queued sent when all frames of a read are dealt with."""
        if not self._dirty:
            self._dirty = True
            self.door.dirty.append(self)
            if not self.door.reading:
                # A journal, a disk or the clock has set this off: nobody else would send it.
                self.door.flush_soon()


_ACKS = frozenset((Opcode.ACK, Opcode.ACK_THROUGH, Opcode.NACK, Opcode.EXTEND))
