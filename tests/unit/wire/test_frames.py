"""Frames are cut out of a stream however it arrives, and bad ones are refused at their header."""

import struct
import tracemalloc

import pytest

from ister.base.errors import BadRequestError, ProtocolError
from ister.base.limits import ACKS_PER_FRAME_MAX, CONTROL_BYTES_MAX, CREDIT_MAX, KIB, MIB
from ister.codec import HEADER_BYTES, Batch, encode
from ister.wire import (
    CREDIT,
    LEASE,
    PUBLISHED,
    CreateTopic,
    Done,
    Opcode,
    control_frame,
    credit_frame,
    deliver_frame,
    leased_frame,
    publish_bare_frame,
    publish_frame,
    published_frame,
    reply_frame,
)
from ister.wire.frames import (
    CHUNKS_MAX,
    FRAME_HEADER_BYTES,
    HELLO_BYTES_MAX,
    JOIN_BYTES_MAX,
    MAGIC,
    FrameReader,
    body_limits,
    hello_limits,
    ping_frame,
    pong_frame,
)

BATCH_BYTES_MAX = 64 * KIB


def reader() -> FrameReader:
    return FrameReader(body_limits(BATCH_BYTES_MAX))


def header(length: int, opcode: int, *, flags: int = 0, magic: int = MAGIC) -> bytes:
    return struct.pack("<IBBHII", length, opcode, flags, magic, 0, 0)


def fixed(opcode: int, length: int) -> bytes:
    return header(length, opcode) + bytes(length)


def batch_of(*payloads: bytes) -> Batch:
    return Batch(b"".join(encode(payloads)))


def test_a_header_is_sixteen_bytes() -> None:
    assert FRAME_HEADER_BYTES == 16


def test_a_frame_starts_with_the_size_of_its_body() -> None:
    assert struct.unpack_from("<I", credit_frame(1, 2, 3))[0] == 8


def test_the_magic_is_the_letters_i_s() -> None:
    assert ping_frame()[6:8] == b"IS"


def test_a_credit_frame_comes_back() -> None:
    [(opcode, channel, sequence, body)] = reader().receive(credit_frame(7, 100, 2000))

    assert (opcode, channel, sequence, CREDIT.unpack(body)) == (Opcode.CREDIT, 7, 0, (100, 2000))


def test_a_published_frame_comes_back() -> None:
    [(opcode, channel, sequence, body)] = reader().receive(published_frame(7, 8, 2**63, -1))

    assert (opcode, channel, sequence, PUBLISHED.unpack(body)) == (
        Opcode.PUBLISHED,
        7,
        8,
        (2**63, -1),
    )


def test_a_control_frame_carries_channel_and_sequence() -> None:
    [(opcode, channel, sequence, _)] = reader().receive(
        control_frame(Done(), channel=5, sequence=2**32 - 1)
    )

    assert (opcode, channel, sequence) == (Opcode.CONTROL, 5, 2**32 - 1)


@pytest.mark.parametrize("size", [1, JOIN_BYTES_MAX * 2], ids=["joined", "in two parts"])
def test_a_publish_frame_carries_its_batch(size: int) -> None:
    head, body = encode([b"x" * size])
    [frame] = reader().receive(b"".join(publish_frame(3, 4, head, body)))

    assert (frame[:3], bytes(frame[3])) == ((Opcode.PUBLISH, 3, 4), head + body)


@pytest.mark.parametrize("opcode", [Opcode.PUBLISH_BULK, Opcode.PUBLISH_EXPECT, Opcode.STAGE])
def test_other_frames_of_a_batch_differ_from_a_publish_frame_by_their_opcode(opcode: int) -> None:
    head, body = encode([b"x"])
    [frame] = publish_frame(3, 4, head, body, opcode=opcode)
    [plain] = publish_frame(3, 4, head, body)

    assert (frame[:4], frame[4], frame[5:]) == (plain[:4], opcode, plain[5:])


def test_a_bare_publish_frame_is_a_publish_frame() -> None:
    head, body = encode([b"x"])

    assert [publish_bare_frame(3, 4, head + body)] == publish_frame(3, 4, head, body)


