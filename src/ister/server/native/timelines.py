"""What the commands of timelines do, and what they are answered.

Always true:
- every value of every column is checked before the broker sees one of them;
- a consumer that does not read what it is sent is closed when more waits for it than any queue may
  hold, and what was on its way to it is given back.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ister.base import parse_plain
from ister.base.errors import BadRequestError, IsterError, MessageTooLargeError, ProtocolError
from ister.base.limits import (
    ATTRIBUTE_BYTES_MAX,
    ATTRIBUTES_COUNT_MAX,
    DRIFT_US_MAX,
    MESSAGE_ID_BYTES_MAX,
    PRIORITY_LEVELS,
    TIME_MS_MAX,
    TIMELINE_BYTES,
    TIMELINE_CHANGES_MAX,
    TIMELINE_CREDIT_MAX,
    TIMELINE_MESSAGE_BYTES_MAX,
    TIMELINE_PAGE_MAX,
)
from ister.broker import Redriven, RedrivePage, Reject, TimelineConsumer, finish_leases
from ister.server.native.channels import check_channel, check_room
from ister.timeline import (
    Changed,
    Delete,
    Extend,
    Move,
    Outcomes,
    Put,
    Release,
    Row,
    RuleRow,
    Update,
    is_rule_id,
)
from ister.timeline import Done as Finished
from ister.wire import (
    CHANGE_KINDS_END,
    DELETE,
    DONE,
    EXTEND,
    FINISH_KINDS_END,
    MOVE,
    NO_LATENESS,
    PUT,
    REJECT,
    RETURN,
    AskTime,
    ChangeTimeline,
    Command,
    ConsumerClosed,
    ConsumeTimeline,
    CountTimeline,
    CronRows,
    Done,
    FinishLeases,
    GetFromTimeline,
    LeasesRevoked,
    ListTimeline,
    RedriveTimeline,
    Refusal,
    RevokeLeases,
    TimelineChanged,
    TimelineCount,
    TimelineDue,
    TimelineOpened,
    TimelineRedriven,
    TimelineRows,
    TimeTold,
    check_kinds,
    column,
    refusal,
)

if TYPE_CHECKING:
    from ister.server.native.session import NativeSession

Reply = Callable[[Command | IsterError], object]
Action = Callable[["NativeSession", Any, Reply], None]

# Commands of one client that wait for the store, before we read no more from it: 64 MiB, or as many
# as a client sends in a commit of 5 ms when it sends one in each turn of its loop.
AWAITED_MAX = 64
# What any store has room for.
NUMBER_MAX = 2**63 - 1
# A listing may begin and end anywhere.
RANGE_MS_MAX = 2**53
# A message of which more than this is late is no measurement: a consumer was away, or lies.
LATENESS_US_MAX = 10 * 366 * 86_400 * 1_000_000


class TimelineOutlet:
    """The consumers of timelines of one connection; the broker's `TimelineSink` for them."""

    def __init__(self, session: "NativeSession") -> None:
        self.consumers: dict[int, TimelineConsumer] = {}
        self._session = session
        # Commands that wait for the store.
        self._awaited = 0
        # How far our clock is ahead of the client's, and whether somebody was told of it.
        self._drift_us = 0
        self._drift_told = False

    def add(self, channel: int, consumer: TimelineConsumer) -> None:
        """A consumer has been opened."""
        consumer.drift_us = self._drift_us
        self.consumers[channel] = consumer

    def on_drift(self, drift_us: int) -> None:
        """The client has told how far our clock is ahead of its own."""
        self._drift_us = drift_us
        for consumer in self.consumers.values():
            consumer.drift_us = drift_us
        # Once for a connection, which may have this drift for as long as it lives.
        if abs(drift_us) > DRIFT_US_MAX and self.consumers and not self._drift_told:
            self._drift_told = True
            first = next(iter(self.consumers.values()))
            self._session.door.on_drift(self._session, first.name, drift_us)

    def deliver(self, channel: int, rows: list[Row], *, again: bool = False) -> None:
        """Send messages that are leased to a consumer."""
        if self._session.overrun:
            self._close_slow(channel, [] if again else rows)
            return
        columns = list(zip(*rows, strict=True))
        attributes, levels = columns[11], columns[4]
        due = TimelineDue(
            ids=list(columns[2]),
            versions=list(columns[3]),
            due_ms=list(columns[5]),
            until_ms=list(columns[6]),
            attempts=list(columns[9]),
            payloads=list(columns[10]),
            attributes=list(attributes) if any(attributes) else [],
            levels=list(levels) if any(levels) else [],
            again=again,
        )
        self._session.send(due, channel=channel)

    def revoke(self, channel: int, messages: list[tuple[str, int]]) -> None:
        """Ask for messages that are not due yet."""
        ids, versions = zip(*messages, strict=True)
        self._session.send(RevokeLeases(ids=list(ids), versions=list(versions)), channel=channel)

    def consumer_closed(self, channel: int, reason: str) -> None:
        """Tell a consumer that the broker closed it."""
        self.consumers.pop(channel, None)
        self._session.send(ConsumerClosed(reason=reason), channel=channel)

    def grant(self, channel: int, count: int) -> None:
        """A consumer can take more; one that is closed is no error."""
        consumer = self.consumers.get(channel)
        if consumer is not None:
            consumer.grant(min(count, TIMELINE_CREDIT_MAX))

    def on_asked(self) -> None:
        """A command waits for the store. While there are many, we read no more."""
        self._awaited += 1
        if self._awaited >= AWAITED_MAX:
            self._session.hold_up()

    def on_answered(self) -> None:
        """It does not wait any more."""
        self._awaited -= 1
        if self._awaited == AWAITED_MAX - 1:
            self._session.go_on()

    def close(self) -> None:
        """The connection is gone."""
        consumers, self.consumers = self.consumers, {}
        for consumer in consumers.values():
            consumer.close()

    def _close_slow(self, channel: int, unused: list[Row]) -> None:
        consumer = self.consumers.get(channel)
        if consumer is not None:
            if unused:
                releases = [Release(0, r.id, "", r.version, r.due_ms, unused=True) for r in unused]
                finish_leases(consumer, releases, lambda _: None)
            consumer.close()
            self.consumer_closed(channel, "it does not read what it is sent")


