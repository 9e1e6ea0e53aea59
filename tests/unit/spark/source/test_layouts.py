"""The columns of a read: its own, the decoded ones, and what schemas of the registry become."""

import json
from typing import Any, NoReturn

import pytest
from pyspark.sql.types import StringType, StructField, StructType

from ister.base.errors import BadSchemaError, ConfigError
from ister.schemas import SchemaType, parse_schema
from ister.spark.options import ReadOptions
from ister.spark.source.layouts import layout_of, schema_of, split_ddl
from ister.spark.source.spark_types import columns_of


def nobody() -> NoReturn:
    raise AssertionError("the broker is not needed")


def names(found: StructType | str) -> list[str]:
    assert isinstance(found, StructType)
    return found.fieldNames()


def narrow(*fields: str) -> StructType:
    return StructType([StructField(name, StringType()) for name in fields])


# Columns


def test_a_message_has_these_columns_in_this_order() -> None:
    found = schema_of(ReadOptions(with_attributes=True), nobody)

    assert isinstance(found, StructType)
    assert found.simpleString() == (
        "struct<topic:string,partition:int,offset:bigint,publish_time:timestamp,producer:string,"
        "key:string,payload:binary,attributes:map<string,string>>"
    )


def test_attributes_are_there_only_when_asked_for() -> None:
    assert "attributes" not in names(schema_of(ReadOptions(), nobody))


def test_text_is_a_column_value_in_place_of_the_payload() -> None:
    options = ReadOptions(value_format="string", with_payload=False)

    found = names(schema_of(options, nobody))

    assert found[-1] == "value"
    assert "payload" not in found


def test_given_columns_follow_those_of_the_message_and_an_error_comes_last() -> None:
    options = ReadOptions(
        value_format="json",
        with_payload=False,
        value_schema="id bigint, tags array<struct<a: int, b: string>>",
        null_errors=True,
    )

    assert schema_of(options, nobody) == (
        "`topic` string, `partition` int, `offset` bigint, `publish_time` timestamp, "
        "`producer` string, `key` string, `id` bigint, "
        "`tags` array<struct<a: int, b: string>>, `error` string"
    )


def test_a_decoded_column_with_the_name_of_another_is_called_value_something() -> None:
    options = ReadOptions(value_format="json", value_schema="key string, id bigint")

    found = schema_of(options, nobody)
    layout = layout_of(options, narrow("key", "value_key", "id"), nobody)

    assert "`key` string, `payload` binary, `value_key` string, `id` bigint" in str(found)
    assert (layout.own, layout.decoded) == (("key",), ("value_key", "id"))
    assert layout.source is not None
    assert layout.source.renamed == {"value_key": "key"}


def test_spark_does_not_tell_names_by_their_case_so_they_are_kept_apart() -> None:
    options = ReadOptions(value_format="json", value_schema="Key string, OFFSET bigint")

    assert "`value_Key` string, `value_OFFSET` bigint" in str(schema_of(options, nobody))


def test_two_fields_that_would_be_one_column_are_refused() -> None:
    options = ReadOptions(value_format="json", value_schema="key string, value_key string")

    with pytest.raises(ConfigError, match="`key` and `value_key` would be one column"):
        schema_of(options, nobody)


def test_a_narrow_schema_has_exactly_its_columns() -> None:
    layout = layout_of(ReadOptions(), narrow("payload", "offset"), nobody)

    assert (layout.own, layout.decoded, layout.source) == (("payload", "offset"), (), None)


def test_an_unknown_column_is_refused_with_a_list_of_the_known() -> None:
    with pytest.raises(ConfigError, match=r"no column `ofset`: it has topic, partition, offset"):
        layout_of(ReadOptions(), narrow("ofset"), nobody)


def test_a_column_that_is_not_in_the_value_schema_is_refused() -> None:
    options = ReadOptions(value_format="json", value_schema="id bigint")

    with pytest.raises(ConfigError, match="no column `amount`"):
        layout_of(options, narrow("id", "amount"), nobody)


def test_definitions_may_be_given_in_place_of_a_list_of_columns() -> None:
    avro = json.dumps({"type": "record", "name": "o", "fields": [{"name": "id", "type": "long"}]})
    proto = 'syntax = "proto3"; message Order { int64 id = 1; }'

    for value_format, text in (("avro", avro), ("protobuf", proto)):
        options = ReadOptions(value_format=value_format, value_schema=text, with_payload=False)
        assert names(schema_of(options, nobody))[-1] == "id"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("a int", [("a", "int")]),
        ("a: int, b string", [("a", "int"), ("b", "string")]),
        ("a decimal(10,2), b int", [("a", "decimal(10,2)"), ("b", "int")]),
        ("a map<string,int>, b int", [("a", "map<string,int>"), ("b", "int")]),
        ("`a, b` int", [("a, b", "int")]),
        ("a int COMMENT 'x, y', b int", [("a", "int COMMENT 'x, y'"), ("b", "int")]),
    ],
)
def test_a_list_of_fields_is_split_where_it_should_be(
    text: str, fields: list[tuple[str, str]]
) -> None:
    assert split_ddl(text) == fields


