"""What owners and consumers of timelines say, and commands of theirs that are made up."""

import random
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
from msgspec import inspect

from ister.base import TimelineSettings
from ister.testing.clock import START_MS
from ister.wire import (
    DELETE,
    DONE,
    EXTEND,
    MOVE,
    PUT,
    RELEASE,
    UPDATE,
    AskTime,
    ChangeTimeline,
    CloseConsumer,
    Command,
    ConsumeTimeline,
    CountTimeline,
    CreateTopic,
    FinishLeases,
    GetFromTimeline,
    LeasesRevoked,
    ListTimeline,
    control_frame,
    credit_frame,
)
from ister.wire.timelines import TimelineCommand

# Mostly one, so that owners and consumers meet.
TIMELINES = [*["/default/t"] * 7, "/default/urgent"]
IDS = ["a", "b", "c", "d", "ö" * 60]
GROUPS = ["shop", "shop", "shop", "", "other"]
CHANNEL = 12
SPANS_MS = [-1_000, 0, 10, 300, 3_000, 60_000]

COMMANDS: list[type[Command]] = list(get_args(TimelineCommand))


def creating(rng: random.Random) -> list[Command]:
    """Make the topics, or find that they are there."""
    settings = TimelineSettings(max_leases=rng.choice([0, 1, 5]))
    return [
        CreateTopic(topic="/default/t", kind="timeline", timeline=settings),
        CreateTopic(topic="/default/urgent", kind="priority"),
    ]


def scheduling(rng: random.Random, now_ms: int = START_MS) -> list[bytes]:
    """Put messages and change them, alone and together, and look at what there is."""
    commands = creating(rng) if rng.random() < 0.7 else []
    for _ in range(rng.randint(1, 6)):
        commands.append(_changes(rng, now_ms))
        topic = rng.choice(TIMELINES)
        start_ms = rng.choice([0, now_ms])
        end_ms = rng.choice([0, now_ms + 1_000, 2**53])
        asked: list[Command] = [
            GetFromTimeline(topic=topic, id=rng.choice(IDS)),
            ListTimeline(topic=topic, start_ms=start_ms, end_ms=end_ms, limit=rng.choice([1, 100])),
            CountTimeline(topic=topic, start_ms=start_ms, end_ms=end_ms),
            AskTime(),
        ]
        commands += rng.sample(asked, rng.randint(0, 2))
    return _frames(commands)


def leasing(rng: random.Random, now_ms: int = START_MS) -> list[bytes]:
    """Consume, and say all there is to be said of messages that may be leased or not."""
    consume = ConsumeTimeline(
        topic=rng.choice(TIMELINES),
        consumer=rng.choice(["w", "w", "v"]),
        channel=CHANNEL,
        lease_ms=rng.choice([10, 1_000, 60_000]),
        prefetch_ms=rng.choice([0, 500, 5_000]),
        credit=rng.choice([1, 3, 1_000]),
    )
    frames = _frames([*creating(rng), consume, _changes(rng, now_ms)])
    for _ in range(rng.randint(0, 6)):
        frames += _frames([_finishes(rng, now_ms), _changes(rng, now_ms)])
        if rng.random() < 0.3:
            frames.append(credit_frame(CHANNEL, rng.choice([0, 1, 2**31 - 1]), 0))
        if rng.random() < 0.3:
            frames += _frames([_answer(rng)])
    if rng.random() < 0.5:
        frames += _frames([CloseConsumer(channel=CHANNEL)])
    return frames


def made_up(rng: random.Random) -> list[bytes]:
    """Say commands with fields of the right types, and nothing else that is right."""
    frames = []
    for _ in range(rng.randint(1, 5)):
        kind = rng.choice(COMMANDS)
        fields = {
            field.name: _value(rng, field.type)
            for field in msgspec.structs.fields(kind)
            if field.required or rng.random() < 0.5
        }
        frames += _frames([kind(**fields)])
    return frames


