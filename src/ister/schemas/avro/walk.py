"""Walks over Avro's binary form without building values: whether bytes are of a type.

fastavro cannot do this for us. It reads hostile bytes as happily as good ones: nested a million
deep they end the process, a negative slot of an enum counts from the end, and nothing bounds its
time. The walk is a function for each type, made once for a schema.
"""

from collections.abc import Callable

from ister.schemas.avro.model import AvroModel, Node
from ister.schemas.bounds import CHECK_STEPS_MAX, PAYLOAD_NESTING_MAX


class BadValueError(Exception):
    """Bytes are not of their type; `path` leads to the place."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        if not self.path:
            return self.reason
        shown = self.path if len(self.path) <= 10 else [*self.path[:5], "…", *self.path[-5:]]
        return f"field {'.'.join(shown)}: {self.reason}"


class Budget:
    """How many values may still be looked at for one batch."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = CHECK_STEPS_MAX

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise BadValueError(
                f"checking takes more than {CHECK_STEPS_MAX} steps for one batch: "
                "send smaller batches"
            )


# From the data, a position in it and the depth to the position behind the value.
Step = Callable[[bytes, int, int, Budget], int]


class Walker:
    """Walks over values of one schema."""

    def __init__(self, model: AvroModel) -> None:
        self._empty = model.shape.empty
        # Named types are found here when they are walked over, which ends recursion in making.
        self._named: dict[str, Step] = {}
        self._waiting: list[Node] = []
        self._root = self._step(model.root)
        while self._waiting:
            node = self._waiting.pop()
            if node.name not in self._named:
                self._named[node.name] = self._named_step(node)

    def end_of(self, data: bytes, position: int, budget: Budget) -> int:
        """Return the position behind the value that begins at `position`.

        Raises `BadValueError` when there is none.
        """
        try:
            return self._root(data, position, 0, budget)
        except IndexError:
            raise BadValueError("the payload ends in the middle of a value") from None

    def _step(self, node: Node) -> Step:
        if id(node) in self._empty:
            return _nothing
        if node.name:
            self._waiting.append(node)
            return _later(self._named, node.name)
        match node.kind:
            case "union":
                return _union([self._step(branch) for branch in node.inner])
            case "array":
                return _blocks(self._step(node.inner[0]), "array")
            case "map":
                return _blocks(_entry(self._step(node.inner[0])), "map")
        return _PRIMITIVES[node.kind]

    def _named_step(self, node: Node) -> Step:
        match node.kind:
            case "enum":
                return _enum(len(node.symbols))
            case "fixed":
                return _sized(node.size)
        fields = [(f.name, f.node) for f in node.fields if id(f.node) not in self._empty]
        return _record([(name, self._step(child)) for name, child in fields])


