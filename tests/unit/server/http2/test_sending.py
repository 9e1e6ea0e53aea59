"""What is sent: never beyond a window, every byte in order, and one end for each stream."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.server.http2.peer import (
    DATA,
    END_STREAM,
    HEADERS,
    RST_STREAM,
    Frame,
    parse_frames,
)

from ister.server.http2 import (
    ConnectionFailedError,
    ErrorCode,
    FrameQueue,
    Stream,
    StreamFailedError,
)

WINDOW = 65_535
FRAME_BYTES_MAX = 16_384
HEAD, TRAILERS = b"\x88", b"\x89"


class Sender:
    """An outbox, and what has come out of it."""

    def __init__(self, *, initial: int = WINDOW) -> None:
        self.streams: dict[int, Stream] = {}
        self.out = FrameQueue(self.streams)
        self.out.change_initial_window(initial)

    def open(self, stream_id: int, *, client_ended: bool = True) -> Stream:
        """Open a stream."""
        stream = Stream(stream_id, self.out.initial_window, client_ended=client_ended)
        self.streams[stream_id] = stream
        return stream

    def sent(self) -> list[Frame]:
        """Return the frames since the last look, after everything that can be sent now."""
        while self.out.can_send:
            self.out.send_some()
        return parse_frames(b"".join(self.out.take()))

    def data(self, stream_id: int | None = None) -> bytes:
        """Return the data since the last look."""
        wanted = [one for one in self.sent() if one.type == DATA]
        return b"".join(one.payload for one in wanted if stream_id in (None, one.stream_id))


def test_small_data_is_sent_at_once() -> None:
    sender = Sender()
    stream = sender.open(1)

    sender.out.send_headers(stream, HEAD)
    sender.out.send_data(stream, b"hello")

    assert sender.sent() == [Frame(HEADERS, 4, 1, HEAD), Frame(DATA, 0, 1, b"hello")]
    assert sender.out.pending_bytes == 0


def test_data_is_cut_into_frames_that_every_peer_accepts() -> None:
    sender = Sender()

    sender.out.send_data(sender.open(1), bytes(40_000))

    assert [len(one.payload) for one in sender.sent()] == [16_384, 16_384, 7_232]


def test_frames_grow_to_four_times_that_for_a_peer_that_accepts_them() -> None:
    sender = Sender()
    sender.out.offer_frames(2**24 - 1)

    sender.out.send_data(sender.open(1), bytes(WINDOW))

    assert [len(one.payload) for one in sender.sent()] == [WINDOW]


def test_data_stops_at_the_window_of_its_stream_and_goes_on_by_single_bytes() -> None:
    sender = Sender(initial=3)
    stream = sender.open(1)
    sender.out.send_data(stream, b"hello")
    assert sender.data() == b"hel"

    sender.out.grow_stream(stream, 1)
    assert sender.data() == b"l"
    assert not sender.out.drained
    sender.out.grow_stream(stream, 1)

    assert sender.data() == b"o"
    assert list(sender.out.drained) == [stream]


def test_window_of_the_connection_stops_all_streams() -> None:
    sender = Sender(initial=WINDOW * 2)
    first, second = sender.open(1), sender.open(3)
    sender.out.send_data(first, bytes(WINDOW))
    sender.sent()

    sender.out.send_data(second, b"hello")
    assert sender.data() == b""
    sender.out.grow_stream(second, 100)
    assert sender.data() == b""
    sender.out.grow(3)

    assert sender.data(3) == b"hel"


def test_stream_without_room_does_not_hold_up_others() -> None:
    sender = Sender(initial=2)
    first, second = sender.open(1), sender.open(3)
    sender.out.send_data(first, b"hello")
    sender.sent()

    sender.out.send_data(second, b"hi")
    sender.out.grow(100)

    assert sender.sent() == [Frame(DATA, 0, 3, b"hi")]


def test_streams_that_wait_for_the_connection_take_turns() -> None:
    sender = Sender(initial=2**20)
    sender.out.send_data(sender.open(1), bytes(WINDOW))
    streams = [sender.open(stream_id) for stream_id in (3, 5, 7)]
    for stream in streams:
        sender.out.send_data(stream, bytes(2 * FRAME_BYTES_MAX))
    sender.sent()

    sender.out.grow(6 * FRAME_BYTES_MAX)

    assert [one.stream_id for one in sender.sent()] == [3, 5, 7, 3, 5, 7]
    assert list(sender.out.drained) == streams


def test_larger_initial_window_sends_what_waited() -> None:
    sender = Sender(initial=0)
    stream = sender.open(1)
    sender.out.send_data(stream, b"hello")

    sender.out.change_initial_window(4)

    assert sender.data() == b"hell"


def test_smaller_initial_window_makes_a_window_negative_until_it_has_grown() -> None:
    sender = Sender(initial=10)
    stream = sender.open(1)
    sender.out.send_data(stream, bytes(8))
    sender.sent()

    sender.out.change_initial_window(5)
    assert stream.window == -3
    sender.out.send_data(stream, b"hello")
    sender.out.grow_stream(stream, 3)
    assert sender.data() == b""
    sender.out.grow_stream(stream, 1)

    assert sender.data() == b"h"


def test_initial_window_holds_for_later_streams() -> None:
    sender = Sender()
    sender.out.change_initial_window(7)

    assert sender.open(1).window == 7


def test_trailers_come_after_what_is_pending() -> None:
    sender = Sender(initial=3)
    stream = sender.open(1)
    sender.out.send_data(stream, b"hello")
    sender.out.send_trailers(stream, TRAILERS)
    assert [one.type for one in sender.sent()] == [DATA]

    sender.out.grow_stream(stream, 2)

    assert sender.sent() == [Frame(DATA, 0, 1, b"lo"), Frame(HEADERS, 5, 1, TRAILERS)]
    assert stream.ended
    assert sender.streams == {}


def test_request_that_is_answered_before_its_end_is_reset_without_an_error() -> None:
    sender = Sender()

    sender.out.send_trailers(sender.open(1, client_ended=False), TRAILERS)

    head, reset = sender.sent()
    assert (head.type, head.flags) == (HEADERS, 5)
    assert (reset.type, reset.code) == (RST_STREAM, ErrorCode.NO_ERROR)


def test_whole_response_that_does_not_fit_is_sent_in_parts() -> None:
    sender = Sender(initial=3)
    stream = sender.open(1)

    sender.out.send_whole(stream, HEAD, b"hello", TRAILERS)
    assert [one.type for one in sender.sent()] == [HEADERS, DATA]
    sender.out.grow_stream(stream, 9)

    assert [one.payload for one in sender.sent()] == [b"lo", TRAILERS]


def test_forgotten_stream_leaves_nothing_pending() -> None:
    sender = Sender(initial=2**20)
    stream = sender.open(1)
    sender.out.send_data(stream, bytes(WINDOW + 10))
    sender.sent()
    assert sender.out.pending_bytes == 10

    del sender.streams[1]
    sender.out.forget(stream)
    sender.out.grow(100)

    assert sender.out.pending_bytes == 0
    assert sender.sent() == []
    assert not sender.out.drained


def test_empty_data_behind_pending_data_does_not_keep_the_stream_open() -> None:
    sender = Sender()
    sender.out.send_data(sender.open(1), bytes(WINDOW))
    sender.out.change_initial_window(3)
    stream = sender.open(3)
    sender.out.send_data(stream, b"abc")
    sender.out.send_data(stream, b"")
    sender.out.send_trailers(stream, TRAILERS)

    sender.out.grow(3)
    sender.sent()

    assert stream.ended


@pytest.mark.parametrize(
    ("increment", "code"),
    [(0, ErrorCode.PROTOCOL_ERROR), (2**31 - WINDOW, ErrorCode.FLOW_CONTROL_ERROR)],
)
def test_wrong_increments_are_refused(increment: int, code: ErrorCode) -> None:
    sender = Sender()
    stream = sender.open(1)

    with pytest.raises(ConnectionFailedError) as of_all:
        sender.out.grow(increment)
    with pytest.raises(StreamFailedError) as of_one:
        sender.out.grow_stream(stream, increment)

    assert (of_all.value.code, of_one.value.code) == (code, code)


STREAM_IDS = (1, 3, 5)
# A byte that is lost or moved is seen.
PATTERN = bytes(range(251)) * 300
STEPS = st.one_of(
    st.tuples(
        st.just("send"),
        st.sampled_from(STREAM_IDS),
        st.sampled_from([0, 1, 2, 5, 16_383, 16_384, 16_385, 40_000, 70_000]),
    ),
    st.tuples(
        st.just("grow_stream"), st.sampled_from(STREAM_IDS), st.sampled_from([1, 2, 7, 20_000])
    ),
    st.tuples(st.just("grow"), st.just(0), st.sampled_from([1, 2, 7, 20_000, 100_000])),
    st.tuples(st.just("initial"), st.just(0), st.sampled_from([0, 1, 10, 20_000, WINDOW, 200_000])),
    st.tuples(st.just("frames"), st.just(0), st.sampled_from([16_384, 20_000, 2**24 - 1])),
    st.tuples(st.just("end"), st.sampled_from(STREAM_IDS), st.just(0)),
    st.tuples(st.just("whole"), st.sampled_from(STREAM_IDS), st.sampled_from([0, 5, 70_000])),
    st.tuples(st.just("reset"), st.sampled_from(STREAM_IDS), st.just(0)),
)


class Model:
    """A peer that checks what it is sent against its own count of the windows."""

    def __init__(self) -> None:
        self.sender = Sender()
        self.live = {stream_id: self.sender.open(stream_id) for stream_id in STREAM_IDS}
        self.window, self.initial, self.frame_bytes_max = WINDOW, WINDOW, FRAME_BYTES_MAX
        self.windows = dict.fromkeys(STREAM_IDS, WINDOW)
        self.given = {stream_id: bytearray() for stream_id in STREAM_IDS}
        self.got = {stream_id: bytearray() for stream_id in STREAM_IDS}
        self.ends: list[int] = []
        self.begun: set[int] = set()
        # Streams whose response was ended by the server, and those that were reset.
        self.ended: set[int] = set()
        self.gone: set[int] = set()

    def step(self, kind: str, stream_id: int, number: int) -> None:
        out = self.sender.out
        open_ = stream_id not in self.ended | self.gone
        stream = self.live.get(stream_id)
        match kind:
            case "grow":
                self.window += number
                out.grow(number)
            case "initial":
                for one in STREAM_IDS:
                    self.windows[one] += number - self.initial
                self.initial = number
                out.change_initial_window(number)
            case "frames":
                self.frame_bytes_max = number
                out.offer_frames(number)
            case "grow_stream" if stream_id in self.sender.streams:
                assert stream is not None
                self.windows[stream_id] += number
                out.grow_stream(stream, number)
            case "reset" if stream_id in self.sender.streams:
                assert stream is not None
                self.gone.add(stream_id)
                del self.sender.streams[stream_id]
                out.forget(stream)
            case "send" | "end" | "whole" if open_ and stream is not None:
                self._send(kind, stream, number)

    def _send(self, kind: str, stream: Stream, number: int) -> None:
        out, given = self.sender.out, self.given[stream.id]
        if kind == "whole" and stream.id in self.begun:
            return
        self.begun.add(stream.id)
        data = PATTERN[len(given) % 251 :][:number]
        given += data
        if kind == "send":
            out.send_data(stream, data)
            return
        self.ended.add(stream.id)
        if kind == "whole":
            out.send_whole(stream, HEAD, data, TRAILERS)
        else:
            out.send_trailers(stream, TRAILERS)

    def check(self) -> None:
        """Receive what was sent."""
        for one in self.sender.sent():
            assert one.stream_id not in self.ends, "a frame came after the end of its stream"
            if one.type == DATA:
                size_bytes = len(one.payload)
                assert size_bytes <= self.frame_bytes_max
                self.window -= size_bytes
                self.windows[one.stream_id] -= size_bytes
                # An empty frame may be sent in any case.
                assert not size_bytes or min(self.window, self.windows[one.stream_id]) >= 0
                self.got[one.stream_id] += one.payload
            if one.flags & END_STREAM:
                self.ends.append(one.stream_id)
        for stream_id in STREAM_IDS:
            assert self.given[stream_id].startswith(self.got[stream_id])
            if stream_id not in self.gone:
                missing = len(self.given[stream_id]) - len(self.got[stream_id])
                assert self.live[stream_id].pending_bytes == missing
                room = min(self.window, self.windows[stream_id])
                assert not (missing and room > 0), "there was room, and nothing was sent"
        pending = sum(stream.pending_bytes for stream in self.live.values())
        assert self.sender.out.pending_bytes == pending


@given(st.lists(STEPS, max_size=40))
def test_no_interleaving_breaks_a_window_or_loses_a_byte(steps: list[tuple[str, int, int]]) -> None:
    model = Model()
    for step in steps:
        model.step(*step)
        model.check()

    for stream_id in STREAM_IDS:
        model.step("end", stream_id, 0)
    model.step("initial", 0, 2**20)
    model.step("grow", 0, 2**22)
    for stream_id in STREAM_IDS:
        model.step("grow_stream", stream_id, 2**22)
    model.check()

    assert sorted(model.ends) == sorted(set(STREAM_IDS) - model.gone)
    for stream_id in model.ends:
        assert model.got[stream_id] == model.given[stream_id]


@given(st.integers(1, 40_000))
def test_streams_share_a_small_window_evenly(increment: int) -> None:
    sender = Sender(initial=2**20)
    sender.out.send_data(sender.open(1), bytes(WINDOW))
    for stream_id in (3, 5, 7):
        sender.out.send_data(sender.open(stream_id), bytes(200_000))
    sender.sent()

    order: list[int] = []
    for _ in range(6):
        sender.out.grow(increment)
        order += [one.stream_id for one in sender.sent()]

    assert all(after == {3: 5, 5: 7, 7: 3}[before] for before, after in pairwise(order))
