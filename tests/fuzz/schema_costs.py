"""Schemas and payloads that try to cost as much as they can, of every kind, by number.

`python -m tests.fuzz.schema_costs FIRST COUNT` plays cases under a limit on memory and prints a
line for each call that took too long three times in a row. What a call may take is CPU time of its
thread, so that a busy machine changes nothing. What is done in a thread of the broker is also to
let others have a turn: a call of a library keeps the interpreter to itself.
"""

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable
from random import Random
from threading import Thread
from typing import Any

from ister.base.errors import IsterError
from ister.base.limits import CHECK_BYTES_MAX, CHECK_WORK_MAX
from ister.schemas import Mode, Schema, SchemaType, incompatibilities, parse_schema
from ister.server.serve import SWITCH_S

MEMORY_BYTES_MAX = 1_500 << 20
# In a thread, which others are not held up by: a budget of 300,000 steps, at 3 µs each.
PARSE_S_MAX = 1.0
COMPARE_S_MAX = 1.0
# In the event loop.
SHORT_CHECK_S_MAX = 0.05
# In a thread, of one payload: what the library takes, and Python to count.
PAYLOAD_S_MAX = 0.1
PAYLOAD_S_MAX_PER_BYTE = 0.3e-6
# For which nobody else has a turn.
KEPT_S_MAX = 0.05
ATTEMPTS = 3
LOOK_S = 0.0005

NAMES = ["a", "b", "c", "d", "items", "x" * 300]
Found = Callable[[str, float, float], None]


def play(number: int, on_slow: Found) -> None:
    """Play one case: parse two schemas, compare them, check payloads by the first."""
    random = Random(number)
    kind = random.choice([SchemaType.JSON_SCHEMA, SchemaType.AVRO, SchemaType.PROTOBUF])
    make = {
        SchemaType.JSON_SCHEMA: some_json_schema,
        SchemaType.AVRO: some_avro,
        SchemaType.PROTOBUF: some_protobuf,
    }[kind]
    size = random.choice([3, 10, 40, 200, 2_000])
    definitions = [make(random, size) for _ in range(2)]
    if random.random() < 0.3:
        definitions[1] = definitions[0]
    schemas = []
    for definition in definitions:
        with contextlib.suppress(IsterError):
            schemas.append(
                timed(f"parse {kind}", PARSE_S_MAX, on_slow, parse_schema, kind, definition)
            )
    if len(schemas) == 2:
        with contextlib.suppress(IsterError):
            mode = random.choice([Mode.BACKWARD, Mode.FORWARD])
            timed(
                f"compare {kind}", COMPARE_S_MAX, on_slow, incompatibilities, mode, *pair(schemas)
            )
    for schema in schemas[:1]:
        check(random, kind, schema, definitions, on_slow)


def pair(schemas: list[Schema]) -> tuple[Schema, list[Schema]]:
    return schemas[0], schemas[1:]


