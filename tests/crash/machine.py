"""A tiny broker over `ister.log`, and a record of what it promised, to check a log against.

`History` is every entry in the order of the log. Some of its end may be lost by a crash: what was
not synced, and what was under way. Whatever is found must be the state after some first part of
it, with everything that was promised: so nothing is out of order, half there, or from elsewhere.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.unit.log.harness import series_part

from ister.codec import Batch, encode
from ister.log import (
    Buffer,
    ChunkBackend,
    Entry,
    FileBackend,
    Group,
    Kind,
    LogOptions,
    open_log,
    parse_transaction,
)
from ister.objects import LocalStore
from ister.testing import FaultyDisk

Backend = FileBackend | ChunkBackend
OpenBackend = Callable[[FaultyDisk], Backend]
Messages = dict[int, dict[int, bytes]]

TOPICS = (1, 2, 3)
# Small files, so that a short workload rolls over several of them.
SEGMENT_BYTES = 3_072
READ_BYTES = 1_000
FAILURES_MAX = 4


def on_disk(disk: FaultyDisk) -> FileBackend:
    """Keep the log in files."""
    return FileBackend(disk)


def in_store(disk: FaultyDisk) -> ChunkBackend:
    """Keep the log in an object store."""
    return ChunkBackend(LocalStore(disk))


@dataclass(frozen=True, slots=True)
class Written:
    """One entry: messages of some topics from an offset on, and a mark."""

    batches: tuple[tuple[int, int, tuple[bytes, ...]], ...] = ()
    mark: int | None = None


@dataclass(slots=True)
class State:
    """What a reader sees, and what the broker knows."""

    messages: Messages = field(default_factory=lambda: {topic: {} for topic in TOPICS})
    marks: set[int] = field(default_factory=set)

    def add(self, entry: Written) -> None:
        """Go one entry on."""
        for topic, base_offset, payloads in entry.batches:
            self.messages[topic].update(enumerate(payloads, base_offset))
        if entry.mark is not None:
            self.marks.add(entry.mark)


@dataclass(slots=True)
class History:
    """Everything that was ever written, and how much of it was promised."""

    entries: list[Written] = field(default_factory=list)
    # Entries that outlive the end of the process, and those that outlive a power cut.
    committed: int = 0
    safe: int = 0
    # Offsets below may be gone; of a topic that is absent, all.
    horizon: dict[int, int] = field(default_factory=lambda: dict.fromkeys(TOPICS, 0))
    serial: int = 0

    def states(self, at_least: int) -> Iterator[State]:
        """Yield the state after each number of entries from `at_least` on."""
        state = State()
        for count in range(len(self.entries) + 1):
            if count:
                state.add(self.entries[count - 1])
            if count >= at_least:
                yield state


class Machine:
    """A broker's use of a log: collect, commit, checkpoint, restart."""

    def __init__(
        self, disk: FaultyDisk, open_backend: OpenBackend, options: LogOptions, history: History
    ) -> None:
        self.disk = disk
        self.history = history
        self.marks: set[int] = set()
        self.next_offsets = dict.fromkeys(TOPICS, 0)
        self._open_backend = open_backend
        self._options = options
        self._pending: list[Written] = []
        self.log = open_log(
            open_backend(disk),
            options,
            restore=self._restore,
            apply=self._apply,
            reset=self._reset,
        )

    # What is written

    def publish(self, topic: int, *sizes: int) -> None:
        """Append a batch with a message of each size."""
        batch, written = self._batch(topic, sizes)
        self.log.append(
            Kind.BATCH,
            topic,
            [batch.stamp_bytes(), batch.tail],
            count=len(sizes),
            base_offset=batch.base_offset,
            time_ms=batch.publish_time_ms,
            sync=False,
        )
        self._pending.append(Written((written,)))

    def mark(self) -> None:
        """Append a change."""
        self.history.serial += 1
        number = self.history.serial
        self.log.append(Kind.CHANGES, 0, [b"%d" % number], sync=False)
        self._pending.append(Written(mark=number))

    def transact(self, *topics: int) -> None:
        """Append a transaction: a batch of two messages for each topic, and a mark."""
        self.history.serial += 1
        number = self.history.serial
        rows, written = [], []
        for topic in topics:
            batch, one = self._batch(topic, (40, 300))
            parts: list[Buffer] = [batch.stamp_bytes(), batch.tail]
            rows.append((topic, batch.base_offset, batch.publish_time_ms, len(batch), parts))
            written.append(one)
        self.log.append_transaction(rows, b"%d" % number, sync=False)
        self._pending.append(Written(tuple(written), number))

    def series(self, *topics: int) -> None:
        """Append a series: a batch of two messages for each topic, and a mark."""
        self.history.serial += 1
        number = self.history.serial
        rows, written = [], []
        for topic in topics:
            batch, one = self._batch(topic, (40, 300))
            rows.append(series_part(topic, batch))
            written.append(one)
        self.log.append_series(rows, b"%d" % number)
        self._pending.append(Written(tuple(written), number))

    def _batch(
        self, topic: int, sizes: Sequence[int]
    ) -> tuple[Batch, tuple[int, int, tuple[bytes, ...]]]:
        payloads = []
        for size in sizes:
            # No two messages are alike, so that one from a group that failed is noticed.
            self.history.serial += 1
            payloads.append((b"%d/%d " % (topic, self.history.serial)).ljust(size, b"."))
        base_offset = self.next_offsets[topic]
        self.next_offsets[topic] += len(payloads)
        batch = Batch(memoryview(b"".join(encode(payloads, keys=self.keys_of(topic, payloads)))))
        batch.stamp(base_offset, 1_000 + self.history.serial)
        return batch, (topic, base_offset, tuple(payloads))

    def keys_of(self, topic: int, payloads: list[bytes]) -> list[str | None] | None:
        """Return the keys of messages that are to be published; `None` if they have none."""
        return None

    # What a broker does with it

    def commit(self, *appends: Callable[[], None], sync: bool = True) -> None:
        """Append, and commit; when the disk fails, recover and do all of it once more."""
        for _ in range(FAILURES_MAX):
            offsets = dict(self.next_offsets)
            for append in appends:
                append()
            group = self.log.take()
            assert group is not None
            if self._commit(group, sync=sync):
                return
            self.next_offsets = offsets
        raise AssertionError("the disk is healed, and the log still fails")

    def _commit(self, group: Group, *, sync: bool) -> bool:
        history = self.history
        start = len(history.entries)
        history.entries.extend(self._pending)
        self._pending.clear()
        try:
            self.log.write(group)
            if sync or group.needs_sync:
                self.log.sync(group)
        except OSError:
            self.log.failed(group)
            if not group.reached:
                # Nothing of it was written, says the log: no crash from here on may show it.
                del history.entries[start:]
            self._recover()
            # Nobody was told of it, and from now on nobody ever may.
            del history.entries[start:]
            return False
        self.log.committed(group)
        history.committed = len(history.entries)
        if group.synced:
            history.safe = history.committed
        for entry in history.entries[start:]:
            if entry.mark is not None:
                self.marks.add(entry.mark)
        return True

    def _recover(self) -> None:
        for attempt in range(FAILURES_MAX):
            if attempt == FAILURES_MAX - 1:
                self.disk.heal()
            try:
                self.log.recover()
            except OSError:
                continue
            return
        raise AssertionError("the disk is healed, and the log does not recover")

    def checkpoint(self, horizon: dict[int, int] | None = None) -> None:
        """Make snapshot and manifest; trim and delete what is below `horizon`."""
        self.history.horizon = dict(horizon or self.history.horizon)
        for attempt in range(FAILURES_MAX):
            if attempt == FAILURES_MAX - 1:
                self.disk.heal()
            if self.try_checkpoint():
                return
        raise AssertionError("the disk is healed, and no checkpoint can be made")

    def try_checkpoint(self) -> bool:
        """Make snapshot and manifest, unless the disk fails; say whether they are there."""
        if self.log.unsynced:
            self.commit(self.mark)
        snapshot = json.dumps([sorted(self.marks), list(self.next_offsets.items())])
        checkpoint = self.log.plan_checkpoint(snapshot.encode(), self.history.horizon)
        try:
            checkpoint.run()
        except OSError:
            return False
        self.log.checkpointed(checkpoint)
        try:
            checkpoint.sweep()
        except OSError:
            pass  # The next start removes what is left.
        return True

    def restart(self) -> "Machine":
        """Close, and return the machine of the next start."""
        self.close()
        return start(self.disk, self._open_backend, self._options, self.history)

    def close(self) -> None:
        """Close the log. What was committed is on the disk if that succeeds."""
        try:
            self.log.close()
        except OSError:
            return
        self.history.safe = self.history.committed

    # What is found

    def messages(self) -> Messages:
        """Read every topic from its first offset on."""
        return {topic: self.messages_of(topic) for topic in TOPICS}

    def messages_of(self, topic: int) -> dict[int, bytes]:
        """Read one topic from its first offset on."""
        return dict(self._read(topic))

    def _read(self, topic: int) -> Iterator[tuple[int, bytes]]:
        offset = self.log.first_offset(topic)
        while (plan := self.log.plan(topic, offset, READ_BYTES)) is not None:
            batches = plan.run()
            assert batches, f"a plan for offset {offset} of topic {topic} found nothing"
            for batch in batches:
                for number, payload in zip(batch.offsets, batch.payloads, strict=True):
                    # A trimmed topic may begin in the middle of a batch.
                    if number >= offset:
                        yield number, bytes(payload)
                offset = batch.offsets[-1] + 1

    def agrees(self, topic: int, found: dict[int, bytes], wanted: dict[int, bytes]) -> bool:
        """Tell whether a topic has what it should."""
        return agree(found, wanted, self.next_offsets[topic], self.history.horizon[topic])

    def _reset(self) -> None:
        self.marks.clear()
        self.next_offsets = dict.fromkeys(TOPICS, 0)

    def _restore(self, snapshot: bytes) -> None:
        marks, offsets = json.loads(snapshot)
        self.marks.update(marks)
        self.next_offsets.update(offsets)

    def _apply(self, entry: Entry) -> None:
        if entry.kind == Kind.CHANGES:
            self.marks.add(int(bytes(entry.body)))
        elif entry.kind in (Kind.BATCH, Kind.PART):
            self._apply_batch(entry.topic, entry.body)
        else:
            batches, changes = parse_transaction(entry.body)
            for one in batches:
                self._apply_batch(one.topic, one.body)
            self.marks.add(int(changes))

    def _apply_batch(self, topic: int, body: memoryview) -> None:
        batch = Batch(body)
        end = batch.base_offset + len(batch)
        self.next_offsets[topic] = max(self.next_offsets[topic], end)


