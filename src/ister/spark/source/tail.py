"""Reads messages from the broker: the unsealed end of a stream, and what no segment has."""

from collections.abc import Callable, Iterator, Sequence

from ister.base.errors import BadRequestError, ClosedError, TopicNotFoundError
from ister.client import SegmentRow
from ister.client.sync import Client
from ister.spark.source.segments import SegmentAccess, read_segments
from ister.spark.source.slices import BatchSlice, MissingRange


def read_tail(
    client: Client, topic: str, start: int, end: int, *, number: int | None = None
) -> Iterator[BatchSlice]:
    """Yield the messages `start` to `end` of one stream or partition from the broker.

    `end` is at most the next offset of the stream. Raises `OffsetGoneError` when retention has
    dropped some of them, and `TopicNotFoundError` when the topic is gone, or is not the one of that
    `number`: it was deleted and made again.
    """
    if start >= end:
        return
    try:
        with client.reader(topic, start=start, end=end) as reader:
            # Once it is open, it stays with the topic that it found.
            if number not in (None, reader.numbers[topic]):
                raise TopicNotFoundError(topic)
            for batch in reader:
                yield BatchSlice(batch, 0, batch.count)
    except (BadRequestError, ClosedError):
        # Deleted meanwhile, or made again and not as long.
        _check_same(client, topic, number)
        raise


def _check_same(client: Client, topic: str, number: int | None) -> None:
    """Raise `TopicNotFoundError` when a topic is not there, or another than the one of `number`."""
    [head] = client.heads([topic])
    if number not in (None, head.number):
        raise TopicNotFoundError(topic)


def read_range(
    connect: Callable[[], Client],
    topic: str,
    start: int,
    end: int,
    *,
    number: int,
    stores: Sequence[str] = (),
    rows: Sequence[SegmentRow] = (),
    access: SegmentAccess | None = None,
) -> Iterator[BatchSlice]:
    """Yield the messages `start` to `end`: from sealed segments where possible, else the broker.

    `number`, `stores` and `rows` are as `client.locate` returned them. `connect` is called when
    the broker is needed; neighbours that are missing are read from it together. Raises as
    `read_tail` does.
    """
    # What is missing so far and was not read yet: from here to there.
    first = last = start
    for found in read_segments(number, stores, rows, start, end, access=access or SegmentAccess()):
        if isinstance(found, MissingRange):
            # Nothing lies between two that follow each other.
            if first == last:
                first = found.start
            last = found.end
            continue
        if first < last:
            yield from read_tail(connect(), topic, first, last, number=number)
            first = last
        yield found
    if first < last:
        yield from read_tail(connect(), topic, first, last, number=number)
