"""Which stream each row of an Arrow batch goes to, for all rows at once. Pure.

The rule is that of producers (`ister.topics`): a key goes to FNV-1a(key) modulo the number of
partitions. Rows without a key take turns too, but a whole Arrow batch at a time: cutting it into
single rows would make more batches for the broker, and gain nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ister.base import partition_name
from ister.base.errors import BadRequestError

FNV_BASIS = np.uint64(0xCBF29CE484222325)
FNV_PRIME = np.uint64(0x100000001B3)

Hashes = npt.NDArray[np.uint64]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowRun:
    """Neighbouring rows, `start` to `end`, that go to one stream."""

    stream: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Where rows go. `order` puts the rows of each run side by side; `None`: they are already.

    Rows of one run stay in the order they came in.
    """

    order: Int64Array | None
    runs: Sequence[RowRun]


def partition_rows(
    count: int,
    *,
    topics: "str | pa.StringArray",
    keys: "pa.StringArray | None",
    partitions: "pa.Array | None",
    partitions_of: Callable[[str], int],
    turn: int,
) -> Partitioning:
    """Return where `count` rows go.

    `topics` is one topic for all rows, or one for each. `partitions_of` knows how many partitions
    a topic has, 0 for a topic that is a stream itself. A partition that is given goes before the
    key. `turn` counts the Arrow batches. Raises `BadRequestError` for rows without a stream.
    """
    names, topic_slots = _topics(topics)
    counts = np.array([partitions_of(name) for name in names], np.int64)
    # Names of all streams in a row: those of topic n begin at `firsts[n]`.
    widths = np.maximum(counts, 1)
    firsts = np.concatenate([[0], np.cumsum(widths)[:-1]])
    if len(names) == 1 and widths[0] == 1 and partitions is None:
        return Partitioning(None, [RowRun(_stream(names[0], int(counts[0]), 0), 0, count)])
    width_of = widths[topic_slots]
    slots = np.broadcast_to(turn % width_of, count)
    if keys is not None and len(keys) and widths.max() > 1:
        hashed = (hash_texts(keys) % width_of.astype(np.uint64)).astype(np.int64)
        slots = np.where(_valid(keys), hashed, slots) if keys.null_count else hashed
    if partitions is not None:
        slots = _use_given(partitions, slots, np.broadcast_to(width_of, count))
    targets = np.broadcast_to(firsts[topic_slots] + slots, count)
    streams = [
        _stream(name, int(counts[slot]), partition)
        for slot, name in enumerate(names)
        for partition in range(int(widths[slot]))
    ]
    return _sort_by_stream(targets, streams)


def hash_texts(texts: "pa.StringArray") -> Hashes:
    """Return the FNV-1a hash of every value; of a missing one, some number."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)
    offsets = offsets[texts.offset : texts.offset + len(texts) + 1]
    data = texts.buffers()[2]
    blob = (
        np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    )
    lengths = np.diff(offsets)
    hashes = np.full(len(texts), FNV_BASIS)
    longest = int(lengths.max(initial=0))
    if longest and int(lengths.min()) == longest:
        # One size, as of numbered devices: the values are the rows of a matrix.
        start = int(offsets[0])
        table = blob[start : start + longest * len(texts)].reshape(len(texts), longest)
        for column in range(longest):
            np.bitwise_xor(hashes, table[:, column], out=hashes)
            np.multiply(hashes, FNV_PRIME, out=hashes)
        return hashes
    # The longest first: those that reach a place are then the first so many.
    order = np.argsort(-lengths, kind="stable")
    starts = offsets[:-1][order].astype(np.int64)
    reach = len(texts) - np.searchsorted(np.sort(lengths), np.arange(longest), side="right")
    for column, count in enumerate(reach.tolist()):
        part = hashes[:count]
        np.bitwise_xor(part, blob[starts[:count] + column], out=part)
        np.multiply(part, FNV_PRIME, out=part)
    unsorted = np.empty_like(hashes)
    unsorted[order] = hashes
    return unsorted


def _topics(topics: "str | pa.StringArray") -> "tuple[list[str], Int64Array]":
    """Return the names of the topics, and for all rows or each one the slot of its own."""
    if isinstance(topics, str):
        return [topics], np.zeros(1, np.int64)
    if topics.null_count:
        raise BadRequestError(
            "a row has no topic: fill the column `topic`, or name one with option `topic`"
        )
    coded = topics.dictionary_encode()
    slots = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return coded.dictionary.to_pylist(), slots


def _stream(topic: str, partitions: int, partition: int) -> str:
    return partition_name(topic, partition) if partitions else topic


def _valid(values: "pa.Array") -> "npt.NDArray[np.bool_]":
    valid: npt.NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _use_given(partitions: "pa.Array", slots: Int64Array, widths: Int64Array) -> Int64Array:
    """Return `slots` with the partitions that are given instead, which must exist."""
    wanted = partitions.fill_null(-1) if partitions.null_count else partitions
    given: Int64Array = wanted.to_numpy(zero_copy_only=False).astype(np.int64)
    valid = _valid(partitions)
    wrong = valid & ((given < 0) | (given >= widths))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise BadRequestError(
            f"a row is for partition {given[row]}, and its topic has 0 to {widths[row] - 1}: "
            "correct the column `partition`, or leave it out"
        )
    return np.where(valid, given, slots)


def _sort_by_stream(targets: Int64Array, streams: Sequence[str]) -> Partitioning:
    """Put rows for one stream side by side."""
    if not len(targets):
        return Partitioning(None, [])
    first = int(targets[0])
    if (targets == first).all():
        return Partitioning(None, [RowRun(streams[first], 0, len(targets))])
    # Small numbers are sorted by radix, five times quicker.
    small = targets.astype(np.uint16) if len(streams) <= 65_536 else targets
    order = np.argsort(small, kind="stable")
    placed = targets[order]
    edges = np.concatenate([[0], np.flatnonzero(np.diff(placed)) + 1, [len(placed)]]).tolist()
    runs = [RowRun(streams[int(placed[start])], start, end) for start, end in pairwise(edges)]
    return Partitioning(order, runs)
