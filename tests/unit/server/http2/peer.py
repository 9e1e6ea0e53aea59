"""An HTTP/2 client that makes its frames by hand, and may make them wrong."""

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

import pytest
from hpack import Decoder, Encoder

from ister.server.http2 import (
    ConnectionFailedError,
    DataReceived,
    ErrorCode,
    Event,
    Http2Connection,
    Http2Limits,
    RequestReceived,
    StreamFailedError,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE = range(6)
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(6, 10)
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = 4, 5, 6

_HEADER = Struct(">HBBBI")
_U32 = Struct(">I")
_PAIR = Struct(">II")
_SETTING = Struct(">HI")

Fields = Sequence[tuple[bytes, bytes]]
GRPC: Fields = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/danube.Discovery/TopicLookup"),
    (b":authority", b"localhost:6650"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)


class Frame(NamedTuple):
    """A frame as it is on the wire."""

    type: int
    flags: int
    stream_id: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of RST_STREAM or GOAWAY."""
        start = 4 if self.type == GOAWAY else 0
        return int(_U32.unpack_from(self.payload, start)[0])


def frame(type_: int, flags: int = 0, stream_id: int = 0, payload: bytes = b"") -> bytes:
    """Return any frame."""
    size_bytes = len(payload)
    return _HEADER.pack(size_bytes >> 8, size_bytes & 0xFF, type_, flags, stream_id) + payload


def settings(*pairs: tuple[int, int], flags: int = 0, stream_id: int = 0) -> bytes:
    """Return SETTINGS."""
    return frame(SETTINGS, flags, stream_id, b"".join(_SETTING.pack(*pair) for pair in pairs))


def data(stream_id: int, payload: bytes = b"", flags: int = 0) -> bytes:
    """Return DATA."""
    return frame(DATA, flags, stream_id, payload)


def padded(payload: bytes, count: int) -> bytes:
    """Return a payload with padding."""
    return bytes((count,)) + payload + bytes(count)


def headers(stream_id: int, block: bytes, flags: int = END_HEADERS | END_STREAM) -> bytes:
    """Return HEADERS."""
    return frame(HEADERS, flags, stream_id, block)


def continuation(stream_id: int, block: bytes, flags: int = END_HEADERS) -> bytes:
    """Return CONTINUATION."""
    return frame(CONTINUATION, flags, stream_id, block)


def priority(depends_on: int) -> bytes:
    """Return what a priority says."""
    return _U32.pack(depends_on) + b"\x10"


def reset(stream_id: int, code: int = 8) -> bytes:
    """Return RST_STREAM."""
    return frame(RST_STREAM, 0, stream_id, _U32.pack(code))


def window_update(stream_id: int, increment: int) -> bytes:
    """Return WINDOW_UPDATE."""
    return frame(WINDOW_UPDATE, 0, stream_id, _U32.pack(increment))


def go_away(last_stream_id: int = 0, code: int = 0) -> bytes:
    """Return GOAWAY."""
    return frame(GOAWAY, 0, 0, _PAIR.pack(last_stream_id, code))


def encode(fields: Iterable[tuple[bytes, bytes]], encoder: Encoder | None = None) -> bytes:
    """Return a header block; without an encoder it is one that changes no table."""
    if encoder is None:
        return b"".join(_literal(name) + _literal(value, first=False) for name, value in fields)
    return bytes(encoder.encode(list(fields), huffman=True))


def _literal(text: bytes, *, first: bool = True) -> bytes:
    assert len(text) < 127
    return (b"\x00" if first else b"") + bytes((len(text),)) + text


def replace(fields: Fields, **values: bytes) -> Fields:
    """Return the fields with other values for pseudo-headers, e.g. `path=b"/x"`."""
    wanted = {b":" + name.encode(): value for name, value in values.items()}
    return [(name, wanted.get(name, value)) for name, value in fields]


def parse_frames(sent: bytes) -> list[Frame]:
    """Return the frames in bytes that have only whole ones."""
    frames, position = [], 0
    while position < len(sent):
        high, low, type_, flags, stream_id = _HEADER.unpack_from(sent, position)
        start = position + _HEADER.size
        position = start + (high << 8 | low)
        assert position <= len(sent), "half a frame was sent"
        frames.append(Frame(type_, flags, stream_id, sent[start:position]))
    return frames


class Peer:
    """A client in front of a connection."""

    def __init__(self, limits: Http2Limits | None = None) -> None:
        self.connection = Http2Connection(limits)
        self.encoder = Encoder()
        self.decoder = Decoder()

    def send(self, *frames: bytes) -> list[Event]:
        """Send frames and return the events they make."""
        self.connection.receive(b"".join(frames))
        return self.events()

    def events(self) -> list[Event]:
        """Return what there is to be acted on."""
        events = []
        while self.connection.has_next():
            event = self.connection.next_event()
            if event is not None:
                events.append(event)
        return events

    def sent(self, type_: int | None = None) -> list[Frame]:
        """Return the frames that the connection has sent, of one type or of all."""
        frames = parse_frames(b"".join(self.connection.outgoing()))
        return [one for one in frames if type_ is None or one.type == type_]

    def open(self, *pairs: tuple[int, int]) -> "Peer":
        """Say hello, and take what the connection says to that."""
        self.send(PREFACE, settings(*pairs))
        self.sent()
        return self

    def request(self, stream_id: int = 1, *, ended: bool = True) -> RequestReceived:
        """Send a good request."""
        flags = END_HEADERS | (END_STREAM if ended else 0)
        (event,) = self.send(headers(stream_id, encode(GRPC), flags))
        assert isinstance(event, RequestReceived)
        return event


def body_of(events: Iterable[Event]) -> bytes:
    """Return the data of a request."""
    return b"".join(event.data for event in events if isinstance(event, DataReceived))


def fails(peer: Peer, code: ErrorCode, *frames: bytes) -> None:
    """Assert that the frames end the connection, which names the code to the peer."""
    with pytest.raises(ConnectionFailedError) as raised:
        peer.send(*frames)

    assert raised.value.code == code
    last = peer.sent()[-1]
    assert (last.type, last.code) == (GOAWAY, code)
    assert peer.connection.is_closed


def fails_stream(peer: Peer, stream_id: int, code: ErrorCode, *frames: bytes) -> None:
    """Assert that the frames end one stream, and that the connection still serves others."""
    with pytest.raises(StreamFailedError) as raised:
        peer.send(*frames)

    assert (raised.value.stream_id, raised.value.code) == (stream_id, code)
    assert [(one.stream_id, one.code) for one in peer.sent(RST_STREAM)] == [(stream_id, code)]
    peer.request(stream_id + 100)
