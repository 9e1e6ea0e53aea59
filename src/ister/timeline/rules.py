"""What a change makes of a message, or why it is refused: the rules, once for all stores.

Always true of a message:
- it stands at its due time exactly when nobody has it, and behind that when somebody has or had
  it: a lease lasts a millisecond from the due time at least;
- what its owner changes is free again, and a lease that was taken back before the message was due
  does not count;
- a version stands for one state of one message, for ever;
- a change uses up a version, also when it is refused.
"""

from collections.abc import Sequence
from typing import Protocol, assert_never

from ister.base.errors import (
    IsterError,
    MessageChangedError,
    MessageExistsError,
    MessageLeasedError,
    MessageNotFoundError,
    NotOwnerError,
    TimelineLeaseLostError,
    TopicNotFoundError,
)
from ister.timeline.dead_letters import letter_attributes, original_attributes
from ister.timeline.model import (
    Bury,
    Change,
    Changed,
    Delete,
    Done,
    Extend,
    Lease,
    Move,
    Put,
    Redrive,
    Release,
    Row,
    Update,
    Work,
    is_leased,
    new_changed,
    new_row,
)
from ister.timeline.port import Outcome, Outcomes

OwnersChange = Move | Update | Delete
HoldersChange = Extend | Release | Done


class Rows(Protocol):
    """The messages that changes are about."""

    def has_topic(self, number: int) -> bool:
        """Return whether there is such a topic."""

    def find(self, topic: int, id: str) -> Row | None:
        """Return the message of that id."""

    def find_seq(self, topic: int, seq: int) -> Row | None:
        """Return the message of that seq."""

    def replace(self, old: Row | None, new: Row | None) -> None:
        """Have a message in the place of another one, or of none; or none."""


def apply_changes(rows: Rows, now_ms: int, work: Sequence[Work], version: int) -> list[Outcomes]:
    """Make changes, the first of which gets `version`; each uses up one."""
    outcomes: list[Outcomes] = []
    for piece in work:
        begun_ms = max(now_ms, piece.begun_ms)
        if piece.atomic:
            outcomes.append(_apply_atomic(rows, now_ms, begun_ms, piece.changes, version))
        else:
            found: list[Outcome] = []
            for slot, change in enumerate(piece.changes, version):
                try:
                    old, new = decide(rows, change, now_ms, begun_ms, slot)
                except IsterError as error:
                    found.append(error)
                else:
                    rows.replace(old, new)
                    found.append(outcome_of(change, old, new, slot))
            outcomes.append(found)
        version += len(piece.changes)
    return outcomes


def _apply_atomic(
    rows: Rows, now_ms: int, begun_ms: int, changes: Sequence[Change], version: int
) -> list[Outcome] | IsterError:
    found: list[Outcome] = []
    made: list[tuple[Row | None, Row | None]] = []
    for slot, change in enumerate(changes, version):
        try:
            old, new = decide(rows, change, now_ms, begun_ms, slot)
        except IsterError as error:
            for before, after in reversed(made):
                rows.replace(after, before)
            return error
        rows.replace(old, new)
        made.append((old, new))
        found.append(outcome_of(change, old, new, slot))
    return found


def outcome_of(change: Change, old: Row | None, new: Row | None, version: int) -> Outcome:
    """Return what is told of a change that was made."""
    row = new if new is not None else old
    assert row is not None
    if type(change) is Lease:
        return row
    _, seq, name, now, _, due_ms, position_ms, _, _, _, _, _ = row
    return new_changed(Changed, (name, version if new is None else now, seq, due_ms, position_ms))


def decide(
    rows: Rows, change: Change, now_ms: int, begun_ms: int, version: int
) -> tuple[Row | None, Row | None]:
    """Return a message as it was and as a change makes it, or raise why it is refused."""
    match change:
        case Put():
            return None, _put(rows, change, version)
        case Lease():
            row = _find_free(rows, change, now_ms)
            return row, _lease(row, change, version)
        case Done():
            return _find_held(rows, change, now_ms), None
        case Extend() | Release():
            row = _find_held(rows, change, now_ms)
            return row, _extend_or_release(row, change, version)
        case Delete():
            return _find_owned(rows, change, now_ms, begun_ms), None
        case Move() | Update():
            row = _find_owned(rows, change, now_ms, begun_ms)
            return row, _change(row, change, begun_ms, version)
        case Bury():
            row = (
                _find_rejected(rows, change, now_ms)
                if change.holder
                else _find_free(rows, change, now_ms)
            )
            return row, _bury(rows, row, change, now_ms, version)
        case Redrive():
            row = _find_free(rows, change, now_ms)
            return row, _redrive(rows, row, change, now_ms, version)
        case _:
            assert_never(change)


# Changes of the owner


