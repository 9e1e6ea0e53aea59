"""What an application gives as a schema, before anything is sent."""

from dataclasses import dataclass
from typing import Any

import pytest

from ister.base.errors import BadRequestError, BadSchemaError, SchemaViolationError
from ister.client.session import Delivery, Schema, Values, default_subject, definition_of
from ister.codec import Batch, encode


@dataclass
class Order:
    id: int


@pytest.mark.parametrize(
    ("topic", "subject"),
    [
        ("/default/orders", "default.orders-value"),
        ("/team-a/orders.eu.paris", "team-a.orders.eu.paris-value"),
        ("/default/orders-part-12", "default.orders-value"),
    ],
)
def test_a_topic_has_a_subject_of_its_own(topic: str, subject: str) -> None:
    assert default_subject(topic) == subject


@pytest.mark.parametrize(
    ("given", "definition"),
    [
        (b"{}", b"{}"),
        (bytearray(b"{}"), b"{}"),
        ('{"title": "größe"}', '{"title": "größe"}'.encode()),
        ({"type": "string"}, b'{"type":"string"}'),
        (["null", "int"], b'["null","int"]'),
    ],
)
def test_a_definition_is_text_bytes_or_json(given: object, definition: bytes) -> None:
    assert Schema("avro", given).definition == definition


@pytest.mark.parametrize("wrong", [5, None, object(), {"a": object()}, {1, 2}])
def test_any_other_definition_is_refused(wrong: object) -> None:
    with pytest.raises(BadRequestError):
        Schema("avro", wrong)


def test_a_type_that_is_no_text_is_refused() -> None:
    wrong: Any = Order
    with pytest.raises(BadRequestError):
        Schema(wrong)


def test_a_schema_by_its_definition_is_not_looked_into() -> None:
    assert definition_of(Schema("whatever", b"{")) == ("whatever", b"{")


def test_a_class_has_the_definition_that_is_made_of_it() -> None:
    type_, definition = definition_of(Order)

    assert type_ == "json_schema"
    assert b"integer" in definition
    assert definition_of(str) == ("string", b"")


@pytest.mark.parametrize("wrong", [Schema("json_schema", b"{"), Schema("jason"), object])
def test_a_schema_that_cannot_be_used_is_refused_when_values_are_made_by_it(wrong: object) -> None:
    with pytest.raises(BadSchemaError):
        Values(wrong)


def test_a_payload_that_is_no_value_is_told_with_its_topic() -> None:
    with pytest.raises(SchemaViolationError) as caught:
        Values(Order).decode(b'{"id":"x"}', topic="/default/orders", writer=None)

    assert (caught.value.topic, caught.value.subject) == ("/default/orders", "Order")


def test_a_value_is_decoded_when_it_is_asked_for_and_only_then() -> None:
    decoded: list[bytes] = []

    def decode(payload: bytes) -> bytes:
        decoded.append(payload)
        return payload.upper()

    delivery = Delivery(Batch(b"".join(encode([b"a", b"b"]))), None)
    delivery.decode = decode

    assert decoded == []
    assert [delivery.value(1, b"b"), delivery.value(1, b"b"), delivery.value(0, b"a")] == [
        b"B",
        b"B",
        b"A",
    ]
    assert decoded == [b"b", b"a"]
