"""Properties of batches: any messages come back, and no bytes do harm."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.codec.strategies import Messages, messages, resealed, shown

from ister.base.errors import BadBatchError, CodecMissingError
from ister.base.limits import MIB
from ister.codec import HEADER_BYTES, Batch, Codec, available, encode

codecs = st.sampled_from(available())


def read_everything(batch: Batch) -> None:
    """Ask a batch for all it can tell, and for parts of itself."""
    batch.verify(message_bytes_max=MIB)
    shown(batch)
    _ = list(batch.offsets), batch.producer, repr(batch), len(batch)
    half = batch.count // 2
    if half:
        shown(batch.slice(half, batch.count))
    shown(batch.select(range(0, batch.count, 2)))
    shown(batch.plain())


@given(messages(), codecs, st.integers(0, 2**40))
def test_any_messages_come_back_as_they_were(
    given: Messages, codec: Codec, base_offset: int
) -> None:
    batch = Batch(given.batch(codec=codec, base_offset=base_offset).to_bytes())

    assert shown(batch) == given.shown()


@given(messages(), codecs)
def test_any_batch_we_make_passes_verification(given: Messages, codec: Codec) -> None:
    assert given.batch(codec=codec).verify(message_bytes_max=20) == 0


@given(messages(), codecs, st.data())
def test_a_slice_is_the_slice_of_the_lists(
    given: Messages, codec: Codec, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(given.payloads) - 1))
    end = data.draw(st.integers(start + 1, len(given.payloads)))
    part = given.batch(codec=codec, base_offset=100).slice(start, end)

    assert shown(part) == given.select(list(range(start, end))).shown()
    assert list(part.offsets) == list(range(100 + start, 100 + end))


@given(messages(), codecs, st.data())
def test_a_selection_is_the_selection_of_the_lists(
    given: Messages, codec: Codec, data: st.DataObject
) -> None:
    every = st.sampled_from(range(len(given.payloads)))
    slots = sorted(data.draw(st.sets(every, min_size=1)))
    part = given.batch(codec=codec, base_offset=100).select(slots)

    assert shown(part) == given.select(slots).shown()
    assert list(part.offsets) == [100 + slot for slot in slots]


@given(messages(), st.data())
def test_a_part_of_a_part_is_a_part_of_the_whole(given: Messages, data: st.DataObject) -> None:
    every = st.sampled_from(range(len(given.payloads)))
    outer = sorted(data.draw(st.sets(every, min_size=1)))
    start = data.draw(st.integers(0, len(outer) - 1))
    part = given.batch(base_offset=7).select(outer).slice(start, len(outer))

    assert shown(part) == given.select(outer[start:]).shown()


@given(messages(), codecs, st.data())
def test_any_single_flipped_bit_behind_the_stamp_is_found(
    given: Messages, codec: Codec, data: st.DataObject
) -> None:
    broken = bytearray(given.batch(codec=codec).to_bytes())
    place = data.draw(st.integers(16, len(broken) - 1))
    broken[place] ^= 1 << data.draw(st.integers(0, 7))

    with pytest.raises(BadBatchError):
        Batch(bytes(broken))


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(BadBatchError):
        Batch(data)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid batch with some bytes changed, and a checksum that fits, so that parsing goes on."""
    data = bytearray(b"".join(draw(messages()).encoded(draw(codecs))))
    for _ in range(draw(st.integers(1, 4))):
        # Half of the changes hit the header and the first offsets, where the sizes are.
        most = draw(st.sampled_from([min(len(data), HEADER_BYTES + 16), len(data)])) - 1
        value = draw(st.sampled_from([0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF]) | st.integers(0, 255))
        data[draw(st.integers(0, most))] = value
    return resealed(data)


@given(mutated())
def test_a_mutated_batch_with_a_good_checksum_raises_typed_errors_only(data: bytes) -> None:
    try:
        read_everything(Batch(data))
    except (BadBatchError, CodecMissingError):
        pass


@given(st.binary(min_size=0, max_size=200), st.integers(0, 63), st.integers(1, 20), codecs)
def test_random_columns_under_a_good_header_raise_typed_errors_only(
    columns: bytes, flags: int, count: int, codec: Codec
) -> None:
    data = bytearray(b"".join(encode([b""]))[:HEADER_BYTES] + columns)
    data[21] = codec
    data[22] = flags
    data[24:28] = count.to_bytes(4, "little")
    data[28:32] = data[32:36] = len(columns).to_bytes(4, "little")

    try:
        read_everything(Batch(resealed(data)))
    except BadBatchError:
        pass


@pytest.mark.parametrize("codec", [c for c in available() if c is not Codec.NONE])
def test_a_small_batch_that_unpacks_to_more_than_it_says_takes_no_more_memory(
    codec: Codec,
) -> None:
    data = bytearray(b"".join(encode([bytes(32 * MIB)], codec=codec)))
    data[28:32] = (1024).to_bytes(4, "little")
    batch = Batch(resealed(data))
    tracemalloc.start()
    with pytest.raises(BadBatchError):
        batch.check()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < MIB


def test_a_batch_of_many_empty_attributes_takes_memory_in_proportion() -> None:
    count = 200_000
    data = bytearray(b"".join(encode([b""], attributes=[{}])))
    # One message that claims 200,000 attributes, all of them empty.
    rows = (0).to_bytes(4, "little") + count.to_bytes(4, "little")
    column = bytes(4 * (count + 2) // 8 * 8)
    body = bytes(data[HEADER_BYTES : HEADER_BYTES + 8]) + rows + column + column
    data[28:32] = data[32:36] = len(body).to_bytes(4, "little")
    batch = Batch(resealed(data[:HEADER_BYTES] + body))
    tracemalloc.start()
    with pytest.raises(BadBatchError, match="attributes"):
        batch.verify(message_bytes_max=MIB)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 16 * len(body)
