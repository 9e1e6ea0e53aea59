"""When rewriting pays: a pure decision over what the index knows, one rewrite at a time.

Reasons, in the order they are looked at:
- `chunks`: many objects of one group each, which a reader would fetch one by one;
- `keys`: a topic that keeps the newest message of each key has as much unsorted as sorted;
- `expired`: most of a segment is gone, and its file is not;
- `interleaved`: a segment has many topics mixed, so that a reader of one fetches all;
- `small`: neighbours that would fit into one;
- `upload`: old segments that are to lie in the remote tier.

On a full disk only what frees some of it, however small: `upload`, `expired`, `keys`.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ister.base.limits import KIB, MIB
from ister.log.files.segment import Form, Place, Segment, Span
from ister.log.log import Log
from ister.log.upkeep.checkpoint import State
from ister.log.upkeep.rewriting import OBJECT_BYTES, KeyPolicy, Rewrite, live_bytes

# The header of a file and what else is not of a topic, at most.
HEADERS_BYTES = 1 * KIB
# What is written at once on a full disk, about.
URGENT_BYTES = 1 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """What is worth a rewrite."""

    # Topics that keep the newest message of each key.
    keyed: Mapping[int, KeyPolicy] = field(default_factory=dict)
    # A segment is rewritten when less than this share of it is live.
    live_share_min: float = 0.5
    # Of what a reader fetches, the share that is its own topic; below it a segment is sorted.
    # Four topics side by side are at the edge.
    density_min: float = 0.25
    # A keyed topic is compacted when this share of it was not compacted yet.
    dirty_share_min: float = 0.5
    # So many neighbours, each below a quarter of a segment, become one.
    small_count_min: int = 8
    chunk_count_min: int = 64
    # A rewrite reads no more than this, beside a keyed topic, which is read as a whole.
    read_bytes_max: int = 256 * MIB
    # Segments whose newest message is older go to the remote tier; 0: none.
    upload_before_ms: int = 0
    # Whether that comes before all other reasons: in turn, or a log that is written to all the
    # time would never come to it, and fill its disk.
    upload_first: bool = False
    # The disk is full: only what frees some of it is worth a rewrite, and however little.
    urgent: bool = False


def plan_compaction(
    log: Log, state: State, horizon: Mapping[int, int], policy: CompactionPolicy
) -> Rewrite | None:
    """Return the rewrite that pays most, if any does. For any thread.

    `state` is that of `log.state()`, taken in the event loop; `horizon` has the first live offset
    of every topic. There is nothing to decide before the checkpoint that puts the last rewrite
    into force.
    """
    if state.rewritten:
        return None
    return _Decision(log, state, horizon, policy).decide()


def plan_reencryption(
    log: Log, state: State, horizon: Mapping[int, int], retired: AbstractSet[Segment]
) -> Rewrite | None:
    """Return the rewrite of the oldest of some segments; `None` when nothing of them is live.

    What is written is under the newest key. Arguments are those of `plan_compaction`.
    """
    return _Decision(log, state, horizon, CompactionPolicy()).reencrypt(retired)


@dataclass(slots=True)
class _Facts:
    """What is live in one segment."""

    # Of each topic, which of its spans lie here: first and end.
    slots: dict[int, tuple[int, int]] = field(default_factory=dict)
    live_bytes: int = 0
    # Sum of the squares of the bytes of each topic.
    squares: int = 0
    last_ms: int = 0


class _Decision:
    def __init__(
        self, log: Log, state: State, horizon: Mapping[int, int], policy: CompactionPolicy
    ) -> None:
        self._log = log
        self._unfit = state.unfit
        self._settled = state.settled
        self._horizon = horizon
        self._policy = policy
        self._spans = {
            topic: [s for s in spans if s.end_offset > horizon[topic]]
            for topic, spans in state.topics.items()
            if topic in horizon
        }
        self._facts = self._gather()

    def decide(self) -> Rewrite | None:
        """Return the first rewrite that pays."""
        ranked = sorted((s for s in self._facts if s not in self._unfit), key=lambda s: s.rank)
        if self._policy.urgent:
            return self._upload(ranked) or self._urgent(ranked) or self._keys()
        return (
            (self._upload(ranked) if self._policy.upload_first else None)
            or self._chunks(ranked)
            or self._keys()
            or self._expired(ranked)
            or self._interleaved(ranked)
            or self._small(ranked)
            or self._upload(ranked)
        )

    def reencrypt(self, retired: AbstractSet[Segment]) -> Rewrite | None:
        """Return the rewrite of the oldest of these segments; of chunks, of as many as may be."""
        ranked = sorted((s for s in self._facts if s in retired), key=lambda s: s.rank)
        chunks = [s for s in ranked if s.place is Place.CHUNK]
        if chunks:
            return self._whole("reencrypted", self._up_to_limit(chunks))
        return self._whole("reencrypted", ranked[:1]) if ranked else None

    def _gather(self) -> dict[Segment, _Facts]:
        facts: dict[Segment, _Facts] = {}
        for topic, spans in self._spans.items():
            floor = self._horizon[topic]
            own: dict[Segment, int] = {}
            for slot, span in enumerate(spans):
                found = facts.setdefault(span.segment, _Facts())
                first, _ = found.slots.get(topic, (slot, slot))
                found.slots[topic] = (first, slot + 1)
                found.last_ms = max(found.last_ms, span.last_ms)
                live = live_bytes(span, floor)
                found.live_bytes += live
                own[span.segment] = own.get(span.segment, 0) + live
            for segment, live in own.items():
                facts[segment].squares += live * live
        return facts

    def _chunks(self, ranked: list[Segment]) -> Rewrite | None:
        chunks = [s for s in ranked if s.place is Place.CHUNK]
        if len(chunks) < self._policy.chunk_count_min:
            return None
        return self._whole("chunks", self._up_to_limit(chunks))

    def _keys(self) -> Rewrite | None:
        for topic, policy in self._policy.keyed.items():
            spans = [
                span
                for span in self._spans.get(topic, ())
                if span.end_offset <= policy.safe_offset
                and (not policy.before_ms or span.last_ms < policy.before_ms)
            ]
            total = sum(span.own_bytes for span in spans)
            dirty = sum(s.own_bytes for s in spans if s.segment.form is not Form.KEYED)
            if any(span.segment in self._unfit for span in spans):
                continue
            if dirty and dirty >= self._policy.dirty_share_min * total:
                return self._rewrite("keys", {topic: spans}, self._place(spans), keys=policy)
        return None

    def _expired(self, ranked: list[Segment]) -> Rewrite | None:
        for segment in ranked:
            # A batch stays whole as long as one of its messages is live, so a rewrite may keep
            # more than the share of what is live. Then it pays again only when half of that share
            # has expired, or it would go on for ever with the same bytes.
            before = self._settled.get(segment, segment.size_bytes)
            expired = self._facts[segment].live_bytes < self._policy.live_share_min * before
            # A small one is not worth it before it has neighbours.
            if expired and not self._is_small(segment):
                return self._whole("expired", [segment])
        return None

    def _urgent(self, ranked: list[Segment]) -> Rewrite | None:
        """Return what frees room for the least of it: some neighbours with little left in them."""
        local = [s for s in ranked if s.place is Place.LOCAL]
        live = {s: self._facts[s].live_bytes for s in local}
        # What is not live of the entries. Headers and footers would only be written again, and so
        # would the rest of what a rewrite has kept (see `_expired`).
        before = {s: self._settled.get(s, s.end - HEADERS_BYTES) for s in local}
        expired = [s for s in local if before[s] - live[s] > max(live[s], HEADERS_BYTES)]
        first = min(expired, key=lambda s: live[s], default=None)
        if first is None:
            return None
        run: list[Segment] = []
        for segment in local[local.index(first) :]:
            if segment not in expired or sum(live[s] for s in run) > URGENT_BYTES:
                break
            if (segment.form is Form.KEYED) is not (first.form is Form.KEYED):
                break
            run.append(segment)
        return self._whole("expired", self._up_to_limit(run))

    def _interleaved(self, ranked: list[Segment]) -> Rewrite | None:
        for segment in ranked:
            facts = self._facts[segment]
            if segment.form is not Form.JOURNAL or self._is_small(segment):
                continue
            density = facts.squares / (facts.live_bytes * segment.size_bytes)
            if density < self._policy.density_min and len(facts.slots) > 1:
                return self._whole("interleaved", [segment])
        return None

    def _small(self, ranked: list[Segment]) -> Rewrite | None:
        small = [s for s in ranked if self._is_small(s) and s.form is not Form.KEYED]
        for start in range(len(small)):
            place = small[start].place
            run = self._up_to_limit([s for s in small[start:] if s.place is place])
            if len(run) >= self._policy.small_count_min:
                return self._whole("small", run)
        return None

    def _upload(self, ranked: list[Segment]) -> Rewrite | None:
        if self._log.options.remote is None:
            return None
        before_ms = self._policy.upload_before_ms
        for segment in ranked:
            if segment.place is Place.LOCAL and self._facts[segment].last_ms < before_ms:
                return self._whole("upload", [segment], Place.REMOTE)
        return None

    def _is_small(self, segment: Segment) -> bool:
        size_bytes = self._log.options.segment_bytes
        if segment.place is not Place.LOCAL:
            size_bytes = min(size_bytes, OBJECT_BYTES)
        return segment.size_bytes < size_bytes // 4

    def _place(self, spans: Iterable[Span]) -> Place:
        """Return where to write: what is in the remote tier stays there."""
        if any(span.segment.place is Place.REMOTE for span in spans):
            return Place.REMOTE
        return self._log.home

    def _up_to_limit(self, segments: list[Segment]) -> list[Segment]:
        """Return the first segments that may be read in one go and are neighbours.

        Neighbours means: no other segment has messages of a topic between theirs. So offsets rise
        in what is made of them, and nothing has to come in between.
        """
        taken: list[Segment] = []
        ends: dict[int, int] = {}
        size = 0
        for segment in segments:
            slots = self._facts[segment].slots
            size += segment.size_bytes
            near = all(ends.get(topic, first) == first for topic, (first, _) in slots.items())
            if taken and (size > self._policy.read_bytes_max or not near):
                break
            taken.append(segment)
            ends.update((topic, end) for topic, (_, end) in slots.items())
        return taken

    def _whole(self, reason: str, segments: list[Segment], place: Place | None = None) -> Rewrite:
        chosen = set(segments)
        # Each topic once: going through its spans for each of 4,000 chunks took several seconds.
        topics = dict.fromkeys(t for segment in segments for t in self._facts[segment].slots)
        spans = {
            topic: [span for span in self._spans[topic] if span.segment in chosen]
            for topic in topics
        }
        if place is None:
            place = self._place(span for rows in spans.values() for span in rows)
        return self._rewrite(reason, spans, place)

    def _rewrite(
        self,
        reason: str,
        spans: dict[int, list[Span]],
        place: Place,
        *,
        keys: KeyPolicy | None = None,
    ) -> Rewrite:
        log = self._log
        return Rewrite(
            reason=reason,
            spans=spans,
            horizon={topic: self._horizon[topic] for topic in spans},
            place=place,
            keys=keys,
            backend=log.backend,
            reader=log.reader,
            options=log.options,
            numbers=log.numbers,
            owner=log.owner,
        )
