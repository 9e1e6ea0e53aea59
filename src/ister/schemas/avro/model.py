"""An Avro schema: its types as a graph, and the same as fastavro wants it.

The only rules left to fastavro are those of reading and writing Python values; it takes almost
any definition, so the specification's rules of names, unions, defaults and sizes are checked
here. Two rules are our own, since payloads are read within bounds: types may not be nested more
than `NESTING_MAX` deep, also by names; and an array's items must take a byte or more, since a
billion of nothing fits into a few bytes.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ister.base.errors import BadSchemaError, ExtraMissingError
from ister.schemas.bounds import (
    ENUM_VALUES_MAX,
    NESTING_MAX,
    Json,
    Steps,
    canonical,
    check_name,
    decode_definition,
    parse_steps,
    shortened,
)
from ister.schemas.checking import Validator

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED = ("record", "enum", "fixed")
FIXED_BYTES_MAX = 1024 * 1024
# Branches of a union that a reason lists.
SHOWN_MAX = 10

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOGICAL = ("logicalType", "precision", "scale")


@dataclass(eq=False, slots=True)
class Node:
    """One type. Which of the fields mean something follows from `kind`."""

    kind: str
    name: str = ""  # The full name of a record, enum or fixed.
    aliases: tuple[str, ...] = ()
    fields: list["Field"] = field(default_factory=list)
    symbols: dict[str, None] = field(default_factory=dict)  # Of an enum, in order.
    default: str | None = None  # Of an enum.
    size: int = 0  # Of a fixed.
    inner: "list[Node]" = field(default_factory=list)  # Items, values, or a union's branches.
    logical: dict[str, Json] = field(default_factory=dict)

    def __str__(self) -> str:
        match self.kind:
            case "record" | "enum" | "fixed":
                return f"{self.kind} {self.name}"
            case "array" | "map":
                return f"{self.kind} of {self.inner[0]}"
            case "union":
                more = ", …" if len(self.inner) > SHOWN_MAX else ""
                return f"[{', '.join(map(str, self.inner[:SHOWN_MAX]))}{more}]"
        return self.kind

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    def children(self) -> "Sequence[Node]":
        return [f.node for f in self.fields] if self.kind == "record" else self.inner


@dataclass(eq=False, slots=True)
class Field:
    """A field of a record."""

    name: str
    node: Node
    aliases: tuple[str, ...]
    has_default: bool
    default: Json


class AvroModel:
    """An Avro schema that was understood."""

    def __init__(self, root: Node) -> None:
        self.root = root
        self.shape = Shape(root)
        normal = _written(root, set())
        self.fingerprint = "sha256:" + hashlib.sha256(canonical(normal)).hexdigest()
        # What fastavro reads and writes by.
        self.parsed = _parsed(normal)
        if root.kind == "record":
            _set_byte_defaults(root, self.parsed, set())

    def validator(self) -> Validator:
        from ister.schemas.avro.validator import AvroValidator

        return AvroValidator(self)


class Shape:
    """What bounds the walks over a schema: raises `BadSchemaError` when nothing does."""

    def __init__(self, root: Node) -> None:
        self._heights: dict[int, int] = {}
        # Types that take no bytes, which a walk need not visit.
        self.empty: set[int] = set()
        self._measure(root, [])

    def _measure(self, node: Node, path: list[Node]) -> int:
        known = self._heights.get(id(node))
        if known is not None:
            return known
        if node in path:
            cycle = path[path.index(node) :]
            if all(step.kind == "record" for step in cycle):
                raise BadSchemaError(f"record {node.name!r} contains itself without an end")
            return 0
        path.append(node)
        height = 1 + max((self._measure(child, path) for child in node.children()), default=0)
        path.pop()
        if height > NESTING_MAX:
            raise BadSchemaError(f"types are nested deeper than {NESTING_MAX} levels")
        if self._is_empty(node):
            self.empty.add(id(node))
        elif node.kind == "array" and id(node.inner[0]) in self.empty:
            raise BadSchemaError(f"an array's items take no bytes: {node.inner[0]}")
        self._heights[id(node)] = height
        return height

    def _is_empty(self, node: Node) -> bool:
        match node.kind:
            case "null":
                return True
            case "fixed":
                return node.size == 0
            case "record":
                # A record that is still being measured holds this one: it is not empty.
                return all(id(child) in self.empty for child in node.children())
        return False


def parse_avro(definition: bytes, steps: Steps | None = None) -> AvroModel:
    """Return the Avro schema that `definition` holds.

    Raises `BadSchemaError` and `SchemaTooComplexError`.
    """
    document = decode_definition(definition)
    return AvroModel(_Parser(steps or parse_steps()).parse(document, "", "the schema"))


class _Parser:
    """Resolves names while it goes through a definition once, in order, as Avro says."""

    def __init__(self, steps: Steps) -> None:
        self._named: dict[str, Node] = {}
        self._steps = steps
        self._defaults = _Defaults(steps)

    def parse(self, value: Json, namespace: str, place: str) -> Node:
        self._steps.spend()
        if isinstance(value, str):
            return self._reference(value, namespace, place)
        if isinstance(value, list):
            return self._union(value, namespace, place)
        if not isinstance(value, dict) or "type" not in value:
            raise BadSchemaError(f"{place}: a type is a name, a list, or an object with `type`")
        kind = value["type"]
        if not isinstance(kind, str):
            return self.parse(kind, namespace, place)
        match kind:
            case "record" | "error":
                return self._record(value, namespace, place)
            case "enum":
                return self._enum(value, namespace, place)
            case "fixed":
                return self._fixed(value, namespace, place)
            case "array" | "map":
                part = "items" if kind == "array" else "values"
                if part not in value:
                    raise BadSchemaError(f"{place}: {kind} has no `{part}`")
                inner = self.parse(value[part], namespace, f"{place}, {part}")
                return Node(kind, inner=[inner], logical=_logical(value))
        node = self._reference(kind, namespace, place)
        if kind in PRIMITIVES:
            node.logical = _logical(value)
        return node

    def _reference(self, name: str, namespace: str, place: str) -> Node:
        if name in PRIMITIVES:
            return Node(name)
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        node = self._named.get(full) or self._named.get(name)
        if node is None:
            raise BadSchemaError(f"{place}: there is no type {shortened(name)!r}")
        return node

    def _union(self, branches: list[Json], namespace: str, place: str) -> Node:
        if not branches:
            raise BadSchemaError(f"{place}: a union needs a type")
        nodes = [self.parse(branch, namespace, place) for branch in branches]
        seen = set()
        for node in nodes:
            if node.kind == "union":
                raise BadSchemaError(f"{place}: a union is in a union")
            key = node.name or node.kind
            if key in seen:
                raise BadSchemaError(f"{place}: a union has {key} twice")
            seen.add(key)
        return Node("union", inner=nodes)

    def _define(self, value: dict[str, Json], namespace: str, place: str) -> tuple[Node, str]:
        """Return a new named type, known from here on, and the namespace of what is inside it."""
        name, own = value.get("name"), value.get("namespace", namespace)
        if not isinstance(name, str) or not isinstance(own, str):
            raise BadSchemaError(f"{place}: {value['type']} has no name")
        if "." not in name and own:
            name = f"{own}.{name}"
        # A leading dot means the null namespace, which names nothing.
        name = name.removeprefix(".")
        _check_name(name, place)
        if name in self._named or name in PRIMITIVES:
            raise BadSchemaError(f"{place}: type {name!r} is defined twice")
        inside = name.rpartition(".")[0]
        aliases = tuple(
            alias if "." in alias or not inside else f"{inside}.{alias}"
            for alias in _names(value.get("aliases"), place)
        )
        kind = "record" if value["type"] == "error" else str(value["type"])
        node = Node(kind, name=name, aliases=aliases, logical=_logical(value))
        self._named[name] = node
        return node, inside

    def _record(self, value: dict[str, Json], namespace: str, place: str) -> Node:
        node, inside = self._define(value, namespace, place)
        fields = value.get("fields")
        if not isinstance(fields, list):
            raise BadSchemaError(f"{place}: record {node.name!r} has no list of `fields`")
        seen = set()
        for item in fields:
            if not isinstance(item, dict) or not isinstance(name := item.get("name"), str):
                raise BadSchemaError(f"{place}: a field of {node.name!r} has no name")
            where = f"field {node.short_name}.{shortened(name)}"
            if not _NAME.fullmatch(name) or name in seen:
                raise BadSchemaError(f"{where}: the name is no word, or there twice")
            check_name(name, where)
            if "type" not in item:
                raise BadSchemaError(f"{where}: it has no type")
            seen.add(name)
            inner = self.parse(item["type"], inside, where)
            # In a field's own object, a logical type belongs to the field's type only if that
            # is an object: `{"name": "t", "type": "long", "logicalType": …}` means a plain long.
            node.fields.append(
                Field(
                    name,
                    inner,
                    _names(item.get("aliases"), where),
                    "default" in item,
                    item.get("default"),
                )
            )
            if "default" in item and not self._defaults.fits(inner, item["default"]):
                raise BadSchemaError(f"{where}: the default is not a valid {shortened(str(inner))}")
        return node

    def _enum(self, value: dict[str, Json], namespace: str, place: str) -> Node:
        node, _ = self._define(value, namespace, place)
        symbols = value.get("symbols")
        if not isinstance(symbols, list) or len(symbols) > ENUM_VALUES_MAX:
            raise BadSchemaError(f"{place}: an enum has 1 to {ENUM_VALUES_MAX} `symbols`")
        words = [s for s in symbols if isinstance(s, str) and _NAME.fullmatch(s)]
        node.symbols = dict.fromkeys(words)
        if not words or len(words) != len(symbols) or len(node.symbols) != len(words):
            raise BadSchemaError(f"{place}: the symbols of {node.name!r} are not different words")
        default = value.get("default")
        if default is not None and not (isinstance(default, str) and default in node.symbols):
            raise BadSchemaError(f"{place}: the default of {node.name!r} is no symbol")
        node.default = default if isinstance(default, str) else None
        return node

    def _fixed(self, value: dict[str, Json], namespace: str, place: str) -> Node:
        node, _ = self._define(value, namespace, place)
        size = value.get("size")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= FIXED_BYTES_MAX:
            raise BadSchemaError(f"{place}: a fixed has 0 to {FIXED_BYTES_MAX} B")
        node.size = size
        return node


def _check_name(name: str, place: str) -> None:
    check_name(name, place)
    if not all(_NAME.fullmatch(part) for part in name.split(".")):
        raise BadSchemaError(f"{place}: {shortened(name)!r} is no name")


def _names(value: Json, place: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise BadSchemaError(f"{place}: `aliases` is no list of names")
    names = [name for name in value if isinstance(name, str)]
    for name in names:
        _check_name(name, place)
    return tuple(names)


def _logical(value: dict[str, Json]) -> dict[str, Json]:
    """Return the attributes of a logical type; unknown ones are plain, as Avro says."""
    if not isinstance(value.get("logicalType"), str):
        return {}
    return {name: value[name] for name in _LOGICAL if name in value}


class _Defaults:
    """Whether values, as JSON, are defaults of types: each pair of them is looked at once.

    Without that a union of two records that hold such unions doubles the work with each level of
    the value. A pair leads only to parts of its value, so that recursive types end.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        # By identity. Both sides are part of the document, which outlives this.
        self._known: dict[tuple[int, int], bool] = {}

    def fits(self, node: Node, value: Json) -> bool:
        """Return whether `value` is a default of `node`."""
        if node.kind not in _COMPOUND:
            # Scalars may be the same object at many places, and are quick to look at.
            self._steps.spend(1 + len(value) // 1_000 if isinstance(value, str) else 1)
            return _fits_scalar(node, value)
        pair = (id(node), id(value))
        known = self._known.get(pair)
        if known is None:
            self._steps.spend()
            known = self._known[pair] = self._fits_compound(node, value)
        return known

    def _fits_compound(self, node: Node, value: Json) -> bool:
        match node.kind:
            case "union":
                # Older versions of Avro say the first branch, newer ones any.
                return any(self.fits(branch, value) for branch in node.inner)
            case "array":
                inner = node.inner[0]
                return isinstance(value, list) and all(self.fits(inner, item) for item in value)
            case "map":
                inner = node.inner[0]
                return isinstance(value, dict) and all(
                    self.fits(inner, item) for item in value.values()
                )
        if not isinstance(value, dict):
            return False
        self._steps.spend(len(node.fields))
        return all(
            self.fits(f.node, value[f.name]) if f.name in value else f.has_default
            for f in node.fields
        )


_COMPOUND = ("union", "array", "map", "record")


def _fits_scalar(node: Node, value: Json) -> bool:
    match node.kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            limit = 2**31 if node.kind == "int" else 2**63
            is_int = isinstance(value, int) and not isinstance(value, bool)
            return is_int and -limit <= value < limit  # type: ignore[operator]
        case "float" | "double":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "bytes":
            return _is_bytes(value)
        case "fixed":
            return isinstance(value, str) and len(value) == node.size and _is_bytes(value)
    return isinstance(value, str) and value in node.symbols  # Of an enum.


def _is_bytes(value: Json) -> bool:
    """Return whether `value` is a text in which each character stands for a byte."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        return False
    return True


def _written(node: Node, seen: set[str]) -> Json:
    """Return `node` as JSON with full names, without what has no meaning, such as comments."""
    if node.kind == "union":
        return [_written(branch, seen) for branch in node.inner]
    if node.kind in PRIMITIVES:
        return {"type": node.kind, **node.logical} if node.logical else node.kind
    if node.kind in ("array", "map"):
        part = "items" if node.kind == "array" else "values"
        return {"type": node.kind, part: _written(node.inner[0], seen), **node.logical}
    if node.name in seen:
        return node.name
    seen.add(node.name)
    text: dict[str, Json] = {"type": node.kind, "name": node.name, **node.logical}
    if node.aliases:
        text["aliases"] = [*node.aliases]
    if node.kind == "fixed":
        text["size"] = node.size
    elif node.kind == "enum":
        text["symbols"] = [*node.symbols]
        if node.default is not None:
            text["default"] = node.default
    else:
        text["fields"] = [_written_field(f, seen) for f in node.fields]
    return text


def _written_field(part: Field, seen: set[str]) -> Json:
    text: dict[str, Json] = {"name": part.name, "type": _written(part.node, seen)}
    if part.aliases:
        text["aliases"] = [*part.aliases]
    if part.has_default:
        default = part.default
        is_float = part.node.kind in ("float", "double") and isinstance(default, int)
        text["default"] = float(default) if is_float else default  # type: ignore[arg-type]
    return text


def _parsed(normal: Any) -> Any:
    try:
        import fastavro
        from fastavro.schema import SchemaParseException
    except ImportError:
        raise ExtraMissingError("schemas of type avro", "schemas") from None
    try:
        return fastavro.parse_schema(normal)
    except (SchemaParseException, LookupError, TypeError, ValueError) as error:
        raise BadSchemaError(shortened(str(error))) from None


def _set_byte_defaults(node: Node, parsed: Any, seen: set[str]) -> None:
    """Make the defaults of bytes in what fastavro parsed bytes: it gives them to readers as is.

    Only inside a record, which fastavro does not parse again.
    """
    if not isinstance(parsed, dict | list):
        return
    if node.kind != "record":
        inner = parsed if isinstance(parsed, list) else [parsed.get("items", parsed.get("values"))]
        for child, part in zip(node.inner, inner, strict=False):
            _set_byte_defaults(child, part, seen)
        return
    if node.name in seen or not isinstance(parsed, dict):
        return
    seen.add(node.name)
    for own, written in zip(node.fields, parsed["fields"], strict=True):
        if own.node.kind in ("bytes", "fixed") and isinstance(own.default, str):
            # Avro writes a byte as the character with its number.
            written["default"] = own.default.encode("latin-1")
        _set_byte_defaults(own.node, written["type"], seen)
