"""Where a broker process keeps streams and timelines: data folder, object store, PostgreSQL.

The data folder is opened at the start when it was named or is there already; else when the first
stream or timeline is made, so that a broker of live topics leaves no folder behind.

Always true:
- what cannot be opened is reported with the setting it comes from, and nothing is changed;
- the object store is taken over last. Whatever else can fail comes first, so that a start that
  fails leaves the broker that runs on the store undisturbed;
- the event loop never waits for a disk or a store, except while a first stream is made.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import structlog

from ister.base import Clock, without_secrets
from ister.base.errors import (
    BadRequestError,
    ConfigError,
    IsterError,
    StorageFailedError,
)
from ister.base.limits import TIMELINE_RESERVE_BYTES
from ister.broker import (
    Broker,
    Budgets,
    Spool,
    Spooling,
    State,
    Storage,
    StoreWorker,
    ThreadWorker,
    WithStore,
    Workers,
    open_storage,
)
from ister.config import ServerConfig
from ister.log import ChunkBackend, Entry, FileBackend, LogOptions, Place, Store
from ister.objects import (
    FileKeyring,
    LocalDisk,
    VerifiedStore,
    open_store,
    store_options,
    verify_store,
)
from ister.server.restoring import check_restored
from ister.server.store_process import StoreProcess
from ister.timeline import FILE_NAME, SqliteStore, TopicRow, postgres_timelines
from ister.timeline import Store as TimelineStore

logger = structlog.get_logger("storage")

# Reads of what is not in memory wait for the disk, not for the processor.
READING_THREADS = 4
# A start that takes longer tells how far it is, each time this has passed.
PROGRESS_MS = 2_000
# How often a checkpoint that is under way is looked at while closing.
CHECKPOINT_POLL_S = 0.01

# How long a start waits for the tier to be verified: three requests of a slow store. A broker whose
# data is local starts without it, and the tier is verified before the first upload.
TIER_ANSWER_S = 10.0
# How long the end of a broker waits for checkpoints, rewrites, uploads and reads under way. A last
# checkpoint of 100,000 topics is 40 MB: two seconds to a store. With the 10 s for queues, and with
# commits under way, it is well below the 30 s of Kubernetes.
CLOSING_S = 5.0

ABANDONED = (
    "a disk or a store does not answer; everything acknowledged is stored, and the next start "
    "replays what the last checkpoint does not have"
)

_T = TypeVar("_T")


class Sources(NamedTuple):
    """What a backup is made of, beside the metadata; `None`: there is none in the folder."""

    folder: Path
    storage: Storage | None
    timelines: StoreWorker | None
    # What is not in a backup, for people.
    notes: tuple[str, ...] = ()


class Storages:
    """The storages of one broker process."""

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        *,
        environment: Mapping[str, str],
        closing_s: float = CLOSING_S,
    ) -> None:
        self._folder = config.data_folder
        self._named = config.data is not None
        self._config = config.storage
        self._clock = clock
        self._closing_s = closing_s
        self._store_options = store_options(environment)
        self._loop = asyncio.get_running_loop()
        self._budgets = Budgets(config.limits)
        self._disk: LocalDisk | None = None
        self._tier: VerifiedStore | None = None
        self._storages: list[Storage] = []
        self._keyring: FileKeyring | None = None
        self._timelines = open_timelines(self._config.timelines, self._folder / FILE_NAME)
        self._timeline_rows: list[TopicRow] = []
        self._store_process: StoreProcess | None = None
        self._store_worker: StoreWorker | None = None
        # Of staging, which has none before it is used, and of timelines.
        self._threads: list[ThreadWorker] = []
        # Of all storages on disks, and of all in stores: for reading, upkeep and compaction.
        self._shared: dict[str, list[ThreadWorker]] = {}

    @property
    def spooling(self) -> Spooling:
        """Where stages wait: in the data folder, as soon as there is one."""

        return Spooling(
            new_spool=lambda: Spool(self._folder, self._keyring), new_worker=self._new_worker
        )

    def _new_worker(self, name: str, threads: int) -> ThreadWorker:
        worker = ThreadWorker(name, threads, self._loop.call_soon_threadsafe)
        self._threads.append(worker)
        return worker

    def _new_store_worker(self) -> StoreWorker:
        if self._config.timelines or sys.platform == "win32":
            return WithStore(self._timelines, self._new_worker("timelines", 1))
        self._store_process = StoreProcess(self._folder / FILE_NAME)
        return self._store_process

    async def open(self, broker: Broker) -> None:
        """Open all but the object store, and have the broker take it over.

        Raises `ConfigError`, `CorruptedError`, `EncryptionKeyError`, `NotEncryptedError`, or an
        `OSError` that names the setting.
        """
        local = await in_thread(self._load)
        if local is not None:
            broker.adopt(local)
        self._timeline_rows = await in_thread(self._load_timelines)
        self._check_names(broker.catalog.is_taken, str(self._folder))

    async def take_over(self, broker: Broker) -> None:
        """Take the object store over from the broker that has it, then begin with the timelines.

        To be called after `open`, and when nothing else of the start can fail: if the other broker
        still runs, it has lost the object store after this.
        Raises what `open` does, and `StorageTakenError`, without taking over the store.
        """
        if self._config.object_store:
            remote = await in_thread(lambda: self._take_over_store(broker))
            broker.adopt(remote, is_object=True)
        worker = self._store_worker = self._new_store_worker()
        # Last: delayed messages may be for topics in the object store.
        broker.adopt_timelines(worker, self._timeline_rows, call_soon=self._loop.call_soon)

    def sources(self) -> "Sources":
        """Return what a backup is made of, or raise `BadRequestError` for what none can be made."""
        if self._config.object_store:
            raise BadRequestError(
                f"this broker keeps streams in {without_secrets(self._config.object_store)}, which "
                "a backup does not copy: use the versions or the replication of the object store"
            )
        storages = (
            storage for storage in self._storages if isinstance(storage.log.backend, FileBackend)
        )
        worker = None if self._config.timelines else self._store_worker
        notes = []
        if self._config.timelines:
            notes.append("timelines are in PostgreSQL: back them up with the tools of that")
        if self._keyring is not None:
            notes.append("streams are encrypted: keep a copy of the key file somewhere else")
        return Sources(self._folder, next(storages, None), worker, tuple(notes))

    def open_local(self) -> Storage:
        """Open the data folder for a first stream. Raises what `open` does, as an `IsterError`."""
        try:
            return self._open_folder()
        except OSError as error:
            reason = f"{error.filename}: {error.strerror}"
            logger.exception("storage_not_opened", folder=str(self._folder), reason=reason)
            raise StorageFailedError(reason) from error

    async def settle_timelines(self, broker: Broker) -> None:
        """Return when what consumers gave back as they left is stored; take no more after that."""
        settled: asyncio.Future[None] = self._loop.create_future()
        broker.timelines.after_work(lambda: finish(settled))
        await settled
        broker.timelines.close()

    async def close(self) -> None:
        """Commit what is under way, leave a checkpoint for a quick start, and let go of it all.

        Commits are waited for. Everything else has `CLOSING_S`, all together: a store that does
        not answer keeps the process no longer, and costs the next start a replay.
        """
        ends_s = self._loop.time() + self._closing_s

        def left_s() -> float:
            return max(0.0, ends_s - self._loop.time())

        for worker in self._threads:
            await in_thread(worker.close)
        try:
            await in_thread(self._timelines.close)
        except IsterError as error:
            # As below.
            logger.warning("timelines_not_closed", reason=str(error))
        if self._store_process is not None:
            await self._store_process.close()
        for storage in self._storages:
            await self._settle(storage, left_s)
            try:
                if not await in_thread(partial(storage.close, left_s())):
                    logger.warning("upkeep_abandoned", journal=storage.name, hint=ABANDONED)
            except OSError as error:
                # Whatever was acknowledged is on the disk; the rest was promised to nobody.
                logger.warning("storage_not_closed", journal=storage.name, reason=str(error))
        for shared in self._shared.values():
            for worker in shared:
                await in_thread(partial(worker.close, left_s()))
        if self._disk is not None:
            self._disk.unlock()

    # Opening

    def _load(self) -> Storage | None:
        """Open the tier, and the data folder if it is to be opened. Runs in a thread."""
        config = self._config
        if config.key_file is not None:
            self._keyring = FileKeyring.open(config.key_file)
        if config.tier:
            # Here, and not with the first stream: that one is made in the event loop.
            with blamed_on(f"--tier {config.tier}"):
                self._tier = VerifiedStore(open_store(config.tier, self._store_options))
                verify_tier(self._tier)
        if self._named or (self._folder / "segments").is_dir():
            return self._open_folder()
        return None

    def _take_over_store(self, broker: Broker) -> Storage:
        """Open the object store. Runs in a thread, while nothing else uses the broker."""
        url = self._config.object_store

        def check(state: State) -> None:
            broker.catalog.check_adoptable(state)
            names = state.names()
            self._check_names(lambda name: name in names, url)

        with blamed_on(f"--object-store {url}"):
            store = open_store(url, self._store_options)
            # Two owners of one journal are told apart by this alone: never take it on trust.
            verify_store(store)
            return self._open(ChunkBackend(store), None, url, before_take_over=check)

    def _load_timelines(self) -> list[TopicRow]:
        """Return the timelines there are. Runs in a thread."""
        file = self._folder / FILE_NAME
        if self._config.timelines:
            if file.exists():
                hint = "what is in it is not handed out by this broker"
                logger.warning("timelines_unused", file=str(file), hint=hint)
            try:
                return self._timelines.topics()
            except StorageFailedError as error:
                raise ConfigError([f"--timelines: {error.reason}"]) from error
        check_restored(self._folder)
        if not file.exists():
            return []  # The first one makes the file.
        topics = self._timelines.topics()
        # One process at a time has it open.
        self._timelines.close()
        return topics

    def _check_names(self, is_stream: Callable[[str], bool], streams: str) -> None:
        """Raise `ConfigError` for timelines that do not belong to the streams of a place."""
        taken = [row.name for row in self._timeline_rows if is_stream(row.name)]
        if taken:
            place = "--timelines" if self._config.timelines else FILE_NAME
            mistake = f"{place}: {taken[0]!r} is a stream in {streams} as well"
            raise ConfigError([f"{mistake}: use the one that belongs to this folder"])

    def _open_folder(self) -> Storage:
        """Open the data folder, making it if it is missing. Asks nothing of the tier."""
        with blamed_on(f"--data {self._folder}"):
            disk = LocalDisk(self._folder)
            disk.lock()
            try:
                check_restored(self._folder)
                storage = self._open(FileBackend(disk), self._tier, str(self._folder))
                check_tier(storage, self._tier, self._folder)
            except BaseException:
                disk.unlock()
                raise
        self._disk = disk
        return storage

    def _open(
        self,
        backend: FileBackend | ChunkBackend,
        tier: Store | None,
        place: str,
        *,
        before_take_over: Callable[[State], object] = lambda _: None,
    ) -> Storage:
        options = LogOptions(
            segment_bytes=self._config.segment_bytes,
            remote=tier,
            ciphers=self._keyring,
            accept_plain=self._config.accept_unencrypted,
            now_ms=self._clock.now_ms,
        )
        kind = "store" if isinstance(backend, ChunkBackend) else "disk"
        storage = open_storage(
            backend,
            options,
            workers=lambda: self._workers(kind),
            clock=self._clock,
            budgets=self._budgets,
            call_soon=self._loop.call_soon,
            upload_after_ms=self._config.tier_after_ms,
            on_entry=Replaying(place, self._clock, logger.info).on_entry,
            before_take_over=before_take_over,
        )
        self._storages.append(storage)
        tell_opened(storage, place)
        if self._keyring is not None and storage.log.was_plain:
            # An encrypted manifest that says which files are not: then the setting can go.
            storage.trimmed = True
            logger.warning(
                "log_not_encrypted",
                place=place,
                hint="the stored data is not encrypted, only new data will be; leave "
                "--accept-unencrypted out from the next start on",
            )
        return storage

    def _workers(self, place: str) -> Workers:
        """Return the threads of a storage: its own for writing, for the rest those of its `place`.

        Disks and stores have some each, and so has the tier of a disk: a store that does not answer
        keeps nobody from reading the disk.
        """
        shared = self._shared.get(place)
        if shared is None:
            call_soon = self._loop.call_soon_threadsafe
            shared = self._shared[place] = [
                ThreadWorker(f"{place}-{name}", threads, call_soon)
                for name, threads in (
                    ("read", READING_THREADS),
                    ("tier", READING_THREADS),
                    ("upkeep", 1),
                    ("compactor", 1),
                )
            ]
        reading, reading_remote, housekeeping, compacting = shared
        return Workers(
            writing=ThreadWorker(f"{place}-journal", 1, self._loop.call_soon_threadsafe),
            reading=reading.share(),
            reading_remote=reading_remote.share() if place == "disk" else None,
            housekeeping=housekeeping.share(),
            compacting=compacting.share(),
        )

    # Closing

    async def _settle(self, storage: Storage, left_s: Callable[[], float]) -> None:
        idle: asyncio.Future[None] = self._loop.create_future()
        storage.committer.wake()
        storage.committer.on_idle(lambda: finish(idle))
        await idle
        try:
            async with asyncio.timeout(left_s()):
                while storage.checkpointing:  # noqa: ASYNC110 - once in the life of a broker
                    await asyncio.sleep(CHECKPOINT_POLL_S)
                if storage.committer.error is None:
                    written: asyncio.Future[None] = self._loop.create_future()
                    storage.checkpoint(lambda _: finish(written))
                    await written
        except TimeoutError:
            logger.warning("checkpoint_abandoned", journal=storage.name, hint=ABANDONED)


class Replaying:
    """Tells how far the replay of a journal is, when it takes long."""

    def __init__(self, place: str, clock: Clock, tell: Callable[..., object]) -> None:
        """`tell` takes an event with its fields, as `logger.info` does."""
        self._place = place
        self._clock = clock
        self._tell = tell
        self._told_ms = clock.monotonic_ms()
        self._entries = 0

    def on_entry(self, entry: Entry) -> None:
        """Count an entry that was replayed."""
        self._entries += 1
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._told_ms >= PROGRESS_MS:
            self._told_ms = now_ms
            self._tell(
                "storage_replaying",
                place=self._place,
                entries=self._entries,
                segment=entry.segment,
                position=entry.position,
            )


def open_timelines(url: str, file: Path) -> TimelineStore:
    """Return the place of timelines, which nobody has connected to yet."""
    if not url:
        return SqliteStore(file, reserve_bytes=TIMELINE_RESERVE_BYTES)
    try:
        return postgres_timelines(url, alone=True)
    except BadRequestError as error:
        raise ConfigError([f"--timelines: {error.reason}"]) from None


def verify_tier(tier: VerifiedStore, *, answer_s: float = TIER_ANSWER_S) -> None:
    """Verify a tier, if it answers in time: it must not replace a segment of another broker.

    Raises `ConfigError` for a store that does. One that does not answer, or refuses the
    credentials of this broker, is logged and verified before the first upload: credentials expire
    by themselves, and that must not keep a broker whose data is local from starting again.
    """
    failures: list[Exception] = []
    reason = f"no answer within {answer_s:g} s"

    def verify() -> None:
        try:
            tier.verify()
        except Exception as error:  # noqa: BLE001 - carried over to the thread that waits
            failures.append(error)

    thread = threading.Thread(target=verify, name="ister-tier", daemon=True)
    thread.start()
    thread.join(answer_s)
    if not thread.is_alive():
        if not failures:
            return
        if not isinstance(failures[0], OSError):
            raise failures[0]
        reason = str(failures[0])
    logger.error(
        "tier_not_verified",
        tier=tier.url,
        reason=reason,
        hint="the broker starts with its local data; no segment is moved to the tier, and segments "
        "there cannot be read, until the tier answers and accepts the credentials",
    )


def check_tier(storage: Storage, tier: Store | None, folder: Path) -> None:
    """Raise `ConfigError` when segments lie in a store that was not named: who would read them?"""
    if tier is None and any(one.place is Place.REMOTE for one in storage.log.segments):
        mistake = f"--data {folder}: some of it was moved to a store: name it by --tier"
        raise ConfigError([mistake])


def tell_opened(storage: Storage, place: str) -> None:
    """Log what was found, and what was left of a write that a crash cut off."""
    report = storage.log.recovery
    logger.info(
        "storage_opened",
        place=place,
        topics=len(storage.state.topics),
        subscriptions=len(storage.state.subscriptions),
        entries_replayed=report.entries,
        bytes_replayed=report.replayed_bytes,
    )
    if report.cut_bytes:
        logger.warning(
            "torn_tail_cut",
            place=place,
            file=report.cut_file,
            position=report.cut_position,
            size_bytes=report.cut_bytes,
            hint="a write was under way when the broker or the machine went down; "
            "nothing of it had been acknowledged",
        )


@contextmanager
def blamed_on(what: str) -> Iterator[None]:
    """Have an `OSError` name the setting that it comes from."""
    try:
        yield
    except OSError as error:
        reason, name = error.strerror or str(error), str(error.filename or "")
        if name and name not in what and name not in reason:
            reason = f"{name}: {reason}"
        raise OSError(error.errno, reason, what) from error


def finish(future: "asyncio.Future[None]") -> None:
    """Tell whoever still waits."""
    if not future.done():
        future.set_result(None)


async def in_thread(call: Callable[[], _T]) -> _T:
    """Return what `call` returns, from a thread that does not keep the process alive.

    A disk or a store may take as long as it likes: whoever ends the broker need not wait for it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(result: _T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # `None` only if `call` returns it

    def work() -> None:
        result, failure = None, None
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - carried over to the event loop
            failure = error
        with suppress(RuntimeError):  # The loop was closed: nobody waits any more.
            loop.call_soon_threadsafe(settle, result, failure)

    threading.Thread(target=work, name="ister-storage", daemon=True).start()
    return await future
