"""The server's end of HTTP/2, as far as gRPC needs it: bytes in, events out. No I/O.

Left out on purpose: server push, priorities, requests without gRPC's content type.
"""

from ister.server.http2.connection import (
    Connection,
    DataReceived,
    Event,
    Limits,
    RequestReceived,
    StreamDrained,
    StreamReset,
)
from ister.server.http2.frames import ConnectionFailedError, ErrorCode, StreamFailedError
from ister.server.http2.headers import Head, encode_header
from ister.server.http2.sending import Outbox, Stream

__all__ = [
    "Connection",
    "ConnectionFailedError",
    "DataReceived",
    "ErrorCode",
    "Event",
    "Head",
    "Limits",
    "Outbox",
    "RequestReceived",
    "Stream",
    "StreamDrained",
    "StreamFailedError",
    "StreamReset",
    "encode_header",
]
