"""Whether data of one Avro schema can be read with another: the specification's resolution.

Where the specification leaves a choice, this follows fastavro, which reads the data in the end:
of a reader's union it takes the first branch that fits from the outside.
"""

from ister.schemas.avro.model import NAMED, AvroModel, Node
from ister.schemas.breaks import Break

# What a reader's type takes beside itself.
_PROMOTIONS = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}
# Pairs of types, each compared once in some µs.
_PAIRS_MAX = 50_000
_TOO_COMPLEX = Break(
    "the schema",
    "it",
    "a schema too complex to compare",
    "whether it can be read cannot be decided",
)


def avro_breaks(*, reader: AvroModel, writer: AvroModel) -> list[Break]:
    """Return what keeps `reader` from reading data of `writer`."""
    resolution = _Resolution()
    try:
        resolution.resolve(writer.root, reader.root, "")
    except (_TooManyPairsError, RecursionError):
        return [_TOO_COMPLEX]
    return resolution.breaks


class _TooManyPairsError(Exception):
    """A comparison would take too long."""


class _Resolution:
    """One comparison of two schemas."""

    def __init__(self) -> None:
        self.breaks: list[Break] = []
        # Pairs seen: a recursive type is compared once, and each break told once.
        self._seen: set[tuple[int, int]] = set()

    def resolve(self, writer: Node, reader: Node, path: str) -> None:
        """Add what keeps `reader` from reading `writer` at `path`."""
        pair = (id(writer), id(reader))
        if pair in self._seen:
            return
        self._seen.add(pair)
        if len(self._seen) > _PAIRS_MAX:
            raise _TooManyPairsError
        if writer.kind == "union":
            for branch in writer.inner:
                self.resolve(branch, reader, path)
        elif reader.kind == "union":
            chosen = next((b for b in reader.inner if _matches(writer, b)), None)
            if chosen is None:
                self._add(path, writer, reader)
            else:
                self.resolve(writer, chosen, path)
        elif not _matches(writer, reader, deep=False):
            self._add(path, writer, reader)
        else:
            self._resolve_alike(writer, reader, path)

    def _resolve_alike(self, writer: Node, reader: Node, path: str) -> None:
        self._resolve_decimals(writer, reader, path)
        match reader.kind:
            case "array" | "map":
                inner = f"{path}[]" if reader.kind == "array" else f"{path}{{}}"
                self.resolve(writer.inner[0], reader.inner[0], inner)
            case "enum":
                missing = [s for s in writer.symbols if s not in set(reader.symbols)]
                if missing and reader.default is None:
                    shown = ", ".join(missing[:5]) + ("…" if len(missing) > 5 else "")
                    self.breaks.append(
                        Break(_place(path), f"enum {writer.name} with {shown}", "one without them")
                    )
            case "record":
                self._resolve_fields(writer, reader, path)

    def _resolve_fields(self, writer: Node, reader: Node, path: str) -> None:
        written = {f.name: f for f in writer.fields}
        names = {f.name for f in reader.fields}
        for field in reader.fields:
            inner = f"{path}.{field.name}" if path else field.name
            # A field that the reader has by its own name is not another one's alias.
            also = [alias for alias in field.aliases if alias in written and alias not in names]
            source = written.get(field.name) or (written[also[0]] if also else None)
            if source is not None:
                self.resolve(source.node, field.node, inner)
            elif not field.has_default:
                self.breaks.append(
                    Break(_place(inner), "absent", f"{field.node} without a default")
                )

    def _resolve_decimals(self, writer: Node, reader: Node, path: str) -> None:
        def shape(node: Node) -> str:
            precision, scale = node.logical.get("precision"), node.logical.get("scale", 0)
            return f"decimal of {precision} digits, {scale} of them behind the point"

        kinds = {writer.logical.get("logicalType"), reader.logical.get("logicalType")}
        if kinds == {"decimal"} and shape(writer) != shape(reader):
            self.breaks.append(Break(_place(path), shape(writer), shape(reader)))

    def _add(self, path: str, writer: Node, reader: Node) -> None:
        self.breaks.append(Break(_place(path), str(writer), str(reader)))


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