@pytest.mark.parametrize("size", [1, JOIN_BYTES_MAX * 2], ids=["joined", "in two parts"])
def test_a_leased_frame_carries_the_lease_and_the_stamped_batch(size: int) -> None:
    batch = batch_of(b"x" * size)
    batch.stamp(5, 6)
    [(*head, body)] = reader().receive(
        b"".join(leased_frame(3, 9, batch, 2**64 - 1, 2**32 - 1, 43_200_000))
    )

    assert head == [Opcode.DELIVER_LEASED, 3, 9]
    assert LEASE.unpack_from(body) == (2**64 - 1, 2**32 - 1, 43_200_000)
    assert bytes(body[LEASE.size :]) == batch.to_bytes()


def test_the_batch_of_a_leased_frame_is_as_aligned_as_that_of_a_deliver_frame() -> None:
    assert (FRAME_HEADER_BYTES + LEASE.size) % 8 == FRAME_HEADER_BYTES % 8 == 0


@pytest.mark.parametrize("size", [1, JOIN_BYTES_MAX * 2], ids=["joined", "in two parts"])
def test_a_deliver_frame_carries_the_stamped_batch(size: int) -> None:
    batch = batch_of(b"x" * size)
    batch.stamp(5, 6)
    [frame] = reader().receive(b"".join(deliver_frame(3, 9, batch)))

    assert (frame[:3], bytes(frame[3])) == ((Opcode.DELIVER, 3, 9), batch.to_bytes())


def test_a_reply_frame_is_the_same_from_a_batch_and_from_its_parts() -> None:
    parts = encode([b"x"], replies=[(1, 2)])

    assert b"".join(reply_frame(parts)) == b"".join(reply_frame(Batch(b"".join(parts))))


def test_a_large_batch_is_not_copied_into_its_frame() -> None:
    batch = batch_of(b"x" * JOIN_BYTES_MAX)

    for frame in (deliver_frame(1, 1, batch), leased_frame(1, 1, batch, 1, 1, 1)):
        assert isinstance(frame[-1], memoryview)
        assert frame[-1] == batch.tail


@pytest.mark.parametrize(("count", "size"), [(0, 0), (CREDIT_MAX, CREDIT_MAX)])
def test_credit_within_its_limits_can_be_sent(count: int, size: int) -> None:
    assert len(credit_frame(1, count, size)) == 24


@pytest.mark.parametrize(("count", "size"), [(-1, 0), (0, -1), (CREDIT_MAX + 1, 0)])
def test_credit_outside_its_limits_cannot_be_sent(count: int, size: int) -> None:
    with pytest.raises(BadRequestError):
        credit_frame(1, count, size)


def test_a_command_larger_than_a_control_frame_cannot_be_sent() -> None:
    with pytest.raises(BadRequestError, match=str(CONTROL_BYTES_MAX)):
        control_frame(CreateTopic(topic="a" * CONTROL_BYTES_MAX))


@pytest.mark.parametrize(
    ("opcode", "smallest", "largest"),
    [
        (Opcode.PUBLISH, HEADER_BYTES, BATCH_BYTES_MAX),
        (Opcode.PUBLISH_BULK, HEADER_BYTES, BATCH_BYTES_MAX),
        (Opcode.DELIVER, HEADER_BYTES, BATCH_BYTES_MAX),
        (Opcode.REPLY, HEADER_BYTES, BATCH_BYTES_MAX),
        (Opcode.PUBLISHED, 16, 16),
        (Opcode.CREDIT, 8, 8),
        (Opcode.PUBLISH_EXPECT, HEADER_BYTES, BATCH_BYTES_MAX),
        (Opcode.STAGE, HEADER_BYTES, BATCH_BYTES_MAX),
        (Opcode.STAGE_EXPECT, HEADER_BYTES, BATCH_BYTES_MAX),
        (Opcode.DELIVER_LEASED, 16 + HEADER_BYTES, 16 + BATCH_BYTES_MAX),
        (Opcode.ACK, 24, 24 * ACKS_PER_FRAME_MAX),
        (Opcode.ACK_THROUGH, 24, 24 * ACKS_PER_FRAME_MAX),
        (Opcode.ACKED, 0, 24 * ACKS_PER_FRAME_MAX),
        (Opcode.NACK, 32, 32 * ACKS_PER_FRAME_MAX),
        (Opcode.EXTEND, 32, 32 * ACKS_PER_FRAME_MAX),
        (Opcode.PING, 0, 0),
        (Opcode.PONG, 0, 0),
        (Opcode.CONTROL, 1, CONTROL_BYTES_MAX),
    ],
)
class TestTheSizeOfABody:
    def test_at_its_limits_is_accepted(self, opcode: int, smallest: int, largest: int) -> None:
        frames = reader().receive(fixed(opcode, smallest) + fixed(opcode, largest))

        assert [len(frame[3]) for frame in frames] == [smallest, largest]

    def test_one_over_is_refused(self, opcode: int, smallest: int, largest: int) -> None:
        with pytest.raises(ProtocolError, match=f"opcode {opcode} has"):
            reader().receive(header(largest + 1, opcode))

    def test_one_under_is_refused(self, opcode: int, smallest: int, largest: int) -> None:
        if smallest == 0:
            return
        with pytest.raises(ProtocolError, match=f"opcode {opcode} has"):
            reader().receive(header(smallest - 1, opcode))


