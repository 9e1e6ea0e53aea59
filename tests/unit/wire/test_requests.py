"""What a client asks is decoded or refused soon, however its command is made."""

import struct
import time
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from tests.fuzz.stalling import speed
from tests.unit.wire.samples import COMMANDS

from ister.base.errors import ProtocolError
from ister.base.limits import (
    CONTROL_BYTES_MAX,
    IN_FLIGHT_COUNT_MAX,
    KEPT_COUNT_MAX,
    KIB,
    REQUEST_ITEMS_MAX,
    STAGE_TOPICS_MAX,
    STAGES_MAX,
    TIMELINE_CHANGES_MAX,
    TRANSACTION_ACKS_MAX,
    TRANSACTION_TOPICS_MAX,
    WATCHED_STREAMS_MAX,
)
from ister.wire import (
    ChangeTimeline,
    CloseConsumer,
    CloseStage,
    Command,
    CommitTransaction,
    DropStages,
    PublishStages,
    RegisterSchema,
    Subscribe,
    WatchStreams,
    decode_request,
)
from ister.wire.commands import encode_command
from ister.wire.requests import FIELDS_MAX, LARGE_FIELDS, SMALL_BYTES_MAX

DECODING_S = 0.020

pack = msgspec.msgpack.encode
PACKED = {name: msgspec.msgpack.decode(encode_command(c)) for name, c in COMMANDS.items()}


def joined(pairs: list[tuple[bytes, bytes]]) -> bytes:
    """Return a map of packed keys and values; a key may be there twice."""
    parts = [part for pair in pairs for part in pair]
    return b"\xdf" + struct.pack(">I", len(pairs)) + b"".join(parts)


