"""Positions in streams, and the JSON in which Spark stores them. Pure.

What Spark calls an offset is JSON. It compares that as text, stores it with every micro-batch, and
passes it back after a restart:

    {"v": 1, "topics": {"/default/orders": {"0": [7, 120], "1": [8, 90]}, "/default/all": [9, 12]}}

has the number and the next offset of each partition, or of a topic without partitions.

Always true:
- the same positions make the same text, which holds nothing else;
- a number belongs to one topic: a topic that is deleted and created again gets another one;
- the message at an end is not part of the range; `admit` never returns less than it was given.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ister.base import find_partition, partition_name
from ister.base.errors import BadRequestError

OFFSET_VERSION = 1


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A position in one stream, whose number is `number`."""

    number: int
    offset: int


# By the name of the stream or partition: `/default/orders-part-0`.
StreamPositions = Mapping[str, StreamPosition]


@dataclass(frozen=True, slots=True)
class StreamEnds:
    """Where a stream begins and ends now."""

    number: int
    first_offset: int
    next_offset: int

    @property
    def first(self) -> StreamPosition:
        """The position of the oldest message there is."""
        return StreamPosition(self.number, self.first_offset)


EndsByStream = Mapping[str, StreamEnds]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Offsets `start` to `end` of one stream."""

    stream: str
    number: int
    start: int
    end: int

    @property
    def rows(self) -> int:
        """The number of offsets in the range."""
        return self.end - self.start


def base_of(stream: str) -> tuple[str, int]:
    """Return the topic's own name and the partition; 0 for a topic without partitions."""
    return find_partition(stream) or (stream, 0)


def positions_to_json(positions: StreamPositions) -> dict[str, object]:
    """Return positions as Spark's offset."""
    topics: dict[str, object] = {}
    for stream in sorted(positions, key=_order):
        pair = [positions[stream].number, positions[stream].offset]
        found = find_partition(stream)
        if found is None:
            topics[stream] = pair
        else:
            partitions = topics.setdefault(found[0], {})
            # A topic has partitions or it has none: the broker ensures that.
            assert isinstance(partitions, dict)
            partitions[str(found[1])] = pair
    return {"v": OFFSET_VERSION, "topics": topics}


def positions_from_json(offset: Mapping[str, object]) -> dict[str, StreamPosition]:
    """Return the positions in an offset of Spark, or raise `BadRequestError`."""
    if offset.get("v") != OFFSET_VERSION:
        raise BadRequestError(
            f"the checkpoint has offsets of version {offset.get('v')!r}, not {OFFSET_VERSION}: it "
            "is of another source, or of a newer ister"
        )
    topics = offset.get("topics")
    positions: dict[str, StreamPosition] = {}
    for topic, value in topics.items() if isinstance(topics, dict) else ():
        if isinstance(value, dict):
            for partition, pair in value.items():
                positions[partition_name(topic, int(partition))] = _position(pair)
        else:
            positions[topic] = _position(value)
    return positions


def _position(pair: object) -> StreamPosition:
    match pair:
        case [int() as number, int() as offset]:
            return StreamPosition(number, offset)
    raise BadRequestError(f"the checkpoint has {pair!r} where [number, offset] is due")


def _order(stream: str) -> tuple[str, int]:
    found = find_partition(stream)
    return found or (stream, -1)


# What has changed since a position was stored


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages of a stream that will not be read, and why."""

    stream: str
    reason: str


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """A query's positions in streams that it continues and in new ones, and its losses."""

    known: dict[str, StreamPosition]
    # Their first micro-batch is the next one: this one only writes down where they begin, so that
    # every range that is ever read has both its ends in the checkpoint.
    begun: dict[str, StreamPosition]
    losses: list[Loss]


def reconcile(start: StreamPositions, heads: EndsByStream) -> Reconciliation:
    """Compare the positions of a query with the streams as they are now."""
    known: dict[str, StreamPosition] = {}
    losses: list[Loss] = []
    begun = {stream: head.first for stream, head in heads.items() if stream not in start}
    for stream, position in start.items():
        head = heads.get(stream)
        if head is None:
            losses.append(Loss(stream, "the topic was deleted, or is not read any more"))
        elif head.number != position.number:
            losses.append(Loss(stream, "the topic was deleted and made again"))
            begun[stream] = head.first
        elif position.offset > head.next_offset:
            reason = f"it ends at {head.next_offset}, and was read up to {position.offset} before"
            losses.append(Loss(stream, reason))
            begun[stream] = StreamPosition(head.number, head.next_offset)
        else:
            # What is gone does not count as rows of a micro-batch: it would take many empty ones.
            known[stream] = StreamPosition(position.number, max(position.offset, head.first_offset))
            if position.offset < head.first_offset:
                losses.append(Loss(stream, retention_loss(position.offset, head.first_offset)))
    return Reconciliation(known, begun, losses)


