"""A log under test, beside a plain list of what was committed to it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ister.codec import Batch, encode
from ister.log import (
    Buffer,
    ChunkBackend,
    Entry,
    FileBackend,
    Kind,
    Log,
    LogOptions,
    SeriesPart,
    open_log,
    parse_transaction,
)

TIME_MS = 1_700_000_000_000
SMALL = LogOptions(segment_bytes=8_192, extent_bytes=1_024, now_ms=lambda: TIME_MS)


def make_batch(payloads: list[bytes], *, offset: int, time_ms: int = TIME_MS) -> Batch:
    """Return a stamped batch."""
    batch = Batch(b"".join(encode(payloads, producer=b"shop")))
    batch.stamp(offset, time_ms)
    return batch


def series_part(topic: int, batch: Batch) -> SeriesPart:
    """Return a stamped batch as a part of a series."""
    parts: list[Buffer] = [batch.stamp_bytes(), batch.tail]
    base, time_ms = batch.base_offset, batch.publish_time_ms
    return SeriesPart(topic, base, time_ms, batch.count, batch.size_bytes, lambda: parts)


@dataclass
class Bench:
    """A log with the offsets its broker would know; `seen` is what `apply` was called with."""

    backend: FileBackend | ChunkBackend
    options: LogOptions = SMALL
    next_offsets: dict[int, int] = field(default_factory=dict)
    seen: list[tuple[int, int, bytes]] = field(default_factory=list)
    snapshots: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log: Log = open_log(
            self.backend,
            self.options,
            restore=self.snapshots.append,
            apply=self._apply,
            reset=self._reset,
        )

    def _reset(self) -> None:
        for known in (self.next_offsets, self.seen, self.snapshots, self.numbers):
            known.clear()

    def _apply(self, entry: Entry) -> None:
        self.numbers.append(entry.number)
        self.seen.append((entry.kind, entry.topic, bytes(entry.body)))
        if entry.kind in (Kind.BATCH, Kind.PART):
            self._advance(entry.topic, Batch(bytes(entry.body)))
        elif entry.kind == Kind.TRANSACTION:
            for inner in parse_transaction(entry.body)[0]:
                self._advance(inner.topic, Batch(bytes(inner.body)))

    def _advance(self, topic: int, batch: Batch) -> None:
        self.next_offsets[topic] = batch.base_offset + batch.count

    def batch(self, topic: int, *payloads: bytes, time_ms: int = TIME_MS) -> Batch:
        """Return a batch with the next offsets of `topic`."""
        batch = make_batch(list(payloads), offset=self.next_offsets.get(topic, 0), time_ms=time_ms)
        self._advance(topic, batch)
        return batch

    def append(
        self, topic: int, *payloads: bytes, time_ms: int = TIME_MS, sync: bool = True
    ) -> None:
        """Collect a batch."""
        batch = self.batch(topic, *payloads, time_ms=time_ms)
        self.log.append(
            Kind.BATCH,
            topic,
            [batch.stamp_bytes(), batch.tail],
            count=batch.count,
            base_offset=batch.base_offset,
            time_ms=time_ms,
            sync=sync,
        )

    def append_series(self, *batches: tuple[int, list[bytes]], changes: bytes = b"") -> None:
        """Collect a series of batches, each with its topic."""
        rows = []
        for topic, payloads in batches:
            batch = self.batch(topic, *payloads)
            rows.append(series_part(topic, batch))
        self.log.append_series(rows, changes)

    def append_changes(self, body: bytes) -> None:
        """Collect changes."""
        self.log.append(Kind.CHANGES, 0, [body])

    def commit(self) -> None:
        """Write and sync what is collected."""
        group = self.log.take()
        assert group is not None
        self.log.write(group)
        if group.needs_sync:
            self.log.sync(group)
        self.log.committed(group)

    def try_commit(self) -> OSError | None:
        """Do the same; after an error of the disk, forget the group and return the error."""
        group = self.log.take()
        assert group is not None
        before = {topic: self.log.next_offset(topic) for topic in self.next_offsets}
        try:
            self.log.write(group)
            if group.needs_sync:
                self.log.sync(group)
        except OSError as error:
            self.log.failed(group)
            self.next_offsets.update(before)
            return error
        self.log.committed(group)
        return None

    def publish(
        self, topic: int, *payloads: bytes, time_ms: int = TIME_MS, sync: bool = True
    ) -> None:
        """Commit a batch in a group of its own."""
        self.append(topic, *payloads, time_ms=time_ms, sync=sync)
        self.commit()

    def checkpoint(self, snapshot: bytes = b"state", horizon: dict[int, int] | None = None) -> None:
        """Run a checkpoint from beginning to end, after a sync where one is needed."""
        if self.log.unsynced:
            self.append_changes(b"")
            self.commit()
        if horizon is None:
            horizon = dict.fromkeys(self.next_offsets, 0)
        checkpoint = self.log.plan_checkpoint(snapshot, horizon)
        checkpoint.run()
        self.log.checkpointed(checkpoint)
        checkpoint.sweep()

    def read(self, topic: int, offset: int = 0, bytes_max: int = 4_096) -> list[tuple[int, bytes]]:
        """Return offset and payload of every message from `offset` on."""
        found: list[tuple[int, bytes]] = []
        while (plan := self.log.plan(topic, offset, bytes_max)) is not None:
            batches = plan.run()
            assert batches, "a plan finds something"
            for batch in batches:
                rows = list(zip(batch.offsets, batch.payloads, strict=True))
                assert rows[-1][0] >= offset, "every batch reaches past what was read"
                found += [row for row in rows if row[0] >= offset]
                offset = rows[-1][0] + 1
        return found

    def payloads(self, topic: int) -> list[bytes]:
        """Return every payload of `topic`, whose offsets must count up from its first one."""
        rows = self.read(topic)
        first = self.log.first_offset(topic)
        assert [offset for offset, _ in rows] == list(range(first, first + len(rows)))
        return [payload for _, payload in rows]

    def reopened(self, backend: FileBackend | ChunkBackend | None = None) -> "Bench":
        """Open the log once more, as after the process was killed."""
        return Bench(backend or self.backend, self.options)


Filler = Callable[[int], bytes]


def filler(size_bytes: int) -> Filler:
    """Return a function from a number to a payload of `size_bytes` that begins with it."""
    return lambda number: b"%d " % number + b"x" * (size_bytes - len(b"%d " % number))
