"""A real PostgreSQL for tests, in a folder of its own: it can be killed and started again."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from tests.e2e.conftest import free_port

USER = "tester"
PASSWORD = "s3cret-0f-tests"
# A server that starts after a crash syncs a thousand files first, on a disk that others use too.
READY_TIMEOUT_S = 60.0
TEST_TIMEOUT_S = 240
END_TIMEOUT_S = 20.0
POLL_S = 0.02
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    # Small, and still a server as any other: what matters for a crash is as it is by default.
    "shared_buffers": "64MB",
    "max_connections": "40",
}


def find_programs() -> Path:
    """Return the folder of `postgres` and `initdb`; scripts/setup-postgres looks there too."""
    places = [Path(os.environ.get("POSTGRES_BIN", "/nowhere")) / "postgres"]
    places += [Path(shutil.which("postgres") or "/nowhere")]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), reverse=True)
    for place in places:
        # A link on the PATH has no `initdb` beside it.
        folder = place.resolve().parent
        if (folder / "postgres").exists() and (folder / "initdb").exists():
            return folder
    raise AssertionError("no PostgreSQL to test with: run scripts/setup-postgres")


class PostgresServer:
    """A server on a port of its own. `kill` and `start` keep the port and what is on the disk."""

    def __init__(self) -> None:
        self._programs = find_programs()
        self.port = free_port()
        # Not in the folder of pytest, where only the user may look who runs the tests.
        self.folder = Path(tempfile.mkdtemp(prefix="ister-postgres-"))
        self.log = self.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """How to connect to the first database."""
        return self.url_of("postgres")

    def url_of(self, database: str, *, password: str = PASSWORD) -> str:
        """Return how to connect to a database."""
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def create(self) -> None:
        """Make the folder of the server."""
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        if os.getuid() == 0:
            # The server refuses to run as root.
            for path in (self.folder, secret):
                shutil.chown(path, **_other_user())
        command = [f"{self._programs}/initdb", f"--pgdata={self.folder}/data", "--no-sync"]
        command += ["--auth=scram-sha-256", f"--username={USER}", f"--pwfile={secret}"]
        command += ["--encoding=UTF8", "--locale=C"]
        with self._run(command) as process:
            assert process.wait(READY_TIMEOUT_S) == 0, self.log.read_text()

    def start(self) -> None:
        """Start the server and return when it takes connections."""
        command = [f"{self._programs}/postgres", f"-D{self.folder}/data", f"-p{self.port}"]
        command += [f"-c{name}={value}" for name, value in SETTINGS.items()]
        process = self._process = self._run(command)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                assert process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(POLL_S)

    def kill(self) -> None:
        """End it as a crash would: SIGKILL to all its processes."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it at once, but let it know."""
        self._end(signal.SIGQUIT)

    def pause(self) -> None:
        """Have it hang: its machine answers, and it does not."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have it go on after `pause`."""
        self._signal(signal.SIGCONT)

    def remove(self) -> None:
        """End it, and leave nothing behind."""
        if self._process is not None:
            self.stop()
        shutil.rmtree(self.folder)

    def execute(self, statement: Any, *values: object) -> list[tuple[Any, ...]]:
        """Do something to the first database by a connection of its own."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        assert process is not None, "the server is not running"
        # A crash takes all its processes at once; else the first ends the others.
        others = children_of(process.pid) if number == signal.SIGKILL else []
        for pid in (process.pid, *others):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        process.wait(END_TIMEOUT_S)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the server is not running"
        for pid in (self._process.pid, *children_of(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        user = _other_user() | {"extra_groups": []} if os.getuid() == 0 else {}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                text=False,
                **user,
            )


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _other_user() -> dict[str, Any]:
    """Return a user that is not root: Debian's package makes one."""
    for name in ("postgres", "nobody"):
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": found.pw_uid, "group": found.pw_gid}
    raise AssertionError("no user to run a server as")
