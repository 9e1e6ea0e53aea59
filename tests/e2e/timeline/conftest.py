"""A server of PostgreSQL for the tests of this folder: `server`, and `schema` for each test."""

import itertools
from collections.abc import Iterator

import pytest
from tests.e2e.timeline.postgres_server import PostgresServer

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """A running server. Whoever kills it starts it again."""
    one = PostgresServer()
    try:
        one.create()
        one.start()
        yield one
    finally:
        one.remove()


@pytest.fixture
def schema(server: PostgresServer) -> Iterator[str]:
    """The name of a schema that nobody else uses."""
    name = f"test_{next(_numbers)}"
    yield name
    server.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
