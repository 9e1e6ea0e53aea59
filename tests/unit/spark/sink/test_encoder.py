"""Arrow rows become the broker's batches: the same messages, in the right streams, in order."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.base import partition_name
from ister.base.errors import BadRequestError, MessageTooLargeError
from ister.base.limits import BATCH_COUNT_MAX, MIB
from ister.codec import Batch, Codec, encode
from ister.spark.sink.encoder import EncoderTarget, RowEncoder, SinkLayout
from ister.spark.sink.partitioner import hash_texts
from ister.topics import fnv1a

TOPIC = "/default/out"
MAP = pa.map_(pa.string(), pa.string())
TYPES = {
    "payload": (pa.binary(), "binary"),
    "value": (pa.string(), "string"),
    "key": (pa.string(), "string"),
    "attributes": (MAP, "map<string,string>"),
    "topic": (pa.string(), "string"),
    "partition": (pa.int32(), "int"),
}


@dataclass(frozen=True)
class Message:
    payload: bytes
    key: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()


def rows(**columns: Sequence[object]) -> pa.RecordBatch:
    arrays = [pa.array(values, TYPES[name][0]) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, list(columns))


def encoder(
    batch: pa.RecordBatch,
    *,
    topic: str | None = TOPIC,
    partitions: int = 0,
    message_bytes_max: int = 8 * MIB,
    batch_bytes_max: int = 16 * MIB,
    codec: Codec = Codec.NONE,
) -> RowEncoder:
    layout = SinkLayout.of([(name, TYPES[name][1]) for name in batch.schema.names], topic=topic)
    target = EncoderTarget(
        layout,
        topic=topic,
        partitions_of=lambda _: partitions,
        message_bytes_max=message_bytes_max,
        batch_bytes_max=batch_bytes_max,
        codec=codec,
    )
    return RowEncoder(target)


def batches(one: RowEncoder, *parts: pa.RecordBatch) -> dict[str, list[Batch]]:
    """Encode everything; return the batches of each stream, checked as the broker does."""
    encoded = [item for part in parts for item in one.add(part)] + list(one.finish())
    found: dict[str, list[Batch]] = defaultdict(list)
    for stream, (header, body) in encoded:
        batch = Batch(header + body)
        batch.verify(message_bytes_max=8 * MIB)
        found[stream].append(batch)
    return found


def messages(found: list[Batch]) -> list[Message]:
    """Return the messages of some batches in plain Python."""
    return [
        Message(payload, key, tuple(sorted(attributes.items())))
        for batch in found
        for payload, key, attributes in zip(
            batch.payloads,
            batch.keys or [None] * len(batch),
            batch.attributes or [{}] * len(batch),
            strict=True,
        )
    ]


TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
PLAIN_ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | TEXTS,
        st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3),
    ),
    min_size=1,
    max_size=40,
)


@given(
    parts=st.lists(PLAIN_ROWS, min_size=1, max_size=4),
    partitions=st.sampled_from([0, 1, 3, 7]),
    cut=st.integers(0, 5),
    codec=st.sampled_from([Codec.NONE, Codec.ZSTD]),
)
def test_every_row_arrives_once_with_its_key_and_attributes_in_the_order_of_its_key(
    parts: list[list[tuple[bytes | None, str | None, dict[str, str] | None]]],
    partitions: int,
    cut: int,
    codec: Codec,
) -> None:
    # Slices, because Spark's own batches may be some: their offsets do not begin at 0.
    arrow = [
        rows(
            payload=[row[0] for row in part],
            key=[row[1] for row in part],
            attributes=[None if row[2] is None else list(row[2].items()) for row in part],
        ).slice(min(cut, len(part) - 1))
        for part in parts
    ]
    plain = [
        Message(payload or b"", key, tuple(sorted((attributes or {}).items())))
        for part in parts
        for payload, key, attributes in part[min(cut, len(part) - 1) :]
    ]

    found = batches(encoder(arrow[0], partitions=partitions, codec=codec), *arrow)

    arrived = {stream: messages(of_stream) for stream, of_stream in found.items()}
    assert sorted(map(repr, plain)) == sorted(repr(m) for ms in arrived.values() for m in ms)
    for stream, of_stream in arrived.items():
        keyed = [m for m in of_stream if m.key is not None]
        assert keyed == [m for m in plain if m.key is not None and _stream(m, partitions) == stream]


@given(PLAIN_ROWS, st.sampled_from([Codec.NONE, Codec.LZ4]))
def test_the_bytes_are_those_that_a_producer_makes_of_the_same_messages(
    plain: list[tuple[bytes | None, str | None, dict[str, str] | None]], codec: Codec
) -> None:
    part = rows(
        payload=[row[0] for row in plain],
        key=[row[1] for row in plain],
        attributes=[None if row[2] is None else list(row[2].items()) for row in plain],
    )

    [(_, (header, body))] = [*(one := encoder(part, codec=codec)).add(part), *one.finish()]

    keys = [row[1] for row in plain]
    attributes = [row[2] for row in plain]
    assert (header, body) == encode(
        [row[0] or b"" for row in plain],
        keys=None if set(keys) == {None} else keys,
        attributes=None if all(row is None for row in attributes) else attributes,
        producer=b"spark",
        numbered=False,
        codec=codec,
    )


def _stream(message: Message, partitions: int) -> str:
    assert message.key is not None
    if not partitions:
        return TOPIC
    return partition_name(TOPIC, fnv1a(message.key.encode()) % partitions)


@given(st.lists(st.none() | st.text(max_size=40) | st.text(min_size=300, max_size=301)))
def test_keys_have_the_hash_that_producers_use(keys: list[str | None]) -> None:
    for texts in (pa.array(keys, pa.string()), pa.array(["x", *keys], pa.string()).slice(1)):
        hashes = hash_texts(texts).tolist()

        wanted = [None if key is None else fnv1a(key.encode()) for key in keys]
        assert [h for h, k in zip(hashes, keys, strict=True) if k is not None] == [
            w for w in wanted if w is not None
        ]


def test_keys_of_one_size_have_the_hash_that_producers_use() -> None:
    keys = [f"device-{n:05d}" for n in range(2_000)]

    assert hash_texts(pa.array(keys)).tolist() == [fnv1a(key.encode()) for key in keys]


def test_rows_without_a_key_go_to_the_partitions_in_turn_a_whole_arrow_batch_at_a_time() -> None:
    parts = [rows(payload=[b"%d" % n] * 3) for n in range(5)]

    found = batches(encoder(parts[0], partitions=2), *parts)

    assert [m.payload for m in messages(found[partition_name(TOPIC, 0)])] == [
        b"0", b"0", b"0", b"2", b"2", b"2", b"4", b"4", b"4",
    ]  # fmt: skip
    assert len(messages(found[partition_name(TOPIC, 1)])) == 6


def test_a_given_partition_goes_before_the_key() -> None:
    part = rows(payload=[b"a", b"b", b"c"], key=["k", "k", "k"], partition=[2, None, 0])

    found = batches(encoder(part, partitions=3), part)

    keyed = partition_name(TOPIC, fnv1a(b"k") % 3)
    assert b"a" in [m.payload for m in messages(found[partition_name(TOPIC, 2)])]
    assert b"b" in [m.payload for m in messages(found[keyed])]
    assert b"c" in [m.payload for m in messages(found[partition_name(TOPIC, 0)])]


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_partition_that_the_topic_does_not_have_is_refused(wrong: int) -> None:
    part = rows(payload=[b"a", b"b"], partition=[2, wrong])

    with pytest.raises(BadRequestError, match=f"partition {wrong}, and its topic has 0 to 2"):
        batches(encoder(part, partitions=3), part)


def test_a_topic_column_routes_each_row() -> None:
    part = rows(value=["1", "2", "3"], topic=["/default/a", "/default/b", "/default/a"])

    found = batches(encoder(part, topic=None), part)

    assert {stream: [m.payload for m in messages(of)] for stream, of in found.items()} == {
        "/default/a": [b"1", b"3"],
        "/default/b": [b"2"],
    }


def test_option_topic_goes_before_a_topic_column() -> None:
    part = rows(value=["1"], topic=["/default/a"])

    assert list(batches(encoder(part, topic=TOPIC), part)) == [TOPIC]


def test_a_row_without_a_topic_is_refused() -> None:
    part = rows(value=["1", "2"], topic=["/default/a", None])

    with pytest.raises(BadRequestError, match="a row has no topic"):
        batches(encoder(part, topic=None), part)


def test_bytes_under_a_null_do_not_leave() -> None:
    secret = pa.array(["secret", "b"])
    hidden = pa.Array.from_buffers(
        pa.string(), 2, [pa.py_buffer(b"\x02"), *secret.buffers()[1:]], null_count=1
    )
    part = pa.RecordBatch.from_arrays([pa.array([b"1", b"2"]), hidden], ["payload", "key"])

    found = batches(encoder(part), part)[TOPIC]

    assert [m.key for m in messages(found)] == [None, "b"]
    assert b"secret" not in found[0].to_bytes()


def test_batches_are_about_a_mebibyte_and_never_over_the_limit_of_the_broker() -> None:
    part = rows(payload=[b"x" * 1000] * 10_000)

    usual = [len(batch.to_bytes()) for batch in batches(encoder(part), part)[TOPIC]]
    small = [
        len(batch.to_bytes())
        for batch in batches(encoder(part, batch_bytes_max=200_000), part)[TOPIC]
    ]

    assert min(usual) > MIB // 2
    assert max(usual) < 2 * MIB
    assert max(small) <= 200_000


def test_uneven_rows_are_cut_until_each_batch_is_below_the_limit() -> None:
    sizes = [90_000 if n % 7 == 0 else 10 for n in range(100)]
    part = rows(payload=[b"x" * size for size in sizes])

    found = batches(encoder(part, batch_bytes_max=100_000), part)[TOPIC]

    assert max(len(batch.to_bytes()) for batch in found) <= 100_000
    assert [len(m.payload) for m in messages(found)] == sizes


def test_a_batch_has_at_most_as_many_messages_as_the_format_allows() -> None:
    part = rows(payload=[b""] * (BATCH_COUNT_MAX + 1))

    found = batches(encoder(part), part)[TOPIC]

    assert [len(batch) for batch in found] == [BATCH_COUNT_MAX // 2, BATCH_COUNT_MAX // 2 + 1]


def test_small_arrow_batches_become_one_batch() -> None:
    part = rows(payload=[b"x" * 100] * 10)

    assert [len(batch) for batch in batches(encoder(part), *[part] * 100)[TOPIC]] == [1_000]


def test_what_waits_is_bounded_however_many_topics_there_are() -> None:
    names = [f"/default/t{n}" for n in range(200)]
    part = rows(payload=[bytes(500_000)] * 200, topic=names)
    one = encoder(part, topic=None)

    left = list(one.add(part))

    # 100 MB came, and at most 64 MiB of them wait.
    assert sum(len(body) for _, (_, body) in left) >= 100_000_000 - 64 * MIB
    assert len(left) + len(list(one.finish())) == 200


def test_a_row_that_waits_does_not_keep_its_arrow_batch_in_memory() -> None:
    one = encoder(rows(payload=[b"x"], topic=["/default/often"]), topic=None)
    names = ["/default/often"] * 2_000 + ["/default/rare"]
    before = pa.total_allocated_bytes()

    for _ in range(100):
        for _ in one.add(rows(payload=[bytes(1_000)] * 2_001, topic=names)):
            pass

    # 200 MB came, of which 100 rows and nearly a batch wait.
    assert pa.total_allocated_bytes() - before < 8 * MIB
    assert sum(1 for stream, _ in one.finish() if stream == "/default/rare") == 1


def test_a_row_over_the_limit_of_a_message_is_refused() -> None:
    part = rows(payload=[b"x" * 10, b"x" * 1001])

    with pytest.raises(MessageTooLargeError, match="message of 1001B exceeds the 1000B"):
        batches(encoder(part, message_bytes_max=1000), part)


def test_a_key_and_an_attribute_over_the_limit_are_refused() -> None:
    long_key = rows(payload=[b"x"], key=["k" * 4097])
    long_value = rows(payload=[b"x"], attributes=[[("a", "v" * 8193)]])

    with pytest.raises(BadRequestError, match="a key of 4097 B"):
        batches(encoder(long_key), long_key)
    with pytest.raises(BadRequestError, match="an attribute of 8193 B"):
        batches(encoder(long_value), long_value)


def test_large_arrow_types_are_taken_too() -> None:
    part = pa.RecordBatch.from_arrays(
        [pa.array(["p"], pa.large_string()), pa.array(["k"], pa.large_string())], ["value", "key"]
    )

    assert messages(batches(encoder(part), part)[TOPIC]) == [Message(b"p", "k")]


def test_an_empty_arrow_batch_makes_nothing() -> None:
    part = rows(payload=[b"x"], key=["k"]).slice(1)

    assert batches(encoder(part), part) == {}
    assert batches(encoder(part, partitions=3), part) == {}


def test_all_mistakes_in_the_columns_are_named_together_with_the_way_out() -> None:
    fields = [("payload", "int"), ("key", "binary"), ("offset", "bigint")]

    with pytest.raises(BadRequestError) as caught:
        SinkLayout.of(fields, topic=None)

    text = str(caught.value)
    assert "`payload` is int, not binary or string" in text
    assert "`key` is binary, not string" in text
    assert "`offset` is none of payload, value, key" in text
    assert "neither option `topic` nor a column `topic`" in text
    assert "to_json" in text


def test_columns_are_found_in_any_case() -> None:
    layout = SinkLayout.of([("Key", "string"), ("VALUE", "string")], topic=TOPIC)

    assert (layout.payload, layout.key) == (1, 0)


def test_hashing_does_not_depend_on_the_place_in_the_batch() -> None:
    keys = pa.array(["a", "bb", "a", "bb", "ccc"])

    hashes = hash_texts(keys)

    assert hashes[0] == hashes[2]
    assert hashes[1] == hashes[3]
    assert np.unique(hashes).size == 3