def check(
    random: Random, kind: SchemaType, schema: Schema, definitions: list[bytes], on_slow: Found
) -> None:
    validator = schema.validator()
    for _ in range(3):
        size = random.choice([100, 3_000, 60_000, 400_000])
        if kind is SchemaType.JSON_SCHEMA:
            payload = json.dumps(some_value(random, size, 0)).encode()[: 2 * size]
            if random.random() < 0.3:
                number = random.choice([b"1e308", b"1.5e-300", b"9" * 300, b"19.99"])
                payload = b"[" + b",".join([number] * (size // len(number))) + b"]"
        elif kind is SchemaType.AVRO and random.random() < 0.5:
            payload = container(random.choice(definitions), random.randbytes(random.randint(0, 9)))
        else:
            payload = some_bytes(random, size)
        limit = PAYLOAD_S_MAX + PAYLOAD_S_MAX_PER_BYTE * len(payload)
        if len(payload) <= CHECK_BYTES_MAX and validator.knows([payload]):
            is_short = len(payload) * validator.weight <= CHECK_WORK_MAX
            limit = SHORT_CHECK_S_MAX if is_short else limit
        if kind is SchemaType.AVRO and limit != SHORT_CHECK_S_MAX:
            limit = 4.0  # All in Python, where others have their turns.
        what = f"check {kind} {len(payload)} B"
        timed(what, limit, on_slow, validator.check, [payload])
        if limit != SHORT_CHECK_S_MAX:
            watched(what, on_slow, validator.check, [payload])


def timed(
    what: str, limit_s: float, on_slow: Found, function: Callable[..., Any], *args: Any
) -> Any:
    result, least = None, float("inf")
    for _ in range(ATTEMPTS):
        start = time.thread_time()
        try:
            result = function(*args)
        finally:
            least = min(least, time.thread_time() - start)
        if least <= limit_s:
            return result
    on_slow(what, least, limit_s)
    return result


def watched(what: str, on_slow: Found, function: Callable[..., Any], *args: Any) -> None:
    """Make a call in a thread, and see for how long this one has no turn meanwhile."""
    least = float("inf")
    for _ in range(ATTEMPTS):
        thread = Thread(target=function, args=args)
        longest, looked_s = 0.0, time.process_time()
        thread.start()
        while thread.is_alive():
            time.sleep(LOOK_S)
            before_s, looked_s = looked_s, time.process_time()
            longest = max(longest, looked_s - before_s)
        least = min(least, longest)
        if least <= KEPT_S_MAX:
            return
    on_slow(f"{what}, without a turn for others,", least, KEPT_S_MAX)


# JSON Schema


def some_json_schema(random: Random, size: int) -> bytes:
    count = random.randint(1, max(size // 3, 1))
    spread = random.choice([1, 2, count])

    def ref(slot: int) -> Any:
        # To the next ones, so that most lead in no circle; now and then anywhere.
        target = slot + random.randint(1, spread) if random.random() < 0.97 else 0
        return {"$ref": f"#/$defs/n{min(target, count)}"}

    def part(slot: int) -> Any:
        return ref(slot) if random.random() < 0.7 else some_leaf(random)

    def node(slot: int) -> Any:
        schema: dict[str, Any] = {}
        for _ in range(random.randint(1, 3)):
            match random.randrange(9):
                case 0 | 1:
                    keyword = random.choice(["allOf", "anyOf", "oneOf"])
                    schema[keyword] = [part(slot) for _ in range(random.randint(1, 3))]
                case 2 | 3:
                    names = random.sample(NAMES, random.randint(1, 3))
                    schema["properties"] = {name: part(slot) for name in names}
                case 4:
                    keyword = random.choice(["items", "contains", "additionalProperties", "not"])
                    schema[keyword] = part(slot)
                case 5:
                    schema["patternProperties"] = {some_pattern(random): part(slot)}
                case 6:
                    keyword = random.choice(["unevaluatedProperties", "unevaluatedItems"])
                    schema[keyword] = random.choice([False, part(slot)])
                case 7:
                    schema[random.choice(["if", "then", "propertyNames"])] = part(slot)
                case _:
                    schema.update(some_leaf(random))
        return schema

    parts = {f"n{slot}": node(slot) for slot in range(count)} | {f"n{count}": some_leaf(random)}
    document: dict[str, Any] = {"$defs": parts, "$ref": "#/$defs/n0"}
    if random.random() < 0.2:
        document["$schema"] = "http://json-schema.org/draft-07/schema#"
        document["definitions"] = document["$defs"]
    return json.dumps(document).encode()


def some_leaf(random: Random) -> dict[str, Any]:
    return random.choice(
        [
            {},
            {"type": random.choice(["string", "number", "object", "array"])},
            {"multipleOf": random.choice([1e-300, 0.01, 3, 1e300, 7e-5])},
            {"pattern": some_pattern(random)},
            {"enum": [random.randrange(1_000) for _ in range(random.choice([1, 50, 3_000]))]},
            {"enum": [{"a": [n]} for n in range(random.choice([1, 50, 1_000]))]},
            {"uniqueItems": True},
            {"format": random.choice(["regex", "email", "uri", "date-time", "hostname", "ipv6"])},
            {"required": [f"n{n}" for n in range(random.choice([1, 100, 2_000]))]},
            {"minimum": 1e308, "maximum": -5},
        ]
    )


def some_pattern(random: Random, depth: int = 3) -> str:
    if depth == 0 or random.random() < 0.2:
        return random.choice(["a", "b", ".", r"\w", r"\d", "[ab]", "[^c]", r"\p{L}", "^", "$"])
    one, other = some_pattern(random, depth - 1), some_pattern(random, depth - 1)
    return random.choice(
        [
            f"({one}|{other})*",
            f"({one}){{{random.choice([2, 9, 60, 400])}}}",
            f"({one}){{0,{random.choice([2, 9, 60, 400])}}}",
            f"{one}{other}",
            f"({one}+)+{other}",
            f"^{one}$",
        ]
    )


def some_value(random: Random, size: int, depth: int) -> Any:
    if size < 10 or depth > 90:
        numbers = [1, 1.5, 1e300, -1e-300, 10**30]
        return random.choice([None, True, *numbers, some_text(random, 5)])
    roll = random.random()
    if roll < 0.15:
        return some_text(random, size)
    if roll < 0.4:
        inner = size // random.choice([2, 10, 1_000])
        value = some_value(random, inner, depth + 1)
        return [value] * max(size // max(len(json.dumps(value)), 1), 1)
    if roll < 0.6:
        return {f"k{n}": n for n in range(size // 8)}
    if roll < 0.7:
        return [[n] for n in range(size // 5)]
    names = random.sample(NAMES[:-1], random.randint(1, 3))
    share = size if len(names) == 1 else size // len(names)
    return {name: some_value(random, share - 10, depth + 1) for name in names}


def some_text(random: Random, size: int) -> str:
    letters = random.choice(["ab", "a", "aé", "a.@/:", "0123456789-"])
    return "".join(random.choices(letters, k=size))


# Avro


def some_avro(random: Random, size: int) -> bytes:
    count = random.randint(1, min(size, 400))
    names = [
        f"{'n.' * random.randint(0, 1)}R{n % random.choice([3, 50, 999])}" for n in range(count)
    ]
    known: list[str] = []

    def kind(depth: int) -> Any:
        roll = random.random()
        if depth > 12 or roll < 0.2:
            return random.choice(["null", "int", "string", "bytes", "double", "long"])
        if roll < 0.35 and known:
            return random.choice(known)
        if roll < 0.6:
            some = random.sample(known, min(len(known), random.choice([1, 2, 60])))
            return [*dict.fromkeys(["null", *some, "int"])]
        if roll < 0.7:
            return {"type": "array", "items": ["int", *known[-2:]]}
        if roll < 0.8:
            return {"type": "map", "values": kind(depth + 1)}
        return define(depth + 1)

    def define(depth: int) -> Any:
        if not names:
            return "int"
        name = names.pop()
        if name in known:
            return name
        known.append(name)
        roll = random.random()
        if roll < 0.1:
            symbols = [f"S{n}" for n in range(random.choice([1, 50, 3_000]))]
            return {"type": "enum", "name": name, "symbols": symbols}
        if roll < 0.2:
            return {"type": "fixed", "name": name, "size": random.choice([0, 1, 1_000])}
        fields = []
        for letter in "abc"[: random.randint(1, 3)]:
            field: dict[str, Any] = {"name": letter, "type": kind(depth)}
            if random.random() < 0.5:
                field["default"] = some_default(random, random.randint(0, 40))
            fields.append(field)
        return {"type": "record", "name": name, "fields": fields}

    return json.dumps([*(part for part in (define(0) for _ in range(9)) if part != "int")]).encode()


def some_default(random: Random, levels: int) -> Any:
    value: Any = random.choice([None, 5, "text", 1.5, [], {}])
    for _ in range(levels):
        value = random.choice([{"a": value}, {"a": value, "b": value}, [value], {"c": value}])
    return value if len(str(value)) < 100_000 else None


def container(definition: bytes, block: bytes) -> bytes:
    meta = b"\x02\x16avro.schema" + number(len(definition)) + definition + b"\x00"
    blocks = number(1) + number(len(block)) + block + bytes(16)
    return b"Obj\x01" + meta + bytes(16) + blocks


def number(value: int) -> bytes:
    value, out = value * 2, b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def some_bytes(random: Random, size: int) -> bytes:
    piece = random.choice(
        [b"\x00", b"\x02", b"\x04\x02", b"\x0a\x00", b"\x0a\x02\x0a\x00", b"\x80"]
    )
    if random.random() < 0.3:
        return random.randbytes(min(size, 3_000))
    return piece * (size // len(piece))


# Protobuf


def some_protobuf(random: Random, size: int) -> bytes:
    count = random.randint(1, max(size // 4, 1))
    is_new = random.random() < 0.5
    labels = ["", "repeated ", "optional "] if is_new else ["optional ", "repeated ", "required "]
    text = ['syntax = "proto3";' if is_new else 'syntax = "proto2";', "package p.q;"]
    values = "".join(f"V{n} = {n};" for n in range(random.choice([1, 30, 2_000])))
    for slot in range(count):
        fields = []
        for tag in range(1, random.choice([2, 4, 12])):
            kind = random.choice(["int32", "string", "bytes", "E", f"M{random.randrange(count)}"])
            fields.append(f"{random.choice(labels)}{kind} f{tag} = {tag};")
        more = random.choice(
            ["", "reserved 100 to 200, 300;", "oneof o { int32 x = 90; M0 y = 91; }"]
        )
        text.append(f"message M{slot} {{ {''.join(fields)} {more} }}")
    return "\n".join([*text, f"enum E {{ {values} }}"]).encode()


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    sys.setswitchinterval(SWITCH_S)
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for case in range(first, first + count):

        def tell(what: str, seconds: float, limit_s: float, case: int = case) -> None:
            print(f"case {case}: {what} took {seconds:.3f} s, at most {limit_s:g}", flush=True)

        play(case, tell)
    print("done", flush=True)
