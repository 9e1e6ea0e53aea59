"""The store in memory keeps the contract."""

import pytest
from tests.unit.timeline.contract import Open, StoreContract

from ister.timeline import MemoryStore


class TestMemoryStore(StoreContract):
    """In memory: the same store, again and again."""

    @pytest.fixture
    def open_store(self) -> Open:
        store = MemoryStore()
        return lambda: store
