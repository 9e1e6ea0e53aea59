"""Valid frames that ask for as much as allowed, and how long each turn of the event loop takes.

A case is a number. It runs on a real door and broker, with a disk in memory and real limits. Each
call that an event loop would make is measured in CPU time of this thread, so that other processes
do not count, and without the garbage collector, which a broker configures for itself.
"""

import gc
import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.fuzz.stalling_acts import ACTS
from tests.fuzz.world import MEMORY, NotingTransport, StrictDoor

from ister.base import EARLIEST, LATEST
from ister.base.limits import (
    ACKS_PER_FRAME_MAX,
    BATCH_ID_BYTES_MAX,
    BATCH_IDS_MAX,
    KIB,
    Limits,
)
from ister.broker import (
    Broker,
    InlineWorker,
    RecentBudget,
    Spool,
    Spooling,
    Storage,
    WithStore,
    Workers,
    open_storage,
)
from ister.codec import Codec, encode
from ister.log import FileBackend, LogOptions
from ister.objects import MemoryDisk
from ister.server.native import NativeSession
from ister.server.native.session import SEND_BUFFER_BYTES
from ister.testing import VirtualClock
from ister.timeline import MemoryStore
from ister.wire import (
    BACKOFF_DELAY,
    LEASE,
    CloseConsumer,
    Command,
    CreateTopic,
    DeleteSubscription,
    DeleteTopic,
    DescribeBroker,
    Hello,
    ListSubscriptions,
    ListTopics,
    Opcode,
    OpenProducer,
    OpenReader,
    PauseSubscription,
    PurgeTopic,
    SaveCursor,
    Seek,
    Subscribe,
    ack_frames,
    control_frame,
    credit_frame,
    publish_frame,
    timed_ack_frames,
)
from ister.wire.frames import FrameReader, body_limits

# What one read of a socket returns at most.
READ_BYTES_MAX = 256 * KIB


class RunningClock(VirtualClock):
    """A clock whose timers fire when they are popped; `monotonic_ms` is real time."""

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + time.thread_time_ns() // 1_000_000

    def pop(self) -> Callable[[], object] | None:
        """Return the next timer that is due."""
        timer = self._pop_due(self._elapsed_us)
        return None if timer is None else timer.run


class LaterWorker(InlineWorker):
    """Reads in turns of their own, as a thread does beside the loop."""

    def __init__(self, call_soon: Callable[..., object]) -> None:
        super().__init__(call_soon)
        self._later = call_soon

    def run(self, call: Any, done: Any) -> None:
        """Run this in another turn."""
        self._later(super().run, call, done)


@dataclass(frozen=True)
class Turn:
    """A turn of the loop, and the frames that were sent before it."""

    seconds: float
    after: str

    @property
    def kind(self) -> str:
        """The kind of the frames."""
        return self.after.partition(" ")[0]


class Ground:
    """A broker whose event loop is a list of calls, each of which is measured."""

    def __init__(self) -> None:
        self.clock = RunningClock()
        self.ready: deque[Callable[[], object]] = deque()
        # The longest turn after each kind of thing that was said.
        self.longest: dict[str, Turn] = {}
        self.saying = ""
        self.broker = Broker(
            name="stalls",
            limits=Limits(),
            clock=self.clock,
            random_slot=lambda count: 0,
            recent=RecentBudget(256 << 20),
            open_local=self._open_storage,
            spooling=Spooling(new_spool=lambda: Spool(MEMORY), new_worker=self._new_worker),
        )
        worker = InlineWorker(self._call_soon)
        self.broker.adopt_timelines(WithStore(MemoryStore(), worker), [], call_soon=self._call_soon)
        self.door = StrictDoor(
            self.broker,
            busy_poll_us=0,
            call_soon=self._call_soon,
            now_ns=time.thread_time_ns,
        )

    def _open_storage(self) -> Storage:
        worker = InlineWorker(self._call_soon)
        reading = LaterWorker(self._call_soon)
        return open_storage(
            FileBackend(MemoryDisk()),
            LogOptions(now_ms=self.clock.now_ms),
            workers=lambda: Workers(writing=worker, reading=reading, housekeeping=worker),
            clock=self.clock,
            call_soon=self._call_soon,
        )

    def _new_worker(self, _: str, __: int) -> InlineWorker:
        return InlineWorker(self._call_soon)

    def _call_soon(self, call: Callable[..., object], *args: object) -> None:
        self.ready.append(lambda: call(*args))

    def turn(self, call: Callable[[], object]) -> None:
        """Make one call of the loop, and measure it."""
        start = time.thread_time()
        call()
        turn = Turn(time.thread_time() - start, self.saying)
        known = self.longest.get(turn.kind)
        if known is None or turn.seconds > known.seconds:
            self.longest[turn.kind] = turn

    def settle(self) -> None:
        """Run turns of the loop until nothing is waiting."""
        while (call := self.ready.popleft() if self.ready else self.clock.pop()) is not None:
            self.turn(call)
        self.turn(self.door.flush)


