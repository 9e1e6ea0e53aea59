"""The command line sets up the log of its process, which here is that of all other tests."""

import logging
from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    before, handlers = structlog.get_config(), logging.getLogger().handlers
    yield
    structlog.configure(**before)
    logging.getLogger().handlers = handlers
