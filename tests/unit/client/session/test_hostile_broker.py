"""A broker that breaks the protocol costs the connection, with a typed error, and nothing more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.session.wire_end import WireEnd, welcome

from ister.base.errors import InternalError, IsterError, ProtocolError
from ister.client.session import LeasedBatch
from ister.codec import Batch, encode
from ister.wire import (
    Command,
    CreateTopic,
    Hello,
    Opcode,
    ReaderEnded,
    SlowConsumer,
    Subscribed,
    ack_frames,
    control_frame,
    credit_frame,
    deliver_frame,
    error_reply,
    leased_frame,
    published_frame,
    reply_frame,
)

BATCH = b"".join(encode([b"x"]))


@pytest.fixture
def end() -> WireEnd:
    """A connected session."""
    made = WireEnd()
    made.connect()
    return made


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        control_frame(welcome()),
        control_frame(error_reply(InternalError("bug"))),
        b"".join(reply_frame(encode([b"x"]))),
        b"".join(deliver_frame(1, 12345, Batch(BATCH))),
        credit_frame(1, 1, 1),
        b"".join(leased_frame(1, 12345, Batch(BATCH), 1, 1, 1)),
        b"".join(ack_frames(1, [(1, 2, 3)], opcode=Opcode.ACK)),
        control_frame(Hello(client_id="x"))[:-1] + b"\xff",
    ],
    ids=[
        "another protocol",
        "a second welcome",
        "a fatal error",
        "answers without addresses",
        "an unknown topic number",
        "a frame for brokers",
        "an unknown topic number of a lease",
        "an acknowledgement for brokers",
        "a broken command",
    ],
)
def test_what_breaks_the_protocol_is_a_typed_error(end: WireEnd, data: bytes) -> None:
    end.subscribe()

    with pytest.raises(IsterError):
        end.session.receive(data)


@pytest.mark.parametrize(
    "changes", [{"heartbeat_ms": 0}, {"heartbeat_ms": -1}, {"message_bytes_max": 0}], ids=str
)
def test_a_welcome_that_makes_no_sense_is_refused(changes: dict[str, int]) -> None:
    end = WireEnd()
    end.dial()

    with pytest.raises(ProtocolError):
        end.tell(welcome(**changes))


def test_hot_frames_before_the_welcome_are_refused() -> None:
    end = WireEnd()
    end.dial()

    with pytest.raises(ProtocolError):
        end.session.receive(published_frame(1, 1, 1, 1))


@pytest.mark.parametrize(
    "data",
    [
        published_frame(77, 1, 1, 1),
        control_frame(Subscribed(active=True), sequence=999),
        control_frame(SlowConsumer(dropped=1), channel=77),
        b"".join(deliver_frame(77, 12345, Batch(BATCH))),
        b"".join(leased_frame(77, 12345, Batch(BATCH), 1, 1, 1)),
        b"".join(ack_frames(77, [(1, 2, 3)], opcode=Opcode.ACKED, sequence=5)),
        control_frame(ReaderEnded(), channel=77),
        control_frame(Subscribed(active=True, leases=5), channel=77),
        control_frame(error_reply(InternalError("bug")), channel=77, sequence=1),
    ],
    ids=[
        "acknowledgement",
        "reply",
        "notice",
        "delivery",
        "leased delivery",
        "confirmation",
        "end of a reader",
        "seek",
        "refusal",
    ],
)
def test_frames_for_what_is_closed_are_ignored(end: WireEnd, data: bytes) -> None:
    end.session.receive(data)

    replies: list[Command | IsterError] = []
    end.session.call(CreateTopic(topic="/default/a"), replies.append)
    assert replies == []


def test_a_batch_with_a_wrong_checksum_is_refused(end: WireEnd) -> None:
    subscription = end.subscribe()
    frame = bytearray(b"".join(deliver_frame(subscription.channel, 7, Batch(BATCH))))
    frame[-1] ^= 1

    with pytest.raises(IsterError):
        end.session.receive(bytes(frame))


@given(st.binary(max_size=200))
def test_random_bytes_are_an_error_or_incomplete(data: bytes) -> None:
    end = WireEnd()
    end.connect()
    end.subscribe()

    try:
        end.session.receive(data)
    except IsterError:
        pass


@given(st.data())
def test_changed_bytes_of_good_frames_are_an_error_or_harmless(data: st.DataObject) -> None:
    end = WireEnd()
    end.connect()
    subscription = end.subscribe()
    frames = bytearray(
        control_frame(SlowConsumer(dropped=1), channel=subscription.channel)
        + b"".join(deliver_frame(subscription.channel, 7, Batch(BATCH)))
        + b"".join(leased_frame(subscription.channel, 7, Batch(BATCH), 1, 1, 1_000))
        + b"".join(ack_frames(subscription.channel, [(1, 2, 3)], opcode=Opcode.ACKED))
        + published_frame(1, 1, 1, 1)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(frames) - 1))
        frames[position] = data.draw(st.integers(0, 255))

    try:
        end.session.receive(bytes(frames))
        # What came can be acknowledged and renewed, whatever numbers it has.
        while (batch := subscription.inbox.take()) is not None:
            if isinstance(batch, LeasedBatch):
                batch.lease.ack(0, batch.count)
        end.now_ms += 1_000_000
        end.session.receivers.renew()
        end.frames()
    except IsterError:
        pass
