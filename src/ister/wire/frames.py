"""Frames: a fixed header, then a body whose shape the opcode tells. Spec: docs/protocol.md.

Hot frames have fixed bodies or carry a batch; everything else is one CONTROL frame with a
command from `commands`. All numbers are little-endian.
"""

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from ister.base import Expected
from ister.base.errors import BadRequestError, ProtocolError
from ister.base.limits import ACKS_PER_FRAME_MAX, CONTROL_BYTES_MAX, CREDIT_MAX, KIB
from ister.codec import HEADER_BYTES, Batch
from ister.wire.commands import Command, encode_command

# body bytes, opcode, flags (zero), magic, channel, sequence
HEADER = struct.Struct("<IBBHII")
FRAME_HEADER_BYTES = HEADER.size
# A frame header, then the broker's stamp of a batch or the body of PUBLISHED: the same two fields.
HEADER_AND_STAMP = struct.Struct("<IBBHIIQq")
# In every frame, so that a peer that lost its place is found out at once.
MAGIC = 0x5349

# A peer that has not said hello gets no more than this of our memory.
HELLO_BYTES_MAX = 4_096

PUBLISHED = struct.Struct("<Qq")
CREDIT = struct.Struct("<II")
# What goes before a leased batch: lease, attempt, milliseconds until the lease ends. As long as
# two numbers of eight bytes, so that the columns of the batch stay aligned.
LEASE = struct.Struct("<QII")
# A run of messages of one lease: lease, first offset, end offset (half-open).
ACK = struct.Struct("<QQQ")
# The same with milliseconds: of delay for a nack, of more time for an extension.
TIMED_ACK = struct.Struct("<QQQQ")
# The delay of a nack that leaves it to the backoff list of the subscription.
BACKOFF_DELAY = 2**64 - 1
# Offsets are below this: columns hold them as signed numbers.
OFFSETS_END = 2**63
# Of what a frame expects: not the offset of its message, but that of the newest one of its key, and
# one. A broker that does not know it never gives such an offset, and refuses.
KEY_EXPECTED = 2**63

# A run of messages, as in `ACK`; a run with milliseconds, as in `TIMED_ACK`.
Run = tuple[int, int, int]
TimedRun = tuple[int, int, int, int]

SEQUENCE_MASK = 0xFFFF_FFFF

# Below this, one copy is cheaper than a second buffer in the system call.
JOIN_BYTES_MAX = 8_192


# A chunk costs about 50 B beside its bytes: a peer that sends one byte at a time must not make
# us hold fifty times what it sent. Reads of a socket fill the largest frame in far fewer.
CHUNKS_MAX = 1_024


# Bodies from this size on are received in place ...
PLACE_BYTES_MIN = 64 * KIB
# ... in memory of the next of these sizes, so that a frame holds at most twice what it needs. The
# last one fits a batch as our client makes it; a larger frame starts with that, and grows.
PLACE_SIZES = (96 * KIB, 192 * KIB, 384 * KIB, 640 * KIB)
PLACE_BYTES_FIRST = PLACE_SIZES[-1]
# Pieces of memory kept of each size for the next large frames: 16 × 1.3 MiB in all. A client's
# window is 8 batches.
POOL_COUNT = 16
# The oldest is the likeliest to be free again.
POOL_TRIES = 4


class Opcode:
    """What a frame is. Numbers are part of the protocol.

    Plain numbers: looking up a member of an enum costs a tenth of a microsecond, several times
    for each frame.
    """

    PUBLISH: Final = 1
    PUBLISHED: Final = 2
    DELIVER: Final = 3
    CREDIT: Final = 4
    ACK: Final = 5
    REPLY: Final = 6
    PING: Final = 7
    PONG: Final = 8
    PUBLISH_BULK: Final = 9
    DELIVER_LEASED: Final = 10
    ACKED: Final = 11
    NACK: Final = 12
    ACK_THROUGH: Final = 13
    EXTEND: Final = 14
    PUBLISH_EXPECT: Final = 15
    CONTROL: Final = 16
    STAGE: Final = 17
    STAGE_EXPECT: Final = 18


# Opcode, channel, sequence, body. A tuple: there is one for each frame on the hot path.
Frame = tuple[int, int, int, memoryview]


