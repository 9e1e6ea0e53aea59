"""One HTTP/2 connection as the server sees it: a state machine without I/O.

    PREFACE --the client's first words--> SETTINGS --its settings--> OPEN --error, GOAWAY--> CLOSED

`receive` takes bytes, `next_event` acts on one frame, `outgoing` returns what is to be sent. A
stream is here from its headers until both ends have ended it, or one has reset it.

Always true:
- at most one frame that is not complete is held, and one block of headers: both have limits;
- what is answered to a frame (settings, pings) is bounded by what was received, and by the caller,
  who receives nothing from a peer that does not read;
- nothing is sent beyond the windows of the peer; what does not fit is kept with its stream;
- credit for received data is given back when it was received: the caller bounds what it keeps.
"""

from dataclasses import dataclass
from enum import Enum, auto

from ister.server.http2.frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_LIMIT,
    FRAME_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    PADDED,
    PREFACE,
    PRIORITY,
    SETTING,
    STREAM_MASK,
    U32,
    WINDOW_DEFAULT,
    ConnectionFailedError,
    ErrorCode,
    FrameType,
    Setting,
    StreamFailedError,
    encode_frame,
    encode_go_away,
    encode_reset,
    encode_settings,
    encode_window_update,
)
from ister.server.http2.headers import BLOCK_BYTES_MAX, HEADERS_BYTES_MAX, Head, HeadDecoder
from ister.server.http2.sending import FrameQueue, Stream

