"""Which segment holds what of each topic: the map that reads start from.

Belongs to the event loop. What a reading thread gets of it never changes: lists of spans are
replaced, not changed, except that new spans come at their end.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass

from ister.log.files.extents import (
    END_OFFSET,
    FIRST_OFFSET,
    GAP_BYTES_MAX,
    OWN_BYTES,
    STRIDE,
    Extent,
    Extents,
    each_extent,
    find_offset,
    window,
)
from ister.log.files.segment import Form, Segment, Span

# Windows of one chunk that one read takes together: 16 MiB of extents.
JOINED_SPANS_MAX = 64


@dataclass(slots=True)
class TopicSpans:
    """What lies in closed segments of one topic, by rising offsets."""

    spans: list[Span]
    ends: list[int]
    own_bytes: int
    # Of the last span that may have gaps in it, before it and behind it; -1: of none.
    keyed_slot: int = -1

    def append(self, span: Span) -> None:
        """Add a span behind all others."""
        self.spans.append(span)
        self.ends.append(span.end_offset)
        self.own_bytes += span.own_bytes


class Index:
    """Every closed segment, and the extents of the open one."""

    def __init__(self, extent_bytes: int) -> None:
        self._extent_bytes = extent_bytes
        self._topics: dict[int, TopicSpans] = {}
        # Closed segments with the number of topics in each.
        self.segments: dict[Segment, int] = {}
        # Of the open file: what is on the disk, and what is not yet.
        self.open_segment: Segment | None = None
        self._open = Extents(extent_bytes)
        self._unsynced = Extents(extent_bytes)

    def load(self, segments: list[Segment], topics: dict[int, list[Span]]) -> None:
        """Take over what a manifest says."""
        counts = Counter(
            segment for spans in topics.values() for segment in {span.segment for span in spans}
        )
        self.segments = {segment: counts[segment] for segment in segments}
        for topic, spans in topics.items():
            # A list of its own: later spans are added to it, and the manifest stays as it is.
            self.replace(topic, list(spans))

    def add(self, segment: Segment, extents: Extents, *, synced: bool) -> None:
        """Add what was committed to the open file; `synced` includes what came before."""
        self.open_segment = segment
        if not synced:
            self._unsynced.merge(extents)
            return
        if self._unsynced.topics:
            self._open.merge(self._unsynced)
            self._unsynced = Extents(self._extent_bytes)
        self._open.merge(extents)

    def open_extents(self) -> Extents:
        """Return the extents of the open file, all of them."""
        if not self._unsynced.topics:
            return self._open
        both = Extents(self._extent_bytes)
        both.merge(self._open)
        both.merge(self._unsynced)
        return both

    def close_segment(self, segment: Segment, extents: Extents) -> None:
        """Add a segment that is not written to any more.

        With a footer, one span for each topic stands for all its extents there.
        """
        self.segments[segment] = len(extents.topics)
        for topic, rows in extents.topics.items():
            spans = self._topics.get(topic)
            if spans is None:
                spans = self._topics[topic] = TopicSpans([], [], 0)
            if segment.has_footer:
                spans.append(span_of(segment, extents.summary(topic)))
            else:
                for extent in each_extent(rows):
                    spans.append(span_of(segment, extent, whole=False))

    def close_open(self, segment: Segment) -> None:
        """Turn the open file into the closed `segment`: it is sealed."""
        self._close_open(segment, self.open_extents())

    def close_failed(self, segment: Segment) -> None:
        """Turn the open file into the closed `segment`: it has failed behind what was synced."""
        self._close_open(segment, self._open)

    def _close_open(self, segment: Segment, extents: Extents) -> None:
        self._open = Extents(self._extent_bytes)
        self._unsynced = Extents(self._extent_bytes)
        self.open_segment = None
        self.close_segment(segment, extents)

    def replace(self, topic: int, spans: list[Span]) -> None:
        """Have exactly `spans` for `topic`."""
        if spans:
            keyed = (n for n, span in enumerate(spans) if span.segment.form is Form.KEYED)
            self._topics[topic] = TopicSpans(
                spans,
                [span.end_offset for span in spans],
                sum(span.own_bytes for span in spans),
                max(keyed, default=-1),
            )
        else:
            self._topics.pop(topic, None)

    def find_span(self, topic: int, offset: int) -> tuple[list[Span], int] | None:
        """Return the spans of a topic and the place of the first that ends behind `offset`."""
        found = self._topics.get(topic)
        if found is None:
            return None
        slot = bisect_right(found.ends, offset)
        return (found.spans, slot) if slot < len(found.spans) else None

    def find_open(self, topic: int, offset: int, bytes_max: int) -> Extent | None:
        """Return the window of the open file that begins with `offset` or what follows it."""
        for extents in (self._open, self._unsynced):
            rows = extents.topics.get(topic)
            if rows is not None and rows[END_OFFSET - STRIDE] > offset:
                return window(rows, find_offset(rows, offset), bytes_max)
        return None

    def gaps_end(self, topic: int) -> int | None:
        """Return up to where messages of `topic` may be missing: compaction or salvage left gaps.

        `None`: also behind the last one that is stored.
        """
        found = self._topics.get(topic)
        if found is None or found.keyed_slot < 0:
            return 0
        if found.keyed_slot + 1 < len(found.spans):
            return found.spans[found.keyed_slot + 1].first_offset
        return self._open_first(topic)

    def find_from(self, topic: int, offset: int) -> int | None:
        """Return the first offset from `offset` on that is stored, as far as spans tell."""
        found = self.find_span(topic, offset)
        if found is not None:
            return max(offset, found[0][found[1]].first_offset)
        first = self._open_first(topic)
        return None if first is None else max(offset, first)

    def _open_first(self, topic: int) -> int | None:
        for extents in (self._open, self._unsynced):
            if topic in extents.topics:
                return extents.topics[topic][FIRST_OFFSET]
        return None

    def open_rows(self, topic: int) -> "array[int]":
        """Return a copy of the extents of `topic` in the open file."""
        found = array("q")
        for extents in (self._open, self._unsynced):
            found.extend(extents.topics.get(topic, ()))
        return found

    def first_offset(self, topic: int) -> int | None:
        """Return the first offset that is stored, if any is."""
        if topic in self._topics:
            return self._topics[topic].spans[0].first_offset
        return self._open_first(topic)

    def next_offset(self, topic: int) -> int | None:
        """Return the offset behind the last one that is stored, if any is."""
        for extents in (self._unsynced, self._open):
            if topic in extents.topics:
                return extents.topics[topic][END_OFFSET - STRIDE]
        return self._topics[topic].ends[-1] if topic in self._topics else None

    def own_bytes(self, topic: int) -> int:
        """Return how many bytes the entries of `topic` take, before anything is rewritten."""
        total = self._topics[topic].own_bytes if topic in self._topics else 0
        for extents in (self._open, self._unsynced):
            if topic in extents.topics:
                total += sum(extents.topics[topic][OWN_BYTES::STRIDE])
        return total

    def topics(self) -> dict[int, list[Span]]:
        """Return the spans of every topic, as they are now."""
        return {topic: list(found.spans) for topic, found in self._topics.items()}

    def spans(self, topic: int) -> list[Span]:
        """Return the spans of `topic`; only for looking at."""
        found = self._topics.get(topic)
        return found.spans if found is not None else []


def window_of_spans(spans: list[Span], slot: int, bytes_max: int) -> tuple[Segment, Extent | None]:
    """Return where to read from span `slot` on; without a window when a footer knows it."""
    first = last = spans[slot]
    if not first.end:
        return first.segment, None
    own_bytes = first.own_bytes
    for span in spans[slot + 1 : slot + 1 + JOINED_SPANS_MAX]:
        near = span.segment is first.segment and span.position - last.end <= GAP_BYTES_MAX
        if not near or span.end - first.position > bytes_max:
            break
        own_bytes += span.own_bytes
        last = span
    return first.segment, Extent(
        first.position,
        last.end,
        first.first_offset,
        last.end_offset,
        first.first_ms,
        last.last_ms,
        own_bytes,
    )


def span_of(segment: Segment, extent: Extent, *, whole: bool = True) -> Span:
    """Return the span of an extent: of all there is in the segment, or with its own window."""
    return Span(
        segment,
        extent.first_offset,
        extent.end_offset,
        extent.first_ms,
        extent.last_ms,
        extent.own_bytes,
        0 if whole else extent.position,
        0 if whole else extent.end,
    )