@pytest.mark.parametrize("opcode", [0, 19, 255])
@pytest.mark.parametrize("length", [0, 1])
def test_an_unknown_opcode_is_refused_and_named(opcode: int, length: int) -> None:
    with pytest.raises(ProtocolError, match=f"opcode {opcode} is unknown"):
        reader().receive(header(length, opcode))


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n", bytes(16), b"\x16\x03\x01" + bytes(20)])
def test_another_protocol_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="is the peer an Ister client"):
        reader().receive(data)


def test_flags_are_not_looked_at() -> None:
    assert len(reader().receive(header(0, Opcode.PING, flags=255))) == 1


@pytest.mark.parametrize("opcode", sorted(set(range(1, 19)) - {Opcode.CONTROL}))
def test_before_the_handshake_only_control_frames_are_accepted(opcode: int) -> None:
    with pytest.raises(ProtocolError, match="before the handshake"):
        FrameReader(hello_limits()).receive(header(0, opcode))


def test_before_the_handshake_the_largest_small_control_frame_is_accepted() -> None:
    frames = FrameReader(hello_limits()).receive(fixed(Opcode.CONTROL, HELLO_BYTES_MAX))

    assert len(frames) == 1


def test_before_the_handshake_a_larger_control_frame_is_refused() -> None:
    with pytest.raises(ProtocolError):
        FrameReader(hello_limits()).receive(header(HELLO_BYTES_MAX + 1, Opcode.CONTROL))


def test_a_frame_is_refused_before_its_body_has_come() -> None:
    frames = reader()
    frames.receive(header(BATCH_BYTES_MAX + 1, Opcode.PUBLISH)[:15])

    with pytest.raises(ProtocolError):
        frames.receive(header(BATCH_BYTES_MAX + 1, Opcode.PUBLISH)[15:])


def test_frames_before_a_broken_one_in_the_same_bytes_are_lost_with_it() -> None:
    with pytest.raises(ProtocolError):
        reader().receive(ping_frame() + b"x" * 16)


def test_an_incomplete_frame_is_counted_as_buffered() -> None:
    frames = reader()
    frames.receive(pong_frame() + credit_frame(1, 2, 3)[:-1])

    assert frames.buffered_bytes == 23


def test_nothing_is_buffered_between_frames() -> None:
    frames = reader()
    frames.receive(credit_frame(1, 2, 3)[:-1])
    frames.receive(credit_frame(1, 2, 3)[-1:])

    assert frames.buffered_bytes == 0


def test_new_limits_hold_for_the_next_frame() -> None:
    frames = FrameReader(hello_limits())
    frames.set_limits(body_limits(BATCH_BYTES_MAX))

    assert len(frames.receive(ping_frame())) == 1


def test_a_frame_in_single_bytes_is_held_in_few_pieces() -> None:
    frames = FrameReader(body_limits(MIB))
    data = fixed(Opcode.PUBLISH, 4 * CHUNKS_MAX)
    for position in range(len(data) - 1):
        frames.receive(data[position : position + 1])

    assert (len(frames._chunks) <= CHUNKS_MAX + 1, len(frames.receive(data[-1:]))) == (True, 1)


def test_a_frame_in_single_bytes_takes_memory_in_proportion() -> None:
    frames = FrameReader(body_limits(MIB))
    size = 256 * KIB
    data = fixed(Opcode.PUBLISH, size)
    tracemalloc.start()
    for position in range(0, len(data) - 1, 2):
        frames.receive(data[position : position + 2])
        if position > 2 * len(data) // 3:
            break
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert held < 2 * size + FRAME_HEADER_BYTES
