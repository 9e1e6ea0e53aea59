"""Header blocks: HPACK through the library `hpack`, and what gRPC needs to know of a request.

Always true:
- a block costs no more than its size and `HEADERS_BYTES_MAX` allow;
- a head that was parsed before is found again by its bytes, while the table they refer to is the
  same: a client that repeats a call, as most do, costs one look into a dictionary.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpack import Decoder, HPACKError, OversizedHeaderListError

from ister.server.http2.frames import ConnectionFailedError, ErrorCode

# All names and values of one request, and 32 B for each, as HTTP/2 counts. A token has 1 KiB at
# most; gRPC's own servers take 8 KiB by default and refuse everything above 16 KiB.
HEADERS_BYTES_MAX = 16 * 1024
# What is taken at all, so that a little too much costs a call and not the connection. Either costs
# 25 ms at the worst.
BLOCK_BYTES_MAX = 24 * 1024
# What is decoded at all: a block decodes to a little more than its size, or far more if it
# refers to large entries of the table many times.
DECODED_BYTES_MAX = 2 * HEADERS_BYTES_MAX
# Changes of the table's size, which begin a block: HPACK asks for two where there were more.
SIZE_UPDATES_MAX = 2
# Heads that one client repeats, one for each method; of 4 KiB each at most.
HEADS_MAX = 16
HEAD_BYTES_MAX = 4 * 1024
# Every field that is one byte: a reference to the static or dynamic table.
_REFERENCES = bytes(range(0x81, 0xFF))

_PSEUDO = (b":method", b":path", b":scheme", b":authority")
_FORBIDDEN = (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
# Printable, and neither upper case nor a colon.
_NAME = re.compile(rb"[!-9;-@\[-~]+")
# What would end a header of HTTP/1.1. Spaces around a value are kept out by HTTP/2 and let in by
# gRPC.
_NOT_IN_VALUES = re.compile(rb"[\0\r\n]")
_UNITS_NS = {
    b"H": 3_600_000_000_000,
    b"M": 60_000_000_000,
    b"S": 1_000_000_000,
    b"m": 1_000_000,
    b"u": 1_000,
    b"n": 1,
}
# 99,999,999 hours, the largest there is, are 11,000 years.
_DIGITS_MAX = 8
# Of a length: 2**63 has 19.
_LENGTH_DIGITS_MAX = 19


@dataclass(frozen=True, slots=True)
class Head:
    """The headers of a request. `mistake` says what HTTP/2 does not allow, empty if nothing."""

    path: bytes = b""
    method: bytes = b""
    content_type: bytes = b""
    # How the messages are compressed.
    encoding: bytes = b""
    authorization: str = ""
    # How long the client waits, `None` for as long as it takes.
    timeout_s: float | None = None
    bad_timeout: bool = False
    # How long the body is, if the client says it.
    content_bytes: int | None = None
    size_bytes: int = 0
    mistake: str = ""
    # Whether they are as those at the end of a request must be: without pseudo-headers.
    is_trailers: bool = False


class HeadDecoder:
    """Decodes the header blocks of one connection, in the order they come."""

    def __init__(self) -> None:
        self._decoder = Decoder(max_header_list_size=DECODED_BYTES_MAX)
        self._heads: dict[bytes, Head] = {}

    def decode(self, block: bytes) -> Head:
        """Return what a block says. Raises `ConnectionFailedError`."""
        head = self._heads.get(block)
        if head is not None:
            return head
        _check_updates(block)
        referring = not block.translate(None, _REFERENCES)
        if not referring:
            # It may change the table, and with it what other blocks mean.
            self._heads.clear()
        try:
            fields = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError:
            raise ConnectionFailedError(
                ErrorCode.ENHANCE_YOUR_CALM, f"headers of more than {DECODED_BYTES_MAX} B"
            ) from None
        except HPACKError as error:
            # The text of the error may have the headers in it, and a token among them.
            reason = f"headers cannot be decoded: {type(error).__name__}"
            raise ConnectionFailedError(ErrorCode.COMPRESSION_ERROR, reason) from None
        head = parse_head(fields)
        if referring and head.size_bytes <= HEAD_BYTES_MAX and len(self._heads) < HEADS_MAX:
            self._heads[block] = head
        return head


def _check_updates(block: bytes) -> None:
    """Raise when a block begins with more changes of the table's size than make sense."""
    position = count = 0
    while block[position : position + 1] and block[position] & 0xE0 == 0x20:
        count += 1
        if count > SIZE_UPDATES_MAX:
            raise ConnectionFailedError(
                ErrorCode.COMPRESSION_ERROR, f"over {SIZE_UPDATES_MAX} sizes of the table"
            )
        goes_on = block[position] & 0x1F == 0x1F
        position += 1
        while goes_on:
            goes_on = bool(block[position : position + 1]) and block[position] >= 0x80
            position += 1


