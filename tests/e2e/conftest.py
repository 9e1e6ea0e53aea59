"""A real broker process for end-to-end tests: `broker`, and `start_broker` for several."""

import itertools
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.e2e.certificates import Certificates, make_certificates
from tests.e2e.nursery import IsterProcess

READY_TIMEOUT_S = 30.0
END_TIMEOUT_S = 20.0
POLL_S = 0.005


# Ports that the system gives to nobody by itself, so that a broker which is down for a moment
# finds its own free again; each worker of pytest-xdist has some. Runs of the suite side by side
# begin at different ones.
PORT_MIN = 20_000
PORTS_PER_WORKER = 1_500
_ports = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """Return a port that nobody has and nobody gets by chance."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for step in _ports:
        port = PORT_MIN + worker % 8 * PORTS_PER_WORKER + step % PORTS_PER_WORKER
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("unreachable")


class BrokerProcess:
    """`ister serve` on free ports. `restart` comes back on the same ones."""

    def __init__(self, folder: Path, args: Sequence[str] = ()) -> None:
        self.folder = folder
        self.args = list(args)
        self.log = folder / "log"
        self.ready_file = folder / "ready.json"
        # host:port of each door, as in `http://{broker.http}/metrics`.
        self.native = ""
        self.http = ""
        self.grpc = ""
        self.admin = ""
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        assert self.process is not None, "the broker is not running"
        return self.process.pid

    @property
    def port(self) -> int:
        """The native port."""
        return int(self.native.rpartition(":")[2])

    @property
    def host(self) -> str:
        """The native host."""
        return self.native.rpartition(":")[0]

    def start(
        self, *, native_port: int = 0, http_port: int = 0, grpc_port: int = 0, admin_port: int = 0
    ) -> None:
        """Start the process and return once every door is open."""
        command = ["serve", "--data", str(self.folder / "data")]
        command += ["--port", str(native_port or free_port())]
        command += ["--http-port", str(http_port or free_port())]
        command += ["--grpc-port", str(grpc_port or free_port())]
        command += ["--admin-port", str(admin_port or free_port())]
        command += ["--ready-file", str(self.ready_file), *self.args]
        self.ready_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = IsterProcess(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=plain_environment()
            )
        ready = self._wait_ready()
        self.native, self.http, self.url = ready["native"], ready["http"], ready["url"]
        self.grpc, self.admin = ready.get("grpc", ""), ready.get("admin", "")

    def stop(self) -> int:
        """Ask the broker to end (SIGTERM), wait, and return its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker as a crash would (SIGKILL)."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop if it runs, and start on the same ports."""
        if self.process is not None:
            self.stop()
        self.start(
            native_port=self.port,
            http_port=int(self.http.rpartition(":")[2]),
            grpc_port=int(self.grpc.rpartition(":")[2] or 0),
            admin_port=int(self.admin.rpartition(":")[2] or 0),
        )

    def log_text(self) -> str:
        """Return what the broker has logged so far."""
        return self.log.read_text(errors="replace")

    def _wait_ready(self) -> dict[str, str]:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            assert self.process is not None
            if self.process.poll() is not None:
                raise AssertionError(f"broker ended before it was ready:\n{self.log_text()}")
            if self.ready_file.exists():
                found: dict[str, str] = json.loads(self.ready_file.read_text())
                return found
            time.sleep(POLL_S)
        raise AssertionError(f"broker not ready in {READY_TIMEOUT_S:.0f} s:\n{self.log_text()}")

    def _end(self, number: signal.Signals) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"broker did not end:\n{self.log_text()}") from None


StartBroker = Callable[..., BrokerProcess]


def plain_environment() -> dict[str, str]:
    """Return the environment without settings of the developer's own."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ISTER_")}


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Start brokers with extra arguments; all are ended with the test."""
    started: list[BrokerProcess] = []

    def start(*args: str) -> BrokerProcess:
        folder = tmp_path / f"broker-{len(started)}"
        folder.mkdir()
        one = BrokerProcess(folder, args)
        started.append(one)
        one.start()
        return one

    yield start
    for one in started:
        if one.process is not None:
            one.kill()


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerProcess:
    """A running broker with default settings on free ports."""
    return start_broker()


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker for those tests of a module that do not end it."""
    broker = BrokerProcess(tmp_path_factory.mktemp("broker"))
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Files of TLS, for the tests of a module."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[BrokerProcess]:
    """A broker with TLS that asks for a token."""
    # Here, because it is made of what is above.
    from tests.e2e.secured import TOKEN, running, tls_flags, write_tokens

    folder = tmp_path_factory.mktemp("secured")
    tokens = write_tokens(folder / "tokens", f"billing {TOKEN}")
    with running(folder, *tls_flags(certificates), "--tokens", str(tokens)) as broker:
        yield broker
