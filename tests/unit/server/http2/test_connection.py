"""What the server's end of HTTP/2 accepts and refuses, rule by rule of RFC 9113, as h2spec does."""

import re
from pathlib import Path

import pytest
from tests.unit.server.http2 import peer as http2
from tests.unit.server.http2.peer import (
    ACK,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    GRPC,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Peer,
    body_of,
    encode,
    fails,
    fails_stream,
    frame,
)

import ister
from ister.server.http2 import (
    ErrorCode,
    Http2Limits,
    RequestReceived,
    StreamFailedError,
    StreamReset,
)

FRAME_BYTES_MAX = 16_384
BLOCK = encode(GRPC)


# The preface


def test_server_sends_its_settings_and_the_window_of_the_connection_first() -> None:
    first, second = Peer().sent()

    assert (first.type, first.flags, first.stream_id) == (SETTINGS, 0, 0)
    assert (second.type, second.stream_id) == (WINDOW_UPDATE, 0)


def test_settings_of_the_client_are_acknowledged_and_open_the_connection() -> None:
    peer = Peer()
    peer.sent()
    peer.send(PREFACE)
    before = peer.connection.is_open

    peer.send(http2.settings())

    assert (before, peer.connection.is_open) == (False, True)
    assert [(one.type, one.flags, one.payload) for one in peer.sent()] == [(SETTINGS, ACK, b"")]


def test_preface_may_come_byte_by_byte() -> None:
    peer = Peer()
    for byte in PREFACE + http2.settings():
        peer.send(bytes((byte,)))

    assert peer.connection.is_open


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"X", PREFACE[:-1] + b"X", b"\x16\x03"])
def test_wrong_preface_ends_the_connection(start: bytes) -> None:
    fails(Peer(), ErrorCode.PROTOCOL_ERROR, start)


@pytest.mark.parametrize(
    "first",
    [
        frame(PING, payload=bytes(8)),
        http2.headers(1, BLOCK),
        http2.data(1),
        http2.window_update(0, 1),
        frame(99),
    ],
)
def test_settings_must_follow_the_preface(first: bytes) -> None:
    fails(Peer(), ErrorCode.PROTOCOL_ERROR, PREFACE, first)


def test_nothing_is_received_after_the_connection_failed() -> None:
    peer = Peer().open()
    fails(peer, ErrorCode.PROTOCOL_ERROR, http2.data(1))

    assert peer.send(http2.headers(1, BLOCK)) == []
    assert peer.sent() == []


# Frames


def test_frame_of_the_largest_size_is_accepted() -> None:
    peer = Peer().open()
    peer.request(ended=False)

    assert len(body_of(peer.send(http2.data(1, bytes(FRAME_BYTES_MAX))))) == FRAME_BYTES_MAX


def test_larger_frame_is_refused_as_soon_as_its_header_is_there() -> None:
    peer = Peer().open()

    fails(peer, ErrorCode.FRAME_SIZE_ERROR, http2.data(1, bytes(FRAME_BYTES_MAX + 1))[:9])


def test_unknown_frames_are_ignored() -> None:
    peer = Peer().open()

    assert peer.send(frame(0x42, 0xFF, 7, b"anything"), frame(0xFF)) == []
    assert peer.sent() == []


def test_unknown_flags_and_the_reserved_bit_are_ignored() -> None:
    peer = Peer().open()

    (event,) = peer.send(frame(HEADERS, END_HEADERS | END_STREAM | 0xC2, 0x8000_0001, BLOCK))

    assert isinstance(event, RequestReceived)
    assert event.stream.id == 1


