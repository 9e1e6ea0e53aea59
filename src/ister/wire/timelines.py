"""Commands of timelines: messages at a point in time, many of them as columns of one command.

A column has one value for each message, or none at all when every value would be empty. Times are
those of the broker's clock, in milliseconds since 1970 unless they say otherwise. Spec:
docs/protocol.md.
"""

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import msgspec

from ister.base.errors import FieldValue, IsterError, ProtocolError, from_wire
from ister.base.limits import TIMELINE_CHANGES_MAX
from ister.wire.tagged import Listed, Tagged

# What a change is, one byte each. Of the owner:
PUT, MOVE, UPDATE, DELETE = range(4)
CHANGE_KINDS_END = 4
# And of a consumer.
DONE, EXTEND, RELEASE, RETURN, REJECT = range(5)
FINISH_KINDS_END = 5

# The lateness of a message that has none: it was handed out before.
NO_LATENESS = -1

_T = TypeVar("_T")


class Refusal(msgspec.Struct, frozen=True):
    """An error of one change. Its text follows from number and fields, and is not sent."""

    code: int
    fields: dict[str, FieldValue]


class ChangeTimeline(Tagged):
    """Make changes to messages of a group, each for itself, or all or nothing if `atomic`.

    `due_ms` is that of puts and moves, `payloads` and `attributes` (msgpack maps) those of puts
    and updates, `levels` those of puts, and `versions` those of the others: 0 is any.
    """

    topic: str
    group: str
    kinds: bytes
    ids: Listed[str]
    due_ms: Listed[int] = msgspec.field(default_factory=list)
    payloads: Listed[bytes] = msgspec.field(default_factory=list)
    attributes: Listed[bytes] = msgspec.field(default_factory=list)
    levels: Listed[int] = msgspec.field(default_factory=list)
    versions: Listed[int] = msgspec.field(default_factory=list)
    atomic: bool = False


class TimelineChanged(Tagged, omit_defaults=True):
    """The version of each message after its change; of those that were refused, by slot, why.

    `until_ms` is when the lease of a message that was extended ends, and 0 for others.
    """

    versions: list[int]
    errors: dict[int, Refusal] = msgspec.field(default_factory=dict)
    until_ms: list[int] = msgspec.field(default_factory=list)


class GetFromTimeline(Tagged):
    """Ask for a message by its id."""

    topic: str
    id: str


class ListTimeline(Tagged):
    """Ask for messages from `start_ms` up to before `end_ms`, behind `after`, a page at a time."""

    topic: str
    start_ms: int
    end_ms: int
    after: tuple[int, int] = (-1, 0)
    limit: int = 100


class TimelineRows(Tagged):
    """Messages by position. `after` is what to ask with for the next page, absent at the end."""

    ids: list[str]
    versions: list[int]
    due_ms: list[int]
    position_ms: list[int]
    groups: list[str]
    holders: list[str]
    leases: list[int]
    levels: list[int]
    payloads: list[bytes]
    attributes: list[bytes]
    after: tuple[int, int] | None = None


class CountTimeline(Tagged):
    """Ask how many messages there are from `start_ms` up to before `end_ms`."""

    topic: str
    start_ms: int
    end_ms: int


class TimelineCount(Tagged):
    """So many."""

    count: int


class ConsumeTimeline(Tagged, omit_defaults=True):
    """Use `channel` for a consumer; one of the same name gives way to it.

    It is sent the leases that a consumer of its name has, then at most `credit` messages that it
    has not finished, and others up to `prefetch_ms` before they are due. CREDIT frames raise it.
    A `lease_ms` of 0 is a minute, or the longest lease of the topic if that is shorter. With
    `fresh`, of a process that has just started, these leases end and count as attempts.
    """

    topic: str
    consumer: str
    channel: int
    lease_ms: int
    prefetch_ms: int
    credit: int
    fresh: bool = False


class TimelineOpened(Tagged):
    """The consumer is there. `now_us` is the time of the broker, in microseconds."""

    now_us: int


class TimelineDue(Tagged, omit_defaults=True):
    """Messages for the consumer on this frame's channel, leased to it, due now or soon.

    A notice. `until_ms` is when their leases end, `attempts` how often they were handed out, with
    this time. `again`: leases that the consumer's name had; one may have begun with them before.
    """

    ids: list[str]
    versions: list[int]
    due_ms: list[int]
    until_ms: list[int]
    attempts: list[int]
    payloads: list[bytes]
    attributes: list[bytes] = msgspec.field(default_factory=list)
    levels: list[int] = msgspec.field(default_factory=list)
    again: bool = False


