"""Whatever happens, the store in PostgreSQL says and has the same as the one in memory."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from tests.e2e.timeline.postgres_server import TEST_TIMEOUT_S, PostgresServer
from tests.unit.timeline.test_model import Stores

from ister.timeline.postgres.opening import postgres_timelines

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(TEST_TIMEOUT_S)]

SCHEMA = "model"


def test_any_work_comes_to_the_same_as_in_memory(server: PostgresServer) -> None:
    class PostgresStores(Stores):
        def __init__(self) -> None:
            super().__init__()
            self._sqlite = postgres_timelines(server.url, schema=SCHEMA)  # type: ignore[assignment]

        def teardown(self) -> None:
            super().teardown()
            server.execute(f"DROP SCHEMA {SCHEMA} CASCADE")

    run_state_machine_as_test(
        PostgresStores, settings=settings(max_examples=15, stateful_step_count=12, deadline=None)
    )
