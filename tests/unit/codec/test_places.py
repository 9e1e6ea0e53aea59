"""Columns found where they lie: the same bytes that parsing finds, and never past the end."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.codec.strategies import Messages, messages, resealed

from ister.base.errors import BadBatchError, CodecMissingError
from ister.codec import HEADER_BYTES, Batch, Codec, Places, VariablePlace, available

codecs = st.sampled_from(available())


def values(places: Places, place: VariablePlace, count: int) -> list[bytes]:
    offsets = struct.unpack_from(f"<{count + 1}i", places.view, place.offsets)
    blob = bytes(places.view[place.blob : place.end])
    return [blob[start:end] for start, end in pairwise(offsets)]


@given(messages(), codecs, st.booleans())
def test_columns_lie_where_parsing_finds_them(
    given: Messages, codec: Codec, compacted: bool
) -> None:
    batch = given.batch(codec=codec, base_offset=10)
    if compacted:
        batch = batch.select(range(0, batch.count, 2))
    count = batch.count

    places = batch.places()

    assert values(places, places.payload, count) == batch.payloads
    keys = batch.keys
    if keys is None:
        assert places.key is None
    else:
        assert places.key is not None
        assert values(places, places.key, count) == [(key or "").encode() for key in keys]
        bits = int.from_bytes(places.view[places.validity :][: (count + 7) // 8], "little")
        assert [bool(bits >> slot & 1) for slot in range(count)] == [k is not None for k in keys]
    if places.timestamps >= 0:
        found = struct.unpack_from(f"<{count}q", places.view, places.timestamps)
        assert list(found) == list(batch.timestamps_ms)
    if places.offsets >= 0:
        assert list(struct.unpack_from(f"<{count}q", places.view, places.offsets)) == list(
            batch.offsets
        )


@given(messages(), codecs, st.data())
def test_nothing_is_found_past_the_end_of_broken_columns(
    given: Messages, codec: Codec, data: st.DataObject
) -> None:
    raw = bytearray(given.batch(codec=codec).to_bytes())
    at = data.draw(st.integers(HEADER_BYTES, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))

    try:
        batch = Batch(resealed(raw))
        places = batch.places()
    except (BadBatchError, CodecMissingError):
        return

    size, count = len(places.view), batch.count
    for place in (places.payload, places.key):
        if place is not None:
            assert place.offsets + 4 * (count + 1) <= place.blob <= place.end <= size
    for position in (places.timestamps, places.offsets):
        assert position < 0 or position + 8 * count <= size


@given(messages(), codecs)
def test_keys_in_arrow_are_the_keys(given: Messages, codec: Codec) -> None:
    pytest.importorskip("pyarrow", reason="the extra `arrow` is not installed")
    batch = given.batch(codec=codec)

    assert batch.to_arrow()["key"].to_pylist() == (batch.keys or [None] * batch.count)