# Changes by owners


def change(session: "NativeSession", command: ChangeTimeline, reply: Reply) -> None:
    """Make changes; the answer comes when the store has them."""
    check_kinds(command.kinds, command.ids, CHANGE_KINDS_END)
    parse_plain(command.group, "a group")
    changes = _owner_changes(command)

    def on_done(outcomes: Outcomes) -> None:
        reply(outcomes if isinstance(outcomes, IsterError) else _changed(outcomes))

    session.broker.timelines.change(command.topic, changes, command.atomic, on_done)


def _owner_changes(command: ChangeTimeline) -> list[Put | Move | Update | Delete]:
    """Return the changes of a command, or raise what is wrong with one of them."""
    count, group = len(command.ids), command.group
    due_ms = column(command.due_ms, count, 0)
    payloads = column(command.payloads, count, b"")
    attributes = column(command.attributes, count, b"")
    levels = column(command.levels, count, 0)
    versions = column(command.versions, count, 0)
    check_numbers(command.due_ms, TIME_MS_MAX, "a time")
    check_numbers(command.levels, PRIORITY_LEVELS - 1, "a priority")
    check_numbers(command.versions, NUMBER_MAX, "a version")
    check_ids(command.ids)
    for slot, packed in enumerate(attributes):
        if packed:
            check_attributes(packed)
        if len(payloads[slot]) + len(packed) > TIMELINE_MESSAGE_BYTES_MAX:
            size_bytes = len(payloads[slot]) + len(packed)
            raise MessageTooLargeError(
                command.topic, size_bytes, TIMELINE_MESSAGE_BYTES_MAX, setting=""
            )
    changes: list[Put | Move | Update | Delete] = []
    for slot, kind in enumerate(command.kinds):
        name = command.ids[slot]
        if kind == PUT:
            payload, packed = payloads[slot], attributes[slot]
            changes.append(Put(0, name, group, due_ms[slot], payload, packed, levels[slot]))
        elif kind == MOVE:
            changes.append(Move(0, name, group, due_ms[slot], versions[slot]))
        elif kind == DELETE:
            changes.append(Delete(0, name, group, versions[slot]))
        else:
            payload, packed = payloads[slot], attributes[slot]
            changes.append(Update(0, name, group, payload, packed, versions[slot]))
    return changes


