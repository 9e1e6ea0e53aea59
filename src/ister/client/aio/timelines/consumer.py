"""Consumers of timelines: messages handed over when they are due, each under a lease."""

import asyncio
from collections.abc import AsyncIterator, Generator
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from ister.base import Timer
from ister.base.errors import BadRequestError, ClosedError, IsterError, RequestTimeoutError
from ister.base.limits import TIMELINE_CREDIT_MAX
from ister.client.aio.connection.futures import Deadline
from ister.client.aio.connection.link import BrokerLink, settler
from ister.client.session import (
    Held,
    Lateness,
    Seconds,
    TimelineChannel,
    When,
    check_count,
    check_text,
    check_timeout,
    ignore,
    milliseconds,
    not_open,
    reason_of,
    unpacked_attributes,
)
from ister.telemetry import library_logger
from ister.wire import DONE, EXTEND, REJECT, RELEASE, Command, ConsumeTimeline, TimelineOpened

if TYPE_CHECKING:
    from ister.client.aio.timelines.timeline import Timeline

logger = library_logger("ister.client")

# A lease is taken, written to the disk and sent within a few milliseconds: this is a hundred times
# as much, so that a pause of the broker delays nothing.
PREFETCH_S = 0.5
# At 20,000 messages a second: what is dealt with in 50 ms, or a round trip and a commit.
CREDIT = 1_000

# How long one that is closed waits to hear that its last messages are done. A broker that is away
# longer finds them under their leases when it is back, and hands them out again.
ANSWERS_S = 10.0

# Timers of event loops have milliseconds, and one of less fires at once: what is due sooner than
# this is waited for awake.
TIMER_US = 250
# However long there is to wait, the clock is looked at this often: it may be set meanwhile.
LOOK_US = 1_000_000


class TimelineLease:
    """A message that is due, ours until its lease ends."""

    # Tells it from a message of a stream.
    is_timeline = True

    def __init__(self, consumer: "TimelineConsumer", channel: TimelineChannel, held: Held) -> None:
        self._consumer = consumer
        self._channel = channel
        self._held = held
        # The version is known when the last extension was answered: the next word waits for that.
        self._extending: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"TimelineLease(id={self.id!r}, due={self.due}, attempt={self.attempt})"

    @property
    def id(self) -> str:
        """The id of the message."""
        return self._held.id

    @property
    def payload(self) -> bytes:
        """What it says."""
        return self._held.payload

    @cached_property
    def attributes(self) -> dict[str, str]:
        """What was said about it."""
        return unpacked_attributes(self._held.attributes)

    @property
    def due_ms(self) -> int:
        """When it was due, in milliseconds since 1970."""
        return self._held.due_ms

    @property
    def due(self) -> datetime:
        """When it was due."""
        return datetime.fromtimestamp(self._held.due_ms / 1000, UTC)

    @property
    def until(self) -> datetime:
        """When the lease ends, by the broker's clock; `extend` moves it when it was answered."""
        return datetime.fromtimestamp(self._held.until_ms / 1000, UTC)

    @property
    def version(self) -> int:
        """The version of the message, under which it is leased."""
        return self._held.version

    @property
    def attempt(self) -> int:
        """How often the message was handed out, with this time."""
        return self._held.attempt

    @property
    def priority(self) -> int:
        """The level of a message of a priority topic."""
        return self._held.level

    @property
    def lateness_us(self) -> int:
        """How much later than due it was handed over, by the broker's clock; -1 if not for the
        first time.
        """  # noqa: D205 - one sentence
        return self._held.lateness_us

    def ack(self) -> "asyncio.Future[None]":
        """Remove the message: it was dealt with. Await it to know that the broker has stored that.

        Then raises `TimelineLeaseLostError` when the lease was over, and `MessageNotFoundError`
        when the message is gone by now: maybe by this very call, before a connection was lost.
        """
        return self._finish(DONE, 0)

    def extend(self, seconds: Seconds) -> "asyncio.Future[None]":
        """Keep the message for so many seconds from now; awaited as `ack`.

        The consumer renews leases by itself for the time `max_renewal`; this is for longer. Raises
        `BadRequestError` for more than the topic's `max_lease`; the lease is as it was.
        """
        return self._finish(EXTEND, milliseconds(seconds, "extend", least_ms=1))

    def nack(
        self, at: When | None = None, *, after: Seconds | None = None, reason: str = ""
    ) -> "asyncio.Future[None]":
        """Give the message back; awaited as `ack`. Counts as an attempt.

        It is due `at` a time, or `after` so many seconds, or at once. The dead letter has the last
        `reason` that was given.
        """
        check_text(reason, "a reason")
        is_now = at is None and after is None
        return self._finish(RELEASE, 0 if is_now else self._consumer.due_ms(at, after), reason)

    def reject(self, reason: str = "") -> "asyncio.Future[None]":
        """Give the message back for good: it goes to the dead letters, with the `reason`.

        Awaited as `ack`.
        """
        return self._finish(REJECT, 0, check_text(reason, "a reason"))

    # The names that these had first.
    done = ack
    release = nack

    def _finish(self, kind: int, time_ms: int, reason: str = "") -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        # The application may cancel its own.
        answered = loop.create_future() if kind == EXTEND else future
        unanswered = self._consumer.unanswered
        unanswered.add(answered)

        def done(outcome: int | IsterError) -> None:
            unanswered.discard(answered)
            if answered is not future:
                answered.set_result(None)
            if future.done():
                return
            if isinstance(outcome, IsterError):
                future.set_exception(outcome)
                # Who does not wait for the outcome does not want to know it, and is told nothing.
                future.exception()
            else:
                future.set_result(None)

        def finish(_: object) -> None:
            self._channel.finish(kind, self._held, time_ms, done, reason)

        if self._extending is not None and not self._extending.done():
            self._extending.add_done_callback(finish)
        else:
            finish(None)
        if kind == EXTEND:
            self._extending = answered
        return future


