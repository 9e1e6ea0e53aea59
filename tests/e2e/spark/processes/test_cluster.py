"""Spark's own cluster, a master and two workers on this machine: sink and source work there."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from tests.e2e.conftest import BrokerProcess, free_port, plain_environment
from tests.e2e.spark.processes.jobs import run_query, spark_environment
from tests.e2e.spark.queries import ALL, QUICK_START, Query

import ister.sync
from ister.spark.tuning import find_java

START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 15.0
POLL_S = 0.05
HOST = "127.0.0.1"
SPARK_HOME = Path(pyspark.__file__).parent
SETTINGS = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.extraJavaOptions": QUICK_START,
}


class Cluster:
    """A master and two workers with one core each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """The master, as Spark calls it."""
        return f"spark://{HOST}:{self.port}"

    def start(self) -> None:
        """Start all, and return once both workers are known to the master."""
        master = f"--host {HOST} --port {self.port} --webui-port {free_port()}"
        self._start("master", "master.Master", master.split())
        self._wait("the master", lambda: "Starting Spark master at" in self.log("master"))
        worker = f"--host {HOST} --cores 1 --memory 1g --webui-port"
        for number in range(2):
            place = ["--work-dir", str(self.folder / f"work-{number}"), self.url]
            arguments = [*worker.split(), str(free_port()), *place]
            self._start(f"worker-{number}", "worker.Worker", arguments)
        self._wait("workers", lambda: self.log("master").count("Registering worker") == 2)

    def stop(self) -> None:
        """End all; workers end their executors then."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self, name: str) -> str:
        """Return what a process has logged."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _start(self, name: str, kind: str, arguments: list[str]) -> None:
        environment = spark_environment() | {
            "SPARK_HOME": str(SPARK_HOME),
            "JAVA_HOME": str(find_java()),
            "SPARK_DAEMON_MEMORY": "256m",
            # Short-lived, and without the door for jobs by HTTP, which has a fixed port.
            "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_START} -Dspark.master.rest.enabled=false",
            "SPARK_LOCAL_IP": HOST,
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}", *arguments],
                env=environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)

    def _wait(self, what: str, is_there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not is_there():
            assert time.monotonic() < deadline, f"{what} did not start:\n{self.log('master')}"
            time.sleep(POLL_S)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A running cluster."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    one = Cluster(folder)
    try:
        one.start()
        yield one
    finally:
        one.stop()


def test_an_executor_killed_while_it_writes_costs_and_doubles_nothing(
    cluster: Cluster, broker: BrokerProcess, tmp_path: Path
) -> None:
    query = Query(tmp_path / "query", broker.url, "/default/out")
    query.prepare()
    query.order("executor")

    done = run_query(query, master=cluster.url, settings=SETTINGS)

    assert done.returncode == 0, done.stderr
    # It was an executor that died, and not the first one that was started: they are two.
    assert query.happened("executor")
    assert b"CoarseGrainedExecutorBackend" in (query.faults / "victim").read_bytes()
    assert cluster.log("master").count("Launching executor") >= 3
    assert query.values() == ALL
    assert json.loads(done.stdout) == {"rows": len(ALL)}


def test_a_pipeline_runs_on_a_cluster(
    cluster: Cluster, broker: BrokerProcess, tmp_path: Path
) -> None:
    with ister.sync.connect(broker.url) as client:
        client.create_topic("/default/in", kind="stream", partitions=2)
        with client.producer("/default/in") as producer:
            for number in range(1_000):
                producer.send_nowait(b'{"id": %d}' % number, key=str(number))
    whole = {
        "name": "on-a-cluster",
        "broker": broker.url,
        "sources": {"numbers": {"topic": "/default/in", "format": "json", "schema": "id long"}},
        "steps": [{"name": "large", "sql": "SELECT id FROM numbers WHERE id >= 500"}],
        "sinks": [{"name": "out", "topic": "/default/out", "from": "large"}],
        "checkpoint": "checkpoint",
        "settings": SETTINGS,
    }
    (tmp_path / "p.yaml").write_text(json.dumps(whole))
    command = [sys.executable, "-m", "ister", "pipeline", "run", "p.yaml", "--available-now"]

    done = subprocess.run(
        [*command, "--from", "earliest", "--master", cluster.url],
        cwd=tmp_path,
        env=plain_environment() | {"XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S * 4,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert cluster.log("master").count("Launching executor") >= 2
    with ister.sync.connect(broker.url) as client, client.reader("/default/out") as reader:
        found = [json.loads(payload)["id"] for batch in reader for payload in batch.payloads]
    assert sorted(found) == list(range(500, 1_000))
