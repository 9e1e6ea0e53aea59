"""Transactions of the asyncio client: everything in a block, or nothing of it."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import Self, TypeVar

from ister.base import TopicReport, find_partition
from ister.base.errors import (
    BadRequestError,
    BusyError,
    ConnectionLostError,
    IsterError,
    NotConnectedError,
    RequestTimeoutError,
    ShardMovedError,
    StorageFailedError,
    StorageUncertainError,
)
from ister.base.limits import COMMIT_RETRIED_MS_MAX
from ister.client.aio.connection.link import BrokerLink
from ister.client.session import (
    DeliverAfter,
    DeliverAt,
    Draft,
    Leased,
    MessageIds,
    Staged,
    no_delay_in_transaction,
    with_ttl,
)
from ister.codec import NO_SCHEMA, Attributes, SchemaRef
from ister.topics import Router
from ister.wire import (
    AbortTransaction,
    BeginTransaction,
    Command,
    CommitTransaction,
    TransactionCommitted,
)

# Topics whose partitions are remembered from one transaction to the next; the oldest makes room.
TOPICS_KNOWN_MAX = 1_024
# Between two repetitions while the broker's storage fails, which the broker tries once a second.
REPEAT_S = 1.0

_R = TypeVar("_R")


class Transaction:
    """Messages to any streams, and acknowledgements: all of it is done, or nothing.

    Use it with `async with client.transaction()`. Everything waits in the client until the end of
    the block; an exception inside it sends nothing.

    >>> async with client.transaction() as tx:
    ...     tx.send("/default/out", b"result")
    ...     tx.ack(msg)
    >>> tx.results
    MessageIds([MessageId(topic='/default/out', offset=0)], count=1)
    """

    def __init__(self, link: BrokerLink, routes: "Routes") -> None:
        self._link = link
        self._routes = routes
        # A repetition after a lost connection carries the same word, and happens once.
        self._word = secrets.token_hex(12)
        self._draft = Draft()
        self._results: MessageIds | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abandon()
        elif not self.ended:
            await self.commit()

    @property
    def ended(self) -> bool:
        """Whether it was committed or given up, or that is under way."""
        return self._draft.ended

    @property
    def results(self) -> MessageIds:
        """The ids of the messages in the order they were sent, once committed."""
        if self._results is None:
            raise BadRequestError("the transaction is not committed: leave its block first")
        return self._results

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
        if deliver_at is not None or deliver_after is not None:
            raise no_delay_in_transaction()
        if ttl is not None:
            attributes = with_ttl(attributes, ttl)
        self._draft.send(
            topic,
            payload,
            key=key,
            attributes=attributes,
            id=id,
            message_bytes_max=self._link.session.message_bytes_max,
            schema=NO_SCHEMA if schema is None else schema,
            expected_offset=expected_offset,
            expected_key_offset=expected_key_offset,
        )

    def ack(self, msg: Leased) -> None:
        """Acknowledge a message of a stream, when the transaction is committed."""
        self._draft.ack(msg)

    async def commit(self) -> None:
        """Carry out everything, or nothing. What leaving the block does.

        Raises `LeaseLostError` when a message is not this consumer's to acknowledge any more,
        `TransactionError` or another error of the broker when it could not be done; then nothing
        was. It is repeated after a lost connection, and when the broker's storage fails in the
        middle of it, and happens once. Only `RequestTimeoutError` and `StorageUncertainError`,
        after the client's timeout or 5 minutes of retries, leave open whether it was carried out.
        """
        self._draft.check_open()
        self._draft.end()
        topics = self._draft.topics
        routers = await self._routes.find(topics)
        staged = self._draft.stage(routers, self._link.session.batch_bytes)
        if staged.empty:
            self._results = staged.on_committed([])
            return
        try:
            done = await self._carry_out(staged)
            self._results = staged.on_committed(done.offsets, done.each)
        except IsterError:
            # One of the topics may have been made anew, with other partitions.
            self._routes.forget(topics)
            raise

    def abandon(self) -> None:
        """Give it up, as an exception in the block does: nothing was sent, nothing will be."""
        self._draft.end()

    async def _carry_out(self, staged: Staged) -> TransactionCommitted:
        """Send it until there is an answer, as long as the client's timeout allows."""
        link = self._link
        deadline_ms = link.clock.monotonic_ms() + int(link.timeout_s * 1000)
        sent = False
        # Set while the broker cannot say whether it was carried out.
        uncertain: StorageUncertainError | None = None
        while True:
            try:
                await self._wait_ready(staged, deadline_ms)
                if not sent:
                    staged.check_leases()
                    # The broker recognises a retry for a limited time only.
                    retried_until_ms = link.clock.monotonic_ms() + COMMIT_RETRIED_MS_MAX
                    deadline_ms = min(deadline_ms, retried_until_ms)
                # From here on nobody knows, until the broker says.
                sent = True
                return await self._wait_for(self._send(staged), deadline_ms)
            except ConnectionLostError:
                continue
            except (NotConnectedError, RequestTimeoutError) as error:
                if not sent:
                    raise
                if uncertain is not None:
                    raise uncertain from error
                what = (
                    f"commit of transaction {self._word!r}, of which is not known whether it was "
                    "carried out,"
                )
                raise RequestTimeoutError(what, link.timeout_s) from error
            except (StorageUncertainError, StorageFailedError) as error:
                if isinstance(error, StorageUncertainError):
                    uncertain = error
                # That a repetition was not carried out says nothing of the first time.
                if uncertain is None:
                    raise
                if self._left_s(deadline_ms) <= REPEAT_S:
                    raise uncertain from None
                await self._pause()
            except ShardMovedError as error:
                # The broker that has the storage by now may have found the first attempt there.
                raise uncertain or error from None
            except BusyError:
                if link.session.can_publish:
                    raise
                # The broker goes away and takes nothing new: the next connection will.

    async def _wait_ready(self, staged: Staged, deadline_ms: int) -> None:
        """Return once connected, with all consumers back, so that it is known which leases hold."""
        link = self._link
        while True:
            await link.wait_open(self._left_s(deadline_ms))
            for leases in staged.leases:
                attached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                leases.wait_attached(attached)
                await self._wait_for(attached, deadline_ms)
            if link.session.can_publish:
                return

    async def _wait_for(self, future: "asyncio.Future[_R]", deadline_ms: int) -> _R:
        left_s = self._left_s(deadline_ms)
        return await self._link.wait_for(future, left_s, "commit of transaction", self._word)

    async def _pause(self) -> None:
        over = asyncio.Event()
        timer = self._link.clock.call_later(REPEAT_S, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()

    def _left_s(self, deadline_ms: int) -> float:
        return max(0, deadline_ms - self._link.clock.monotonic_ms()) / 1000

    def _send(self, staged: Staged) -> "asyncio.Future[TransactionCommitted]":
        """Send all of it on a channel of its own; return a future of what comes of it."""
        session = self._link.session
        channel = session.new_channel()
        done: asyncio.Future[TransactionCommitted] = asyncio.get_running_loop().create_future()

        def on_begun(reply: Command | IsterError) -> None:
            if isinstance(reply, IsterError) and not done.done():
                done.set_exception(reply)

        def on_committed(reply: Command | IsterError) -> None:
            if done.done():
                return
            if isinstance(reply, TransactionCommitted):
                done.set_result(reply)
            elif isinstance(reply, IsterError):
                done.set_exception(reply)
            else:
                error = BadRequestError(f"broker answered {type(reply).__name__}")
                done.set_exception(error)

        session.call(BeginTransaction(channel=channel, transaction=self._word), on_begun)
        session.connection.send_all(staged.frames(channel))
        commit = CommitTransaction(channel=channel, topics=staged.topics, acks=staged.acks())
        session.call(commit, on_committed)
        if done.done():
            # It did not even leave, too large for a frame perhaps: what was staged must go.
            session.call(AbortTransaction(channel=channel), on_begun)
        return done


class Routes:
    """How many partitions topics have, and which is next, as `Producer` knows of its own topic."""

    def __init__(self, list_topics: Callable[[str], Awaitable[list[TopicReport]]]) -> None:
        self._list_topics = list_topics
        self._known: dict[str, Router | None] = {}

    async def find(self, topics: Iterable[str]) -> dict[str, Router]:
        """Return routers for those of `topics` that have partitions."""
        found: dict[str, Router] = {}
        for topic in topics:
            if topic not in self._known:
                await self._learn(topic)
            router = self._known.get(topic)
            if router is not None:
                found[topic] = router
        return found

    def forget(self, topics: Iterable[str]) -> None:
        """Ask anew for these the next time."""
        for topic in topics:
            self._known.pop(topic, None)

    async def _learn(self, topic: str) -> None:
        names = [row.topic for row in await self._list_topics(topic)]
        partitions = sum(1 for name in names if _is_partition_of(name, topic))
        if not names:
            return  # Does not exist yet: the broker will say so, or it does by then.
        self._known[topic] = Router(partitions) if partitions else None
        while len(self._known) > TOPICS_KNOWN_MAX:
            del self._known[next(iter(self._known))]


def _is_partition_of(name: str, topic: str) -> bool:
    found = find_partition(name)
    return found is not None and found[0] == topic
