"""Where a broker process keeps streams and timelines: data folder, object store, PostgreSQL.

The data folder is opened at the start when it was named or is there already; else when the first
stream or timeline is made, so that a broker of live topics leaves no folder behind.

Always true: what cannot be opened is told by the setting it comes from, with nothing changed; and
the event loop never waits for a disk or a store, the making of a first stream apart.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import structlog

from ister.base import Clock
from ister.base.errors import (
    BadRequestError,
    ConfigError,
    IsterError,
    StorageFailedError,
)
from ister.broker import (
    Broker,
    Spool,
    Spooling,
    StoreWorker,
    TailBudget,
    ThreadWorker,
    Vault,
    WithStore,
    Workers,
    open_vault,
)
from ister.log import ChunkBackend, Entry, FileBackend, LogOptions, Place, Store
from ister.objects import FileKeyring, LocalDisk, open_store, store_options, verify_store
from ister.server.config import ServerConfig
from ister.server.store_places import StorePlaces
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

_T = TypeVar("_T")


class Storage:
    """The vaults of one broker process."""

    def __init__(
        self, config: ServerConfig, clock: Clock, *, environment: Mapping[str, str]
    ) -> None:
        self._folder = config.data_folder
        self._named = config.data is not None
        self._config = config.storage
        self._clock = clock
        self._store_options = store_options(environment)
        self._loop = asyncio.get_running_loop()
        self._budget = TailBudget(self._config.memory_bytes)
        self._disk: LocalDisk | None = None
        self._vaults: list[Vault] = []
        self._keyring: FileKeyring | None = None
        self._timelines = open_timelines(self._config.timelines, self._folder / FILE_NAME)
        self._store_process: StoreProcess | None = None
        # Of staging, which has none before it is used, and of timelines.
        self._threads: list[ThreadWorker] = []

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

    def _new_store_worker(self, broker: Broker) -> StoreWorker:
        if self._config.timelines or sys.platform == "win32":
            return WithStore(self._timelines, self._new_worker("timelines", 1))
        file = self._folder / FILE_NAME
        self._store_process = StoreProcess(file)
        # One that the process has had is not made anew.
        self._timelines = SqliteStore(file, was_there=True)
        here = WithStore(self._timelines, self._new_worker("timelines", 1))
        return StorePlaces(
            self._store_process,
            here,
            self._timelines,
            calm=broker.is_calm,
            call_soon=self._loop.call_soon,
        )

    async def open(self, broker: Broker) -> None:
        """Open what is there, and have the broker take it over.

        Raises `ConfigError`, `StorageTakenError`, `CorruptedError`, `EncryptionKeyError`, or an
        `OSError` that names the setting.
        """
        local, remote = await in_thread(self._load)
        if local is not None:
            broker.adopt(local)
        if remote is not None:
            broker.adopt(remote, is_object=True)
        timelines = await in_thread(self._load_timelines)
        self._check_names(broker, timelines)
        worker = self._new_store_worker(broker)
        broker.adopt_timelines(worker, timelines, call_soon=self._loop.call_soon)

    def open_local(self) -> Vault:
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
        """Commit what is under way, leave a checkpoint for a quick start, and let go of it all."""
        for worker in self._threads:
            await in_thread(worker.close)
        try:
            await in_thread(self._timelines.close)
        except IsterError as error:
            # As below.
            logger.warning("timelines_not_closed", reason=str(error))
        if self._store_process is not None:
            await self._store_process.close()
        for vault in self._vaults:
            await self._settle(vault)
            try:
                await in_thread(vault.close)
            except OSError as error:
                # Whatever was acknowledged is on the disk; the rest was promised to nobody.
                logger.warning("storage_not_closed", journal=vault.name, reason=str(error))
        if self._disk is not None:
            self._disk.unlock()

    # Opening

    def _load(self) -> tuple[Vault | None, Vault | None]:
        """Open what is to be opened at the start. Runs in a thread."""
        config = self._config
        if config.key_file is not None:
            self._keyring = FileKeyring.open(config.key_file)
        local = remote = None
        if self._named or (self._folder / "segments").is_dir():
            local = self._open_folder()
        if config.object_store:
            with blamed_on(f"--object-store {config.object_store}"):
                store = open_store(config.object_store, self._store_options)
                # Two owners of one journal are told apart by this alone: never take it on trust.
                verify_store(store)
                remote = self._open(ChunkBackend(store), None, config.object_store)
        return local, remote

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
        if not file.exists():
            return []  # The first one makes the file.
        topics = self._timelines.topics()
        # One process at a time has it open.
        self._timelines.close()
        return topics

    def _check_names(self, broker: Broker, timelines: list[TopicRow]) -> None:
        """Raise `ConfigError` for timelines that do not belong to the streams of this folder."""
        taken = [row.name for row in timelines if broker.catalog.is_taken(row.name)]
        if taken:
            place = "--timelines" if self._config.timelines else FILE_NAME
            mistake = f"{place}: {taken[0]!r} is a stream in {self._folder} as well"
            raise ConfigError([f"{mistake}: use the one that belongs to this folder"])

    def _open_folder(self) -> Vault:
        """Open the data folder, making it if it is missing."""
        tier: Store | None = None
        if self._config.tier:
            with blamed_on(f"--tier {self._config.tier}"):
                tier = open_store(self._config.tier, self._store_options)
        with blamed_on(f"--data {self._folder}"):
            disk = LocalDisk(self._folder)
            disk.lock()
            try:
                vault = self._open(FileBackend(disk), tier, str(self._folder))
                check_tier(vault, tier, self._folder)
            except BaseException:
                disk.unlock()
                raise
        self._disk = disk
        return vault

    def _open(self, backend: FileBackend | ChunkBackend, tier: Store | None, place: str) -> Vault:
        options = LogOptions(
            segment_bytes=self._config.segment_bytes,
            remote=tier,
            ciphers=self._keyring,
            now_ms=self._clock.now_ms,
        )
        vault = open_vault(
            backend,
            options,
            workers=self._workers,
            clock=self._clock,
            budget=self._budget,
            call_soon=self._loop.call_soon,
            upload_after_ms=self._config.tier_after_ms,
            on_entry=Replaying(place, self._clock, logger.info).on_entry,
        )
        self._vaults.append(vault)
        tell_opened(vault, place)
        return vault

    def _workers(self) -> Workers:
        call_soon = self._loop.call_soon_threadsafe
        return Workers(
            writing=ThreadWorker("journal", 1, call_soon),
            reading=ThreadWorker("read", READING_THREADS, call_soon),
            housekeeping=ThreadWorker("housekeeping", 1, call_soon),
            compacting=ThreadWorker("compactor", 1, call_soon),
        )

    # Closing

    async def _settle(self, vault: Vault) -> None:
        idle: asyncio.Future[None] = self._loop.create_future()
        vault.committer.kick()
        vault.committer.on_idle(lambda: finish(idle))
        await idle
        while vault.checkpointing:  # noqa: ASYNC110 - once in the life of a broker
            await asyncio.sleep(CHECKPOINT_POLL_S)
        if vault.committer.error is None:
            written: asyncio.Future[None] = self._loop.create_future()
            vault.checkpoint(lambda _: finish(written))
            await written


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
        return SqliteStore(file)
    try:
        return postgres_timelines(url, alone=True)
    except BadRequestError as error:
        raise ConfigError([f"--timelines: {error.reason}"]) from None


def check_tier(vault: Vault, tier: Store | None, folder: Path) -> None:
    """Raise `ConfigError` when segments lie in a store that was not named: who would read them?"""
    if tier is None and any(one.place is Place.REMOTE for one in vault.log.segments):
        mistake = f"--data {folder}: some of it was moved to a store: name it by --tier"
        raise ConfigError([mistake])


def tell_opened(vault: Vault, place: str) -> None:
    """Log what was found, and what was left of a write that a crash cut off."""
    report = vault.log.recovery
    logger.info(
        "storage_opened",
        place=place,
        topics=len(vault.ledger.topics),
        subscriptions=len(vault.ledger.subscriptions),
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
