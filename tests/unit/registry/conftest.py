"""A registry in memory, and a clock to move by hand."""

from dataclasses import dataclass

import pytest

from ister.metadata import MemoryMetadata
from ister.registry import Registry


@dataclass
class Hand:
    """What the registry takes for the time."""

    ms: int = 1_000

    def now_ms(self) -> int:
        return self.ms


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def metadata() -> MemoryMetadata:
    return MemoryMetadata()


@pytest.fixture
async def registry(metadata: MemoryMetadata, hand: Hand) -> Registry:
    return await Registry.open(metadata, now_ms=hand.now_ms)
