"""Header blocks: what is remembered of them is never stale, and none costs more than its limits."""

import pytest
from hpack import Decoder, Encoder, HPACKError
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.server.http2.peer import GRPC, encode, replace

from ister.server.http2 import ConnectionFailedError, ErrorCode, Head, encode_header
from ister.server.http2.headers import (
    DECODED_BYTES_MAX,
    HEADS_MAX,
    HeadDecoder,
    parse_head,
    parse_timeout,
)

# `:method: POST`, `:scheme: http`.
POST_HTTP = b"\x83\x86"
# The newest entry of the dynamic table, as one byte.
NEWEST = b"\xbe"


def indexed(name: bytes, value: bytes) -> bytes:
    """Return a field that goes into the dynamic table."""
    return b"\x40" + bytes((len(name),)) + name + bytes((len(value),)) + value


def table_size(size_bytes: int) -> bytes:
    """Return an update of the size of the dynamic table, to 30 B or less."""
    assert size_bytes <= 30
    return bytes((0x20 | size_bytes,))


def path(value: bytes) -> bytes:
    """Return a `:path` that goes into the table."""
    return indexed(b":path", value)


# The cache


def test_repeated_block_is_not_parsed_again() -> None:
    decoder = HeadDecoder()
    decoder.decode(POST_HTTP + path(b"/a"))

    block = POST_HTTP + NEWEST
    assert decoder.decode(block) is decoder.decode(block)


def test_same_block_means_another_request_when_the_table_has_a_new_entry() -> None:
    decoder = HeadDecoder()
    decoder.decode(POST_HTTP + path(b"/a"))
    block = POST_HTTP + NEWEST
    assert decoder.decode(block).path == b"/a"

    decoder.decode(POST_HTTP + path(b"/b"))

    assert decoder.decode(block).path == b"/b"


def test_update_of_the_table_size_evicts_what_a_known_block_refers_to() -> None:
    decoder = HeadDecoder()
    decoder.decode(POST_HTTP + path(b"/a"))
    block = POST_HTTP + NEWEST
    assert decoder.decode(block).path == b"/a"

    decoder.decode(table_size(0))

    with pytest.raises(ConnectionFailedError) as raised:
        decoder.decode(block)
    assert raised.value.code == ErrorCode.COMPRESSION_ERROR


def test_known_block_is_not_found_behind_an_update_of_the_table_size() -> None:
    decoder = HeadDecoder()
    decoder.decode(POST_HTTP + path(b"/a"))
    block = POST_HTTP + NEWEST
    decoder.decode(block)

    with pytest.raises(ConnectionFailedError):
        decoder.decode(table_size(0) + block)


def test_large_entry_that_empties_the_table_makes_known_blocks_invalid() -> None:
    decoder = HeadDecoder()
    decoder.decode(POST_HTTP + path(b"/a"))
    block = POST_HTTP + NEWEST
    decoder.decode(block)

    # Larger than the table, so it is not kept, and nothing else is.
    decoder.decode(b"\x40\x01x\x7f\xe1\x1f" + bytes(4_192))

    with pytest.raises(ConnectionFailedError):
        decoder.decode(block)


def test_block_that_fails_behind_a_new_entry_leaves_no_old_meaning_behind() -> None:
    decoder = HeadDecoder()
    decoder.decode(POST_HTTP + path(b"/a"))
    block = POST_HTTP + NEWEST
    decoder.decode(block)

    # The connection ends then; but even if it did not, nothing stale would be found.
    with pytest.raises(ConnectionFailedError):
        decoder.decode(path(b"/b") + b"\x80")

    assert decoder.decode(block).path == b"/b"


def test_reference_of_several_bytes_is_not_mistaken_for_references_of_one() -> None:
    # 0xFF begins a number: with 0x80 0x00 it is 127, an entry of the dynamic table.
    decoder, plain = HeadDecoder(), Decoder()
    for number in range(70):
        block = indexed(b"n", b"%d" % number)
        decoder.decode(block)
        plain.decode(block)
    block = POST_HTTP + b"\xff\x80\x00"

    assert decoder.decode(block) == parse_head(plain.decode(block, raw=True))
    assert decoder._heads == {}


def test_only_so_many_heads_are_remembered() -> None:
    decoder = HeadDecoder()
    for count in range(1, 3 * HEADS_MAX):
        decoder.decode(b"\x83" * count)

    assert len(decoder._heads) == HEADS_MAX


def test_large_heads_are_not_remembered() -> None:
    decoder = HeadDecoder()
    decoder.decode(indexed(b"x", bytes(100)))

    decoder.decode(NEWEST * 40)

    assert decoder._heads == {}


NAMES = st.sampled_from([b":path", b"x", b"grpc-timeout", b"authorization", b"content-type"])
VALUES = st.sampled_from([b"", b"/a", b"/b", b"1S", b"v" * 90])
PARTS = st.one_of(
    st.builds(indexed, NAMES, VALUES),
    st.builds(encode_header, NAMES, VALUES),
    st.integers(0, 30).map(table_size),
    # 31 and a little: the size of a few entries.
    st.integers(0, 127).map(lambda more: b"\x3f" + bytes((more,))),
    st.integers(0x82, 0xC8).map(lambda byte: bytes((byte,))),
    st.just(b"\xff\x00"),
    st.binary(max_size=3),
)
BLOCKS = st.lists(PARTS, max_size=5).map(b"".join)


