"""The store in PostgreSQL keeps the contract."""

from collections.abc import Iterator

import pytest
from tests.e2e.timeline.postgres_server import TEST_TIMEOUT_S, PostgresServer
from tests.unit.timeline.acts import Open
from tests.unit.timeline.contract import StoreContract

from ister.timeline import Store
from ister.timeline.postgres.opening import postgres_timelines

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(TEST_TIMEOUT_S)]


class TestPostgresStore(StoreContract):
    """In a database: several stores at once."""

    @pytest.fixture
    def open_store(self, server: PostgresServer, schema: str) -> Iterator[Open]:
        opened: list[Store] = []

        def open_one() -> Store:
            opened.append(postgres_timelines(server.url, schema=schema))
            return opened[-1]

        yield open_one
        for one in opened:
            one.close()
