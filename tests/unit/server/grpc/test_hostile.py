"""Whatever clients say, in whatever order: each call is answered or refused, and others go on."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.server.grpc.inside import FakeContext, Inside, answer_of, turns

from ister.base.errors import IsterError
from ister.server.grpc.calls.status import Refusal
from ister.server.grpc.messages import message
from ister.server.grpc.roll import id_of

GOOD_TOPICS = st.sampled_from(["/default/a", "/default/b", "/default/p-part-1"])
BAD_TOPICS = st.sampled_from(["/default/a-part-1", "/default/p", "/nowhere/a", "", "a b"])
TOPICS = GOOD_TOPICS | GOOD_TOPICS | GOOD_TOPICS | BAD_TOPICS
GOOD_NAMES = st.sampled_from(["p", "q"])
NAMES = GOOD_NAMES | GOOD_NAMES | GOOD_NAMES | st.sampled_from(["", "\0", "x" * 300])
NUMBERS = st.integers(0, 3) | st.sampled_from([2**31, 2**63, 2**64 - 1])
IDS = st.builds(id_of, TOPICS, NAMES) | NUMBERS
CONSUMER_IDS = st.builds(id_of, TOPICS, NAMES, NAMES) | NUMBERS
MSG_IDS = st.fixed_dictionaries(
    {}, optional={"producer_id": IDS, "topic_name": TOPICS, "topic_offset": NUMBERS}
)


def calls(method: str, request: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return calls of a method with some of the fields of its request."""
    values = st.fixed_dictionaries(fields) | st.fixed_dictionaries({}, optional=fields)
    return st.tuples(st.just(method), values.map(lambda given: message(request)(**given)))


CALLS = st.one_of(
    calls(
        "create",
        "danube.ProducerRequest",
        topic_name=TOPICS,
        producer_name=NAMES,
        dispatch_strategy=st.integers(0, 3),
    ),
    calls(
        "send",
        "danube.StreamMessage",
        msg_id=MSG_IDS,
        producer_name=NAMES,
        payload=st.binary(max_size=50),
        publish_time=NUMBERS,
        request_id=NUMBERS,
        routing_key=st.text(st.characters(codec="utf-8"), max_size=5),
        schema_id=NUMBERS,
        attributes=st.dictionaries(NAMES, NAMES),
    ),
    calls(
        "subscribe",
        "danube.ConsumerRequest",
        topic_name=TOPICS,
        consumer_name=NAMES,
        subscription=NAMES,
        subscription_type=st.integers(0, 4),
        key_filters=st.lists(st.sampled_from(["*", "p", "?", "[", ""]), max_size=3),
    ),
    calls("receive", "danube.ReceiveRequest", consumer_id=CONSUMER_IDS),
    calls("ack", "danube.AckRequest", msg_id=MSG_IDS, subscription_name=NAMES),
    calls(
        "nack",
        "danube.NackRequest",
        msg_id=MSG_IDS,
        subscription_name=NAMES,
        delay_ms=NUMBERS,
    ),
)


@given(st.lists(CALLS, max_size=30))
@settings(max_examples=60, deadline=None)
def test_no_call_is_answered_with_a_bug(dialogue: list[tuple[str, Any]]) -> None:
    asyncio.run(speak(dialogue))


async def speak(dialogue: list[tuple[str, Any]]) -> None:
    inside = await Inside.open()
    streams = []
    for method, request in dialogue:
        if method == "receive":
            if request.consumer_id in inside.roll.consumers:
                streams.append(inside.receive(request.consumer_id, FakeContext()))
                await turns(5)
            continue
        try:
            await call(inside, method, request)
        except (IsterError, Refusal):
            pass
    await turns()
    for stream in streams:
        if stream.done():
            assert isinstance(stream.exception(), Refusal)
    # And it still works.
    await inside.produce(topic="/default/good")
    await inside.send(b"x", topic="/default/good")
    await inside.close()


async def call(inside: Inside, method: str, request: Any) -> None:
    if method == "create":
        await inside.producers.create(request, FakeContext())
    elif method == "subscribe":
        await inside.consumers.subscribe(request, FakeContext())
    elif method == "send":
        await inside.send_bytes(request.SerializeToString())
    else:
        await answer_of(getattr(inside.consumers, method), request.SerializeToString())
