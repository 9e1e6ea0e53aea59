"""Timelines in a database of PostgreSQL: blocking, one connection.

Several stores may share one: each precondition is checked with its change. A broker does not, as it
would not hear of what others do; it asks for a store of its own (`alone`).

Always true:
- what `apply` has returned for is committed, on the disk of the server;
- after an error of the server or the network nothing is remembered but which session of the server
  was ours. The next call ends that one before it looks at anything: whatever it was about to commit
  is committed or never will be;
- a server that does not answer is given up, and one that another broker has is not used;
- what is told of an error has no secrets of the URL in it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from time import monotonic
from typing import LiteralString

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from ister.base.errors import BadRequestError, StorageFailedError, TopicExistsError
from ister.timeline.model import Row, Slot, Work
from ister.timeline.port import Outcomes, TopicRow
from ister.timeline.postgres.arrays import register_arrays
from ister.timeline.postgres.rows import OvertakenError, TableRows
from ister.timeline.postgres.silence import LimitedConnection
from ister.timeline.postgres.tables import Connection, have_alone, prepare
from ister.timeline.rules import apply_changes

# A server in the same network answers within milliseconds.
CONNECT_TIMEOUT_S = 5
# When a server took long to say nothing, it is not asked again for so long: those who wait behind
# the first one are told at once, and not one after the other.
REST_S = 1.0
# What was sent and nobody confirms for so long is lost, and so is the connection.
SILENCE_MS_MAX = 10_000
# How long the session before this one may take to end.
END_TIMEOUT_MS = 5_000
# The second time rows are locked, and the third mostly works: only somebody who makes the very
# same message at the very same moment comes in between.
ATTEMPTS_MAX = 8
# Messages of a topic that are deleted at once: a second of the server at most.
DELETED_MAX = 20_000

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_SESSION = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"
_END_SESSION = (
    "SELECT pg_terminate_backend(pid, %s) FROM pg_stat_activity"
    " WHERE pid = %s AND backend_start = %s"
)
_SCAN = (
    "SELECT position_ms, seq, version, due_ms, holder <> '' FROM messages"
    " WHERE topic = %s AND level = %s AND (position_ms, seq) > (%s, %s) AND position_ms <= %s"
    " ORDER BY position_ms, seq LIMIT %s"
)
# Each level is found by a step in the index.
_LEVELS = """
WITH RECURSIVE levels AS (
    (
        SELECT level, position_ms FROM messages WHERE topic = %(topic)s
        ORDER BY level, position_ms LIMIT 1
    )
    UNION ALL
    SELECT behind.* FROM levels, LATERAL (
        SELECT level, position_ms FROM messages
        WHERE topic = %(topic)s AND level > levels.level ORDER BY level, position_ms LIMIT 1
    ) AS behind
)
SELECT level, position_ms FROM levels
"""
_PAGE = """
SELECT page.* FROM unnest(%(levels)s::integer[]) AS wanted (level), LATERAL (
    SELECT * FROM messages
    WHERE topic = %(topic)s AND level = wanted.level
        AND (position_ms, seq) > (%(position_ms)s, %(seq)s)
        AND position_ms >= %(start_ms)s AND position_ms < %(end_ms)s
    ORDER BY position_ms, seq LIMIT %(limit)s
) AS page
ORDER BY position_ms, seq LIMIT %(limit)s
"""
_COUNT = """
SELECT count(*) FROM unnest(%(levels)s::integer[]) AS wanted (level) JOIN messages USING (level)
WHERE topic = %(topic)s AND position_ms >= %(start_ms)s AND position_ms < %(end_ms)s
"""
_HELD = """
SELECT * FROM messages WHERE topic = %s AND holder = %s AND holder <> ''
    AND (position_ms, seq) > (%s, %s)