def _put(rows: Rows, change: Put, version: int) -> Row:
    topic, name, group, due_ms, payload, attributes, level = change
    if not rows.has_topic(topic):
        raise TopicNotFoundError(f"number {topic}")
    if rows.find(topic, name) is not None:
        raise MessageExistsError(name)
    content = (payload, attributes)
    return new_row(
        Row, (topic, version, name, version, level, due_ms, due_ms, group, "", 0, *content)
    )


def _find_owned(rows: Rows, change: OwnersChange, now_ms: int, begun_ms: int) -> Row:
    """Return the message that its owner may change now."""
    row = rows.find(change.topic, change.id)
    if row is None:
        raise MessageNotFoundError(change.id)
    if row.group != change.group:
        raise NotOwnerError(change.id, row.group)
    if change.version not in (0, row.version):
        raise MessageChangedError(change.id, row.version)
    if is_leased(row, now_ms, begun_ms):
        raise MessageLeasedError(change.id, row.holder, row.position_ms)
    return row


def _change(row: Row, change: Move | Update, begun_ms: int, version: int) -> Row:
    due_ms = row.due_ms
    if isinstance(change, Move):
        due_ms = change.due_ms
    else:
        row = row._replace(payload=change.payload, attributes=change.attributes)
    prefetched = bool(row.holder) and begun_ms < row.due_ms
    return row._replace(
        version=version,
        due_ms=due_ms,
        position_ms=due_ms,
        holder="",
        leases=row.leases - prefetched,
    )


# Changes of consumers


def _find_free(rows: Rows, change: Lease | Bury | Redrive, now_ms: int) -> Row:
    """Return the message that a consumer may be given now."""
    row = rows.find_seq(change.topic, change.seq)
    if row is None:
        raise MessageNotFoundError(f"number {change.seq}")
    if row.version != change.version:
        raise MessageChangedError(row.id, row.version)
    if row.holder and now_ms < row.position_ms:
        raise MessageLeasedError(row.id, row.holder, row.position_ms)
    return row


def _lease(row: Row, change: Lease, version: int) -> Row:
    topic, seq, name, _, level, due_ms, _, group, _, leases, payload, attributes = row
    end_ms, content = _end_of(change.until_ms, due_ms), (payload, attributes)
    fields = (topic, seq, name, version, level, due_ms, end_ms, group, change.holder, leases + 1)
    return new_row(Row, fields + content)


def _find_held(rows: Rows, change: HoldersChange, now_ms: int) -> Row:
    """Return the message that a consumer has a lease of, alive or to be."""
    row = rows.find(change.topic, change.id)
    if row is None:
        raise MessageNotFoundError(change.id)
    _check_holder(row, change, now_ms)
    return row


def _find_rejected(rows: Rows, change: Bury, now_ms: int) -> Row:
    """Return the message that a consumer rejects."""
    row = rows.find_seq(change.topic, change.seq)
    if row is None:
        raise MessageNotFoundError(f"number {change.seq}")
    _check_holder(row, change, now_ms)
    return row


def _check_holder(row: Row, change: HoldersChange | Bury, now_ms: int) -> None:
    if (
        not row.holder
        or row.holder != change.holder
        or row.version != change.version
        or row.position_ms <= now_ms
    ):
        raise TimelineLeaseLostError(row.id)


def _extend_or_release(row: Row, change: Extend | Release, version: int) -> Row:
    if isinstance(change, Extend):
        return row._replace(version=version, position_ms=_end_of(change.until_ms, row.due_ms))
    is_as_before = change.unused and change.due_ms == row.due_ms
    return row._replace(
        version=change.former if is_as_before and change.former else version,
        due_ms=change.due_ms,
        position_ms=change.due_ms,
        holder="",
        leases=row.leases - change.unused,
    )


def _bury(rows: Rows, row: Row, change: Bury, now_ms: int, version: int) -> Row:
    if change.origin:
        attributes = letter_attributes(row.attributes, change.origin, row.leases, change.reason)
        row = row._replace(attributes=attributes)
    return _move(rows, row, change.letters, now_ms, version, flat=change.flat)


def _redrive(rows: Rows, row: Row, change: Redrive, now_ms: int, version: int) -> Row:
    row = row._replace(attributes=original_attributes(row.attributes), leases=0)
    return _move(rows, row, change.origin, now_ms, version, flat=change.flat)


def _move(rows: Rows, row: Row, topic: int, now_ms: int, version: int, *, flat: bool) -> Row:
    """Return a message as it is in another topic, due now and free."""
    if not rows.has_topic(topic):
        raise TopicNotFoundError(f"number {topic}")
    name = row.id
    if rows.find(topic, name) is not None:
        name = f"{name}-{version}"
        if rows.find(topic, name) is not None:
            raise MessageExistsError(name)
    return row._replace(
        topic=topic,
        id=name,
        version=version,
        level=0 if flat else row.level,
        due_ms=now_ms,
        position_ms=now_ms,
        holder="",
    )


def _end_of(until_ms: int, due_ms: int) -> int:
    """Return the end of a lease."""
    return until_ms if until_ms > due_ms else due_ms + 1