def start(
    disk: FaultyDisk, open_backend: OpenBackend, options: LogOptions, history: History
) -> Machine:
    """Return a machine; when the disk fails while it starts, start it again."""
    for attempt in range(FAILURES_MAX):
        if attempt == FAILURES_MAX - 1:
            disk.heal()
        try:
            return Machine(disk, open_backend, options, history)
        except OSError:
            continue
    raise AssertionError("the disk is healed, and the log does not open")


def check(machine: Machine, at_least: int) -> int:
    """Return how many entries of its history a machine has found.

    Fails unless its state is exactly the one after that many, and those are `at_least` many.
    """
    history, found = machine.history, machine.messages()
    for number, state in enumerate(history.states(at_least), start=at_least):
        if machine.marks == state.marks and all(
            machine.agrees(topic, found[topic], state.messages[topic]) for topic in history.horizon
        ):
            return number
    raise AssertionError(
        f"no state after {at_least} to {len(history.entries)} entries: found marks "
        f"{sorted(machine.marks)}, offsets { ({t: sorted(m) for t, m in found.items()}) }"
    )


def agree(found: dict[int, bytes], wanted: dict[int, bytes], next_offset: int, floor: int) -> bool:
    """Tell whether a topic has what it should: all from `floor` on, below it maybe."""
    offsets = list(found)
    return (
        next_offset == len(wanted)
        and offsets == list(range(offsets[0] if offsets else 0, offsets[-1] + 1 if offsets else 0))
        and all(wanted.get(offset) == payload for offset, payload in found.items())
        and all(offset in found for offset in wanted if offset >= floor)
    )


def content(disk: FaultyDisk) -> dict[str, bytes]:
    """Return every file as it would be found after a power cut."""
    found = disk.reopen("none")
    names = [
        name
        for folder in ("segments", "manifests", "snapshots", "chunks")
        for name in found.names(folder)
    ]
    return {name: (file := found.open(name)).read(0, file.size()) for name in names}
