"""A batch gives back what was put in, and refuses bytes that are none."""

import struct

import pytest
from tests.unit.codec.strategies import Messages, resealed, shown

from ister.base.errors import BadBatchError, CodecMissingError
from ister.base.limits import (
    ATTRIBUTE_BYTES_MAX,
    ATTRIBUTES_COUNT_MAX,
    BATCH_BYTES_CEILING,
    BATCH_COUNT_MAX,
    KEY_BYTES_MAX,
    MESSAGE_ID_BYTES_MAX,
)
from ister.codec import HEADER_BYTES, STAMP_BYTES, Batch, Codec, available, encode, encode_bare

BIG = 1 << 30
COMPRESSED = [codec for codec in available() if codec is not Codec.NONE]


def made(*payloads: bytes, **columns: object) -> bytes:
    """Return the bytes of a batch."""
    return b"".join(encode(payloads, **columns))  # type: ignore[arg-type]


def patched(data: bytes, position: int, shape: str, value: int) -> bytes:
    """Return `data` with one number replaced and the checksum made good."""
    changed = bytearray(data)
    struct.pack_into("<" + shape, changed, position, value)
    return resealed(changed)


def test_a_header_is_sixty_four_bytes_of_which_sixteen_are_the_brokers() -> None:
    assert (HEADER_BYTES, STAMP_BYTES) == (64, 16)


def test_a_batch_of_one_empty_message_is_header_and_two_offsets() -> None:
    assert len(made(b"")) == HEADER_BYTES + 8


def test_every_part_of_a_batch_is_padded_to_eight_bytes() -> None:
    data = made(b"abc", b"d", keys=["k", None], ids=["x", "y"], producer=b"shop")

    assert len(data) % 8 == 0


def test_a_missing_column_costs_nothing() -> None:
    plain, keyed = made(b"a"), made(b"a", keys=["k"])

    assert len(keyed) - len(plain) == 8 + 8 + 8


def test_a_stamp_changes_nothing_behind_the_first_sixteen_bytes() -> None:
    data = made(b"a", b"b", keys=["k", "l"])
    batch = Batch(data)
    batch.stamp(7, 99)

    assert batch.to_bytes()[STAMP_BYTES:] == data[STAMP_BYTES:]


def test_a_stamped_batch_is_valid_and_tells_its_stamp() -> None:
    batch = Batch(made(b"a"))
    batch.stamp(7, -5)
    again = Batch(batch.to_bytes())

    assert (again.base_offset, again.publish_time_ms) == (7, -5)


def test_offsets_count_up_from_the_base_offset() -> None:
    batch = Batch(made(b"a", b"b", b"c"))
    batch.stamp(40, 0)

    assert list(batch.offsets) == [40, 41, 42]


def test_the_last_offset_there_is_can_be_used() -> None:
    batch = Batch(made(b"a"))
    batch.stamp(2**63 - 2, 0)

    assert list(batch.offsets) == [2**63 - 2]


def test_offsets_past_the_last_one_are_refused() -> None:
    batch = Batch(made(b"a"))
    batch.stamp(2**63 - 1, 0)

    with pytest.raises(BadBatchError, match="past the last offset"):
        _ = batch.offsets


def test_a_batch_without_timestamps_has_its_publish_time() -> None:
    batch = Batch(made(b"a", b"b"))
    batch.stamp(0, 123)

    assert list(batch.timestamps_ms) == [123, 123]


def test_a_producers_name_and_numbers_are_in_the_header() -> None:
    batch = Batch(made(b"a", producer=b"shop", producer_id=2**64 - 1, first_sequence=9))

    assert (batch.producer, batch.producer_id, batch.first_sequence) == ("shop", 2**64 - 1, 9)


def test_a_batch_says_what_its_payloads_are_and_whether_its_numbers_count() -> None:
    said = Batch(made(b"a", schema=(7, 2), numbered=False))
    silent = Batch(made(b"a"))

    assert (said.schema, said.numbered) == ((7, 2), False)
    assert (silent.schema, silent.numbered) == (None, True)
    assert Batch(encode_bare(b"a", schema=(7, 2))).schema == (7, 2)


