"""Requests: how headers are cut, padded and prioritized, and what they must and must not say."""

import pytest
from tests.unit.server.http2 import peer as http2
from tests.unit.server.http2.peer import (
    END_HEADERS,
    END_STREAM,
    GRPC,
    PADDED,
    PING,
    PRIORITIZED,
    PRIORITY,
    RST_STREAM,
    Peer,
    body_of,
    encode,
    fails,
    fails_stream,
    frame,
)

from ister.server.http2 import DataReceived, ErrorCode, Http2Limits, RequestReceived

FRAME_BYTES_MAX = 16_384
BLOCK = encode(GRPC)


# The length that a request says it has


def stating(*lengths: bytes) -> bytes:
    """Return the headers of a request with these content lengths."""
    return encode([*GRPC, *((b"content-length", length) for length in lengths)])


@pytest.mark.parametrize("parts", [[b"body"], [b"bo", b"", b"dy"], [b"body", b""]])
def test_a_body_as_long_as_stated_is_taken(parts: list[bytes]) -> None:
    peer = Peer().open()
    peer.send(http2.headers(1, stating(b"4"), END_HEADERS))
    frames = [http2.data(1, part) for part in parts[:-1]]

    events = peer.send(*frames, http2.data(1, parts[-1], END_STREAM))

    assert body_of(events) == b"body"


def test_padding_is_no_part_of_the_stated_length() -> None:
    peer = Peer().open()
    peer.send(http2.headers(1, stating(b"4"), END_HEADERS))

    events = peer.send(http2.data(1, http2.padded(b"body", 9), PADDED | END_STREAM))

    assert body_of(events) == b"body"


@pytest.mark.parametrize(
    "frames",
    [
        [http2.data(1, b"bod", END_STREAM)],
        [http2.data(1, b"bod"), http2.data(1, b"", END_STREAM)],
        [http2.data(1, b"bod"), http2.headers(1, encode([(b"x", b"y")]))],
        [http2.data(1, b"bodyx", END_STREAM)],
        [http2.data(1, b"body"), http2.data(1, b"x")],
    ],
)
def test_a_body_of_another_length_than_stated_breaks_the_stream(frames: list[bytes]) -> None:
    peer = Peer().open()
    peer.send(http2.headers(1, stating(b"4"), END_HEADERS))
    if len(frames) > 1:
        peer.send(frames[0])

    fails_stream(peer, 1, ErrorCode.PROTOCOL_ERROR, frames[-1])


def test_headers_that_end_a_request_have_no_length_but_zero() -> None:
    peer = Peer().open()
    (request,) = peer.send(http2.headers(1, stating(b"0"), END_HEADERS | END_STREAM))

    assert isinstance(request, RequestReceived)
    fails_stream(
        peer,
        3,
        ErrorCode.PROTOCOL_ERROR,
        http2.headers(3, stating(b"4"), END_HEADERS | END_STREAM),
    )


@pytest.mark.parametrize(
    "lengths",
    [[b""], [b"-1"], [b"+4"], [b"4 "], [b"four"], [b"9" * 100], [b"4", b"5"], [b"4,4"]],
)
def test_a_stated_length_that_is_no_number_breaks_the_stream(lengths: list[bytes]) -> None:
    wrong = http2.headers(1, stating(*lengths), END_HEADERS)

    fails_stream(Peer().open(), 1, ErrorCode.PROTOCOL_ERROR, wrong)


# Padding and priority


def test_padding_is_taken_off() -> None:
    peer = Peer().open()
    flags = END_HEADERS | PADDED
    (request,) = peer.send(http2.headers(1, http2.padded(BLOCK, 9), flags))
    events = peer.send(http2.data(1, http2.padded(b"body", 255), PADDED | END_STREAM))

    assert isinstance(request, RequestReceived)
    assert request.head.mistake == ""
    assert body_of(events) == b"body"