_DATA, _HEADERS, _END_STREAM = int(FrameType.DATA), int(FrameType.HEADERS), END_STREAM
# HEADERS with everything in one frame, without padding or priority.
_WHOLE = (END_HEADERS, END_HEADERS | END_STREAM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Limits:
    """What one peer may have of us."""

    # Calls at a time: a Danube client has one connection for everything, and a stream for each
    # consumer.
    streams_max: int = 10_000
    # What a client may send ahead for one stream, and for all of them. A round trip of 50 ms at
    # 100 MB/s is 5 MB.
    stream_window_bytes: int = 1024 * 1024
    window_bytes: int = 8 * 1024 * 1024
    # Frames of a block of headers: one is enough for a client that is honest.
    continuations_max: int = 8


@dataclass(frozen=True, slots=True)
class RequestReceived:
    """A new stream."""

    stream: Stream
    head: Head


@dataclass(frozen=True, slots=True)
class DataReceived:
    """Bytes of a request; `stream.client_ended` says whether they are the last."""

    stream: Stream
    data: bytes


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The client gave a stream up."""

    stream: Stream


@dataclass(frozen=True, slots=True)
class StreamDrained:
    """Everything that waited for room in the windows has been sent."""

    stream: Stream


Event = RequestReceived | DataReceived | StreamReset | StreamDrained


class Http2State(Enum):
    """Where an HTTP/2 connection is in its life."""

    PREFACE = auto()
    SETTINGS = auto()
    OPEN = auto()
    CLOSED = auto()


class Http2Connection:
    """The server's side of one HTTP/2 connection, without I/O."""

    def __init__(self, limits: Http2Limits | None = None) -> None:
        self.state = Http2State.PREFACE
        self.streams: dict[int, Stream] = {}
        self.out = FrameQueue(self.streams)
        self._limits = limits or Http2Limits()
        self._heads = HeadDecoder()
        self._buffer = b""
        self._position = 0
        self.out.frames += (
            encode_settings(
                {
                    Setting.MAX_CONCURRENT_STREAMS: self._limits.streams_max,
                    Setting.INITIAL_WINDOW_SIZE: self._limits.stream_window_bytes,
                    Setting.MAX_HEADER_LIST_SIZE: HEADERS_BYTES_MAX,
                }
            ),
            encode_window_update(0, self._limits.window_bytes - WINDOW_DEFAULT),
        )
        # The highest stream of the client, and whether there may be more.
        self.last_stream_id = 0
        self._going_away = False
        # Received on all streams since the client last got credit.
        self._received_bytes = 0
        # A block of headers that goes on in the next frame: stream, flags, pieces.
        self._block: tuple[int, int, list[bytes]] | None = None
        # Whether a ping of ours was not answered yet.
        self.pinged = False

    @property
    def is_open(self) -> bool:
        """Whether the client has said what it has to at first."""
        return self.state is Http2State.OPEN

    @property
    def is_closed(self) -> bool:
        """Whether the connection has failed."""
        return self.state is Http2State.CLOSED

    # Receiving

    def receive(self, data: bytes) -> None:
        """Take bytes of the peer. `next_event` acts on them."""
        if self.state is Http2State.CLOSED:
            return
        rest = self._buffer[self._position :]
        self._buffer, self._position = (rest + data if rest else data), 0

    def has_next(self) -> bool:
        """Whether there is something to be acted on: a whole frame, or the mistake of one."""
        if self.state is Http2State.CLOSED:
            return False
        if self.out.drained or self.out.can_send:
            return True
        left = len(self._buffer) - self._position
        if self.state is Http2State.PREFACE:
            return left >= len(PREFACE) or not PREFACE.startswith(self._buffer)
        if left < HEADER_BYTES:
            if not left:
                # Not kept by connections that are silent for long.
                self._buffer, self._position = b"", 0
            return False
        length: int = HEADER.unpack_from(self._buffer, self._position)[0] >> 8
        return left - HEADER_BYTES >= length or length > FRAME_BYTES_MAX

    def next_event(self) -> Event | None:
        """Act on one frame, which has to be there. Most frames do not make an event.

        After `ConnectionFailedError`, `outgoing` ends with the reason, and nothing more is
        received. After `StreamFailedError` the stream is gone, and the caller goes on.
        """
        if self.out.drained:
            return StreamDrained(self.out.drained.popleft())
        if self.out.can_send:
            self.out.send_some()
            return None
        try:
            if self.state is Http2State.PREFACE:
                self._take_preface()
                return None
            head, flags, stream_id = HEADER.unpack_from(self._buffer, self._position)
            length = head >> 8
            if length > FRAME_BYTES_MAX:
                raise ConnectionFailedError(
                    ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} B: {FRAME_BYTES_MAX} at most"
                )
            start = self._position + HEADER_BYTES
            self._position = end = start + length
            return self._act(head & 0xFF, flags, stream_id & STREAM_MASK, self._buffer[start:end])
        except ConnectionFailedError as error:
            self.fail(error)
            raise
        except StreamFailedError as error:
            self.reset(error.stream_id, error.code)
            raise

    def _take_preface(self) -> None:
        if not self._buffer.startswith(PREFACE):
            raise ConnectionFailedError(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
        self._position = len(PREFACE)
        self.state = Http2State.SETTINGS

    def _act(self, type_: int, flags: int, stream_id: int, payload: bytes) -> Event | None:
        if self._block is not None and type_ != FrameType.CONTINUATION:
            raise ConnectionFailedError(
                ErrorCode.PROTOCOL_ERROR, "a frame between those of a block of headers"
            )
        if type_ == _DATA:
            return self._on_data(flags, stream_id, payload)
        if type_ == _HEADERS:
            return self._on_headers(flags, stream_id, payload)
        if self.state is Http2State.SETTINGS and type_ != FrameType.SETTINGS:
            raise ConnectionFailedError(ErrorCode.PROTOCOL_ERROR, "the settings come first")
        return self._act_on_rare(type_, flags, stream_id, payload)

    def _act_on_rare(self, type_: int, flags: int, stream_id: int, payload: bytes) -> Event | None:
        event = None
        match type_:
            case FrameType.WINDOW_UPDATE:
                self._on_window(stream_id, payload)
            case FrameType.PING:
                self._on_ping(flags, stream_id, payload)
            case FrameType.RST_STREAM:
                event = self._on_reset(stream_id, payload)
            case FrameType.SETTINGS:
                self._on_settings(flags, stream_id, payload)
            case FrameType.CONTINUATION:
                event = self._on_continuation(flags, stream_id, payload)
            case FrameType.PRIORITY:
                _check_priority(stream_id, payload)
            case FrameType.GOAWAY:
                _check_go_away(stream_id, payload)
            case FrameType.PUSH_PROMISE:
                raise ConnectionFailedError(ErrorCode.PROTOCOL_ERROR, "a client cannot push")
            case _:
                # An unknown type is to be ignored.
                pass
        return event

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> Event | None:
        size_bytes = len(payload)
        self._count_received(size_bytes)
        stream = self.streams.get(stream_id)
        if stream is None or stream.client_ended:
            self._check_known(stream_id)
            # On its way when the stream ended: nothing to be said about it.
            if stream is None:
                return None
            raise StreamFailedError(stream_id, ErrorCode.STREAM_CLOSED, "data behind the end")
        if flags & PADDED:
            payload = _unpadded(payload)
        stream.received_bytes += size_bytes
        if stream.received_bytes > self._limits.stream_window_bytes:
            raise StreamFailedError(
                stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows"
            )
        ended = bool(flags & _END_STREAM)
        if stream.body_left is not None:
            _take_body(stream, len(payload), ended=ended)
        if ended:
            stream.client_ended = True
        elif stream.received_bytes >= self._limits.stream_window_bytes // 2:
            self.out.frames.append(encode_window_update(stream_id, stream.received_bytes))
            stream.received_bytes = 0
        return DataReceived(stream, payload)

    def _count_received(self, size_bytes: int) -> None:
        self._received_bytes += size_bytes
        if self._received_bytes > self._limits.window_bytes:
            raise ConnectionFailedError(
                ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows"
            )
        if self._received_bytes >= self._limits.window_bytes // 2:
            self.out.frames.append(encode_window_update(0, self._received_bytes))
            self._received_bytes = 0

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> Event | None:
        if self.state is Http2State.SETTINGS:
            raise ConnectionFailedError(ErrorCode.PROTOCOL_ERROR, "the settings come first")
        if flags & PADDED:
            payload = _unpadded(payload)
        if flags & PRIORITY:
            if len(payload) < 5:
                raise ConnectionFailedError(ErrorCode.FRAME_SIZE_ERROR, "a priority is cut off")
            if U32.unpack_from(payload)[0] & STREAM_MASK == stream_id:
                raise ConnectionFailedError(
                    ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself"
                )
            payload = payload[5:]
        if flags & END_HEADERS:
            return self._on_block(stream_id, flags, payload)
        self._check_block([payload])
        self._block = (stream_id, flags, [payload])
        return None

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> Event | None:
        if self._block is None or self._block[0] != stream_id:
            raise ConnectionFailedError(ErrorCode.PROTOCOL_ERROR, "a continuation of nothing")
        _, first_flags, pieces = self._block
        pieces.append(payload)
        self._check_block(pieces)
        if not flags & END_HEADERS:
            return None
        self._block = None
        return self._on_block(stream_id, first_flags, b"".join(pieces))

    def _check_block(self, pieces: list[bytes]) -> None:
        size_bytes = sum(map(len, pieces))
        if len(pieces) > self._limits.continuations_max or size_bytes > BLOCK_BYTES_MAX:
            raise ConnectionFailedError(ErrorCode.ENHANCE_YOUR_CALM, "headers in too many pieces")

    def _on_block(self, stream_id: int, flags: int, block: bytes) -> Event | None:
        # Decoded whatever comes of it: else all that follow would be misunderstood.
        head = self._heads.decode(block)
        known = self.streams.get(stream_id)
        if known is not None:
            # Trailers of a request, which gRPC has no use for.
            if known.client_ended:
                raise StreamFailedError(stream_id, ErrorCode.STREAM_CLOSED, "headers after the end")
            if not flags & _END_STREAM or not head.is_trailers:
                raise StreamFailedError(stream_id, ErrorCode.PROTOCOL_ERROR, "headers twice")
            _take_body(known, 0, ended=True)
            known.client_ended = True
            return DataReceived(known, b"")
        if not stream_id & 1:
            raise ConnectionFailedError(
                ErrorCode.PROTOCOL_ERROR, f"{stream_id} is not a number of a client's stream"
            )
        if stream_id <= self.last_stream_id:
            if head.is_trailers and flags & _END_STREAM:
                # On their way when the stream ended, as data may be.
                return None
            raise ConnectionFailedError(
                ErrorCode.STREAM_CLOSED, f"stream {stream_id} was here before"
            )
        if self._going_away:
            # Above what GOAWAY said, so the client knows that it was not looked at.
            self.out.frames.append(encode_reset(stream_id, ErrorCode.REFUSED_STREAM))
            return None
        self.last_stream_id = stream_id
        if len(self.streams) >= self._limits.streams_max:
            raise StreamFailedError(stream_id, ErrorCode.REFUSED_STREAM, "too many streams")
        if head.mistake:
            raise StreamFailedError(stream_id, ErrorCode.PROTOCOL_ERROR, head.mistake)
        stream = self.streams[stream_id] = Stream(stream_id, self.out.initial_window)
        stream.client_ended = bool(flags & _END_STREAM)
        if head.content_bytes is not None:
            stream.body_left = head.content_bytes
            _take_body(stream, 0, ended=stream.client_ended)
        return RequestReceived(stream, head)

    def _on_reset(self, stream_id: int, payload: bytes) -> Event | None:
        if len(payload) != 4:
            raise ConnectionFailedError(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM has 4 B")
        self._check_known(stream_id)
        stream = self.streams.pop(stream_id, None)
        if stream is None:
            return None
        self.out.forget(stream)
        return StreamReset(stream)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailedError(ErrorCode.PROTOCOL_ERROR, "settings of a stream")
        if flags & ACK:
            if payload:
                raise ConnectionFailedError(
                    ErrorCode.FRAME_SIZE_ERROR, "an acknowledgement with settings"
                )
            return
        if len(payload) % SETTING.size:
            raise ConnectionFailedError(ErrorCode.FRAME_SIZE_ERROR, "settings have 6 B each")
        # The last of each counts; a frame may repeat one 2,700 times.
        for name, value in dict(SETTING.iter_unpack(payload)).items():
            self._on_setting(name, value)
        self.state = Http2State.OPEN
        self.out.frames.append(encode_frame(FrameType.SETTINGS, ACK, 0))

    def _on_setting(self, name: int, value: int) -> None:
        if name == Setting.INITIAL_WINDOW_SIZE:
            self.out.change_initial_window(value)
        elif name == Setting.MAX_FRAME_SIZE:
            if not FRAME_BYTES_MAX <= value <= FRAME_BYTES_LIMIT:
                raise ConnectionFailedError(
                    ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE {value} is not allowed"
                )
            self.out.offer_frames(value)
        elif name == Setting.ENABLE_PUSH and value > 1:
            raise ConnectionFailedError(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is 0 or 1")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFailedError(ErrorCode.PROTOCOL_ERROR, "a ping of a stream")
        if len(payload) != 8:
            raise ConnectionFailedError(ErrorCode.FRAME_SIZE_ERROR, "a ping has 8 B")
        if flags & ACK:
            self.pinged = False
        else:
            self.out.frames.append(encode_frame(FrameType.PING, ACK, 0, payload))

    def _on_window(self, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise ConnectionFailedError(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE has 4 B")
        increment = U32.unpack(payload)[0] & STREAM_MASK
        if not stream_id:
            self.out.grow(increment)
            return
        self._check_known(stream_id)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.out.grow_stream(stream, increment)

    def _check_known(self, stream_id: int) -> None:
        """Raise unless a stream is, or was, there."""
        if not stream_id & 1 or stream_id > self.last_stream_id:
            # While going away, streams beyond the last one were refused.
            if self._going_away and stream_id & 1:
                return
            raise ConnectionFailedError(
                ErrorCode.PROTOCOL_ERROR, f"a frame of stream {stream_id}, which nobody opened"
            )

    # Sending

    def outgoing(self) -> list[bytes]:
        """Return what is to be sent, and forget it."""
        return self.out.take()

    def reset(self, stream_id: int, code: ErrorCode) -> None:
        """End a stream without a response, or with half of one."""
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            self.out.forget(stream)
        self.out.frames.append(encode_reset(stream_id, code))

    def ping(self) -> None:
        """Ask the peer for a sign of life; `pinged` is true until it has come."""
        self.pinged = True
        self.out.frames.append(encode_frame(FrameType.PING, 0, 0, b"is there"))

    def go_away(self, reason: str = "") -> None:
        """Take no more streams; those that are here go on."""
        if not self._going_away and self.state is not Http2State.CLOSED:
            self._going_away = True
            self.out.frames.append(encode_go_away(self.last_stream_id, ErrorCode.NO_ERROR, reason))

    def fail(self, error: ConnectionFailedError) -> None:
        """Tell the peer why the connection ends, and receive nothing more."""
        if self.state is not Http2State.CLOSED:
            self.out.frames.append(encode_go_away(self.last_stream_id, error.code, error.reason))
        self.state = Http2State.CLOSED
        for stream in self.streams.values():
            self.out.forget(stream)
        self.streams.clear()
        self._buffer, self._position = b"", 0


def _take_body(stream: Stream, size_bytes: int, *, ended: bool) -> None:
    """Raise `StreamFailedError` if a body is not as long as its headers say."""
    if stream.body_left is None:
        return
    stream.body_left -= size_bytes
    if stream.body_left < 0 or (ended and stream.body_left):
        reason = "the body is not as long as its content-length"
        raise StreamFailedError(stream.id, ErrorCode.PROTOCOL_ERROR, reason)


def _unpadded(payload: bytes) -> bytes:
    """Return what a padded frame says."""
    if not payload or payload[0] >= len(payload):
        raise ConnectionFailedError(ErrorCode.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]


def _check_priority(stream_id: int, payload: bytes) -> None:
    """Nothing comes of a priority. One that is wrong may be of a stream nobody has opened yet,

    which cannot be reset: so it ends the connection.
    """
    if not stream_id:
        raise ConnectionFailedError(ErrorCode.PROTOCOL_ERROR, "a priority of no stream")
    if len(payload) != 5:
        raise ConnectionFailedError(ErrorCode.FRAME_SIZE_ERROR, "a priority has 5 B")
    if U32.unpack_from(payload)[0] & STREAM_MASK == stream_id:
        raise ConnectionFailedError(ErrorCode.PROTOCOL_ERROR, "a stream that depends on itself")


def _check_go_away(stream_id: int, payload: bytes) -> None:
    """A client that goes away ends the connection by itself."""
    if stream_id:
        raise ConnectionFailedError(ErrorCode.PROTOCOL_ERROR, "GOAWAY of a stream")
    if len(payload) < 8:
        raise ConnectionFailedError(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY has 8 B and more")
