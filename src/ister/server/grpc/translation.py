"""A Danube message ⇄ a batch. Messages of every door are alike: only their envelopes differ.

| Danube                  | batch                                                           |
|-------------------------|-----------------------------------------------------------------|
| payload, attributes     | the same                                                        |
| routing_key             | key; that there is none is kept                                 |
| publish_time            | the producer's own time                                         |
| producer_name           | producer                                                        |
| msg_id.producer_id      | producer id                                                     |
| request_id              | sequence number, which tells no repetition: a client repeats    |
|                         | a message under a new one                                       |
| schema_id, _version     | schema                                                          |
| msg_id.topic_offset     | offset                                                          |
"""

from collections.abc import Sequence
from typing import Any

from ister.base.errors import BadRequestError
from ister.base.limits import ATTRIBUTE_BYTES_MAX, ATTRIBUTES_COUNT_MAX, KEY_BYTES_MAX
from ister.codec import NO_SCHEMA, Attributes, Batch, SchemaRef, encode, encode_timed
from ister.server.grpc.messages import message

# What no Danube client can receive: gRPC's default, which none of them changes.
DELIVERED_BYTES_MAX = 4 * 1024 * 1024
# What delivering adds to a message as it was sent: the offset, and the address of the broker.
DELIVERY_BYTES = 64
# What it may add beyond that: the name of the producer, where only its id was sent, what is left
# out of attributes that are empty, a long address. Messages that may be too large by so much are
# measured as they will be delivered.
ENVELOPE_BYTES_MAX = 2 * 1024
# The largest number in a column of times.
TIME_MS_MAX = 2**63 - 1

StreamMessage = message("danube.StreamMessage")
_U32_MAX = 0xFFFF_FFFF


def is_plain(sent: Any) -> bool:
    """Whether a message has nothing but a payload and a time that a batch can hold."""
    return (
        not sent.attributes
        and not sent.HasField("routing_key")
        and not sent.HasField("schema_id")
        and sent.publish_time <= TIME_MS_MAX
    )


def run_of(messages: Sequence[Any], producer: bytes) -> Batch:
    """Return plain messages of the producer of that name, numbered one by one, as a batch."""
    first = messages[0]
    if len(messages) == 1:
        return batch_of(first, producer)
    head, body = encode(
        [sent.payload for sent in messages],
        timestamps_ms=[sent.publish_time for sent in messages],
        producer=producer,
        producer_id=first.msg_id.producer_id,
        first_sequence=first.request_id,
        numbered=False,
    )
    return Batch(head + body)


def batch_of(sent: Any, producer: bytes) -> Batch:
    """Return a message of the producer of that name as a batch, unstamped.

    Raises when a key, an attribute or a number is beyond what a batch may have.
    """
    attributes, has_key = sent.attributes, sent.HasField("routing_key")
    time_ms = sent.publish_time
    if time_ms > TIME_MS_MAX:
        raise BadRequestError(f"publish_time {time_ms} is no time in milliseconds")
    schema = _schema_of(sent) if sent.HasField("schema_id") else NO_SCHEMA
    if not attributes and not has_key:
        # Most messages, and a third of the work.
        return Batch(
            encode_timed(
                sent.payload,
                time_ms,
                producer=producer,
                producer_id=sent.msg_id.producer_id,
                first_sequence=sent.request_id,
                schema=schema,
            )
        )
    head, body = encode(
        (sent.payload,),
        keys=(_key_of(sent),) if has_key else None,
        attributes=(_attributes_of(attributes),) if attributes else None,
        timestamps_ms=(time_ms,),
        producer=producer,
        producer_id=sent.msg_id.producer_id,
        first_sequence=sent.request_id,
        numbered=False,
        schema=schema,
    )
    return Batch(head + body)


def messages_of(batch: Batch, topic: str, broker_url: str) -> list[tuple[int, bytes]]:
    """Return each message of a batch, encoded for a consumer, with its offset."""
    made = StreamMessage(producer_name=batch.producer)
    msg_id = made.msg_id
    msg_id.producer_id = batch.producer_id
    msg_id.topic_name = topic
    msg_id.broker_addr = broker_url
    schema = batch.schema
    if schema is not None:
        made.schema_id, made.schema_version = schema
    lone = batch.lone()
    if lone is not None:
        made.payload, time_ms = lone
        made.publish_time = max(time_ms, 0)
        made.request_id = batch.first_sequence
        msg_id.topic_offset = batch.base_offset
        return [(batch.base_offset, made.SerializeToString())]
    return _all_of(batch, made)


def _all_of(batch: Batch, made: Any) -> list[tuple[int, bytes]]:
    """Encode every message of a batch; `made` has what is the same for all of them."""
    keys, attributes, times = batch.keys, batch.attributes, batch.timestamps_ms
    first_sequence, msg_id = batch.first_sequence, made.msg_id
    found = []
    for slot, (offset, payload) in enumerate(zip(batch.offsets, batch.payloads, strict=True)):
        made.payload = payload
        # Other doors take times before 1970.
        made.publish_time = max(times[slot], 0)
        made.request_id = (first_sequence + slot) & 0xFFFF_FFFF_FFFF_FFFF
        msg_id.topic_offset = offset
        key = keys[slot] if keys is not None else None
        if key is not None:
            made.routing_key = key
        else:
            made.ClearField("routing_key")
        if attributes is not None:
            made.attributes.clear()
            made.attributes.update(attributes[slot])
        found.append((offset, made.SerializeToString()))
    return found


def _key_of(sent: Any) -> str:
    key: str = sent.routing_key
    if len(key.encode()) > KEY_BYTES_MAX:
        raise BadRequestError(f"a routing key has at most {KEY_BYTES_MAX} B")
    return key


def _attributes_of(sent: Any) -> Attributes:
    attributes = dict(sent)
    if len(attributes) > ATTRIBUTES_COUNT_MAX:
        raise BadRequestError(f"a message has at most {ATTRIBUTES_COUNT_MAX} attributes")
    for text in (*attributes, *attributes.values()):
        if len(text) > ATTRIBUTE_BYTES_MAX or len(text.encode()) > ATTRIBUTE_BYTES_MAX:
            raise BadRequestError(f"an attribute has at most {ATTRIBUTE_BYTES_MAX} B")
    return attributes


def _schema_of(sent: Any) -> SchemaRef:
    schema_id, version = sent.schema_id, sent.schema_version
    if schema_id > _U32_MAX:
        raise BadRequestError(f"there is no schema with id {schema_id}")
    return schema_id, version
