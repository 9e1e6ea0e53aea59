"""Start-up and shutdown of a broker process.

Start: file limit, storage (the journal is replayed), metadata with the schema registry, broker,
object store, native door, HTTP door, gRPC doors, ready file. Only then is the broker ready, and
whoever waits for the file finds every door open.

    STARTING --doors open--> READY --first signal--> CLOSING --drained or deadline--> end
    STARTING --first signal--> end at once
    CLOSING --second signal--> end at once

Always true:
- a ready file names a process that was ready; it is removed when that process closes;
- the object store is taken from the broker that runs on it only when all else has succeeded and the
  ports are free.
"""

import asyncio
import contextlib
import gc
import json
import os
import random
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from ister.base import AutoCreate, Clock
from ister.base.errors import ConfigError, StorageFailedError
from ister.broker import Broker, RecentBudget
from ister.codec import keep_freed_memory
from ister.config import GrpcConfig, ServerConfig
from ister.metadata import Metadata, SqliteMetadata
from ister.objects import make_folder
from ister.server.addresses import check_addresses, explain
from ister.server.backups import Backups
from ister.server.native import NativeDoor
from ister.server.operations import Dispatcher
from ister.server.security import Authenticator, open_authenticator
from ister.server.storage import Storages, in_thread
from ister.server.threads import DaemonExecutor
from ister.telemetry import SystemClock

if TYPE_CHECKING:
    from ister.registry import Registry
    from ister.server.grpc import GrpcDoor
    from ister.server.http import HttpDoor

logger = structlog.get_logger("serve")

