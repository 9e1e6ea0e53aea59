"""Frames of HTTP/2 (RFC 9113): their numbers, how they are encoded, and what is wrong with them."""

from enum import IntEnum
from struct import Struct

# What a client sends first, before its settings.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# Length and type in one number, flags, stream.
HEADER = Struct(">IBI")
HEADER_BYTES = 9
SETTING = Struct(">HI")
U32 = Struct(">I")
PAIR = Struct(">II")
# The largest size that every peer must accept. Larger frames would only make turns longer.
FRAME_BYTES_MAX = 16_384
# The largest that a peer may offer to accept.
FRAME_BYTES_LIMIT = 2**24 - 1
WINDOW_MAX = 2**31 - 1
# What each window is until somebody changes it.
WINDOW_DEFAULT = 65_535
# The highest bit of a stream number is reserved.
STREAM_MASK = 0x7FFF_FFFF


class FrameType(IntEnum):
    """What a frame is."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY = 0x20


class Setting(IntEnum):
    """What a setting is about."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class ConnectionFailedError(Exception):
    """The peer broke a rule or a limit, which ends the connection."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class StreamFailedError(Exception):
    """The peer broke a rule, which ends one stream."""

    def __init__(self, stream_id: int, code: ErrorCode, reason: str) -> None:
        super().__init__(stream_id, code, reason)
        self.stream_id = stream_id
        self.code = code
        self.reason = reason


def encode_frame(type_: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return a frame."""
    return HEADER.pack(len(payload) << 8 | type_, flags, stream_id) + payload


def encode_settings(values: dict[Setting, int]) -> bytes:
    """Return a SETTINGS frame."""
    payload = b"".join(SETTING.pack(name, value) for name, value in values.items())
    return encode_frame(FrameType.SETTINGS, 0, 0, payload)


def encode_reset(stream_id: int, code: int) -> bytes:
    """Return a RST_STREAM frame."""
    return encode_frame(FrameType.RST_STREAM, 0, stream_id, U32.pack(code))


def encode_window_update(stream_id: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame."""
    return encode_frame(FrameType.WINDOW_UPDATE, 0, stream_id, U32.pack(increment))


def encode_go_away(last_stream_id: int, code: int, reason: str = "") -> bytes:
    """Return a GOAWAY frame."""
    payload = PAIR.pack(last_stream_id, code) + reason.encode()[:200]
    return encode_frame(FrameType.GOAWAY, 0, 0, payload)
