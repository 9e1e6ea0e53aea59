"""Puts, leases and ends of leases in SQLite, many at once: most of what a busy timeline does.

Each is decided as `deciding` does it, and here for the case that all of them can be made. Else
`None` is returned with nothing changed, and they are decided one by one.
"""

import sqlite3
from collections.abc import Callable, Collection, Sequence
from itertools import chain, count
from typing import Any
from zlib import crc32

import msgspec

from ister.base.limits import LEVELS
from ister.timeline.deciding import NUMBER_MAX, is_text
from ister.timeline.model import Changed, Done, Lease, Put, Row, Work
from ister.timeline.port import Outcomes

# Of values that were checked: a third of what calling the class takes.
new_row: Callable[[type[Row], tuple[Any, ...]], Row] = tuple.__new__

# Of a list in JSON: one statement for however many.
AMONG = "IN (SELECT value FROM json_each(?))"
SLIM = (
    "SELECT m.topic, m.seq, m.id, coalesce(l.version, m.version), m.level, m.due,"
    " coalesce(l.position, m.due), m.owner, coalesce(l.holder, ''), coalesce(l.leases, m.leases)"
)
WHOLE = f"{SLIM}, m.payload, m.attributes, m.crc"
ALL = "FROM messages AS m LEFT JOIN leases AS l ON l.seq = m.seq"
SLIM_KINDS = (int, int, str, int, int, int, int, str, str, int)
KINDS = (*SLIM_KINDS, bytes, bytes, int)
ADD = (
    "INSERT INTO messages (topic, seq, id, version, level, due, owner, leases, payload, attributes,"
    " crc) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
FIND_ANY = (
    "SELECT 1 FROM messages WHERE topic = ? AND id IN (SELECT value FROM json_each(?)) LIMIT 1"
)
FIND_SEQS = f"{WHOLE} {ALL} WHERE m.seq {AMONG}"
LEASE = (
    "REPLACE INTO leases (seq, topic, level, due, position, version, holder, leases)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
FIND_LEASES = (
    "SELECT seq, topic, due, position, version, holder FROM leases"
    " WHERE seq IN (SELECT value FROM json_each(?))"
)
REMOVE_MANY = "DELETE FROM messages WHERE seq IN (SELECT value FROM json_each(?))"
FREE_MANY = "DELETE FROM leases WHERE seq IN (SELECT value FROM json_each(?))"


def kind_of(work: Work) -> type | None:
    """Return the kind of all changes of some work, if they are of one kind and not atomic."""
    kinds = set(map(type, work.changes))
    return kinds.pop() if len(kinds) == 1 and not work.atomic else None


def put_all(
    connection: sqlite3.Connection, topics: Collection[int], work: Sequence[Work], version: int
) -> list[Outcomes] | None:
    """Make messages, the first with `version`."""
    puts: list[Put] = [*chain.from_iterable(one.changes for one in work)]  # type: ignore[list-item]
    ids: dict[int, set[str]] = {}
    added: list[tuple[object, ...]] = []
    changed: list[Changed] = []
    for put, number in zip(puts, count(version), strict=False):
        if not is_plain(put, topics):
            return None
        name, due_ms = put.id, put.due_ms
        ids.setdefault(put.topic, set()).add(name)
        added.append(put_row(put, number))
        changed.append(Changed(name, number, number, due_ms, due_ms))
    if sum(map(len, ids.values())) < len(puts):
        return None
    for topic, names in ids.items():
        if connection.execute(FIND_ANY, (topic, _encode(names).decode())).fetchone():
            return None
    connection.executemany(ADD, added)
    return split(changed, work)


def is_plain(put: Put, topics: Collection[int]) -> bool:
    """Return whether nothing but a message of that id can keep this one from being made."""
    topic, name, group, due_ms, _, _, level = put
    return bool(
        name
        and name.isprintable()
        and group.isprintable()
        and -NUMBER_MAX < due_ms < NUMBER_MAX
        and 0 <= level < LEVELS
        and topic in topics
    )


def put_row(put: Put, version: int) -> tuple[object, ...]:
    """Return a new message as `ADD` takes it."""
    topic, name, group, due_ms, payload, attributes, level = put
    crc = crc32(attributes, crc32(payload))
    return topic, version, name, version, level, due_ms, group, 0, payload, attributes, crc


def lease_all(
    connection: sqlite3.Connection, now_ms: int, work: Sequence[Work], version: int
) -> list[Outcomes] | None:
    """Make leases, the first with `version`."""
    leases: list[Lease] = [*chain.from_iterable(one.changes for one in work)]  # type: ignore[list-item]
    seqs = [lease.seq for lease in leases]
    found = {values[1]: values for values in connection.execute(FIND_SEQS, (listed(seqs),))}
    if len(found) != len(leases):
        return None
    rows: list[Row] = []
    written: list[tuple[object, ...]] = []
    for (topic, seq, former, holder, until_ms), number in zip(leases, count(version), strict=False):
        values = found[seq]
        _, _, name, now, level, due_ms, end_ms, group, other, times, payload, attributes, _ = values
        if (
            topic != values[0]
            or now != former
            or (other and now_ms < end_ms)
            or not is_whole(values)
            or not (holder and is_text(holder))
            or not due_ms < until_ms < NUMBER_MAX
        ):
            return None
        times += 1
        written.append((seq, topic, level, due_ms, until_ms, number, holder, times))
        fields = (topic, seq, name, number, level, due_ms, until_ms, group, holder, times)
        rows.append(new_row(Row, (*fields, payload, attributes)))
    connection.executemany(LEASE, written)
    return split(rows, work)


def finish_all(
    connection: sqlite3.Connection,
    topics: Collection[int],
    now_ms: int,
    work: Sequence[Work],
    version: int,
) -> list[Outcomes] | None:
    """Remove messages that were dealt with, of which the numbers are known."""
    ends: list[Done] = [*chain.from_iterable(one.changes for one in work)]  # type: ignore[list-item]
    seqs = listed([end.seq for end in ends])
    found = {values[0]: values[1:] for values in connection.execute(FIND_LEASES, (seqs,))}
    if len(found) != len(ends):
        return None
    changed: list[Changed] = []
    for (topic, name, holder, former, seq), number in zip(ends, count(version), strict=False):
        in_topic, due_ms, end_ms, now, owner = found[seq]
        if (
            topic != in_topic
            or now != former
            or holder != owner
            or end_ms <= now_ms
            or topic not in topics
        ):
            return None
        changed.append(Changed(name, number, seq, due_ms, end_ms))
    connection.execute(REMOVE_MANY, (seqs,))
    connection.execute(FREE_MANY, (seqs,))
    return split(changed, work)


def split(outcomes: list[Any], work: Sequence[Work]) -> list[Outcomes]:
    """Return the outcomes of each piece of work."""
    found: list[Outcomes] = []
    start = 0
    for piece in work:
        end = start + len(piece.changes)
        found.append(outcomes[start:end])
        start = end
    return found


def listed(values: Sequence[int]) -> str:
    """Return a list as a statement takes it."""
    return _encode(values).decode()


def is_whole(values: tuple[Any, ...]) -> bool:
    """Return whether a message is what was written."""
    return tuple(map(type, values)) == KINDS and crc32(values[11], crc32(values[10])) == values[12]


_encode = msgspec.json.Encoder().encode
