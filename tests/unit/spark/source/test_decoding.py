"""Payloads to columns: fast and slow ways agree, and a mistake stays in its row."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.base.errors import BadRequestError, IsterError, SchemaNotFoundError
from ister.codec import SchemaRef
from ister.schemas import Schema, SchemaType, parse_schema
from ister.spark.source import decoding
from ister.spark.source.decoding import Decoded, decoder_for
from ister.spark.source.layouts import ValueSource

UTC_TIME = pa.timestamp("us", tz="UTC")
ORDER = [
    pa.field("id", pa.int64()),
    pa.field("region", pa.string()),
    pa.field("amount", pa.float64()),
    pa.field("at", UTC_TIME),
]
JSON = ValueSource("json", name="json")


def nobody(ref: SchemaRef) -> Schema | IsterError:
    raise AssertionError(f"schema {ref} is not needed")


def decoded(fields: list[pa.Field], *payloads: bytes, source: ValueSource = JSON) -> Decoded:
    decoder = decoder_for(source, fields, nobody)
    return decoder.decode(pa.array(payloads, pa.binary()), None)


def rows(found: Decoded) -> list[list[Any]]:
    return [list(row) for row in zip(*(c.to_pylist() for c in found.columns), strict=True)]


def errors(found: Decoded) -> list[str | None]:
    return [] if found.errors is None else found.errors.to_pylist()


# JSON


def test_fields_become_columns_and_what_is_missing_is_null() -> None:
    found = decoded(
        ORDER,
        b'{"id": 1, "region": "eu", "amount": 2.5, "at": "2026-01-01T12:00:00Z", "other": [1]}',
        b'{\n  "amount": 3,\n  "id": 2\n}',
        b"{}",
        b"null",
    )

    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert rows(found) == [[1, "eu", 2.5, noon], [2, None, 3.0, None], [None] * 4, [None] * 4]
    assert found.errors is None


def test_types_are_exactly_those_that_were_asked_for() -> None:
    fields = [
        *ORDER,
        pa.field("small", pa.int16()),
        pa.field("day", pa.date32()),
        pa.field("local", pa.timestamp("us")),
        pa.field("price", pa.decimal128(10, 2)),
        pa.field("raw", pa.binary()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("labels", pa.map_(pa.string(), pa.int64())),
        pa.field("inner", pa.struct([("x", pa.int32()), ("at", UTC_TIME)])),
    ]

    found = decoded(
        fields,
        b'{"small": 7, "day": "2026-01-31", "local": "2026-01-31T08:00:00", "price": 1.5,'
        b' "raw": "AQI=", "tags": ["a", null], "labels": {"k": 1},'
        b' "inner": {"x": 5, "at": "2026-01-31T08:00:00+01:00"}}',
    )

    assert [column.type for column in found.columns] == [field.type for field in fields]
    assert rows(found)[0][4:] == [
        7,
        date(2026, 1, 31),
        datetime(2026, 1, 31, 8),  # noqa: DTZ001 (without a zone is what is tested)
        Decimal("1.50"),
        b"\x01\x02",
        ["a", None],
        [("k", 1)],
        {"x": 5, "at": datetime(2026, 1, 31, 7, tzinfo=UTC)},
    ]


@pytest.mark.parametrize(
    ("payload", "word"),
    [
        (b"", "no JSON"),
        (b"   ", "no JSON"),
        (b"{", "no JSON"),
        (b'{"id": 1}{"id": 2}', "no JSON"),
        (b'{"id": 1}\n{"id": 2}', "no JSON"),
        (b'{"id": 1}}\n{"r":{"id": 2}', "no JSON"),
        (b'{"region": "\xff"}', "no JSON"),
        (b"5", "is no object"),
        (b"[1]", "is no object"),
        (b'{"id": "x"}', "id: 'x' is no whole number"),
        (b'{"id": 1.5}', "id: 1.5 is no whole number"),
        (b'{"id": true}', "id: True is no whole number"),
        (b'{"id": 9223372036854775808}', "id: 9223372036854775808 does not fit"),
        (b'{"amount": NaN}', "no JSON"),
        (b'{"amount": -Infinity}', "no JSON"),
        (b'{"amount": "1"}', "amount: '1' is no number"),
        (b'{"at": "noon"}', "at: 'noon' is no time"),
        (b'{"at": 1760000000}', "at: 1760000000 is no time"),
    ],
)
def test_a_bad_payload_is_null_with_a_reason_and_harms_no_other(payload: bytes, word: str) -> None:
    found = decoded(ORDER, b'{"id": 1}', payload, b'{"id": 2}')

    assert [row[0] for row in rows(found)] == [1, None, 2]
    first, reason, last = errors(found)
    assert (first, last) == (None, None)
    assert word in str(reason)
    assert found.first_error() == (1, reason)


def test_a_column_of_text_takes_any_value_as_its_json() -> None:
    found = decoded(
        [pa.field("v", pa.string())],
        b'{"v": 5}',
        b'{"v": [1, {"a": null}]}',
        b'{"v": true}',
        b'{"v": "x"}',
    )

    assert rows(found) == [["5"], ['[1,{"a":null}]'], ["true"], ["x"]]


def test_numbers_keep_their_digits_and_round_as_in_spark() -> None:
    fields = [pa.field("d", pa.decimal128(38, 18)), pa.field("c", pa.decimal128(22, 2))]
    found = decoded(
        [*fields, pa.field("t", pa.string()), pa.field("n", pa.int64())],
        b'{"d": 12345678901.5, "c": 12345678901234567.89, "t": 1.10, "n": 9007199254740993.0}',
        b'{"d": "0.1", "c": 1.005, "t": [2.50, 123456789012345678901], "n": 1e3}',
    )

    assert rows(found) == [
        [Decimal("12345678901.5"), Decimal("12345678901234567.89"), "1.10", 9007199254740993],
        [Decimal("0.1"), Decimal("1.01"), "[2.50,123456789012345678901]", 1000],
    ]


@pytest.mark.parametrize(
    ("type_", "value", "word"),
    [
        (pa.decimal128(10, 2), b'"NaN"', "'NaN' does not fit"),
        (pa.decimal128(10, 2), b"1e99999999999999999999", "too many digits"),
        (pa.date32(), b"20260131", "20260131 is no date"),
        (pa.int64(), b"1e999999", "1E+999999 does not fit"),
        (pa.float64(), b"1e400", "1E+400 does not fit"),
        (pa.float64(), b"9" * 400, "does not fit a double"),
        (pa.float32(), b"1e300", "1E+300 does not fit a float"),
        (UTC_TIME, b'{"seconds": 99999999999999999}', "between the years 1 and 9999"),
        (UTC_TIME, b'{"seconds": 1, "nanos": "x"}', "is no number of nanoseconds"),
        (pa.timestamp("us"), b'"0001-01-01T00:00:00+14:00"', "between the years 1 and 9999"),
    ],
)
def test_what_no_type_has_room_for_stays_in_its_row(
    type_: pa.DataType, value: bytes, word: str
) -> None:
    found = decoded([pa.field("v", type_)], b'{"v": null}', b'{"v": ' + value + b"}", b"{}")

    assert rows(found) == [[None]] * 3
    assert word in str(errors(found)[1])
    assert errors(found)[::2] == [None, None]


def test_whole_numbers_may_be_written_with_a_point() -> None:
    assert rows(decoded([pa.field("id", pa.int32())], b'{"id": 3.0}')) == [[3]]


def test_times_without_a_zone_are_utc_also_beside_others() -> None:
    fields = [pa.field("at", UTC_TIME)]
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    assert rows(decoded(fields, b'{"at": "2026-01-01 12:00:00"}')) == [[noon]]
    assert rows(
        decoded(fields, b'{"at": "2026-01-01T12:00:00"}', b'{"at": "2026-01-01T12:00:00Z"}')
    ) == [[noon], [noon]]


def test_bad_rows_among_thousands_are_found_one_by_one() -> None:
    payloads = [b'{"id": %d}' % n for n in range(5_000)]
    payloads[1_234] = b"broken"
    payloads[4_999] = b""

    found = decoded(ORDER, *payloads)

    wanted: list[int | None] = list(range(5_000))
    wanted[1_234] = wanted[4_999] = None
    assert found.columns[0].to_pylist() == wanted
    assert [n for n, error in enumerate(errors(found)) if error] == [1_234, 4_999]


def test_a_part_of_a_longer_column_is_decoded_by_itself() -> None:
    whole = pa.array([b"junk", b'{"id": 1}', b'{"id": 2}', b"junk"], pa.binary())

    found = decoder_for(JSON, ORDER, nobody).decode(whole[1:3], None)

    assert [row[0] for row in rows(found)] == [1, 2]
    assert found.errors is None


def test_a_renamed_column_is_read_by_its_own_name() -> None:
    source = ValueSource("json", name="json", renamed={"value_key": "key"})

    found = decoded([pa.field("value_key", pa.string())], b'{"key": "k"}', source=source)

    assert rows(found) == [["k"]]


values = st.fixed_dictionaries(
    {},
    optional={
        "id": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        "region": st.one_of(st.none(), st.text()),
        "amount": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
        "at": st.one_of(st.none(), st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat)),
        "extra": st.one_of(st.none(), st.integers(), st.lists(st.text(), max_size=2)),
    },
)
odd = st.one_of(
    st.binary(max_size=8),
    st.fixed_dictionaries({"id": st.one_of(st.text(), st.floats(), st.booleans())}).map(
        lambda value: json.dumps(value).encode()
    ),
)


@given(st.lists(st.one_of(values.map(lambda value: json.dumps(value).encode()), odd), min_size=1))
def test_all_at_once_and_one_by_one_are_the_same(payloads: list[bytes]) -> None:
    together = decoded(ORDER, *payloads)
    apart = decoding._Rows(ORDER).decode(pa.array(payloads, pa.binary()), decoding._json_value)

    assert [str(row) for row in rows(together)] == [str(row) for row in rows(apart)]
    assert errors(together) == errors(apart)


# Text


def test_text_is_taken_as_it_is_and_what_is_none_is_null() -> None:
    source = ValueSource("string", name="string")

    found = decoded([pa.field("value", pa.string())], "é".encode(), b"\xff", b"", source=source)

    assert rows(found) == [["é"], [None], [""]]
    assert errors(found) == [None, "byte 0 is not UTF-8", None]


# Avro and Protobuf

AVRO_1 = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
AVRO_2 = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "region", "type": ["null", "string"], "default": "eu"}
        | {"type": ["string", "null"]},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]}
        | {"default": None},
    ],
}
AVRO_FIELDS = [
    pa.field("id", pa.int64()),
    pa.field("region", pa.string()),
    pa.field("at", UTC_TIME),
]


def avro(definition: dict[str, Any], value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(definition), value)
    return out.getvalue()


def avro_source() -> ValueSource:
    return ValueSource("avro", "avro", json.dumps(AVRO_2).encode(), "orders")


def test_avro_of_an_older_version_is_read_into_the_newest() -> None:
    old = parse_schema(SchemaType.AVRO, json.dumps(AVRO_1).encode())
    decoder = decoder_for(avro_source(), AVRO_FIELDS, {(7, 1): old}.__getitem__)
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    older = decoder.decode(pa.array([avro(AVRO_1, {"id": 1})], pa.binary()), (7, 1))
    newer = decoder.decode(
        pa.array([avro(AVRO_2, {"id": 2, "region": "us", "at": noon})], pa.binary()), None
    )

    assert rows(older) == [[1, "eu", None]]
    assert rows(newer) == [[2, "us", noon]]


def test_avro_that_is_none_is_null_with_a_reason() -> None:
    found = decoded(
        AVRO_FIELDS, avro(AVRO_2, {"id": 1, "region": "eu"}), b"\xff", source=avro_source()
    )

    assert rows(found) == [[1, "eu", None], [None, None, None]]
    assert errors(found)[0] is None
    assert "does not follow its schema" in str(errors(found)[1])


def test_a_schema_that_is_not_to_be_had_is_the_reason_for_all_its_rows() -> None:
    decoder = decoder_for(avro_source(), AVRO_FIELDS, lambda ref: SchemaNotFoundError("orders", 9))

    found = decoder.decode(pa.array([b"a", b"b"], pa.binary()), (7, 9))

    assert rows(found) == [[None] * 3] * 2
    assert all("not found" in str(error) for error in errors(found))


PROTO = b"""syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; optional string region = 2; google.protobuf.Timestamp at = 3;
  repeated int32 items = 4; map<string, int64> counts = 5; Kind kind = 6; uint64 big = 7;
  enum Kind { SMALL = 0; LARGE = 1; } }
