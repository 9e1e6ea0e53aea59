"""A batch: messages of one producer as columns. The unit of the wire and of everything stored.

Always true of a parsed batch:
- its checksum held, and every size in its header agrees with the bytes at hand;
- `tail` (all but the broker's stamp) is forwarded as the producer made it, never re-encoded;
- columns are decoded when asked for, and checked when decoded.

Spec: docs/batch-format.md.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ister.base.errors import BadBatchError
from ister.base.limits import (
    ATTRIBUTE_BYTES_MAX,
    ATTRIBUTES_COUNT_MAX,
    BATCH_BYTES_CEILING,
    BATCH_COUNT_MAX,
    KEY_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
)
from ister.codec.checksum import crc32c
from ister.codec.columns import (
    AttributeRows,
    Attributes,
    Cursor,
    NullableValues,
    Values,
    encode_numbers,
)
from ister.codec.compression import decompress
from ister.codec.encoding import NO_SCHEMA, ReplyAddress, SchemaRef, encode, seal
from ister.codec.layout import (
    BARE,
    CHECKED_POSITION,
    FLAGS_POSITION,
    FORMAT_VERSION,
    HEADER_BYTES,
    HEADER_START,
    NAME_BYTES,
    NAME_BYTES_POSITION,
    OFFSET_MAX,
    REPLY,
    SCHEMA,
    SCHEMA_POSITION,
    SEQUENCE,
    SEQUENCE_POSITION,
    STAMP,
    STAMP_BYTES,
    TIME,
    UNKNOWN_COLUMNS,
    UNNUMBERED,
    Codec,
    Column,
    padded,
)
from ister.codec.places import Places, find_places

if TYPE_CHECKING:
    import pyarrow


class Batch:
    """A view of the bytes of one batch. Making one checks the header; columns are lazy."""

    __slots__ = (
        "_attributes",
        "_bare",
        "_columns_start",
        "_ids",
        "_keys",
        "_offsets",
        "_parsed",
        "_payloads",
        "_replies",
        "_timestamps",
        "_view",
        "base_offset",
        "codec",
        "columns",
        "columns_bytes",
        "count",
        "publish_time_ms",
        "size_bytes",
        "topic",
    )

    # What `HEADER_START` gives is untyped.
    base_offset: int
    publish_time_ms: int
    columns: int
    columns_bytes: int
    count: int

    def __init__(self, data: bytes | memoryview) -> None:
        """Parse `data`, which must be exactly one batch, or raise `BadBatchError`."""
        self._view = view = memoryview(data)
        self.size_bytes = size = len(view)
        if size < HEADER_BYTES:
            raise BadBatchError(f"{size} B are fewer than the {HEADER_BYTES} B of a header")
        (
            self.base_offset,
            self.publish_time_ms,
            crc,
            version,
            codec,
            self.columns,
            self.count,
            self.columns_bytes,
            stored_bytes,
            name_bytes,
        ) = HEADER_START.unpack_from(view)
        self._columns_start = start = HEADER_BYTES + ((name_bytes + 7) & ~7)
        if version != FORMAT_VERSION:
            raise BadBatchError(f"format version {version} is not {FORMAT_VERSION}")
        if size != start + stored_bytes:
            raise BadBatchError("header and size of the batch disagree")
        if crc32c(view[CHECKED_POSITION:]) != crc:
            raise BadBatchError("checksum does not match")
        if codec == 0 and stored_bytes != self.columns_bytes:
            raise BadBatchError("header and size of the columns disagree")
        # A lone message that is nothing but a payload, or a request: the latency path.
        self._bare = self.count == 1 and codec == 0 and self.columns in _BARE_COLUMNS
        self._parsed = False
        if self._bare:
            self.codec = Codec.NONE
        else:
            self.codec = self._check_header(codec)
        # Where it was received from; not part of the bytes.
        self.topic = ""

    def _check_header(self, codec: int) -> Codec:
        if not 0 < self.count <= BATCH_COUNT_MAX:
            raise BadBatchError(f"{self.count} messages are not 1 to {BATCH_COUNT_MAX}")
        if self.columns_bytes > BATCH_BYTES_CEILING or self.columns & UNKNOWN_COLUMNS:
            raise BadBatchError("unknown columns, or too many bytes in them")
        if codec >= len(_CODECS):
            raise BadBatchError(f"codec {codec} is unknown")
        return _CODECS[codec]

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return (
            f"Batch(base_offset={self.base_offset}, count={self.count}, "
            f"size_bytes={self.size_bytes}, producer={self.producer!r})"
        )

    @property
    def producer(self) -> str:
        """The name of the producer."""
        return self.producer_bytes.decode(errors="replace")

    @property
    def producer_bytes(self) -> bytes:
        """The name of the producer as it stands in the batch."""
        size = NAME_BYTES.unpack_from(self._view, NAME_BYTES_POSITION)[0]
        return bytes(self._view[HEADER_BYTES : HEADER_BYTES + size])

    @property
    def producer_id(self) -> int:
        """The number the broker gave the producer."""
        return int(SEQUENCE.unpack_from(self._view, SEQUENCE_POSITION)[0])

    @property
    def first_sequence(self) -> int:
        """The producer's own number of the first message."""
        return int(SEQUENCE.unpack_from(self._view, SEQUENCE_POSITION)[1])

    @property
    def numbered(self) -> bool:
        """Whether the numbers tell a repetition from something new."""
        return not self._view[FLAGS_POSITION] & UNNUMBERED

    @property
    def schema(self) -> SchemaRef | None:
        """What the payloads are, if the producer said so."""
        found: SchemaRef = SCHEMA.unpack_from(self._view, SCHEMA_POSITION)
        return found if found != NO_SCHEMA else None

    @property
    def tail(self) -> memoryview:
        """Everything but the broker's stamp, as the producer made it."""
        return self._view[STAMP_BYTES:]

    @property
    def payloads(self) -> list[bytes]:
        """Every payload, in order."""
        if self._bare:
            size = self._check_bare()
            start = self._columns_start + 8
            return [bytes(self._view[start : start + size])]
        return self.payload_column.values()

    def places(self) -> Places:
        """Return where the columns lie, uncompressed; what they hold is not checked."""
        view = decompress(self.codec, self._view[self._columns_start :], self.columns_bytes)
        return find_places(view, self.count, self.columns)

    @property
    def payload_column(self) -> Values:
        """The payload column itself."""
        if not self._parsed:
            self.check()
        return self._payloads

    @property
    def key_column(self) -> NullableValues | None:
        """The key column itself, or `None` when no message has a key."""
        if not self._parsed:
            self.check()
        return self._keys

    @property
    def keys(self) -> list[str | None] | None:
        """The key of every message, or `None` when none has one."""
        if not self._parsed:
            self.check()
        return self._keys.texts() if self._keys is not None else None

    @property
    def attributes(self) -> list[Attributes] | None:
        """The attributes of every message, or `None` when none has any."""
        if not self._parsed:
            self.check()
        return self._attributes.rows() if self._attributes is not None else None

    def keys_between(self, start: int, end: int) -> list[str | None] | None:
        """Return the keys of messages `start` to `end`, or `None` when no message has one."""
        if not self._parsed:
            self.check()
        return self._keys.texts(start, end) if self._keys is not None else None

    def attributes_between(self, start: int, end: int) -> list[Attributes] | None:
        """Return the attributes of messages `start` to `end`, or `None` when none has any."""
        if not self._parsed:
            self.check()
        return self._attributes.rows(start, end) if self._attributes is not None else None

    def texts_between(self, start: int, end: int) -> tuple[int, int]:
        """Return how many keys and attributes messages `start` to `end` have, and their bytes."""
        if not self._parsed:
            self.check()
        count = size_bytes = 0
        if self._keys is not None:
            count = end - start
            size_bytes = self._keys.column.bytes_between(start, end)
        if self._attributes is not None:
            first, last = self._attributes.offsets[start], self._attributes.offsets[end]
            count += last - first
            size_bytes += self._attributes.values.bytes_between(first, last)
        return count, size_bytes

    def names_attribute(self, name: str) -> bool:
        """Tell whether some message may have an attribute of that name.

        Mostly none does, and that is told without a look at each message.
        """
        if not self._parsed:
            self.check()
        return self._attributes is not None and name.encode() in bytes(self._attributes.names.blob)

    @property
    def ids(self) -> list[str | None] | None:
        """The producer's own id of every message, or `None` when none has one."""
        if not self._parsed:
            self.check()
        return self._ids.texts() if self._ids is not None else None

    @property
    def id_bytes(self) -> int:
        """The size of all message ids together."""
        if not self._parsed:
            self.check()
        return len(self._ids.column.blob) if self._ids is not None else 0

    @property
    def timestamps_ms(self) -> Sequence[int]:
        """The time of every message: the producer's own, else the publish time."""
        if not self._parsed:
            self.check()
        if self._timestamps is not None:
            return self._timestamps
        return [self.publish_time_ms] * self.count

    @property
    def offsets(self) -> Sequence[int]:
        """The offset of every message."""
        if self.columns & Column.OFFSET:
            if not self._parsed:
                self.check()
            assert self._offsets is not None
            return self._offsets
        if self.base_offset + self.count > OFFSET_MAX:
            raise BadBatchError(f"base offset {self.base_offset} is past the last offset")
        return range(self.base_offset, self.base_offset + self.count)

    @property
    def replies(self) -> list[ReplyAddress] | None:
        """Where each request wants its reply, or `None` when these are no requests."""
        if self._bare and self.columns:
            self._check_bare()
            return [REPLY.unpack_from(self._view, self.size_bytes - REPLY.size)]
        if not self._parsed:
            self.check()
        if self._replies is None:
            return None
        return list(zip(self._replies[::2], self._replies[1::2], strict=True))

    def lone(self) -> tuple[bytes, int] | None:
        """Return payload and time of the only message, if it has nothing beside them.

        For doors that send one message at a time: no column is parsed.
        """
        if self.count != 1 or self.codec or self.columns not in _LONE_COLUMNS:
            return None
        time_bytes = TIME.size if self.columns else 0
        start, columns_bytes = self._columns_start, self.columns_bytes
        if columns_bytes < BARE.size:
            raise BadBatchError("a column reaches past the end of the batch")
        first, size = BARE.unpack_from(self._view, start)
        if first or columns_bytes != BARE.size + padded(size) + time_bytes:
            raise BadBatchError("offsets of a column do not rise from 0")
        start += BARE.size
        payload = bytes(self._view[start : start + size])
        if not time_bytes:
            return payload, self.publish_time_ms
        return payload, TIME.unpack_from(self._view, self.size_bytes - TIME.size)[0]

    def check(self) -> None:
        """Parse every column. Afterwards no column can turn out to be broken, text apart."""
        view = decompress(self.codec, self._view[self._columns_start :], self.columns_bytes)
        cursor = Cursor(view)
        count, columns = self.count, self.columns
        self._payloads = cursor.take_values(count)
        if not columns:
            self._keys: NullableValues | None = None
            self._attributes: AttributeRows | None = None
            self._timestamps: list[int] | None = None
            self._ids: NullableValues | None = None
            self._offsets: list[int] | None = None
            self._replies: list[int] | None = None
        else:
            self._keys = cursor.take_nullable(count) if columns & Column.KEY else None
            self._attributes = (
                cursor.take_attributes(count) if columns & Column.ATTRIBUTES else None
            )
            self._timestamps = cursor.take_numbers(count) if columns & Column.TIMESTAMP else None
            self._ids = cursor.take_nullable(count) if columns & Column.ID else None
            self._offsets = cursor.take_numbers(count) if columns & Column.OFFSET else None
            self._replies = cursor.take_numbers(count * 2) if columns & Column.REPLY else None
        if cursor.position != len(view):
            raise BadBatchError("bytes are left over behind the last column")
        self._parsed = True

    def verify(self, *, message_bytes_max: int) -> int:
        """Check everything a producer could have got wrong, before anybody else sees it.

        Returns the size of the largest payload if it is over `message_bytes_max`, else 0.
        """
        if self._bare:
            size = self._check_bare()
            return size if size > message_bytes_max else 0
        if not self._parsed:
            self.check()
        if self.columns:
            self._verify_texts()
        payloads = self._payloads
        if len(payloads.blob) <= message_bytes_max:
            return 0
        largest = payloads.value_bytes_max()
        return largest if largest > message_bytes_max else 0

    def _check_bare(self) -> int:
        """Check the columns of a lone message that is nothing but a payload; return its size.

        The latency path: what `check` does, without an object for each column.
        """
        if self.columns_bytes < BARE.size:
            raise BadBatchError("a column reaches past the end of the batch")
        first, size = BARE.unpack_from(self._view, self._columns_start)
        reply_bytes = REPLY.size if self.columns else 0
        if first or self.columns_bytes != BARE.size + padded(size) + reply_bytes:
            raise BadBatchError("offsets of a column do not rise from 0")
        return int(size)

    def _verify_texts(self) -> None:
        if self._keys is not None:
            self._keys.column.check_text(KEY_BYTES_MAX)
        if self._ids is not None:
            self._ids.column.check_text(MESSAGE_ID_BYTES_MAX)
        if self._attributes is not None:
            self._attributes.check(ATTRIBUTES_COUNT_MAX, ATTRIBUTE_BYTES_MAX)

    def stamp(self, base_offset: int, publish_time_ms: int) -> None:
        """Set the broker's fields."""
        self.base_offset = base_offset
        self.publish_time_ms = publish_time_ms

    def stamp_bytes(self) -> bytes:
        """Return the broker's fields as they stand before `tail`."""
        return STAMP.pack(self.base_offset, self.publish_time_ms)

    def to_bytes(self) -> bytes:
        """Return the whole batch as it is now."""
        return self.stamp_bytes() + self.tail

    def detached(self) -> "Batch":
        """Return this batch without ties to a larger buffer, to be kept for a while.

        A batch cut out of what a socket returned keeps all of that alive: 100 bytes in a queue
        could hold 256 KiB. Parsed columns can be a thousand times a compressed batch.
        It is the same batch, so that the queues of many consumers share one copy.
        """
        held = self._view.obj
        if not isinstance(held, bytes | bytearray) or len(held) > 2 * self.size_bytes:
            self._view = memoryview(self.to_bytes())
        self.forget_columns()
        return self

    def forget_columns(self) -> None:
        """Let go of what `check` made, which may be much; it is made again when asked for."""
        if self._parsed:
            self._parsed = False
            del self._payloads, self._keys, self._attributes, self._timestamps
            del self._ids, self._offsets, self._replies

    def slice(self, start: int, end: int) -> "Batch":
        """Return messages `start` to `end` as a batch of their own, uncompressed."""
        if start == 0 and end == self.count:
            return self
        parts = self.payload_column.slice(start, end)
        if self._keys is not None:
            parts += self._keys.slice(start, end)
        if self._attributes is not None:
            parts += self._attributes.slice(start, end)
        if self._timestamps is not None:
            parts += encode_numbers(self._timestamps[start:end])
        if self._ids is not None:
            parts += self._ids.slice(start, end)
        if self._offsets is not None:
            parts += encode_numbers(self._offsets[start:end])
        if self._replies is not None:
            parts += encode_numbers(self._replies[start * 2 : end * 2])
        base_offset = self.base_offset if self._offsets is not None else self.base_offset + start
        head, body = seal(
            parts,
            columns=self.columns,
            count=end - start,
            producer=self.producer_bytes,
            producer_id=self.producer_id,
            first_sequence=self.first_sequence + start,
            numbered=self.numbered,
            schema=self.schema or NO_SCHEMA,
            codec=Codec.NONE,
        )
        return self._derived(head, body, base_offset)

    def unstamped(self, slots: Sequence[int]) -> "Batch":
        """Return the messages at `slots` as a new batch, which has no offsets yet.

        Decodes and encodes: for what is rare.
        """
        payloads, keys, ids, attributes = self.payloads, self.keys, self.ids, self.attributes
        times = self.timestamps_ms if self.columns & Column.TIMESTAMP else None
        head, body = encode(
            [payloads[s] for s in slots],
            keys=[keys[s] for s in slots] if keys is not None else None,
            attributes=[attributes[s] for s in slots] if attributes is not None else None,
            timestamps_ms=[times[s] for s in slots] if times is not None else None,
            ids=[ids[s] for s in slots] if ids is not None else None,
            producer=self.producer_bytes,
            producer_id=self.producer_id,
            first_sequence=self.first_sequence,
            numbered=self.numbered,
            schema=self.schema or NO_SCHEMA,
        )
        return Batch(head + body)

    def select(self, slots: Sequence[int]) -> "Batch":
        """Return the messages at `slots` (rising) as a batch of their own, uncompressed.

        The work grows with the messages taken, not with those left behind: a large batch may be
        picked apart for thousands of consumers.
        """
        start, end = slots[0], slots[-1] + 1
        if end - start == len(slots):
            return self.slice(start, end)
        offsets = self.offsets
        parts = self.payload_column.pick(slots)
        for column in (self._keys, self._attributes):
            parts += column.pick(slots) if column is not None else []
        if self._timestamps is not None:
            parts += encode_numbers([self._timestamps[s] for s in slots])
        if self._ids is not None:
            parts += self._ids.pick(slots)
        parts += encode_numbers([offsets[s] for s in slots])
        if self._replies is not None:
            replies = self._replies
            parts += encode_numbers([replies[n] for s in slots for n in (2 * s, 2 * s + 1)])
        head, body = seal(
            parts,
            columns=self.columns | Column.OFFSET,
            count=len(slots),
            producer=self.producer_bytes,
            producer_id=self.producer_id,
            first_sequence=self.first_sequence + start,
            numbered=self.numbered,
            schema=self.schema or NO_SCHEMA,
            codec=Codec.NONE,
        )
        return self._derived(head, body, self.base_offset)

    def plain(self) -> "Batch":
        """Return this batch uncompressed."""
        if self.codec is Codec.NONE:
            return self
        view = decompress(self.codec, self._view[self._columns_start :], self.columns_bytes)
        head, body = seal(
            [bytes(view)],
            columns=self.columns,
            count=self.count,
            producer=self.producer_bytes,
            producer_id=self.producer_id,
            first_sequence=self.first_sequence,
            numbered=self.numbered,
            schema=self.schema or NO_SCHEMA,
            codec=Codec.NONE,
        )
        return self._derived(head, body, self.base_offset)

    def to_arrow(self) -> "pyarrow.RecordBatch":
        """Return the columns as a `pyarrow.RecordBatch` over the same memory."""
        from ister.codec.arrow import to_arrow

        return to_arrow(self)

    def _derived(self, head: bytes, body: bytes, base_offset: int) -> "Batch":
        batch = Batch(head + body)
        batch.stamp(base_offset, self.publish_time_ms)
        return batch


_CODECS = tuple(Codec)
_BARE_COLUMNS = (0, Column.REPLY)
_LONE_COLUMNS = (0, Column.TIMESTAMP)
