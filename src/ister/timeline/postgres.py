"""Timelines in PostgreSQL, for those who have the libraries to reach it."""

from ister.base.errors import ExtraMissingError
from ister.timeline.port import Store

SCHEMA = "ister"


def postgres_store(url: str, *, schema: str = SCHEMA) -> Store:
    """Return the timelines in a schema of a database: `postgresql://user@host:5432/database`.

    Nothing is connected before the first call. Raises `BadRequestError` for a URL or a schema that
    cannot be, and `ExtraMissingError`.
    """
    try:
        from ister.timeline.postgres_store import PostgresStore
    except ImportError:
        raise ExtraMissingError("a timeline in PostgreSQL", "postgres") from None
    return PostgresStore(url, schema=schema)
