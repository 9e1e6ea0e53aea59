"""What clients say in real life, frame by frame, and ways to spoil it."""

import random
from collections.abc import Callable

import msgspec
from tests.fuzz.timeline_dialogues import leasing, made_up, scheduling
from tests.unit.codec.strategies import resealed

from ister.base import EARLIEST, LATEST, Position, StreamSettings
from ister.broker.durable.lease_numbers import COUNT_BITS, PARTITION_BITS
from ister.codec import Codec, available, encode
from ister.wire import (
    BACKOFF_DELAY,
    AbortTransaction,
    BeginTransaction,
    CloseConsumer,
    CloseProducer,
    CloseReader,
    CloseStage,
    Command,
    CommitTransaction,
    CreateNamespace,
    CreateTopic,
    DeleteSubscription,
    DeleteTopic,
    DescribeBroker,
    DropStages,
    Hello,
    ListNamespaces,
    ListSubscriptions,
    ListTopics,
    Opcode,
    OpenProducer,
    OpenReader,
    OpenStage,
    PauseSubscription,
    PublishStages,
    PurgeTopic,
    SaveCursor,
    Seek,
    Subscribe,
    ack_frames,
    control_frame,
    credit_frame,
    publish_frame,
    reply_frame,
    timed_ack_frames,
)
from ister.wire.frames import ping_frame, pong_frame

# Sessions of one case have these numbers, so that replies can find them.
SESSIONS = range(1, 7)
TOPICS = ["/default/a", "/default/a", "/default/a.b", "/default/p-part-0", "/default/p-part-1"]
PATTERNS = [*TOPICS, "/default/*", "/default/>", "/default/>", "/default/p"]
FRAME_HEADER_BYTES = 16

Dialogue = list[bytes]

SETTINGS = [
    None,
    StreamSettings(),
    StreamSettings(durability="memory"),
    StreamSettings(durability="os", max_messages=10),
    StreamSettings(retention="workqueue"),
    StreamSettings(retention="interest"),
    StreamSettings(retention="compact", ttl_ms=1_000),
]


def hello(number: int) -> bytes:
    client = f"client-{number % 3}"
    return control_frame(Hello(client_id=client, secret=client, codecs=["none", "lz4"]))


def batch(rng: random.Random, *, replies: bool = False) -> tuple[bytes, bytes]:
    """Some messages with some of the columns."""
    count = rng.choice([1, 1, 2, 5, 40, 1_000 if rng.random() < 0.1 else 40])
    size = rng.choice([0, 3, 3, 100, 100, 2_000])
    return encode(
        [rng.randbytes(rng.choice([size, rng.randint(0, size)])) for _ in range(count)],
        keys=[rng.choice(["a1", "b1", None, ""]) for _ in range(count)]
        if rng.random() < 0.5
        else None,
        attributes=[rng.choice([{"x": "1"}, {"x": "2", "y": ""}, None]) for _ in range(count)]
        if rng.random() < 0.3
        else None,
        ids=[rng.choice(["id", None]) for _ in range(count)] if rng.random() < 0.2 else None,
        replies=[(rng.choice(SESSIONS), rng.randint(1, 9)) for _ in range(count)]
        if replies
        else None,
        producer=b"" if replies and rng.random() < 0.5 else b"p",
        first_sequence=rng.choice([0, 1, rng.randint(0, 500), 2**64 - 1]),
        codec=rng.choice(available()) if rng.random() < 0.3 else Codec.NONE,
    )


def producing(rng: random.Random) -> Dialogue:
    """Open a producer, publish, sometimes as requests, close it."""
    opened = OpenProducer(topic=rng.choice(TOPICS), name="p", channel=1)
    frames = [control_frame(opened, sequence=1)]
    for sequence in range(rng.randint(1, 15)):
        head, body = batch(rng, replies=rng.random() < 0.2)
        frames.append(b"".join(publish_frame(1, sequence, head, body)))
    if rng.random() < 0.5:
        frames.append(control_frame(CloseProducer(channel=1), sequence=2))
    return frames


