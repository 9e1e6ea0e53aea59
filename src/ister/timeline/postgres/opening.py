"""Timelines in PostgreSQL, for those who have the libraries to reach it."""

from ister.base.errors import ExtraMissingError
from ister.timeline.port import Store

SCHEMA = "ister"


def postgres_timelines(url: str, *, schema: str = SCHEMA, alone: bool = False) -> Store:
    """Return the timelines in a schema of a database: `postgresql://user@host:5432/database`.

    `alone`: nobody else who says so has it at the same time. Nothing is connected before the first
    call. Raises `BadRequestError` for a URL or a schema that cannot be, and `ExtraMissingError`.
    """
    try:
        from ister.timeline.postgres.store import PostgresStore
    except ImportError:
        raise ExtraMissingError("a store of timelines in PostgreSQL", "postgres") from None
    return PostgresStore(url, schema=schema, alone=alone)
