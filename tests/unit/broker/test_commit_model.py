"""Random runs of consumers that use transactions, with a slow and failing disk."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.commitmodel import CommitModel

STEPS = 120
# A life takes about as long as twenty examples of other properties.
LIVES = max(3, settings().max_examples // 20)


@pytest.mark.parametrize(
    ("type_", "ordered"),
    [
        ("exclusive", False),
        ("failover", False),
        ("shared", False),
        ("key_shared", False),
        ("key_shared", True),
    ],
)
@settings(max_examples=LIVES)
@given(seed=st.integers(0, 2**32), max_deliveries=st.sampled_from([0, 2]))
def test_a_message_is_processed_once_whatever_happens_during_its_commit(
    type_: str, ordered: bool, seed: int, max_deliveries: int
) -> None:
    model = CommitModel(seed, type_, ordered=ordered, max_deliveries=max_deliveries)
    for _ in range(STEPS):
        model.step()
    model.finish()
