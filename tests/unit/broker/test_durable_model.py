"""Random lives of a durable subscription, checked against a simple reference at every step."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.broker.deliverymodel import Model

STEPS = 100
# A life takes about as long as thirty examples of other properties.
LIVES = max(2, settings().max_examples // 30)


@pytest.mark.parametrize("in_flight_max", [6, 262_144])
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
@given(
    seed=st.integers(0, 2**32),
    filtered=st.booleans(),
    tail_bytes=st.sampled_from((2_000, 1 << 24)),
    poison=st.sampled_from(("dead_letter", "drop", "block")),
)
def test_a_subscription_does_what_the_reference_says(
    type_: str,
    ordered: bool,
    in_flight_max: int,
    seed: int,
    filtered: bool,
    tail_bytes: int,
    poison: str,
) -> None:
    model = Model(
        seed,
        type_,
        # A key that can be blocked is kept in order.
        ordered=ordered or (type_ == "key_shared" and poison == "block"),
        filtered=filtered,
        in_flight_max=in_flight_max,
        tail_bytes=tail_bytes,
        poison=poison,
    )
    for _ in range(STEPS):
        model.step()
    model.finish()