def _frames(commands: Sequence[Command]) -> list[bytes]:
    return [control_frame(command, sequence=n + 1) for n, command in enumerate(commands)]


def _changes(rng: random.Random, now_ms: int) -> Command:
    count = rng.choice([1, 1, 2, 5])
    return ChangeTimeline(
        topic=rng.choice(TIMELINES),
        group=rng.choice(GROUPS),
        kinds=bytes(rng.choices([PUT, PUT, PUT, MOVE, UPDATE, DELETE], k=count)),
        ids=rng.choices(IDS, k=count),
        due_ms=[max(now_ms + rng.choice(SPANS_MS), 0) for _ in range(count)],
        payloads=[rng.randbytes(rng.choice([0, 5, 2_000])) for _ in range(count)],
        levels=rng.choice([[], [rng.choice([0, 3, 31]) for _ in range(count)]]),
        versions=rng.choice([[], [rng.choice([0, 1, 5]) for _ in range(count)]]),
        atomic=rng.random() < 0.3,
    )


def _finishes(rng: random.Random, now_ms: int) -> Command:
    count = rng.choice([1, 1, 3])
    return FinishLeases(
        channel=CHANNEL,
        kinds=bytes(rng.choices([DONE, DONE, EXTEND, RELEASE], k=count)),
        ids=rng.choices(IDS, k=count),
        versions=[rng.randint(0, 20) for _ in range(count)],
        times_ms=[rng.choice([0, 1, 500, now_ms + 500]) for _ in range(count)],
        lateness_us=rng.choice([[], [rng.choice([-1, 0, 700, 2**60]) for _ in range(count)]]),
    )


def _answer(rng: random.Random) -> Command:
    return LeasesRevoked(
        channel=CHANNEL,
        ids=[rng.choice(IDS)],
        versions=[rng.randint(0, 20)],
        kept=[rng.random() < 0.5],
    )


TEXTS = [*TIMELINES[-3:], *IDS, "", "shop", "w", "\0", "x" * 300, "* * * * *", "Europe/Vienna"]
NUMBERS = [0, 0, 1, 1, 2, CHANNEL, CHANNEL, 31, 32, 1_000, START_MS, 2**53, 2**63 - 1]
# Maps of text, maps of other things, and no maps.
BYTES = [
    b"",
    b"\x00",
    b"\x03\x03",
    b"\x04",
    msgspec.msgpack.encode({"a": "1"}),
    msgspec.msgpack.encode({"a": 1}),
    b"\x91" * 2_000,
    b"\xdf\xff\xff\xff\xff",
    b"\x81\xa1a\xa1\xff",
]


def _value(rng: random.Random, kind: Any) -> Any:
    """Return a value of a type, as commands have them."""
    return _value_of(rng, inspect.type_info(kind))


def _value_of(rng: random.Random, kind: inspect.Type) -> Any:
    match kind:
        case inspect.StrType():
            return rng.choice(TEXTS)
        case inspect.BoolType():
            return rng.random() < 0.5
        case inspect.IntType():
            return rng.choice([*NUMBERS, -1, -(2**63), 2**64 - 1])
        case inspect.FloatType():
            return rng.choice([0.0, -1.0, 1e300])
        case inspect.BytesType():
            return rng.choice(BYTES)
        case inspect.ListType():
            count = rng.choice([0, 1, 1, 1, 2, 1_001])
            return [_value_of(rng, kind.item_type) for _ in range(count)]
        case inspect.TupleType():
            return tuple(_value_of(rng, item) for item in kind.item_types)
        case inspect.DictType():
            count = rng.choice([0, 1, 3])
            return {
                _value_of(rng, kind.key_type): _value_of(rng, kind.value_type) for _ in range(count)
            }
        case inspect.UnionType():
            return _value_of(rng, rng.choice(kind.types))
        case inspect.StructType() | inspect.DataclassType():
            return kind.cls(
                **{
                    field.encode_name: _value_of(rng, field.type)
                    for field in kind.fields
                    if field.required
                }
            )
        case _:
            return None
