"""One message at a time: the short ways in and out of a batch agree with the long ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.base.errors import BadBatchError
from ister.codec import Batch, crc32c, encode, encode_bare, encode_timed

U64 = st.integers(0, 2**64 - 1)
TIMES = st.integers(-(2**63), 2**63 - 1)


@given(st.binary(max_size=40), TIMES, st.binary(max_size=20), U64, U64)
def test_a_timed_message_is_what_encode_makes(
    payload: bytes, time_ms: int, producer: bytes, producer_id: int, sequence: int
) -> None:
    made = encode_timed(
        payload,
        time_ms,
        producer=producer,
        producer_id=producer_id,
        first_sequence=sequence,
        schema=(3, 4),
    )

    head, body = encode(
        [payload],
        timestamps_ms=[time_ms],
        producer=producer,
        producer_id=producer_id,
        first_sequence=sequence,
        numbered=False,
        schema=(3, 4),
    )
    assert made == head + body
    assert Batch(made).lone() == (payload, time_ms)


@given(st.binary(max_size=40))
def test_a_bare_message_has_the_time_it_was_published(payload: bytes) -> None:
    batch = Batch(encode_bare(payload))
    batch.stamp(5, 1_000)

    assert batch.lone() == (payload, 1_000)


@pytest.mark.parametrize(
    "parts",
    [
        encode([b"x", b"y"]),
        encode([b"x"], keys=["k"]),
        encode([b"x"], attributes=[{"a": "b"}], timestamps_ms=[1]),
    ],
)
def test_whatever_has_more_is_not_lone(parts: tuple[bytes, bytes]) -> None:
    assert Batch(b"".join(parts)).lone() is None


@pytest.mark.parametrize(("position", "value"), [(64, 1), (68, 200), (68, 0)])
def test_sizes_that_disagree_are_found(position: int, value: int) -> None:
    data = bytearray(
        encode_timed(b"payload of 21 B, yes!", 1, producer=b"", producer_id=0, first_sequence=0)
    )
    data[position] = value
    data[16:20] = crc32c(bytes(data[20:])).to_bytes(4, "little")

    with pytest.raises(BadBatchError):
        Batch(bytes(data)).lone()
