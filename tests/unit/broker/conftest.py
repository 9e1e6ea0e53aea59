"""For all tests of the broker."""

from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Storage that fails is logged with its traceback, which takes longer than most tests."""
    with capture_logs():
        yield
