"""Danube's messages to batches and back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.base.errors import BadRequestError, IsterError
from ister.codec import Batch, encode
from ister.server.grpc.translation import StreamMessage, batch_of, messages_of

U64 = st.integers(0, 2**64 - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


@st.composite
def sent_messages(draw: st.DrawFn) -> Any:
    made = StreamMessage(
        request_id=draw(U64),
        msg_id={"producer_id": draw(U64), "topic_name": "/default/t"},
        payload=draw(st.binary(max_size=100)),
        publish_time=draw(st.integers(0, 2**63 - 1)),
        producer_name="producer",
        attributes=draw(st.dictionaries(TEXTS, TEXTS, max_size=4)),
    )
    if draw(st.booleans()):
        made.routing_key = draw(TEXTS)
    if draw(st.booleans()):
        made.schema_id = draw(st.integers(1, 2**32 - 1))
        made.schema_version = draw(st.integers(1, 2**32 - 1))
    return made


@given(sent_messages(), st.integers(0, 2**62))
def test_what_is_delivered_is_what_was_sent(sent: Any, offset: int) -> None:
    batch = batch_of(sent, b"producer")
    batch.stamp(offset, 1_000)

    ((told, encoded),) = messages_of(batch, "/default/t", "http://here")

    expected = StreamMessage()
    expected.CopyFrom(sent)
    expected.msg_id.topic_offset = offset
    expected.msg_id.broker_addr = "http://here"
    assert told == offset
    assert StreamMessage.FromString(encoded) == expected


def test_numbers_of_danube_tell_no_repetition() -> None:
    assert not batch_of(StreamMessage(request_id=5), b"p").numbered


@given(st.binary(max_size=300))
def test_whatever_parses_is_taken_or_refused(data: bytes) -> None:
    try:
        sent = StreamMessage.FromString(data)
    except Exception:  # noqa: BLE001 - what protobuf refuses is not for us
        return
    try:
        batch = batch_of(sent, b"p")
    except IsterError:
        return
    messages_of(batch, "/default/t", "")


@pytest.mark.parametrize("fields", [{"publish_time": 2**63}, {"schema_id": 2**32}])
def test_numbers_that_fit_nowhere_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(BadRequestError):
        batch_of(StreamMessage(**fields), b"p")


def test_a_batch_of_many_becomes_as_many_messages() -> None:
    head, body = encode(
        [b"a", b"b", b"c"],
        keys=["x", None, ""],
        attributes=[None, {"n": "1"}, None],
        timestamps_ms=[-5, 1, 2],
        producer=b"native",
        producer_id=9,
        first_sequence=100,
        schema=(3, 4),
    )
    batch = Batch(head + body)
    batch.stamp(50, 1_000)

    found = messages_of(batch, "/default/t", "")

    made = [StreamMessage.FromString(encoded) for _, encoded in found]
    assert [offset for offset, _ in found] == [50, 51, 52]
    assert [m.msg_id.topic_offset for m in made] == [50, 51, 52]
    assert [m.request_id for m in made] == [100, 101, 102]
    assert [m.HasField("routing_key") for m in made] == [True, False, True]
    assert [dict(m.attributes) for m in made] == [{}, {"n": "1"}, {}]
    # Danube has no time before 1970.
    assert [m.publish_time for m in made] == [0, 1, 2]
    assert {(m.schema_id, m.schema_version) for m in made} == {(3, 4)}