def grown(value: Any, size_bytes: int) -> Iterator[Any]:
    """Return values of `size_bytes` that take long to decode, of the kind of `value`."""
    if isinstance(value, list) and value:
        one = value[:1]
        yield one * (size_bytes // len(pack(one[0])))
        for short in ([""], [0]):
            if isinstance(value[0], type(short[0])):
                yield short * size_bytes
    elif isinstance(value, dict) and value:
        item = next(iter(value.values()))
        count = size_bytes // (5 + len(pack(item)))
        yield {f"{n:x}": item for n in range(count)}
        yield {f"{n:x}": "" for n in range(size_bytes // 6)}
    elif isinstance(value, (str, bytes)):
        yield value[:1] * size_bytes


def nested(value: Any, size_bytes: int) -> Iterator[bytes]:
    """Return packed values that repeat a field of a nested map."""
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        slow = [key for key, inner in value.items() if isinstance(inner, (list, dict))]
        for key in slow or list(value)[:1]:
            inner = value[key]
            pair = (pack(key), pack(inner))
            yield joined([pair] * (size_bytes // len(b"".join(pair))))


def hostile(name: str, size_bytes: int) -> Iterator[bytes]:
    """Return commands of about `size_bytes` that take as long to decode as they can."""
    command = PACKED[name]
    room = size_bytes - len(pack(command)) - 100
    for field, value in command.items():
        if not isinstance(value, (list, dict, bytes)) and field != "topic":
            continue
        for large in grown(value, room):
            yield pack(command | {field: large})
        others = [(pack(k), pack(v)) for k, v in command.items() if k != field]
        for large in nested(value, room):
            yield joined([*others, (pack(field), large)])
        for some in grown(value, min(room, 40_000)):
            again = (pack(field), pack(some))
            yield joined([*others, *[again] * (room // len(b"".join(again)))])
    yield pack(command | {"unknown": [[]] * room})
    yield pack(command | {f"{n:x}": 0 for n in range(room // 7)})


def seconds(body: bytes) -> float:
    """Return the CPU time of decoding, the least of three."""
    least = 9.0
    for _ in range(3):
        start = time.thread_time()
        try:
            decode_request(body)
        except ProtocolError:
            pass
        least = min(least, time.thread_time() - start)
        if least < DECODING_S:
            break
    return least


@pytest.mark.parametrize("size_bytes", [SMALL_BYTES_MAX, CONTROL_BYTES_MAX])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_decoded_or_refused_soon(name: str, size_bytes: int) -> None:
    longest = max(seconds(body) for body in hostile(name, size_bytes) if len(body) <= size_bytes)

    assert longest < DECODING_S or longest < DECODING_S * speed()


@pytest.mark.parametrize(
    "command",
    [
        RegisterSchema(subject="s", type="avro", definition=bytes(1024 * KIB)),
        CommitTransaction(
            channel=1,
            topics=["t" * 255] * TRANSACTION_TOPICS_MAX,
            acks=[(2**40, 2**40, 2**40, 2**40)] * TRANSACTION_ACKS_MAX,
        ),
        CloseStage(channel=1, topics=["t" * 255] * STAGE_TOPICS_MAX),
        PublishStages(stages=["s" * 36] * STAGES_MAX, series="s", number=1),
        DropStages(stages=["s" * 36] * STAGES_MAX),
        WatchStreams(
            topics=["t" * 200] * WATCHED_STREAMS_MAX,
            beyond={f"{n:200}": 2**40 for n in range(WATCHED_STREAMS_MAX)},
        ),
        CloseConsumer(channel=1, kept=["k"] * KEPT_COUNT_MAX),
        Subscribe(
            topic="/d/t",
            subscription="s",
            consumer="c",
            channel=1,
            held=list(range(IN_FLIGHT_COUNT_MAX)),
        ),
        ChangeTimeline(
            topic="/d/t",
            group="g",
            kinds=bytes(TIMELINE_CHANGES_MAX),
            ids=["i" * 255] * TIMELINE_CHANGES_MAX,
            payloads=[bytes(1_024)] * TIMELINE_CHANGES_MAX,
        ),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_command_at_its_limits_is_accepted(command: Command) -> None:
    assert decode_request(encode_command(command)) == command


def test_a_list_with_too_many_items_is_refused() -> None:
    most = DropStages(stages=["s"] * REQUEST_ITEMS_MAX)

    assert decode_request(encode_command(most)) == most
    with pytest.raises(ProtocolError, match=f"length <= {REQUEST_ITEMS_MAX}"):
        decode_request(encode_command(DropStages(stages=["s"] * (REQUEST_ITEMS_MAX + 1))))


@pytest.mark.parametrize("head", ["fixmap", "map16", "map32"])
def test_a_large_command_with_a_field_twice_is_refused(head: str) -> None:
    fields = [
        (pack("op"), pack("register_schema")),
        (pack("subject"), pack("s")),
        (pack("type"), pack("avro")),
        (pack("definition"), pack(bytes(SMALL_BYTES_MAX))),
    ]

    def body(pairs: list[tuple[bytes, bytes]]) -> bytes:
        heads = {
            "fixmap": bytes([0x80 + len(pairs)]),
            "map16": b"\xde" + struct.pack(">H", len(pairs)),
            "map32": b"\xdf" + struct.pack(">I", len(pairs)),
        }
        return heads[head] + b"".join(part for pair in pairs for part in pair)

    assert isinstance(decode_request(body(fields)), RegisterSchema)
    with pytest.raises(ProtocolError, match="twice"):
        decode_request(body([*fields, fields[1]]))


@pytest.mark.parametrize(
    "body",
    [
        bytes(SMALL_BYTES_MAX + 1),
        pack([0] * (SMALL_BYTES_MAX + 1)),
        pack({"x": bytes(SMALL_BYTES_MAX)}),
        pack({"op": 7, "x": bytes(SMALL_BYTES_MAX)}),
        pack({"op": "fly", "x": bytes(SMALL_BYTES_MAX)}),
        pack({"op": "create_topic", "topic": "/d/" + "t" * SMALL_BYTES_MAX}),
        pack({"op": "create_topic", "topic": "/d/t", 7: bytes(SMALL_BYTES_MAX)}),
        b"\x91" * (SMALL_BYTES_MAX + 1),
    ],
    ids=["numbers", "list", "no op", "op is a number", "unknown", "name", "number as key", "deep"],
)
def test_a_large_command_that_makes_no_sense_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request(body)


def test_every_large_field_is_a_field_of_its_command() -> None:
    fields = {c.__struct_config__.tag: set(c.__struct_fields__) for c in get_args(Command)}

    assert all(LARGE_FIELDS[name] <= fields[name] for name in LARGE_FIELDS)
    assert max(map(len, fields.values())) < FIELDS_MAX
