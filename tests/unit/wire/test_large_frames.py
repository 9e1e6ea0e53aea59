"""Large frames are received in place: same frames, and memory only as their bytes come."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.base.errors import ProtocolError
from ister.base.limits import KIB, MIB
from ister.wire import Frame, Opcode
from ister.wire.frames import (
    MAGIC,
    PLACE_BYTES_FIRST,
    PLACE_BYTES_MIN,
    FrameReader,
    PlacePool,
    body_limits,
    ping_frame,
)

BATCH_BYTES_MAX = 16 * MIB


def reader() -> FrameReader:
    return FrameReader(body_limits(BATCH_BYTES_MAX))


def header(length: int, *, channel: int = 0) -> bytes:
    return struct.pack("<IBBHII", length, Opcode.PUBLISH, 0, MAGIC, channel, 0)


def frame(length: int, *, channel: int = 0) -> bytes:
    return header(length, channel=channel) + bytes([channel]) * length


def shape(frames: list[Frame]) -> list[tuple[int, int, bytes]]:
    return [(frame[0], frame[1], bytes(frame[3])) for frame in frames]


def read_like_a_socket(frames: FrameReader, data: bytes, sizes: list[int]) -> list[Frame]:
    """Feed `data` in reads of `sizes`, into the reader's own space whenever it offers one."""
    got: list[Frame] = []
    turn = 0
    while data:
        size = sizes[turn % len(sizes)]
        turn += 1
        space = frames.space()
        if space is None:
            got += frames.receive(data[:size])
            data = data[size:]
            continue
        count = min(size, len(space), len(data))
        space[:count] = data[:count]
        space.release()
        got += frames.filled(count)
        data = data[count:]
    return got


lengths = st.sampled_from(
    [
        64,
        1_000,
        PLACE_BYTES_MIN - 1,
        PLACE_BYTES_MIN,
        PLACE_BYTES_MIN + 1,
        PLACE_BYTES_FIRST - 1,
        PLACE_BYTES_FIRST,
        PLACE_BYTES_FIRST + 1,
        2 * PLACE_BYTES_FIRST + 1,
    ]
)
streams = st.lists(lengths, min_size=1, max_size=4).map(
    lambda sizes: b"".join(frame(size, channel=n + 1) for n, size in enumerate(sizes))
)
reads = st.lists(st.integers(1, 40) | st.integers(10_000, 300_000), min_size=1, max_size=4).filter(
    lambda sizes: max(sizes) >= 10_000
)


@given(streams, reads)
def test_any_reads_of_a_stream_with_large_frames_give_the_same_frames(
    data: bytes, sizes: list[int]
) -> None:
    assert shape(read_like_a_socket(reader(), data, sizes)) == shape(reader().receive(data))


@given(streams, reads)
def test_pieces_handed_over_give_the_same_frames_as_reads_in_place(
    data: bytes, sizes: list[int]
) -> None:
    whole, rest, turn = reader(), data, 0
    got: list[Frame] = []
    while rest:
        size = sizes[turn % len(sizes)]
        turn += 1
        got += whole.receive(rest[:size])
        rest = rest[size:]

    assert shape(got) == shape(reader().receive(data))
    assert (whole.buffered_bytes, whole.space()) == (0, None)


@pytest.mark.parametrize(
    ("length", "placed"), [(PLACE_BYTES_MIN - 1, False), (PLACE_BYTES_MIN, True)]
)
def test_a_frame_gets_a_place_of_its_own_from_a_certain_size_on(length: int, placed: bool) -> None:
    frames = reader()
    frames.receive(header(length))

    assert (frames.space() is not None) is placed


def test_a_place_is_not_offered_between_frames() -> None:
    frames = reader()
    frames.receive(frame(PLACE_BYTES_MIN))

    assert frames.space() is None


def test_a_header_that_claims_much_gets_little() -> None:
    frames = reader()
    frames.receive(header(BATCH_BYTES_MAX))

    assert frames.buffered_bytes <= PLACE_BYTES_FIRST


def test_memory_grows_to_at_most_twice_what_has_come() -> None:
    frames = reader()
    data = frame(BATCH_BYTES_MAX)
    for position in range(0, len(data) - 256 * KIB, 256 * KIB):
        frames.receive(data[position : position + 256 * KIB])
        come = position + 256 * KIB

        assert frames.buffered_bytes <= max(PLACE_BYTES_FIRST, 2 * come)


def test_a_large_frame_takes_exactly_its_size_in_the_end() -> None:
    frames = reader()
    length = 3 * PLACE_BYTES_FIRST + 5
    data = frame(length, channel=9)
    frames.receive(data[:-1])

    assert frames.buffered_bytes == length
    assert shape(frames.receive(data[-1:])) == [(Opcode.PUBLISH, 9, bytes([9]) * length)]


def test_frames_behind_a_large_one_in_the_same_bytes_are_found() -> None:
    frames = reader()
    data = frame(PLACE_BYTES_MIN) + ping_frame() + ping_frame()[:5]
    frames.receive(data[:1_000])
    got = frames.receive(data[1_000:])

    assert [f[0] for f in got] == [Opcode.PUBLISH, Opcode.PING]
    assert frames.buffered_bytes == 5


def test_a_broken_frame_behind_a_large_one_is_refused() -> None:
    frames = reader()
    data = frame(PLACE_BYTES_MIN) + bytes(16)
    frames.receive(data[:1_000])

    with pytest.raises(ProtocolError):
        frames.receive(data[1_000:])


def test_asking_for_space_twice_gives_the_same_place() -> None:
    frames = reader()
    frames.receive(header(2 * PLACE_BYTES_FIRST) + bytes(PLACE_BYTES_FIRST))
    first = frames.space()
    second = frames.space()

    assert first is not None
    assert second is not None
    assert len(first) == len(second) > 0


def test_memory_of_a_frame_is_lent_again_once_nobody_looks_at_it() -> None:
    pool = PlacePool()
    body = pool.take(100_000)
    pool.lend(body)
    view = memoryview(body)
    assert pool.take(100_000) is not body

    view.release()

    assert pool.take(100_000) is body


def test_memory_of_a_huge_frame_is_not_kept() -> None:
    pool = PlacePool()
    body = pool.take(PLACE_BYTES_FIRST + 1)
    pool.lend(body)

    assert pool.take(PLACE_BYTES_FIRST) is not body
