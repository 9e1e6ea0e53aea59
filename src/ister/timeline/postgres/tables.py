"""The tables of timelines in a database of PostgreSQL, and what is asked of its server.

Always true:
- everything is in one schema; one that has tables of others, or of another format, is not touched;
- brokers that come first at the same time make the tables once;
- of those who want a schema alone, one has it, until its session of the server ends;
- a commit that has returned is on the server's disk: a server that does not promise it is refused.
"""

import zlib

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from ister.base.errors import StorageFailedError

Connection = psycopg.Connection[TupleRow]

FORMAT = 1
WHAT = "ister timelines"
# Since then `pg_terminate_backend` waits for the end.
SERVER_VERSION_MIN = 140_000
# "ister": whoever makes the tables has this lock of the database.
MAKING_LOCK = 0x6973746572

# "istr", with a number made of the schema's name: who has it has the schema alone.
ALONE_LOCK = 0x69737472
# A broker that was killed has its session for a moment longer.
ALONE_TIMEOUT = "5s"
_ALONE_OWNER = """
SELECT pid, coalesce(host(client_addr), 'the same machine') FROM pg_locks
    JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND classid = %s AND objid = %s AND granted
    AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""

# "C" is the order of bytes: nobody sorts by the rules of a language here.
TABLES = (
    """
    CREATE TABLE topics (
        number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        name text COLLATE "C" NOT NULL UNIQUE,
        kind text NOT NULL,
        settings bytea NOT NULL
    )
    """,
    # The columns are those of `Row`, in their order: `messages.*` is one.
    # A message leaves two dead rows at least, which lie where those that are due next are looked
    # for. They are swept when there are thousands, not when they are a fifth of the table.
    """
    CREATE TABLE messages (
        topic bigint NOT NULL,
        seq bigint PRIMARY KEY,
        id text COLLATE "C" NOT NULL,
        version bigint NOT NULL,
        level integer NOT NULL,
        due_ms bigint NOT NULL,
        position_ms bigint NOT NULL,
        owner text COLLATE "C" NOT NULL,
        holder text COLLATE "C" NOT NULL,
        leases integer NOT NULL,
        payload bytea NOT NULL,
        attributes bytea NOT NULL
    ) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 5000)
    """,
    "CREATE UNIQUE INDEX messages_id ON messages (topic, id)",
    "CREATE INDEX messages_position ON messages (topic, level, position_ms, seq)",
    "CREATE INDEX messages_holder ON messages (topic, holder) WHERE holder <> ''",
    "CREATE SEQUENCE versions",
    # A sequence gives one number at a time, and others may come in between: so it is pushed on by
    # one after the other. The lock is that of `MAKING_LOCK`, and one more.
    """
    CREATE FUNCTION take_versions(wanted bigint) RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE
        last bigint;
    BEGIN
        PERFORM pg_advisory_lock(452908574067);
        last := setval('versions', nextval('versions') + wanted - 1);
        PERFORM pg_advisory_unlock(452908574067);
        RETURN last;
    END
    $$
    """,
    "CREATE TABLE format (what text NOT NULL, number integer NOT NULL)",
)

SETTINGS = {
    # A transaction is on the disk when its commit returns, whatever the server does for others.
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    # There is an index for everything. Which way a statement goes must not depend on what the
    # server believes about a table that was empty a minute ago; so a plan is made once as well.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    # How long to wait for rows that another broker changes, and for one that hangs while it does.
    "lock_timeout": "5s",
    "idle_in_transaction_session_timeout": "10s",
    # A broker whose machine is gone does not keep what it had for hours.
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}


def prepare(connection: Connection, schema: str, *, known: bool) -> None:
    """Have a new connection ready for use, with tables that are there and ours.

    Raises `StorageFailedError` for a server or a schema that cannot be used. `known`: the tables
    were there before, and are not made again.
    """
    check_server(connection)
    path = sql.Identifier(schema).as_string(connection)
    for name, value in {**SETTINGS, "search_path": path}.items():
        connection.execute("SELECT set_config(%s, %s, false)", (name, value))
    if "format" not in relations(connection, schema):
        if known:
            raise StorageFailedError(f"the tables of schema {schema!r} are gone: put them back")
        make_tables(connection, schema)
    check_format(connection, schema)


def have_alone(connection: Connection, schema: str) -> None:
    """Have a schema for this session of the server alone, or raise `StorageFailedError`."""
    number = zlib.crc32(schema.encode())
    # As the server counts: the numbers of a lock have a sign, and those it shows have none.
    signed = number - 2**32 if number >= 2**31 else number
    connection.execute("SELECT set_config('lock_timeout', %s, false)", (ALONE_TIMEOUT,))
    try:
        connection.execute("SELECT pg_advisory_lock(%s, %s)", (ALONE_LOCK, signed))
    except psycopg.errors.LockNotAvailable:
        owner = connection.execute(_ALONE_OWNER, (ALONE_LOCK, number)).fetchone()
        who = "" if owner is None else f" (process {owner[0]} of the server, from {owner[1]})"
        raise StorageFailedError(
            f"another broker has the timelines in schema {schema!r}{who}: stop it, or use another "
            "database"
        ) from None


def check_server(connection: Connection) -> None:
    """Raise for a server that cannot keep what we promise."""
    if connection.info.server_version < SERVER_VERSION_MIN:
        raise StorageFailedError("the server is older than PostgreSQL 14: use a newer one")
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise StorageFailedError(
            f"the database has the encoding {encoding}: make one with ENCODING 'UTF8'"
        )
    if connection.execute("SHOW fsync").fetchone() != ("on",):
        raise StorageFailedError(
            "the server runs with fsync = off, and loses what it acknowledged: turn it on"
        )


def relations(connection: Connection, schema: str) -> set[str]:
    """Return the names of the tables, views and sequences in a schema."""
    # Not `to_regclass`, which knows only schemas that were there when the transaction began.
    rows = connection.execute(
        "SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
        " WHERE nspname = %s",
        (schema,),
    )
    return {name for (name,) in rows}


def make_tables(connection: Connection, schema: str) -> None:
    """Make the schema and its tables, unless somebody else has just done it."""
    with connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (MAKING_LOCK,))
        found = relations(connection, schema)
        if "format" in found:
            return
        if found:
            raise not_ours(schema)
        there = "SELECT FROM pg_namespace WHERE nspname = %s"
        # Only who may make schemas may say `IF NOT EXISTS`.
        if not connection.execute(there, (schema,)).fetchall():
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        for statement in TABLES:
            connection.execute(statement)
        connection.execute("INSERT INTO format VALUES (%s, %s)", (WHAT, FORMAT))


def check_format(connection: Connection, schema: str) -> None:
    """Raise for tables that are not ours, or not yet."""
    try:
        rows = connection.execute("SELECT what, number FROM format").fetchall()
    except psycopg.errors.UndefinedColumn:
        raise not_ours(schema) from None
    match rows:
        case [(what, int(number))] if what == WHAT:
            if number != FORMAT:
                raise StorageFailedError(
                    f"schema {schema!r} has format {number}, not {FORMAT}: use a newer ister"
                )
        case _:
            raise not_ours(schema)


def not_ours(schema: str) -> StorageFailedError:
    """Return the error for a schema that somebody else uses."""
    return StorageFailedError(
        f"schema {schema!r} of the database has tables that are not ours: name another one"
    )
