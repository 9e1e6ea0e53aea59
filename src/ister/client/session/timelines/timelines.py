"""The timelines of a session: consumers opened and opened again, changes sent, the broker's time.

Always true: the broker's time is asked for when a consumer is opened, or a time is said in seconds
from now, and once a second from then on: either clock may be set anew. While it is not known,
nothing is handed over.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ister.base.errors import ClosedError, IsterError, StorageFailedError
from ister.client.session.calls import COMES_BACK, OnReply, ignore
from ister.client.session.port import Flushable
from ister.client.session.timelines.clock import JUMP_US, ClockOffset
from ister.client.session.timelines.consumer import TimelineChannel
from ister.wire import (
    AskTime,
    Command,
    ConsumerClosed,
    RevokeLeases,
    TimelineDue,
    TimelineOpened,
    TimeTold,
)

if TYPE_CHECKING:
    from ister.client.session.port import SessionPort

# Asked one after the other when a consumer is opened: the first answer comes late, because the
# broker has opened files for it, and the quickest of a few is three times as exact as the first.
FIRST_ASKS = 4
# A process may be put to sleep between two looks at clocks, but hardly each time.
LOOKS = 5


class Timelines:
    """The timeline consumers of a session, the changes it sends, and the broker's clock."""

    def __init__(self, session: "SessionPort", now_us: Callable[[], int]) -> None:
        """`now_us` is our own clock in microseconds since 1970."""
        self.channels: dict[int, TimelineChannel] = {}
        self.clock = ClockOffset()
        self.dirty: dict[Flushable, None] = {}
        self._session = session
        self._now_us = now_us
        # How far our clock is ahead of the one that is never set.
        self._span_us = now_us() - session.now_ms() * 1000
        self._asked = False
        # Consumers that the broker could not open again, for its storage failed.
        self._shut: list[TimelineChannel] = []

    # The broker's time

    @property
    def spread_us(self) -> int:
        """By how much the broker's time may be wrong."""
        return self.clock.spread_us

    def find_now_us(self) -> int | None:
        """Return the time of the broker, or `None` while it is not known: then it is asked for."""
        own_us = self._now_us()
        if abs(own_us - self._session.now_ms() * 1000 - self._span_us) > JUMP_US:
            self._look_for_jump()
            own_us = self._now_us()
        if self.clock.known:
            return self.clock.now_us(own_us)
        self.ask_time()
        return None

    def _look_for_jump(self) -> None:
        """Our clock seems to have been set anew. Or this process has slept between two looks."""
        for _ in range(LOOKS):
            before_ms = self._session.now_ms()
            span_us = self._now_us() - before_ms * 1000
            if self._session.now_ms() - before_ms <= 1:
                break
        if abs(span_us - self._span_us) > JUMP_US:
            self._span_us = span_us
            self.clock.forget()

    def ask_time(self, more: int = 0) -> None:
        """Ask for the broker's time, and again when it is told, `more` times."""
        if self._asked or not self._session.can_publish:
            return
        self._asked = True
        sent_us = self._now_us()

        def on_told(reply: Command | IsterError) -> None:
            self._asked = False
            if isinstance(reply, TimeTold):
                self.on_told(sent_us, reply.now_us)
                if more:
                    self.ask_time(more - 1)

        drift_us = self.clock.offset_us if self.clock.known else 0
        self._session.call(AskTime(drift_us=drift_us), on_told)

    def on_told(self, sent_us: int, told_us: int) -> None:
        """The broker has told its time, when it was asked at `sent_us`."""
        known = self.clock.known
        self.clock.add(sent_us=sent_us, told_us=told_us, received_us=self._now_us())
        if not known:
            for channel in self.channels.values():
                channel.wake()

    # Consumers

    def open(
        self,
        channel: TimelineChannel,
        on_reply: OnReply,
        *,
        kept_on: tuple[type[IsterError], ...] = COMES_BACK,
    ) -> None:
        """Open a consumer, or open it again. It is forgotten on other errors than `kept_on`."""
        sent_us = self._now_us()

        def on_opened(reply: Command | IsterError) -> None:
            if self.channels.get(channel.channel) is not channel:
                pass  # Closed since.
            elif isinstance(reply, TimelineOpened):
                self.on_told(sent_us, reply.now_us)
                self.ask_time(FIRST_ASKS)
                channel.on_opened()
            elif not isinstance(reply, kept_on):
                del self.channels[channel.channel]
            on_reply(reply)

        self.channels[channel.channel] = channel
        self._session.call(channel.command, on_opened)

    def close(self, channel: TimelineChannel, on_reply: OnReply, reason: str = "") -> None:
        """Give a consumer back with what was not handed over; `on_reply` is told when it is.

        What was handed over and is not finished is released for the `reason`.
        """

        def on_closed(reply: Command | IsterError) -> None:
            channel.fail(ClosedError(f"the consumer {channel.command.consumer!r}"))
            on_reply(reply)

        self.channels.pop(channel.channel, None)
        self._session.call(channel.leave(reason), on_closed)

    def renew(self, now_ms: int) -> int | None:
        """Renew the leases that are due; return when to look again, if there is anything left."""
        found = [channel.renew(now_ms) for channel in self.channels.values()]
        return min((next_ms for next_ms in found if next_ms is not None), default=None)

    def mark_dirty(self, outgoing: Flushable) -> None:
        """Have `flush` look at something."""
        if not self.dirty:
            self._session.on_dirty()
        self.dirty[outgoing] = None

    def flush(self) -> None:
        """Send what was collected."""
        dirty, self.dirty = self.dirty, {}
        for outgoing in dirty:
            outgoing.flush()

    # The connection

    def on_open(self) -> None:
        """There is a new connection: open every consumer again."""
        self._asked = False
        self.clock.forget()
        for channel in list(self.channels.values()):
            self._reopen(channel)

    def _reopen(self, channel: TimelineChannel) -> None:
        """Open a consumer again; it ends if that cannot be. A storage that fails comes back."""

        def on_reply(reply: Command | IsterError) -> None:
            if isinstance(reply, StorageFailedError):
                self._shut.append(channel)
            elif isinstance(reply, IsterError) and not isinstance(reply, COMES_BACK):
                channel.fail(reply)

        self.open(channel, on_reply, kept_on=(*COMES_BACK, StorageFailedError))

    def on_disconnected(self) -> None:
        """The connection is lost."""
        self._shut.clear()
        for channel in self.channels.values():
            channel.on_disconnected()

    def on_pulse(self, now_ms: int, timeout_ms: int) -> None:
        """About a second has passed."""
        if self.channels or self.clock.known:
            # Of owners alone, too: or what they say in seconds would count for ever from what the
            # broker's clock was before it was set.
            self.ask_time()
        if self.channels:
            shut, self._shut = self._shut, []
            for channel in shut:
                if self.channels.get(channel.channel) is channel:
                    self._reopen(channel)
            now_us = self.find_now_us()
            for channel in list(self.channels.values()):
                channel.expire(now_ms, timeout_ms)
                if now_us is not None:
                    channel.give_back(now_us // 1000)

    def on_notice(self, channel: int, notice: TimelineDue | RevokeLeases | ConsumerClosed) -> None:
        """The broker has something for a consumer, or to say about it."""
        found = self.channels.get(channel)
        if found is None:
            return
        if isinstance(notice, TimelineDue):
            found.on_due(notice)
        elif isinstance(notice, RevokeLeases):
            found.on_revoke(notice)
        else:
            del self.channels[channel]
            found.fail(ClosedError(f"consumer {found.command.consumer!r} ({notice.reason})"))

    def leave(self) -> None:
        """Give back what was not handed over, before the connection is closed."""
        for channel in self.channels.values():
            self._session.call(channel.leave(), ignore)

    def fail(self, error: IsterError) -> None:
        """End them all."""
        for channel in self.channels.values():
            channel.fail(error)
        self.channels.clear()
