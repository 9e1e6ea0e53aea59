"""Processes of `ister` in no time: forked from one that has loaded everything already.

Most of the time of a short test would else be spent on imports: brokers and commands of this
suite start a thousand times. What is forked is a process as any other, with its own memory, files
and exit code; only the imports lie before the fork. `test_serve.py` starts brokers from scratch.

As a program this is the nursery itself. It forks for each request and tells what became of it.
"""

import atexit
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import socket
import subprocess
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

# Not for brokers or commands: fakes, and pyarrow, which starts a thread when it is imported.
LEFT_OUT = ("ister.testing", "ister.codec.arrow", "ister.spark")
# A request with the environment of a developer; far from what a socket takes at once.
REQUEST_BYTES_MAX = 100_000


def can_fork(env: dict[str, str]) -> bool:
    """Whether a process with this environment may come out of the nursery.

    What the interpreter or the loader reads when it starts must be as it was for the nursery.
    """

    def early(variables: dict[str, str]) -> dict[str, str]:
        return {
            name: value
            for name, value in variables.items()
            if name.startswith(("LD_", "PYTHON", "GRPC_"))
        }

    return hasattr(os, "pidfd_open") and early(env) == early(dict(environment()))


@cache
def environment() -> tuple[tuple[str, str], ...]:
    """The environment before any test changed it: asked for when this is imported."""
    return tuple(os.environ.items())


environment()


class IsterProcess(subprocess.Popen[bytes]):
    """`Popen` of `python -m ister` with some arguments, out of the nursery if possible."""

    _report: socket.socket | None = None

    def __init__(self, args: list[str], *, env: dict[str, str], **options: Any) -> None:
        super().__init__([sys.executable, "-m", "ister", *args], env=env, **options)

    def _execute_child(self, args: Any, *rest: Any) -> None:
        # executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell
        # and then the two ends of stdin, stdout and stderr.
        cwd, env, pipes = rest[4], rest[5], rest[9:15]
        if not can_fork(env):
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        # Packets: the number of the process and its status stay two, however late they are read.
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps({"args": args[3:], "env": env, "cwd": str(cwd or Path.cwd())})
        given = [
            wanted if wanted != -1 else number
            for number, wanted in enumerate((pipes[0], pipes[3], pipes[5]))
        ]
        with theirs:
            socket.send_fds(_nursery(), [request.encode()], [*given, theirs.fileno()])
        self._report = own
        self._child_created = True
        self.pid = self._read_pid(own)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _read_pid(self, report: socket.socket) -> int:
        return int(report.recv(32))

    def _try_wait(self, flags: int) -> tuple[int, int]:
        report = self._report
        if report is None:
            return super()._try_wait(flags)  # type: ignore[misc, no-any-return]
        report.setblocking(not flags & os.WNOHANG)
        try:
            status = report.recv(32)
        except BlockingIOError:
            return 0, 0
        report.close()
        # Without an answer the nursery has died, and with it nobody knows.
        return self.pid, int(status or 255 << 8)

    def _internal_poll(self, *args: Any, **kwargs: Any) -> int | None:
        if self._report is None:
            return super()._internal_poll(*args, **kwargs)  # type: ignore[misc, no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(blocking=False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


@cache
def _nursery() -> socket.socket:
    """Start the nursery of this test process, when it is first needed."""
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            # Without its own folder in the path, where modules have the names of libraries.
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=dict(environment()),
        )

    def close() -> None:
        own.close()
        process.wait()

    atexit.register(close)
    return own


# The nursery.


def load_everything() -> None:
    """Import what any command may need, so that nobody has to."""
    # gRPC looks at it when it is loaded; a broker sets it before that.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    package = importlib.import_module("ister")
    for module in pkgutil.walk_packages(package.__path__, "ister."):
        if not module.name.endswith("__main__") and not module.name.startswith(LEFT_OUT):
            with suppress(ImportError):  # Of an extra that is not installed.
                importlib.import_module(module.name)
    for name in ("rich.markdown", "typer.rich_utils", "uvloop"):
        with suppress(ImportError):
            importlib.import_module(name)
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"{threads} threads: a fork would leave the others behind"
    # So that children do not copy all of it when they collect garbage.
    gc.collect()
    gc.freeze()


def serve(requests: socket.socket) -> dict[str, Any]:
    """Fork for each request until nobody asks any more; return, in a child, what it is to do."""
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not requests:
                    pid, report = key.data
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    status = os.waitpid(pid, 0)[1]
                    with suppress(OSError), report:
                        report.send(b"%d" % status)
                    continue
                data, given, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
                if not data:
                    sys.exit()
                report = socket.socket(fileno=given[3])
                pid = os.fork()
                if not pid:
                    return become(json.loads(data), given)
                for number in given[:3]:
                    os.close(number)
                selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, report))
                report.send(b"%d" % pid)


def become(job: dict[str, Any], given: list[int]) -> dict[str, Any]:
    """Take over the files and the environment of a new process."""
    for number, wanted in enumerate(given[:3]):
        os.dup2(wanted, number)
    os.closerange(3, max(given) + 64)
    os.environ.clear()
    os.environ.update(job["env"])
    os.chdir(job["cwd"])
    return job


if __name__ == "__main__":
    requests = socket.socket(fileno=int(sys.argv[1]))
    load_everything()
    job = serve(requests)
    requests.detach()
    sys.argv = ["ister", *job["args"]]
    runpy.run_module("ister", run_name="__main__", alter_sys=True)
