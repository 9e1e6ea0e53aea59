"""Changes to a timeline by its owner, without I/O: those of one turn travel in one command.

Always true: a command has at most `TIMELINE_CHANGES_MAX` changes and about `TIMELINE_BYTES` bytes;
every change gets a version or an error, once.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ister.base import Seconds
from ister.base.errors import (
    BadRequestError,
    ConnectionLostError,
    IsterError,
    MessageTooLargeError,
    ProtocolError,
)
from ister.base.limits import (
    MESSAGE_ID_BYTES_MAX,
    PRIORITY_LEVELS,
    TIMELINE_BYTES,
    TIMELINE_CHANGES_MAX,
    TIMELINE_MESSAGE_BYTES_MAX,
)
from ister.client.session.checks import as_bytes, check_count, check_extras, check_text
from ister.client.session.due import When
from ister.codec import Attributes
from ister.wire import (
    DELETE,
    MOVE,
    PUT,
    UPDATE,
    ChangeTimeline,
    Command,
    TimelineChanged,
    outcomes_of,
)

if TYPE_CHECKING:
    from ister.client.session.port import SessionPort

# A change without its id, payload and attributes.
CHANGE_OVERHEAD_BYTES = 64
VERSION_MAX = 2**63 - 1

# What to do about changes of which nobody knows whether they were made.
CHANGE_HINT = (
    "make the change again: a put of an id of your own is made once, and another one may be there "
    "twice"
)

# For each change: the version of its message, or why it was refused.
OnOutcomes = Callable[[list[int | IsterError]], object]


class Change(NamedTuple):
    """What an owner does to a message; what does not belong to its kind is empty."""

    kind: int
    id: str
    due_ms: int = 0
    payload: bytes = b""
    attributes: bytes = b""
    level: int = 0
    version: int = 0

    @property
    def size_bytes(self) -> int:
        """About what it takes in a command."""
        return len(self.payload) + len(self.attributes) + CHANGE_OVERHEAD_BYTES


def put_change(
    topic: str, id: str, due_ms: int, payload: bytes, attributes: Attributes | None, priority: int
) -> Change:
    """Return what makes a message, or raise what is wrong with it."""
    if not 0 <= check_count(priority, "a priority") < PRIORITY_LEVELS:
        raise BadRequestError(
            f"a priority is 0, which goes first, to {PRIORITY_LEVELS - 1}: {priority!r}"
        )
    packed = packed_attributes(attributes)
    change = Change(PUT, checked_id(id), due_ms, as_bytes(payload), packed, priority)
    _check_size(topic, change)
    return change


def move_change(id: str, due_ms: int, version: int | None) -> Change:
    """Return what makes a message due at another time."""
    return Change(MOVE, checked_id(id), due_ms=due_ms, version=_version(version))


def update_change(
    topic: str, id: str, payload: bytes, attributes: Attributes | None, version: int | None
) -> Change:
    """Return what gives a message another payload."""
    change = Change(
        UPDATE,
        checked_id(id),
        payload=as_bytes(payload),
        attributes=packed_attributes(attributes),
        version=_version(version),
    )
    _check_size(topic, change)
    return change


def delete_change(id: str, version: int | None) -> Change:
    """Return what removes a message."""
    return Change(DELETE, checked_id(id), version=_version(version))


def change_command(
    topic: str, group: str, changes: Sequence[Change], *, atomic: bool = False
) -> ChangeTimeline:
    """Return the command for some changes; columns with nothing in them are left out."""
    kinds, ids, due_ms, payloads, attributes, levels, versions = zip(*changes, strict=True)
    return ChangeTimeline(
        topic=topic,
        group=group,
        kinds=bytes(kinds),
        ids=list(ids),
        due_ms=list(due_ms) if any(due_ms) else [],
        payloads=list(payloads) if any(payloads) else [],
        attributes=list(attributes) if any(attributes) else [],
        levels=list(levels) if any(levels) else [],
        versions=list(versions) if any(versions) else [],
        atomic=atomic,
    )


def atomic_command(topic: str, group: str, changes: Sequence[Change]) -> ChangeTimeline:
    """Return the command for a transaction, or raise `BadRequestError` when it is too large."""
    size_bytes = sum(change.size_bytes for change in changes)
    # One message may be larger by itself than several together.
    if len(changes) > TIMELINE_CHANGES_MAX or (len(changes) > 1 and size_bytes > TIMELINE_BYTES):
        raise BadRequestError(
            f"{len(changes)} changes of {size_bytes} B are too many for a transaction: it has up "
            f"to {TIMELINE_CHANGES_MAX} of {TIMELINE_BYTES} B"
        )
    return change_command(topic, group, changes, atomic=True)


def cut_changes(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    """Cut changes into pieces that fit into a command each."""
    start = size_bytes = 0
    for slot, change in enumerate(changes):
        added = change.size_bytes
        if slot > start and (
            slot - start >= TIMELINE_CHANGES_MAX or size_bytes + added > TIMELINE_BYTES
        ):
            yield changes[start:slot]
            start, size_bytes = slot, 0
        size_bytes += added
    if start < len(changes):
        yield changes[start:]


class ChangeBox:
    """Changes to one timeline of one group, on their way to the broker."""

    def __init__(self, session: "SessionPort", topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        self._session = session
        # What waits for the end of this turn, with the number of changes each is to be told of.
        self._changes: list[Change] = []
        self._size_bytes = 0
        self._waiting: list[tuple[int, OnOutcomes]] = []

    def add(self, changes: Sequence[Change], done: OnOutcomes) -> None:
        """Have changes made with those of this turn; `done` is told what came of each.

        No more of them than `cut_changes` returns at once.
        """
        size_bytes = sum([change.size_bytes for change in changes])
        if self._changes and (
            len(self._changes) + len(changes) > TIMELINE_CHANGES_MAX
            or self._size_bytes + size_bytes > TIMELINE_BYTES
        ):
            self.flush()
        if not self._changes:
            self._session.timelines.mark_dirty(self)
        self._changes += changes
        self._size_bytes += size_bytes
        self._waiting.append((len(changes), done))

    def flush(self) -> None:
        """Send what was collected."""
        if not self._changes:
            return
        changes, self._changes = self._changes, []
        waiting, self._waiting = self._waiting, []
        self._size_bytes = 0

        def on_reply(reply: Command | IsterError) -> None:
            if isinstance(reply, ConnectionLostError):
                reply = ConnectionLostError(reply.reason, CHANGE_HINT)
            outcomes = outcomes_for(reply, len(changes))
            start = 0
            for count, done in waiting:
                done(outcomes[start : start + count])
                start += count

        self._session.call(change_command(self.topic, self.group, changes), on_reply)


def check_when(at: When | None, after: Seconds | None) -> None:
    """Raise `BadRequestError` unless it is said when something is due."""
    if at is None and after is None:
        raise BadRequestError("say when it is due: at= a time, or after= so many seconds")


def packed_attributes(attributes: Attributes | None) -> bytes:
    """Return attributes as they travel, or raise `BadRequestError`."""
    if not attributes:
        return b""
    check_extras(None, attributes, None)
    return msgspec.msgpack.encode(dict(attributes))


def unpacked_attributes(packed: bytes) -> dict[str, str]:
    """Return attributes that were packed, or raise `ProtocolError`."""
    if not packed:
        return {}
    try:
        return _unpack(packed)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"attributes of a message are no map of text: {error}") from error


def checked_id(id: object) -> str:
    """Return the id of a message, or raise `BadRequestError`."""
    text = check_text(id, "a message id")
    if not 0 < len(text.encode()) <= MESSAGE_ID_BYTES_MAX:
        raise BadRequestError(f"a message id is text of 1 to {MESSAGE_ID_BYTES_MAX} bytes")
    return text


def _version(version: object) -> int:
    if version is None:
        return 0
    return check_count(version, "a version", least=1, most=VERSION_MAX)


def _check_size(topic: str, change: Change) -> None:
    size_bytes = len(change.payload) + len(change.attributes) + len(change.id.encode())
    if size_bytes > TIMELINE_MESSAGE_BYTES_MAX:
        raise MessageTooLargeError(topic, size_bytes, TIMELINE_MESSAGE_BYTES_MAX, setting="")


def outcomes_for(reply: Command | IsterError, count: int) -> list[int | IsterError]:
    """Return what a reply says about each of `count` changes."""
    if isinstance(reply, TimelineChanged):
        try:
            return outcomes_of(reply, count)
        except ProtocolError as error:
            # Whoever waits has to be told, also by a broker that makes no sense.
            reply = error
    if isinstance(reply, IsterError):
        return [reply] * count
    return [BadRequestError(f"broker answered {type(reply).__name__}")] * count


_unpack = msgspec.msgpack.Decoder(dict[str, str]).decode
