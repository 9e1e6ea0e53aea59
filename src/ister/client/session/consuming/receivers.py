"""The subscriptions and readers of a session: opened, opened again, told what concerns them.

Always true:
- a channel is in one of the two tables from the moment it is opened until it is closed or has
  failed, so that it is opened again on every new connection;
- its number is used for one attachment after another only while it stays in the table.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ister.base.errors import ClosedError, IsterError
from ister.client.session.calls import COMES_BACK, OnReply, ignore
from ister.client.session.consuming.reader import ReaderChannel
from ister.client.session.consuming.subscription import SubscriptionChannel
from ister.client.session.port import Flushable
from ister.wire import (
    ActiveChanged,
    CloseConsumer,
    CloseReader,
    Command,
    ConsumerClosed,
    Done,
    ReaderEnded,
    ReaderOpened,
    Seek,
    SlowConsumer,
    Subscribed,
    error_of,
)

if TYPE_CHECKING:
    from ister.client.session.port import SessionPort

# `Subscribed` without being asked: the subscription was moved, and its leases are void.
Notice = SlowConsumer | ActiveChanged | ConsumerClosed | ReaderEnded | Subscribed


class Receivers:
    """The subscriptions and readers of a session."""

    def __init__(self, session: "SessionPort", on_lease: Callable[[int], object]) -> None:
        """`on_lease` is to have `renew` called at a time in ms."""
        self.subscriptions: dict[int, SubscriptionChannel] = {}
        self.readers: dict[int, ReaderChannel] = {}
        # Those with something to say about what they were delivered.
        self.acking: dict[Flushable, None] = {}
        self._session = session
        self._on_lease = on_lease
        # When leases are looked at next, if that was asked for.
        self._renew_ms: int | None = None

    # Subscriptions

    def subscribe(self, subscription: SubscriptionChannel, on_reply: OnReply) -> None:
        """Attach a consumer."""
        channel = subscription.channel

        def on_attached(reply: Command | IsterError) -> None:
            if channel not in self.subscriptions:
                pass  # Detached since.
            elif isinstance(reply, Subscribed):
                subscription.on_subscribed(reply)
            elif not isinstance(reply, COMES_BACK):
                self.detach(subscription)
            on_reply(reply)

        self.subscriptions[channel] = subscription
        subscription.command.held = subscription.held
        self._session.call(subscription.command, on_attached)

    def unsubscribe(self, subscription: SubscriptionChannel, on_reply: OnReply) -> None:
        """Detach a consumer for good; `on_reply` is told when the broker has let go of it.

        Until then it takes what the broker has sent before it heard of this: such live messages
        are nobody else's, so letting go at once would lose them. What is leased goes back to the
        broker, after everything that was acknowledged.
        """

        def on_closed(reply: Command | IsterError) -> None:
            self.subscriptions.pop(subscription.channel, None)
            name = subscription.command.subscription
            subscription.fail(ClosedError(f"the subscription {name!r}"))
            on_reply(reply)

        def close() -> None:
            if subscription.channel in self.subscriptions:
                self._session.call(CloseConsumer(channel=subscription.channel), on_closed)
            else:
                on_closed(Done())

        subscription.leases.when_idle(close)

    def detach(self, subscription: SubscriptionChannel) -> None:
        """Detach a consumer that may be attached again.

        Then under another number: what was said about this one may still be on its way.
        """
        if self.subscriptions.pop(subscription.channel, None) is not None:
            self._session.call(CloseConsumer(channel=subscription.channel), ignore)
            subscription.renumber(self._session.new_channel())

    def seek(self, command: Seek, on_reply: OnReply) -> None:
        """Move a subscription. Its consumers here drop what they have not handed out.

        When the broker tells them so, before it sends anything from the new place; or else in
        the very moment of the answer.
        """
        moving = [
            (subscription, subscription.life)
            for subscription in self.subscriptions.values()
            if subscription.command.topic == command.topic
            and subscription.command.subscription == command.subscription
        ]

        def on_sought(reply: Command | IsterError) -> None:
            if isinstance(reply, Done):
                for subscription, life in moving:
                    if subscription.life == life:
                        subscription.on_moved(life)
            on_reply(reply)

        self._session.call(command, on_sought)

    # Readers

    def open_reader(self, reader: ReaderChannel, on_reply: OnReply) -> None:
        """Open a reader, or open it again."""

        def on_opened(reply: Command | IsterError) -> None:
            if reader.channel not in self.readers:
                pass  # Closed since.
            elif isinstance(reply, ReaderOpened) and not reply.partitions:
                reader.on_opened(reply)
            elif not isinstance(reply, COMES_BACK):
                # Refused, or to be opened for each partition: there is nothing to close.
                del self.readers[reader.channel]
            on_reply(reply)

        self.readers[reader.channel] = reader
        self._session.call(reader.command, on_opened)

    def close_reader(self, reader: ReaderChannel) -> None:
        """Give a reader back."""
        if self.readers.pop(reader.channel, None) is not None:
            self._session.call(CloseReader(channel=reader.channel), ignore)
        reader.fail(ClosedError(f"the reader of {reader.command.topic!r}"))

    # Leases

    def mark_acking(self, leases: Flushable) -> None:
        """Have `flush` look at the leases of a subscription."""
        if not self.acking:
            self._session.on_dirty()
        self.acking[leases] = None

    def flush(self) -> None:
        """Send what was collected."""
        acking, self.acking = self.acking, {}
        for leases in acking:
            leases.flush()

    def renew_by(self, due_ms: int) -> None:
        """Have `renew` called at that time, or before."""
        if self._renew_ms is None or due_ms < self._renew_ms:
            self._renew_ms = due_ms
            self._on_lease(due_ms)

    def renew(self) -> None:
        """Renew the leases that are due; asks to be called again when there are more."""
        self._renew_ms = None
        now_ms = self._session.now_ms()
        for subscription in self.subscriptions.values():
            next_ms = subscription.leases.renew(now_ms)
            if next_ms is not None:
                self.renew_by(next_ms)
        next_ms = self._session.timelines.renew(now_ms)
        if next_ms is not None:
            self.renew_by(next_ms)

    def expire(self, now_ms: int, timeout_ms: int) -> None:
        """Tell those who have waited too long for the confirmation of an acknowledgement."""
        for subscription in list(self.subscriptions.values()):
            subscription.leases.expire(now_ms, timeout_ms)

    def give_back(self, now_ms: int) -> None:
        """Let others have what has waited for the application too long."""
        for subscription in self.subscriptions.values():
            subscription.give_back(now_ms)

    # The connection

    def on_open(self) -> None:
        """There is a new connection: open everything again."""
        for subscription in list(self.subscriptions.values()):
            self.subscribe(subscription, _failing(subscription))
        for reader in list(self.readers.values()):
            self.open_reader(reader, _failing(reader))

    def on_disconnected(self) -> None:
        """The connection is lost."""
        for subscription in self.subscriptions.values():
            subscription.on_disconnected()

    def on_notice(self, channel: int, notice: Notice) -> None:
        """The broker has something to say about one of these."""
        if isinstance(notice, ReaderEnded):
            reader = self.readers.pop(channel, None)
            if reader is not None:
                reader.on_ended(_error_of(notice))
            return
        subscription = self.subscriptions.get(channel)
        if subscription is None:
            return
        if isinstance(notice, SlowConsumer):
            subscription.on_slow(notice.dropped)
        elif isinstance(notice, ActiveChanged):
            subscription.on_active(active=notice.active)
        elif isinstance(notice, Subscribed):
            if notice.leases != subscription.life:
                subscription.on_moved(notice.leases)
        else:
            del self.subscriptions[channel]
            name = subscription.command.subscription
            closed = ClosedError(f"subscription {name!r} ({notice.reason})")
            subscription.fail(_error_of(notice) or closed)

    def leave(self) -> None:
        """Give back what is leased, before the connection is closed.

        As when each of the subscriptions is closed: what the application has received counts as an
        attempt. Subscriptions that are not durable end.
        """
        for subscription in self.subscriptions.values():
            if subscription.leases.used:
                subscription.nack_handed_out()
            if subscription.leases.used or not subscription.is_durable:
                self._session.call(CloseConsumer(channel=subscription.channel), ignore)

    def fail(self, error: IsterError) -> None:
        """End them all."""
        for subscription in list(self.subscriptions.values()):
            subscription.fail(error)
        for reader in self.readers.values():
            reader.fail(error)
        self.subscriptions.clear()
        self.readers.clear()


def _failing(channel: SubscriptionChannel | ReaderChannel) -> OnReply:
    """Return what ends a channel when it cannot be opened again after a reconnect."""

    def on_reply(reply: Command | IsterError) -> None:
        if isinstance(reply, IsterError) and not isinstance(reply, COMES_BACK):
            channel.fail(reply)

    return on_reply


def _error_of(notice: ReaderEnded | ConsumerClosed) -> IsterError | None:
    return error_of(notice) if notice.code else None
