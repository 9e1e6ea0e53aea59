"""`ister pipeline` as a process: killed, asked, stopped, and started again.

One story, because every start of Spark takes its time: the same pipeline is killed in the middle,
goes on, is stopped in the middle, and then does the rest.
"""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import BrokerProcess, plain_environment

import ister.sync

pytestmark = pytest.mark.e2e

COUNT = 6_000
WAIT_S = 200.0
SOURCE, TARGET = "/default/in", "/default/out"


class Place:
    """A folder with a pipeline file, and commands that run there."""

    def __init__(self, folder: Path, broker: BrokerProcess) -> None:
        self.folder = folder
        self.url = broker.url
        self.env = plain_environment() | {"XDG_STATE_HOME": str(folder / "state")}
        self.started: list[subprocess.Popen[str]] = []

    def write(self, *, topic: str = SOURCE, rows: int = 50) -> None:
        """Write the pipeline: every row of one topic goes to another."""
        whole = {
            "name": "p",
            "broker": self.url,
            "sources": {
                "numbers": {
                    "topic": topic,
                    "format": "json",
                    "schema": "id long",
                    "max_rows_per_batch": rows,
                }
            },
            "sinks": [{"name": "out", "topic": TARGET, "from": "numbers"}],
            "checkpoint": "checkpoint",
        }
        (self.folder / "p.yaml").write_text(json.dumps(whole))

    def start(self, *options: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-m", "ister", "pipeline", "run", "p.yaml", *options],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "ister", "pipeline", *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )


@pytest.fixture
def place(tmp_path: Path, broker: BrokerProcess) -> Iterator[Place]:
    folder = tmp_path / "pipeline"
    folder.mkdir()
    one = Place(folder, broker)
    yield one
    for process in one.started:
        process.kill()
        process.communicate()


@pytest.mark.timeout(600)
def test_killed_and_stopped_in_the_middle_every_row_comes_out_once(
    place: Place, broker: BrokerProcess
) -> None:
    with ister.sync.connect(broker.url) as client:
        client.create_topic(SOURCE, kind="stream", partitions=2)
        client.create_topic(TARGET, kind="stream")
        with client.producer(SOURCE) as producer:
            for number in range(COUNT):
                producer.send_nowait(b'{"id":%d}' % number)
        place.write()

        killed = place.start("--master", "local[2]")
        wait_for(lambda: len(ids(client)) >= 150, killed)
        killed.send_signal(signal.SIGKILL)
        assert killed.wait() == -signal.SIGKILL
        after_kill = len(ids(client))
        assert after_kill < COUNT, "it was done before it was killed"
        # Whatever is left of it is not called running.
        assert json.loads(place.command("list", "--json").stdout) == []

        again = place.start("--master", "local[2]", "--metrics-port", "0")
        wait_for(lambda: len(ids(client)) >= after_kill + 150, again)
        check_while_it_runs(place, again)
        stopped = place.command("stop", "p")
        assert stopped.returncode == 0, stopped.stderr
        assert again.wait() == 0
        assert len(ids(client)) < COUNT, "it was done before it was stopped"
        assert json.loads(place.command("list", "--json").stdout) == []

        # Larger batches are no other shape, and where to start is known already.
        place.write(rows=100_000)
        rest = place.start("--master", "local[2]", "--available-now", "--json", "--from", "latest")
        out, words = rest.communicate(timeout=WAIT_S)
        assert rest.returncode == 0, words
        assert "org.apache" not in words
        assert "warning: --from latest is not followed by out" in words
        assert {json.loads(text)["sink"] for text in out.splitlines()} == {"out"}

        assert Counter(ids(client)) == Counter(range(COUNT))

    # Another topic is: refused in a moment, without Spark.
    place.write(topic="/default/other")
    refused = place.command("run", "p.yaml")
    assert refused.returncode == 73
    assert "reads `numbers` (/default/other) now, it was `numbers` (/default/in)" in refused.stderr
    assert "--checkpoint" in refused.stderr


def check_while_it_runs(place: Place, process: "subprocess.Popen[str]") -> None:
    """The pipeline is in the list, has a status and metrics, and cannot be started twice."""
    [listed] = json.loads(place.command("list", "--json").stdout)
    assert (listed["name"], listed["pid"]) == ("p", process.pid)
    wait_for(lambda: sink_of(place).get("batches", 0) > 0, process)
    sink = sink_of(place)
    assert (sink["sink"], sink["status"]) == ("out", "running")
    assert sink["lag"] > 0
    with urllib.request.urlopen(f"http://127.0.0.1:{listed['metrics_port']}/metrics") as answer:
        metrics = answer.read().decode()
    rows = metrics.partition('ister_pipeline_rows_total{pipeline="p",sink="out"} ')[2]
    assert float(rows.split()[0]) > 0
    assert 'ister_pipeline_up{pipeline="p",sink="out"} 1.0' in metrics
    second = place.command("run", "p.yaml")
    assert second.returncode == 73
    assert f"runs already (process {process.pid})" in second.stderr


def sink_of(place: Place) -> dict[str, Any]:
    status = json.loads(place.command("status", "p", "--json").stdout)
    found: dict[str, Any] = status["progress"]["sinks"][0]
    return found


def ids(client: ister.sync.Client) -> list[int]:
    """Return the numbers that came out so far."""
    with client.reader(TARGET) as reader:
        return [json.loads(bytes(one))["id"] for batch in reader for one in batch.payloads]


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Return when a condition holds; it is asked again and again while the process lives."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"it ended: {process.communicate()[1]}")
        assert time.monotonic() < deadline, "not within the time"
        time.sleep(0.05)


def test_a_pipeline_that_does_not_run_is_not_stopped(place: Place) -> None:
    stopped = place.command("stop", "nobody")

    assert stopped.returncode == 66
    assert "no pipeline 'nobody' runs on this machine: none runs" in stopped.stderr