def body_limits(batch_bytes_max: int) -> list[tuple[int, int]]:
    """Return the smallest and largest body by opcode; (1, 0) where the opcode is unknown."""
    limits = [(1, 0)] * 256
    for opcode in (
        Opcode.PUBLISH,
        Opcode.PUBLISH_BULK,
        Opcode.PUBLISH_EXPECT,
        Opcode.STAGE,
        Opcode.STAGE_EXPECT,
        Opcode.DELIVER,
        Opcode.REPLY,
    ):
        limits[opcode] = (HEADER_BYTES, batch_bytes_max)
    limits[Opcode.DELIVER_LEASED] = (LEASE.size + HEADER_BYTES, LEASE.size + batch_bytes_max)
    limits[Opcode.PUBLISHED] = (PUBLISHED.size, PUBLISHED.size)
    limits[Opcode.CREDIT] = (CREDIT.size, CREDIT.size)
    limits[Opcode.ACK] = limits[Opcode.ACK_THROUGH] = (ACK.size, ACK.size * ACKS_PER_FRAME_MAX)
    limits[Opcode.ACKED] = (0, ACK.size * ACKS_PER_FRAME_MAX)
    limits[Opcode.NACK] = (TIMED_ACK.size, TIMED_ACK.size * ACKS_PER_FRAME_MAX)
    limits[Opcode.EXTEND] = limits[Opcode.NACK]
    limits[Opcode.PING] = limits[Opcode.PONG] = (0, 0)
    limits[Opcode.CONTROL] = (1, CONTROL_BYTES_MAX)
    return limits


def hello_limits() -> list[tuple[int, int]]:
    """Return the limits before the handshake: one small control frame and nothing else."""
    limits = [(1, 0)] * 256
    limits[Opcode.CONTROL] = (1, HELLO_BYTES_MAX)
    return limits


def publish_frame(
    channel: int, sequence: int, head: bytes, body: bytes, *, opcode: int = Opcode.PUBLISH
) -> list[bytes]:
    """Return a frame of an encoded batch: PUBLISH, or another opcode with a batch as its body.

    PUBLISH_BULK lets the broker answer a little later, together with others. PUBLISH_EXPECT wants
    the base offset that stands in the batch, or nothing. STAGE adds to a transaction or a stage;
    STAGE_EXPECT to a transaction, and wants what PUBLISH_EXPECT does.
    """
    size = len(head) + len(body)
    header = HEADER.pack(size, opcode, 0, MAGIC, channel, sequence)
    if size < JOIN_BYTES_MAX:
        return [header + head + body]
    return [header + head, body]


def expected_of(batch: Batch) -> Expected:
    """Return what the batch of a PUBLISH_EXPECT or STAGE_EXPECT frame expects."""
    if batch.base_offset & KEY_EXPECTED:
        return Expected(expected_key_offset=batch.base_offset - KEY_EXPECTED - 1)
    return Expected(expected_offset=batch.base_offset)


def expecting(head: bytes, expected_offset: int) -> bytes:
    """Return the head of a batch for PUBLISH_EXPECT or STAGE_EXPECT.

    For the offset of the newest message of a key, `expected_offset` is `KEY_EXPECTED` and that
    offset and one.
    """
    # In the place of the base offset, which is outside the checksum.
    return expected_offset.to_bytes(8, "little") + head[8:]


def publish_bare_frame(channel: int, sequence: int, batch: bytes) -> bytes:
    """Return a PUBLISH frame of a batch in one piece."""
    return HEADER.pack(len(batch), Opcode.PUBLISH, 0, MAGIC, channel, sequence) + batch


def published_frame(channel: int, sequence: int, base_offset: int, publish_time_ms: int) -> bytes:
    """Return the acknowledgement of a PUBLISH frame."""
    return HEADER_AND_STAMP.pack(
        PUBLISHED.size,
        Opcode.PUBLISHED,
        0,
        MAGIC,
        channel,
        sequence,
        base_offset,
        publish_time_ms,
    )


def deliver_frame(channel: int, topic_number: int, batch: Batch) -> list[bytes | memoryview]:
    """Return a DELIVER frame; the batch's own bytes are not copied unless they are few."""
    size = batch.size_bytes
    header = HEADER_AND_STAMP.pack(
        size,
        Opcode.DELIVER,
        0,
        MAGIC,
        channel,
        topic_number,
        batch.base_offset,
        batch.publish_time_ms,
    )
    if size < JOIN_BYTES_MAX:
        return [header + batch.tail]
    return [header, batch.tail]


