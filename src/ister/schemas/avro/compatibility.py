"""Whether data of one Avro schema can be read with another: the specification's resolution.

Where the specification leaves a choice, this follows fastavro, which reads the data in the end:
of a reader's union it takes the first branch that fits from the outside.
"""

from collections import deque
from contextlib import suppress

from ister.schemas.avro.model import NAMED, AvroModel, Node
from ister.schemas.bounds import BREAKS_MAX, Steps, compare_steps, place_below, shortened
from ister.schemas.breaks import Break

# What a reader's type takes beside itself.
_PROMOTIONS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}


def avro_breaks(*, reader: AvroModel, writer: AvroModel, steps: Steps | None = None) -> list[Break]:
    """Return what keeps `reader` from reading data of `writer`, `BREAKS_MAX` of it at most.

    Raises `SchemaTooComplexError`.
    """
    resolution = _Resolution(steps or compare_steps())
    with suppress(_EnoughError):
        resolution.resolve_all(writer.root, reader.root)
    return resolution.breaks


class _EnoughError(Exception):
    """More breaks would only fill memory."""


class _Resolution:
    """One comparison of two schemas."""

    def __init__(self, steps: Steps) -> None:
        self.breaks: list[Break] = []
        self._steps = steps
        # Pairs seen: a recursive type is compared once, and each break told once.
        self._seen: set[tuple[int, int]] = set()
        self._waiting: deque[tuple[Node, Node, str]] = deque()

    def resolve_all(self, writer: Node, reader: Node) -> None:
        """Add what keeps `reader` from reading `writer`."""
        # Without recursion: two circles of types meet in as many pairs as their product.
        self.resolve(writer, reader, "")
        while self._waiting:
            self._resolve(*self._waiting.popleft())

    def resolve(self, writer: Node, reader: Node, path: str) -> None:
        """Have `reader` compared with `writer` at `path`."""
        pair = (id(writer), id(reader))
        if pair not in self._seen:
            self._seen.add(pair)
            self._steps.spend()
            self._waiting.append((writer, reader, path))

    def _resolve(self, writer: Node, reader: Node, path: str) -> None:
        if writer.kind == "union":
            for branch in writer.inner:
                self.resolve(branch, reader, path)
        elif reader.kind == "union":
            chosen = self._branch_for(writer, reader)
            if chosen is None:
                self._add(path, writer, reader)
            else:
                self.resolve(writer, chosen, path)
        elif not _matches(writer, reader, deep=False):
            self._add(path, writer, reader)
        else:
            self._resolve_alike(writer, reader, path)

    def _branch_for(self, writer: Node, reader: Node) -> Node | None:
        """Return the first branch of a reader's union that fits from the outside."""
        for branch in reader.inner:
            self._steps.spend()
            if _matches(writer, branch):
                return branch
        return None

    def _resolve_alike(self, writer: Node, reader: Node, path: str) -> None:
        self._resolve_decimals(writer, reader, path)
        match reader.kind:
            case "array" | "map":
                inner = place_below(path, "[]" if reader.kind == "array" else "{}")
                self.resolve(writer.inner[0], reader.inner[0], inner)
            case "enum":
                self._steps.spend(len(writer.symbols) // 10)
                missing = [s for s in writer.symbols if s not in reader.symbols]
                if missing and reader.default is None:
                    shown = ", ".join(missing[:5]) + ("…" if len(missing) > 5 else "")
                    self._add(path, f"enum {writer.name} with {shown}", "one without them")
            case "record":
                self._resolve_fields(writer, reader, path)

    def _resolve_fields(self, writer: Node, reader: Node, path: str) -> None:
        self._steps.spend(len(writer.fields) + len(reader.fields))
        written = {f.name: f for f in writer.fields}
        names = {f.name for f in reader.fields}
        for field in reader.fields:
            inner = place_below(path, f".{field.name}") if path else field.name
            # A field that the reader has by its own name is not another one's alias.
            also = [alias for alias in field.aliases if alias in written and alias not in names]
            source = written.get(field.name) or (written[also[0]] if also else None)
            if source is not None:
                self.resolve(source.node, field.node, inner)
            elif not field.has_default:
                self._add(inner, "absent", f"{shortened(str(field.node))} without a default")

    def _resolve_decimals(self, writer: Node, reader: Node, path: str) -> None:
        def shape(node: Node) -> str:
            precision, scale = node.logical.get("precision"), node.logical.get("scale", 0)
            return f"decimal of {precision} digits, {scale} of them behind the point"

        kinds = {writer.logical.get("logicalType"), reader.logical.get("logicalType")}
        if kinds == {"decimal"} and shape(writer) != shape(reader):
            self._add(path, shape(writer), shape(reader))

    def _add(self, path: str, writer: Node | str, reader: Node | str) -> None:
        self.breaks.append(Break(_place(path), shortened(str(writer)), shortened(str(reader))))
        if len(self.breaks) >= BREAKS_MAX:
            raise _EnoughError


def _matches(writer: Node, reader: Node, *, deep: bool = True) -> bool:
    """Return whether the types fit from the outside: kind, name, size, items of arrays."""
    if writer.kind == "union" or reader.kind == "union":
        return True
    if writer.kind != reader.kind:
        return writer.kind in _PROMOTIONS.get(reader.kind, ())
    if reader.kind in NAMED:
        is_named = (
            writer.short_name == reader.short_name
            or writer.name in reader.aliases
            or writer.short_name in reader.aliases
        )
        return is_named and (reader.kind != "fixed" or writer.size == reader.size)
    if deep and reader.kind in ("array", "map"):
        return _matches(writer.inner[0], reader.inner[0])
    return True


def _place(path: str) -> str:
    return f"field {path!r}" if path else "the schema"
