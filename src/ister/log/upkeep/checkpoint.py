"""A checkpoint: the broker's state and the list of live segments, so that a restart reads little.

The order is what makes it safe: the snapshot is durable before the manifest that names it, and the
manifest before anything it does not name is removed. Stopping anywhere leaves the old truth or
the new one, and files that nobody names: those on the disk are removed by the next start, those in
the remote tier by the next checkpoint (see `uploads`).

In an object store a former owner may be in the middle of any of these steps when another one takes
over, and go on much later. What it may remove is therefore only what its own manifest has dropped,
once that manifest is known to have been in force: the next owner began with it, so no later
manifest names any of that.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ister.base.errors import ObjectExistsError, StorageTakenError
from ister.log.files.entry import Kind
from ister.log.files.fences import Fence, keep_fences
from ister.log.files.manifest import Kept, Manifest, encode_document, encode_manifest
from ister.log.files.numbers import Numbers
from ister.log.files.options import LogOptions
from ister.log.files.ports import Store
from ister.log.files.scan import owner_of
from ister.log.files.segment import (
    MANIFESTS,
    SNAPSHOTS,
    Place,
    Segment,
    Span,
    chunk_name,
    manifest_name,
    number_of,
    segment_name,
    snapshot_name,
)
from ister.log.journal.backend import Backend, FileBackend
from ister.log.upkeep.uploads import Uploads

# A number that is taken by an attempt of our own, whose outcome was unknown, is passed over. The
# second try is behind all of them.
ATTEMPTS_MAX = 3
# Names of objects that could not be removed: 10 MB. A store that never lets anything be removed
# must not fill the memory; beyond this, the next start removes them.
UNSWEPT_COUNT_MAX = 100_000


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
    # Segments closed since the checkpoint before, and their size.
    closed_count: int
    closed_bytes: int
    # Segments that could not be rewritten.
    unfit: frozenset[Segment]
    # How much of rewritten segments was live when they were made.
    settled: Mapping[Segment, int]
    # With keys, files that were there before the log was encrypted.
    plain: frozenset[str] = frozenset()


@dataclass(slots=True, kw_only=True)
class Checkpoint:
    """Made by `Log.plan_checkpoint`; `run`, `Log.checkpointed`, then `sweep`."""

    backend: Backend
    remote: Store | None
    options: LogOptions
    owner: str
    epoch: int
    number: int
    # Those that stay, beside the one to be made.
    kept: tuple[Kept, ...]
    # Of former checkpoints; and, after `run`, of this one.
    fences: tuple[Fence, ...]
    # A number is never used twice, not even by an attempt that failed.
    snapshot_numbers: Numbers
    snapshot: bytes
    # First live offset of each topic; a topic that is not there is deleted.
    horizon: dict[int, int]
    state: State
    # Names that nobody refers to any more, and that are still to be removed: of all checkpoints of
    # a log, and for `sweep` alone.
    unswept: list[str]
    # Filled in by `run`.
    live: dict[int, list[Span]] = field(default_factory=dict)
    topic_counts: dict[Segment, int] = field(default_factory=dict)
    dead: list[Segment] = field(default_factory=list)
    snapshot_number: int = -1
    _expired: tuple[Fence, ...] = ()

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
        self.fences, self._expired = keep_fences(
            self.fences, (s.number for s in self.dead if s.is_fence), self.options.now_ms()
        )
        uploads = self._uploads()
        for segment in self.dead:
            if uploads is not None and segment.place is Place.REMOTE:
                uploads.end(segment.number)
        try:
            self._put_snapshot()
            self._put_manifest(segments)
        except OSError:
            self._clean_up()
            raise

    def sweep(self) -> None:
        """Remove what nobody refers to any more. For a worker, after `checkpointed`.

        Only what this checkpoint has dropped, or what no later owner can come to name: a new owner
        may have taken over since.
        """
        uploads = self._uploads()
        self.unswept += [
            segment.name
            for segment in self.dead
            if not (segment.is_fence or (uploads is not None and segment.place is Place.REMOTE))
        ]
        self.unswept += [chunk_name(n) for fence in self._expired for n in fence.numbers]
        del self.unswept[:-UNSWEPT_COUNT_MAX]
        self._remove_old()
        while self.unswept:
            # What cannot be removed is tried again by the next one, after all others.
            name = self.unswept.pop()
            try:
                self.backend.remove(name)
            except OSError:
                self.unswept.insert(0, name)
                raise
        if uploads is not None:
            # Last: while the tier is away, the disk must not fill with snapshots.
            uploads.sweep(
                named={s.number for s in self.topic_counts if s.place is Place.REMOTE},
                dead={s.number for s in self.dead if s.place is Place.REMOTE},
            )

    def _uploads(self) -> Uploads | None:
        if self.remote is None:
            return None
        return Uploads(self.backend, self.remote, self.owner)

    def _put_snapshot(self) -> None:
        for _ in range(ATTEMPTS_MAX):
            number = self.snapshot_number = self.snapshot_numbers.take()
            document = self._document(Kind.SNAPSHOT, number, self.snapshot)
            # The epoch is in the number: what is there already is of our own making.
            with suppress(ObjectExistsError):
                self.backend.put(snapshot_name(number), document)
                return
        raise StorageTakenError(snapshot_name(self.snapshot_number), "another broker")

    def _put_manifest(self, segments: list[Segment]) -> None:
        state = self.state
        for _ in range(ATTEMPTS_MAX):
            manifest = Manifest(
                self.number,
                state.replay_from,
                state.replay_exists,
                state.entry_end,
                state.next_segment,
                self.snapshot_number,
                segments,
                self.live,
                self.epoch,
                fences=self.fences,
                plain=self._plain(segments),
                settled=tuple((s, state.settled[s]) for s in segments if s in state.settled),
            ).follow(self.kept)
            name = manifest_name(self.number)
            try:
                self.backend.put(
                    name, self._document(Kind.MANIFEST, self.number, encode_manifest(manifest))
                )
            except ObjectExistsError:
                self.number = self._highest_of_ours() + 1
            else:
                self._check_in_force()
                self.kept = manifest.kept
                return
        raise StorageTakenError(manifest_name(self.number), "another broker")

    def _plain(self, segments: list[Segment]) -> frozenset[str]:
        """Return the files that need not be encrypted and are still of use."""
        used = {segment.name for segment in segments}
        if self.state.replay_exists:
            used.add(segment_name(self.state.replay_from))
        return self.state.plain & used

    def _check_in_force(self) -> None:
        """Raise `StorageTakenError` unless the manifest that was just made is the highest.

        Old ones are removed, so that an owner which was stopped for long may find its number free,
        with those of another owner above it. The highest is never removed: so if none is higher
        now, no other owner had made one when ours was made.
        """
        highest = highest_manifest(self.backend)
        if highest > self.number:
            raise StorageTakenError(manifest_name(highest), "another broker")

    def _highest_of_ours(self) -> int:
        """Return the highest manifest there is, or raise `StorageTakenError`.

        It is ours if a store took it and could not say so; it is then as good as any other.
        """
        number = highest_manifest(self.backend)
        name = manifest_name(number)
        if owner_of(self.backend.get(name), name) != self.owner:
            raise StorageTakenError(name, "another broker")
        return number

    def _clean_up(self) -> None:
        """Free the space that a failed attempt has taken.

        Only on a disk: in an object store the manifest may still arrive, and would name a snapshot
        that is gone. There the next checkpoint removes it.
        """
        if isinstance(self.backend, FileBackend):
            with suppress(OSError):
                # In this order: it may be there although making it has failed.
                self.backend.remove(manifest_name(self.number))
                self.backend.remove(snapshot_name(self.snapshot_number))

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
        """Remove manifests that are not kept, then the snapshots that no kept one names.

        Only what is older than our own: whatever is newer belongs to another owner.
        """
        numbers = {one.number for one in self.kept}
        for name in self.backend.names(MANIFESTS):
            if 0 <= number_of(name) < self.number and number_of(name) not in numbers:
                self.backend.remove(name)
        snapshots = {one.snapshot for one in self.kept}
        for name in self.backend.names(SNAPSHOTS):
            if 0 <= number_of(name) < self.snapshot_number and number_of(name) not in snapshots:
                self.backend.remove(name)


def highest_manifest(backend: Backend) -> int:
    """Return the number of the manifest in force, or -1."""
    return max(map(number_of, backend.names(MANIFESTS)), default=-1)


def live_spans(state: State, horizon: dict[int, int]) -> dict[int, list[Span]]:
    """Return what is left of each topic: from its horizon on, and in the newest form.

    Of a topic that is as it was, the very list of `state`.
    """
    live = {}
    for topic, floor in horizon.items():
        known = state.topics.get(topic)
        if known and not state.rewritten and known[0].first_offset >= floor:
            live[topic] = known
            continue
        spans: Iterable[Span] = known or ()
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