def reply_frame(parts: tuple[bytes, bytes] | Batch) -> list[bytes | memoryview]:
    """Return a REPLY frame of an encoded or a received batch with reply addresses."""
    if isinstance(parts, Batch):
        header = HEADER.pack(parts.size_bytes, Opcode.REPLY, 0, MAGIC, 0, 0)
        return [header + parts.stamp_bytes(), parts.tail]
    head, body = parts
    return [HEADER.pack(len(head) + len(body), Opcode.REPLY, 0, MAGIC, 0, 0) + head, body]


def reply_lone_frame(batch: bytes) -> bytes:
    """Return a REPLY frame of a batch in one piece."""
    return HEADER.pack(len(batch), Opcode.REPLY, 0, MAGIC, 0, 0) + batch


def credit_frame(channel: int, count: int, size_bytes: int) -> bytes:
    """Return a CREDIT frame: the consumer can take this much more."""
    if not (0 <= count <= CREDIT_MAX and 0 <= size_bytes <= CREDIT_MAX):
        raise BadRequestError(f"credit is 0 to {CREDIT_MAX} messages and bytes")
    header = HEADER.pack(CREDIT.size, Opcode.CREDIT, 0, MAGIC, channel, 0)
    return header + CREDIT.pack(count, size_bytes)


def leased_frame(
    channel: int, topic_number: int, batch: Batch, lease: int, attempt: int, lease_ms: int
) -> list[bytes | memoryview]:
    """Return a DELIVER_LEASED frame: a batch of a stream, to be acknowledged under `lease`."""
    size = batch.size_bytes
    header = HEADER.pack(
        LEASE.size + size, Opcode.DELIVER_LEASED, 0, MAGIC, channel, topic_number
    ) + LEASE.pack(lease, attempt, lease_ms)
    if size < JOIN_BYTES_MAX:
        return [header + batch.stamp_bytes() + batch.tail]
    return [header + batch.stamp_bytes(), batch.tail]


def ack_frames(
    channel: int, runs: Sequence[Run], *, opcode: int = Opcode.ACK, sequence: int = 0
) -> list[bytes]:
    """Return frames of runs without milliseconds: ACK, ACK_THROUGH or ACKED.

    No runs make no frame, but for ACKED, which is one frame always: see `acked_frame`. A sequence
    other than 0 asks for an answer, and there is one answer for one frame: raises
    `BadRequestError` for more runs than `ACKS_PER_FRAME_MAX` then.
    """
    if opcode == Opcode.ACKED:
        return [acked_frame(channel, sequence, runs)]
    return _run_frames(ACK, channel, runs, opcode, sequence)


def timed_ack_frames(
    channel: int, runs: Sequence[TimedRun], *, opcode: int, sequence: int = 0
) -> list[bytes]:
    """Return frames of runs with milliseconds: NACK or EXTEND. Otherwise as `ack_frames`."""
    return _run_frames(TIMED_ACK, channel, runs, opcode, sequence)


def acked_frame(channel: int, sequence: int, refused: Sequence[Run]) -> bytes:
    """Return the answer to a frame of runs that asked for one.

    More than `ACKS_PER_FRAME_MAX` refused runs are joined, lease by lease, to what covers them: a
    question names no more leases than that. The asker then takes too much for refused, never too
    little.
    """
    if len(refused) > ACKS_PER_FRAME_MAX:
        refused = _joined(refused)
    body = b"".join([ACK.pack(*run) for run in refused])
    return HEADER.pack(len(body), Opcode.ACKED, 0, MAGIC, channel, sequence) + body


def _joined(runs: Sequence[Run]) -> list[Run]:
    spans: dict[int, tuple[int, int]] = {}
    for lease, start, end in runs:
        low, high = spans.get(lease, (start, end))
        spans[lease] = (min(low, start), max(high, end))
    return [(lease, start, end) for lease, (start, end) in spans.items()]


