"""A real broker and real sessions on transports that only take notes.

A case is a number: clients, what they say, how it is spoilt and in which order it arrives all
follow from it, so a failing case is run again by its number.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs
from tests.fuzz.dialogues import SESSIONS, dialogue, spoil

from ister.base.limits import Limits
from ister.broker import (
    Broker,
    InlineWorker,
    RecentBudget,
    Spool,
    Spooling,
    Storage,
    StreamTopic,
    WithStore,
    Workers,
    open_storage,
)
from ister.codec import Batch
from ister.log import FileBackend, LogOptions
from ister.objects import MemoryDisk
from ister.server.native import NativeDoor, NativeSession
from ister.testing import VirtualClock
from ister.timeline import MemoryStore
from ister.wire import LEASE, Opcode, TimelineDue, decode_command
from ister.wire.frames import FrameReader, body_limits

# Files here are memory, if the system has such a place.
MEMORY = Path("/dev/shm")
# Small enough for a case to meet every one of them.
LIMITS = Limits(
    message_bytes_max=1_900,
    batch_bytes_max=150_000,
    topics_max=12,
    subscriptions_max=5,
    consumers_per_subscription_max=3,
    producers_per_connection_max=2,
    consumers_per_connection_max=2,
    queue_bytes_max=3_000,
    queue_count_max=200,
    queues_bytes_max=6_000,
)


class StrictDoor(NativeDoor):
    """A door that lets our own bugs out instead of logging them."""

    def on_bug(self, session: NativeSession, error: Exception) -> None:
        raise AssertionError("internal_error") from error


class NotingTransport(asyncio.Transport):
    """Takes whatever it is given and writes it down."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closing, "bytes were written to a closed connection"
        self.written += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.write(data)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True