def consuming(rng: random.Random) -> Dialogue:
    """Subscribe, grant credit bit by bit, answer requests, leave."""
    type_ = rng.choice(["exclusive", "shared", "failover", "key_shared"])
    wanted = Subscribe(
        topic=rng.choice(PATTERNS),
        subscription=rng.choice(["s", f"s-{type_}"]),
        consumer=f"c{rng.randint(0, 9)}",
        channel=7,
        type=type_,
        policy=rng.choice(["least_loaded", "round_robin", "random"]),
        key_filters=rng.choice([[], [], ["a*"], ["a*", "?1"]]),
        filters=rng.choice([{}, {}, {"x": "1"}]),
        start=rng.choice([EARLIEST, EARLIEST, LATEST]),
    )
    frames = [control_frame(wanted, sequence=1)]
    for _ in range(rng.randint(0, 8)):
        frames.append(
            credit_frame(7, rng.choice([0, 1, 2, 30, 1_000]), rng.choice([1, 10**6, 10**6]))
        )
        if rng.random() < 0.3:
            frames += ack_frames(7, runs(rng), sequence=rng.choice([0, 0, 3]))
        if rng.random() < 0.3:
            frames.append(b"".join(reply_frame(batch(rng, replies=True))))
    if rng.random() < 0.5:
        frames.append(control_frame(CloseConsumer(channel=7), sequence=2))
    return frames


def runs(rng: random.Random) -> list[tuple[int, int, int]]:
    """Runs of leases that may or may not be there."""
    starts = [rng.choice([0, 0, 1, 5, 2**63 - 100]) for _ in range(rng.choice([1, 1, 2, 9]))]
    first = 1 << COUNT_BITS << PARTITION_BITS
    lease = first + (rng.randint(0, 3) << PARTITION_BITS) + rng.choice([0, 0, 1])
    return [
        (rng.choice([lease, lease, 3]), start, start + rng.choice([1, 1, 2, 100]))
        for start in starts
    ]


def settling(rng: random.Random) -> Dialogue:
    """Subscribe, then acknowledge, refuse and keep messages in every way there is."""
    wanted = Subscribe(
        topic=rng.choice(PATTERNS), subscription="s", consumer="c", channel=8, start=EARLIEST
    )
    frames = [control_frame(wanted, sequence=1), credit_frame(8, 100, 10**6)]
    for sequence in range(rng.randint(1, 6)):
        opcode = rng.choice([Opcode.ACK, Opcode.ACK_THROUGH, Opcode.NACK, Opcode.EXTEND])
        if opcode in (Opcode.ACK, Opcode.ACK_THROUGH):
            frames += ack_frames(8, runs(rng), opcode=opcode, sequence=sequence)
        else:
            milliseconds = rng.choice([0, 1, 1_000, BACKOFF_DELAY])
            timed = [(*run, milliseconds) for run in runs(rng)]
            frames += timed_ack_frames(8, timed, opcode=opcode, sequence=sequence)
    return frames


def transacting(rng: random.Random) -> Dialogue:
    """Stage batches and commit them, or not."""
    begin = BeginTransaction(channel=9, transaction=rng.choice(["t", "u"]))
    frames = [control_frame(begin, sequence=1)]
    for _ in range(rng.randint(0, 4)):
        slot = rng.choice([0, 0, 1, 7])
        frames.append(b"".join(publish_frame(9, slot, *batch(rng), opcode=Opcode.STAGE)))
    end: list[Command] = [
        CommitTransaction(
            channel=9,
            topics=rng.choices(TOPICS, k=2),
            acks=[(8, *run) for run in runs(rng)] if rng.random() < 0.5 else [],
        ),
        AbortTransaction(channel=9),
    ]
    return [*frames, control_frame(rng.choice(end), sequence=2)]