@pytest.mark.parametrize("codec", [Codec.NONE, *COMPRESSED])
def test_whatever_is_cut_from_a_batch_keeps_schema_and_numbering(codec: Codec) -> None:
    batch = Batch(made(b"a", b"b", b"c", schema=(7, 2), numbered=False, codec=codec))
    cut = [batch.slice(1, 2), batch.select([0, 2]), batch.unstamped([0, 2]), batch.plain()]

    assert [(part.schema, part.numbered) for part in cut] == [((7, 2), False)] * 4


def test_a_null_key_is_not_an_empty_key() -> None:
    assert Batch(made(b"a", b"b", keys=[None, ""])).keys == [None, ""]


def test_no_attributes_are_an_empty_dictionary() -> None:
    assert Batch(made(b"a", b"b", attributes=[None, {"k": "v"}])).attributes == [{}, {"k": "v"}]


def test_a_batch_can_be_read_out_of_a_larger_buffer() -> None:
    data = made(b"a", b"bc")

    assert Batch(memoryview(b"xyz" + data)[3:]).payloads == [b"a", b"bc"]


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1])
def test_fewer_bytes_than_a_header_are_no_batch(size: int) -> None:
    with pytest.raises(BadBatchError):
        Batch(made(b"a")[:size])


@pytest.mark.parametrize("change", [-1, 1])
def test_a_byte_too_few_or_too_many_is_refused(change: int) -> None:
    data = made(b"abcdefgh")

    with pytest.raises(BadBatchError, match="disagree"):
        Batch(data[:change] if change < 0 else data + b"\0")


@pytest.mark.parametrize("version", [0, 2, 255])
def test_another_format_version_is_refused(version: int) -> None:
    with pytest.raises(BadBatchError, match="version"):
        Batch(patched(made(b"a"), 20, "B", version))


@pytest.mark.parametrize("codec", [3, 255])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    with pytest.raises(BadBatchError, match="codec"):
        Batch(patched(made(b"a"), 21, "B", codec))


@pytest.mark.parametrize("columns", [64, 0x8000])
def test_an_unknown_column_is_refused(columns: int) -> None:
    with pytest.raises(BadBatchError, match="unknown columns"):
        Batch(patched(made(b"a"), 22, "H", columns))


@pytest.mark.parametrize("count", [0, BATCH_COUNT_MAX + 1, 2**32 - 1])
def test_a_count_outside_the_limits_is_refused(count: int) -> None:
    with pytest.raises(BadBatchError, match="messages are not"):
        Batch(patched(made(b"a"), 24, "I", count))


def test_the_most_messages_a_batch_may_hold_can_be_read() -> None:
    assert len(Batch(b"".join(encode([b""] * BATCH_COUNT_MAX))).payloads) == BATCH_COUNT_MAX


def test_columns_larger_than_the_ceiling_are_refused() -> None:
    data = patched(made(b"a"), 28, "I", BATCH_BYTES_CEILING + 1)

    with pytest.raises(BadBatchError):
        Batch(patched(data, 21, "B", Codec.ZSTD))


def test_an_uncompressed_batch_has_one_size_of_columns() -> None:
    with pytest.raises(BadBatchError, match="disagree"):
        Batch(patched(made(b"a"), 28, "I", 8))


@pytest.mark.parametrize("size", [0, 4])
def test_a_lone_message_without_room_for_its_offsets_is_refused(size: int) -> None:
    data = bytearray(made(b"")[: HEADER_BYTES + size])
    struct.pack_into("<II", data, 28, size, size)

    with pytest.raises(BadBatchError):
        _ = Batch(resealed(data)).payloads


@pytest.mark.parametrize(
    ("slot", "value"), [(0, 1), (0, -1), (1, 3), (1, -1), (2, 0), (2, 2**31 - 1)]
)
def test_offsets_that_do_not_rise_from_zero_are_refused(slot: int, value: int) -> None:
    batch = Batch(patched(made(b"a", b"b", b""), HEADER_BYTES + 4 * slot, "i", value))

    with pytest.raises(BadBatchError):
        batch.verify(message_bytes_max=BIG)