class World:
    """One broker with a handful of clients."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = VirtualClock()
        self.leased: list[int] = []
        # Messages of timelines that consumers were sent.
        self.due = 0
        # What an event loop would do in a later turn.
        self.ready: deque[Callable[[], object]] = deque()
        self.broker = Broker(
            name="fuzz",
            limits=LIMITS,
            clock=self.clock,
            random_slot=self.rng.randrange,
            recent=RecentBudget(20_000),
            open_local=self._open_storage,
            spooling=Spooling(new_spool=lambda: Spool(MEMORY), new_worker=self._new_worker),
        )
        if self.rng.random() < 0.5:
            self.broker.create_topic("/default/a", kind="stream")
            self.broker.create_topic("/default/p", kind="stream", partitions=2)
        self.store = MemoryStore()
        worker = InlineWorker(self._call_soon)
        self.broker.adopt_timelines(WithStore(self.store, worker), [], call_soon=self._call_soon)
        self.settle()
        self.door = StrictDoor(
            self.broker, busy_poll_us=0, call_soon=self._call_soon, now_ns=lambda: 0
        )
        self.clients: list[tuple[NativeSession, NotingTransport, bytearray]] = []

    def _open_storage(self) -> Storage:
        worker = InlineWorker(self._call_soon)
        return open_storage(
            FileBackend(MemoryDisk()),
            LogOptions(now_ms=self.clock.now_ms, segment_bytes=1 << 20),
            workers=lambda: Workers(writing=worker, reading=worker, housekeeping=worker),
            clock=self.clock,
            call_soon=self._call_soon,
        )

    def _new_worker(self, _: str, __: int) -> InlineWorker:
        return InlineWorker(self._call_soon)

    def _call_soon(self, call: Callable[..., object], *args: object) -> None:
        self.ready.append(lambda: call(*args))

    def settle(self) -> None:
        """Let everything happen that waits for a turn of the loop."""
        while self.ready:
            self.ready.popleft()()

    def connect(self, number: int, frames: list[bytes]) -> None:
        """Add a client that has `frames` to say."""
        session, transport = NativeSession(self.door, number), NotingTransport()
        session.connection_made(transport)
        # Most wait for the welcome, as they should.
        greeting = 1 if self.rng.random() < 0.95 else 0
        session.data_received(b"".join(frames[:greeting]))
        self.clients.append((session, transport, bytearray(b"".join(frames[greeting:]))))

    def run(self) -> None:
        """Let the clients speak, in pieces and across each other, until all are gone."""
        live = list(self.clients)
        while live:
            client = self.rng.choice(live)
            session, transport, unsaid = client
            if transport.closing or (not unsaid and self.rng.random() < 0.03):
                transport.closing = True
                session.connection_lost(None)
                live.remove(client)
                continue
            self._step(session, unsaid)
            if self.ready and self.rng.random() < 0.2:
                self.ready.popleft()()
            elif self.rng.random() < 0.7:
                self.settle()
        self.settle()

    def _step(self, session: NativeSession, unsaid: bytearray) -> None:
        chance = self.rng.random()
        if chance < 0.05:
            session.pause_writing()
        elif chance < 0.15:
            session.resume_writing()
        elif chance < 0.17:
            self.clock.advance(self.rng.choice([0.5, 3.0, 20.0]))
        elif unsaid and session.writable:
            # As a socket does: into whatever buffer the session offers.
            buffer = session.get_buffer(-1)
            # Mostly less than a few frames: who asks for something should wait for the answer.
            size = min(self.rng.choice([1, 16, 100, 100, 1_000, 100_000]), len(buffer), len(unsaid))
            buffer[:size] = unsaid[:size]
            session.buffer_updated(size)
            del unsaid[:size]
        elif not session.writable:
            session.resume_writing()

    def check(self) -> None:
        """Nothing is left of clients that are gone, and they were sent nothing but the protocol."""
        report = self.broker.report()
        assert (report.queued_bytes, report.connections) == (0, 0)
        assert report.storage_error == ""
        assert report.subscriptions == len(self.broker.durables)
        assert report.messages_dropped >= 0
        assert report.messages_out >= 0
        assert not self.broker.budget.holders
        # What was not closed has gone with its connection.
        staging = self.broker.staging
        closed = [stage for stage in staging._stages.values() if stage.due_ms]
        assert staging.count == len(closed)
        assert staging.staged_bytes == sum(stage.size_bytes for stage in closed)
        assert not staging.full
        assert staging._waiting_bytes == 0
        assert not self.broker.replies.sinks
        assert not self.broker.subscribers._wildcards
        for durable in self.broker.durables:
            assert not durable.consumers
        assert self.door._buffered_bytes == 0
        for timeline in self.broker.timelines._topics.values():
            assert not timeline._consumers
            assert not timeline.out
            assert not timeline._calls
        for topic in self.broker.catalog.topics.values():
            assert topic.producers == 0
            assert topic.next_offset == topic.messages_in
            assert isinstance(topic, StreamTopic) or topic.subscriptions == []
        for _, transport, _ in self.clients:
            self._check_sent(bytes(transport.written))

    def _check_sent(self, data: bytes) -> None:
        """Look at every frame; count leased batches and messages of timelines."""
        reader = FrameReader(body_limits(LIMITS.batch_bytes_max + 4_096))
        for opcode, _, _, body in reader.receive(data):
            if opcode in (Opcode.DELIVER, Opcode.DELIVER_LEASED, Opcode.REPLY):
                start = LEASE.size if opcode == Opcode.DELIVER_LEASED else 0
                Batch(body[start:]).verify(message_bytes_max=LIMITS.message_bytes_max)
                if start:
                    self.leased.append(len(body))
            elif opcode == Opcode.CONTROL:
                command = decode_command(body)
                self.due += len(command.ids) if isinstance(command, TimelineDue) else 0
        assert reader.buffered_bytes == 0, "a frame was sent in part"


def play(seed: int) -> World:
    """Run one case; a failure names its number."""
    try:
        with capture_logs() as lines:
            world = _played(seed)
        assert not [line for line in lines if line["log_level"] in ("error", "critical")]
    except Exception as error:
        raise AssertionError(f"case {seed} failed: play({seed}) runs it again") from error
    return world


def _played(seed: int) -> World:
    world = World(seed)
    for number in SESSIONS[: world.rng.randint(2, len(SESSIONS))]:
        frames = dialogue(world.rng, number)
        for _ in range(world.rng.choice([0, 0, 1, 1, 2, 4])):
            spoil(world.rng, frames)
        world.connect(number, frames)
    world.run()
    world.check()
    return world
