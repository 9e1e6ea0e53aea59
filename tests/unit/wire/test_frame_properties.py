"""Properties of the stream: any cut gives the same frames, and no bytes do harm."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.codec.strategies import messages

from ister.base.errors import ProtocolError
from ister.base.limits import KIB
from ister.wire import (
    CreateTopic,
    Frame,
    Hello,
    Opcode,
    Subscribe,
    ack_frames,
    acked_frame,
    control_frame,
    credit_frame,
    leased_frame,
    publish_frame,
    published_frame,
    timed_ack_frames,
)
from ister.wire.frames import FrameReader, body_limits, hello_limits, ping_frame, pong_frame

BATCH_BYTES_MAX = 64 * KIB
LARGEST = 1024 * KIB + 16  # A control frame with its header.

numbers = st.integers(0, 2**31 - 1)
BATCH_OPCODES = [
    Opcode.PUBLISH,
    Opcode.PUBLISH_BULK,
    Opcode.PUBLISH_EXPECT,
    Opcode.STAGE,
    Opcode.STAGE_EXPECT,
]
ACK_OPCODES = [Opcode.ACK, Opcode.ACK_THROUGH]


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """One valid frame of any kind."""
    channel, one, two = draw(numbers), draw(numbers), draw(numbers)
    kind = draw(st.integers(0, 11))
    if kind == 0:
        head, body = draw(messages()).encoded()
        opcode = draw(st.sampled_from(BATCH_OPCODES))
        return b"".join(publish_frame(channel, one, head, body, opcode=opcode))
    if kind == 1:
        batch = draw(messages()).batch(base_offset=one)
        return b"".join(leased_frame(channel, one, batch, two, one, two))
    run = (one, two, two + 1)
    return [
        credit_frame(channel, one, two),
        published_frame(channel, one, two, -two),
        *ack_frames(channel, [run], opcode=draw(st.sampled_from(ACK_OPCODES)), sequence=one),
        acked_frame(channel, one, [run] * (one % 3)),
        *timed_ack_frames(channel, [(*run, one)] * (1 + one % 3), opcode=Opcode.NACK),
        ping_frame(),
        pong_frame(),
        control_frame(CreateTopic(topic=draw(st.text(max_size=30))), sequence=one),
        control_frame(
            Subscribe(topic="/d/a", subscription="s", consumer="c", channel=channel),
            sequence=two,
        ),
        control_frame(Hello(client_id="c"), sequence=two),
    ][kind - 2]


streams = st.lists(frames(), max_size=6).map(b"".join)


def reader() -> FrameReader:
    return FrameReader(body_limits(BATCH_BYTES_MAX))


def flat(frames: list[Frame]) -> list[tuple[int, int, int, bytes]]:
    return [(opcode, channel, sequence, bytes(body)) for opcode, channel, sequence, body in frames]


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Return `data` cut at the places in `cuts`, taken modulo its size."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(places)]


@given(streams, st.lists(st.integers(0, 10_000), max_size=20))
def test_any_cut_of_a_stream_gives_the_same_frames(data: bytes, cuts: list[int]) -> None:
    whole = flat(reader().receive(data))
    cut = reader()

    assert [f for piece in pieces(data, cuts) for f in flat(cut.receive(piece))] == whole
    assert cut.buffered_bytes == 0


@given(streams)
def test_single_bytes_give_the_same_frames(data: bytes) -> None:
    cut = reader()

    assert [f for n in range(len(data)) for f in flat(cut.receive(data[n : n + 1]))] == flat(
        reader().receive(data)
    )


@given(streams, st.data())
def test_an_incomplete_stream_gives_the_whole_frames_in_it(
    data: bytes, drawn: st.DataObject
) -> None:
    end = drawn.draw(st.integers(0, len(data)))
    whole = flat(reader().receive(data))
    part = reader()
    got = flat(part.receive(data[:end]))

    assert got == whole[: len(got)]
    assert part.buffered_bytes == end - sum(16 + len(f[3]) for f in got)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid stream with bytes changed, taken out or put in."""
    data = bytearray(draw(st.lists(frames(), min_size=1, max_size=4).map(b"".join)))
    for _ in range(draw(st.integers(1, 5))):
        place = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["change", "cut", "insert"])):
            case "change" if place < len(data):
                data[place] = draw(st.integers(0, 255))
            case "cut":
                del data[place : place + draw(st.integers(1, 40))]
            case _:
                data[place:place] = draw(st.binary(max_size=20))
    return bytes(data)


@given(mutated(), st.lists(st.integers(0, 10_000), max_size=5))
def test_a_mutated_stream_raises_a_protocol_error_or_nothing(data: bytes, cuts: list[int]) -> None:
    broken = reader()
    try:
        for piece in pieces(data, cuts):
            broken.receive(piece)
    except ProtocolError:
        pass


@given(mutated(), st.lists(st.integers(0, 10_000), max_size=5))
def test_no_stream_makes_a_reader_hold_more_than_one_frame(data: bytes, cuts: list[int]) -> None:
    broken = reader()
    try:
        for piece in pieces(data, cuts):
            broken.receive(piece)
            assert broken.buffered_bytes < LARGEST
    except ProtocolError:
        pass


@given(st.binary(min_size=16, max_size=200))
def test_random_bytes_are_refused_by_a_reader_that_waits_for_a_hello(data: bytes) -> None:
    if data[6:8] == b"IS":
        return
    with pytest.raises(ProtocolError):
        FrameReader(hello_limits()).receive(data)


def test_a_hello_is_what_a_new_reader_takes() -> None:
    assert len(FrameReader(hello_limits()).receive(control_frame(Hello(client_id="c")))) == 1