def staging(rng: random.Random) -> Dialogue:
    """Fill a stage, close it or not, and publish or drop what may be there."""
    word = rng.choice(["s", "t"])
    frames = [control_frame(OpenStage(channel=11, stage=word), sequence=1)]
    for _ in range(rng.randint(0, 4)):
        slot = rng.choice([0, 0, 1, 7])
        frames.append(b"".join(publish_frame(11, slot, *batch(rng), opcode=Opcode.STAGE)))
    rest: list[Command] = [
        CloseStage(channel=11, topics=rng.choices(TOPICS, k=2)),
        PublishStages(
            stages=rng.choice([["s"], ["t"], ["s", "t"], []]),
            series=rng.choice(["q", "r"]),
            number=rng.choice([0, 1, 2, 2**62]),
        ),
        DropStages(stages=["s"]),
    ]
    kept = rest[: rng.randint(0, 3)] if rng.random() < 0.8 else rng.sample(rest, 3)
    return [*frames, *(control_frame(one, sequence=n + 2) for n, one in enumerate(kept))]


def reading(rng: random.Random) -> Dialogue:
    """Open a reader on anything, and publish where somebody else should not have been."""
    opened = OpenReader(
        topic=rng.choice(PATTERNS),
        channel=10,
        start=rng.choice([EARLIEST, LATEST, Position(origin="offset", at=rng.choice([0, 5, 99]))]),
        end=rng.choice([None, LATEST, Position(origin="time", at=1)]),
    )
    producer = OpenProducer(topic=rng.choice(TOPICS), name="p", channel=1)
    head, body = batch(rng)
    expected = rng.choice([0, 1, 5]).to_bytes(8, "little") + head[8:]
    return [
        control_frame(opened, sequence=1),
        credit_frame(10, 100, 10**6),
        control_frame(producer, sequence=2),
        b"".join(publish_frame(1, 1, expected, body, opcode=Opcode.PUBLISH_EXPECT)),
        control_frame(CloseReader(channel=10), sequence=3),
    ]


def administering(rng: random.Random) -> Dialogue:
    """Make, list and delete things."""
    commands: list[Command] = [
        CreateTopic(topic="/default/p", partitions=rng.choice([0, 2, 2, 3])),
        CreateTopic(topic=rng.choice(TOPICS)),
        CreateTopic(topic=rng.choice(TOPICS), kind="stream", stream=rng.choice(SETTINGS)),
        CreateTopic(topic="/default/p", kind="stream", partitions=2),
        PurgeTopic(topic=rng.choice(TOPICS), before=rng.choice([-1, 0, 5, 2**62])),
        Seek(topic=rng.choice(PATTERNS), subscription="s", to=rng.choice([EARLIEST, LATEST])),
        SaveCursor(topic=rng.choice(PATTERNS), subscription="s", name="n"),
        Seek(
            topic=rng.choice(PATTERNS),
            subscription="s",
            to=Position(origin="snapshot", name="n"),
        ),
        PauseSubscription(topic=rng.choice(PATTERNS), subscription="s", paused=rng.random() < 0.5),
        DeleteSubscription(topic=rng.choice(PATTERNS), subscription="s"),
        CreateNamespace(namespace=rng.choice(["default", "shop"])),
        DeleteTopic(topic=rng.choice(["/default/a", "/default/p", "/default/a.b"])),
        ListTopics(pattern=rng.choice(["", "/default/>", "/default/p"]), limit=rng.randint(-1, 9)),
        ListSubscriptions(topic=rng.choice(["", "/default/a"])),
        ListNamespaces(),
        DescribeBroker(),
    ]
    chosen = rng.sample(commands, rng.randint(1, len(commands)))
    frames = [control_frame(command, sequence=n + 1) for n, command in enumerate(chosen)]
    return [*frames, ping_frame(), pong_frame()]


def dialogue(rng: random.Random, number: int) -> Dialogue:
    """All that one client says."""
    parts: list[Callable[[random.Random], Dialogue]] = [
        producing,
        consuming,
        administering,
        settling,
        transacting,
        reading,
        staging,
        scheduling,
        leasing,
        made_up,
    ]
    frames = [hello(number)]
    for part in rng.choices(parts, weights=[6, 8, 2, 1, 1, 1, 2, 2, 4, 1], k=rng.randint(1, 2)):
        frames += part(rng)
    return frames