ORDER BY position_ms, seq LIMIT %s
"""
_GET = "SELECT * FROM messages WHERE topic = %s AND id = %s"
_DELETE_SOME = """
DELETE FROM messages WHERE seq = ANY(ARRAY(
    SELECT seq FROM messages WHERE topic = %s ORDER BY topic, level, position_ms LIMIT %s
))
"""
_CREATE_TOPIC = (
    "INSERT INTO topics (name, kind, settings) VALUES (%s, %s, %s)"
    " ON CONFLICT (name) DO NOTHING RETURNING number"
)

# What another transaction did to ours: nothing of it is left, and it may be tried again.
_COLLISIONS = (
    OvertakenError,
    psycopg.errors.UniqueViolation,
    psycopg.errors.DeadlockDetected,
    psycopg.errors.SerializationFailure,
)


class PostgresStore:
    """See `Store`, and the module."""

    def __init__(self, url: str, *, schema: str, alone: bool) -> None:
        """Nothing is connected before the first call."""
        self._url, self._where = parse_url(url)
        if not _SCHEMA.fullmatch(schema):
            raise BadRequestError(f"{schema!r} is no name of a schema: use a-z, 0-9 and _")
        self._schema = schema
        self._alone = alone
        self._connection: Connection | None = None
        # Until then nobody is connected to.
        self._rest_until_s = 0.0
        # Whether the tables were there once.
        self._known = False
        # The session of the server that was ours last: its process, and when it began.
        self._session: tuple[object, ...] | None = None

    # Topics

    def topics(self) -> list[TopicRow]:
        """See `Store`."""
        rows = self._fetch("SELECT number, name, kind, settings FROM topics ORDER BY number")
        return [TopicRow(*row) for row in rows]

    def create_topic(self, name: str, kind: str, settings: bytes) -> TopicRow:
        """See `Store`."""
        rows = self._fetch(_CREATE_TOPIC, (name, kind, settings))
        if not rows:
            raise TopicExistsError(name, "in the timelines")
        return TopicRow(rows[0][0], name, kind, settings)

    def delete_topic(self, number: int) -> None:
        """See `Store`."""
        with self._translated():
            connection = self._open()
            # Most of them before, in pieces: one statement for millions takes minutes, and nobody
            # would know whether the server is at work.
            while connection.execute(_DELETE_SOME, (number, DELETED_MAX)).rowcount == DELETED_MAX:
                pass
            with connection.transaction():
                # Waits for those who put messages into it, and nobody does after this.
                connection.execute("DELETE FROM topics WHERE number = %s", (number,))
                connection.execute("DELETE FROM messages WHERE topic = %s", (number,))

    # Messages

    def apply(self, now_ms: int, work: Sequence[Work]) -> list[Outcomes]:
        """See `Store`."""
        with self._translated():
            connection = self._open()
            for attempt in range(ATTEMPTS_MAX):
                with suppress(*_COLLISIONS), undone(connection):
                    return change(connection, now_ms, work, locked=attempt > 0)
            raise StorageFailedError("other brokers change the same messages all the time")

    def scan(
        self, topic: int, level: int, after: tuple[int, int], until_ms: int, limit: int
    ) -> list[Slot]:
        """See `Store`."""
        values = (topic, level, *after, until_ms, limit)
        return [Slot(*row) for row in self._fetch(_SCAN, values)]

    def levels(self, topic: int) -> dict[int, int]:
        """See `Store`."""
        return dict(self._fetch(_LEVELS, {"topic": topic}))

    def held(self, topic: int, holder: str, after: tuple[int, int], limit: int) -> list[Row]:
        """See `Store`."""
        values = (topic, holder, *after, limit)
        return [Row(*row) for row in self._fetch(_HELD, values)]

    def get(self, topic: int, id: str) -> Row | None:
        """See `Store`."""
        for row in self._fetch(_GET, (topic, id)):
            return Row(*row)
        return None

    def page(
        self, topic: int, start_ms: int, end_ms: int, after: tuple[int, int], limit: int
    ) -> list[Row]:
        """See `Store`."""
        values = {
            "topic": topic,
            "levels": list(self.levels(topic)),
            "start_ms": start_ms,
            "end_ms": end_ms,
            "position_ms": after[0],
            "seq": after[1],
            "limit": limit,
        }
        return [Row(*row) for row in self._fetch(_PAGE, values)]

    def count(self, topic: int, start_ms: int, end_ms: int) -> int:
        """See `Store`."""
        levels = list(self.levels(topic))
        times = {"start_ms": start_ms, "end_ms": end_ms}
        ((count,),) = self._fetch(_COUNT, {"topic": topic, "levels": levels, **times})
        return int(count)

    def close(self) -> None:
        """See `Store`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # The connection

    def _fetch(
        self, query: LiteralString, values: Sequence[object] | Mapping[str, object] = ()
    ) -> list[TupleRow]:
        with self._translated():
            return self._open().execute(query, values, binary=True).fetchall()

    def _open(self) -> Connection:
        """Return the connection, a new one if there is none."""
        if self._connection is None:
            connection = self._connect()
            try:
                self._end_former_session(connection)
                if self._alone:
                    have_alone(connection, self._schema)
                prepare(connection, self._schema, known=self._known)
                self._known = True
                self._session = connection.execute(_SESSION).fetchone()
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _connect(self) -> Connection:
        begun_s = monotonic()
        if begun_s < self._rest_until_s:
            raise StorageFailedError(f"PostgreSQL at {self._where} does not answer")
        try:
            connection = LimitedConnection.connect(self._url, autocommit=True)
        except psycopg.Error as error:
            if monotonic() - begun_s > REST_S:
                self._rest_until_s = monotonic() + REST_S
            # Without its cause: it knows the URL.
            reason = f"PostgreSQL at {self._where} cannot be reached: {self._describe(error)}"
            raise StorageFailedError(f"{reason}; start it, or correct its URL") from None
        register_arrays(connection)
        return connection

    def _end_former_session(self, connection: Connection) -> None:
        if self._session is None:
            return
        done = connection.execute(_END_SESSION, (END_TIMEOUT_MS, *self._session)).fetchone()
        if done == (False,):
            raise StorageFailedError(
                f"process {self._session[0]} of the server does not end: end it by hand"
            )
        self._session = None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            self.close()
            reason = f"PostgreSQL at {self._where}: {self._describe(error)}"
            raise StorageFailedError(reason) from error

    def _describe(self, error: psycopg.Error) -> str:
        """Return what the server or the library says, in one line."""
        text = error.diag.message_primary or str(error) or type(error).__name__
        return " ".join(text.split())