def retention_loss(offset: int, first_offset: int) -> str:
    """Return the reason for a loss: retention has dropped messages that were not read yet."""
    return f"offsets {offset} to {first_offset - 1} are gone by retention"


def limit_heads(heads: EndsByStream, target: EndsByStream) -> dict[str, StreamEnds]:
    """Return the heads without the messages that came after `target`."""
    found: dict[str, StreamEnds] = {}
    for stream, head in heads.items():
        aim = target.get(stream)
        if aim is None:
            continue
        end = min(head.next_offset, aim.next_offset) if aim.number == head.number else 0
        found[stream] = StreamEnds(head.number, head.first_offset, max(end, head.first_offset))
    return found


# The size of a micro-batch


def admit(
    start: StreamPositions, heads: EndsByStream, *, rows_max: int | None
) -> dict[str, StreamPosition]:
    """Return where the next micro-batch ends: at the heads, or where `rows_max` rows are taken.

    Rows are divided by lag. Every stream with new messages gets one row at least. When there are
    more streams than rows they take turns, so that a busy stream never starves the others.
    """
    lags = {
        stream: heads[stream].next_offset - position.offset
        for stream, position in sorted(start.items())
        if stream in heads and heads[stream].next_offset > position.offset
    }
    if rows_max is not None and sum(lags.values()) > rows_max:
        lags = _shares(lags, rows_max, turn=sum(position.offset for position in start.values()))
    return {
        stream: StreamPosition(position.number, position.offset + lags.get(stream, 0))
        for stream, position in start.items()
    }


def _shares(lags: Mapping[str, int], rows_max: int, *, turn: int) -> dict[str, int]:
    streams = list(lags)
    if rows_max <= len(streams):
        # The turn grows by the rows that were taken, so that the next batch goes on where this
        # one ended.
        first = turn % len(streams)
        return dict.fromkeys((streams[first:] + streams[:first])[:rows_max], 1)
    room = rows_max - len(streams)
    total = sum(lags.values()) - len(streams)
    shares = {stream: 1 + (lag - 1) * room // total for stream, lag in lags.items()}
    left = rows_max - sum(shares.values())
    rounded = sorted(streams, key=lambda s: (lags[s] - 1) * room % total, reverse=True)
    for stream in rounded[:left]:
        shares[stream] += 1
    return shares


def rows_for_bytes(
    start: StreamPositions, heads: EndsByStream, *, bytes_max: int, row_bytes: Mapping[str, float]
) -> int:
    """Return how many rows are about `bytes_max` bytes; at least 1, or the query would stall.

    `row_bytes` is the average size of a message of each stream. Rows are divided by lag, so
    the average over all is weighted by it.
    """
    rows = size = 0.0
    for stream, position in start.items():
        lag = max(0, heads[stream].next_offset - position.offset) if stream in heads else 0
        rows += lag
        size += lag * row_bytes.get(stream, 0.0)
    return max(1, int(bytes_max * rows / size)) if size > 0 else max(1, bytes_max)


# Tasks


def ranges_between(start: StreamPositions, end: StreamPositions) -> list[OffsetRange]:
    """Return the ranges between two positions, by name; a stream with nothing new has none.

    A stream that is not in `start`, or with another number there, has nothing before its position
    in `end`: it was new then.
    """
    found = []
    for stream in sorted(end, key=_order):
        before, after = start.get(stream), end[stream]
        if before is not None and before.number == after.number and after.offset > before.offset:
            found.append(OffsetRange(stream, after.number, before.offset, after.offset))
    return found


def divide(ranges: Sequence[OffsetRange], *, partitions_min: int) -> list[OffsetRange]:
    """Divide ranges into at least `partitions_min` ranges of about the same size.

    Fewer only when there are fewer rows.
    """
    total = sum(one.rows for one in ranges)
    if len(ranges) >= partitions_min or not total:
        return list(ranges)
    divided: list[OffsetRange] = []
    for one in ranges:
        count = min(one.rows, max(1, -(-one.rows * partitions_min // total)))
        divided.extend(_cut(one, count))
    return divided


def _cut(one: OffsetRange, count: int) -> Iterable[OffsetRange]:
    edges = [one.start + one.rows * slot // count for slot in range(count + 1)]
    for start, end in pairwise(edges):
        yield OffsetRange(one.stream, one.number, start, end)
