"""A connection gets a few milliseconds of each turn of the event loop, and keeps its order."""

from collections import deque
from collections.abc import Callable

import pytest
from tests.fuzz.world import NotingTransport

from ister.base.limits import Limits
from ister.broker import Broker
from ister.broker.scheduling.turns import TURN_NS, Turns
from ister.codec import encode
from ister.server.native import NativeDoor, NativeSession
from ister.server.native.session import QUICK_FRAMES
from ister.testing import VirtualClock
from ister.wire import (
    CloseProducer,
    Hello,
    ListNamespaces,
    OpenProducer,
    Subscribe,
    control_frame,
    publish_frame,
)
from ister.wire.frames import FrameReader, body_limits


class PausingTransport(NotingTransport):
    """A transport that records whether the session reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class WorkClock(VirtualClock):
    """Says that publishing takes a while: that is when the broker asks what time it is."""

    def __init__(self, ground: "Ground") -> None:
        super().__init__()
        self._ground = ground
        self.work_ns = 0

    def now_ms(self) -> int:
        self._ground.now_ns += self.work_ns
        return super().now_ms()


class Ground:
    """A door whose loop is a list, and whose clock advances by `step_ns` each time it is read."""

    def __init__(self, step_ns: int) -> None:
        self.now_ns = 0
        self.step_ns = step_ns
        self.ready: deque[Callable[[], object]] = deque()
        clock = WorkClock(self)
        broker = Broker(name="b", limits=Limits(), clock=clock, random_slot=lambda _: 0)
        self.clock = clock
        self.door = NativeDoor(
            broker, busy_poll_us=0, call_soon=self.ready.append, now_ns=self._look
        )

    def _look(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns

    def turn(self) -> None:
        """Make the calls of one turn of an event loop."""
        for _ in range(len(self.ready)):
            self.ready.popleft()()


class End:
    """A client with a producer on channel 1."""

    def __init__(self, ground: Ground, client: str = "c") -> None:
        self.ground = ground
        self.session: NativeSession = ground.door.session()
        self.transport = PausingTransport()
        self.session.connection_made(self.transport)
        self.session.data_received(control_frame(Hello(client_id=client)))
        opening = OpenProducer(topic="/default/x", name="p", channel=1)
        self.session.data_received(control_frame(opening, sequence=1))
        self.reader = FrameReader(body_limits(1 << 20))
        self.answers()

    def answers(self) -> list[int]:
        """Return the sequence numbers answered since the last call."""
        data = bytes(self.transport.written)
        self.transport.written.clear()
        return [frame[2] for frame in self.reader.receive(data)]


def publishes(first: int, count: int) -> bytes:
    head, body = encode([b"x"], producer=b"p")
    frames = [publish_frame(1, sequence, head, body) for sequence in range(first, first + count)]
    return b"".join(part for frame in frames for part in frame)


def questions(first: int, count: int) -> bytes:
    return b"".join(control_frame(ListNamespaces(), sequence=first + n) for n in range(count))


async def test_frames_that_do_not_fit_into_a_turn_are_handled_in_later_turns() -> None:
    ground = Ground(step_ns=TURN_NS)
    end = End(ground)

    end.session.data_received(questions(10, 4))

    assert end.answers() == [10]
    assert not end.transport.reading
    answered = []
    for _ in range(3):
        ground.turn()
        answered.append(end.answers())
    assert answered == [[11], [12], [13]]
    assert end.transport.reading


async def test_the_order_is_kept_when_more_is_received_meanwhile() -> None:
    ground = Ground(step_ns=TURN_NS)
    end = End(ground)

    end.session.data_received(questions(10, 3))
    end.session.data_received(publishes(13, 1))
    while ground.ready:
        ground.turn()

    assert end.answers() == [10, 11, 12, 13]
    assert end.transport.reading


def read(end: End, data: bytes) -> None:
    """Have a session read from its socket as an event loop does."""
    space = end.session.get_buffer(-1)
    space[: len(data)] = data
    end.session.buffer_updated(len(data))


async def test_reads_that_fill_their_buffer_share_one_turn() -> None:
    ground = Ground(step_ns=0)
    end = End(ground)
    few = publishes(10, 2)
    end.session.door.scratch = memoryview(bytearray(len(few)))
    ground.clock.work_ns = TURN_NS // 8

    reading = []
    for _ in range(4):
        read(end, few)
        reading.append(end.transport.reading)
    ground.turn()

    assert [*reading, end.transport.reading] == [True, True, True, False, True]


async def test_read_that_leaves_room_in_its_buffer_begins_a_turn() -> None:
    ground = Ground(step_ns=0)
    end = End(ground)
    few = publishes(10, 2)
    ground.clock.work_ns = TURN_NS // 8

    for _ in range(20):
        read(end, few)

    assert end.transport.reading


async def test_several_publishes_read_the_clock_once() -> None:
    ground = Ground(step_ns=TURN_NS)
    end = End(ground)

    end.session.data_received(publishes(10, 2 * QUICK_FRAMES))

    assert end.answers() == list(range(10, 10 + QUICK_FRAMES))


async def test_a_single_publish_does_not_read_the_clock() -> None:
    ground = Ground(step_ns=0)
    end = End(ground)
    ground.now_ns, ground.step_ns = 0, 1

    end.session.data_received(publishes(10, 1))

    assert end.answers() == [10]
    assert ground.now_ns == 0


async def test_other_connections_have_their_turn_before_a_busy_one_continues() -> None:
    ground = Ground(step_ns=TURN_NS)
    busy, other = End(ground), End(ground, "other")
    busy.session.data_received(questions(10, 3))

    other.session.data_received(publishes(1, 1))

    assert other.answers() == [1]
    assert busy.answers() == [10]


async def test_waiting_frames_are_dropped_with_their_connection() -> None:
    ground = Ground(step_ns=TURN_NS)
    end = End(ground)
    end.session.data_received(
        questions(10, 2) + control_frame(CloseProducer(channel=1), sequence=12)
    )

    end.transport.closing = True
    end.session.connection_lost(None)
    ground.turn()

    assert not ground.ready
    assert ground.door.broker.catalog.topics["/default/x"].producers == 0


async def test_producers_that_wait_for_a_topic_leave_the_time_to_the_one_that_publishes() -> None:
    ground = Ground(step_ns=TURN_NS // 1_000)
    ends = [End(ground, f"c{number}") for number in range(10)]
    wanted = Subscribe(
        topic="/default/x",
        subscription="s",
        consumer="c",
        channel=2,
        filters={f"a{number}": "*b*" for number in range(60)},
    )
    ends[0].session.data_received(control_frame(wanted, sequence=2))
    ends[0].answers()
    head, body = encode([b"x"] * 60_000, attributes=[{"a": "d"}] * 60_000, producer=b"p")
    batch = b"".join(publish_frame(1, 10, head, body))
    ground.clock.work_ns = TURN_NS // 2

    def publish(by: list[End]) -> int:
        """Return how long it takes until all have published a batch in pieces."""
        start_ns = ground.now_ns
        for end in by:
            end.session.data_received(batch)
        while ground.ready:
            ground.turn()
        assert [end.answers() for end in by] == [[10]] * len(by)
        return ground.now_ns - start_ns

    alone_ns = publish(ends[:1])
    together_ns = publish(ends)

    assert alone_ns > 2 * TURN_NS
    # Who waits leaves its turn to the next, and does not spend it looking.
    assert together_ns < 1.5 * len(ends) * alone_ns


@pytest.mark.parametrize("is_lost_first", [True, False])
async def test_what_came_before_a_proper_end_is_dealt_with(is_lost_first: bool) -> None:
    # TLS tells the end in the same breath as the last bytes, and does not wait.
    ground = Ground(step_ns=TURN_NS)
    end, other = End(ground), End(ground, "other")
    topic = ground.door.broker.catalog.topics["/default/x"]
    end.session.data_received(questions(10, 2) + publishes(12, 3 * QUICK_FRAMES))

    end.session.eof_received()
    if not is_lost_first:
        ground.turn()
    end.session.connection_lost(None)
    assert topic.producers == 2
    while ground.ready:
        ground.turn()

    assert topic.messages_in == 3 * QUICK_FRAMES
    assert topic.producers == 1
    assert ground.door.broker.connections == 1
    assert other.answers() == []


@pytest.mark.parametrize("waiting", [1, 3])
def test_all_waiting_connections_share_one_turn(waiting: int) -> None:
    ready: list[Callable[[], object]] = []
    now_ns = 0
    went: list[int] = []

    class Busy:
        def __init__(self, number: int) -> None:
            self.number = number

        def go_through(self) -> None:
            nonlocal now_ns
            went.append(self.number)
            now_ns += TURN_NS
            turns.wait(self)

    turns = Turns(call_soon=ready.append, now_ns=lambda: now_ns)
    for number in range(waiting):
        turns.wait(Busy(number))

    for _ in range(waiting + 1):
        ready.pop()()

    assert went == [*range(waiting), 0]
    assert len(ready) == 1


def test_the_others_go_on_when_one_that_waits_fails() -> None:
    ready: list[Callable[[], object]] = []
    went: list[str] = []

    class Waiter:
        def __init__(self, name: str) -> None:
            self.name = name

        def go_through(self) -> None:
            went.append(self.name)
            if self.name == "broken":
                raise RuntimeError("a bug")

    turns = Turns(call_soon=ready.append, now_ns=lambda: 0)
    for name in ("broken", "other"):
        turns.wait(Waiter(name))

    with pytest.raises(RuntimeError, match="a bug"):
        ready.pop()()
    ready.pop()()

    assert went == ["broken", "other"]