def _changed(outcomes: Sequence[Changed | Row | IsterError]) -> TimelineChanged:
    versions: list[int] = []
    errors: dict[int, Refusal] = {}
    for slot, outcome in enumerate(outcomes):
        if isinstance(outcome, IsterError):
            errors[slot] = refusal(outcome)
            versions.append(0)
        else:
            versions.append(outcome.version)
    return TimelineChanged(versions=versions, errors=errors)


# Questions


def get(session: "NativeSession", command: GetFromTimeline, reply: Reply) -> None:
    """Answer with a message, or with a rule that makes some."""
    check_ids([command.id])

    def on_done(row: Row | IsterError) -> None:
        reply(row if isinstance(row, IsterError) else TimelineRows(**columns_of([row])))

    def on_rule(found: RuleRow | IsterError) -> None:
        reply(found if isinstance(found, IsterError) else rule_rows([found], None))

    rules = session.broker.timelines.find_rules(command.topic)
    if rules is not None and is_rule_id(command.id):
        rules.get(command.id, on_rule)
    else:
        session.broker.timelines.get(command.topic, command.id, on_done)


def page(session: "NativeSession", command: ListTimeline, reply: Reply) -> None:
    """Answer with a page of messages: as many as fit into it."""
    _check_range(command.start_ms, command.end_ms)
    _check_place(command.after)
    limit = min(max(command.limit, 1), TIMELINE_PAGE_MAX)

    def on_done(rows: list[Row] | IsterError) -> None:
        if isinstance(rows, IsterError):
            reply(rows)
            return
        told = fitting(rows)
        is_last = len(rows) < limit and len(told) == len(rows)
        last = None if is_last else (told[-1].position_ms, told[-1].seq)
        reply(TimelineRows(**columns_of(told), after=last))

    session.broker.timelines.page(
        command.topic, command.start_ms, command.end_ms, command.after, limit, on_done
    )


def count(session: "NativeSession", command: CountTimeline, reply: Reply) -> None:
    """Answer with how many messages there are."""
    _check_range(command.start_ms, command.end_ms)

    def on_done(found: int | IsterError) -> None:
        reply(found if isinstance(found, IsterError) else TimelineCount(count=found))

    session.broker.timelines.count(command.topic, command.start_ms, command.end_ms, on_done)


def redrive(session: "NativeSession", command: RedriveTimeline, reply: Reply) -> None:
    """Send a page of dead letters back; the answer comes when the store has moved them."""
    check_numbers((command.count, command.until_ms), RANGE_MS_MAX, "a number")
    _check_place(command.after)

    def on_done(found: Redriven | IsterError) -> None:
        if isinstance(found, IsterError):
            reply(found)
        else:
            reply(TimelineRedriven(**found._asdict()))

    page = RedrivePage(command.count, command.until_ms, command.after)
    session.broker.timelines.redrive(command.topic, page, on_done)


def fitting(rows: list[Row]) -> list[Row]:
    """Return the first rows, one at least, that are not too large for one answer."""
    size_bytes = 0
    for slot, row in enumerate(rows):
        size_bytes += len(row.payload) + len(row.attributes)
        if slot and size_bytes > TIMELINE_BYTES:
            return rows[:slot]
    return rows


def columns_of(rows: list[Row]) -> dict[str, Any]:
    """Return rows as the columns of `TimelineRows`."""
    return {
        "ids": [row.id for row in rows],
        "versions": [row.version for row in rows],
        "due_ms": [row.due_ms for row in rows],
        "position_ms": [row.position_ms for row in rows],
        "groups": [row.group for row in rows],
        "holders": [row.holder for row in rows],
        "leases": [row.leases for row in rows],
        "levels": [row.level for row in rows],
        "payloads": [row.payload for row in rows],
        "attributes": [row.attributes for row in rows],
    }


def rule_rows(found: list[RuleRow], after: tuple[int, int] | None) -> CronRows:
    """Return cron rules as they travel."""
    columns = columns_of([row for row, _ in found])
    return CronRows(**columns, after=after, crons=[report for _, report in found])