# Ways to spoil a dialogue.


def spoil(rng: random.Random, frames: Dialogue) -> None:
    """Change one thing, anywhere from the bytes to the order of the frames."""
    slot = rng.randrange(len(frames))
    way = rng.choice([_bytes, _bytes, _cut, _batch, _batch, _command, _command, _header, _order])
    way(rng, frames, slot)


def _bytes(rng: random.Random, frames: Dialogue, slot: int) -> None:
    frames[slot] = changed(rng, frames[slot], start=0)


def _cut(rng: random.Random, frames: Dialogue, slot: int) -> None:
    place = rng.randint(0, len(frames[slot]))
    frames[slot] = frames[slot][:place] + rng.randbytes(rng.choice([0, 0, 1, 16]))


def _header(rng: random.Random, frames: Dialogue, slot: int) -> None:
    if len(frames[slot]) < FRAME_HEADER_BYTES:
        return
    frame = bytearray(frames[slot])
    frame[rng.choice([4, 8, 12])] = rng.choice([0, 1, 2, 7, 16, 255])
    frames[slot] = bytes(frame)


def _order(rng: random.Random, frames: Dialogue, slot: int) -> None:
    match rng.randrange(3):
        case 0:
            frames.insert(rng.randrange(len(frames) + 1), frames[slot])
        case 1:
            frames.append(frames.pop(slot))
        case _:
            del frames[slot]
            frames.append(ping_frame())


# The frames of a client whose body is a batch.
WITH_BATCH = {
    bytes([opcode])
    for opcode in (
        Opcode.PUBLISH,
        Opcode.REPLY,
        Opcode.PUBLISH_EXPECT,
        Opcode.STAGE,
        Opcode.STAGE_EXPECT,
    )
}


def _batch(rng: random.Random, frames: Dialogue, slot: int) -> None:
    """Spoil a batch and make its checksum good, so that it is looked into."""
    frame = frames[slot]
    if frame[4:5] not in WITH_BATCH or len(frame) < 64 + FRAME_HEADER_BYTES:
        return
    body = changed(rng, frame[FRAME_HEADER_BYTES:], start=rng.choice([20, 20, 64]))
    frames[slot] = frame[:FRAME_HEADER_BYTES] + resealed(body)


def _command(rng: random.Random, frames: Dialogue, slot: int) -> None:
    """Put something else into a field of a command, of the right type or of another."""
    frame = frames[slot]
    if frame[4:5] != b"\x10":
        return
    try:
        fields = msgspec.msgpack.decode(frame[FRAME_HEADER_BYTES:])
        fields[rng.choice(list(fields))] = rng.choice(STRANGE)
    except (ValueError, TypeError, IndexError):
        return
    body = msgspec.msgpack.encode(fields)
    frames[slot] = len(body).to_bytes(4, "little") + frame[4:FRAME_HEADER_BYTES] + body


STRANGE: list[object] = [
    None,
    True,
    0,
    -1,
    7,
    2**32,
    2**64 - 1,
    1.5,
    "",
    "x",
    "/",
    "/default",
    "/default/p",
    "/default/a-part-0",
    "/default/a.>",
    "/nowhere/a",
    "shared",
    "\0",
    "ö" * 200,
    "*" * 10,
    [],
    ["*a*b*c*d"],
    ["a"] * 65,
    [[]],
    {},
    {"x": "*"},
    {"": ""},
    {"x": 1},
    b"\xff",
]


def changed(rng: random.Random, data: bytes, *, start: int) -> bytes:
    """Return `data` with a few bytes from `start` on replaced, most of them near `start`."""
    if len(data) <= start:
        return data
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        end = rng.choice([min(start + 44, len(data)), len(data)])
        changed[rng.randrange(start, end)] = rng.choice(
            [0, 1, 8, 127, 128, 255, rng.randrange(256)]
        )
    return bytes(changed)
