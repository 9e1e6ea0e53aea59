"""A log that is mostly compacted and checkpointed, for every reason and wherever it can be kept.

A `Chore` is one rewrite with its checkpoint, on a disk that was made ready for it. It is short, so
that the disk can fail at any of its steps, and the machine crash at any later one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tests.crash.machine import History, Machine, check, in_store, on_disk
from tests.crash.workload import log_options
from tests.unit.log.test_uploads import Tier

from ister.log import (
    ChunkBackend,
    CompactionPolicy,
    FileBackend,
    KeyPolicy,
    Kind,
    LogOptions,
    Place,
    Rewrite,
    plan_compaction,
)
from ister.log.files.manifest import decode_document, decode_manifest
from ister.log.files.segment import number_of, snapshot_name
from ister.objects import LocalStore
from ister.testing import Fault, FaultyDisk
from ister.testing.disk import Action

ATTEMPTS_MAX = 30
# Of this topic only the newest message of each key has to be kept.
KEYED = 3
KEY_COUNT = 3

# Each lets the compactor find one reason and no other.
NEVER = CompactionPolicy(live_share_min=0, density_min=0, small_count_min=999, chunk_count_min=999)
POLICIES = {
    "expired": replace(NEVER, live_share_min=0.9),
    "keys": replace(NEVER, dirty_share_min=0.1),
    "interleaved": replace(NEVER, density_min=0.9),
    "small": replace(NEVER, small_count_min=2),
    "chunks": replace(NEVER, chunk_count_min=3),
    "upload": replace(NEVER, upload_before_ms=2**60),
    "urgent": replace(NEVER, urgent=True),
}


@dataclass(slots=True)
class Repeated(Fault):
    """Fail an operation and similar ones, a number of times in a row."""

    times: int = 1
    _like: tuple[Action, str] | None = None

    def fits(self, action: Action, name: str, number: int) -> bool:
        like = (action, name.rpartition("/")[0])
        if self._like is None and number == self.at and action not in ("open", "read"):
            self._like = like
        return like == self._like and self.hits < self.times


@dataclass(frozen=True)
class Home:
    """Where a log is kept, and why its segments may be rewritten there."""

    open_backend: Callable[[FaultyDisk], FileBackend | ChunkBackend]
    reasons: Sequence[str]
    tiered: bool = False

    def open(self, disk: FaultyDisk, history: History) -> "Housekeeper":
        options = log_options()
        if self.tiered:
            options = replace(options, remote=LocalStore(Tier(disk)))
        return Housekeeper(disk, self.open_backend, options, history, self.reasons)

    def open_with_retries(self, disk: FaultyDisk, history: History) -> "Housekeeper":
        for _ in range(ATTEMPTS_MAX):
            try:
                return self.open(disk, history)
            except OSError:
                continue
        raise AssertionError("the log does not open")

    def live(self, disk: FaultyDisk, history: History) -> "Housekeeper":
        """Use a log, mostly its rewrites and checkpoints; restart once."""
        some, others = self.reasons[::2], self.reasons[1::2]
        machine = self.open_with_retries(disk, history)
        machine.work()
        machine.keep_house(some)
        machine.work()
        machine.keep_house(others, {1: 3, 2: 4, 3: 0})
        machine.close()
        machine = self.open_with_retries(disk, history)
        machine.work()
        machine.keep_house(others, {1: 5, 2: 6, 3: 2})
        for _ in range(4):
            machine.commit(partial(machine.publish, 1, 30), sync=False)
            machine.checkpoint()
        machine.keep_house(some, {1: 7, 2: 7})
        return machine

    def operations(self) -> int:
        disk = FaultyDisk()
        self.live(disk, History())
        return len(disk.operations)

    def verify(self, disk: FaultyDisk, history: History) -> None:
        """Open the log, check it, continue to use it, and check it again."""
        machine = self.open(disk, history)
        found = check(machine, history.safe)
        machine.history = History(
            history.entries[:found], found, found, dict(history.horizon), history.serial
        )
        machine.commit(partial(machine.publish, 1, 20), machine.mark)
        machine.keep_house(self.reasons)
        assert check(machine, found + 2) == found + 2
        check_names(machine)
        assert check(self.open(disk.reopen("none"), machine.history), found + 2) == found + 2


class Housekeeper(Machine):
    """A machine that retries until its checkpoints and rewrites succeed."""

    def __init__(
        self,
        disk: FaultyDisk,
        open_backend: Callable[[FaultyDisk], FileBackend | ChunkBackend],
        options: LogOptions,
        history: History,
        reasons: Sequence[str],
    ) -> None:
        super().__init__(disk, open_backend, options, history)
        self.reasons = reasons

    def work(self) -> None:
        """Fill some files with messages of several topics."""
        for _ in range(3):
            self.commit(partial(self.publish, 1, 300), partial(self.publish, 2, 300), self.mark)
            self.commit(partial(self.publish, 3, 200, 200), partial(self.transact, 1, 2))

    def keep_house(self, reasons: Sequence[str], horizon: dict[int, int] | None = None) -> None:
        """Rewrite segments once for each of the reasons, each time with a checkpoint."""
        for reason in reasons:
            self.rewrite(reason)
            self.checkpoint(horizon)
        check_documents(self)

    def plan(self, reason: str) -> Rewrite | None:
        """Return the next rewrite for a reason, if there is one."""
        policy = POLICIES[reason]
        if reason == "keys":
            keys = KeyPolicy(safe_offset=self.log.next_offset(KEYED))
            policy = replace(policy, keyed={KEYED: keys})
        return plan_compaction(self.log, self.log.state(), dict(self.history.horizon), policy)

    def rewrite(self, reason: str) -> bool:
        """Rewrite segments, if that pays; tell whether it was done.

        A rewrite that fails leaves nothing, and is retried later.
        """
        rewrite = self.plan(reason)
        if rewrite is None:
            return False
        try:
            rewrite.run()
        except OSError:
            return False
        self.log.rewritten(rewrite)
        return True

    def checkpoint(self, horizon: dict[int, int] | None = None) -> None:
        """Make a checkpoint, retrying until it succeeds."""
        self.history.horizon = dict(horizon or self.history.horizon)
        for _ in range(ATTEMPTS_MAX):
            if self.try_checkpoint():
                return
        raise AssertionError("the disk works again, and no checkpoint can be made")

    def keys_of(self, topic: int, payloads: list[bytes]) -> list[str | None] | None:
        return [key_of(payload) for payload in payloads] if topic == KEYED else None

    def agrees(self, topic: int, found: dict[int, bytes], wanted: dict[int, bytes]) -> bool:
        if topic != KEYED or "keys" not in self.reasons:
            return super().agrees(topic, found, wanted)
        newest = {key_of(payload): offset for offset, payload in found.items()}
        return (
            self.next_offsets[topic] == len(wanted)
            and list(found) == sorted(found)
            and all(wanted.get(offset) == payload for offset, payload in found.items())
            and all(
                offset in found or newest.get(key_of(payload), -1) > offset
                for offset, payload in wanted.items()
                if offset >= self.history.horizon[topic]
            )
        )


def key_of(payload: bytes) -> str:
    """Return the key of a message, which depends on its serial number."""
    return f"key {int(payload.split(b'/')[1].split()[0]) % KEY_COUNT}"


def check_documents(machine: Machine) -> None:
    """Fail unless every manifest has its snapshot."""
    backend = machine.log.backend
    snapshots = backend.names("snapshots")
    for name in backend.names("manifests"):
        body = decode_document(Kind.MANIFEST, backend.get(name), name, None)
        number = decode_manifest(number_of(name), body, name).snapshot
        assert number < 0 or snapshot_name(number) in snapshots, f"{name} has lost its snapshot"


def check_names(machine: Machine) -> None:
    """Fail if there is a segment that the log does not know of, or a note of one."""
    log = machine.log
    known = {segment: segment.name for segment in log.index.segments}
    if log.index.open_segment is not None:
        known[log.index.open_segment] = log.index.open_segment.name
    stored = log.backend.names("segments")
    remote = log.options.remote
    if remote is None:
        assert set(stored) <= set(known.values())
        return
    for place, names in {Place.LOCAL: stored, Place.REMOTE: remote.names("segments/")}.items():
        assert set(names) == {name for segment, name in known.items() if segment.place is place}
    assert not log.backend.names("uploads")


HOMES = {
    "files": Home(on_disk, ("expired", "keys", "interleaved", "small", "urgent")),
    "chunks": Home(in_store, ("chunks", "expired", "keys", "small")),
    "tier": Home(on_disk, ("upload", "expired", "keys", "small"), tiered=True),
}


@dataclass
class Chore:
    """One rewrite for a given reason, with its checkpoint, on a disk that has what it takes."""

    home: Home
    reason: str
    disk: FaultyDisk = field(init=False)
    history: History = field(init=False)

    def __post_init__(self) -> None:
        self.disk, self.history = FaultyDisk(), History()
        machine = self.home.open(self.disk, self.history)
        machine.work()
        # Small files beside each other: one that is found at a start gets no more entries.
        for _ in range(3):
            machine.close()
            machine = self.home.open(self.disk, self.history)
            machine.commit(partial(machine.publish, 1, 50), partial(machine.publish, 2, 50))
        machine.checkpoint()
        for first, instead in {"chunks": ("chunks", "small"), "upload": ("upload",)}.items():
            if first in self.home.reasons and self.reason not in instead:
                while machine.rewrite(first):
                    machine.checkpoint()
        if self.reason in ("expired", "urgent"):
            # Some of every file is left.
            machine.checkpoint({1: machine.next_offsets[1] - 3, 2: machine.next_offsets[2], 3: 1})
        machine.close()
        self.disk = self.disk.reopen("none")

    def start(self) -> tuple["Housekeeper", int]:
        """Return a machine on a copy of the disk, and how many operations its start took."""
        disk = self.disk.reopen("none")
        entries, horizon = list(self.history.entries), dict(self.history.horizon)
        history = replace(self.history, entries=entries, horizon=horizon)
        machine = self.home.open(disk, history)
        return machine, len(disk.operations)

    def operations(self) -> int:
        """Count the operations of the chore when nothing fails."""
        machine, begun = self.start()
        self.run(machine)
        return len(machine.disk.operations) - begun

    def run(self, machine: Housekeeper) -> None:
        """Rewrite and make a checkpoint, and once more a little later; retry what fails."""
        for _ in range(2):
            # Not on the disk when the checkpoint begins.
            machine.commit(partial(machine.publish, 2, 20), sync=False)
            for _ in range(ATTEMPTS_MAX):
                if machine.rewrite(self.reason) or machine.plan(self.reason) is None:
                    break
            machine.checkpoint()
            check_documents(machine)
            machine.commit(partial(machine.publish, 1, 20), machine.mark)
