"""Several owners of one log in an object store, paused and resumed between any two requests.

Each owner is a thread, or several while it reads in parallel. Only one thread runs at a time: it
makes a given number of requests, then waits before the next one. A schedule decides which owner
makes how many requests. So a run is reproducible, and an owner can be paused during the whole life
of another one, or during its start.

`Record` checks what must hold for every owner: no acknowledged message is lost, no message is found
whose publisher was told that it failed, no offset is used for two messages, and no object is
removed that the current manifest needs.
"""

import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.crash.turns import Turns

from ister.base.errors import CorruptedError, ObjectExistsError, StorageTakenError
from ister.codec import Batch, encode
from ister.log import (
    Buffer,
    ChunkBackend,
    CompactionPolicy,
    Entry,
    Kind,
    Log,
    LogOptions,
    open_log,
    plan_compaction,
)
from ister.log.files.manifest import Manifest, decode_document, decode_manifest
from ister.log.files.segment import chunk_name, manifest_name, number_of, snapshot_name

TOPIC = 1
READ_BYTES = 1_000
# More than any script makes.
ALL = 1_000_000
ATTEMPTS_MAX = 20


class Objects:
    """The objects of a store, and every request that changed it."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        # PUTs that have not arrived yet, although their callers were told that they failed.
        self.late: list[tuple[str, bytes]] = []
        self.requests: list[str] = []
        # Of parts of objects.
        self.reads: list[str] = []

    def put(self, name: str, data: Buffer) -> None:
        self.requests.append(f"PUT {name}")
        if name in self.objects:
            raise ObjectExistsError(name)
        self.objects[name] = bytes(data)

    def remove(self, name: str) -> None:
        self.requests.append(f"DELETE {name}")
        if name in self.objects and name in self.needed():
            raise AssertionError(f"{name} is removed, and the manifest in force needs it")
        self.objects.pop(name, None)

    def arrive(self) -> None:
        """Carry out one delayed PUT; it replaces no object."""
        if self.late:
            name, data = self.late.pop(0)
            self.requests.append(f"late PUT {name}")
            self.objects.setdefault(name, data)

    def manifest(self) -> Manifest | None:
        """Return the current manifest."""
        numbers = [number_of(name) for name in self.objects if name.startswith("manifests/")]
        if not numbers:
            return None
        name = manifest_name(max(numbers))
        body = decode_document(Kind.MANIFEST, self.objects[name], name, None)
        return decode_manifest(max(numbers), body, name)

    def needed(self) -> set[str]:
        """Return the objects that a start needs now."""
        manifest = self.manifest()
        if manifest is None:
            return {name for name in self.objects if name.startswith("chunks/")}
        needed = {segment.name for segment in manifest.segments} | {manifest_name(manifest.number)}
        if manifest.snapshot >= 0:
            needed.add(snapshot_name(manifest.snapshot))
        first = chunk_name(manifest.replay_from)
        return needed | {n for n in self.objects if n.startswith("chunks/") and n >= first}


@dataclass
class Unreliable:
    """Fail PUTs at random: not carried out, carried out, or carried out later. Fail reads, too."""

    chance: random.Random
    share: float = 0.0
    # Whether to carry out every PUT and lose the answer.
    lost_answers: bool = False

    def read(self, name: str) -> None:
        """Fail reads at random, as often as PUTs."""
        if self.share and self.chance.random() < self.share:
            raise TimeoutError(name)

    def put(self, objects: Objects, name: str, data: Buffer) -> None:
        if self.lost_answers:
            objects.put(name, data)
            raise TimeoutError(name)
        if self.chance.random() >= self.share:
            objects.put(name, data)
            return
        match self.chance.choice(("not", "done", "late")):
            case "done":
                objects.put(name, data)
            case "late":
                objects.late.append((name, bytes(data)))
        raise TimeoutError(name)


class PausedStore:
    """The store as one owner sees it: each request waits for its turn."""

    url = "memory://shared"

    def __init__(self, objects: Objects, faults: Unreliable) -> None:
        self.turns: Turns | None = None
        self.objects = objects
        self._faults = faults

    def put(self, name: str, data: Buffer) -> None:
        self._wait()
        self._faults.put(self.objects, name, data)

    def get(self, name: str) -> bytes:
        self._wait()
        return self._find(name)

    def get_range(self, name: str, position: int, size_bytes: int) -> bytes:
        self._wait()
        self.objects.reads.append(name)
        if self.turns is not None and self.turns.is_parallel:
            # Others are not repeated one by one.
            self._faults.read(name)
        return self._find(name)[position : position + size_bytes]

    def size(self, name: str) -> int:
        self._wait()
        return len(self._find(name))

    def names(self, prefix: str) -> list[str]:
        self._wait()
        return sorted(name for name in self.objects.objects if name.startswith(prefix))

    def remove(self, name: str) -> None:
        self._wait()
        self.objects.remove(name)

    def _wait(self) -> None:
        if self.turns is not None:
            self.turns.take()

    def _find(self, name: str) -> bytes:
        if name not in self.objects.objects:
            raise FileNotFoundError(name)
        return self.objects.objects[name]


@dataclass
class Record:
    """The messages that any owner has acknowledged, or has refused."""

    acknowledged: dict[int, bytes] = field(default_factory=dict)
    attempted: dict[int, set[bytes]] = field(default_factory=dict)
    refused: set[bytes] = field(default_factory=set)
    # Messages below may be gone.
    horizon: int = 0
    serial: int = 0

    def attempt(self, offset: int, owner: str) -> bytes:
        """Return a unique message."""
        self.serial += 1
        payload = b"%s %d" % (owner.encode(), self.serial)
        self.attempted.setdefault(offset, set()).add(payload)
        return payload

    def acknowledge(self, offset: int, payload: bytes) -> None:
        """Record an acknowledged message. Fails if its offset was used before."""
        other = self.acknowledged.setdefault(offset, payload)
        assert other == payload, f"offset {offset} was acknowledged as {other!r} and {payload!r}"

    def refuse(self, payload: bytes) -> None:
        """Record a message whose publisher was told that it is not stored."""
        self.refused.add(payload)

    def check(self, found: dict[int, bytes], promised: dict[int, bytes]) -> None:
        """Fail unless all acknowledged messages are stored, and otherwise only attempted ones.

        A refused message must not be among them.
        """
        for offset, payload in promised.items():
            if offset >= self.horizon:
                assert found.get(offset) == payload, f"{payload!r} at {offset} is lost"
        for offset, payload in found.items():
            assert payload in self.attempted.get(offset, ()), f"{payload!r} was never at {offset}"
            assert payload not in self.refused, f"{payload!r} at {offset} was refused"


class Owner:
    """An owner that uses a log as a broker does, following a script."""

    def __init__(
        self,
        name: str,
        store: PausedStore,
        options: LogOptions,
        record: Record,
        *,
        reads_at_once: int,
    ) -> None:
        self.name = name
        self.lost = False
        self.next_offset = 0
        self._entry = 0
        self._store = store
        self._options = options
        self._record = record
        self._reads_at_once = reads_at_once
        self._log: Log | None = None
        # What it must have: all that was acknowledged when it began to start, and by itself since.
        self._promised: dict[int, bytes] = {}

    @property
    def log(self) -> Log:
        assert self._log is not None
        return self._log

    def run(self, script: Iterable[str]) -> None:
        """Run the script to its end, or until another owner has taken over the log."""
        try:
            for step in script:
                getattr(self, step)()
        except StorageTakenError:
            self.lost = True

    # Steps

    def open(self) -> None:
        """Open the log; retry when the store fails."""
        self._promised = dict(self._record.acknowledged)
        for _ in range(ATTEMPTS_MAX):
            self._reset()
            try:
                self._log = open_log(
                    ChunkBackend(self._store, reads_at_once=self._reads_at_once),
                    self._options,
                    restore=self._restore,
                    apply=self._apply,
                    reset=self._reset,
                )
            except FileNotFoundError:
                raise
            except OSError:
                continue
            return
        raise AssertionError("the log does not open")

    def read(self) -> None:
        """Read everything. An owner that has lost the log may find objects missing."""
        try:
            found = self.messages()
        except (FileNotFoundError, CorruptedError):
            self._check_superseded()
            return
        self._record.check(found, self._promised)

    def publish(self) -> None:
        """Commit a message; when the store fails, recover and retry once."""
        for _ in range(ATTEMPTS_MAX):
            offset = self.next_offset
            payload = self._record.attempt(offset, self.name)
            batch = Batch(b"".join(encode([payload])))
            batch.stamp(offset, self._options.now_ms())
            self.log.append(
                Kind.BATCH,
                TOPIC,
                [batch.stamp_bytes(), batch.tail],
                count=1,
                base_offset=offset,
                time_ms=batch.publish_time_ms,
            )
            group = self.log.take()
            assert group is not None
            try:
                self.log.write(group)
            except OSError:
                self.log.failed(group)
                self._recover()
                self._record.refuse(payload)
                continue
            self.log.committed(group)
            self._record.acknowledge(offset, payload)
            self._promised[offset] = payload
            self.next_offset += 1
            return
        raise AssertionError("nothing is committed")

    def rewrite(self) -> None:
        """Compact, if that pays. The result waits for a checkpoint."""
        log = self.log
        policy = CompactionPolicy(chunk_count_min=3, small_count_min=2)
        horizon = {TOPIC: log.first_offset(TOPIC)}
        rewrite = plan_compaction(log, log.state(), horizon, policy)
        if rewrite is None:
            return
        try:
            rewrite.run()
        except (FileNotFoundError, CorruptedError):
            self._check_superseded()
            return
        except OSError:
            return
        log.rewritten(rewrite)

    def checkpoint(self) -> None:
        """Make a checkpoint; retry when the store fails."""
        self._checkpoint(self.log.first_offset(TOPIC))

    def trim(self) -> None:
        """Make a checkpoint that drops the older half."""
        first = self.log.first_offset(TOPIC)
        self._record.horizon = max(self._record.horizon, (first + self.next_offset) // 2)
        self._checkpoint((first + self.next_offset) // 2)

    def _checkpoint(self, floor: int) -> None:
        for _ in range(ATTEMPTS_MAX):
            snapshot = json.dumps(self.next_offset).encode()
            checkpoint = self.log.plan_checkpoint(snapshot, {TOPIC: floor})
            try:
                checkpoint.run()
            except OSError:
                continue
            self.log.checkpointed(checkpoint)
            checkpoint.sweep()
            return
        raise AssertionError("no checkpoint is made")

    # What is found

    def messages(self) -> dict[int, bytes]:
        """Return every message by its offset."""
        found = {}
        offset = self.log.first_offset(TOPIC)
        while (plan := self.log.plan(TOPIC, offset, READ_BYTES)) is not None:
            for batch in plan.run():
                for slot, payload in enumerate(batch.payloads):
                    found[batch.base_offset + slot] = bytes(payload)
                offset = batch.base_offset + batch.count
        return found

    def _check_superseded(self) -> None:
        """Fail unless another owner has taken over the log, and so may have removed objects."""
        manifest = self._store.objects.manifest()
        assert manifest is not None
        assert manifest.epoch > self.log.epoch, "its own objects are gone"

    def _recover(self) -> None:
        for _ in range(ATTEMPTS_MAX):
            try:
                self.log.recover()
            except OSError:
                continue
            return
        raise AssertionError("the log does not recover")

    def _reset(self) -> None:
        self.next_offset = 0
        self._entry = 0

    def _restore(self, snapshot: bytes) -> None:
        self.next_offset = json.loads(snapshot)

    def _apply(self, entry: Entry) -> None:
        assert entry.number > self._entry, "an entry is applied twice"
        self._entry = entry.number
        batch = Batch(entry.body)
        self.next_offset = max(self.next_offset, batch.base_offset + batch.count)


class World:
    """A store, its owners, and the messages they have acknowledged."""

    def __init__(
        self,
        options: LogOptions,
        faults: Unreliable | None = None,
        *,
        reads_at_once: int = 1,
        order: random.Random | None = None,
    ) -> None:
        """`order` draws which thread of an owner runs next, while it reads in parallel."""
        self.objects = Objects()
        self.record = Record()
        self.owners: list[tuple[Owner, Turns]] = []
        self._options = options
        self._faults = faults or Unreliable(random.Random(0))
        self._reads_at_once = reads_at_once
        self._order = order or random.Random(0)

    def add(self, name: str, script: Iterable[str]) -> Turns:
        """Add an owner that has not started yet."""
        store = PausedStore(self.objects, self._faults)
        owner = Owner(name, store, self._options, self.record, reads_at_once=self._reads_at_once)
        turns = store.turns = Turns(lambda: owner.run(script), self._order)
        self.owners.append((owner, turns))
        return turns

    def finish(self) -> None:
        """Run all owners to their end, then open the log, check it, use it, and open it again."""
        for _, turns in self.owners:
            turns.give(ALL)
        assert all(turns.done for _, turns in self.owners)
        self._faults.share = 0.0
        while self.objects.late:
            self.objects.arrive()
        for name in ("heir", "last"):
            heir = self.add(name, ["open", "read", "publish", "rewrite", "checkpoint", "read"])
            heir.give(ALL)
            owner = self.owners[-1][0]
            assert not owner.lost, f"the {name} owner has lost its log to nobody"
            assert self.objects.needed() <= self.objects.objects.keys()
