"""The messages that the work of one call is about, as they are in the file and as they become.

Changes are decided here and written afterwards, many at once: so the rules are not in SQL, and a
batch costs a few statements. What was not read beforehand is read when it is asked for.
"""

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from ister.timeline.model import Row

# Stands for a payload, and for attributes, that were not read: known by identity.
UNREAD = bytes(bytearray(b"unread"))


class Writes(NamedTuple):
    """What must be done to the file, in this order: an id is left before another one takes it."""

    removed: list[int]
    # Nobody has them any more.
    freed: list[int]
    # Each with another topic, another level or another id.
    moved: list[Row]
    # With another time, or as nobody has them.
    changed: list[Row]
    # With another payload, or other attributes.
    updated: list[Row]
    added: list[Row]
    # Somebody has or had them: what is in `changed` of these may be out of date.
    leased: list[Row]


class ChangeSet:
    """Messages as they are in the file and as changes make them: the `Rows` of SQLite."""

    def __init__(
        self,
        topics: Collection[int],
        *,
        load: Callable[[int, str], Row | None],
        load_seq: Callable[[int], Row | None],
    ) -> None:
        self._topics = topics
        self._load = load
        self._load_seq = load_seq
        # As they are in the file, and as they are by now. By seq.
        self._before: dict[int, Row] = {}
        self._rows: dict[int, Row] = {}
        # By topic and id; `None`: there is none.
        self._ids: dict[tuple[int, str], Row | None] = {}
        self._moved: list[tuple[Row, Row]] = []

    def add(self, rows: Iterable[Row]) -> None:
        """Take note of messages in the file."""
        before, now, ids = self._before, self._rows, self._ids
        for row in rows:
            if row.seq not in before:
                before[row.seq] = now[row.seq] = row
                ids[row.topic, row.id] = row

    def add_ids(self, topic: int, ids: Collection[str], rows: Iterable[Row]) -> None:
        """Take note of all messages in the file that have one of those ids."""
        # What is noted already stays. Nothing is changed before everything is noted.
        for name in ids:
            self._ids.setdefault((topic, name), None)
        self.add(rows)

    def writes(self) -> Writes:
        """Return what must be done to the file."""
        before, now = self._before, self._rows
        writes = Writes([], [], [new for _, new in self._moved], [], [], [], [])
        for seq, row in now.items():
            old = before.get(seq)
            if old is row:
                continue
            if row.position_ms != row.due_ms:
                writes.leased.append(row)
            if old is None:
                writes.added.append(row)
            else:
                _write_change(writes, old, row)
        for seq, old in before.items():
            if seq not in now:
                writes.removed.append(seq)
                if old.position_ms != old.due_ms:
                    writes.freed.append(seq)
        return writes

    # See `Rows`

    def has_topic(self, number: int) -> bool:
        """See `Rows`."""
        return number in self._topics

    def find(self, topic: int, id: str) -> Row | None:
        """See `Rows`."""
        key = (topic, id)
        try:
            return self._ids[key]
        except KeyError:
            pass
        row = self._load(topic, id)
        # One that is known has left that id by now.
        if row is None or row.seq in self._before:
            self._ids[key] = None
        else:
            self.add([row])
        return self._ids[key]

    def find_seq(self, topic: int, seq: int) -> Row | None:
        """See `Rows`."""
        row = self._rows.get(seq)
        if row is None and seq not in self._before:
            row = self._load_seq(seq)
            if row is not None:
                self.add([row])
        return row if row is not None and row.topic == topic else None

    def replace(self, old: Row | None, new: Row | None) -> None:
        """See `Rows`."""
        if old is not None and (new is None or old.id != new.id or old.topic != new.topic):
            self._leave(old, new)
        if new is not None:
            self._rows[new.seq] = new
            self._ids[new.topic, new.id] = new

    def _leave(self, old: Row, new: Row | None) -> None:
        """Have nothing of an id any more."""
        self._ids[old.topic, old.id] = None
        if new is None:
            del self._rows[old.seq]
        # Atomic work that is refused goes back step by step: as if it had never moved.
        elif self._moved and self._moved[-1][0] is new and self._moved[-1][1] is old:
            self._moved.pop()
        else:
            self._moved.append((old, new))


def _write_change(writes: Writes, old: Row, row: Row) -> None:
    if row.position_ms == row.due_ms:
        writes.changed.append(row)
        if old.position_ms != old.due_ms:
            writes.freed.append(row.seq)
    elif row.due_ms != old.due_ms:
        writes.changed.append(row)
    if old.payload is not row.payload or old.attributes is not row.attributes:
        writes.updated.append(row)
