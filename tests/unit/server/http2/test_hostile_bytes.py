"""Whatever bytes come: two kinds of errors, bounded memory, progress, and no matter how cut."""

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.server.http2 import peer as http2
from tests.unit.server.http2.peer import (
    END_HEADERS,
    END_STREAM,
    GRPC,
    PREFACE,
    encode,
    frame,
    replace,
)

from ister.server.http2 import (
    ConnectionFailedError,
    Event,
    Http2Connection,
    Http2Limits,
    RequestReceived,
    StreamFailedError,
)
from ister.server.http2.headers import BLOCK_BYTES_MAX

LIMITS = Http2Limits(
    streams_max=4, stream_window_bytes=1_000, window_bytes=70_000, continuations_max=3
)
# A frame that is not complete.
HELD_BYTES_MAX = 9 + 16_384

STREAM_IDS = st.sampled_from([0, 1, 1, 3, 3, 5, 7, 9, 11, 2, 2**31 - 1])
FLAGS = st.sampled_from([0, END_STREAM, END_HEADERS, END_HEADERS | END_STREAM]) | st.integers(
    0, 255
)
NUMBERS = st.sampled_from([0, 1, 5, 100, 65_535, 2**31 - 1, 2**31, 2**32 - 1])
BLOCKS = st.sampled_from(
    [
        encode(GRPC),
        encode(replace(GRPC, path=b"")),
        encode([(b"x-sum", b"1")]),
        encode([*GRPC, (b"Upper", b"x")]),
        # Into the table, and out of it.
        b"\x83\x86\x44\x02/a",
        b"\x83\x86\xbe",
        b"\x20",
        b"\xff\xff",
        b"",
    ]
)
PAYLOADS = st.sampled_from([b"", b"x", bytes(500), bytes(1_001), b"\xff"]) | st.binary(max_size=12)
FRAMES = st.one_of(
    st.builds(http2.headers, STREAM_IDS, BLOCKS),
    st.builds(http2.headers, STREAM_IDS, BLOCKS, FLAGS),
    st.builds(http2.continuation, STREAM_IDS, BLOCKS, FLAGS),
    st.builds(http2.data, STREAM_IDS, PAYLOADS, FLAGS),
    st.builds(http2.reset, STREAM_IDS, NUMBERS),
    st.builds(http2.window_update, STREAM_IDS, NUMBERS),
    st.lists(st.tuples(st.integers(0, 7), NUMBERS), max_size=3).map(lambda p: http2.settings(*p)),
    st.builds(frame, st.integers(0, 10), FLAGS, STREAM_IDS, PAYLOADS),
)
HELLO = PREFACE + http2.settings()
# What an honest client says: requests, one after another, with a few other frames between.
HONEST = st.lists(
    st.one_of(
        st.sampled_from([http2.window_update(0, 50), frame(http2.PING, payload=bytes(8))]),
        st.sampled_from([http2.settings((4, 0)), http2.settings((4, 200)), http2.settings((1, 0))]),
        st.just(b""),
    ),
    min_size=1,
    max_size=8,
).map(
    lambda between: b"".join(
        http2.headers(2 * place + 1, encode(GRPC), END_HEADERS)
        + http2.data(2 * place + 1, b"body" * place, END_STREAM)
        + other
        for place, other in enumerate(between)
    )
)
DIALOGUES = st.one_of(
    st.lists(FRAMES, max_size=25).map(lambda frames: HELLO + b"".join(frames)),
    HONEST.map(lambda said: HELLO + said),
    st.binary(max_size=60),
    st.binary(max_size=60).map(lambda said: HELLO + said),
)
MUTATIONS = st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 255)), max_size=4)


@st.composite
def dialogues(draw: st.DrawFn) -> bytes:
    """Return a dialogue with a few bytes that are others than they should be."""
    said = bytearray(draw(DIALOGUES))
    for place, byte in draw(MUTATIONS):
        if place < len(said):
            said[place] = byte
    return bytes(said)


