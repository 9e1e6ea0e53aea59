"""A checkpoint: the broker's state and the list of live segments, so that a restart reads little.

The order is what makes it safe: the snapshot is durable before the manifest that names it, and the
manifest before anything it does not name is removed. Stopping anywhere leaves the old truth or
the new one, and files that nobody names: those on the disk are removed by the next start, those in
the remote tier by the next checkpoint (see `uploads`).
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ister.base.errors import ObjectExistsError, StorageTakenError
from ister.log.backend import Backend
from ister.log.entry import Kind
from ister.log.manifest import Manifest, encode_document, encode_manifest
from ister.log.options import LogOptions
from ister.log.ports import Store
from ister.log.scan import owner_of
from ister.log.segment import (
    MANIFESTS,
    SNAPSHOTS,
    Place,
    Segment,
    Span,
    manifest_name,
    number_of,
    segment_name,
    snapshot_name,
)
from ister.log.uploads import Uploads

# Kept for looking back after an accident; only the last one is ever used.
KEPT_COUNT = 3
# Own attempts whose outcome was unknown, passed over one by one.
ATTEMPTS_MAX = 16


@dataclass(frozen=True, slots=True)
class Rewritten:
    """Segments that take the place of others, once a checkpoint says so."""

    # What is replaced: everything of a topic in a segment.
    replaced: frozenset[tuple[Segment, int]]
    # By topic, by rising offsets.
    spans: dict[int, list[Span]]
    outputs: frozenset[Segment]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A log as it is at one moment: what a manifest is made of."""

    topics: dict[int, list[Span]]
    segments: list[Segment]
    rewritten: tuple[Rewritten, ...]
    replay_from: int
    replay_exists: bool
    entry_end: int
    next_segment: int
    # Segments closed since the checkpoint before.
    closed_count: int
    # Segments that could not be rewritten.
    unfit: frozenset[Segment]
    # Whether some of it is not on the disk yet.
    unsynced: bool


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """Made by `Log.plan_checkpoint`; `run`, `Log.checkpointed`, then `sweep`."""

    backend: Backend
    remote: Store | None
    options: LogOptions
    owner: str
    number: int
    snapshot: bytes
    # First live offset of each topic; a topic that is not there is deleted.
    horizon: dict[int, int]
    state: State
    # Filled in by `run`.
    live: dict[int, list[Span]] = field(default_factory=dict)
    topic_counts: dict[Segment, int] = field(default_factory=dict)
    dead: list[Segment] = field(default_factory=list)

    def run(self) -> None:
        """Make snapshot and manifest durable. For a worker thread.

        Raises `StorageTakenError` when somebody else has made the next manifest, and `OSError`
        with the former manifest still in force.
        """
        self.live = live_spans(self.state, self.horizon)
        counts = Counter(
            segment for spans in self.live.values() for segment in {span.segment for span in spans}
        )
        self.topic_counts = dict(counts)
        segments = sorted(counts, key=lambda segment: (segment.place, segment.number))
        every = {*self.state.segments}
        for rewritten in self.state.rewritten:
            every |= rewritten.outputs
        self.dead = sorted(every.difference(segments), key=lambda segment: segment.number)
        if self.state.replay_exists and self.state.unsynced:
            # What was committed without a sync is in the snapshot. A snapshot that knows more than
            # the journal would give offsets twice after a power cut.
            self.backend.sync(segment_name(self.state.replay_from))
        uploads = self._uploads()
        for segment in self.dead:
            if uploads is not None and segment.place is Place.REMOTE:
                uploads.end(segment.number)
        self._put_manifest(segments, self._put_snapshot())
        self._remove_old()

    def sweep(self) -> None:
        """Remove the segments nobody refers to any more. For a worker, after `checkpointed`.

        Fences stay: a former owner that was stopped for long would make the chunk anew, and take
        what it writes for safe. A start removes them when there are many.
        """
        uploads = self._uploads()
        for segment in self.dead:
            if segment.is_fence or (uploads is not None and segment.place is Place.REMOTE):
                continue
            self.backend.remove(segment.name)
        if uploads is not None:
            uploads.sweep(
                named={s.number for s in self.topic_counts if s.place is Place.REMOTE},
                dead={s.number for s in self.dead if s.place is Place.REMOTE},
            )

    def _uploads(self) -> Uploads | None:
        if self.remote is None:
            return None
        return Uploads(self.backend, self.remote, self.owner)

    def _put_snapshot(self) -> int:
        for number in range(self.number, self.number + ATTEMPTS_MAX):
            document = self._document(Kind.SNAPSHOT, number, self.snapshot)
            try:
                self.backend.put(snapshot_name(number), document)
            except ObjectExistsError:
                continue  # Of an attempt that ended before its manifest.
            return number
        raise StorageTakenError(snapshot_name(self.number), "another broker")

    def _put_manifest(self, segments: list[Segment], snapshot: int) -> None:
        state = self.state
        for _ in range(ATTEMPTS_MAX):
            manifest = Manifest(
                self.number,
                state.replay_from,
                state.replay_exists,
                state.entry_end,
                state.next_segment,
                snapshot,
                segments,
                self.live,
            )
            name = manifest_name(self.number)
            try:
                self.backend.put(
                    name, self._document(Kind.MANIFEST, self.number, encode_manifest(manifest))
                )
            except ObjectExistsError:
                # Ours, if a store took it and could not say so; it is then as good as any other.
                if owner_of(self.backend.get(name), name) != self.owner:
                    raise StorageTakenError(name, "another broker") from None
                self.number += 1
            else:
                return
        raise StorageTakenError(manifest_name(self.number), "another broker")

    def _document(self, kind: int, number: int, body: bytes) -> bytes:
        return encode_document(
            kind,
            number,
            body,
            self.options.ciphers,
            owner=self.owner,
            now_ms=self.options.now_ms(),
        )

    def _remove_old(self) -> None:
        for folder, newest in ((MANIFESTS, self.number), (SNAPSHOTS, self.number + ATTEMPTS_MAX)):
            names = [n for n in self.backend.names(folder) if 0 <= number_of(n) <= newest]
            for name in names[:-KEPT_COUNT]:
                self.backend.remove(name)


def live_spans(state: State, horizon: dict[int, int]) -> dict[int, list[Span]]:
    """Return what is left of each topic: from its horizon on, and in the newest form."""
    live = {}
    for topic, floor in horizon.items():
        spans: Iterable[Span] = state.topics.get(topic, ())
        for rewritten in state.rewritten:
            spans = in_new_form(spans, rewritten, topic)
        kept = [
            span if span.first_offset >= floor else trimmed(span, floor)
            for span in spans
            if span.end_offset > floor
        ]
        if kept:
            live[topic] = kept
    return live


def trimmed(span: Span, floor: int) -> Span:
    """Return the span from `floor` on; how many bytes that is, is an estimate."""
    share = (span.end_offset - floor) / (span.end_offset - span.first_offset)
    return span._replace(first_offset=floor, own_bytes=int(span.own_bytes * share))


def in_new_form(spans: Iterable[Span], rewritten: Rewritten, topic: int) -> list[Span]:
    """Return `spans` with what was rewritten in its place."""
    kept = [span for span in spans if (span.segment, topic) not in rewritten.replaced]
    kept.extend(rewritten.spans.get(topic, ()))
    kept.sort(key=lambda span: span.first_offset)
    return kept
