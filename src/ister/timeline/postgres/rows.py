"""Changes of messages in tables of PostgreSQL: read, decide, and write what came of it.

Always true:
- the rules decide in memory about rows as they were read, and a row is written only while it is at
  the version it was read at. A version stands for one state of a message: it is as it was read;
- whoever finds a row at another version has `OvertakenError`, undoes everything and begins again,
  with locks on what is read;
- a new message is one of a topic that is there, and stays: the topic is locked against removal;
- rows are written by `seq`, so that two brokers do not wait for each other in a circle.
"""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from ister.timeline.model import Bury, Change, Lease, Put, Redrive, Row
from ister.timeline.postgres.arrays import Bigints, Blobs, Integers, Texts
from ister.timeline.postgres.tables import Connection

# In the place of payload and attributes that were not read: only whoever gets a lease needs them.
UNREAD = bytes(bytearray(b"unread"))

_BY_ID = """
SELECT topic, seq, id, version, level, due_ms, position_ms, owner, holder, leases
FROM unnest(%b::bigint[], %b::text[]) AS wanted (topic, id) JOIN messages USING (topic, id)
"""
_BY_SEQ = """
SELECT messages.* FROM unnest(%b::bigint[]) AS wanted (seq) JOIN messages USING (seq)
"""
_LOCKED = " FOR UPDATE OF messages"
_TOPICS = "SELECT number FROM topics WHERE number = ANY (%b::bigint[]) FOR KEY SHARE"
_VERSIONS = "SELECT take_versions(%s)"
_INSERT = """
INSERT INTO messages SELECT * FROM unnest(
    %b::bigint[], %b::bigint[], %b::text[], %b::bigint[], %b::integer[], %b::bigint[],
    %b::bigint[], %b::text[], %b::text[], %b::integer[], %b::bytea[], %b::bytea[]
)
"""
_UPDATE = """
UPDATE messages SET version = new.version, due_ms = new.due_ms, position_ms = new.position_ms,
    holder = new.holder, leases = new.leases
FROM unnest(
    %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::bigint[], %b::text[], %b::integer[]
) AS new (seq, was, version, due_ms, position_ms, holder, leases)
WHERE messages.seq = new.seq AND messages.version = new.was
"""
_UPDATE_CONTENT = """
UPDATE messages SET payload = new.payload, attributes = new.attributes
FROM unnest(%b::bigint[], %b::bytea[], %b::bytea[]) AS new (seq, payload, attributes)
WHERE messages.seq = new.seq
"""
# No topic has such a number: these are in nobody's way.
_LIFT = "UPDATE messages SET topic = -seq WHERE seq = ANY (%b::bigint[])"
_LAY = """
UPDATE messages SET topic = new.topic, id = new.id, level = new.level
FROM unnest(%b::bigint[], %b::integer[], %b::bigint[], %b::text[]) AS new (seq, level, topic, id)
WHERE messages.seq = new.seq
"""
_DELETE = """
DELETE FROM messages USING unnest(%b::bigint[], %b::bigint[]) AS old (seq, was)
WHERE messages.seq = old.seq AND messages.version = old.was
"""

_Key = tuple[int, str]


class OvertakenError(Exception):
    """Somebody else has changed a row since it was read."""


