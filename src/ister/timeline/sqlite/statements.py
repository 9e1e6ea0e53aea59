"""Statements of SQLite about messages, and messages as they take and return them."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import msgspec

from ister.timeline.model import Put

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
FIND_SEQS = f"{WHOLE} {ALL} WHERE m.seq {AMONG}"
LEASE = (
    "REPLACE INTO leases (seq, topic, level, due, position, version, holder, leases)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)


def put_row(put: Put, version: int) -> tuple[object, ...]:
    """Return a new message as `ADD` takes it."""
    topic, name, group, due_ms, payload, attributes, level = put
    crc = crc32(attributes, crc32(payload))
    return topic, version, name, version, level, due_ms, group, 0, payload, attributes, crc


def json_list(values: Sequence[int]) -> str:
    """Return a list as a statement takes it."""
    return _encode(values).decode()


def is_whole(values: tuple[Any, ...]) -> bool:
    """Return whether a message is what was written."""
    return tuple(map(type, values)) == KINDS and crc32(values[11], crc32(values[10])) == values[12]


_encode = msgspec.json.Encoder().encode
