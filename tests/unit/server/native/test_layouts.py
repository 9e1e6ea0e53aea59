"""Heads and segments over a connection: what is waited for ends with it."""

import pytest
from tests.fuzz.world import NotingTransport
from tests.unit.broker.streambench import TOPIC, StreamBench

from ister.base.errors import LimitReachedError, WrongKindError
from ister.base.limits import WATCHES_MAX
from ister.server.native import NativeDoor, NativeSession
from ister.wire import (
    Command,
    ErrorReply,
    Hello,
    LocateStream,
    StreamHeads,
    StreamLocated,
    WatchStreams,
    control_frame,
    decode_command,
)
from ister.wire.frames import FrameReader, body_limits

WATCH = WatchStreams(topics=[TOPIC], beyond={TOPIC: 0}, wait_ms=1_000)


class End:
    """A greeted client of a broker with one stream."""

    def __init__(self) -> None:
        self.bench = StreamBench()
        self.bench.create()
        self.door = NativeDoor(self.bench.broker, busy_poll_us=0)
        self.session: NativeSession = self.door.session()
        self.transport = NotingTransport()
        self.session.connection_made(self.transport)
        self.session.data_received(control_frame(Hello(client_id="c")))
        self._reader = FrameReader(body_limits(1 << 20))
        self.answers()

    def ask(self, command: Command, sequence: int = 5) -> None:
        self.session.data_received(control_frame(command, sequence=sequence))
        self.bench.settle()

    def answers(self) -> list[Command]:
        """Return what was answered since the last call."""
        self.door.flush()
        data = bytes(self.transport.written)
        self.transport.written.clear()
        return [decode_command(bytes(body)) for *_, body in self._reader.receive(data)]

    @property
    def followers(self) -> int:
        return len(self.bench.topic().followers)


@pytest.fixture
async def end() -> End:
    return End()


async def test_a_watch_is_answered_when_a_message_comes(end: End) -> None:
    end.ask(WATCH)
    assert end.answers() == []

    end.bench.publish(b"a")

    [heads] = end.answers()
    assert isinstance(heads, StreamHeads)
    assert [(row.topic, row.next_offset) for row in heads.rows] == [(TOPIC, 1)]
    assert end.session.watches == set()


async def test_a_lost_connection_leaves_no_watch_behind(end: End) -> None:
    end.ask(WATCH)
    assert end.followers == 1

    end.session.connection_lost(None)
    end.bench.publish(b"a")

    assert end.followers == 0
    assert end.bench.broker.watching.waiting == set()
    assert end.session.watches == set()


async def test_a_connection_waits_for_no_more_than_so_many_things(end: End) -> None:
    for number in range(WATCHES_MAX):
        end.ask(WATCH, sequence=number + 1)
    assert end.answers() == []

    end.ask(WATCH, sequence=WATCHES_MAX + 1)

    [refused] = end.answers()
    assert isinstance(refused, ErrorReply)
    assert refused.code == LimitReachedError.code

    end.bench.publish(b"a")
    assert len(end.answers()) == WATCHES_MAX


async def test_who_does_not_wait_is_never_refused(end: End) -> None:
    for number in range(WATCHES_MAX):
        end.ask(WATCH, sequence=number + 1)

    end.ask(WatchStreams(topics=[TOPIC], beyond={TOPIC: 0}), sequence=WATCHES_MAX + 1)

    [heads] = end.answers()
    assert isinstance(heads, StreamHeads)


async def test_a_stream_that_only_this_process_can_read_lies_nowhere(end: End) -> None:
    end.bench.publish(b"a")

    end.ask(LocateStream(topic=TOPIC, start=0, end=1))

    [located] = end.answers()
    assert isinstance(located, StreamLocated)
    assert located.rows == []
    assert located.number == end.bench.topic().record.topic


async def test_a_live_topic_lies_nowhere(end: End) -> None:
    end.bench.broker.create_topic("/default/live")

    end.ask(LocateStream(topic="/default/live", start=0, end=1))

    [refused] = end.answers()
    assert isinstance(refused, ErrorReply)
    assert refused.code == WrongKindError.code