def _run_frames(
    shape: struct.Struct,
    channel: int,
    runs: Sequence[tuple[int, ...]],
    opcode: int,
    sequence: int,
) -> list[bytes]:
    if sequence and len(runs) > ACKS_PER_FRAME_MAX:
        raise BadRequestError(f"an answer is for {ACKS_PER_FRAME_MAX} runs at most: ask in pieces")
    frames = []
    for start in range(0, len(runs), ACKS_PER_FRAME_MAX):
        some = runs[start : start + ACKS_PER_FRAME_MAX]
        body = b"".join([shape.pack(*run) for run in some])
        header = HEADER.pack(len(body), opcode, 0, MAGIC, channel, sequence)
        frames.append(header + body)
    return frames


def runs_of(body: memoryview) -> list[Run]:
    """Return the runs in the body of an ACK, ACK_THROUGH or ACKED frame, or raise `ProtocolError`.

    No run is empty or reaches beyond the last offset there can be.
    """
    return _runs(ACK, body)


def timed_runs_of(body: memoryview) -> list[TimedRun]:
    """Return the runs in the body of a NACK or EXTEND frame; as `runs_of`."""
    return _runs(TIMED_ACK, body)


def _runs(shape: struct.Struct, body: memoryview) -> list[Any]:
    if len(body) % shape.size:
        raise ProtocolError(f"a list of {shape.size}-byte runs has {len(body)} B")
    runs = list(shape.iter_unpack(body))
    for run in runs:
        if not run[1] < run[2] <= OFFSETS_END:
            raise ProtocolError(f"no offsets lie from {run[1]} up to {run[2]}")
    return runs


def ping_frame() -> bytes:
    """Return a PING frame."""
    return HEADER.pack(0, Opcode.PING, 0, MAGIC, 0, 0)


def pong_frame() -> bytes:
    """Return a PONG frame."""
    return HEADER.pack(0, Opcode.PONG, 0, MAGIC, 0, 0)


def control_frame(command: Command, *, channel: int = 0, sequence: int = 0) -> bytes:
    """Return a CONTROL frame of `command`."""
    body = encode_command(command)
    if len(body) > CONTROL_BYTES_MAX:
        raise BadRequestError(f"command of {len(body)} B exceeds {CONTROL_BYTES_MAX} B")
    return HEADER.pack(len(body), Opcode.CONTROL, 0, MAGIC, channel, sequence) + body


class FrameReader:
    """Cuts a stream of bytes into frames.

    A large frame that has come in part gets a place of its own, which `space` offers to the
    socket, so that the rest of it is never copied.

    Always true: no more than one incomplete frame is held, it was within its limit before the
    first byte of its body was kept, and memory for it is taken as its bytes come, not as its
    header claims.
    """

    __slots__ = ("_chunks", "_limits", "_need", "_place", "_pool", "buffered_bytes")

    def __init__(self, limits: list[tuple[int, int]], pool: "PlacePool | None" = None) -> None:
        self._limits = limits
        self._pool = pool or PlacePool()
        self._chunks: list[bytes] = []
        self._need = FRAME_HEADER_BYTES
        self._place: _Place | None = None
        # Memory held for an incomplete frame.
        self.buffered_bytes = 0

    def set_limits(self, limits: list[tuple[int, int]]) -> None:
        """Use other limits from the next frame on."""
        self._limits = limits

    def forget(self) -> None:
        """Let go of an incomplete frame."""
        self._chunks.clear()
        self._need = FRAME_HEADER_BYTES
        self._place = None
        self.buffered_bytes = 0

    def space(self) -> memoryview | None:
        """Return where the next bytes go, if they belong to a large frame: see `filled`."""
        return self._place.space() if self._place is not None else None

    def filled(self, count: int) -> list[Frame]:
        """`count` bytes were written into `space`: return the frame if that completes it."""
        place = self._place
        assert place is not None
        frame = place.filled(count)
        if frame is None:
            self.buffered_bytes = place.size_bytes
            return []
        self._place = None
        self.buffered_bytes = 0
        return [frame]

    def receive(self, data: bytes) -> list[Frame]:
        """Take bytes as they came, return the frames they complete, or raise `ProtocolError`."""
        frames: list[Frame] = []
        while self._place is not None:
            space = self._place.space()
            count = min(len(data), len(space))
            space[:count] = data[:count]
            del space
            frames += self.filled(count)
            data = data[count:]
            if not data:
                return frames
        if self._chunks:
            self._chunks.append(data)
            self.buffered_bytes += len(data)
            if self.buffered_bytes < self._need:
                if len(self._chunks) > CHUNKS_MAX:
                    self._chunks = [b"".join(self._chunks)]
                return frames
            data = b"".join(self._chunks)
            self._chunks.clear()
            self.buffered_bytes = 0
        self._cut(data, frames)
        return frames

    def _cut(self, data: bytes, frames: list[Frame]) -> None:
        """Append the frames in `data`, and keep what is left of it."""
        size, position = len(data), 0
        view = memoryview(data)
        while size - position >= FRAME_HEADER_BYTES:
            length, opcode, _, magic, channel, sequence = HEADER.unpack_from(data, position)
            smallest, largest = self._limits[opcode]
            if magic != MAGIC or not smallest <= length <= largest:
                raise _refusal(length, opcode, magic, smallest, largest)
            body = position + FRAME_HEADER_BYTES
            if body + length > size:
                if length >= PLACE_BYTES_MIN:
                    place = _Place((opcode, channel, sequence), length, view[body:], self._pool)
                    self._place = place
                    self.buffered_bytes = place.size_bytes
                    return
                self._need = FRAME_HEADER_BYTES + length
                break
            position = body + length
            frames.append((opcode, channel, sequence, view[body:position]))
        else:
            self._need = FRAME_HEADER_BYTES
        if position < size:
            rest = data[position:] if position else data
            self._chunks.append(rest)
            self.buffered_bytes = len(rest)