class Socket(NotingTransport):
    """Takes as much as it is given, and says when that is too much; the peer reads it all."""

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        self._ground = ground
        self.session: NativeSession | None = None
        self.parts: list[bytes] = []
        self._size_bytes = 0

    def write(self, data: Any) -> None:
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        # The system's copy of it.
        data = b"".join(list_of_data)
        self.parts.append(data)
        was_full = self._size_bytes > SEND_BUFFER_BYTES
        self._size_bytes += len(data)
        if not was_full and self._size_bytes > SEND_BUFFER_BYTES and self.session is not None:
            self.session.pause_writing()
            self._ground.ready.append(self._on_read)

    def get_write_buffer_size(self) -> int:
        return self._size_bytes

    def _on_read(self) -> None:
        self._size_bytes = 0
        if self.session is not None and not self.closing:
            self.session.resume_writing()


class Peer:
    """A connection that sends given frames, in reads of the size of a socket's."""

    def __init__(self, ground: Ground, name: str) -> None:
        self.ground = ground
        self.session: NativeSession = ground.door.session()
        self.transport = Socket(ground)
        self.transport.session = self.session
        self.session.connection_made(self.transport)
        self.reader = FrameReader(body_limits(1 << 26))
        # Leases that came: channel, number, first offset and one beyond the last.
        self.leases: list[tuple[int, int, int, int]] = []
        self.taken = 0
        self.say("hello", control_frame(Hello(client_id=name)))

    def ask(self, what: str, *commands: Command) -> None:
        """Send commands in one write."""
        self.say(what, *[control_frame(command, sequence=1) for command in commands])

    def say(self, what: str, *frames: bytes) -> None:
        """Send frames in one write, and let the broker handle them."""
        self.ground.saying = what
        data = b"".join(frames)
        while data and not self.transport.closing:
            self.ground.turn(partial(self._read, data))
            data = data[self.taken :]
            self.ground.settle()
        self._look()

    def _read(self, data: bytes) -> None:
        """Read as a socket does in one turn."""
        with memoryview(self.session.get_buffer(-1)) as buffer:
            self.taken = min(len(buffer), len(data), READ_BYTES_MAX)
            buffer[: self.taken] = data[: self.taken]
            self.session.buffer_updated(self.taken)

    def leave(self) -> None:
        """Close the connection."""
        self.ground.saying = "leave"
        self.transport.closing = True
        self.ground.turn(lambda: self.session.connection_lost(None))
        self.ground.settle()

    def _look(self) -> None:
        parts = self.transport.parts
        while parts:
            for opcode, channel, _, body in self.reader.receive(parts.pop(0)):
                if opcode == Opcode.DELIVER_LEASED:
                    number = LEASE.unpack_from(body)[0]
                    start = int.from_bytes(body[LEASE.size : LEASE.size + 8], "little")
                    self.leases.append((channel, number, start, start + 16_384))


