"""Runs of offsets under a lease: any come back as they were, and hostile ones are refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.base.errors import BadRequestError, ProtocolError
from ister.base.limits import ACKS_PER_FRAME_MAX, KIB
from ister.wire import (
    BACKOFF_DELAY,
    Frame,
    Opcode,
    Run,
    ack_frames,
    acked_frame,
    runs_of,
    timed_ack_frames,
    timed_runs_of,
)
from ister.wire.frames import OFFSETS_END, FrameReader, body_limits

u64 = st.integers(0, 2**64 - 1)


@st.composite
def any_run(draw: st.DrawFn) -> Run:
    """A run that a peer may send."""
    start = draw(st.integers(0, OFFSETS_END - 1))
    return draw(u64), start, draw(st.integers(start + 1, OFFSETS_END))


def read(frames: list[bytes]) -> list[Frame]:
    return FrameReader(body_limits(64 * KIB)).receive(b"".join(frames))


def body(*numbers: int) -> memoryview:
    return memoryview(struct.pack(f"<{len(numbers)}Q", *numbers))


@given(
    st.lists(any_run(), min_size=1, max_size=20), st.sampled_from([Opcode.ACK, Opcode.ACK_THROUGH])
)
def test_any_runs_come_back(runs: list[Run], opcode: int) -> None:
    [(*head, data)] = read(ack_frames(7, runs, opcode=opcode, sequence=8))

    assert (head, runs_of(data)) == ([opcode, 7, 8], runs)


@given(
    st.lists(st.tuples(any_run(), u64), min_size=1, max_size=20),
    st.sampled_from([Opcode.NACK, Opcode.EXTEND]),
)
def test_any_runs_with_milliseconds_come_back(timed: list[tuple[Run, int]], opcode: int) -> None:
    runs = [(*run, milliseconds) for run, milliseconds in timed]
    [(*head, data)] = read(timed_ack_frames(7, runs, opcode=opcode, sequence=8))

    assert (head, timed_runs_of(data)) == ([opcode, 7, 8], runs)


@given(st.lists(any_run(), max_size=20))
def test_any_refused_runs_come_back(runs: list[Run]) -> None:
    [(*head, data)] = read([acked_frame(7, 8, runs)])

    assert (head, runs_of(data)) == ([Opcode.ACKED, 7, 8], runs)


@given(st.binary(max_size=200))
def test_any_body_is_a_list_of_good_runs_or_a_protocol_error(data: bytes) -> None:
    for parse in (runs_of, timed_runs_of):
        try:
            runs = parse(memoryview(data))
        except ProtocolError:
            continue
        assert all(0 <= run[1] < run[2] <= OFFSETS_END for run in runs)


@pytest.mark.parametrize("size", [1, 8, 23, 25, 47])
def test_a_body_that_is_no_whole_number_of_runs_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"24-byte runs has {size} B"):
        runs_of(memoryview(bytes(size)))


@pytest.mark.parametrize("size", [1, 24, 31, 33])
def test_a_body_that_is_no_whole_number_of_timed_runs_is_refused(size: int) -> None:
    with pytest.raises(ProtocolError, match=f"32-byte runs has {size} B"):
        timed_runs_of(memoryview(bytes(size)))


BAD_RUNS = pytest.mark.parametrize(
    ("start", "end"),
    [(5, 5), (6, 5), (0, 0), (0, OFFSETS_END + 1), (OFFSETS_END, OFFSETS_END + 1), (2**64 - 1, 0)],
    ids=["empty", "backwards", "zero", "too far", "beyond the last", "wrapped"],
)


@BAD_RUNS
def test_a_run_without_offsets_is_refused(start: int, end: int) -> None:
    with pytest.raises(ProtocolError, match=f"from {start} up to {end}"):
        runs_of(body(1, 0, 1, 1, start, end))


@BAD_RUNS
def test_a_timed_run_without_offsets_is_refused(start: int, end: int) -> None:
    with pytest.raises(ProtocolError, match=f"from {start} up to {end}"):
        timed_runs_of(body(1, 0, 1, 0, 1, start, end, 0))


def test_the_last_offset_there_can_be_is_taken() -> None:
    assert runs_of(body(1, OFFSETS_END - 1, OFFSETS_END)) == [(1, OFFSETS_END - 1, OFFSETS_END)]


def test_the_delay_that_means_the_backoff_list_travels() -> None:
    [frame] = read(timed_ack_frames(7, [(1, 2, 3, BACKOFF_DELAY)], opcode=Opcode.NACK))

    assert timed_runs_of(frame[3]) == [(1, 2, 3, BACKOFF_DELAY)]


def runs_of_length(count: int) -> list[Run]:
    return [(lease, 2 * lease, 2 * lease + 1) for lease in range(count)]


@pytest.mark.parametrize(
    ("count", "frames"),
    [
        (0, 0),
        (1, 1),
        (ACKS_PER_FRAME_MAX, 1),
        (ACKS_PER_FRAME_MAX + 1, 2),
        (2 * ACKS_PER_FRAME_MAX + 1, 3),
    ],
)
def test_runs_that_ask_for_no_answer_take_as_many_frames_as_they_need(
    count: int, frames: int
) -> None:
    runs = runs_of_length(count)
    got = read(ack_frames(7, runs))

    assert (len(got), [run for frame in got for run in runs_of(frame[3])]) == (frames, runs)


def test_runs_that_fill_a_frame_can_ask_for_an_answer() -> None:
    assert len(ack_frames(7, runs_of_length(ACKS_PER_FRAME_MAX), sequence=1)) == 1


def test_more_runs_than_a_frame_holds_cannot_ask_for_one_answer() -> None:
    runs = runs_of_length(ACKS_PER_FRAME_MAX + 1)

    with pytest.raises(BadRequestError, match=str(ACKS_PER_FRAME_MAX)):
        ack_frames(7, runs, sequence=1)
    with pytest.raises(BadRequestError, match=str(ACKS_PER_FRAME_MAX)):
        timed_ack_frames(7, [(*run, 0) for run in runs], opcode=Opcode.EXTEND, sequence=1)


def test_an_answer_is_one_frame_also_when_nothing_was_refused() -> None:
    [(opcode, channel, sequence, data)] = read(ack_frames(7, [], opcode=Opcode.ACKED, sequence=8))

    assert (opcode, channel, sequence, len(data)) == (Opcode.ACKED, 7, 8, 0)


def test_as_many_refused_runs_as_fit_are_named_one_by_one() -> None:
    refused = [(1, 2 * n, 2 * n + 1) for n in range(ACKS_PER_FRAME_MAX)]
    [frame] = read([acked_frame(7, 8, refused)])

    assert runs_of(frame[3]) == refused


def test_more_refused_runs_than_fit_are_joined_by_lease() -> None:
    refused = [(1 + n % 2, 2 * n, 2 * n + 1) for n in range(ACKS_PER_FRAME_MAX + 1)]
    [frame] = read([acked_frame(7, 8, refused)])

    last = 2 * ACKS_PER_FRAME_MAX
    assert runs_of(frame[3]) == [(1, 0, last + 1), (2, 2, last - 1)]