class TableRows:
    """The rows that some changes are about, as `Rows`; what became of them is written.

    Within a transaction.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._topics: set[int] = set()
        # As they are in the table, and as they shall be.
        self._old: dict[int, Row] = {}
        self._new: dict[int, Row] = {}
        self._ids: dict[_Key, Row] = {}
        # Where a row was looked for: what is not in `_ids` then, is not there.
        self._known: set[_Key] = set()

    # Reading

    def begin(self, changes: Sequence[Change], *, locked: bool) -> int:
        """Begin a transaction, read what the changes are about; return the first of their versions.

        `locked`: nobody else changes what is there until the end of the transaction.
        """
        keys, seqs, topics = _wanted(changes)
        lock = _LOCKED if locked else ""
        execute = self._connection.execute
        with self._connection.pipeline():
            execute("BEGIN")
            by_topic = execute(_TOPICS, (Bigints.of(topics),)) if topics else None
            by_id = execute(_BY_ID + lock, _columns_of(keys), binary=True) if keys else None
            by_seq = execute(_BY_SEQ + lock, (Bigints.of(seqs),), binary=True) if seqs else None
            # After the rows were read: a new version is higher than that of any of them.
            versions = execute(_VERSIONS, (len(changes),))
        if by_topic is not None:
            self._topics.update(number for (number,) in by_topic)
        self._known.update(keys)
        # Those with their payload go first, and stay.
        if by_seq is not None:
            self._take(map(Row._make, by_seq))
        if by_id is not None:
            self._take(Row._make((*values, UNREAD, UNREAD)) for values in by_id)
        ((last,),) = versions.fetchall()
        return int(last) - len(changes) + 1

    def _take(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if row.seq not in self._old:
                self._old[row.seq] = self._new[row.seq] = row
                self._known.add((row.topic, row.id))
                self._ids[row.topic, row.id] = row

    # What `apply_changes` asks for

    def has_topic(self, number: int) -> bool:
        """See `Rows`."""
        return number in self._topics

    def find(self, topic: int, id: str) -> Row | None:
        """See `Rows`."""
        key = topic, id
        if key not in self._known:
            # The place of a message among dead letters: known once we know the message.
            self._known.add(key)
            found = self._connection.execute(_BY_ID, _columns_of([key]), binary=True)
            self._take(Row._make((*values, UNREAD, UNREAD)) for values in found)
        return self._ids.get(key)

    def find_seq(self, topic: int, seq: int) -> Row | None:
        """See `Rows`."""
        row = self._new.get(seq)
        return row if row is not None and row.topic == topic else None

    def replace(self, old: Row | None, new: Row | None) -> None:
        """See `Rows`."""
        if old is not None:
            del self._ids[old.topic, old.id]
            del self._new[old.seq]
        if new is not None:
            self._ids[new.topic, new.id] = new
            self._new[new.seq] = new

    # Writing

    def write(self) -> None:
        """Have the table as the rows are now, or raise `OvertakenError`."""
        old, new = self._old, self._new
        # Places are made free before others take them.
        self._delete([row for seq, row in old.items() if seq not in new])
        kept = [(old[seq], row) for seq, row in new.items() if seq in old]
        self._update([(was, row) for was, row in kept if row is not was])
        self._insert([row for seq, row in new.items() if seq not in old])

    def _delete(self, rows: list[Row]) -> None:
        if rows:
            rows.sort(key=attrgetter("seq"))
            columns = (
                Bigints.of([row.seq for row in rows]),
                Bigints.of([row.version for row in rows]),
            )
            _check_all(self._connection.execute(_DELETE, columns).rowcount, len(rows))

    def _update(self, pairs: list[tuple[Row, Row]]) -> None:
        if not pairs:
            return
        pairs.sort(key=lambda pair: pair[0].seq)
        rows = [row for _, row in pairs]
        columns = (
            Bigints.of([row.seq for row in rows]),
            Bigints.of([was.version for was, _ in pairs]),
            Bigints.of([row.version for row in rows]),
            Bigints.of([row.due_ms for row in rows]),
            Bigints.of([row.position_ms for row in rows]),
            Texts.of([row.holder for row in rows]),
            Integers.of([row.leases for row in rows]),
        )
        _check_all(self._connection.execute(_UPDATE, columns).rowcount, len(rows))
        # These are few. They are ours since the statement above.
        if updated := [row for was, row in pairs if _has_other_content(was, row)]:
            self._connection.execute(
                _UPDATE_CONTENT,
                (
                    Bigints.of([row.seq for row in updated]),
                    Blobs.of([row.payload for row in updated]),
                    Blobs.of([row.attributes for row in updated]),
                ),
            )
        if buried := [row for was, row in pairs if (row.topic, row.id) != (was.topic, was.id)]:
            seqs = Bigints.of([row.seq for row in buried])
            # One may go where another one was: all are lifted before any is laid down.
            self._connection.execute(_LIFT, (seqs,))
            places = _columns_of([(row.topic, row.id) for row in buried])
            levels = Integers.of([row.level for row in buried])
            self._connection.execute(_LAY, (seqs, levels, *places))

    def _insert(self, rows: list[Row]) -> None:
        if not rows:
            return
        columns = list(zip(*rows, strict=True))
        topics, seqs, ids, versions, levels, dues, positions, groups, holders, leases = columns[:10]
        self._connection.execute(
            _INSERT,
            (
                Bigints.of(topics),
                Bigints.of(seqs),
                Texts.of(ids),
                Bigints.of(versions),
                Integers.of(levels),
                Bigints.of(dues),
                Bigints.of(positions),
                Texts.of(groups),
                Texts.of(holders),
                Integers.of(leases),
                Blobs.of(columns[10]),
                Blobs.of(columns[11]),
            ),
        )


def _wanted(changes: Iterable[Change]) -> tuple[list[_Key], list[int], list[int]]:
    """Return the ids, the numbers and the topics that changes ask for."""
    keys: set[_Key] = set()
    seqs: set[int] = set()
    topics: set[int] = set()
    for change in changes:
        match change:
            case Lease():
                seqs.add(change.seq)
                continue
            case Bury():
                seqs.add(change.seq)
                topics.add(change.letters)
                continue
            case Redrive():
                seqs.add(change.seq)
                topics.add(change.origin)
                continue
            case Put():
                topics.add(change.topic)
        keys.add((change.topic, change.id))
    return sorted(keys), sorted(seqs), sorted(topics)


def _columns_of(keys: Sequence[_Key]) -> tuple[Bigints, Texts]:
    return Bigints.of([topic for topic, _ in keys]), Texts.of([name for _, name in keys])


def _has_other_content(was: Row, row: Row) -> bool:
    # The very same objects, unless an update gave others.
    return row.payload is not was.payload or row.attributes is not was.attributes


def _check_all(count: int, wanted: int) -> None:
    if count != wanted:
        raise OvertakenError
