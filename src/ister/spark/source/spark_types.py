"""Schemas of the registry to Spark's types: which columns a payload has.

Follows Spark's own readers of Avro and Protobuf, and for JSON Schema what people mean by it. What
has no type in Spark (a union of a text and a number, say) becomes text with its JSON in it; types
that contain themselves are text from there on.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from ister.base.errors import BadSchemaError
from ister.schemas import Schema, SchemaType

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

# Digits of an unsigned number of 64 bits.
UINT64_DIGITS = 20
# More columns inside columns than anybody reads; also what ends a schema that refers to itself.
DEPTH_MAX = 32


def columns_of(schema: Schema) -> StructType:
    """Return the columns of payloads that follow `schema`, or raise `BadSchemaError`."""
    found: DataType
    if schema.type is SchemaType.AVRO:
        found = _Avro().type_of(json.loads(schema.definition), ())
    elif schema.type is SchemaType.PROTOBUF:
        found = _message(cast(Any, schema.model).descriptor, ())
    elif schema.type is SchemaType.JSON_SCHEMA:
        document = json.loads(schema.definition)
        found = _Json(document).type_of(document, ())
    else:
        raise BadSchemaError(f"values of type {schema.type.value} have no columns")
    if not isinstance(found, StructType) or not found.fields:
        raise BadSchemaError("its values are no objects with fields, so they have no columns")
    return found


# JSON Schema


class _Json:
    def __init__(self, document: Any) -> None:
        self._document = document

    def type_of(self, node: Any, path: tuple[str, ...]) -> DataType:
        """Return the type of values that follow `node`; `path` has the references on the way."""
        if not isinstance(node, dict) or len(path) > DEPTH_MAX:
            return StringType()
        reference = node.get("$ref")
        if isinstance(reference, str):
            if reference in path:
                return StringType()
            return self.type_of(self._found(reference), (*path, reference))
        for word in ("anyOf", "oneOf", "allOf"):
            if isinstance(node.get(word), list) and "properties" not in node:
                return self._one_of(node[word], path)
        return self._plain(node, path)

    def _one_of(self, choices: list[Any], path: tuple[str, ...]) -> DataType:
        """Return the one type that all choices but null have, if that is so."""
        left = [one for one in choices if not _is_null(one)]
        found = [self.type_of(one, (*path, "")) for one in left]
        return found[0] if found and all(one == found[0] for one in found) else StringType()

    def _plain(self, node: Mapping[str, Any], path: tuple[str, ...]) -> DataType:
        kinds = node.get("type")
        kinds = [kinds] if isinstance(kinds, str) else list(kinds or ())
        kinds = [kind for kind in kinds if kind != "null"]
        if not kinds and "properties" in node:
            kinds = ["object"]
        if sorted(kinds) == ["integer", "number"]:
            return DoubleType()
        if len(kinds) != 1:
            return StringType()
        match kinds[0]:
            case "object":
                return self._object(node, path)
            case "array":
                return ArrayType(self.type_of(node.get("items"), (*path, "")))
            case "integer":
                return LongType()
            case "number":
                return DoubleType()
            case "boolean":
                return BooleanType()
        return {"date-time": TimestampType(), "date": DateType()}.get(
            str(node.get("format")), StringType()
        )

    def _object(self, node: Mapping[str, Any], path: tuple[str, ...]) -> DataType:
        fields = node.get("properties")
        if isinstance(fields, dict) and fields:
            return StructType(
                [StructField(name, self.type_of(one, (*path, ""))) for name, one in fields.items()]
            )
        values = node.get("additionalProperties")
        if isinstance(values, dict):
            return MapType(StringType(), self.type_of(values, (*path, "")))
        return StringType()

    def _found(self, reference: str) -> Any:
        node = self._document
        for step in reference.removeprefix("#").split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            node = node.get(name) if isinstance(node, dict) else None
        return node


def _is_null(node: Any) -> bool:
    return isinstance(node, dict) and node.get("type") == "null"


# Avro


class _Avro:
    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def type_of(self, node: Any, path: tuple[str, ...], namespace: str = "") -> DataType:
        """Return the type of values of `node`; `path` has the names of records on the way."""
        if len(path) > DEPTH_MAX:
            return StringType()
        if isinstance(node, list):
            return self._union(node, path, namespace)
        if isinstance(node, str):
            return self._by_name(node, path, namespace)
        logical = _logical(node)
        if logical is not None:
            self._learn(node, namespace)
            return logical
        match node["type"]:
            case "record" | "error":
                return self._record(node, path, namespace)
            case "enum":
                self._learn(node, namespace)
                return StringType()
            case "fixed":
                self._learn(node, namespace)
                return BinaryType()
            case "array":
                return ArrayType(self.type_of(node["items"], (*path, ""), namespace))
            case "map":
                return MapType(StringType(), self.type_of(node["values"], (*path, ""), namespace))
            case inner:
                return self.type_of(inner, (*path, ""), namespace)

    def _record(self, node: Mapping[str, Any], path: tuple[str, ...], namespace: str) -> DataType:
        name, namespace = self._learn(node, namespace)
        if name in path:
            return StringType()
        return StructType(
            [
                StructField(field["name"], self.type_of(field["type"], (*path, name), namespace))
                for field in node["fields"]
            ]
        )

    def _union(self, choices: Sequence[Any], path: tuple[str, ...], namespace: str) -> DataType:
        found = [self.type_of(one, (*path, ""), namespace) for one in choices if one != "null"]
        if all(one in (IntegerType(), LongType()) for one in found):
            return LongType() if LongType() in found else IntegerType()
        if all(one in (FloatType(), DoubleType()) for one in found):
            return DoubleType() if DoubleType() in found else FloatType()
        return found[0] if all(one == found[0] for one in found) else StringType()

    def _by_name(self, name: str, path: tuple[str, ...], namespace: str) -> DataType:
        plain = _AVRO_PLAIN.get(name)
        if plain is not None:
            return plain()
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        node, home = self._named.get(full) or self._named.get(name) or (None, "")
        if node is None:
            raise BadSchemaError(f"{name!r} is used and not defined")
        return self.type_of(node, path, home)

    def _learn(self, node: Mapping[str, Any], namespace: str) -> tuple[str, str]:
        """Keep a named type; return its full name and the namespace of what is inside."""
        name = str(node.get("name", ""))
        if not name:
            return "", namespace
        if "." in name:
            namespace = name.rpartition(".")[0]
        else:
            namespace = str(node.get("namespace", namespace))
            name = f"{namespace}.{name}" if namespace else name
        self._named[name] = node, namespace
        return name, namespace


_AVRO_PLAIN: Mapping[str, Callable[[], DataType]] = {
    "null": StringType,
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "string": StringType,
    "bytes": BinaryType,
}
_AVRO_LOGICAL: Mapping[tuple[str, str], Callable[[], DataType]] = {
    ("int", "date"): DateType,
    ("long", "timestamp-millis"): TimestampType,
    ("long", "timestamp-micros"): TimestampType,
    ("long", "local-timestamp-millis"): TimestampNTZType,
    ("long", "local-timestamp-micros"): TimestampNTZType,
    ("string", "uuid"): StringType,
}


def _logical(node: Mapping[str, Any]) -> DataType | None:
    kind, logical = node["type"], node.get("logicalType")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return DecimalType(int(node["precision"]), int(node.get("scale", 0)))
    if not isinstance(kind, str) or not isinstance(logical, str):
        return None
    found = _AVRO_LOGICAL.get((kind, logical))
    return None if found is None else found()


# Protobuf


def _message(descriptor: "Descriptor", path: tuple[str, ...]) -> DataType:
    if descriptor.full_name == "google.protobuf.Timestamp":
        return TimestampType()
    if descriptor.full_name in path:
        return StringType()
    inner = (*path, descriptor.full_name)
    return StructType([StructField(f.name, _field(f, inner)) for f in descriptor.fields])


def _field(field: "FieldDescriptor", path: tuple[str, ...]) -> DataType:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = field.message_type.fields_by_name
        return MapType(_single(entry["key"], path), _single(entry["value"], path))
    single = _single(field, path)
    return ArrayType(single) if field.is_repeated else single


def _single(field: "FieldDescriptor", path: tuple[str, ...]) -> DataType:
    if field.message_type is not None:
        return _message(field.message_type, path)
    if field.enum_type is not None:
        return StringType()
    if field.type in (field.TYPE_UINT32, field.TYPE_FIXED32):
        return LongType()
    if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64):
        return DecimalType(UINT64_DIGITS, 0)
    if field.type == field.TYPE_BYTES:
        return BinaryType()
    plain: Mapping[int, Callable[[], DataType]] = {
        field.CPPTYPE_INT32: IntegerType,
        field.CPPTYPE_INT64: LongType,
        field.CPPTYPE_FLOAT: FloatType,
        field.CPPTYPE_DOUBLE: DoubleType,
        field.CPPTYPE_BOOL: BooleanType,
        field.CPPTYPE_STRING: StringType,
    }
    return plain[field.cpp_type]()