@given(st.lists(BLOCKS, min_size=1, max_size=6), st.data())
def test_remembered_heads_are_what_a_decoder_without_memory_says(
    pool: list[bytes], data: st.DataObject
) -> None:
    decoder, plain = HeadDecoder(), Decoder(max_header_list_size=DECODED_BYTES_MAX)
    for block in data.draw(st.lists(st.sampled_from(pool), max_size=25)):
        try:
            expected = parse_head(plain.decode(block, raw=True))
        except HPACKError:
            with pytest.raises(ConnectionFailedError):
                decoder.decode(block)
            # Both go on with whatever the table is now: a connection would not.
            continue
        try:
            found = decoder.decode(block)
        except ConnectionFailedError:
            # More changes of the table's size than we take, which ends a connection.
            return
        assert found == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"/a", b"/b", b"/c"]),
            st.sampled_from([b"1S", b"2S", b"30m"]),
            st.sampled_from([None, 0, 60, 120, 4_096]),
        ),
        max_size=40,
    )
)
def test_heads_of_a_real_encoder_are_right(
    requests: list[tuple[bytes, bytes, int | None]],
) -> None:
    encoder, decoder = Encoder(), HeadDecoder()
    for wanted, timeout, size_bytes in requests:
        if size_bytes is not None:
            encoder.header_table_size = size_bytes
        fields = [*replace(GRPC, path=wanted), (b"grpc-timeout", timeout)]

        head = decoder.decode(encoder.encode(fields))

        assert (head.path, head.timeout_s) == (wanted, parse_timeout(timeout))
        assert head.mistake == ""


# Http2Limits


def test_block_that_unfolds_to_too_much_is_refused() -> None:
    decoder = HeadDecoder()
    decoder.decode(b"\x40\x01x\x7f\x81\x1e" + bytes(3_968))

    with pytest.raises(ConnectionFailedError) as raised:
        decoder.decode(NEWEST * 16_000)

    assert raised.value.code == ErrorCode.ENHANCE_YOUR_CALM


def test_size_of_a_head_counts_names_values_and_overhead() -> None:
    assert parse_head([(b"ab", b"cde"), (b"f", b"")]).size_bytes == 2 + 3 + 32 + 1 + 32


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xbe",
        b"\x40",
        b"\x40\x05ab",
        b"\x40\x01a",
        b"\xff" + b"\xff" * 20,
        b"\x00\x01a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        # A Huffman code that ends in the middle, or in what is not padding.
        b"\x00\x01a\x81\x00",
        b"\x3f\xe2\x1f",
        b"\x82\x20",
    ],
)
def test_broken_block_ends_the_connection(block: bytes) -> None:
    with pytest.raises(ConnectionFailedError) as raised:
        HeadDecoder().decode(block)

    assert raised.value.code == ErrorCode.COMPRESSION_ERROR


def test_error_of_a_broken_block_tells_nothing_of_its_headers() -> None:
    block = encode_header(b"authorization", b"Bearer secret") + b"\x00\x01a\xff" + b"\xff" * 20

    for cut in range(len(block) - 22, len(block)):
        with pytest.raises(ConnectionFailedError) as raised:
            HeadDecoder().decode(block[:cut])

        assert "secret" not in raised.value.reason
        assert "\\x" not in raised.value.reason


# Fields


def test_head_has_what_grpc_needs() -> None:
    fields = [
        *GRPC,
        (b"grpc-encoding", b"gzip"),
        (b"authorization", b"Bearer t"),
        (b"grpc-timeout", b"1500m"),
        (b"grpc-encoding", b"second"),
    ]

    head = parse_head(fields)

    assert head == Head(
        path=b"/danube.Discovery/TopicLookup",
        method=b"POST",
        content_type=b"application/grpc",
        encoding=b"gzip",
        authorization="Bearer t",
        timeout_s=1.5,
        size_bytes=sum(len(name) + len(value) + 32 for name, value in fields),
    )


def test_fields_without_pseudo_headers_are_trailers() -> None:
    assert parse_head([(b"x-sum", b"1")]).is_trailers
    assert not parse_head(GRPC).is_trailers
    assert not parse_head([(b"connection", b"close")]).is_trailers


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"1H", 3_600.0),
        (b"2M", 120.0),
        (b"3S", 3.0),
        (b"4m", 0.004),
        (b"5u", 0.000_005),
        (b"6n", 0.000_000_006),
        (b"0S", 0.0),
        (b"99999999H", 99_999_999 * 3_600.0),
        (b"00000001S", 1.0),
    ],
)
def test_timeouts_of_all_units_are_understood(value: bytes, expected: float) -> None:
    assert parse_timeout(value) == expected


@pytest.mark.parametrize(
    "value",
    [*b" S 1 1s 1h -1S +1S 1.5S 100000000S 1_0S 0x1S \xb2S 1\0S".split(b" "), b" 1S", b"1S "],
)
def test_other_timeouts_are_refused(value: bytes) -> None:
    head = parse_head([*GRPC, (b"grpc-timeout", value)])

    assert parse_timeout(value) is None
    assert head.bad_timeout
    assert head.timeout_s is None


@given(st.binary(min_size=1, max_size=300), st.binary(max_size=20_000))
def test_encoded_header_is_read_by_others_and_changes_no_table(name: bytes, value: bytes) -> None:
    decoder = Decoder()

    assert list(decoder.decode(encode_header(name, value), raw=True)) == [(name, value)]
    assert not decoder.header_table.dynamic_entries


def test_blocks_of_this_file_are_what_they_say() -> None:
    assert dict(Decoder().decode(encode(GRPC), raw=True)) == dict(GRPC)
