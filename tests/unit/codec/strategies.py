"""Arbitrary messages, for property tests of batches and of what carries them."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from ister.codec import Batch, Codec, ReplyAddress, crc32c, encode

INT64 = st.integers(-(2**63), 2**63 - 1)
UINT64 = st.integers(0, 2**64 - 1)

texts = st.text(st.characters(codec="utf-8"), max_size=12)
attribute_rows = st.none() | st.dictionaries(texts, texts, max_size=3)
addresses = st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))


@dataclass(frozen=True)
class Messages:
    """Messages as plain lists: what a batch of them must give back."""

    payloads: list[bytes]
    keys: list[str | None] | None = None
    attributes: list[dict[str, str] | None] | None = None
    timestamps_ms: list[int] | None = None
    ids: list[str | None] | None = None
    replies: list[ReplyAddress] | None = None
    header: Mapping[str, Any] = field(default_factory=dict)

    def batch(self, *, codec: Codec = Codec.NONE, base_offset: int = 0) -> Batch:
        """Return these messages as a stamped batch."""
        batch = Batch(b"".join(self.encoded(codec)))
        batch.stamp(base_offset, 1_700_000_000_000)
        return batch

    def encoded(self, codec: Codec = Codec.NONE) -> tuple[bytes, bytes]:
        """Return header and body."""
        return encode(
            self.payloads,
            keys=self.keys,
            attributes=self.attributes,
            timestamps_ms=self.timestamps_ms,
            ids=self.ids,
            replies=self.replies,
            codec=codec,
            **self.header,
        )

    def select(self, slots: list[int]) -> "Messages":
        """Return some of these messages."""
        return Messages(
            payloads=[self.payloads[s] for s in slots],
            keys=self.keys and [self.keys[s] for s in slots],
            attributes=self.attributes and [self.attributes[s] for s in slots],
            timestamps_ms=self.timestamps_ms and [self.timestamps_ms[s] for s in slots],
            ids=self.ids and [self.ids[s] for s in slots],
            replies=self.replies and [self.replies[s] for s in slots],
            header=self.header,
        )

    def shown(self) -> dict[str, object]:
        """Return the columns as a batch shows them."""
        return {
            "payloads": self.payloads,
            "keys": self.keys,
            "attributes": self.attributes and [row or {} for row in self.attributes],
            "timestamps_ms": self.timestamps_ms or [1_700_000_000_000] * len(self.payloads),
            "ids": self.ids,
            "replies": self.replies,
        }


def shown(batch: Batch) -> dict[str, object]:
    """Return every column of a batch but the offsets."""
    return {
        "payloads": batch.payloads,
        "keys": batch.keys,
        "attributes": batch.attributes,
        "timestamps_ms": list(batch.timestamps_ms),
        "ids": batch.ids,
        "replies": batch.replies,
    }


@st.composite
def messages(draw: st.DrawFn, max_size: int = 12) -> Messages:
    """Any messages with any set of columns; often all payloads of one size."""
    size = draw(st.none() | st.integers(0, 9))
    payload = st.binary(max_size=20) if size is None else st.binary(min_size=size, max_size=size)
    payloads = draw(st.lists(payload, min_size=1, max_size=max_size))
    count = len(payloads)

    def column(values: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(values, min_size=count, max_size=count))

    return Messages(
        payloads=payloads,
        keys=column(st.none() | texts),
        attributes=column(attribute_rows),
        timestamps_ms=column(INT64),
        ids=column(st.none() | texts),
        replies=column(addresses),
        header={
            "producer": draw(st.binary(max_size=20)),
            "producer_id": draw(UINT64),
            "first_sequence": draw(UINT64),
        },
    )


def resealed(data: bytes | bytearray) -> bytes:
    """Return the bytes of a batch with the checksum that fits them, so that parsing goes on."""
    return bytes(data[:16]) + struct.pack("<I", crc32c(bytes(data[20:]))) + bytes(data[20:])