def test_padding_may_be_all_there_is() -> None:
    peer = Peer().open()
    peer.request(ended=False)

    assert body_of(peer.send(http2.data(1, b"\x03\0\0\0", PADDED))) == b""


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x04\0\0\0"])
def test_more_padding_than_frame_ends_the_connection(payload: bytes) -> None:
    peer = Peer().open()
    peer.request(ended=False)

    fails(peer, ErrorCode.PROTOCOL_ERROR, http2.data(1, payload, PADDED))


def test_more_padding_than_headers_ends_the_connection() -> None:
    wrong = http2.headers(1, b"\xff" + BLOCK, END_HEADERS | PADDED)

    fails(Peer().open(), ErrorCode.PROTOCOL_ERROR, wrong)


def test_priorities_change_nothing_even_of_streams_that_are_not_there() -> None:
    peer = Peer().open()

    events = peer.send(
        frame(PRIORITY, 0, 1, http2.priority(0)),
        frame(PRIORITY, 0, 8, http2.priority(9)),
        http2.headers(1, http2.priority(0x8000_0000) + BLOCK, END_HEADERS | PRIORITIZED),
    )

    assert [type(event) for event in events] == [RequestReceived]
    assert peer.sent() == []


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (
            http2.headers(1, http2.priority(1) + BLOCK, END_HEADERS | PRIORITIZED),
            ErrorCode.PROTOCOL_ERROR,
        ),
        (http2.headers(1, bytes(4), END_HEADERS | PRIORITIZED), ErrorCode.FRAME_SIZE_ERROR),
        # A stream that is idle cannot be reset, so these end the connection.
        (frame(PRIORITY, 0, 1, http2.priority(1)), ErrorCode.PROTOCOL_ERROR),
        (frame(PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_wrong_priority_ends_the_connection(wrong: bytes, code: ErrorCode) -> None:
    fails(Peer().open(), code, wrong)


# CONTINUATION


def test_headers_may_come_in_pieces() -> None:
    peer = Peer().open()

    (event,) = peer.send(
        http2.headers(1, BLOCK[:7], END_STREAM),
        http2.continuation(1, b"", 0),
        http2.continuation(1, BLOCK[7:9], 0),
        http2.continuation(1, BLOCK[9:]),
    )

    assert isinstance(event, RequestReceived)
    assert event.head.path == dict(GRPC)[b":path"]
    assert event.stream.client_ended


@pytest.mark.parametrize(
    "between",
    [
        http2.data(1, b"x"),
        http2.headers(3, BLOCK),
        http2.continuation(3, BLOCK),
        http2.settings(),
        frame(PING, payload=bytes(8)),
        frame(0x42),
    ],
)
def test_frame_between_pieces_of_headers_ends_the_connection(between: bytes) -> None:
    peer = Peer().open()

    fails(peer, ErrorCode.PROTOCOL_ERROR, http2.headers(1, BLOCK[:7], 0), between)


def test_continuation_after_the_end_of_headers_ends_the_connection() -> None:
    peer = Peer().open()
    peer.request()

    fails(peer, ErrorCode.PROTOCOL_ERROR, http2.continuation(1, BLOCK))


def test_flood_of_continuations_ends_the_connection() -> None:
    peer = Peer(Http2Limits(continuations_max=3)).open()
    piece = http2.continuation(1, b"", 0)
    peer.send(http2.headers(1, b"", 0), piece, piece)

    fails(peer, ErrorCode.ENHANCE_YOUR_CALM, piece)


def test_headers_of_too_many_bytes_end_the_connection() -> None:
    peer = Peer().open()
    piece = bytes(FRAME_BYTES_MAX)
    peer.send(http2.headers(1, piece, 0), http2.continuation(1, piece[: len(piece) // 2], 0))

    fails(peer, ErrorCode.ENHANCE_YOUR_CALM, http2.continuation(1, b"x", 0))


# Headers of requests


def refuses(fields: http2.Fields) -> None:
    """Assert that a request is malformed, which ends its stream."""
    peer = Peer().open()
    fails_stream(peer, 1, ErrorCode.PROTOCOL_ERROR, http2.headers(1, encode(fields)))


@pytest.mark.parametrize(
    "added",
    [
        (b"Upper", b"x"),
        (b"", b"x"),
        (b"with space", b"x"),
        (b"non-ascii-\xe9", b"x"),
        (b"co:lon", b"x"),
        (b"null", b"a\0b"),
        (b"lines", b"a\r\nb"),
        (b"connection", b"close"),
        (b"keep-alive", b"5"),
        (b"proxy-connection", b"close"),
        (b"transfer-encoding", b"chunked"),
        (b"upgrade", b"h2c"),
        (b"te", b"gzip"),
        (b":unknown", b"x"),
        (b":status", b"200"),
        (b":path", b"/late"),
    ],
)
def test_malformed_header_ends_the_stream(added: tuple[bytes, bytes]) -> None:
    refuses([*GRPC, added])


@pytest.mark.parametrize("name", [b":method", b":scheme", b":path"])
def test_missing_pseudo_header_ends_the_stream(name: bytes) -> None:
    refuses([field for field in GRPC if field[0] != name])


@pytest.mark.parametrize("name", [b":method", b":scheme", b":path", b":authority"])
def test_repeated_pseudo_header_ends_the_stream(name: bytes) -> None:
    refuses([(name, dict(GRPC)[name]), *GRPC])


def test_empty_path_ends_the_stream() -> None:
    refuses(http2.replace(GRPC, path=b""))


def test_pseudo_header_behind_others_ends_the_stream() -> None:
    refuses([(b"first", b"x"), *GRPC])


def test_line_end_in_a_pseudo_header_ends_the_stream() -> None:
    refuses(http2.replace(GRPC, path=b"/a\nb"))


def test_authority_may_be_missing() -> None:
    peer = Peer().open()
    fields = [field for field in GRPC if field[0] != b":authority"]

    (event,) = peer.send(http2.headers(1, encode(fields)))

    assert isinstance(event, RequestReceived)


def test_block_that_cannot_be_decoded_ends_the_connection() -> None:
    # An entry of the dynamic table, which is empty.
    fails(Peer().open(), ErrorCode.COMPRESSION_ERROR, http2.headers(1, b"\xbe"))


def test_headers_of_refused_streams_change_the_table_all_the_same() -> None:
    peer = Peer().open()
    peer.connection.go_away()
    with_table = encode(GRPC, peer.encoder)
    peer.send(http2.headers(1, with_table))

    peer.send(http2.headers(3, encode(GRPC, peer.encoder)))

    assert [one.code for one in peer.sent(RST_STREAM)] == [ErrorCode.REFUSED_STREAM] * 2


# Trailers of requests


def test_trailers_end_a_request() -> None:
    peer = Peer().open()
    stream = peer.request(ended=False).stream

    events = peer.send(http2.data(1, b"body"), http2.headers(1, encode([(b"x-sum", b"1")])))

    assert events == [DataReceived(stream, b"body"), DataReceived(stream, b"")]
    assert stream.client_ended


def test_trailers_without_the_end_of_the_stream_end_it_with_an_error() -> None:
    peer = Peer().open()
    peer.request(ended=False)
    trailers = http2.headers(1, encode([(b"x-sum", b"1")]), END_HEADERS)

    fails_stream(peer, 1, ErrorCode.PROTOCOL_ERROR, trailers)


@pytest.mark.parametrize("field", [(b":path", b"/"), (b"Upper", b"x"), (b"connection", b"close")])
def test_malformed_trailers_end_the_stream(field: tuple[bytes, bytes]) -> None:
    peer = Peer().open()
    peer.request(ended=False)

    fails_stream(peer, 1, ErrorCode.PROTOCOL_ERROR, http2.headers(1, encode([field])))