def test_bytes_behind_the_last_column_are_refused() -> None:
    data = bytearray(made(b"a", b"b") + bytes(8))
    struct.pack_into("<II", data, 28, len(data) - HEADER_BYTES, len(data) - HEADER_BYTES)

    with pytest.raises(BadBatchError, match="left over"):
        Batch(resealed(data)).check()


def test_a_validity_bit_past_the_last_message_is_refused() -> None:
    data = made(b"a", b"b", keys=["k", "l"])
    validity = HEADER_BYTES + 16 + 8

    with pytest.raises(BadBatchError, match="validity"):
        Batch(patched(data, validity, "B", 0b111)).check()


def test_a_claim_of_more_attributes_than_bytes_is_refused() -> None:
    data = made(b"a", attributes=[{"k": "v"}])
    row_end = HEADER_BYTES + 16 + 4

    with pytest.raises(BadBatchError, match="past the end"):
        Batch(patched(data, row_end, "i", 2**31 - 1)).check()


@pytest.mark.parametrize("column", ["keys", "ids"])
def test_text_that_is_not_utf_8_is_refused(column: str) -> None:
    data = made(b"a", **{column: ["kkkk"]})
    place = data.index(b"kkkk")

    with pytest.raises(BadBatchError, match="UTF-8"):
        Batch(patched(data, place, "B", 0xFF)).verify(message_bytes_max=BIG)


@pytest.mark.parametrize(
    ("column", "most"), [("keys", KEY_BYTES_MAX), ("ids", MESSAGE_ID_BYTES_MAX)]
)
def test_a_text_at_its_limit_passes(column: str, most: int) -> None:
    batch = Batch(made(b"", b"", **{column: ["k" * most, "k"]}))

    assert batch.verify(message_bytes_max=BIG) == 0


@pytest.mark.parametrize(
    ("column", "most"), [("keys", KEY_BYTES_MAX), ("ids", MESSAGE_ID_BYTES_MAX)]
)
def test_a_text_one_over_its_limit_is_refused(column: str, most: int) -> None:
    batch = Batch(made(b"", b"", **{column: ["k" * (most + 1), "k"]}))

    with pytest.raises(BadBatchError, match=str(most)):
        batch.verify(message_bytes_max=BIG)


def test_as_many_and_as_large_attributes_as_allowed_pass() -> None:
    row = {f"{n}": "v" for n in range(ATTRIBUTES_COUNT_MAX - 1)}
    row["k" * ATTRIBUTE_BYTES_MAX] = "v" * ATTRIBUTE_BYTES_MAX

    assert Batch(made(b"", attributes=[row])).verify(message_bytes_max=BIG) == 0


@pytest.mark.parametrize(
    "row",
    [
        {f"{n}": "v" for n in range(ATTRIBUTES_COUNT_MAX + 1)},
        {"k": "v" * (ATTRIBUTE_BYTES_MAX + 1)},
        {"k" * (ATTRIBUTE_BYTES_MAX + 1): "v"},
    ],
    ids=["too many", "long value", "long name"],
)
def test_attributes_one_over_a_limit_are_refused(row: dict[str, str]) -> None:
    with pytest.raises(BadBatchError):
        Batch(made(b"", attributes=[row])).verify(message_bytes_max=BIG)


@pytest.mark.parametrize("payloads", [[b"x" * 10], [b"", b"x" * 10], [b"x" * 10, b"y" * 10]])
def test_verify_returns_zero_up_to_the_largest_payload_allowed(payloads: list[bytes]) -> None:
    assert Batch(made(*payloads)).verify(message_bytes_max=10) == 0


@pytest.mark.parametrize("payloads", [[b"x" * 11], [b"", b"x" * 11], [b"x" * 11, b"y" * 11]])
def test_verify_returns_the_size_of_a_payload_over_the_limit(payloads: list[bytes]) -> None:
    assert Batch(made(*payloads)).verify(message_bytes_max=10) == 11