def change(
    connection: Connection, now_ms: int, work: Sequence[Work], *, locked: bool
) -> list[Outcomes]:
    """Make changes in a transaction of their own; raises what `_COLLISIONS` has when overtaken."""
    changes = list(chain.from_iterable(piece.changes for piece in work))
    if not changes:
        return [[] for _ in work]
    rows = TableRows(connection)
    version = rows.begin(changes, locked=locked)
    outcomes = apply_changes(rows, now_ms, work, version)
    rows.write()
    connection.execute("COMMIT")
    return outcomes


@contextmanager
def undone(connection: Connection) -> Iterator[None]:
    """Undo the transaction under way when an error comes out."""
    try:
        yield
    except BaseException:
        # Who lost the connection has nothing to undo: the server does.
        with suppress(psycopg.Error):
            connection.rollback()
        raise


def parse_url(url: str) -> tuple[str, str]:
    """Return how to connect, and what may be told of it: host, port and database.

    Raises `BadRequestError` without a word of the URL in it: half a password may be anywhere in one
    that was not written as it should.
    """
    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(url).items()}
    except psycopg.Error:
        parts = {"port": "none"}
    host, port = parts.get("host", "localhost"), parts.get("port", "5432")
    name = parts.get("dbname", "")
    odd = not url.startswith(("postgresql://", "postgres://")) or "@" in host + name
    if odd or not port.replace(",", "").isdigit():
        raise BadRequestError(
            "the URL of the database is none: write postgresql://user:password@host:5432/database,"
            " and what is not a letter or a digit of the password as %XX"
        )
    # What the URL says goes first.
    settings = {
        "application_name": "ister",
        "connect_timeout": str(CONNECT_TIMEOUT_S),
        "tcp_user_timeout": str(SILENCE_MS_MAX),
        "keepalives_idle": str(SILENCE_MS_MAX // 1_000),
        "keepalives_interval": "1",
        **parts,
    }
    return make_conninfo("", **settings), f"{host}:{port}/{name}"