@dataclass
class Heard:
    """What came of a dialogue."""

    events: list[str] = field(default_factory=list)
    sent: bytes = b""
    failed: bool = False


class Listener:
    """A connection that checks its own bounds at every step, and answers some requests."""

    def __init__(self) -> None:
        self.connection = Http2Connection(LIMITS)
        self.heard = Heard()
        self._received_bytes = 0

    def receive(self, data: bytes) -> None:
        """Act on bytes."""
        if self.heard.failed:
            return
        connection, heard = self.connection, self.heard
        self._received_bytes += len(data)
        connection.receive(data)
        while connection.has_next():
            before = self._left()
            try:
                event = connection.next_event()
            except StreamFailedError as error:
                heard.events.append(f"{error!r}")
                gone = error.stream_id
                assert gone not in connection.streams
            except ConnectionFailedError as error:
                heard.events.append(f"{error!r}")
                heard.failed = True
                assert connection.is_closed
                break
            else:
                self._on_event(event)
            assert self._left() < before or connection.out.drained, "nothing was done"
        heard.sent += b"".join(connection.outgoing())
        self._check()

    def _left(self) -> int:
        connection = self.connection
        left = len(connection._buffer) - connection._position
        # A stream that is taken from those that have drained is progress, too.
        return left * 100 + len(connection.out.drained)

    def _on_event(self, event: Event | None) -> None:
        if event is None:
            return
        self.heard.events.append(f"{type(event).__name__} {_tell(event)}")
        if isinstance(event, RequestReceived) and event.stream.id % 4 == 1:
            self.connection.out.send_whole(event.stream, b"\x88", bytes(150), b"\x89")

    def _check(self) -> None:
        connection = self.connection
        assert len(connection._buffer) - connection._position <= HELD_BYTES_MAX
        assert len(connection.streams) <= LIMITS.streams_max
        # The first words, a GOAWAY, and for an empty frame of 9 B at most a reset of 13 B; and the
        # answers above.
        answers = self.heard.sent.count(bytes(150)) * 200
        assert len(self.heard.sent) <= 400 + 2 * self._received_bytes + answers
        out = connection.out
        assert out.pending_bytes == sum(s.pending_bytes for s in connection.streams.values())


def _tell(event: Event) -> str:
    parts = [str(event.stream.id), str(event.stream.client_ended)]
    parts += [repr(getattr(event, name)) for name in ("data", "head") if hasattr(event, name)]
    return " ".join(parts)


@given(dialogues())
def test_any_bytes_end_in_events_or_in_one_of_two_errors(said: bytes) -> None:
    listener = Listener()

    listener.receive(said)

    if listener.heard.failed:
        assert http2.parse_frames(listener.heard.sent)[-1].type == http2.GOAWAY


@given(dialogues(), st.lists(st.integers(0, 3_000), max_size=12))
def test_dialogue_means_the_same_however_it_is_cut(said: bytes, cuts: list[int]) -> None:
    whole, cut = Listener(), Listener()
    places = [0, *sorted(place for place in cuts if place < len(said)), len(said)]

    whole.receive(said)
    for start, end in pairwise(places):
        cut.receive(said[start:end])

    assert cut.heard == whole.heard


@given(HONEST)
def test_honest_dialogue_means_the_same_byte_by_byte(said: bytes) -> None:
    whole, cut = Listener(), Listener()

    whole.receive(HELLO + said)
    for byte in HELLO + said:
        cut.receive(bytes((byte,)))

    assert cut.heard == whole.heard
    assert not whole.heard.failed


def test_pieces_of_a_header_block_are_held_within_their_limit() -> None:
    connection = Http2Connection(Http2Limits(continuations_max=3))
    connection.receive(HELLO + http2.headers(1, bytes(16_384), 0))
    connection.receive(http2.continuation(1, bytes(8_192), 0))
    while connection.has_next():
        connection.next_event()

    assert connection._block is not None
    assert sum(map(len, connection._block[2])) == BLOCK_BYTES_MAX