def tell_time(session: "NativeSession", command: AskTime, reply: Reply) -> None:
    """Answer with the time."""
    if command.drift_us:
        session.timelines.on_drift(command.drift_us)
    reply(TimeTold(now_us=session.broker.clock.now_us()))


# Consumers


def consume(session: "NativeSession", command: ConsumeTimeline, reply: Reply) -> None:
    """Open a consumer; its leases of former times may come before the answer."""
    channel, outlet = command.channel, session.timelines
    check_channel(session, channel)
    held = len(outlet.consumers) + len(session.opening)
    check_room(session, held, "consumers_per_connection_max")
    if not 0 < command.credit <= TIMELINE_CREDIT_MAX:
        raise BadRequestError(f"a credit is 1 to {TIMELINE_CREDIT_MAX}, not {command.credit}")
    check_numbers((command.lease_ms, command.prefetch_ms), RANGE_MS_MAX, "a span of time")
    parse_plain(command.consumer, "a consumer name")
    lease_ms = command.lease_ms or session.broker.timelines.settings(command.topic).lease_ms
    session.opening.add(channel)

    def on_done(found: TimelineConsumer | IsterError) -> None:
        still_wanted = channel in session.opening
        session.opening.discard(channel)
        if isinstance(found, IsterError):
            reply(found)
        elif not still_wanted:
            found.close()
            reply(BadRequestError(f"channel {channel} was closed while it was opened"))
        else:
            outlet.add(channel, found)
            reply(TimelineOpened(now_us=session.broker.clock.now_us()))

    try:
        session.broker.timelines.consume(
            command.topic,
            command.consumer,
            outlet,
            channel,
            lease_ms=lease_ms,
            prefetch_ms=command.prefetch_ms,
            credit=command.credit,
            fresh=command.fresh,
            done=on_done,
        )
    except IsterError:
        session.opening.discard(channel)
        raise


def finish(session: "NativeSession", command: FinishLeases, reply: Reply) -> None:
    """Act on what a consumer says about its messages; the answer comes when the store has it."""
    check_kinds(command.kinds, command.ids, FINISH_KINDS_END)
    consumer = _consumer(session, command.channel)
    lengths = len(command.ids)
    times_ms = column(command.times_ms, lengths, 0)
    versions = column(command.versions, lengths, 0)
    check_ids(command.ids)
    check_numbers(times_ms, TIME_MS_MAX, "a time")
    check_numbers(versions, NUMBER_MAX, "a version")
    lateness_us = column(command.lateness_us, lengths, NO_LATENESS)
    now_ms = session.broker.clock.now_ms()
    changes = _holder_changes(command, times_ms, versions, now_ms, consumer.lease_ms)
    consumer.lower(command.kinds.count(RETURN))

    def on_done(outcomes: Outcomes) -> None:
        if isinstance(outcomes, IsterError):
            reply(outcomes)
            return
        consumer.add_lateness(
            [
                late_us
                for kind, late_us, outcome in zip(command.kinds, lateness_us, outcomes, strict=True)
                if kind == DONE
                and 0 <= late_us <= LATENESS_US_MAX
                and not isinstance(outcome, IsterError)
            ]
        )
        changed = _changed(outcomes)
        if EXTEND in command.kinds:
            changed.until_ms = [
                _end_of(*told) for told in zip(command.kinds, outcomes, strict=True)
            ]
        reply(changed)

    # Of an honest client that is a few hundred reasons of 1 KiB at most.
    finish_leases(consumer, changes, on_done, column(command.reasons or (), lengths, ""))


def _end_of(kind: int, outcome: Changed | Row | IsterError) -> int:
    """Return when a lease ends that was extended, else 0."""
    return outcome.position_ms if kind == EXTEND and isinstance(outcome, Changed) else 0


def _holder_changes(
    command: FinishLeases,
    times_ms: Sequence[int],
    versions: Sequence[int],
    now_ms: int,
    lease_ms: int,
) -> list[Extend | Release | Finished | Reject]:
    changes: list[Extend | Release | Finished | Reject] = []
    for slot, kind in enumerate(command.kinds):
        name, version, time_ms = command.ids[slot], versions[slot], times_ms[slot]
        if kind == DONE:
            changes.append(Finished(0, name, "", version))
        elif kind == EXTEND:
            changes.append(Extend(0, name, "", version, now_ms + (time_ms or lease_ms)))
        elif kind == REJECT:
            changes.append(Reject(name, version))
        else:
            unused = kind == RETURN
            changes.append(Release(0, name, "", version, time_ms or now_ms, unused=unused))
    return changes