@pytest.mark.parametrize("text", ["a", "a int,", "a array<int", "a int, 'b"])
def test_what_is_no_list_of_fields_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="valueSchema"):
        split_ddl(text)


# Schemas of the registry


def shape(type_: SchemaType, definition: Any) -> str:
    data = definition if isinstance(definition, bytes) else json.dumps(definition).encode()
    return columns_of(parse_schema(type_, data)).simpleString()


def test_a_json_schema_becomes_columns() -> None:
    definition = {
        "$ref": "#/$defs/Order",
        "$defs": {
            "Order": {
                "type": "object",
                "properties": {
                    "id": {"type": "integer"},
                    "amount": {"type": "number"},
                    "paid": {"type": "boolean"},
                    "at": {"type": "string", "format": "date-time"},
                    "day": {"type": ["string", "null"], "format": "date"},
                    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}},
                    "labels": {"type": "object", "additionalProperties": {"type": "integer"}},
                    "either": {"type": ["string", "integer"]},
                    "parent": {"anyOf": [{"$ref": "#/$defs/Order"}, {"type": "null"}]},
                },
            },
            "Line": {"type": "object", "properties": {"sku": {"type": "string"}}},
        },
    }

    assert shape(SchemaType.JSON_SCHEMA, definition) == (
        "struct<id:bigint,amount:double,paid:boolean,at:timestamp,day:date,note:string,"
        "lines:array<struct<sku:string>>,labels:map<string,bigint>,either:string,parent:string>"
    )


def test_an_avro_schema_becomes_columns() -> None:
    fields: dict[str, Any] = {
        "i": "int",
        "l": "long",
        "f": "float",
        "d": "double",
        "b": "boolean",
        "s": ["null", "string"],
        "y": "bytes",
        "e": {"type": "enum", "name": "E", "symbols": ["A"]},
        "x": {"type": "fixed", "name": "X", "size": 4},
        "again": "E",
        "t": {"type": "long", "logicalType": "timestamp-micros"},
        "lt": {"type": "long", "logicalType": "local-timestamp-millis"},
        "day": {"type": "int", "logicalType": "date"},
        "m": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "a": {"type": "array", "items": "long"},
        "p": {"type": "map", "values": ["null", "double"]},
        "r": {"type": "record", "name": "R", "fields": [{"name": "q", "type": "int"}]},
        "n": ["int", "long"],
        "u": ["int", "string"],
        "self": ["null", "Order"],
    }
    definition = {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": name, "type": type_} for name, type_ in fields.items()],
    }

    assert shape(SchemaType.AVRO, definition) == (
        "struct<i:int,l:bigint,f:float,d:double,b:boolean,s:string,y:binary,e:string,x:binary,"
        "again:string,t:timestamp,lt:timestamp_ntz,day:date,m:decimal(9,2),a:array<bigint>,"
        "p:map<string,double>,r:struct<q:int>,n:bigint,u:string,self:string>"
    )


def test_a_protobuf_schema_becomes_columns() -> None:
    definition = b"""syntax = "proto3";
    import "google/protobuf/timestamp.proto";
    message Order {
      int32 i = 1; int64 l = 2; uint32 u = 3; uint64 v = 4; float f = 5; double d = 6;
      bool b = 7; string s = 8; bytes y = 9; Kind e = 10; repeated string r = 11;
      map<string, int64> m = 12; google.protobuf.Timestamp t = 13; Line n = 14; Order self = 15;
      enum Kind { A = 0; }
    }
    message Line { int32 q = 1; }
    """

    assert shape(SchemaType.PROTOBUF, definition) == (
        "struct<i:int,l:bigint,u:bigint,v:decimal(20,0),f:float,d:double,b:boolean,s:string,"
        "y:binary,e:string,r:array<string>,m:map<string,bigint>,t:timestamp,n:struct<q:int>,"
        "self:string>"
    )


@pytest.mark.parametrize(
    ("type_", "definition"),
    [
        (SchemaType.JSON_SCHEMA, {"type": "array"}),
        (SchemaType.AVRO, {"type": "array", "items": "int"}),
        (SchemaType.STRING, b""),
    ],
)
def test_values_without_fields_have_no_columns(type_: SchemaType, definition: Any) -> None:
    with pytest.raises(BadSchemaError, match="have no columns"):
        shape(type_, definition)
