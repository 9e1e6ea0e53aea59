"""The broker's end of a connection, over a transport that only notes what is written."""

import asyncio

import pytest
from tests.fuzz.world import NotingTransport

from ister.base.errors import BadRequestError, ProtocolError
from ister.base.limits import Limits
from ister.broker import Broker
from ister.codec import encode
from ister.server.native import NativeDoor, NativeSession
from ister.server.native.door import LATE_S
from ister.server.native.session import LATE_ANSWERS_MAX
from ister.testing import VirtualClock
from ister.wire import (
    Done,
    ErrorReply,
    Frame,
    Hello,
    NackMessages,
    Opcode,
    OpenProducer,
    Subscribe,
    control_frame,
    credit_frame,
    decode_command,
    publish_frame,
)
from ister.wire.frames import FrameReader, body_limits, ping_frame


class End:
    """A session with a greeted client and an open producer on channel 1."""

    def __init__(self, door: NativeDoor | None = None) -> None:
        broker = Broker(
            name="b", limits=Limits(), clock=VirtualClock(), random_slot=lambda count: count - 1
        )
        self.door = door or NativeDoor(broker, busy_poll_us=0)
        self.session: NativeSession = self.door.session()
        self.transport = NotingTransport()
        self.session.connection_made(self.transport)
        self.session.data_received(control_frame(Hello(client_id="c")))
        opening = OpenProducer(topic="/default/x", name="p", channel=1)
        self.session.data_received(control_frame(opening, sequence=1))
        self.reader = FrameReader(body_limits(1 << 20))
        self.sent()

    def sent(self) -> list[Frame]:
        """Return the frames written since the last call."""
        data = bytes(self.transport.written)
        self.transport.written.clear()
        return self.reader.receive(data)

    def publish(self, sequence: int, *, bulk: bool) -> None:
        """Publish one message."""
        head, body = encode([b"x"], producer=b"p")
        opcode = Opcode.PUBLISH_BULK if bulk else Opcode.PUBLISH
        frame = b"".join(publish_frame(1, sequence, head, body, opcode=opcode))
        self.session.data_received(frame)

    def subscribe(self, client: str) -> None:
        """Share a subscription with the other clients, on channel 2."""
        command = Subscribe(
            topic="/default/x", subscription="s", consumer=client, channel=2, type="shared"
        )
        self.session.data_received(control_frame(command, sequence=2))
        self.session.data_received(credit_frame(2, 100, 100_000))

    def answered(self) -> list[int]:
        """Return the sequences acknowledged since the last call."""
        return [f[2] for f in self.sent() if f[0] == Opcode.PUBLISHED]


@pytest.fixture
async def end() -> End:
    return End()


async def test_a_publish_is_answered_at_once(end: End) -> None:
    end.publish(1, bulk=False)

    assert end.answered() == [1]


async def test_answers_to_a_bulk_producer_leave_together(end: End) -> None:
    for sequence in range(1, LATE_ANSWERS_MAX):
        end.publish(sequence, bulk=True)
    assert end.answered() == []

    end.publish(LATE_ANSWERS_MAX, bulk=True)

    assert end.answered() == list(range(1, LATE_ANSWERS_MAX + 1))


async def test_an_answer_to_a_bulk_producer_does_not_wait_for_company_for_ever(end: End) -> None:
    end.publish(1, bulk=True)
    assert end.answered() == []

    await asyncio.sleep(LATE_S * 3)

    assert end.answered() == [1]


async def test_answers_keep_their_order_when_bulk_ends(end: End) -> None:
    end.publish(1, bulk=True)
    end.publish(2, bulk=False)

    assert end.answered() == [1, 2]


@pytest.mark.parametrize("run", [(1, 5, 5, 0), (1, -1, 5, 0), (1, 0, 2**63 + 1, 0), (1, 0, 1, -1)])
async def test_a_nack_of_what_is_no_run_is_refused(
    end: End, run: tuple[int, int, int, int]
) -> None:
    end.session.data_received(control_frame(NackMessages(channel=2, runs=[run]), sequence=7))

    [(_, _, sequence, body)] = end.sent()
    answer = decode_command(body)
    assert sequence == 7
    assert isinstance(answer, ErrorReply)
    assert answer.code == BadRequestError.code


async def test_a_nack_for_a_channel_without_a_consumer_changes_nothing(end: End) -> None:
    nack = NackMessages(channel=2, runs=[(1, 0, 1, 0)], reason="late")
    end.session.data_received(control_frame(nack, sequence=7))

    assert [decode_command(frame[3]) for frame in end.sent()] == [Done()]


async def test_a_ping_is_answered_at_once(end: End) -> None:
    end.session.data_received(ping_frame())

    assert [f[0] for f in end.sent()] == [Opcode.PONG]


async def test_messages_for_a_closing_connection_go_to_the_others(end: End) -> None:
    other = End(end.door)
    end.subscribe("first")
    other.subscribe("second")
    end.session.fail(ProtocolError("broken"))
    for sequence in range(4):
        other.publish(sequence, bulk=False)
    end.session.connection_lost(None)

    assert len([f for f in other.sent() if f[0] == Opcode.DELIVER]) == 4
