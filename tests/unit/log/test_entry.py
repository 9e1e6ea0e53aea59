"""Entries and transactions as bytes; extents as rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.base.errors import CorruptedError
from ister.log import parse_transaction
from ister.log.files.entry import (
    HEADER_BYTES,
    Kind,
    decode_file_header,
    encode_transaction,
    is_intact,
    pack_header,
    parse_header,
)
from ister.log.files.extents import STRIDE, Extents, decode_extents, find_offset, rows_of, window


def test_a_header_says_what_was_packed() -> None:
    head = pack_header(
        Kind.BATCH,
        7,
        [b"ab", memoryview(b"cde")],
        length=5,
        number=2**40,
        synced=2**33,
        count=3,
        mark=99,
        flags=1,
    )

    header = parse_header(head, 0)
    assert header is not None
    assert len(head) == HEADER_BYTES
    assert (header.kind, header.topic, header.length, header.count) == (Kind.BATCH, 7, 5, 3)
    assert (header.number, header.synced, header.mark, header.flags) == (2**40, 2**33, 99, 1)
    assert header.size_bytes == HEADER_BYTES + 8


@given(st.binary(max_size=200), st.data())
def test_any_flipped_bit_of_an_entry_is_noticed(body: bytes, data: st.DataObject) -> None:
    head = pack_header(
        Kind.CHANGES, 0, [body], length=len(body), number=1, synced=0, count=0, mark=5
    )
    entry = bytearray(head + body)
    bit = data.draw(st.integers(0, len(entry) * 8 - 1))
    assert is_intact(memoryview(entry), 0, len(body))
    entry[bit // 8] ^= 1 << bit % 8

    assert not is_intact(memoryview(entry), 0, len(body))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5), st.binary(max_size=40))))
def test_a_transaction_gives_back_its_batches_and_changes(
    batches: list[tuple[int, int, bytes]],
) -> None:
    parts = encode_transaction(
        [(topic, count, [body[:3], body[3:]]) for topic, count, body in batches], b"changes"
    )

    found, changes = parse_transaction(memoryview(b"".join(parts)))
    assert changes == b"changes"
    assert [(one.topic, one.count, bytes(one.body)) for one in found] == batches


@pytest.mark.parametrize("body", [b"", b"\0", b"\xff\xff\xff\xff", b"\x01\0\0\0\xc1"])
def test_a_broken_transaction_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_transaction(memoryview(body))


def test_a_transaction_whose_batch_reaches_past_its_end_is_a_value_error() -> None:
    body = b"".join(encode_transaction([(1, 1, [bytes(64)])], b""))

    with pytest.raises(ValueError, match="past the end"):
        parse_transaction(memoryview(body[:-8]))


def test_a_file_header_that_does_not_decode_is_corruption() -> None:
    with pytest.raises(CorruptedError, match="header"):
        decode_file_header(b"\xc1", "file")


def add(extents: Extents, position: int, size: int, offset: int) -> None:
    extents.add(1, position, position + size, offset, offset + 1, offset, offset, size)


def test_an_extent_grows_up_to_its_limit() -> None:
    extents = Extents(100)
    add(extents, 0, 50, 0)
    add(extents, 50, 50, 1)
    add(extents, 100, 1, 2)

    assert list(extents.topics[1]) == [0, 100, 0, 2, 0, 1, 100, 100, 101, 2, 3, 2, 2, 1]


def test_a_batch_over_the_limit_is_an_extent_of_its_own() -> None:
    extents = Extents(100)
    add(extents, 0, 10, 0)
    add(extents, 10, 500, 1)
    add(extents, 510, 10, 2)

    assert list(extents.topics[1][::STRIDE]) == [0, 10, 510]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 60)), min_size=1, max_size=60),
    st.lists(st.integers(1, 60)),
)
def test_extents_merged_in_groups_find_every_offset(
    batches: list[tuple[int, int]], cuts: list[int]
) -> None:
    whole = Extents(100)
    group = Extents(100)
    places: dict[int, list[tuple[int, int]]] = {}
    position = 0
    for slot, (topic, size) in enumerate(batches):
        rows = places.setdefault(topic, [])
        offset = len(rows)
        group.add(topic, position, position + size, offset, offset + 1, 0, 0, size)
        rows.append((position, position + size))
        position += size
        if slot in cuts:
            whole.merge(group)
            group = Extents(100)
    whole.merge(group)

    decoded = decode_extents(whole.encode())
    for topic, rows in places.items():
        index = rows_of(decoded, topic)
        for offset, (start, end) in enumerate(rows):
            found = window(index, find_offset(index, offset), 0)
            assert found.position <= start
            assert end <= found.end
            assert found.first_offset <= offset < found.end_offset
        assert find_offset(index, len(rows)) == len(index)
        assert whole.summary(topic).own_bytes == sum(end - start for start, end in rows)


@pytest.mark.parametrize("body", [b"\xc1", b"\x91\x92\x01\xc4\x03abc", b"\x91\x92\x01\xc4\x00"])
def test_a_broken_footer_is_a_value_error(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_extents(body)
