"""Timelines: messages that are due at a time, made and changed by their owners."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import NamedTuple

from ister.base import CronReport
from ister.base.errors import BadRequestError, IsterError, ProtocolError
from ister.base.limits import TIMELINE_PAGE_MAX
from ister.client.aio.connection.link import BrokerLink
from ister.client.aio.timelines.consumer import CREDIT, PREFETCH_S, TimelineConsumer
from ister.client.aio.timelines.cron import CronRule, in_zone, rule_of
from ister.client.aio.timelines.transaction import MessageVersion, TimelineTransaction
from ister.client.session import (
    MAX_RENEWAL_MS,
    Change,
    ChangeBox,
    Seconds,
    When,
    atomic_command,
    check_count,
    check_list,
    check_no_rule,
    check_text,
    check_topic,
    check_when,
    cron_of,
    cut_changes,
    delete_change,
    due_ms_of,
    move_change,
    outcomes_for,
    pausing_command,
    preview_command,
    put_change,
    rule_command,
    unpacked_attributes,
    update_change,
)
from ister.codec import Attributes
from ister.wire import (
    PAUSE_RULE,
    PUT_RULE,
    RESUME_RULE,
    UPDATE_RULE,
    AskTime,
    ChangeCron,
    CountTimeline,
    CronPreview,
    CronRows,
    GetFromTimeline,
    ListCron,
    ListTimeline,
    RedriveTimeline,
    TimelineChanged,
    TimelineCount,
    TimelineRedriven,
    TimelineRows,
    TimeTold,
    crons_of,
)

# Commands of one `put_many` under way: 8 MiB at most, which keeps a disk busy.
COMMANDS_MAX = 8
# From the beginning of time to its end.
START_MS = 0
END_MS = 2**53


# `list` is a method below.
Versions = list[MessageVersion]
Moments = list[datetime]
Outcomes = list[int | IsterError]


class TimelinePut(NamedTuple):
    """A message for `put_many`: see `Timeline.put`."""

    payload: bytes
    at: When | None = None
    id: str | None = None
    attributes: Attributes | None = None
    priority: int = 0
    after: Seconds | None = None


class TimelineMessage(NamedTuple):
    """A message of a timeline, as it stands there."""

    id: str
    version: int
    due_ms: int
    payload: bytes
    attributes: dict[str, str]
    # Who owns it.
    group: str
    # How often it was handed to a consumer; and which one has it until when, if one has.
    attempts: int
    holder: str
    until_ms: int
    priority: int
    # Of a rule of a cron topic: then it is due when it fires next, or never, which is 0.
    cron: CronRule | None = None

    @property
    def due(self) -> datetime:
        """When it is due."""
        return datetime.fromtimestamp(self.due_ms / 1000, UTC)


class Timeline:
    """A timeline topic, as one group of producers sees it: only that changes its messages.

    Everything is conditional on `version` where one is given, and raises `MessageChangedError`
    when the message has another. A message that a consumer deals with is changed by nobody else:
    `MessageLeasedError`.

    >>> timeline = client.timeline("/default/reminders", group="shop")
    >>> put = await timeline.put(b"...", after=60.0, id="r-1")
    >>> later = datetime(2100, 1, 1, tzinfo=UTC)
    >>> moved = await timeline.move("r-1", at=later, version=put.version)
    >>> moved.version > put.version
    True
    """

    def __init__(self, link: BrokerLink, topic: str, group: str) -> None:
        self.topic = topic = check_topic(topic)
        self.group = check_text(group, "a group")
        self._link = link
        self._box = ChangeBox(link.session, topic, group)
        # Calls that wait for what came of their changes.
        self._waiting = 0
        # Ids that rise: each goes beside the one before it in the index of the store.
        self._prefix = secrets.token_hex(8)
        self._numbers = count(1)

    # One message

    async def put(
        self,
        payload: bytes,
        at: When | None = None,
        *,
        after: Seconds | None = None,
        id: str | None = None,
        attributes: Attributes | None = None,
        priority: int = 0,
        cron: str | None = None,
        every: Seconds | None = None,
        tz: str | None = None,
        jitter: Seconds | None = None,
        catch_up: Seconds | None = None,
        overlap: str | None = None,
    ) -> MessageVersion:
        """Make a message; return when it is safe.

        It is due `at` a time (a datetime, or seconds since 1970), or `after` so many seconds, or
        now. Without an `id` it gets one. Raises `MessageExistsError` when there is one of that id.
        `priority` is for priority topics: 0, which goes first, to 31.

        On a topic of kind cron: make a rule, which makes a message at every time of `cron` in the
        zone `tz` ("UTC"), or each `every` seconds (whole ones, up to a day), up to `jitter` seconds
        later (0). Times that nobody was there for are caught up with for `catch_up` seconds (an
        hour). While the message before is not done, `overlap` has the next one dropped ("skip"),
        has one wait ("buffer"), or made ("allow").
        """
        cron = cron_of(cron, every)
        if cron is not None:
            if at is not None or after is not None or priority:
                raise BadRequestError("a rule is due when cron= says, and has no priority")
            return await self._change_rule(
                rule_command(
                    self.topic,
                    self.group,
                    PUT_RULE,
                    self._named(id),
                    payload,
                    cron=cron,
                    tz=tz,
                    jitter=jitter,
                    catch_up=catch_up,
                    overlap=overlap,
                    attributes=attributes,
                )
            )
        check_no_rule(tz, jitter, catch_up, overlap)
        await self._know_time(at)
        due_ms = self.due_ms(at, after)
        return await self._change(self.put_change(payload, due_ms, id, attributes, priority))

    async def put_many(
        self, messages: Sequence[TimelinePut | tuple[object, ...]]
    ) -> list[MessageVersion | IsterError]:
        """Make messages, and return what came of each: its id and version, or an error.

        A message is a `TimelinePut`, or a tuple of the same: `(payload, at, id)`. A timedelta for
        `at` is from now.
        """
        check_list(messages, "messages", "messages")
        await self._know_time(None)
        results: list[MessageVersion | IsterError] = []
        changes: list[Change] = []
        # Where the result of each change belongs.
        slots: list[int] = []
        for slot, message in enumerate(messages):
            try:
                put = TimelinePut(*message)  # type: ignore[arg-type]
                change = self.put_change(put.payload, self.due_ms(put.at, put.after), *put[2:5])
            except (IsterError, TypeError) as error:
                results.append(
                    error if isinstance(error, IsterError) else BadRequestError(str(error))
                )
                continue
            changes.append(change)
            slots.append(slot)
            results.append(MessageVersion(change.id, 0))
        outcomes = await self._send_all(changes)
        for slot, change, outcome in zip(slots, changes, outcomes, strict=True):
            results[slot] = (
                outcome if isinstance(outcome, IsterError) else MessageVersion(change.id, outcome)
            )
        return results

    async def get(self, id: str) -> TimelineMessage:
        """Return a message, or raise `MessageNotFoundError`. That of a rule has `cron`."""
        rows = await self._link.call(GetFromTimeline(topic=self.topic, id=id), TimelineRows)
        return next(iter(_messages(rows)))

    async def move(
        self,
        id: str,
        at: When | None = None,
        version: int | None = None,
        *,
        after: Seconds | None = None,
    ) -> MessageVersion:
        """Make a message due at another time. After that it is not handed to anybody before."""
        check_when(at, after)
        await self._know_time(at)
        return await self._change(move_change(id, self.due_ms(at, after), version))

    async def update(
        self,
        id: str,
        payload: bytes,
        *,
        attributes: Attributes | None = None,
        version: int | None = None,
        cron: str | None = None,
        every: Seconds | None = None,
        tz: str | None = None,
        jitter: Seconds | None = None,
        catch_up: Seconds | None = None,
        overlap: str | None = None,
    ) -> MessageVersion:
        """Give a message another payload and other attributes.

        So with a rule, of its messages to come; with `cron` or `every` it is replaced in all: see
        `put`.
        """
        cron = cron_of(cron, every)
        if cron is None:
            check_no_rule(tz, jitter, catch_up, overlap)
            return await self._change(update_change(self.topic, id, payload, attributes, version))
        return await self._change_rule(
            rule_command(
                self.topic,
                self.group,
                UPDATE_RULE,
                id,
                payload,
                cron=cron,
                tz=tz,
                jitter=jitter,
                catch_up=catch_up,
                overlap=overlap,
                attributes=attributes,
                version=version,
            )
        )

    async def delete(self, id: str, version: int | None = None) -> None:
        """Remove a message. After that it is not handed to anybody.

        Or a rule: after that it makes no messages. Those that are due by then stay.
        """
        await self._change(delete_change(id, version))

    # Rules of cron topics

    async def pause(self, id: str, version: int | None = None) -> MessageVersion:
        """Have a rule make no messages until `resume`; those of that time are not made later."""
        command = pausing_command(self.topic, self.group, PAUSE_RULE, id, version)
        return await self._change_rule(command)

    async def resume(self, id: str, version: int | None = None) -> MessageVersion:
        """Have a rule go on. Harmless when it is not paused."""
        command = pausing_command(self.topic, self.group, RESUME_RULE, id, version)
        return await self._change_rule(command)

    async def rules(self) -> AsyncIterator[TimelineMessage]:
        """Go through the rules of a cron topic, in the order they were made."""
        after: tuple[int, int] | None = (-1, 0)
        while after is not None:
            command = ListCron(topic=self.topic, after=after, limit=TIMELINE_PAGE_MAX)
            page = await self._link.call(command, CronRows)
            for message in _messages(page):
                yield message
            after = page.after

    async def preview(
        self,
        id: str | None = None,
        count: int = 5,
        *,
        cron: str | None = None,
        tz: str | None = None,
    ) -> Moments:
        """Return when the next messages of a rule will be due; or those of `cron` in `tz`.

        Times are in the zone of the rule. A rule that is paused is told as if it was not.
        """
        command = preview_command(self.topic, id, count, cron, tz)
        told = await self._link.call(command, CronPreview)
        return [in_zone(due_ms, told.zone) for due_ms in told.due_ms]

    # Many

    async def list(
        self, start: When | None = None, end: When | None = None
    ) -> AsyncIterator[TimelineMessage]:
        """Go through the messages from `start` up to before `end`, the earliest first.

        A time is a datetime, seconds since 1970, or a timedelta from now. A message that is being
        dealt with stands where its lease ends.
        """
        start_ms, end_ms = await self._span(start, end)
        after: tuple[int, int] | None = (-1, 0)
        while after is not None:
            command = ListTimeline(
                topic=self.topic,
                start_ms=start_ms,
                end_ms=end_ms,
                after=after,
                limit=TIMELINE_PAGE_MAX,
            )
            page = await self._link.call(command, TimelineRows)
            for message in _messages(page):
                yield message
            after = page.after

    async def count(self, start: When | None = None, end: When | None = None) -> int:
        """Return how many messages there are from `start` up to before `end`."""
        start_ms, end_ms = await self._span(start, end)
        command = CountTimeline(topic=self.topic, start_ms=start_ms, end_ms=end_ms)
        return (await self._link.call(command, TimelineCount)).count

    async def redrive(self, *, count: int | None = None) -> int:
        """Send dead letters of this topic back to it, due now; return how many it were.

        Those that are due and that no consumer has, `count` of them at most. Each is moved in one
        step: it is there or here, and never leased before. It keeps its owner, payload, attributes
        and id.
        """
        if count is not None:
            check_count(count, "count", least=1)
        moved = 0
        command = RedriveTimeline(topic=self.topic, count=count or 0)
        while True:
            told = await self._link.call(command, TimelineRedriven)
            moved += told.moved
            if told.after is None or moved == count:
                return moved
            left = 0 if count is None else count - moved
            command = RedriveTimeline(
                topic=self.topic, count=left, until_ms=told.until_ms, after=told.after
            )

    def transaction(self) -> TimelineTransaction:
        """Return a transaction: changes of several messages, all or nothing."""
        return TimelineTransaction(self)

    def consume(
        self,
        consumer: str,
        *,
        lease: Seconds | None = None,
        prefetch: Seconds = PREFETCH_S,
        credit: int = CREDIT,
        max_renewal: Seconds = MAX_RENEWAL_MS / 1000,
    ) -> TimelineConsumer:
        """Return a consumer: messages are leased to it when they are due, for `lease` seconds.

        That is 60 unless said, or the topic's `max_lease` if that is shorter. A lease is renewed
        for up to `max_renewal` seconds while the application works on its message. Messages are
        sent here up to `prefetch` seconds before they are due, and wait; the application works on
        `credit` messages at once at most. A consumer ends the leases that an earlier process of
        the same name has left, and they count as attempts.
        """
        return TimelineConsumer(
            self,
            self._link,
            consumer=consumer,
            lease=lease,
            prefetch=prefetch,
            credit=credit,
            max_renewal=max_renewal,
        )

    # For the others of this folder

    def due_ms(
        self,
        at: When | None,
        after: Seconds | None = None,
        names: tuple[str, str] = ("at", "after"),
    ) -> int:
        """Return when something is due by the broker's clock; by ours while that is not known."""
        now_us = self._link.session.timelines.find_now_us()
        now_ms = self._link.clock.now_ms() if now_us is None else now_us // 1000
        return due_ms_of(at, after, now_ms, names)

    async def learn_time(self) -> None:
        """Ask for the broker's time, unless it is known."""
        timelines = self._link.session.timelines
        if timelines.find_now_us() is not None:
            return
        await self._link.wait_open()
        sent_us = self._link.clock.now_us()
        told = await self._link.call(AskTime(), TimeTold)
        timelines.on_told(sent_us, told.now_us)

    async def commit(self, changes: Sequence[Change]) -> Versions:
        """Make all changes or none."""
        command = atomic_command(self.topic, self.group, changes)
        reply = await self._link.call(command, TimelineChanged)
        results = []
        for change, outcome in zip(changes, outcomes_for(reply, len(changes)), strict=True):
            if isinstance(outcome, IsterError):
                raise outcome
            results.append(MessageVersion(change.id, outcome))
        return results

    def put_change(
        self,
        payload: bytes,
        due_ms: int,
        id: str | None,
        attributes: Attributes | None,
        priority: int,
    ) -> Change:
        """Return what makes a message, with an id if it has none."""
        return put_change(self.topic, self._named(id), due_ms, payload, attributes, priority)

    # Inner workings

    def _named(self, id: str | None) -> str:
        return id if id is not None else f"{self._prefix}-{next(self._numbers):08x}"

    async def _change_rule(self, command: ChangeCron) -> MessageVersion:
        reply = await self._link.call(command, TimelineChanged)
        [outcome] = outcomes_for(reply, 1)
        if isinstance(outcome, IsterError):
            raise outcome
        return MessageVersion(command.id, outcome)

    async def _know_time(self, at: When | None) -> None:
        if at is None or isinstance(at, timedelta):
            await self.learn_time()

    async def _change(self, change: Change) -> MessageVersion:
        [outcome] = await self._send([change])
        if isinstance(outcome, IsterError):
            raise outcome
        return MessageVersion(change.id, outcome)

    async def _send(self, changes: Sequence[Change]) -> Outcomes:
        await self._link.wait_open()
        future: asyncio.Future[Outcomes] = asyncio.get_running_loop().create_future()

        def done(outcomes: Outcomes) -> None:
            self._waiting -= 1
            if not future.done():
                future.set_result(outcomes)

        self._waiting += 1
        self._box.add(changes, done)
        if self._waiting == len(changes) == 1:
            # Nobody else's changes can come with it: it goes at once, as a lone message does.
            self._box.flush()
            self._link.write()
            self._link.wakefulness.expect(future.done)
        return await future

    async def _try_send(self, changes: Sequence[Change]) -> Outcomes:
        try:
            return await self._send(changes)
        except IsterError as error:
            # There is no connection: the others of a `put_many` may have been made before.
            return [error] * len(changes)

    async def _send_all(self, changes: Sequence[Change]) -> Outcomes:
        """Send changes in as many commands as it takes, a few of them at a time."""
        outcomes: Outcomes = []
        pieces = [*cut_changes(changes)]
        for start in range(0, len(pieces), COMMANDS_MAX):
            window = pieces[start : start + COMMANDS_MAX]
            for told in await asyncio.gather(*(self._try_send(piece) for piece in window)):
                outcomes += told
        return outcomes

    async def _span(self, start: When | None, end: When | None) -> tuple[int, int]:
        for at in (start, end):
            if at is not None:
                await self._know_time(at)
        start_ms = START_MS if start is None else self.due_ms(start, names=("start", ""))
        return start_ms, END_MS if end is None else self.due_ms(end, names=("end", ""))


def _messages(rows: TimelineRows) -> "list[TimelineMessage]":
    try:
        columns = zip(
            rows.ids,
            rows.versions,
            rows.due_ms,
            rows.position_ms,
            rows.groups,
            rows.holders,
            rows.leases,
            rows.levels,
            rows.payloads,
            rows.attributes,
            crons_of(rows),
            strict=True,
        )
        return [_message(*row) for row in columns]
    except ValueError as error:
        raise ProtocolError(f"columns of a listing differ in length: {error}") from error


def _message(
    id: str,
    version: int,
    due_ms: int,
    position_ms: int,
    group: str,
    holder: str,
    leases: int,
    level: int,
    payload: bytes,
    attributes: bytes,
    cron: CronReport | None,
) -> TimelineMessage:
    return TimelineMessage(
        id=id,
        version=version,
        due_ms=due_ms,
        payload=payload,
        attributes=unpacked_attributes(attributes),
        group=group,
        attempts=leases,
        holder=holder,
        until_ms=position_ms if holder else 0,
        priority=level,
        cron=None if cron is None else rule_of(cron),
    )