class TimelineConsumer:
    """Messages of a timeline that are due, leased to this consumer. Use it with `async with`.

    When the block is left, messages that the application has received and not finished are
    released, and count as an attempt. Messages that still wait here go back without one.

    >>> async with timeline.consume("worker-1") as leases:
    ...     async for lease in leases:
    ...         print(lease.id, lease.payload)
    ...         await lease.ack()
    ...         break
    r-0 b'now'
    """

    def __init__(
        self,
        timeline: "Timeline",
        link: BrokerLink,
        *,
        consumer: str,
        lease: Seconds | None,
        prefetch: Seconds,
        credit: int,
        max_renewal: Seconds,
    ) -> None:
        self._timeline = timeline
        self._link = link
        self._timelines = link.session.timelines
        self._command = ConsumeTimeline(
            topic=timeline.topic,
            consumer=check_text(consumer, "a consumer"),
            channel=0,
            # 0: the broker knows what the topic allows.
            lease_ms=0 if lease is None else milliseconds(lease, "lease", least_ms=1),
            prefetch_ms=milliseconds(prefetch, "prefetch"),
            credit=check_count(credit, "credit", least=1, most=TIMELINE_CREDIT_MAX),
        )
        self._max_renewal_ms = milliseconds(max_renewal, "max_renewal")
        self._channel = self._new_channel()
        self._timer: Timer | None = None
        self._timer_due_ms = 0
        # What was said of messages and is not answered yet: `close` waits for it.
        self.unanswered: set[asyncio.Future[None]] = set()
        self._opened = False
        self._left = False
        self._drifted = False

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.leave(reason_of(error))

    def __aiter__(self) -> AsyncIterator[TimelineLease]:
        return self

    async def __anext__(self) -> TimelineLease:
        try:
            return await self._next()
        except ClosedError:
            if self._left:
                raise StopAsyncIteration from None
            raise

    async def open(self) -> None:
        """Attach to the topic, or raise what is wrong: `ClosedError` when it was closed."""
        if self._left:
            raise ClosedError(f"the consumer {self._command.consumer!r}")
        if self._opened:
            return
        await self._link.wait_open()
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        self._timelines.open(self._channel, settler(future))
        try:
            reply = await future
            if not isinstance(reply, TimelineOpened):
                raise BadRequestError(f"broker answered {type(reply).__name__}")
        except BaseException:
            self._timelines.close(self._channel, ignore)
            # Whoever tries again begins anew.
            self._channel = self._new_channel()
            raise
        self._opened = True

    async def close(self) -> None:
        """Give all messages back that are not done. Harmless when closed.

        A message that the application has received counts as an attempt, as after `release`: a
        handler that fails on a message must not get it again without end. Waits until the broker
        has what was said of messages, for a while.
        """
        await self.leave("")

    async def leave(self, reason: str) -> None:
        """Do what `close` does, with a reason for the dead letters."""
        if self._left or not self._opened:
            return
        self._left = True
        self._cancel_timer()
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        try:
            if self.unanswered:
                await asyncio.wait(self.unanswered, timeout=ANSWERS_S)
        finally:
            # Also when nobody waits for it any more, or the broker would go on to send here what
            # nobody reads.
            self._timelines.close(self._channel, settler(future), reason)
        # Whether the broker hears of it or not: this consumer is gone.
        with suppress(IsterError):
            await future

    async def receive(self, timeout: float | None = None) -> TimelineLease:
        """Return the next message that is due; raise `RequestTimeoutError` after `timeout`.

        Raises `ClosedError` when the consumer was closed, also while this waits.
        """
        timeout_s = check_timeout(timeout)
        if timeout_s is None:
            return await self._next()
        error: IsterError | None = None

        def end(frozen: IsterError | None) -> None:
            nonlocal error
            error = frozen or RequestTimeoutError(f"a message of {topic!r}", timeout_s)
            self._channel.wake()

        topic = self._timeline.topic
        timer = self._link.clock.call_later(timeout_s, Deadline(end))
        try:
            while True:
                lease = self._take()
                if lease is not None:
                    return lease
                if error is not None:
                    raise error
                await self._wait()
        finally:
            timer.cancel()

    # Figures

    @property
    def lateness(self) -> Lateness:
        """How late messages were handed over so far."""
        return self._channel.lateness

    @property
    def drift(self) -> float:
        """How far the broker's clock is ahead of ours, in seconds."""
        return self._timelines.clock.offset_us / 1e6

    @property
    def waiting_count(self) -> int:
        """Messages that have come and wait for their time, or to be taken."""
        return self._channel.held_count

    def due_ms(self, at: When | None, after: Seconds | None) -> int:
        """Return a time as the broker counts it."""
        return self._timeline.due_ms(at, after)

    # Inner workings

    def _new_channel(self) -> TimelineChannel:
        session = self._link.session
        command = replace(self._command, channel=session.new_channel())
        return TimelineChannel(session, command, self._max_renewal_ms)

    async def _next(self) -> TimelineLease:
        while True:
            lease = self._take()
            if lease is not None:
                return lease
            await self._wait()

    def _take(self) -> TimelineLease | None:
        if not self._opened:
            raise not_open("consumer", "timeline.consume(...)")
        held = self._channel.take(self._timelines.find_now_us())
        return None if held is None else TimelineLease(self, self._channel, held)

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._channel.wait(waiter)
        self._set_timer()
        await waiter

    def _set_timer(self) -> None:
        due_ms, now_us = self._channel.next_due_ms, self._timelines.find_now_us()
        self._tell_drift()
        if due_ms is None or now_us is None:
            return  # What comes, or the time when it is told, wakes us.
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return
            self._cancel_timer()
        left_us = min(max(due_ms * 1000 - now_us, 0), LOOK_US)
        # Cut off to whole milliseconds: a timer that fires too early is set again. Rounded up,
        # half of the messages were 0.65 ms late instead of 0.4, for the same work.
        delay_s = left_us / 1e6 if left_us <= TIMER_US else max(left_us // 1000, 1) / 1000
        self._timer_due_ms = due_ms
        self._timer = self._link.clock.call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        due_ms, now_us = self._channel.next_due_ms, self._timelines.find_now_us()
        if due_ms is not None and now_us is not None and due_ms * 1000 <= now_us:
            self._channel.wake()
        else:
            self._set_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell_drift(self) -> None:
        clock = self._timelines.clock
        if clock.known and clock.drifted != self._drifted:
            self._drifted = clock.drifted
            if self._drifted:
                logger.warning("clock_drift", drift_s=self.drift, hint="set the clock right")
