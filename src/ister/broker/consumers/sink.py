"""The way to a consumer, which a door implements for one connection."""

from typing import Protocol

from ister.base.errors import IsterError
from ister.codec import Batch
from ister.subscriptions import Responder


class SourceTopic(Protocol):
    """A topic, as frames that deliver its messages see it."""

    # What deliver frames call it.
    number: int
    messages_out: int
    messages_dropped: int

    @property
    def name(self) -> str:
        """What everybody else calls it."""


class Sink(Protocol):
    """The way to a consumer."""

    # False while the connection's own send buffer is full.
    writable: bool
    address: str
    # How the client deals with requests; the sink counts those it sends.
    responder: Responder

    def deliver(self, channel: int, topic: SourceTopic, batch: Batch) -> None:
        """Send a batch."""

    def deliver_leased(
        self,
        channel: int,
        topic: SourceTopic,
        batch: Batch,
        lease: int,
        attempt: int,
        lease_ms: int,
    ) -> None:
        """Send a batch of a stream, to be acknowledged under `lease`."""

    def slow_consumer(self, channel: int, dropped: int) -> None:
        """Tell the consumer how many messages it has lost so far."""

    def active_changed(self, channel: int, *, active: bool) -> None:
        """Tell a standby that it was promoted."""

    def consumer_closed(
        self, channel: int, reason: str, *, error: IsterError | None = None
    ) -> None:
        """Tell the consumer that the broker closed it, and by which error, if by one."""

    def leases_void(self, channel: int, leases: int, *, active: bool) -> None:
        """Tell the consumer that what it holds of streams is void; `leases` names what follows."""
