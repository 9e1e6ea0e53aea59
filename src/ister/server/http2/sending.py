"""What is sent on a connection: frames, as far as the peer's windows allow.

Always true: nothing is sent beyond a window; what does not fit is kept with its stream, and streams
that wait take turns, a frame each.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from ister.server.http2.frames import (
    END_HEADERS,
    END_STREAM,
    FRAME_BYTES_MAX,
    HEADER,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    ConnectionFailedError,
    ErrorCode,
    FrameType,
    StreamFailedError,
    encode_reset,
)

_DATA, _HEADERS = int(FrameType.DATA), int(FrameType.HEADERS)
_ENDING = END_HEADERS | END_STREAM
# What we make of a larger offer of the peer.
_LARGEST_FRAME_BYTES = 4 * FRAME_BYTES_MAX
# Streams that `send_some` looks at: a tenth of a millisecond.
_SOME = 32


@dataclass(slots=True, eq=False)
class Stream:
    """One request and its response."""

    id: int
    # What may be sent.
    window: int
    # Received since the client last got credit.
    received_bytes: int = 0
    # How much of the request's body is still to come, if the client has said how long it is.
    body_left: int | None = None
    # Whether the client, and we, have ended our half.
    client_ended: bool = False
    ended: bool = False
    # What did not fit into the windows, with the headers that end it, if they are known.
    pending: deque[memoryview] = field(default_factory=deque)
    pending_bytes: int = 0
    trailers: bytes = b""


class FrameQueue:
    """The frames of one connection that wait for the windows of the peer."""

    def __init__(self, streams: dict[int, Stream]) -> None:
        self.frames: list[bytes] = []
        # What waits for room in the windows, of all streams.
        self.pending_bytes = 0
        # Streams whose pending data was sent, by `grow_stream` or `send_some`.
        self.drained: deque[Stream] = deque()
        # What may be sent on a new stream.
        self.initial_window = WINDOW_DEFAULT
        self._streams = streams
        # What may be sent on all streams together; the largest frame.
        self._window = WINDOW_DEFAULT
        self._frame_bytes_max = FRAME_BYTES_MAX
        # Streams with something pending and room in their own window, in the order of their turns.
        self._blocked: OrderedDict[int, Stream] = OrderedDict()

    def take(self) -> list[bytes]:
        """Return the frames that are to be sent, and forget them."""
        frames, self.frames = self.frames, []
        return frames

    @property
    def can_send(self) -> bool:
        """Whether `send_some` has something to do."""
        return bool(self._blocked) and self._window > 0

    # What the peer says

    def offer_frames(self, size_bytes: int) -> None:
        """The peer accepts frames of this size."""
        self._frame_bytes_max = min(size_bytes, _LARGEST_FRAME_BYTES)

    def change_initial_window(self, value: int) -> None:
        """The peer has another window for every stream. Raises `ConnectionFailedError`."""
        if value > WINDOW_MAX:
            raise ConnectionFailedError(ErrorCode.FLOW_CONTROL_ERROR, "a window of over 2 GiB")
        change, self.initial_window = value - self.initial_window, value
        if not change:
            return
        for stream in self._streams.values():
            stream.window += change
            if stream.window > WINDOW_MAX:
                raise ConnectionFailedError(ErrorCode.FLOW_CONTROL_ERROR, "a window of over 2 GiB")
            if stream.pending_bytes:
                self._blocked[stream.id] = stream

    def grow(self, increment: int) -> None:
        """The peer takes more on all streams together. Raises `ConnectionFailedError`."""
        if not increment or self._window + increment > WINDOW_MAX:
            code = ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
            raise ConnectionFailedError(code, f"a window cannot grow by {increment} B")
        self._window += increment

    def grow_stream(self, stream: Stream, increment: int) -> None:
        """The peer takes more on a stream. Raises `StreamFailedError`."""
        if not increment or stream.window + increment > WINDOW_MAX:
            code = ErrorCode.FLOW_CONTROL_ERROR if increment else ErrorCode.PROTOCOL_ERROR
            raise StreamFailedError(stream.id, code, f"a window cannot grow by {increment} B")
        stream.window += increment
        if stream.pending_bytes and self._send_pending(stream):
            self.drained.append(stream)

    # Responses

    def send_headers(self, stream: Stream, block: bytes) -> None:
        """Begin a response."""
        head = HEADER.pack(len(block) << 8 | _HEADERS, END_HEADERS, stream.id)
        self.frames.append(head + block)

    def send_data(self, stream: Stream, data: bytes) -> None:
        """Send what the windows allow, and the rest when they do: then `drained` has the stream."""
        size_bytes = len(data)
        if (
            not stream.pending_bytes
            and size_bytes <= stream.window
            and size_bytes <= self._window
            and size_bytes <= self._frame_bytes_max
        ):
            stream.window -= size_bytes
            self._window -= size_bytes
            self.frames.append(HEADER.pack(size_bytes << 8 | _DATA, 0, stream.id))
            self.frames.append(data)
            return
        if not data:
            # It would end up behind what is pending, which is counted in bytes.
            return
        stream.pending.append(memoryview(data))
        stream.pending_bytes += size_bytes
        self.pending_bytes += size_bytes
        self._send_pending(stream)

    def send_trailers(self, stream: Stream, block: bytes) -> None:
        """End a response, after what is pending. It may be all there is of it."""
        stream.trailers = block
        if not stream.pending_bytes:
            self._end(stream)

    def send_whole(self, stream: Stream, headers: bytes, data: bytes, trailers: bytes) -> None:
        """Send a response that is there as a whole, of which nothing was sent before."""
        size_bytes = len(data)
        if (
            size_bytes > stream.window
            or size_bytes > self._window
            or size_bytes > self._frame_bytes_max
            or not stream.client_ended
        ):
            self.send_headers(stream, headers)
            self.send_data(stream, data)
            self.send_trailers(stream, trailers)
            return
        stream_id = stream.id
        self._window -= size_bytes
        stream.ended = True
        del self._streams[stream_id]
        stream.window -= size_bytes
        self.frames += (
            HEADER.pack(len(headers) << 8 | _HEADERS, END_HEADERS, stream_id),
            headers,
            HEADER.pack(size_bytes << 8 | _DATA, 0, stream_id),
            data,
            HEADER.pack(len(trailers) << 8 | _HEADERS, END_HEADERS | END_STREAM, stream_id),
            trailers,
        )

    def forget(self, stream: Stream) -> None:
        """Let go of what is pending of a stream that is gone."""
        self._blocked.pop(stream.id, None)
        self.pending_bytes -= stream.pending_bytes
        stream.pending.clear()
        stream.pending_bytes = 0
        stream.ended = stream.client_ended = True

    def send_some(self) -> None:
        """Send some of what waits, each stream a frame in turn. `can_send` says if there is more.

        Each makes progress, or is none of them. All of them would make a turn of the loop long.
        """
        for _ in range(min(_SOME, len(self._blocked))):
            if self._window <= 0:
                break
            _, stream = self._blocked.popitem(last=False)
            if self._send_pending(stream, frames_max=1):
                self.drained.append(stream)

    def _send_pending(self, stream: Stream, frames_max: int = 2**31) -> bool:
        """Send what the windows allow; return whether that was all of it."""
        pending = stream.pending
        while pending and frames_max:
            frames_max -= 1
            part = pending[0]
            size_bytes = min(len(part), stream.window, self._window, self._frame_bytes_max)
            if size_bytes <= 0:
                break
            stream.window -= size_bytes
            self._window -= size_bytes
            stream.pending_bytes -= size_bytes
            self.pending_bytes -= size_bytes
            self.frames.append(HEADER.pack(size_bytes << 8 | _DATA, 0, stream.id))
            self.frames.append(bytes(part[:size_bytes]))
            if size_bytes == len(part):
                pending.popleft()
            else:
                pending[0] = part[size_bytes:]
        if pending:
            # One without room in its own window waits for that.
            if stream.window > 0:
                self._blocked[stream.id] = stream
            return False
        self._blocked.pop(stream.id, None)
        if stream.trailers:
            self._end(stream)
        return True

    def _end(self, stream: Stream) -> None:
        stream.ended = True
        self._streams.pop(stream.id, None)
        block = stream.trailers
        flags = END_HEADERS | END_STREAM
        self.frames.append(HEADER.pack(len(block) << 8 | _HEADERS, flags, stream.id) + block)
        if not stream.client_ended:
            # The rest of the request is of no use to anybody.
            self.frames.append(encode_reset(stream.id, ErrorCode.NO_ERROR))
