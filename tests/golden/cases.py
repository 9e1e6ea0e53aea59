"""What the golden files hold: every kind of batch, hot frame and control command."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.unit.codec.strategies import Messages
from tests.unit.wire.samples import COMMANDS

from ister.codec import Batch, Codec
from ister.wire import (
    BACKOFF_DELAY,
    Opcode,
    ack_frames,
    acked_frame,
    control_frame,
    credit_frame,
    deliver_frame,
    leased_frame,
    publish_frame,
    published_frame,
    reply_frame,
    timed_ack_frames,
)
from ister.wire.frames import ping_frame, pong_frame

BASE_OFFSET = 1_000
LEASE_NUMBER = 12
PRODUCER = {"producer": b"shop", "producer_id": 7, "first_sequence": 41}


@dataclass(frozen=True)
class BatchCase:
    """A batch: what is in it, how it is compressed, and which slots of it are selected."""

    messages: Messages
    codec: Codec = Codec.NONE
    slots: tuple[int, ...] = ()

    def build(self) -> bytes:
        batch = self.messages.batch(codec=self.codec, base_offset=BASE_OFFSET)
        return (batch.select(self.slots) if self.slots else batch).to_bytes()


EVERY_COLUMN = Messages(
    payloads=[b"first", b"", b"third"],
    keys=["k-1", None, "größe"],
    attributes=[{"region": "eu", "unit": "€"}, None, {"a": ""}],
    timestamps_ms=[1_600_000_000_000, -1, 0],
    ids=[None, "order-2", "order-3"],
    replies=[(81_985_529_216_486_895, 1), (81_985_529_216_486_895, 2), (1, 2**63 - 1)],
    header=PRODUCER,
)
LONG = Messages([b"a" * 50, b"b" * 50, b"c" * 30], keys=["k", "k", None], header=PRODUCER)

BATCHES: dict[str, BatchCase] = {
    "single": BatchCase(Messages([b"hi"])),
    "empty-payload": BatchCase(Messages([b""])),
    "plain": BatchCase(Messages([b"hello", b"Danube!"], header=PRODUCER)),
    "even": BatchCase(Messages([b"1234", b"5678", b"9abc"], header=PRODUCER)),
    "keys-with-nulls": BatchCase(
        Messages([b"a", b"b", b"c"], keys=["k-1", None, ""], header=PRODUCER)
    ),
    "every-column": BatchCase(EVERY_COLUMN),
    "selected": BatchCase(EVERY_COLUMN, slots=(0, 2)),
    "lz4": BatchCase(LONG, Codec.LZ4),
    "zstd": BatchCase(LONG, Codec.ZSTD),
}


def _batch(name: str) -> Batch:
    return Batch(BATCHES[name].build())


def _publish(opcode: int, channel: int, sequence: int, *, base_offset: int = 0) -> bytes:
    head, body = BATCHES["single"].messages.encoded()
    head = base_offset.to_bytes(8, "little") + head[8:]
    return b"".join(publish_frame(channel, sequence, head, body, opcode=opcode))


def _reply() -> bytes:
    messages = Messages([b"42"], replies=[(81_985_529_216_486_895, 1)])
    return b"".join(reply_frame(messages.encoded()))


def _one(frames: list[bytes]) -> bytes:
    [frame] = frames
    return frame


HOT_FRAMES: dict[str, Callable[[], bytes]] = {
    "publish": lambda: _publish(Opcode.PUBLISH, 3, 9),
    "publish-bulk": lambda: _publish(Opcode.PUBLISH_BULK, 3, 10),
    "publish-expect": lambda: _publish(Opcode.PUBLISH_EXPECT, 3, 11, base_offset=BASE_OFFSET),
    "stage": lambda: _publish(Opcode.STAGE, 5, 1),
    "stage-expect": lambda: _publish(Opcode.STAGE_EXPECT, 5, 1, base_offset=BASE_OFFSET),
    "published": lambda: published_frame(3, 9, BASE_OFFSET, 1_700_000_000_000),
    "deliver": lambda: b"".join(deliver_frame(2, 1, _batch("single"))),
    "credit": lambda: credit_frame(2, 65_536, 8_388_608),
    "deliver-leased": lambda: b"".join(
        leased_frame(2, 1, _batch("single"), LEASE_NUMBER, 1, 30_000)
    ),
    "ack": lambda: _one(ack_frames(2, [(12, 1_000, 1_003), (14, 1_003, 1_004)])),
    "ack-confirmed": lambda: _one(ack_frames(2, [(12, 1_000, 1_001)], sequence=6)),
    "ack-through": lambda: _one(
        ack_frames(2, [(14, 1_003, 1_004)], opcode=Opcode.ACK_THROUGH, sequence=7)
    ),
    "acked": lambda: acked_frame(2, 6, []),
    "acked-refused": lambda: acked_frame(2, 7, [(14, 1_003, 1_004)]),
    "nack": lambda: _one(timed_ack_frames(2, [(12, 1_000, 1_001, 5_000)], opcode=Opcode.NACK)),
    "nack-backoff": lambda: _one(
        timed_ack_frames(2, [(12, 1_000, 1_001, BACKOFF_DELAY)], opcode=Opcode.NACK)
    ),
    "extend": lambda: _one(
        timed_ack_frames(2, [(12, 1_000, 1_003, 60_000)], opcode=Opcode.EXTEND, sequence=8)
    ),
    "reply": _reply,
    "ping": ping_frame,
    "pong": pong_frame,
}

# Requests and their replies carry a sequence, notices about a consumer or reader its channel.
ON_CHANNEL = {
    "slow_consumer",
    "active_changed",
    "consumer_closed",
    "reader_ended",
    "timeline_due",
    "revoke_leases",
}
# What answers a publish carries both.
ANSWERS = {"published_each"}
NOTICES = {"topic_number", "no_responder", "going_away"}


def command_frame(name: str) -> bytes:
    """Return the control frame of a sample command, numbered as in a real dialogue."""
    if name in ANSWERS:
        return control_frame(COMMANDS[name], channel=3, sequence=9)
    if name in ON_CHANNEL:
        return control_frame(COMMANDS[name], channel=2)
    return control_frame(COMMANDS[name], sequence=0 if name in NOTICES | {"hello"} else 5)


def build_all() -> dict[str, bytes]:
    """Return the content of every golden file by its name."""
    return {
        **{f"batch-{name}": case.build() for name, case in BATCHES.items()},
        **{f"frame-{name}": build() for name, build in HOT_FRAMES.items()},
        **{f"command-{name}": command_frame(name) for name in COMMANDS},
    }
