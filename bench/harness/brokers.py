"""The things under test: `ister serve`, `nats-server` and the relay, each as its own process.

A broker started again on the home of a former one finds that one's data. All listen on 127.0.0.1
on ports the kernel chose, keep their data in the run's own folder, and log no more than they do
by default.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from compileall import compile_dir
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import ister
from bench.harness.counters import Counters
from bench.harness.job import Job
from bench.harness.processes import READY_TIMEOUT_S, BenchError, running, tail, worker

# Fine enough for a start-up of tens of milliseconds, coarse enough not to disturb it.
POLL_S = 0.002

# Door → address, or a list of them.
Addresses = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Broker:
    """A running broker: where its clients connect and which process to watch."""

    contender: str
    address: str
    pid: int
    ready_s: float
    log: Path
    # Where native clients connect, when `address` is for others.
    native: str = ""


# Starts a broker on a folder, and ends it.
Starter = Callable[[Path], AbstractContextManager[Broker]]


@contextmanager
def start_broker(contender: str, folder: Path) -> Iterator[Broker]:
    """Start a contender's broker with a fresh, empty state; yield it when it takes clients."""
    home = folder / f"{contender}-{time.monotonic_ns()}"
    home.mkdir()
    with starter_of(contender)(home) as broker:
        yield broker


def starter_of(contender: str) -> Starter:
    """Return what starts the broker of `contender` on a home."""
    starters: dict[str, Starter] = {
        "echo": start_echo,
        "ister": start_ister,
        "ister_grpc": partial(start_ister, door="grpc"),
        "jetstream": start_jetstream,
        "jetstream_fsync": partial(start_jetstream, sync_interval="always"),
        "nats": start_nats,
        "relay": start_relay,
    }
    return starters[contender]


@contextmanager
def start_nats(home: Path) -> Iterator[Broker]:
    """Start nats-server with its defaults; it writes the port it chose to a file."""
    with run_nats("nats", home, []) as broker:
        yield broker


@contextmanager
def start_jetstream(home: Path, *, sync_interval: str = "") -> Iterator[Broker]:
    """Start nats-server with JetStream on files; by default it syncs them every two minutes."""
    settings = {"store_dir": str(home / "data")}
    if sync_interval:
        settings["sync_interval"] = sync_interval
    config = home / "nats.conf"
    # The server's own format is a superset of JSON.
    config.write_text(json.dumps({"jetstream": settings}))
    contender = "jetstream_fsync" if sync_interval else "jetstream"
    with run_nats(contender, home, ["-c", str(config)]) as broker:
        yield broker


@contextmanager
def run_nats(contender: str, home: Path, options: list[str]) -> Iterator[Broker]:
    """Run nats-server on a free port."""
    command = [find_command("nats-server"), "-a", "127.0.0.1", "-p", "-1", *options]
    log = home / "log"
    forget(home, "*.ports")
    began = time.perf_counter()
    with running([*command, "--ports_file_dir", str(home)], log=log) as process:
        ports = await_file(home, "*.ports", process, log)
        ready_s = time.perf_counter() - began
        yield Broker(contender, str(ports["nats"][0]), process.pid, ready_s, log)


@contextmanager
def start_ister(home: Path, *, door: str = "native") -> Iterator[Broker]:
    """Start `ister serve` with its defaults on free ports; clients use `door`."""
    compile_package()
    command = [find_command("ister"), "serve", "--data", str(home / "data")]
    command += ["--port", "0", "--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
    log = home / "log"
    forget(home, "ready.json")
    began = time.perf_counter()
    with running([*command, "--ready-file", str(home / "ready.json")], log=log) as process:
        doors = await_file(home, "ready.json", process, log)
        ready_s = time.perf_counter() - began
        native = "ister://" + str(doors["native"]).removeprefix("ister://")
        address = native if door == "native" else f"http://{doors[door]}"
        yield Broker("ister", address, process.pid, ready_s, log, native)


@cache
def compile_package() -> None:
    """Compile Ister's modules, as pip does when it installs them.

    Python does so by itself when they are first imported, unless PYTHONDONTWRITEBYTECODE is set:
    then every broker compiled all of them, which took longer than the rest of its start.
    """
    if not compile_dir(Path(ister.__file__).parent, quiet=1):
        raise BenchError("a module of ister does not compile")


def start_relay(home: Path) -> AbstractContextManager[Broker]:
    """Start the relay."""
    return run_contender("relay", "live.relay", home)


def start_echo(home: Path) -> AbstractContextManager[Broker]:
    """Start the bare gRPC server."""
    return run_contender("echo", "grpc.echo", home, scheme="http://")


@contextmanager
def run_contender(contender: str, module: str, home: Path, *, scheme: str = "") -> Iterator[Broker]:
    """Run a server of ours on a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"{scheme}127.0.0.1:{probe.getsockname()[1]}"
    counters = Counters.create(home / "board")
    began = time.perf_counter()
    with worker(module, "serve", counters, Job(address), folder=home) as process:
        process.wait_ready()
        ready_s = time.perf_counter() - began
        yield Broker(contender, address, process.process.pid, ready_s, process.log)


def find_command(name: str) -> str:
    """Return the program of this virtual environment, else the one on the path."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise BenchError(f"no {name!r} beside {sys.executable} or on PATH: install it first")
    return found


def forget(home: Path, pattern: str) -> None:
    """Remove the addresses of the broker that ran here before."""
    for path in home.glob(pattern):
        path.unlink()


def await_file(home: Path, pattern: str, process: subprocess.Popen[bytes], log: Path) -> Addresses:
    """Wait until a broker has written its addresses as JSON, and return them."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        found = parsed(home, pattern)
        if found:
            return found
        if process.poll() is not None:
            raise BenchError(f"broker ended before it was ready\n{tail(log)}")
        time.sleep(POLL_S)
    raise BenchError(f"broker not ready after {READY_TIMEOUT_S:.0f} s\n{tail(log)}")


def parsed(home: Path, pattern: str) -> Addresses | None:
    """Return the JSON of the first file that matches; None while it is absent or half written."""
    for path in home.glob(pattern):
        try:
            found: Addresses = json.loads(path.read_text())
        except ValueError:
            return None
        return found
    return None