def revoked(session: "NativeSession", command: LeasesRevoked, reply: Reply) -> None:
    """A consumer has answered whether its application has some messages."""
    names = len(command.ids)
    if len(command.versions) != names or len(command.kept) != names:
        raise ProtocolError("columns of an answer differ in length")
    if not 0 < names <= TIMELINE_CHANGES_MAX:
        raise ProtocolError(f"an answer is about 1 to {TIMELINE_CHANGES_MAX} messages")
    consumer = session.timelines.consumers.get(command.channel)
    if consumer is not None:
        for name, version, kept in zip(command.ids, command.versions, command.kept, strict=True):
            consumer.revoked(name, version, kept)
    reply(Done())


def _consumer(session: "NativeSession", channel: int) -> TimelineConsumer:
    consumer = session.timelines.consumers.get(channel)
    if consumer is None:
        raise BadRequestError(f"no consumer of a timeline is open on channel {channel}")
    return consumer


# Checks


def check_numbers(numbers: Sequence[int], most: int, what: str) -> None:
    """Raise `BadRequestError` for a number that is out of bounds."""
    if not numbers:
        return
    least, largest = min(numbers), max(numbers)
    if least < 0 or largest > most:
        wrong = least if least < 0 else largest
        raise BadRequestError(f"{what} is 0 to {most}, not {wrong}")


def _check_place(after: tuple[int, int]) -> None:
    if not all(-1 <= number <= NUMBER_MAX for number in after):
        raise BadRequestError(f"{after} is no place in a timeline")


def _check_range(start_ms: int, end_ms: int) -> None:
    check_numbers((start_ms, end_ms), RANGE_MS_MAX, "a time")


def check_ids(ids: Sequence[str]) -> None:
    """Raise `BadRequestError` for an id that no message can have."""
    for name in ids:
        # Most are far shorter than what could be too long in UTF-8.
        if 0 < len(name) <= MESSAGE_ID_BYTES_MAX // 4 and name.isprintable():
            continue
        # Not every database takes a zero in a text.
        if not 0 < len(name.encode()) <= MESSAGE_ID_BYTES_MAX or "\0" in name:
            what = f"a message id is text of 1 to {MESSAGE_ID_BYTES_MAX} bytes without zeros"
            raise BadRequestError(f"{what}: {name[:64]!r}")


def check_attributes(packed: bytes) -> None:
    """Raise `BadRequestError` for attributes that no message can have."""
    try:
        found = _unpack(packed)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"attributes are no map of text: {error}") from None
    if len(found) > ATTRIBUTES_COUNT_MAX:
        raise BadRequestError(f"a message has at most {ATTRIBUTES_COUNT_MAX} attributes")
    if any(len(text.encode()) > ATTRIBUTE_BYTES_MAX for one in found.items() for text in one):
        raise BadRequestError(f"attributes are text of at most {ATTRIBUTE_BYTES_MAX} bytes")


_unpack = msgspec.msgpack.Decoder(dict[str, str]).decode


def paced(act: Action) -> Action:
    """Return an action that waits for the store, so that a client cannot ask without end."""

    def run(session: "NativeSession", command: Any, reply: Reply) -> None:
        def answer(told: Command | IsterError) -> None:
            session.timelines.on_answered()
            reply(told)

        session.timelines.on_asked()
        try:
            act(session, command, answer)
        except IsterError:
            session.timelines.on_answered()
            raise

    return run


# Each action takes its own command type, which the table's key guarantees.
TIMELINE_ACTIONS: dict[type, Action] = {
    ChangeTimeline: paced(change),
    GetFromTimeline: paced(get),
    ListTimeline: paced(page),
    CountTimeline: paced(count),
    RedriveTimeline: paced(redrive),
    ConsumeTimeline: consume,
    FinishLeases: paced(finish),
    LeasesRevoked: revoked,
    AskTime: tell_time,
}