# SETTINGS


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (http2.settings(stream_id=1), ErrorCode.PROTOCOL_ERROR),
        (frame(SETTINGS, ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (http2.settings((http2.ENABLE_PUSH, 2)), ErrorCode.PROTOCOL_ERROR),
        (http2.settings((INITIAL_WINDOW_SIZE, 2**31)), ErrorCode.FLOW_CONTROL_ERROR),
        (http2.settings((MAX_FRAME_SIZE, FRAME_BYTES_MAX - 1)), ErrorCode.PROTOCOL_ERROR),
        (http2.settings((MAX_FRAME_SIZE, 2**24)), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_wrong_settings_end_the_connection(wrong: bytes, code: ErrorCode) -> None:
    fails(Peer().open(), code, wrong)


def test_settings_at_their_bounds_are_accepted() -> None:
    peer = Peer().open(
        (http2.ENABLE_PUSH, 1),
        (INITIAL_WINDOW_SIZE, 2**31 - 1),
        (MAX_FRAME_SIZE, 2**24 - 1),
        (http2.HEADER_TABLE_SIZE, 0),
        (http2.MAX_HEADER_LIST_SIZE, 2**32 - 1),
        (http2.MAX_CONCURRENT_STREAMS, 0),
        (0xABCD, 7),
    )

    peer.send(http2.settings((MAX_FRAME_SIZE, FRAME_BYTES_MAX)))

    assert peer.connection.is_open


def test_acknowledged_settings_are_not_acknowledged_again() -> None:
    peer = Peer().open()

    peer.send(http2.settings(flags=ACK))

    assert peer.sent() == []


# PING and GOAWAY


def test_ping_is_answered_with_its_own_bytes() -> None:
    peer = Peer().open()

    peer.send(frame(PING, payload=b"12345678"))

    assert [tuple(one) for one in peer.sent()] == [(PING, ACK, 0, b"12345678")]


def test_answer_to_our_ping_is_noticed() -> None:
    peer = Peer().open()
    peer.connection.ping()
    (ping,) = peer.sent(PING)
    before = peer.connection.pinged

    peer.send(frame(PING, ACK, 0, ping.payload))

    assert (before, peer.connection.pinged) == (True, False)
    assert peer.sent() == []


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (frame(PING, payload=bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(PING, payload=bytes(9)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(GOAWAY, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(PUSH_PROMISE, END_HEADERS, 1, bytes(4) + BLOCK), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_wrong_ping_go_away_or_push_ends_the_connection(wrong: bytes, code: ErrorCode) -> None:
    fails(Peer().open(), code, wrong)


def test_client_that_goes_away_still_gets_its_answers() -> None:
    peer = Peer().open()
    stream = peer.request().stream

    assert peer.send(http2.go_away()) == []
    peer.connection.out.send_trailers(stream, b"\x88")

    assert [one.type for one in peer.sent()] == [HEADERS]


def test_streams_after_our_go_away_are_refused_and_earlier_ones_go_on() -> None:
    peer = Peer().open()
    peer.request(1, ended=False)
    peer.connection.go_away("bye")
    (away,) = peer.sent()
    assert (away.type, away.payload) == (GOAWAY, bytes((0, 0, 0, 1)) + bytes(4) + b"bye")

    events = peer.send(
        http2.headers(3, BLOCK, END_HEADERS),
        http2.data(3, b"x", END_STREAM),
        http2.data(1, b"y", END_STREAM),
    )

    assert body_of(events) == b"y"
    (refused,) = peer.sent()
    assert (refused.type, refused.stream_id) == (RST_STREAM, 3)
    assert refused.code == ErrorCode.REFUSED_STREAM


# Streams that are idle


@pytest.mark.parametrize(
    "wrong",
    [
        http2.data(1, b"x"),
        http2.reset(1),
        http2.window_update(1, 1),
        http2.continuation(1, BLOCK),
        http2.data(2, b"x"),
        http2.reset(2),
        http2.window_update(2, 1),
    ],
)
def test_frame_of_an_idle_stream_ends_the_connection(wrong: bytes) -> None:
    fails(Peer().open(), ErrorCode.PROTOCOL_ERROR, wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        http2.data(0, b"x"),
        http2.headers(0, BLOCK),
        http2.reset(0),
        http2.continuation(0, BLOCK),
        frame(PRIORITY, 0, 0, http2.priority(1)),
    ],
)
def test_frame_that_needs_a_stream_and_has_none_ends_the_connection(wrong: bytes) -> None:
    fails(Peer().open(), ErrorCode.PROTOCOL_ERROR, wrong)


def test_even_stream_ends_the_connection() -> None:
    fails(Peer().open(), ErrorCode.PROTOCOL_ERROR, http2.headers(2, BLOCK))


def test_request_on_an_earlier_stream_ends_the_connection() -> None:
    peer = Peer().open()
    peer.request(5)

    fails(peer, ErrorCode.STREAM_CLOSED, http2.headers(3, BLOCK))


# Streams that are half-closed


def test_data_after_the_end_of_a_request_ends_the_stream() -> None:
    peer = Peer().open()
    peer.request()

    fails_stream(peer, 1, ErrorCode.STREAM_CLOSED, http2.data(1, b"x"))


def test_headers_after_the_end_of_a_request_end_the_stream() -> None:
    peer = Peer().open()
    peer.request()

    fails_stream(peer, 1, ErrorCode.STREAM_CLOSED, http2.headers(1, BLOCK))


def test_window_updates_and_resets_are_accepted_after_the_end_of_a_request() -> None:
    peer = Peer().open()
    stream = peer.request().stream

    events = peer.send(http2.window_update(1, 5), http2.reset(1))

    assert events == [StreamReset(stream)]


# Streams that are closed


def test_frames_of_a_stream_that_is_over_are_ignored() -> None:
    peer = Peer().open()
    peer.request(1, ended=False)
    peer.connection.reset(1, ErrorCode.CANCEL)
    peer.sent()

    # They may have been on their way: RFC 9113, 5.1, "closed".
    late = (
        http2.data(1, b"x"),
        http2.window_update(1, 1),
        http2.reset(1),
        http2.headers(1, encode([(b"x-sum", b"1")])),
        frame(PRIORITY, 0, 1, http2.priority(3)),
    )

    assert peer.send(*late) == []
    assert peer.sent() == []


def test_request_on_a_closed_stream_ends_the_connection() -> None:
    peer = Peer().open()
    peer.request(1)
    peer.send(http2.reset(1))

    fails(peer, ErrorCode.STREAM_CLOSED, http2.headers(1, BLOCK))


def test_reset_gives_up_a_stream_once() -> None:
    peer = Peer().open()
    stream = peer.request(1, ended=False).stream

    assert peer.send(http2.reset(1), http2.reset(1)) == [StreamReset(stream)]
    assert peer.connection.streams == {}
    assert peer.sent() == []


@pytest.mark.parametrize("size_bytes", [0, 3, 5])
def test_reset_of_another_size_ends_the_connection(size_bytes: int) -> None:
    peer = Peer().open()
    peer.request()

    fails(peer, ErrorCode.FRAME_SIZE_ERROR, frame(RST_STREAM, 0, 1, bytes(size_bytes)))


def test_streams_beyond_the_limit_are_refused_until_one_ends() -> None:
    peer = Peer(Http2Limits(streams_max=2)).open()
    peer.request(1)
    peer.request(3)

    with pytest.raises(StreamFailedError) as raised:
        peer.request(5)
    peer.send(http2.reset(1))
    peer.request(7)

    assert raised.value.code == ErrorCode.REFUSED_STREAM
    assert sorted(peer.connection.streams) == [3, 7]


# Flow control


def test_client_gets_credit_for_half_a_window_at_a_time() -> None:
    peer = Peer(Http2Limits(stream_window_bytes=100, window_bytes=70_000)).open()
    peer.request(ended=False)
    peer.send(http2.data(1, bytes(49)))
    assert peer.sent() == []

    peer.send(http2.data(1, b"x"))

    assert [tuple(one) for one in peer.sent()] == [(WINDOW_UPDATE, 0, 1, bytes((0, 0, 0, 50)))]


def test_connection_gets_credit_even_for_data_that_is_dropped() -> None:
    peer = Peer(Http2Limits(stream_window_bytes=100, window_bytes=70_000)).open()
    peer.request(ended=False)
    peer.send(http2.reset(1))

    for _ in range(35):
        peer.send(http2.data(1, bytes(1_000)))

    assert [one.stream_id for one in peer.sent(WINDOW_UPDATE)] == [0]


def test_data_beyond_the_window_of_a_stream_ends_it() -> None:
    peer = Peer(Http2Limits(stream_window_bytes=100, window_bytes=70_000)).open()
    peer.request(ended=False)

    fails_stream(peer, 1, ErrorCode.FLOW_CONTROL_ERROR, http2.data(1, bytes(101)))


def test_padding_counts_in_the_window() -> None:
    peer = Peer(Http2Limits(stream_window_bytes=100, window_bytes=70_000)).open()
    peer.request(ended=False)

    late = http2.data(1, http2.padded(b"", 100), PADDED)
    fails_stream(peer, 1, ErrorCode.FLOW_CONTROL_ERROR, late)


def test_zero_increment_ends_the_stream() -> None:
    peer = Peer().open()
    peer.request()

    fails_stream(peer, 1, ErrorCode.PROTOCOL_ERROR, http2.window_update(1, 0))


def test_zero_increment_of_the_connection_ends_it() -> None:
    fails(Peer().open(), ErrorCode.PROTOCOL_ERROR, http2.window_update(0, 0))


@pytest.mark.parametrize("size_bytes", [0, 3, 5])
def test_window_update_of_another_size_ends_the_connection(size_bytes: int) -> None:
    wrong = frame(WINDOW_UPDATE, 0, 0, bytes(size_bytes))

    fails(Peer().open(), ErrorCode.FRAME_SIZE_ERROR, wrong)


def test_window_of_a_stream_may_not_overflow() -> None:
    peer = Peer().open()
    peer.request()
    peer.send(http2.window_update(1, 2**31 - 1 - 65_535))

    fails_stream(peer, 1, ErrorCode.FLOW_CONTROL_ERROR, http2.window_update(1, 1))


def test_window_of_the_connection_may_not_overflow() -> None:
    peer = Peer().open()
    peer.send(http2.window_update(0, 2**31 - 1 - 65_535))

    fails(peer, ErrorCode.FLOW_CONTROL_ERROR, http2.window_update(0, 1))


def test_new_initial_window_may_not_make_a_stream_overflow() -> None:
    peer = Peer().open()
    peer.request()
    peer.send(http2.window_update(1, 2**31 - 1 - 65_535))

    fails(peer, ErrorCode.FLOW_CONTROL_ERROR, http2.settings((INITIAL_WINDOW_SIZE, 65_536)))


def test_empty_data_frames_are_harmless() -> None:
    peer = Peer().open()
    peer.request(ended=False)

    events = peer.send(*[http2.data(1)] * 100, http2.data(1, b"", END_STREAM))

    assert body_of(events) == b""
    assert peer.sent() == []


def test_broker_needs_no_other_http2_library() -> None:
    other = re.compile(r"^\s*(?:import|from) (?:h2|hyperframe|jh2|grpc)\b", re.MULTILINE)
    source = Path(ister.__file__).parent

    found = [path for path in source.rglob("*.py") if other.search(path.read_text("utf-8"))]

    assert found == []