@pytest.mark.parametrize("codec", COMPRESSED)
def test_columns_that_do_not_decompress_are_refused(codec: Codec) -> None:
    data = made(b"a" * 100, codec=codec)
    batch = Batch(resealed(data[:HEADER_BYTES] + b"\xff" * (len(data) - HEADER_BYTES)))

    with pytest.raises(BadBatchError):
        batch.check()


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize("change", [-8, 8])
def test_columns_of_another_size_than_the_header_says_are_refused(
    codec: Codec, change: int
) -> None:
    data = made(b"a" * 104, codec=codec)
    size = Batch(data).columns_bytes

    with pytest.raises(BadBatchError):
        Batch(patched(data, 28, "I", size + change)).check()


@pytest.mark.parametrize("name", ["gzip", "", "LZ5"])
def test_a_codec_we_do_not_have_is_named_in_the_error(name: str) -> None:
    with pytest.raises(CodecMissingError):
        Codec.parse(name)


@pytest.mark.parametrize("codec", Codec)
def test_a_codec_is_found_by_its_name(codec: Codec) -> None:
    assert Codec.parse(codec.name.lower()) is codec


@pytest.mark.parametrize("codec", COMPRESSED)
def test_plain_is_the_same_batch_uncompressed(codec: Codec) -> None:
    messages = Messages([b"a" * 100, b"b"], keys=["k", None], header={"producer": b"shop"})
    batch = messages.batch(codec=codec, base_offset=5)

    assert batch.plain().to_bytes() == messages.batch(base_offset=5).to_bytes()


def test_a_whole_slice_is_the_batch_itself() -> None:
    batch = Batch(made(b"a", b"b"))

    assert batch.slice(0, 2) is batch


def test_a_slice_moves_the_first_sequence_with_it() -> None:
    assert Batch(made(b"a", b"b", first_sequence=7)).slice(1, 2).first_sequence == 8


def test_a_slice_of_the_last_sequence_there_is_starts_at_zero() -> None:
    assert Batch(made(b"a", b"b", first_sequence=2**64 - 1)).slice(1, 2).first_sequence == 0


def test_a_selection_with_a_hole_keeps_its_offsets_and_those_of_its_slices() -> None:
    batch = Batch(made(b"a", b"b", b"c", b"d"))
    batch.stamp(10, 0)

    assert list(batch.select([0, 2, 3]).slice(1, 3).offsets) == [12, 13]


@pytest.mark.parametrize("step", [2, 50], ids=["many", "few"])
def test_many_and_few_messages_of_a_large_batch_can_be_selected(step: int) -> None:
    messages = Messages(
        [b"x" * (n % 7) for n in range(500)],
        keys=[None if n % 3 else str(n) for n in range(500)],
        attributes=[{"n": str(n)} if n % 2 else None for n in range(500)],
    )
    slots = list(range(1, 500, step))

    assert shown(messages.batch().select(slots)) == messages.select(slots).shown()


def test_a_detached_batch_holds_no_larger_buffer() -> None:
    data = made(b"a")
    batch = Batch(memoryview(data + bytes(10_000))[: len(data)])

    assert len(bytes(batch.detached().tail.obj)) == len(data)


def test_a_detached_batch_forgets_its_parsed_columns_and_parses_them_again() -> None:
    batch = Messages([b"a", b"bc"], keys=["k", None]).batch()
    batch.check()
    kept = batch.detached()

    assert (kept._parsed, kept.keys, kept.payloads) == (False, ["k", None], [b"a", b"bc"])


@pytest.mark.parametrize("codec", [Codec.NONE, *COMPRESSED])
def test_an_arrow_table_has_the_same_columns(codec: Codec) -> None:
    batch = Messages(
        [b"a", b"bc"], keys=["k", None], attributes=[{"x": "y"}, None], header={"producer": b"p"}
    ).batch(codec=codec, base_offset=3)
    table = batch.to_arrow().to_pydict()

    assert {
        name: table[name] for name in ("offset", "producer", "key", "payload", "attributes")
    } == {
        "offset": [3, 4],
        "producer": ["p", "p"],
        "key": ["k", None],
        "payload": [b"a", b"bc"],
        "attributes": [[("x", "y")], []],
    }