class Case:
    """One case: a few peers that all ask for too much."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ground = Ground()
        self.peers = [Peer(self.ground, f"peer-{n}") for n in range(2)]
        self.channels = 10
        self.sequence = 0
        self.topics: list[str] = []
        # Words of stages that were closed.
        self.stages: list[str] = []

    def run(self, steps: int) -> dict[str, Turn]:
        """Run the case, and return the longest turn after each kind of frames."""
        for kind in ("live", "stream"):
            self._topics(kind, 3)
        acts: tuple[Callable[[Peer], object], ...] = (
            *[self.publish] * 6,
            *[self._subscribe] * 5,
            *[self._acknowledge] * 6,
            *[self._crowd] * 2,
            *[self._many_subscriptions] * 2,
            self._lag,
            self._read,
            self._many_topics,
            self._list,
            self._change,
            self._wildcard,
            self._close,
            self._leave,
            *[partial(act, self) for act in ACTS],
        )
        for _ in range(steps):
            peer = self.rng.choice(self.peers)
            self.rng.choice(acts)(peer)
            if peer.transport.closing and peer in self.peers:
                # A frame was refused.
                self._leave(peer)
        return self.ground.longest

    def _topics(self, kind: str, count: int) -> None:
        for number in range(count):
            name = f"/default/{kind}.{number}"
            self.topics.append(name)
            self.peers[0].ask("create", CreateTopic(topic=name, kind=kind))

    def _many_topics(self, peer: Peer) -> None:
        kind = self.rng.choice(["live", "stream"])
        many = f"/default/many.{'x' * self.rng.choice([1, 200])}{self.rng.randrange(10**6)}"
        partitions = self.rng.choice([1, 100, 1_024])
        peer.ask("create many", CreateTopic(topic=many, kind=kind, partitions=partitions))
        if self.rng.random() < 0.3:
            peer.ask("delete many", DeleteTopic(topic=many))

    def next_channel(self) -> int:
        """Return a channel that nobody uses."""
        self.channels += 1
        return self.channels

    def publish(self, peer: Peer, topic: str = "", count: int = 0) -> None:
        """Publish a batch, or one of one message many times."""
        rng, channel = self.rng, self.next_channel()
        topic = topic or rng.choice(self.topics)
        name = f"p{channel}"
        peer.ask("open producer", OpenProducer(topic=topic, name=name, channel=channel))
        count = count or rng.choice([1, 100, 1_000, 16_384, 65_536])
        size = rng.choice([0, 0, 10, 100])
        key_size = rng.choice([0, 4, 30]) if count > 1_000 else rng.choice([0, 4_000])
        keys = [f"{n:x}".rjust(key_size, "k")[:4_000] for n in range(count)] if key_size else None
        value = "a" * rng.choice([5, 8_000 if count < 1_000 else 20])
        attributes = [{"a": value, "b": "b"}] * count if rng.random() < 0.5 else None
        id_size = min(rng.choice([0, 0, 40, 255]), BATCH_ID_BYTES_MAX // count)
        ids = None
        if id_size and count <= BATCH_IDS_MAX:
            ids = [f"{channel}-{n}".ljust(id_size, "i") for n in range(count)]
        head, body = encode(
            [b"x" * size] * count,
            keys=keys,
            attributes=attributes,
            ids=ids,
            producer=name.encode(),
            first_sequence=1,
            codec=rng.choice([Codec.NONE, Codec.NONE, Codec.LZ4]),
        )
        what = f"publish {count} to {topic} keys={key_size} attributes={bool(attributes)}"
        what += f" ids={id_size if ids else 0}"
        frame = b"".join(publish_frame(channel, 1, head, body))
        peer.say(what, frame)
        if count == 1:
            peer.say(f"{what} many times", frame * 500)

    def _subscribe(self, peer: Peer, topic: str = "") -> None:
        rng, channel = self.rng, self.next_channel()
        globs = ["*" + "?" * rng.choice([1, 3_000]) + "b", "*a*a*a*b", "a*", "k" * 300]
        filters = {"a": rng.choice(globs)} if rng.random() < 0.3 else {}
        keys = rng.choice([[], [], [rng.choice(globs)], globs * 15])
        type_ = rng.choice(["exclusive", "shared", "failover", "key_shared"])
        wanted = Subscribe(
            topic=topic or rng.choice(self.topics),
            subscription=f"s{rng.randrange(3)}-{type_}-{len(filters)}{len(keys)}",
            consumer=f"c{channel}",
            channel=channel,
            type=type_,
            filters=filters,
            key_filters=keys,
            start=rng.choice([EARLIEST, LATEST]),
        )
        peer.ask(f"subscribe {wanted.topic} {type_} {len(keys)} key globs", wanted)
        credit = rng.choice([0, 1, 1_000, 2**31 - 1])
        peer.say(f"credit {credit} after {type_}", credit_frame(channel, credit, 2**31 - 1))

    def _crowd(self, peer: Peer) -> None:
        """Add very many consumers to one subscription."""
        type_ = self.rng.choice(["shared", "key_shared", "failover"])
        topic, name = self.rng.choice(self.topics), f"crowd-{type_}"
        commands = []
        for _ in range(self.rng.choice([10, 500])):
            channel = self.next_channel()
            commands.append(
                Subscribe(
                    topic=topic,
                    subscription=name,
                    consumer=f"c{channel}",
                    channel=channel,
                    type=type_,
                )
            )
        peer.ask(f"crowd of {len(commands)} {type_}", *commands)
        frames = [credit_frame(c.channel, 100, 10**6) for c in commands]
        peer.say("credit of a crowd", *frames)

    def _many_subscriptions(self, peer: Peer) -> None:
        """Very many subscriptions of one topic, with filters and without."""
        rng = self.rng
        count, kind = rng.choice([10, 50, 300]), rng.choice(["live", "stream"])
        # Of its own: what is looked at is the product of subscriptions and messages.
        topic = f"/default/{kind}.many{self.next_channel()}"
        peer.ask("create", CreateTopic(topic=topic, kind=kind))
        filters = rng.choice([{}, {}, {"a": "*a*a?a*b"}])
        keys = rng.choice([[], [], ["*k?k*" * 2, "nothing", "*f*"]])
        commands = []
        for _ in range(count):
            channel = self.next_channel()
            commands.append(
                Subscribe(
                    topic=topic,
                    subscription=f"many-{channel}",
                    consumer="c",
                    channel=channel,
                    filters=filters,
                    key_filters=keys,
                    start=rng.choice([EARLIEST, LATEST]),
                )
            )
        peer.ask(f"subscribe {count} times {topic} {filters} {keys}", *commands)
        credit = rng.choice([0, 10, 2**31 - 1])
        frames = [credit_frame(c.channel, credit, 2**31 - 1) for c in commands]
        peer.say(f"credit {credit} of {count} subscriptions", *frames)
        self.publish(peer, topic, count=rng.choice([1, 1_000, 100_000 // count]))

    def _lag(self, peer: Peer) -> None:
        """Consumers with full queues, that are granted much or leave."""
        rng = self.rng
        type_, channels = rng.choice(["exclusive", "shared", "key_shared"]), []
        for _ in range(1 if type_ == "exclusive" else 3):
            channel = self.next_channel()
            channels.append(channel)
            lagging = Subscribe(
                topic="/default/live.0",
                subscription=f"lagging-{type_}",
                consumer=f"c{channel}",
                channel=channel,
                type=type_,
            )
            peer.ask(f"subscribe lagging {type_}", lagging)
        channel = self.next_channel()
        peer.ask("open producer", OpenProducer(topic="/default/live.0", name="p", channel=channel))
        head, body = encode([b"x"], keys=["k"], producer=b"p", first_sequence=1)
        frame = b"".join(publish_frame(channel, 1, head, body))
        for _ in range(rng.choice([1, 10])):
            peer.say("publish for who lags", frame * 2_000)
        if rng.random() < 0.5:
            peer.ask("close lagging", CloseConsumer(channel=channels[0]))
        for channel in channels:
            peer.say("credit for who lags", credit_frame(channel, 2**31 - 1, 2**31 - 1))

    def _read(self, peer: Peer) -> None:
        """Read a stream from its start, at once."""
        topic = f"/default/stream.{self.rng.randrange(3)}"
        for _ in range(self.rng.choice([1, 20])):
            channel = self.next_channel()
            peer.ask("read", OpenReader(topic=topic, channel=channel, start=EARLIEST))
            peer.say("credit of a reader", credit_frame(channel, 2**31 - 1, 2**31 - 1))

    def _wildcard(self, peer: Peer) -> None:
        for _ in range(self.rng.choice([1, 5])):
            self._subscribe(peer, self.rng.choice(["/default/>", "/default/*.*"]))

    def _acknowledge(self, peer: Peer) -> None:
        if not peer.leases:
            return
        rng = self.rng
        channel, number, start, end = rng.choice(peer.leases[-50:])
        step = rng.choice([1, 2, 3])
        singles = [(number, o, o + 1) for o in range(start, end, step)][:ACKS_PER_FRAME_MAX]
        wide = [(number, 0, rng.choice([end, 2**63 - 1]))] * rng.choice([1, 100, 4_096])
        runs = rng.choice([singles, singles, wide])
        opcode = rng.choice([Opcode.ACK, Opcode.ACK, Opcode.NACK, Opcode.EXTEND])
        sequence = rng.choice([0, 7])
        if opcode == Opcode.ACK:
            frames = ack_frames(channel, runs, sequence=sequence)
        else:
            delays = [0, 1_000, BACKOFF_DELAY]
            timed = [(*run, rng.choice(delays) + n % 50) for n, run in enumerate(runs)]
            timed = [(*run[:3], min(run[3], BACKOFF_DELAY)) for run in timed]
            frames = timed_ack_frames(channel, timed, opcode=opcode, sequence=sequence)
        peer.say(f"opcode {opcode} of {len(runs)} runs, step {step}", *frames)

    def _list(self, peer: Peer) -> None:
        listings: list[Command] = [
            ListTopics(pattern=self.rng.choice(["", "/default/>", "/default/*.nothing"])),
            ListSubscriptions(topic=self.rng.choice(["", *self.topics])),
            DescribeBroker(),
        ]
        peer.ask("listings", *[self.rng.choice(listings) for _ in range(100)])

    def _change(self, peer: Peer) -> None:
        durables = list(self.ground.broker.durables)
        if not durables:
            return
        durable = self.rng.choice(durables)
        where: dict[str, Any] = {"topic": durable.pattern, "subscription": durable.name}
        changes: list[Command] = [
            Seek(**where, to=EARLIEST),
            SaveCursor(**where, name="saved"),
            PauseSubscription(**where, paused=self.rng.random() < 0.3),
            DeleteSubscription(**where),
            PurgeTopic(topic=self.rng.choice(self.topics)),
        ]
        command = self.rng.choice(changes)
        peer.ask(f"{type(command).__name__} {durable.pattern} {durable.name}", command)

    def _close(self, peer: Peer) -> None:
        channels = list(peer.session.consumers)[:50]
        peer.ask("close", *[CloseConsumer(channel=channel) for channel in channels])

    def _leave(self, peer: Peer) -> None:
        peer.leave()
        self.peers[self.peers.index(peer)] = Peer(self.ground, f"peer-{self.channels}")


def speed() -> float:
    """Return how much slower this machine is than the one the bounds were set on; 1 at least."""
    start = time.thread_time()
    total = 0
    for number in range(1_000_000):
        total += number % 7
    return max(1.0, (time.thread_time() - start) / 0.05)


def longest_turns(seed: int, steps: int) -> dict[str, Turn]:
    """Run a case without the garbage collector, and return its longest turns."""
    return without_collector(lambda: Case(seed).run(steps))


def without_collector(run: Callable[[], dict[str, Turn]]) -> dict[str, Turn]:
    """Run a case without the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        return run()
    finally:
        gc.enable()


def stalls(seed: int, steps: int, bound_s: float) -> list[Turn]:
    """Return the turns of a case that are over the bound in each of three repeats."""
    return repeated(lambda: longest_turns(seed, steps), bound_s)


def repeated(run: Callable[[], dict[str, Turn]], bound_s: float) -> list[Turn]:
    """Return the turns that are over the bound in each of three runs."""
    found: dict[str, Turn] = {}
    for repeat in range(3):
        turns = run()
        slow = speed()
        over = {kind: t for kind, t in turns.items() if t.seconds > bound_s * slow}
        found = over if not repeat else {k: t for k, t in found.items() if k in over}
        if not found:
            break
    return list(found.values())


def memory_bytes() -> int:
    """Return how much memory this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
