"""What an application gets: messages, and the ids of those it sent.

A message holds its payload; everything else is looked up in its batch when asked for, so that
reading only payloads costs only payloads.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from ister.base import find_partition
from ister.base.errors import WrongKindError
from ister.client.session.values import no_schema
from ister.codec import Attributes, Batch, ReplyAddress, SchemaRef

if TYPE_CHECKING:
    from ister.client.session.consuming.leases import Lease


class Delivery:
    """One delivered batch, as its messages share it."""

    # Columns that were asked for. Defaults of the class, because most never are, and making a
    # delivery is on the latency path.
    _keys: list[str | None] | None = None
    _attributes: list[Attributes] | None = None
    _ids: list[str | None] | None = None
    _replies: list[ReplyAddress] | None = None
    _timestamps_ms: Sequence[int] | None = None
    # What its messages are acknowledged under; `None` on live topics.
    lease: "Lease | None" = None
    # How payloads become values, when the subscription was given a schema.
    decode: Callable[[bytes], Any] | None = None
    _values: dict[int, Any] | None = None

    def __init__(self, batch: Batch, source: Any) -> None:
        self.batch = batch
        # The client at hand; messages act through it.
        self.source = source

    def keys(self) -> list[str | None]:
        """The key of each message."""
        if self._keys is None:
            self._keys = self.batch.keys or [None] * len(self.batch)
        return self._keys

    def attributes(self) -> list[Attributes]:
        """The attributes of each message."""
        if self._attributes is None:
            self._attributes = self.batch.attributes or [{} for _ in range(len(self.batch))]
        return self._attributes

    def replies(self) -> list[ReplyAddress]:
        """Where the answer to each request goes; empty when these are no requests."""
        if self._replies is None:
            self._replies = self.batch.replies or []
        return self._replies

    def ids(self) -> list[str | None]:
        """The producer's id of each message."""
        if self._ids is None:
            self._ids = self.batch.ids or [None] * len(self.batch)
        return self._ids

    def value(self, slot: int, payload: bytes) -> Any:
        """The value of a message, decoded when it is first asked for."""
        if self.decode is None:
            raise no_schema("subscription to", self.batch.topic, "subscribe")
        if self._values is None:
            self._values = {}
        elif slot in self._values:
            return self._values[slot]
        value = self._values[slot] = self.decode(payload)
        return value

    def timestamps_ms(self) -> Sequence[int]:
        """The time of each message."""
        if self._timestamps_ms is None:
            self._timestamps_ms = self.batch.timestamps_ms
        return self._timestamps_ms


class BaseMessage(msgspec.Struct, gc=False):
    """A received message. `gc=False`: nothing a message refers to refers back to it."""

    payload: bytes
    _delivery: Delivery
    _slot: int

    @property
    def value(self) -> Any:
        """What was sent, of a subscription with a schema: the payload, decoded once.

        Raises `SchemaViolationError` for a payload that is no value of that schema, and whatever
        kept the client from getting the schema that the message was written with.
        """
        return self._delivery.value(self._slot, self.payload)

    @property
    def schema(self) -> SchemaRef | None:
        """The id and the version of the schema that its producer named, if it did."""
        return self._delivery.batch.schema

    @property
    def topic(self) -> str:
        """The topic; for a partitioned topic the partition's own name."""
        return self._delivery.batch.topic

    @property
    def partition(self) -> int | None:
        """The partition, or `None` when the topic has none."""
        found = find_partition(self._delivery.batch.topic)
        return found[1] if found else None

    @property
    def offset(self) -> int:
        """The message's number in its topic."""
        return self._delivery.batch.offsets[self._slot]

    @property
    def key(self) -> str | None:
        """The key it was sent with."""
        return self._delivery.keys()[self._slot]

    @property
    def attributes(self) -> Attributes:
        """The attributes it was sent with."""
        return self._delivery.attributes()[self._slot]

    @property
    def id(self) -> str | None:
        """The id its producer gave it."""
        return self._delivery.ids()[self._slot]

    @property
    def publish_time_ms(self) -> int:
        """When it was published, in milliseconds since 1970 in UTC."""
        return self._delivery.timestamps_ms()[self._slot]

    @property
    def publish_time(self) -> datetime:
        """When it was published."""
        return datetime.fromtimestamp(self.publish_time_ms / 1000, UTC)

    @property
    def producer(self) -> str:
        """The name of its producer."""
        return self._delivery.batch.producer

    @property
    def attempt(self) -> int:
        """How often it has been delivered, this time included; always 1 on live topics."""
        lease = self._delivery.lease
        return 1 if lease is None else lease.attempt

    @property
    def slot(self) -> int:
        """Its place among the messages it was delivered with."""
        return self._slot

    @property
    def reply_address(self) -> ReplyAddress | None:
        """Where an answer goes, or `None` when this is no request."""
        replies = self._delivery.replies()
        return replies[self._slot] if replies else None

    def find_lease(self) -> "Lease | None":
        """Return the lease it was delivered under; a message of a live topic has none."""
        return self._delivery.lease

    def leased(self) -> "Lease":
        """Return the lease it was delivered under; raise `WrongKindError` on a live topic."""
        lease = self._delivery.lease
        if lease is None:
            reason = "it keeps nothing, so nothing can be given back, extended or acknowledged"
            raise WrongKindError(self.topic, "live", reason)
        return lease

    def run(self) -> tuple[int, int, int, int]:
        """Return what a transaction acknowledges it by: channel, lease, first and end offset."""
        lease, slot = self.leased(), self._slot
        offset = lease.offsets[slot]
        return lease.leases.channel, lease.number, offset, offset + 1

    def on_acked(self) -> None:
        """Take note that it was acknowledged otherwise, as by a transaction."""
        lease, slot = self.leased(), self._slot
        lease.leases.settle(lease, slot, slot + 1)

    def __repr__(self) -> str:
        return (
            f"Message(topic={self.topic!r}, offset={self.offset}, key={self.key!r}, "
            f"payload={self.payload[:40]!r})"
        )
