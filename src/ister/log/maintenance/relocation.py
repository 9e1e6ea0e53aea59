"""Copying topics from one log into another, by rewrites: offsets and batches stay as they are.

What is written counts when a checkpoint of the other log names it, together with a snapshot that
knows the topics. Until then a crash leaves nothing but files that the next start removes.
"""

from collections.abc import Mapping
from itertools import groupby

from ister.log.files.segment import Form, Place, Span
from ister.log.log import Log
from ister.log.upkeep.rewriting import Rewrite


def plan_relocation(
    source: Log, target: Log, numbers: Mapping[int, int], horizon: Mapping[int, int]
) -> list[Rewrite]:
    """Return the rewrites that copy topics of `source`, to be run in this order.

    `numbers` has, for each topic, its number in `target`, which has never had a topic of that
    number; `horizon` the first live offset. Only what is in sealed files is copied. Each rewrite is
    for `Log.rewritten` of `target`.
    """
    rewrites = []
    for topic in numbers:
        floor = horizon[topic]
        spans = [span for span in source.index.spans(topic) if span.end_offset > floor]
        # What was compacted stays known to be, and a segment is compacted or not.
        for _, some in groupby(spans, key=lambda span: span.segment.form is Form.KEYED):
            rewrites.append(_rewrite(source, target, topic, list(some), numbers[topic], floor))
    return rewrites


def _rewrite(
    source: Log, target: Log, topic: int, spans: list[Span], number: int, floor: int
) -> Rewrite:
    # Behind everything there is, and before everything that will be. On a disk the number of the
    # new segment says so; in an object store, chunks have numbers of their own.
    in_store = target.home is Place.REMOTE
    return Rewrite(
        reason="moved",
        spans={topic: spans},
        horizon={topic: floor, number: floor},
        place=target.home,
        keys=None,
        backend=target.backend,
        reader=source.reader,
        options=target.options,
        numbers=target.numbers,
        owner=target.owner,
        numbers_there={topic: number},
        order=target.state().replay_from - 1 if in_store else 0,
    )