class FinishLeases(Tagged):
    """What becomes of messages that the consumer on `channel` has.

    `times_ms` is for how long an EXTEND lasts from now (0: as long as a lease of the consumer), and
    when a RELEASE is due (0: now). A RETURN gives back what the application has not seen, to be due
    when it was (`times_ms`), and takes as much from the consumer's credit.
    `lateness_us` is how much later than due each message that is DONE was handed to the
    application. A message that is REJECTed becomes a dead letter; `reasons` are those of RELEASEs
    and REJECTs, for the dead letters, and absent when there are none.
    """

    channel: int
    kinds: bytes
    ids: Listed[str]
    versions: Listed[int]
    times_ms: Listed[int] = msgspec.field(default_factory=list)
    lateness_us: Listed[int] = msgspec.field(default_factory=list)
    reasons: Listed[str] | msgspec.UnsetType = msgspec.UNSET


class RedriveTimeline(Tagged):
    """Send dead letters of a topic back to it: a page of them, behind `after`.

    Those that are due by `until_ms` (0: now), and `count` of them at most (0: all of the page).
    """

    topic: str
    count: int = 0
    until_ms: int = 0
    after: tuple[int, int] = (-1, 0)


class TimelineRedriven(Tagged):
    """So many went back. `until_ms` and `after`, absent at the end, are for the next page."""

    moved: int
    until_ms: int
    after: tuple[int, int] | None = None


class RevokeLeases(Tagged):
    """Messages not due yet that their owner wants to change. A notice on the consumer's channel."""

    ids: list[str]
    versions: list[int]


class LeasesRevoked(Tagged):
    """The answer to `RevokeLeases`: which of the messages the application has already."""

    channel: int
    ids: Listed[str]
    versions: Listed[int]
    kept: Listed[bool]


class AskTime(Tagged, omit_defaults=True):
    """Ask for the time of the broker.

    `drift_us` is how far its clock is ahead of the client's, as the client knows from answers
    before; absent when it does not.
    """

    drift_us: int = 0


class TimeTold(Tagged):
    """The time of the broker when it was asked, in microseconds since 1970."""

    now_us: int


TimelineCommand: TypeAlias = (
    ChangeTimeline
    | TimelineChanged
    | GetFromTimeline
    | ListTimeline
    | TimelineRows
    | CountTimeline
    | TimelineCount
    | ConsumeTimeline
    | TimelineOpened
    | TimelineDue
    | FinishLeases
    | RedriveTimeline
    | TimelineRedriven
    | RevokeLeases
    | LeasesRevoked
    | AskTime
    | TimeTold
)


def column(values: Sequence[_T], count: int, default: _T) -> Sequence[_T]:
    """Return a column with a value for each of `count` messages, or raise `ProtocolError`."""
    if len(values) == count:
        return values
    if values:
        raise ProtocolError(f"a column has {len(values)} values for {count} messages")
    return [default] * count


def check_kinds(kinds: bytes, ids: Sequence[str], end: int) -> None:
    """Raise `ProtocolError` unless there is a known kind of change for each id, and not too many.

    Who has more to say makes several commands of it.
    """
    if not 0 < len(ids) <= TIMELINE_CHANGES_MAX:
        raise ProtocolError(f"{len(ids)} changes in a command are not 1 to {TIMELINE_CHANGES_MAX}")
    if len(kinds) != len(ids):
        raise ProtocolError(f"{len(kinds)} kinds of changes for {len(ids)} messages")
    if max(kinds) >= end:
        raise ProtocolError(f"kind of change {max(kinds)} is not known")


def check_due(due: TimelineDue) -> None:
    """Raise `ProtocolError` unless the columns of a delivery are as long as each other."""
    count = len(due.ids)
    sides = (due.versions, due.due_ms, due.until_ms, due.attempts, due.payloads)
    if any(len(side) != count for side in sides):
        raise ProtocolError("columns of a delivery differ in length")


def refusal(error: IsterError) -> Refusal:
    """Return an error as it travels among the outcomes of many changes."""
    return Refusal(code=error.code, fields=error.fields())


def outcomes_of(reply: TimelineChanged, count: int) -> list[int | IsterError]:
    """Return what came of each of `count` changes: the version of its message, or an error."""
    if len(reply.versions) != count:
        raise ProtocolError(f"{len(reply.versions)} outcomes for {count} changes")
    column(reply.until_ms, count, 0)
    outcomes: list[int | IsterError] = list(reply.versions)
    for slot, why in reply.errors.items():
        if not 0 <= slot < count:
            raise ProtocolError(f"there is no change {slot} of {count}")
        outcomes[slot] = from_wire(why.code, why.fields, f"error {why.code}")
    return outcomes
