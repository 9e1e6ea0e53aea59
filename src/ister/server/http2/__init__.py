"""The server's end of HTTP/2, as far as gRPC needs it: bytes in, events out. No I/O.

Left out on purpose: server push, priorities, requests without gRPC's content type.
"""

from ister.server.http2.connection import (
    DataReceived,
    Event,
    Http2Connection,
    Http2Limits,
    RequestReceived,
    StreamDrained,
    StreamReset,
)
from ister.server.http2.frames import ConnectionFailedError, ErrorCode, StreamFailedError
from ister.server.http2.headers import Head, encode_header
from ister.server.http2.sending import FrameQueue, Stream

__all__ = [
    "ConnectionFailedError",
    "DataReceived",
    "ErrorCode",
    "Event",
    "FrameQueue",
    "Head",
    "Http2Connection",
    "Http2Limits",
    "RequestReceived",
    "Stream",
    "StreamDrained",
    "StreamFailedError",
    "StreamReset",
    "encode_header",
]
