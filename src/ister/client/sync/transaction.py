"""Transactions of the blocking client."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

from ister.client import aio
from ister.client.session import DeliverAfter, DeliverAt, Leased, MessageIds
from ister.client.sync.blocking import Blocking, blocking
from ister.codec import Attributes, SchemaRef

if TYPE_CHECKING:
    from ister.client.sync.client import Client


class Transaction(Blocking[aio.Transaction]):
    """Messages to any streams, and acknowledgements: all of it is done, or nothing.

    Use it with `with client.transaction()`, in one thread. Everything waits in the client until
    the end of the block; an exception inside it sends nothing.

    >>> with client.transaction() as tx:
    ...     tx.send("/default/out", b"result")
    ...     tx.ack(msg)
    >>> tx.results
    MessageIds([MessageId(topic='/default/out', offset=0)], count=1)
    """

    def __init__(self, client: "Client", inner: aio.Transaction) -> None:
        super().__init__(client.thread, inner)
        # A client that nobody holds any more is closed.
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abandon()
        elif not self.ended:
            self.commit()

    commit = blocking(aio.Transaction.commit)

    @property
    def ended(self) -> bool:
        """Whether it was committed or given up, or that is under way."""
        return self._inner.ended

    @property
    def results(self) -> MessageIds:
        """The ids of the messages in the order they were sent, once committed."""
        return self._inner.results

    # What follows only collects, which needs no event loop.

    def send(
        self,
        topic: str,
        payload: bytes,
        *,
        key: str | None = None,
        attributes: Attributes | None = None,
        id: str | None = None,
        ttl: float | None = None,
        expected_offset: int | None = None,
        expected_key_offset: int | None = None,
        schema: SchemaRef | None = None,
        deliver_at: DeliverAt | None = None,
        deliver_after: DeliverAfter | None = None,
    ) -> None:
        """Send a message to a stream, when the transaction is committed.

        `schema` says what the payload is: the `schema` of a producer that has encoded it, or of a
        message that it was the payload of. With `expected_offset` the message is stored at that
        offset, or the commit carries out nothing and raises `OffsetMismatchError`. With
        `expected_key_offset` the newest message of `key` from before the transaction has that
        offset (-1: there is none), or the commit raises `KeyOffsetMismatchError`: see
        `Producer.send`. Raises `BadRequestError` with `deliver_at` or `deliver_after`: what is
        published later is kept in another store.
        """
        self._inner.send(
            topic,
            payload,
            key=key,
            attributes=attributes,
            id=id,
            ttl=ttl,
            expected_offset=expected_offset,
            expected_key_offset=expected_key_offset,
            schema=schema,
            deliver_at=deliver_at,
            deliver_after=deliver_after,
        )

    def abandon(self) -> None:
        """Give it up, as an exception in the block does: nothing was sent, nothing will be."""
        self._inner.abandon()

    def ack(self, msg: Leased) -> None:
        """Acknowledge a message of a stream, when the transaction is committed."""
        self._inner.ack(msg)
