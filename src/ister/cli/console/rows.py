"""Messages as JSON rows, and the rows of one batch at a time."""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import repeat
from typing import Annotated

import typer

from ister.base import find_partition
from ister.client import Message
from ister.codec import Attributes, Batch

Row = dict[str, object]

VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print topic, offset and key before each payload.")
]


def message_row(message: Message) -> Row:
    """Return a received message."""
    row = _row(
        topic=message.topic,
        offset=message.offset,
        key=message.key,
        attributes=message.attributes,
        id_=message.id,
        time_ms=message.publish_time_ms,
        producer=message.producer,
        payload=message.payload,
    )
    return row | {"attempt": message.attempt}


def verbose_line(topic: str, offset: int, key: str | None, payload: bytes) -> bytes:
    """Return a message as a line of fields with tabs between: topic, offset, key, payload."""
    return f"{topic}\t{offset}\t{'-' if key is None else key}\t".encode() + payload + b"\n"


def batch_rows(batch: Batch) -> Iterator[Row]:
    """Yield the messages of a batch."""
    columns = zip(
        batch.offsets,
        batch.keys or repeat(None),
        batch.attributes or repeat({}),
        batch.ids or repeat(None),
        batch.timestamps_ms,
        batch.payloads,
        strict=False,
    )
    for offset, key, attributes, id_, time_ms, payload in columns:
        yield _row(
            topic=batch.topic,
            offset=offset,
            key=key,
            attributes=attributes,
            id_=id_,
            time_ms=time_ms,
            producer=batch.producer,
            payload=payload,
        )


def _row(
    *,
    topic: str,
    offset: int,
    key: str | None,
    attributes: Attributes,
    id_: str | None,
    time_ms: int,
    producer: str,
    payload: bytes,
) -> Row:
    partition = find_partition(topic)
    row: Row = {
        "topic": topic,
        "partition": partition[1] if partition else None,
        "offset": offset,
        "key": key,
        "attributes": attributes,
        "id": id_,
        "publish_time": datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(
            timespec="milliseconds"
        ),
        "producer": producer,
    }
    try:
        row["payload"] = payload.decode()
    except UnicodeDecodeError:
        row["payload_base64"] = base64.b64encode(payload).decode()
    return row