"""


def test_protobuf_is_read_with_presence_repetition_maps_enums_and_times() -> None:
    message = parse_schema(SchemaType.PROTOBUF, PROTO)
    cls: Any = message.model.message_class  # type: ignore[attr-defined]
    order = cls(id=5, items=[1, 2], counts={"a": 1}, kind=1, big=2**64 - 1)
    order.at.FromJsonString("2026-01-01T12:00:00Z")
    fields = [
        pa.field("id", pa.int64()),
        pa.field("region", pa.string()),
        pa.field("at", UTC_TIME),
        pa.field("items", pa.list_(pa.int32())),
        pa.field("counts", pa.map_(pa.string(), pa.int64())),
        pa.field("kind", pa.string()),
        pa.field("big", pa.decimal128(20, 0)),
    ]

    found = decoded(
        fields, order.SerializeToString(), source=ValueSource("protobuf", "protobuf", PROTO, "o")
    )

    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert rows(found) == [[5, None, noon, [1, 2], [("a", 1)], "LARGE", Decimal(2**64 - 1)]]


def test_a_type_that_nothing_can_become_is_refused_before_anything_is_read() -> None:
    with pytest.raises(BadRequestError, match="cannot be decoded as"):
        decoder_for(JSON, [pa.field("span", pa.duration("us"))], nobody)
