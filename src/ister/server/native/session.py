"""The broker's end of one native connection: frames in, calls to the broker, frames out.

Always true:
- a request is answered once, by a reply or by an error with its sequence number;
- a broken frame or batch costs the connection or the request, never the broker;
- a peer that does not read what it is sent is not read from either, so what we hold for it is
  bounded by the send buffer;
- what a peer sends is dealt with in the order it came, a few milliseconds in each turn of the loop.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ister.base.errors import (
    InternalError,
    IsterError,
    ProtocolError,
)
from ister.base.limits import BATCH_BYTES_EXCESS, MIB
from ister.broker import (
    Membership,
    Producer,
    Reader,
    SourceTopic,
    Stage,
    Transaction,
    Watch,
)
from ister.codec import Batch, Codec, Column, available
from ister.server.native.channels import Resumption
from ister.server.native.commands import carry_out, greet
from ister.server.native.departures import let_go_of_all
from ister.server.native.owners import owner_of
from ister.server.native.publishing import publish
from ister.server.native.streams import (
    Steps,
    acknowledge,
    end_old_transactions,
    stage_batch,
)
from ister.server.native.timelines import TimelineOutlet
from ister.server.security import Pass
from ister.subscriptions import Responder
from ister.wire import (
    CREDIT,
    ActiveChanged,
    Command,
    Connection,
    ConsumerClosed,
    Frame,
    GoingAway,
    Hello,
    NoResponder,
    Opcode,
    Pulse,
    ReaderEnded,
    SlowConsumer,
    State,
    Subscribed,
    TopicNumber,
    control_frame,
    decode_request,
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

# Batches that wait for the end of a turn. More of them, for many subscriptions of this peer or
# unpacked for it, are sent at once: so we notice in time when it does not read.
UNFLUSHED_BYTES_MAX = 4 * MIB
# Half of a client's window of 8 batches, so that it never stands still for an answer.
LATE_ANSWERS_MAX = 4
# Publishes between two looks at the clock: 10 µs each, and the look 0.1 µs.
QUICK_FRAMES = 8


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
        self.responder = Responder(clock.monotonic_ms)
        # The owner of this session's consumers and commits. With a secret it stays the same when
        # the client reconnects. No other client has it.
        self.owner = ""
        # What it was let in by.
        self.shown = Pass()
        # Of an incomplete frame, as the door has counted them.
        self.buffered_bytes = 0
        self.connected_ms = clock.monotonic_ms()
        self.connection = Connection(
            now_ms=self.connected_ms, heartbeat_ms=door.heartbeat_ms, pool=door.pool
        )
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, Membership] = {}
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
        self._dirty, self._unflushed_bytes = False, 0
        # Acknowledgements queued for a bulk producer that may wait a moment.
        self._late_answers = 0
        # Where the read under way goes, if into a large frame.
        self._space: memoryview | None = None
        # Whether the last read filled its buffer, and the turn that began with it goes on.
        self._filled = self._goes_on = False
        # What was read before the peer turned out not to read its answers.
        self._held: list[Frame] = []
        # Whether a journal has so much to write that we do not read for now.
        self._held_up = False
        # Whether a thread checks what came last, and the rest has to wait.
        self._checking = False
        # Whether the rest waits for a later turn, and what is left of a frame that takes long.
        self._waiting = False
        self._steps: Steps | None = None
        # The consumers and readers that were resumed last, maybe not all of them yet.
        self.resumption: Resumption | None = None
        # Whether the peer has ended its half, and whether the connection is gone. Over TLS both may
        # come with the last bytes, before there is time for these.
        self._ended = self._lost = False

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or refuse it when there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES)
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "memory"
        self.door.on_connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything, after what came before a proper end is dealt with."""
        self._lost = True
        if not (self._ended and self._must_wait()):
            self._held, self._steps = [], None
            let_go_of_all(self)

    def eof_received(self) -> None:
        """The peer has ended its half. TLS would still take what we write, and drop it."""
        self._ended = True
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
        self.door.turns.begin()
        Resumption(self).go_through()
        self._go_on(lambda: None)

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
        self.door.turns.begin()
        self._go_on(act)

    def go_through(self) -> None:
        """Go on with what an earlier turn was too short for."""
        self._waiting = False
        steps, self._steps = self._steps, None
        self._go_on(lambda: None if steps is None else self.take(steps))

    def _go_on(self, act: Callable[[], object]) -> None:
        if self._transport is None or (self._transport.is_closing() and not self._ended):
            return
        try:
            act()
            self._act_on_held()
        except Exception as error:  # noqa: BLE001 - see `data_received`
            self._on_failure(error)
        self.door.flush()
        self._resume_reading()
        if self._lost and not self._must_wait():
            self.connection_lost(None)

    def _act_on_held(self) -> None:
        if self.writable and not self._must_wait():
            held, self._held = self._held, []
            self._act(held)

    def _resume_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self.writable and not self._held_up and not self._must_wait():
            transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the socket puts what it reads."""
        self._space = space = self.connection.space()
        return self.door.scratch if space is None else space

    def buffer_updated(self, nbytes: int) -> None:
        """Act on the frames that the bytes just read complete."""
        space = self._space
        if space is None:
            self._filled = nbytes == len(self.door.scratch)
            self.data_received(bytes(self.door.scratch[:nbytes]))
        else:
            self._space = None
            self._filled = nbytes == len(space)
            self.data_received(None, nbytes)

    def data_received(self, data: bytes | None, count: int = 0) -> None:
        """Act on the frames completed by `data`, or by `count` bytes read in place."""
        self.door.reading = self.broker.end_of_turn.expected = True
        try:
            if data is None:
                frames = self.connection.filled(count)
            else:
                frames = self.connection.receive(data)
            if self.connection.buffered_bytes != self.buffered_bytes:
                self.door.count_buffered(self)
            if frames:
                begins = len(frames) > 1 or frames[0][0] not in _QUICK
                if begins and not self._goes_on:
                    self.door.turns.begin()
                self._act(frames)
                self.broker.end_of_turn.run()
                self._bound_reads(begins=begins)
            else:
                # Nothing, or nothing but a ping, whose answer waits to be sent.
                self.flush()
        except Exception as error:  # noqa: BLE001 - a bug must cost one connection, not all
            self._on_failure(error)
        self.door.reading = self.broker.end_of_turn.expected = False
        if data is None:
            self.door.flush_soon()
        else:
            self.door.flush()
            self.door.conversation.on_received(len(data))

    # The broker's sinks

    def _prepared(self, topic: SourceTopic, batch: Batch) -> Batch:
        """Tell the topic's number if the client does not know it; unpack what it cannot."""
        if topic.number not in self._known_topics:
            self._known_topics.add(topic.number)
            self.send(TopicNumber(number=topic.number, topic=topic.name))
        return batch.plain() if batch.codec and batch.codec not in self._codecs else batch

    def deliver(self, channel: int, topic: SourceTopic, batch: Batch) -> None:
        """Send a batch, after the topic's number if the client does not know it."""
        if batch.codec or topic.number not in self._known_topics:
            batch = self._prepared(topic, batch)
        if batch.columns & Column.REPLY:
            self.responder.on_asked(batch.count)
        self.connection.send_all(deliver_frame(channel, topic.number, batch))
        self._flush_later(batch.size_bytes)

    def deliver_leased(
        self,
        channel: int,
        topic: SourceTopic,
        batch: Batch,
        lease: int,
        attempt: int,
        lease_ms: int,
    ) -> None:
        """Send a batch of a stream, to be acknowledged under `lease`."""
        batch = self._prepared(topic, batch)
        number = topic.number
        self.connection.send_all(leased_frame(channel, number, batch, lease, attempt, lease_ms))
        self._flush_later(batch.size_bytes)

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

    def consumer_closed(
        self, channel: int, reason: str, *, error: IsterError | None = None
    ) -> None:
        """Tell a consumer that the broker closed it."""
        self.consumers.pop(channel, None)
        closed = ConsumerClosed(reason=reason)
        if error is not None:
            told = error_reply(error)
            closed = ConsumerClosed(reason, told.code, told.text, told.fields)
        self.send(closed, channel=channel)

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

    def flush(self) -> None:
        """Hand everything queued to the socket."""
        self._dirty, self._late_answers, self._unflushed_bytes = False, 0, 0
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
        if self._held_up or self._must_wait():
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
        sent = not self._waiting and not any(one.get_write_buffer_size() for one in transports)
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

    def _must_wait(self) -> bool:
        """Whether frames are to wait for a check, or for a later turn."""
        return self._checking or self._waiting

    # Frames

    def _act(self, frames: list[Frame]) -> None:
        """Deal with frames until the peer turns out not to read its answers; hold the rest.

        A flood of small questions would else cost us all of its large answers. When the turn is
        over, the rest has to wait as well.
        """
        if self._must_wait() or self._held:
            self._held += frames
            return
        turns = self.door.turns
        quick = QUICK_FRAMES
        rest = iter(frames)
        for frame in rest:
            if frame[0] == Opcode.PUBLISH:
                if publish(self, frame) and not self._dirty:
                    self.mark_dirty()
                quick -= 1
            elif frame[0] == Opcode.PUBLISH_BULK:
                if publish(self, frame) and not self._dirty:
                    self._answer_later()
                quick -= 1
            else:
                steps = self._on_frame(frame)
                if steps is not None:
                    self.take(steps)
                if not self.writable:
                    self._held = list(rest)
                    return
                quick = 0
            if self._must_wait():
                self._held = list(rest)
                return
            if quick <= 0:
                quick = QUICK_FRAMES
                if turns.is_over():
                    self._held = list(rest)
                    if self._held:
                        self._wait()
                    return

    def _bound_reads(self, *, begins: bool) -> None:
        """Read no more in this turn of the loop when its time is over.

        uvloop reads up to 32 times in one turn, as long as each read fills its buffer: together
        they have the time of one turn.
        """
        self._goes_on = self._filled and not self._waiting and (begins or self._goes_on)
        if self._goes_on and self.door.turns.is_over():
            self._goes_on = False
            self._wait()

    def take(self, steps: Steps) -> None:
        """Take the steps of what takes long; those that this turn is too short for have to wait."""
        is_over = self.door.turns.is_over
        for blocked in steps:
            if blocked or is_over():
                self._steps = steps
                self._wait()
                return

    def _wait(self) -> None:
        """Go on in a later turn of the loop, and read nothing before."""
        self._waiting = True
        if self._transport is not None:
            self._transport.pause_reading()
        self.door.turns.wait(self)

    def _on_failure(self, error: Exception) -> None:
        if not isinstance(error, IsterError):
            self.door.on_bug(self, error)
            error = InternalError(type(error).__name__)
        self.fail(error)

    def _on_frame(self, frame: Frame) -> Steps | None:
        """Deal with a frame; return what is left to do when that takes long."""
        opcode, channel, sequence, body = frame
        if opcode == Opcode.CREDIT:
            self._on_credit(channel, body)
        elif opcode == Opcode.REPLY:
            answers = Batch(body)
            self.responder.on_answered(answers.count)
            return self.broker.reply_in_steps(answers)
        elif opcode in _ACKS:
            return acknowledge(self, self.consumers.get(channel), frame)
        elif opcode in (Opcode.STAGE, Opcode.STAGE_EXPECT):
            stage_batch(self, frame)
        elif opcode == Opcode.PUBLISH_EXPECT:
            publish(self, frame)
        elif opcode == Opcode.CONTROL and self.connection.state is State.OPEN:
            return carry_out(self, sequence, decode_request(body))
        elif opcode == Opcode.CONTROL:
            greet(self, frame)
        else:
            raise ProtocolError(f"opcode {opcode} is not for a broker")
        return None

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

    def opened(self, hello: Hello) -> None:
        """The peer has said hello, and may speak from now on."""
        self.owner = owner_of(hello, self.id)
        self._codecs |= {c for c in available() if c.name.lower() in hello.codecs}
        limits = self.broker.limits
        self.connection.opened(limits.batch_bytes_max + BATCH_BYTES_EXCESS)
        self.broker.replies.sinks[self.id] = self
        self.door.on_opened(self, hello.agent)

    def _flush_later(self, size_bytes: int) -> None:
        self._unflushed_bytes += size_bytes
        if self._unflushed_bytes > UNFLUSHED_BYTES_MAX:
            self.flush()
        elif not self._dirty:
            self.mark_dirty()

    def mark_dirty(self) -> None:
        """Have what is queued sent when all frames of a read are dealt with."""
        if not self._dirty:
            self._dirty = True
            self.door.dirty.append(self)
            if not self.door.reading:
                # A journal, a disk or the clock has set this off: nobody else would send it.
                self.door.flush_soon()


# What never takes long, unless there is much of it.
_QUICK = frozenset((Opcode.PUBLISH, Opcode.PUBLISH_BULK, Opcode.CREDIT))
_ACKS = frozenset((Opcode.ACK, Opcode.ACK_THROUGH, Opcode.NACK, Opcode.EXTEND))