# Objects made and not freed before the collector looks for cycles among them. There are hardly any:
# with Python's own 700, a busy broker spent 2.5 % of its time on looking, up to 4 ms at once.
GC_THRESHOLDS = (10_000, 20, 50)
# How long a thread that computes keeps the interpreter when the event loop wants it. With Python's
# own 5 ms, eight threads that check messages against schemas held up everybody for 0.1 to 0.4 s.
SWITCH_S = 0.0005
# "Every address of this machine" is fine to listen on, but nothing to connect to.
_REACHED_BY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Where the open doors are, as `host:port`."""

    pid: int
    native: str
    http: str
    # Empty when the gRPC doors are not open.
    grpc: str = ""
    admin: str = ""
    # Whether the doors speak TLS.
    tls: bool = False

    @property
    def doors(self) -> dict[str, str]:
        """Every open door by its name."""
        found = {"native": self.native, "http": self.http, "grpc": self.grpc, "admin": self.admin}
        return {name: address for name, address in found.items() if address}

    @property
    def url(self) -> str:
        """What clients on this machine connect to."""
        host, _, port = self.native.rpartition(":")
        scheme = "isters" if self.tls else "ister"
        return f"{scheme}://{_REACHED_BY.get(host, host)}:{port}"


OnReady = Callable[[Addresses], object]
Listen = Callable[[str, int], Awaitable[tuple[str, int]]]


def run_broker(config: ServerConfig, *, on_ready: OnReady | None = None) -> None:
    """Run a broker until a signal ends it. Raises `ConfigError` when it cannot start."""
    # Start-up has made tens of thousands of objects that live for ever: frozen, they are never
    # looked at again by the collector, whose pauses would show in the latency. 1,300 of them,
    # 0.1 MB, are garbage in cycles: to collect them first took 24 ms, a tenth of the start.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.get_loop().set_default_executor(DaemonExecutor())
        runner.run(run_server(config, on_ready=on_ready))


async def run_server(config: ServerConfig, *, on_ready: OnReady | None = None) -> None:
    """As `run_broker`, inside a running event loop whose signals are ours."""
    # Here, because whoever needs only the native door should not pay for a web server.
    from ister.server.http import App, HttpDoor, Sites

    keep_freed_memory()
    loop = asyncio.get_running_loop()
    stopped, forced = _listen_for_signals(loop)
    files_max = _raise_file_limit(config.limits.connections_max)
    _prepare_files(config)
    clock = SystemClock(loop.call_later)
    authenticator = open_authenticator(config.security, clock.monotonic_ms)
    storage = Storages(config, clock, environment=os.environ)
    broker = _new_broker(config, clock, storage)
    metadata = SqliteMetadata(config.data_folder)
    opening = asyncio.ensure_future(_open_storage(config, broker, storage, metadata, clock))
    if not await _comes_first(opening, stopped):
        opening.cancel()
        logger.info("broker_closed", reason="asked to end while it was starting")
        return
    registry, grpc_door = opening.result()
    broker.schema_check_of = registry.find_check
    registry.on_bound.append(broker.on_bound)
    dispatcher = Dispatcher(broker, registry)
    native = NativeDoor(
        broker,
        heartbeat_ms=config.native.heartbeat_ms,
        busy_poll_us=config.native.busy_poll_us,
        dispatcher=dispatcher,
        authenticator=authenticator,
    )
    doors = Doors(
        native,
        HttpDoor(App(broker, native, dispatcher, authenticator, Sites(config.http_names))),
        Backups(config.data_folder, storage.sources, now_ms=clock.now_ms),
    )
    try:
        if grpc_door is not None:
            doors.grpc = grpc_door(
                broker,
                registry=registry,
                metadata=metadata,
                dispatcher=dispatcher,
                authenticator=authenticator,
                connections_max=_grpc_connections_max(config.limits.connections_max, files_max),
            )
        addresses = await _open_doors(config, doors, authenticator)
        # As in `run_broker`, for what the doors have loaded.
        gc.freeze()
        dispatcher.node.doors.update(addresses.doors)
        await doors.backups.open()
        _write_ready_file(config.ready_file, addresses)
        logger.info("broker_ready", broker=broker.name, **addresses.doors)
        if on_ready is not None:
            on_ready(addresses)
        reason = await stopped
        logger.info("broker_closing", reason=reason, connections=broker.connections)
    finally:
        _remove_ready_file(config.ready_file)
        await _unless_forced(_close(config, broker, storage, metadata, doors), forced)
    logger.info("broker_closed")


@dataclass(slots=True)
class Doors:
    """Every door of a broker."""

    native: NativeDoor
    http: "HttpDoor"
    backups: Backups
    grpc: "GrpcDoor | None" = None


def _new_broker(config: ServerConfig, clock: Clock, storage: Storages) -> Broker:
    return Broker(
        name=config.name or _host_name(),
        limits=config.limits,
        clock=clock,
        random_slot=random.randrange,
        recent=RecentBudget(config.storage.memory_bytes),
        open_local=storage.open_local,
        spooling=storage.spooling,
        auto_create=AutoCreate.parse(config.auto_create),
        call_soon=asyncio.get_running_loop().call_soon,
    )


async def _open_storage(
    config: ServerConfig, broker: Broker, storage: Storages, metadata: Metadata, clock: Clock
) -> "tuple[Registry, type[GrpcDoor] | None]":
    """Open everything that was kept, and load what the gRPC doors need while the disk works.

    The object store comes last.
    """
    from ister.registry import Registry

    opened = asyncio.ensure_future(storage.open(broker))

    async def open_registry() -> Registry:
        try:
            return await Registry.open(metadata, now_ms=clock.now_ms)
        except StorageFailedError:
            # On a full disk there is room only when the journal has let go of some.
            await opened
            return await Registry.open(metadata, now_ms=clock.now_ms)

    _, registry, grpc_door = await asyncio.gather(
        opened, open_registry(), in_thread(lambda: _import_grpc(config.grpc))
    )
    await _check_ports(config, with_grpc=grpc_door is not None)
    await storage.take_over(broker)
    return registry, grpc_door


def _import_grpc(config: GrpcConfig) -> "type[GrpcDoor] | None":
    """Return the gRPC doors, if they are wanted and can be had. Takes 0.1 s."""
    if not config.wanted:
        return None
    try:
        from ister.server.grpc import GrpcDoor
    except ImportError as error:
        if config.demanded:
            mistake = f"the gRPC doors need packages: pip install 'ister[grpc]' ({error})"
            raise ConfigError([mistake]) from error
        logger.info("door_missing", door="grpc", hint="pip install 'ister[grpc]' for Danube's API")
        return None
    return GrpcDoor


async def _check_ports(config: ServerConfig, *, with_grpc: bool) -> None:
    """Raise one error that names each port that cannot be opened."""
    mistakes = []
    for flag, host, port in _ports(config, with_grpc=with_grpc).values():
        try:
            await check_addresses(host, port)
        except OSError as error:
            mistakes.append(f"{flag} {port}: {explain(error, host, port)}")
    if mistakes:
        raise ConfigError(mistakes)


def _ports(config: ServerConfig, *, with_grpc: bool) -> dict[str, tuple[str, str, int]]:
    """Return the option, host and port of each door, by its name."""
    ports = {
        "native": ("--port", config.native.host, config.native.port),
        "http": ("--http-port", config.http_host, config.http.port),
    }
    if with_grpc:
        ports["grpc"] = ("--grpc-port", config.grpc_host, config.grpc_port)
        ports["admin"] = ("--admin-port", config.grpc_host, config.admin_port)
    return ports


async def _open_doors(
    config: ServerConfig, doors: Doors, authenticator: Authenticator
) -> Addresses:
    """Open every door, or raise one error that names each that could not be opened."""
    mistakes = []
    bound = {}
    listeners: dict[str, Listen] = {"native": doors.native.listen, "http": doors.http.listen}
    if doors.grpc is not None:
        await doors.grpc.load()
        listeners["grpc"] = partial(doors.grpc.listen, advertise=config.grpc.advertise)
        listeners["admin"] = doors.grpc.listen_admin
    ports = _ports(config, with_grpc=doors.grpc is not None)
    for name, (flag, host, port) in ports.items():
        try:
            bound[name] = _address_text(await listeners[name](host, port))
        except OSError as error:
            mistakes.append(f"{flag} {port}: {explain(error, host, port)}")
    if mistakes:
        raise ConfigError(mistakes)
    return Addresses(pid=os.getpid(), tls=authenticator.tls is not None, **bound)


async def _close(
    config: ServerConfig, broker: Broker, storage: Storages, metadata: Metadata, doors: Doors
) -> None:
    deadline_s = config.shutdown.deadline_ms / 1000
    await doors.backups.close()
    closing = [doors.native.close(deadline_s)]
    if doors.grpc is not None:
        closing.append(doors.grpc.close(deadline_s))
    await asyncio.gather(*closing)
    # After the others, so that `/readyz` tells until the end that this broker is closing.
    await doors.http.close()
    broker.streams.close()
    await storage.settle_timelines(broker)
    await storage.close()
    await metadata.close()


async def _unless_forced(
    closing: Coroutine[Any, Any, None], forced: "asyncio.Future[None]"
) -> None:
    """Run `closing` to its end, or until a second signal asks to end at once."""
    task = asyncio.ensure_future(closing)
    if not await _comes_first(task, forced):
        logger.warning("broker_forced")
        task.cancel()
        return
    await task


async def _comes_first(one: "asyncio.Future[Any]", other: "asyncio.Future[Any]") -> bool:
    """Wait for the first of two, and return whether it is `one`."""
    await asyncio.wait({one, other}, return_when=asyncio.FIRST_COMPLETED)
    return one.done()


def _listen_for_signals(
    loop: asyncio.AbstractEventLoop,
) -> "tuple[asyncio.Future[str], asyncio.Future[None]]":
    """Return futures: the first signal finishes one with its name, the second the other."""
    stopped: asyncio.Future[str] = loop.create_future()
    forced: asyncio.Future[None] = loop.create_future()

    def on_signal(name: str) -> None:
        if not stopped.done():
            stopped.set_result(name)
        elif not forced.done():
            forced.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number.name)
    return stopped, forced


def _prepare_files(config: ServerConfig) -> None:
    """Make the data folder and clear a ready file of former times, or raise `ConfigError`."""
    mistakes = []
    if config.data is not None:
        try:
            make_folder(config.data)
            if not os.access(config.data, os.W_OK | os.X_OK):
                mistakes.append(f"--data {config.data}: cannot be written to")
        except OSError as error:
            mistakes.append(f"--data {config.data}: {error.strerror or error}")
    if config.ready_file is not None:
        try:
            config.ready_file.unlink(missing_ok=True)
            if not os.access(config.ready_file.parent, os.W_OK | os.X_OK):
                mistakes.append(
                    f"--ready-file {config.ready_file}: its folder is missing or not writable"
                )
        except OSError as error:
            mistakes.append(f"--ready-file {config.ready_file}: {error.strerror or error}")
    if mistakes:
        raise ConfigError(mistakes)


def _write_ready_file(path: Path | None, addresses: Addresses) -> None:
    if path is None:
        return
    text = json.dumps({"pid": addresses.pid, **addresses.doors, "url": addresses.url})
    part = path.with_name(f"{path.name}.{addresses.pid}")
    part.write_text(text + "\n", encoding="utf-8")
    # A rename is atomic: a reader sees no file or all of it.
    part.replace(path)


def _remove_ready_file(path: Path | None) -> None:
    """Remove the file, unless another broker has written its own there since."""
    if path is None:
        return
    with contextlib.suppress(OSError, ValueError):
        if json.loads(path.read_text(encoding="utf-8"))["pid"] == os.getpid():
            path.unlink()


def _grpc_connections_max(wanted: int, files_max: int | None) -> int:
    """Return what each of the two gRPC doors takes.

    A quarter of the open files for each: they are to leave files to the other doors and to the
    storage.
    """
    return wanted if files_max is None else max(1, min(wanted, files_max // 4))


def _raise_file_limit(wanted: int) -> int | None:
    """Raise the soft limit of open files to the hard one, and return it; `None` is without limit.

    Tells when it is still too low.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # Some systems refuse "unlimited" although they report it: the soft limit then stays.
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    if soft == resource.RLIM_INFINITY:
        return None
    if soft < wanted:
        logger.warning("file_limit_low", files_max=soft, files_wanted=wanted)
    return soft


def _address_text(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host_name() -> str:
    name = "".join(
        c if c.isascii() and (c.isalnum() or c in ".-_") else "-" for c in socket.gethostname()
    )
    return name.strip(".-_")[:64] or f"ister-{version('ister')}"


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