def parse_head(fields: Iterable[tuple[bytes, bytes]]) -> Head:
    """Return what the fields of a request say."""
    pseudo: dict[bytes, bytes] = {}
    found: dict[bytes, bytes] = {}
    size_bytes, mistake = 0, ""
    for name, value in fields:
        size_bytes += len(name) + len(value) + 32
        if name.startswith(b":"):
            if name not in _PSEUDO or name in pseudo or found:
                mistake = "a pseudo-header that is unknown, repeated or late"
            pseudo[name] = value
        elif not _NAME.fullmatch(name):
            mistake = "a header name must be of printable characters, in lower case"
        elif name in _FORBIDDEN or (name == b"te" and value != b"trailers"):
            mistake = "a header of HTTP/1.1"
        elif name == b"content-length" and not _is_length(value, found.get(name, value)):
            mistake = "a content-length that is not a number, or two of them"
        else:
            # Of several, the first: all that is looked at has one value.
            found.setdefault(name, value)
        if _NOT_IN_VALUES.search(value):
            mistake = "a header with the end of a line in it"
    is_trailers = not pseudo and not mistake
    if not mistake and (
        not pseudo.get(b":path") or b":method" not in pseudo or b":scheme" not in pseudo
    ):
        mistake = ":method, :scheme or :path is missing"
    timeout = found.get(b"grpc-timeout")
    timeout_s = None if timeout is None else parse_timeout(timeout)
    length = found.get(b"content-length")
    return Head(
        path=pseudo.get(b":path", b""),
        method=pseudo.get(b":method", b""),
        content_type=found.get(b"content-type", b""),
        encoding=found.get(b"grpc-encoding", b""),
        authorization=found.get(b"authorization", b"").decode("latin-1"),
        timeout_s=timeout_s,
        bad_timeout=timeout is not None and timeout_s is None,
        content_bytes=None if mistake or length is None else int(length),
        size_bytes=size_bytes,
        mistake=mistake,
        is_trailers=is_trailers,
    )


def _is_length(value: bytes, former: bytes) -> bool:
    """Return whether a `content-length` is a number, and the one that was there before."""
    return value.isdigit() and len(value) <= _LENGTH_DIGITS_MAX and value == former


def parse_timeout(value: bytes) -> float | None:
    """Return a `grpc-timeout` in seconds, or `None` when it is not one."""
    digits, unit = value[:-1], _UNITS_NS.get(value[-1:])
    if unit is None or not digits.isdigit() or len(digits) > _DIGITS_MAX:
        return None
    return int(digits) * unit / 1_000_000_000


def encode_header(name: bytes, value: bytes) -> bytes:
    """Return one field of a header block, which leaves the peer's table as it is."""
    return b"\x00" + _encode_text(name) + _encode_text(value)


def _encode_text(text: bytes) -> bytes:
    """Return a length of seven bits and more, and the text."""
    length = len(text)
    if length < 127:
        return bytes((length,)) + text
    length -= 127
    encoded = bytearray((127,))
    while length >= 128:
        encoded.append(length & 127 | 128)
        length >>= 7
    encoded.append(length)
    return bytes(encoded) + text
