"""Stages: batches that wait, seen by nobody, until somebody publishes them.

    OPEN --close()--> CLOSED --published, dropped, too old--> GONE
    OPEN --dropped, its connection is lost, close() refused--> GONE

Always true:
- a batch is in memory only until its stage's file has it, and so is at most `STAGING_BYTES_MAX`
  of all stages, and what was read before their connections were held up; but a small stage has no
  file, and stays in memory: at most `HELD_BYTES_MAX` of all stages;
- what is wrong with a batch costs its stage, and is the answer when that is closed;
- a stage that is being published is neither dropped nor too old until that has ended;
- nothing of it is durable: a broker that ends has no stages afterwards (docs/adr/0010-series.md).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from ister.base import Clock, Timer, parse_topic, span_text
from ister.base.errors import (
    BadBatchError,
    BadRequestError,
    DiskFullError,
    IsterError,
    StageExistsError,
    StageNotFoundError,
    StageTooLargeError,
    StagingFullError,
    StorageFailedError,
)
from ister.base.limits import (
    KIB,
    MIB,
    NAME_BYTES_MAX,
    SERIES_BATCHES_MAX,
    SERIES_BYTES_MAX,
    STAGE_KEEP_MS_MAX,
    STAGE_KEEP_MS_MIN,
    STAGE_TOPICS_MAX,
    STAGES_BYTES_MAX,
    STAGES_MAX,
    STAGING_BYTES_MAX,
)
from ister.broker.scheduling import Worker
from ister.broker.schema_checks import SchemaCheck, check
from ister.broker.streams import BATCH_OVERHEAD_BYTES, StreamTopic
from ister.broker.transactions.spool import Spool, SpoolPlace
from ister.codec import Batch, Column
from ister.log import Buffer, SeriesPart, is_disk_full

# Threads by what they do. Checking what was staged may take minutes, and must not keep others from
# staging and publishing.
WRITING, CHECKING, LISTING = "staging", "stage-checks", "surveys"

# A stage of so much stays in memory, as long as all such stages together have no more than that.
# One event on its way through Spark is such a stage: a file, and the threads that write and read
# it, would take longer than all the rest.
HELD_STAGE_BYTES = 64 * KIB
HELD_BYTES_MAX = 16 * MIB

_T = TypeVar("_T")


class StageState(Enum):
    """Where a stage is in its life."""

    OPEN = "open"
    CLOSED = "closed"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooling:
    """What staging needs of the outside: files, and threads by name and number."""

    new_spool: Callable[[], Spool]
    new_worker: Callable[[str, int], Worker]


class Stage:
    """One stage."""

    __slots__ = (
        "batches",
        "due_ms",
        "error",
        "held_bytes",
        "id",
        "keep_ms",
        "messages",
        "on_written",
        "publishing",
        "schema_checks",
        "size_bytes",
        "slot_end",
        "spool",
        "spooled",
        "state",
        "topics",
        "waiting",
        "writing",
    )

    def __init__(self, stage_id: str, keep_ms: int, spool: Spool) -> None:
        self.id = stage_id
        self.keep_ms = keep_ms
        self.spool = spool
        self.state = StageState.OPEN
        # What went wrong with a batch: the answer when it is closed.
        self.error: IsterError | None = None
        self.batches = 0
        self.messages = 0
        self.size_bytes = 0
        self.slot_end = 0
        # Not in the file yet; what they take in memory, unless they are on their way there.
        self.waiting: list[tuple[int, Batch]] = []
        self.held_bytes = 0
        # Whether it has a file, and whether the thread is at work for it.
        self.spooled = False
        self.writing = False
        # Called once when everything is in the file.
        self.on_written: Callable[[], object] | None = None
        # Once closed: by slot, where its batches go, and who has checked them.
        self.topics: list[StreamTopic] = []
        self.schema_checks: list[SchemaCheck | None] = []
        # When it is too old; 0 while it is open.
        self.due_ms = 0
        self.publishing = False

    def find_batches(self) -> "Iterator[tuple[int, StagedBatch]]":
        """Yield its batches with their slots, of a stage that is closed or about to be.

        For any thread. Raises what `Spool.places` does.
        """
        if self.spooled:
            for place in self.spool.places():
                yield place.slot, StagedBatch(self.topics[place.slot], place, self.spool)
        else:
            for slot, batch in self.waiting:
                yield slot, StagedBatch(self.topics[slot], batch)


class StagedBatch:
    """A batch of a stage on its way to the journal, which reads it when it writes it."""

    __slots__ = (
        "_place",
        "_spool",
        "base_offset",
        "count",
        "held",
        "publish_time_ms",
        "size_bytes",
        "topic",
    )

    def __init__(
        self, topic: StreamTopic, found: SpoolPlace | Batch, spool: Spool | None = None
    ) -> None:
        self.topic = topic
        self.count = found.count
        self.size_bytes = found.size_bytes
        self.base_offset = 0
        self.publish_time_ms = 0
        # Itself, when it is in memory.
        self.held = found if isinstance(found, Batch) else None
        self._spool = spool
        self._place = found if isinstance(found, SpoolPlace) else None

    def load(self) -> Sequence[Buffer]:
        """Return stamp and tail. For any thread."""
        batch = self.read()
        batch.stamp(self.base_offset, self.publish_time_ms)
        return [batch.stamp_bytes(), batch.tail]

    def read(self) -> Batch:
        """Return the batch as it was staged. For any thread; raises what `Spool.load` does."""
        if self.held is not None:
            return self.held
        assert self._spool is not None
        assert self._place is not None
        return self._spool.load(self._place)

    def part(self) -> SeriesPart:
        """Return it for the journal, stamped."""
        return SeriesPart(
            self.topic.record.topic,
            self.base_offset,
            self.publish_time_ms,
            self.count,
            self.size_bytes,
            self.load,
        )


class Staging:
    """All stages of a broker. `check_batch` raises what is wrong with a batch of any producer."""

    def __init__(
        self,
        *,
        clock: Clock,
        spooling: Spooling | None,
        find_topic: Callable[[str], StreamTopic],
        check_batch: Callable[[Batch], None],
    ) -> None:
        self._clock = clock
        self._spooling = spooling
        self._find_topic = find_topic
        self._check_batch = check_batch
        self._stages: dict[str, Stage] = {}
        # In files, or on their way there.
        self._staged_bytes = 0
        # On their way there.
        self._waiting_bytes = 0
        # In memory for good.
        self._held_bytes = 0
        self._relieved: list[Callable[[], object]] = []
        # Made when they are needed: most brokers stage nothing.
        self._workers: dict[str, Worker] = {}
        # For the first of the closed stages to be too old.
        self._timer: Timer | None = None
        self._timer_ms = 0

    @property
    def count(self) -> int:
        """How many stages there are."""
        return len(self._stages)

    @property
    def staged_bytes(self) -> int:
        """How much all of them hold."""
        return self._staged_bytes

    @property
    def full(self) -> bool:
        """Whether those who stage should be held up."""
        return self._waiting_bytes > STAGING_BYTES_MAX

    def on_relief(self, call: Callable[[], object]) -> None:
        """Call `call` once when they need not be held up any more."""
        self._relieved.append(call)

    # The life of a stage

    def open(self, stage_id: str, keep_ms: int) -> Stage:
        """Begin a stage under an id that no other has."""
        if self._spooling is None:
            raise BadRequestError("this broker takes no stages: it keeps no streams")
        if not 0 < len(stage_id.encode()) <= NAME_BYTES_MAX:
            raise BadRequestError(f"the id of a stage has 1 to {NAME_BYTES_MAX} bytes")
        if not STAGE_KEEP_MS_MIN <= keep_ms <= STAGE_KEEP_MS_MAX:
            raise BadRequestError(
                f"a stage is kept for {span_text(STAGE_KEEP_MS_MIN)} to "
                f"{span_text(STAGE_KEEP_MS_MAX)}, not {span_text(keep_ms)}"
            )
        if stage_id in self._stages:
            raise StageExistsError(stage_id)
        if len(self._stages) >= STAGES_MAX:
            raise StagingFullError("stages_max", STAGES_MAX)
        stage = self._stages[stage_id] = Stage(stage_id, keep_ms, self._spooling.new_spool())
        return stage

    def add(self, stage: Stage, slot: int, batch: Batch) -> None:
        """Add a batch for the topic that will be listed at `slot`. Never raises: see `close`."""
        if stage.state is not StageState.OPEN or stage.error is not None:
            return
        try:
            self._check(stage, batch)
        except IsterError as error:
            self.fail(stage, error)
            return
        size = batch.size_bytes
        stage.batches += 1
        stage.messages += batch.count
        stage.size_bytes += size
        stage.slot_end = max(stage.slot_end, slot + 1)
        self._staged_bytes += size
        stage.waiting.append((slot, batch.detached()))
        if not self._holds(stage, size + BATCH_OVERHEAD_BYTES):
            self._waiting_bytes += size
            if not stage.writing:
                self._write(stage)

    def fail(self, stage: Stage, error: IsterError) -> None:
        """Have nothing of a stage kept but its id, and why, for the client that closes it."""
        if stage.error is None and stage.state is StageState.OPEN:
            stage.error = error
            self._let_go(stage)

    def close(
        self, stage: Stage, names: Sequence[str], done: Callable[[IsterError | None], object]
    ) -> None:
        """Nothing more is added: `done` is called when all of it waits to be published.

        `names` are the streams or partitions that batches were staged for, by slot. With an error
        the stage is gone. Raises an error of the same kind.
        """
        try:
            if stage.state is not StageState.OPEN or stage.on_written is not None:
                raise StageNotFoundError(stage.id)
            if stage.error is not None:
                raise stage.error
            if len(names) > STAGE_TOPICS_MAX:
                raise StageTooLargeError("topics", len(names), STAGE_TOPICS_MAX)
            if stage.slot_end > len(names):
                raise BadRequestError(
                    f"a batch was staged for topic {stage.slot_end - 1} of {len(names)}"
                )
            stage.topics = [self._find_topic(parse_topic(name)) for name in names]
            for topic in stage.topics:
                if topic.record.key_offsets is not None:
                    raise BadRequestError(
                        f"topic {topic.name!r} keeps the offsets of its keys and takes no stages: "
                        "send to it with a producer or a transaction"
                    )
        except IsterError:
            self._remove(stage)
            raise

        def on_written() -> None:
            if stage.error is not None:
                self._remove(stage)
                done(stage.error)
            elif stage.state is not StageState.OPEN:
                done(StageNotFoundError(stage.id))
            else:
                self._check_schemas(stage, on_checked)

        def on_checked(error: IsterError | None) -> None:
            if error is not None:
                self._remove(stage)
            elif stage.state is not StageState.OPEN:
                error = StageNotFoundError(stage.id)
            else:
                stage.state = StageState.CLOSED
                self._keep(stage)
            done(error)

        if stage.writing:
            stage.on_written = on_written
        else:
            on_written()

    def abandon(self, stage: Stage) -> None:
        """The connection of a stage is gone: unless it was closed, it goes as well."""
        if stage.state is StageState.OPEN:
            self._remove(stage)

    def drop(self, stage_ids: Sequence[str]) -> None:
        """Forget stages, also those that are open, but for those that are being published."""
        for stage_id in stage_ids:
            stage = self._stages.get(stage_id)
            if stage is not None and not stage.publishing:
                self._remove(stage)

    # For who publishes

    def get_closed(self, stage_id: str) -> Stage:
        """Return a stage that waits to be published, or raise `StageNotFoundError`."""
        stage = self._stages.get(stage_id)
        if stage is None or stage.state is not StageState.CLOSED:
            raise StageNotFoundError(stage_id)
        return stage

    def list_batches(
        self, stages: Sequence[Stage], done: Callable[[list[StagedBatch] | IsterError], object]
    ) -> None:
        """Find the batches of stages; `done` is called, maybe at once.

        They are checked again where a topic was bound to another schema since.
        """
        schema_checks = [
            [
                topic.schema_check if topic.schema_check is not known else None
                for topic, known in pairs
            ]
            for pairs in (zip(s.topics, s.schema_checks, strict=True) for s in stages)
        ]

        def read_batches() -> list[StagedBatch]:
            found = []
            for stage, changed in zip(stages, schema_checks, strict=True):
                for slot, batch in stage.find_batches():
                    schema_check = changed[slot]
                    if schema_check is not None:
                        check(schema_check, batch.read())
                    found.append(batch)
            return found

        self._read(LISTING, stages, read_batches, done)

    def on_published(self, stages: Sequence[Stage]) -> None:
        """These are published."""
        for stage in stages:
            stage.publishing = False
            self._remove(stage)

    def on_not_published(self, stages: Sequence[Stage]) -> None:
        """These could not be published: they wait once more, as long as when they were closed.

        But for those that cannot be read back: each attempt to write one fails the journal.
        """
        for stage in stages:
            stage.publishing = False
            if stage.spool.damaged:
                self._remove(stage)
            else:
                self._keep(stage)

    # Inner workings

    def _check(self, stage: Stage, batch: Batch) -> None:
        if batch.columns & Column.REPLY:
            raise BadBatchError("requests are not staged")
        if batch.columns & Column.ID:
            # Looking for each among a million others holds up the loop, for a whole GiB at once.
            raise BadBatchError("messages with ids are not staged: their series is known instead")
        self._check_batch(batch)
        size = stage.size_bytes + batch.size_bytes
        if size > SERIES_BYTES_MAX:
            raise StageTooLargeError("bytes", size, SERIES_BYTES_MAX)
        if stage.batches >= SERIES_BATCHES_MAX:
            raise StageTooLargeError("batches", stage.batches + 1, SERIES_BATCHES_MAX)
        if self._staged_bytes + batch.size_bytes > STAGES_BYTES_MAX:
            raise StagingFullError("stages_bytes_max", STAGES_BYTES_MAX)

    def _holds(self, stage: Stage, size_bytes: int) -> bool:
        """Return whether a stage stays in memory with a batch of that size; else it is to go."""
        if stage.spooled:
            return False
        if (
            stage.held_bytes + size_bytes <= HELD_STAGE_BYTES
            and self._held_bytes + size_bytes <= HELD_BYTES_MAX
        ):
            stage.held_bytes += size_bytes
            self._held_bytes += size_bytes
            return True
        stage.spooled = True
        self._release(stage)
        # All but the one that was too much.
        self._waiting_bytes += sum(batch.size_bytes for _, batch in stage.waiting[:-1])
        return False

    def _release(self, stage: Stage) -> None:
        self._held_bytes -= stage.held_bytes
        stage.held_bytes = 0

    def _write(self, stage: Stage) -> None:
        rows, stage.waiting = stage.waiting, []
        size = sum(batch.size_bytes for _, batch in rows)
        stage.writing = True

        def on_done(error: object) -> None:
            stage.writing = False
            if isinstance(error, Exception):
                failed = DiskFullError if is_disk_full(error) else StorageFailedError
                self.fail(stage, failed(f"a stage: {error}"))
            if stage.waiting:
                self._write(stage)
            elif stage.on_written is not None:
                on_written, stage.on_written = stage.on_written, None
                on_written()
            self._relieve(size)

        self._worker(WRITING).run(lambda: stage.spool.write(rows), on_done)

    def _relieve(self, size_bytes: int) -> None:
        self._waiting_bytes -= size_bytes
        if self._relieved and not self.full:
            relieved, self._relieved = self._relieved, []
            for call in relieved:
                call()

    def _check_schemas(self, stage: Stage, done: Callable[[IsterError | None], object]) -> None:
        schema_checks = stage.schema_checks = [topic.schema_check for topic in stage.topics]
        if not any(schema_check is not None for schema_check in schema_checks) or not stage.batches:
            done(None)
            return

        def run() -> None:
            for slot, batch in stage.find_batches():
                schema_check = schema_checks[slot]
                if schema_check is not None:
                    check(schema_check, batch.read())

        self._read(
            CHECKING,
            [stage],
            run,
            lambda result: done(result if isinstance(result, IsterError) else None),
        )

    def _read(
        self,
        worker: str,
        stages: Sequence[Stage],
        call: Callable[[], _T],
        done: Callable[[_T | IsterError], object],
    ) -> None:
        """Make a call that reads stages, in a thread if one of them has a file."""

        def on_done(result: _T | Exception) -> None:
            if isinstance(result, Exception) and not isinstance(result, IsterError):
                result = StorageFailedError(f"a stage: {result}")
            done(result)

        if any(stage.spooled for stage in stages):
            self._worker(worker).run(call, on_done)
            return
        try:
            found: _T | IsterError = call()
        except IsterError as error:
            found = error
        done(found)

    def _worker(self, name: str) -> Worker:
        if name not in self._workers:
            assert self._spooling is not None
            self._workers[name] = self._spooling.new_worker(name, 1)
        return self._workers[name]

    def _remove(self, stage: Stage) -> None:
        if stage.state is not StageState.GONE:
            stage.state = StageState.GONE
            del self._stages[stage.id]
            if stage.error is None:
                self._let_go(stage)

    def _let_go(self, stage: Stage) -> None:
        rows, stage.waiting = stage.waiting, []
        self._staged_bytes -= stage.size_bytes
        stage.size_bytes = 0
        if not stage.spooled:
            self._release(stage)
            return
        # In the thread: giving back a GiB takes a disk some time, and a write may be under way.
        self._worker(WRITING).run(stage.spool.close, lambda _: None)
        self._relieve(sum(batch.size_bytes for _, batch in rows))

    def _keep(self, stage: Stage) -> None:
        """Have a closed stage dropped when it is too old."""
        stage.due_ms = self._clock.monotonic_ms() + stage.keep_ms
        self._set_timer(stage.due_ms)

    def _set_timer(self, due_ms: int) -> None:
        """Look at all stages at that time, or before."""
        if self._timer is not None:
            if self._timer_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_ms = due_ms
        delay_ms = max(due_ms - self._clock.monotonic_ms(), 0)
        self._timer = self._clock.call_later(delay_ms / 1000, self._expire)

    def _expire(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._timer = None
        # One that is being published is kept anew, or gone, after that.
        kept = [s for s in self._stages.values() if s.due_ms and not s.publishing]
        for stage in kept:
            if stage.due_ms <= now_ms:
                self._remove(stage)
            else:
                self._set_timer(stage.due_ms)
