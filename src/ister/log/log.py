"""A log: one journal for everything durable, its sealed files, and what is known about them.

Who calls what:
- the event loop: `append`, `take`, `committed`, `failed`, `plan`, `plan_time`,
  `plan_checkpoint`, `checkpointed` and everything that only looks. None of them blocks.
- one worker at a time: `write`, `sync`, `recover`, `check_owner`, `close`.
- any worker: `ReadPlan.run`, what `plan_time` returns, `Checkpoint.run`, `Checkpoint.sweep`.

A group goes `append` … `take` → `write` → `sync` (if `needs_sync`) → `committed`; when `write` or
`sync` raises, → `failed`, then `recover` until it returns.
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ister.base.limits import MIB
from ister.log.files.entry import HEADER_BYTES, Kind, encode_transaction
from ister.log.files.extents import FIRST_OFFSET, Extents
from ister.log.files.manifest import Manifest
from ister.log.files.numbers import Numbers
from ister.log.files.options import LogOptions
from ister.log.files.ports import Buffer
from ister.log.files.segment import Place, Segment, Span, first_number
from ister.log.index import figures
from ister.log.index.compacted import Compacted, find_compacted
from ister.log.index.copying import FilePart, files_of
from ister.log.index.index import Index, window_of_spans
from ister.log.journal.backend import Backend, FileBackend
from ister.log.journal.chunks import ChunkJournal
from ister.log.journal.group import Group, SeriesPart
from ister.log.journal.journal import FileJournal, Recovered
from ister.log.journal.recovery import RecoveryReport
from ister.log.journal.space import Space
from ister.log.reading.reading import Reader, ReadPlan, find_time_in, rows_of_span
from ister.log.upkeep.checkpoint import Checkpoint, Rewritten, State
from ister.log.upkeep.rewriting import Rewrite

# Chunks between two checkpoints: each is an object to read at the next start. Of large ones fewer,
# so that a start reads about a second at 64 MiB/s.
CHUNKS_PER_CHECKPOINT = 256
CHUNK_BYTES_PER_CHECKPOINT = 64 * MIB


class SegmentRow(NamedTuple):
    """A segment, for reports."""

    number: int
    size_bytes: int
    topics: int
    place: Place


@dataclass(slots=True, kw_only=True)
class Parts:
    """What `open_log` makes a log of."""

    backend: Backend
    options: LogOptions
    journal: FileJournal | ChunkJournal
    index: Index
    reader: Reader
    numbers: Numbers
    manifest: Manifest | None
    replay_from: int
    owner: str
    epoch: int
    recovery: RecoveryReport


class Log:
    """An open log. Made by `open_log`."""

    def __init__(self, parts: Parts) -> None:
        self.options = parts.options
        self.recovery = parts.recovery
        # Whether it was found without an encrypted manifest, and with something in it.
        is_plain = parts.manifest is None or parts.manifest.is_plain
        self.was_plain = is_plain and bool(parts.reader.plain)
        self.index = parts.index
        self.reader = parts.reader
        self.numbers = parts.numbers
        self.owner = parts.owner
        # How often the log was opened, this time included: no two owners have the same.
        self.epoch = parts.epoch
        self.backend = parts.backend
        # The room on the disk, of a log on a disk.
        self.space: Space | None = (
            parts.backend.space if isinstance(parts.backend, FileBackend) else None
        )
        self._journal = parts.journal
        self._manifest_number = parts.manifest.number if parts.manifest is not None else 0
        self._kept = parts.manifest.kept if parts.manifest is not None else ()
        self._fences = parts.manifest.fences if parts.manifest is not None else ()
        self._snapshot_numbers = Numbers(first_number(parts.epoch))
        # Every file below it is closed, and every entry in those is committed.
        self._replay_from = parts.replay_from
        self._collecting = Group()
        self._unsynced_bytes = 0
        # The entry number behind the last committed group.
        self._entry_end = parts.journal.entry_end
        # The position behind it, in the open file of a log on a disk.
        self._open_end = _end_of(parts.journal)
        # Closed, and not in the manifest: to be replayed at the next start.
        known = set(parts.manifest.segments) if parts.manifest is not None else set()
        new = [segment for segment in parts.index.segments if segment not in known]
        self._closed_count = len(new)
        self._closed_bytes = sum(segment.size_bytes for segment in new)
        self._rewritten: list[Rewritten] = []
        # See `Checkpoint`.
        self._unswept: list[str] = []
        self._unfit: set[Segment] = set()
        # What rewrites have made, with how much of it was live by then.
        self._settled = dict(parts.manifest.settled) if parts.manifest is not None else {}
        # What `recover` found, until the event loop takes it into the index.
        self._recovered: Recovered | None = None

    # Writing.

    def append(
        self,
        kind: int,
        topic: int,
        parts: Sequence[Buffer],
        *,
        count: int = 0,
        base_offset: int = 0,
        time_ms: int = 0,
        sync: bool = True,
    ) -> None:
        """Add an entry to the group that is collected. The parts must not change any more.

        Of a batch, `parts` are stamp and tail, and `count`, `base_offset` and `time_ms` say what
        is in it. With `sync`, the group is committed only when it is on the disk.
        """
        length = 0
        for part in parts:
            length += len(part)
        group = self._collecting
        group.rows.append(
            (kind, topic, parts, length, count, base_offset, base_offset + count, time_ms, ())
        )
        group.size_bytes += HEADER_BYTES + ((length + 7) & ~7)
        if sync:
            group.needs_sync = True

    def append_transaction(
        self,
        batches: Sequence[tuple[int, int, int, int, Sequence[Buffer]]],
        changes: bytes,
        *,
        sync: bool = True,
    ) -> None:
        """Add batches of several topics and changes as one entry, whole or absent.

        A batch is topic, base offset, time, count and parts.
        """
        parts = encode_transaction(
            [(topic, n, parts) for topic, _, _, n, parts in batches], changes
        )
        length = sum(map(len, parts))
        inner = [
            (topic, base, base + count, time_ms, sum(map(len, batch)))
            for topic, base, time_ms, count, batch in batches
        ]
        group = self._collecting
        group.rows.append((Kind.TRANSACTION, 0, parts, length, 0, 0, 0, 0, inner))
        group.size_bytes += HEADER_BYTES + ((length + 7) & ~7)
        if sync:
            group.needs_sync = True

    def append_series(self, batches: Sequence[SeriesPart], changes: bytes) -> None:
        """Add batches and changes, whole or absent as in a transaction, but each read alone.

        All of it is in one group, which is synced before it is committed. The batches are read
        when they are written: until then what they are read from must stay.
        """
        group = self._collecting
        for topic, base, time_ms, count, length, load in batches:
            group.deferred[len(group.rows)] = load
            group.rows.append(
                (Kind.PART, topic, (), length, count, base, base + count, time_ms, ())
            )
            group.size_bytes += HEADER_BYTES + ((length + 7) & ~7)
        # As many entries as it closes are counted where a batch counts its messages.
        self.append(Kind.TRANSACTION, 0, encode_transaction([], changes), count=len(batches))

    @property
    def collecting(self) -> bool:
        """Whether `take` has something to give."""
        return bool(self._collecting.rows)

    @property
    def collecting_bytes(self) -> int:
        """How large the group is that is collected."""
        return self._collecting.size_bytes

    @property
    def unsynced(self) -> bool:
        """Whether something is committed that is not on the disk yet."""
        return self._unsynced_bytes > 0

    def take(self) -> Group | None:
        """Close the group that is collected and return it, if anything is in it.

        The group before it must be committed or failed.
        """
        if self._recovered is not None:
            self._settle()
        group = self._collecting
        if not group.rows:
            return None
        self._collecting = Group()
        # What is not synced is kept in memory.
        if self._unsynced_bytes + group.size_bytes > self.options.unsynced_bytes_max:
            group.needs_sync = True
        return group

    def write(self, group: Group) -> None:
        """Hand `group` to the system, in a new file if the open one is full. Raises `OSError`."""
        self._journal.write(group, self.index.open_extents)

    def sync(self, group: Group) -> None:
        """Have `group` on the disk. Raises `OSError`: then it may be there until `recover`."""
        self._journal.sync(group)

    def committed(self, group: Group) -> None:
        """Show a group that was written, and synced if it needs to be, to readers."""
        assert group.segment is not None, "a group is written first"
        assert group.extents is not None
        self._take_seal(group)
        self._entry_end = group.entry_end
        if group.segment.place is Place.CHUNK:
            self.index.close_segment(group.segment, group.extents)
            self._count_closed(group.segment)
            return
        self._open_end = group.end
        self.index.add(group.segment, group.extents, synced=group.synced)
        unsynced = self._journal.unsynced
        if group.synced:
            if unsynced:
                unsynced.clear()
                self._unsynced_bytes = 0
        else:
            unsynced.append(group)
            self._unsynced_bytes += group.size_bytes

    def failed(self, group: Group) -> None:
        """Forget `group`, and what was collected since: its offsets were built upon it.

        When it has `reached` the disk, the next start may find it, unless `recover` returns before.
        """
        self._take_seal(group)
        self._collecting = Group()
        self._journal.fail()

    def recover(self) -> None:
        """Make the log writable again after a failure; nothing that was committed is lost.

        When it returns, the group that failed is void: no later start finds it.
        Raises `OSError` while the cause is still there; then call it again. Raises
        `StorageTakenError` when somebody else owns the log by now.
        """
        self._recovered = self._journal.recover()

    @property
    def voided(self) -> bool:
        """Whether the group that failed last is gone for good, also when `recover` has raised."""
        return self._journal.voided

    def check_owner(self) -> None:
        """Raise `StorageTakenError` when somebody else owns the log by now, or an `OSError`.

        For the worker that writes.
        """
        if isinstance(self._journal, ChunkJournal):
            self._journal.check_owner()

    def close(self) -> None:
        """Sync and let go of everything. What was not taken is not written."""
        try:
            self._journal.close()
        finally:
            self.backend.close()

    # Reading.

    def first_offset(self, topic: int) -> int:
        """Return the first offset stored of `topic`; 0 when nothing is."""
        return self.index.first_offset(topic) or 0

    def next_offset(self, topic: int) -> int:
        """Return the offset behind the last one stored of `topic`; 0 when nothing is."""
        return self.index.next_offset(topic) or 0

    def plan(self, topic: int, offset: int, bytes_max: int) -> ReadPlan | None:
        """Return how to read on from `offset`, or `None` when nothing is stored from there on."""
        if self._recovered is not None:
            self._settle()
        return self._plan(topic, offset, bytes_max)

    def _plan(self, topic: int, offset: int, bytes_max: int) -> ReadPlan | None:
        """Do so in any thread: it only looks at what the event loop may add to meanwhile."""
        closed = self.index.find_span(topic, offset)
        if closed is not None:
            segment, found = window_of_spans(*closed, bytes_max)
        else:
            opened = self.index.open_segment
            found = self.index.find_open(topic, offset, bytes_max)
            if self.index.open_segment is not opened or (
                found is None and self.index.find_span(topic, offset) is not None
            ):
                # Sealed between two looks: what was found may be of either file, or of neither.
                return self._plan(topic, offset, bytes_max)
            if found is None or opened is None:
                return None
            segment = opened
        return ReadPlan(
            self.reader,
            segment,
            found,
            topic=topic,
            offset=offset,
            bytes_max=bytes_max,
            again=self._plan,
        )

    def sealed(
        self, topic: int, start: int, end: int, *, count_max: int | None = None
    ) -> list[Span]:
        """Return what closed segments have of `start` to `end` of `topic`, oldest first.

        The first begins at `start`, and each other where the one before it ends: offsets that
        compaction has left out belong to the span behind them. `count_max` bounds the work.
        """
        if self._recovered is not None:
            self._settle()
        found = self.index.find_span(topic, start)
        if found is None:
            return []
        spans, first = found
        behind = start
        chosen = []
        for span in spans[first : None if count_max is None else first + count_max]:
            if behind >= end:
                break
            chosen.append(span._replace(first_offset=behind))
            behind = span.end_offset
        return chosen

    def find_time(self, topic: int, time_ms: int) -> int:
        """Return the offset of the first message published at `time_ms` or later. Blocks.

        It is `next_offset` when there is none.
        """
        return self.plan_time(topic, time_ms)()

    def plan_time(self, topic: int, time_ms: int) -> Callable[[], int]:
        """Return what does so in a worker; `FileNotFoundError` means that a new plan is needed.

        The index is looked at here: in another thread, a file that is sealed between two looks
        would be missed, and retention by age would take what is in it for gone.
        """
        if self._recovered is not None:
            self._settle()
        spans = list(self.index.spans(topic))
        open_segment, open_rows = self.index.open_segment, self.index.open_rows(topic)
        end = self.next_offset(topic)
        return lambda: self._find_time(topic, time_ms, spans, open_segment, open_rows, end)

    def find_compacted(self, topic: int, first_offset: int) -> Compacted:
        """Return how far a topic, whose first live offset is given, has been compacted."""
        rows = self.index.open_rows(topic)
        open_first = rows[FIRST_OFFSET] if rows else None
        spans = self.index.spans(topic)
        return find_compacted(spans, first_offset, open_first, self.next_offset(topic))

    def place_of_time(self, topic: int, time_ms: int) -> Place:
        """Return where `find_time` looks first."""
        spans = (span for span in self.index.spans(topic) if span.last_ms >= time_ms)
        span = next(spans, None)
        return self.home if span is None else span.segment.place

    def _find_time(
        self,
        topic: int,
        time_ms: int,
        spans: list[Span],
        open_segment: Segment | None,
        open_rows: "array[int]",
        end: int,
    ) -> int:
        for span in spans:
            if span.last_ms >= time_ms:
                rows = rows_of_span(self.reader, span, topic)
                found = find_time_in(self.reader, span.segment, rows, topic, time_ms)
                if found is not None:
                    return max(found, span.first_offset)
        if open_segment is not None:
            found = find_time_in(self.reader, open_segment, open_rows, topic, time_ms)
            if found is not None:
                return found
        return end

    # Housekeeping.

    @property
    def disk_full(self) -> bool:
        """Whether there is room for changes and checkpoints only."""
        return self.space is not None and self.space.is_full

    @property
    def disk_short(self) -> bool:
        """Whether journal files are smaller than they should be, for want of room."""
        return self.space is not None and (self.space.is_short or self.space.is_full)

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a checkpoint would shorten the next start, or free what was rewritten."""
        if self._rewritten:
            return True
        if isinstance(self._journal, ChunkJournal):
            return (
                self._closed_count >= CHUNKS_PER_CHECKPOINT
                or self._closed_bytes >= CHUNK_BYTES_PER_CHECKPOINT
            )
        return self._closed_count >= 1

    def plan_checkpoint(self, snapshot: bytes, horizon: dict[int, int]) -> Checkpoint:
        """Return the checkpoint to run next.

        `snapshot` is the broker's state after every committed group, and maybe later ones.
        `horizon` has the first live offset of every topic; one that is absent is deleted.

        Nothing may be `unsynced` by now, and nothing in the snapshot when the checkpoint is run:
        one that knows more than the disk would give offsets twice after a power cut. That sync is
        one of the journal: only the journal can do what is needed when it fails. If it were done
        here, it would seem to work when it is done again, without what the disk has lost.
        """
        if self._recovered is not None:
            self._settle()
        assert not self.unsynced, "what was committed is synced before a checkpoint"
        return Checkpoint(
            backend=self.backend,
            remote=self.options.remote,
            options=self.options,
            owner=self.owner,
            epoch=self.epoch,
            number=self._manifest_number + 1,
            kept=self._kept,
            fences=self._fences,
            snapshot_numbers=self._snapshot_numbers,
            snapshot=snapshot,
            horizon=dict(horizon),
            state=self.state(),
            unswept=self._unswept,
        )

    def state(self) -> State:
        """Return the log as it is now."""
        opened = self.index.open_segment
        return State(
            topics=self.index.topics(),
            segments=list(self.index.segments),
            rewritten=tuple(self._rewritten),
            replay_from=opened.number if opened is not None else self._replay_from,
            replay_exists=opened is not None,
            entry_end=self._entry_end,
            next_segment=self.numbers.following,
            closed_count=self._closed_count,
            closed_bytes=self._closed_bytes,
            unfit=frozenset(self._unfit),
            settled=dict(self._settled),
            plain=self.reader.plain if self.reader.has_keys else frozenset(),
        )

    def checkpointed(self, checkpoint: Checkpoint) -> None:
        """Read by the new manifest from now on. Afterwards run `checkpoint.sweep` in a worker."""
        self._manifest_number = checkpoint.number
        self._kept = checkpoint.kept
        self._fences = checkpoint.fences
        state = checkpoint.state
        live = checkpoint.live
        for topic in {*state.topics, *live}:
            known = state.topics.get(topic, [])
            if live.get(topic) is known:
                continue  # Most are as they were: this is for 100,000 topics in one go.
            # What was closed while the checkpoint ran is behind what it knows.
            later = self.index.spans(topic)[len(known) :]
            self.index.replace(topic, [*live.get(topic, ()), *later])
        for segment in state.segments:
            self.index.segments.pop(segment, None)
        self.index.segments.update(checkpoint.topic_counts)
        for rewritten in state.rewritten:
            self._rewritten.remove(rewritten)
        made = {segment for one in self._rewritten for segment in one.outputs}
        for segment in list(self._settled):
            if segment not in self.index.segments and segment not in made:
                del self._settled[segment]
        self._closed_count -= state.closed_count
        self._closed_bytes -= state.closed_bytes

    def rewritten(self, rewrite: Rewrite) -> None:
        """Have the next checkpoint put what a rewrite made into the place of its inputs."""
        assert rewrite.result is not None, "a rewrite runs first"
        self._rewritten.append(rewrite.result)
        self._settled.update(rewrite.live)

    def rewrite_failed(self, rewrite: Rewrite) -> None:
        """Leave the inputs of a rewrite alone from now on: one of them is corrupt."""
        self._unfit.update(rewrite.segments)

    def files(self) -> list[FilePart]:
        """Return the files of everything committed so far. See `copying`."""
        if self._recovered is not None:
            self._settle()
        return files_of(self.index, self._kept, epoch=self.epoch, open_end=self._open_end)

    @property
    def home(self) -> Place:
        """Where the log keeps what is rewritten: beside its journal."""
        return Place.REMOTE if isinstance(self._journal, ChunkJournal) else Place.LOCAL

    @property
    def segments(self) -> list[SegmentRow]:
        """Every segment that is not written to any more, by number."""
        return [
            SegmentRow(s.number, s.size_bytes, topics, s.place)
            for s, topics in sorted(self.index.segments.items(), key=lambda item: item[0].number)
        ]

    def stored_bytes(self, topic: int) -> int:
        """Return about how many bytes are stored of `topic`."""
        return self.index.own_bytes(topic)

    def time_of(self, topic: int, offset: int) -> int | None:
        """Return about when the message at `offset` was published, if it is stored."""
        return figures.time_of(self.index, topic, offset)

    def offset_within(self, topic: int, bytes_max: int) -> int:
        """Return from which offset on `topic` takes about `bytes_max`; 0 when it takes less."""
        return figures.offset_within(self.index, topic, bytes_max)

    def segment_count(self, topic: int) -> int:
        """Return how many segments hold something of `topic`."""
        return figures.segment_count(self.index, topic)

    @property
    def total_bytes(self) -> int:
        """The size of every segment that is not written to any more."""
        return figures.total_bytes(self.index)

    def _take_seal(self, group: Group) -> None:
        if group.sealed is not None:
            self.index.close_open(group.sealed)
            self._count_closed(group.sealed)
            group.sealed = None
            self._unsynced_bytes = 0

    def _count_closed(self, segment: Segment) -> None:
        self._closed_count += 1
        self._closed_bytes += segment.size_bytes
        self._replay_from = max(self._replay_from, segment.number + 1)

    def _settle(self) -> None:
        """Take what `recover` did into the index."""
        recovered, self._recovered = self._recovered, None
        if recovered is None:
            return
        self._unsynced_bytes = 0
        opened = self.index.open_segment
        for segment in recovered.closed:
            if opened is not None and segment.number == opened.number:
                self.index.close_failed(segment)
            else:
                self.index.close_segment(segment, Extents(self.options.extent_bytes))
            self._count_closed(segment)
        for group in recovered.groups:
            assert group.segment is not None
            assert group.extents is not None
            self._open_end = group.end
            self.index.add(group.segment, group.extents, synced=True)


def _end_of(journal: FileJournal | ChunkJournal) -> int:
    opened = journal.open if isinstance(journal, FileJournal) else None
    return opened.position if opened is not None else 0