def read_long(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position` and the position behind it; `IndexError` beyond the end."""
    byte = data[position]
    position += 1
    value, shift = byte & 0x7F, 7
    while byte & 0x80:
        if shift > 63:
            raise BadValueError("a number has more than 64 bits")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    if value >> 64:
        raise BadValueError("a number has more than 64 bits")
    return (value >> 1) ^ -(value & 1), position


# Bytes that are a number from 0 to 63 by themselves.
_SMALL = frozenset(range(0, 128, 2))


def _nothing(data: bytes, position: int, depth: int, budget: Budget) -> int:  # noqa: ARG001
    return position


def _boolean(data: bytes, position: int, depth: int, budget: Budget) -> int:  # noqa: ARG001
    if data[position] > 1:
        raise BadValueError(f"byte {data[position]} is no boolean")
    return position + 1


def _int(data: bytes, position: int, depth: int, budget: Budget) -> int:  # noqa: ARG001
    value, position = read_long(data, position)
    if not -(2**31) <= value < 2**31:
        raise BadValueError("an int has more than 32 bits")
    return position


def _long(data: bytes, position: int, depth: int, budget: Budget) -> int:  # noqa: ARG001
    return read_long(data, position)[1]


def _bytes(data: bytes, position: int, depth: int, budget: Budget) -> int:  # noqa: ARG001
    size, position = read_long(data, position)
    end = position + size
    if size < 0 or end > len(data):
        raise BadValueError(f"a value of {size} B does not fit into the payload")
    return end


def _string(data: bytes, position: int, depth: int, budget: Budget) -> int:  # noqa: ARG001
    # A size below 64 is one byte, twice the size: most are.
    byte = data[position]
    size, start = (byte >> 1, position + 1) if byte in _SMALL else read_long(data, position)
    end = start + size
    if size < 0 or end > len(data):
        raise BadValueError(f"a text of {size} B does not fit into the payload")
    text = data[start:end]
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError:
            raise BadValueError("a text is not UTF-8") from None
    return end


def _sized(size: int) -> Step:
    def step(data: bytes, position: int, depth: int, budget: Budget) -> int:  # noqa: ARG001
        end = position + size
        if end > len(data):
            raise BadValueError(f"a value of {size} B does not fit into the payload")
        return end

    return step


_PRIMITIVES: dict[str, Step] = {
    "null": _nothing,
    "boolean": _boolean,
    "int": _int,
    "long": _long,
    "float": _sized(4),
    "double": _sized(8),
    "bytes": _bytes,
    "string": _string,
}


def _enum(count: int) -> Step:
    def step(data: bytes, position: int, depth: int, budget: Budget) -> int:  # noqa: ARG001
        slot, position = read_long(data, position)
        if not 0 <= slot < count:
            raise BadValueError(f"slot {slot} is none of the {count} symbols")
        return position

    return step


def _union(branches: list[Step]) -> Step:
    count = len(branches)

    def step(data: bytes, position: int, depth: int, budget: Budget) -> int:
        byte = data[position]
        if byte in _SMALL:
            slot, position = byte >> 1, position + 1
        else:
            slot, position = read_long(data, position)
        if not 0 <= slot < count:
            raise BadValueError(f"slot {slot} is none of the {count} types of a union")
        return branches[slot](data, position, depth, budget)

    return step


def _blocks(item: Step, what: str) -> Step:
    def step(data: bytes, position: int, depth: int, budget: Budget) -> int:
        if depth >= PAYLOAD_NESTING_MAX:
            raise BadValueError(f"nested deeper than {PAYLOAD_NESTING_MAX} levels")
        while True:
            count, position = read_long(data, position)
            if count == 0:
                return position
            if count < 0:
                # The block's size follows, for readers that skip it.
                count = -count
                _, position = read_long(data, position)
            if count > len(data) - position:
                raise BadValueError(f"{count} items of a {what} do not fit into the payload")
            budget.spend(count)
            for _ in range(count):
                position = item(data, position, depth + 1, budget)

    return step


def _entry(value: Step) -> Step:
    def step(data: bytes, position: int, depth: int, budget: Budget) -> int:
        return value(data, _string(data, position, depth, budget), depth, budget)

    return step


def _later(named: dict[str, Step], name: str) -> Step:
    def step(data: bytes, position: int, depth: int, budget: Budget) -> int:
        return named[name](data, position, depth, budget)

    return step


def _record(fields: list[tuple[str, Step]]) -> Step:
    steps = [step for _, step in fields]
    count = len(steps)

    def step(data: bytes, position: int, depth: int, budget: Budget) -> int:
        if depth >= PAYLOAD_NESTING_MAX:
            raise BadValueError(f"nested deeper than {PAYLOAD_NESTING_MAX} levels")
        budget.spend(count)
        slot = 0
        try:
            for slot, read in enumerate(steps):  # noqa: B007 (the handlers use it)
                position = read(data, position, depth + 1, budget)
        except IndexError:
            bad = BadValueError("the payload ends in the middle of a value")
            bad.path.append(fields[slot][0])
            raise bad from None
        except BadValueError as error:
            error.path.insert(0, fields[slot][0])
            raise
        return position

    return step
