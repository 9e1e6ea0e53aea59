"""A message that waits to be published: what its row has beside the payload, and back to batches.

Always true: batches have the messages in the order of the rows, and each is of one producer and
one schema, as one that comes from a producer is.
"""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import NamedTuple

import msgspec

from ister.base.errors import CorruptedError
from ister.base.limits import PRODUCER_BATCH_BYTES, PRODUCER_BATCH_COUNT
from ister.broker.streams import StreamTopic
from ister.codec import NO_SCHEMA, Batch, SchemaRef, encode
from ister.timeline import Row


class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What goes with a payload. On the disk: what is added goes to the end."""

    topic: str
    # Of the stream, which no other one of its journal will ever have; 0 for a live topic, which has
    # only a name.
    number: int
    producer: str
    schema: SchemaRef = NO_SCHEMA
    key: str | None = None
    id: str | None = None
    attributes: dict[str, str] | None = None
    # Where the stream is: another journal gives the same numbers. Empty: that was not noted yet.
    journal: str = ""

    def is_for(self, stream: StreamTopic) -> bool:
        """Return whether a stream is the very one, and not one of its name made since."""
        is_there = self.journal in ("", stream.storage.name)
        return is_there and self.number == stream.record.topic


class Letter(NamedTuple):
    """A message that is due, with the row it came from."""

    row: Row
    envelope: Envelope

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        return len(self.row.payload) + len(self.row.attributes)


pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Envelope).decode


def open_row(row: Row) -> Letter:
    """Return the message of a row, or raise `CorruptedError`."""
    try:
        return Letter(row, _unpack(row.attributes))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptedError("delayed message", row.seq, f"its envelope: {error}") from error


def row_name(envelope: Envelope, id: str) -> str:
    """Return what a message is called while it waits: the second of a name is not kept.

    Those of a stream that was deleted wait until they are due. They must not keep out what is sent
    to another one of its name, so a name is of that very stream.
    """
    text = f"{envelope.topic}\0{envelope.journal}\0{envelope.number}\0{id}"
    return blake2b(text.encode(), digest_size=20).hexdigest()


def batches_of(letters: Sequence[Letter], batch_bytes: int) -> Iterator[Batch]:
    """Yield messages of one topic as batches, unnumbered."""
    for (producer, schema), group in groupby(letters, _origin):
        for run in _cut(list(group), min(batch_bytes, PRODUCER_BATCH_BYTES)):
            yield _encoded(run, producer.encode(), schema)


def _origin(letter: Letter) -> tuple[str, SchemaRef]:
    return letter.envelope.producer, letter.envelope.schema


def _cut(letters: list[Letter], batch_bytes: int) -> Iterator[list[Letter]]:
    start = size_bytes = 0
    for slot, letter in enumerate(letters):
        added = letter.size_bytes
        full = slot - start >= PRODUCER_BATCH_COUNT or size_bytes + added > batch_bytes
        if full and slot > start:
            yield letters[start:slot]
            start, size_bytes = slot, 0
        size_bytes += added
    yield letters[start:]


def _encoded(letters: list[Letter], producer: bytes, schema: SchemaRef) -> Batch:
    envelopes = [letter.envelope for letter in letters]
    keys = [envelope.key for envelope in envelopes]
    attributes = [envelope.attributes for envelope in envelopes]
    ids = [envelope.id for envelope in envelopes]
    parts = encode(
        [letter.row.payload for letter in letters],
        keys=keys if any(key is not None for key in keys) else None,
        attributes=attributes if any(attributes) else None,
        ids=ids if any(one is not None for one in ids) else None,
        producer=producer,
        numbered=False,
        schema=schema,
    )
    return Batch(b"".join(parts))