class _Place:
    """The body of a large frame that has come in part. It grows to at most twice what came."""

    __slots__ = ("_body", "_filled", "_frame", "_length", "_pool")

    def __init__(
        self, frame: tuple[int, int, int], length: int, start: memoryview, pool: "PlacePool"
    ) -> None:
        self._frame = frame
        self._length = length
        self._filled = len(start)
        self._pool = pool
        self._body = pool.take(min(length, max(PLACE_BYTES_FIRST, 2 * len(start))))
        self._body[: len(start)] = start

    @property
    def size_bytes(self) -> int:
        """Memory taken."""
        return len(self._body)

    def space(self) -> memoryview:
        """Return where the next bytes go; never empty."""
        end = min(len(self._body), self._length)
        if self._filled == end:
            end = min(self._length, 2 * self._filled)
            self._body += bytes(end - self._filled)
        return memoryview(self._body)[self._filled : end]

    def filled(self, count: int) -> Frame | None:
        """`count` bytes were written: return the frame if it is complete."""
        self._filled += count
        if self._filled < self._length:
            return None
        self._pool.lend(self._body)
        return (*self._frame, memoryview(self._body)[: self._length])


class PlacePool:
    """Lends out the memory of large frames again once nobody looks at it any more.

    New memory is zeroed by Python and mapped page by page by the system, which together cost
    more than receiving the frame. Whether somebody still looks is known for sure: a `bytearray`
    with a view on it cannot be resized.
    """

    __slots__ = ("_lent",)

    def __init__(self) -> None:
        self._lent: dict[int, deque[bytearray]] = {
            size_bytes: deque(maxlen=POOL_COUNT) for size_bytes in PLACE_SIZES
        }

    def take(self, size_bytes: int) -> bytearray:
        """Return at least `size_bytes` of memory nobody uses."""
        slot = bisect_left(PLACE_SIZES, size_bytes)
        if slot == len(PLACE_SIZES):
            return bytearray(size_bytes)
        lent = self._lent[PLACE_SIZES[slot]]
        for _ in range(min(POOL_TRIES, len(lent))):
            body = lent.popleft()
            if _is_free(body):
                return body
            lent.append(body)
        return bytearray(PLACE_SIZES[slot])

    def lend(self, body: bytearray) -> None:
        """Remember memory that a frame now uses. Larger pieces are left to the system."""
        lent = self._lent.get(len(body))
        if lent is not None:
            lent.append(body)


def _is_free(body: bytearray) -> bool:
    try:
        body.append(0)
    except BufferError:
        return False
    del body[-1:]
    return True


def _refusal(length: int, opcode: int, magic: int, smallest: int, largest: int) -> ProtocolError:
    if magic != MAGIC:
        return ProtocolError("this is no frame: is the peer an Ister client?")
    if smallest > largest:
        return ProtocolError(f"opcode {opcode} is unknown or comes before the handshake")
    return ProtocolError(
        f"frame with opcode {opcode} has {length} B, {smallest} to {largest} B are accepted"
    )
