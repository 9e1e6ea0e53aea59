"""`ister serve` as a process: doors, ready file, signals, configuration, HTTP."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.conftest import BrokerProcess, StartBroker, plain_environment

import ister

pytestmark = pytest.mark.e2e

WAIT_S = 20.0


def get(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(address, timeout=WAIT_S)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def scrape(broker: BrokerProcess) -> dict[tuple[str, ...], float]:
    status, text = get(broker.http, "/metrics")
    assert status == 200
    return {
        (one.name, *sorted(one.labels.values())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def serve(
    *args: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ister", "serve", "--no-grpc", *args],
        env={**plain_environment(), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


def test_the_ready_file_names_the_process_and_open_doors(broker: BrokerProcess) -> None:
    ready = json.loads(broker.ready_file.read_text())

    assert ready["pid"] == broker.pid
    assert ready["url"] == f"ister://{ready['native']}"
    for door in ("native", "http"):
        host, _, port = ready[door].rpartition(":")
        socket.create_connection((host, int(port)), timeout=WAIT_S).close()


def test_the_ready_file_is_gone_after_a_graceful_end(broker: BrokerProcess) -> None:
    assert broker.stop() == 0

    assert not broker.ready_file.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_broker_and_its_clients_are_told(
    broker: BrokerProcess, number: signal.Signals
) -> None:
    assert broker.process is not None
    async with ister.connect(broker.url) as client:
        await client.create_topic("/default/a")
        os.kill(broker.pid, number)

        assert broker.process.wait(WAIT_S) == 0

    assert "broker_closed" in broker.log_text()


def test_a_second_signal_ends_the_broker_at_once(start_broker: StartBroker) -> None:
    # A client that neither reads nor leaves keeps a closing broker waiting for its deadline.
    broker = start_broker("--shutdown-deadline", "1h")
    with silent_consumer(broker):
        os.kill(broker.pid, signal.SIGTERM)
        wait_for_log(broker, "broker_closing")
        os.kill(broker.pid, signal.SIGTERM)

        assert broker.process is not None
        broker.process.wait(WAIT_S)
    assert "broker_forced" in broker.log_text()


def test_a_signal_ends_a_broker_that_is_still_starting(tmp_path: Path) -> None:
    # A store that takes connections and never answers.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(WAIT_S)
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_REGION": "us-east-1",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "ister", "serve", "--data", str(tmp_path), "--port", "0",
             "--http-port", "0", "--no-grpc", "--object-store", "s3://bucket/x"],
            env={**plain_environment(), **environment},
            stderr=subprocess.PIPE,
        )  # fmt: skip
        connection, _ = silent.accept()
        process.send_signal(signal.SIGTERM)
        try:
            # Well below the time that the store is given to answer.
            _, said = process.communicate(timeout=10.0)
        finally:
            process.kill()
            connection.close()

    assert process.returncode == 0
    assert b"asked to end while it was starting" in said


def test_readiness_ends_when_closing_begins_and_health_does_not(start_broker: StartBroker) -> None:
    broker = start_broker("--shutdown-deadline", "1h")
    assert get(broker.http, "/readyz") == (200, "ready\n")
    with silent_consumer(broker):
        os.kill(broker.pid, signal.SIGTERM)
        wait_for_log(broker, "broker_closing")

        assert get(broker.http, "/readyz") == (503, "closing\n")
        assert get(broker.http, "/healthz") == (200, "ok\n")


async def test_a_scrape_shows_what_was_published(broker: BrokerProcess) -> None:
    async with (
        ister.connect(broker.url) as client,
        client.subscribe("/default/a", "s") as sub,
        client.producer("/default/a") as producer,
    ):
        await producer.send_batch([b"x"] * 5)
        assert len(await sub.fetch(5, timeout=WAIT_S)) == 5

        found = scrape(broker)

    assert found["ister_messages_in_total",] == 5
    assert found["ister_messages_out_total",] == 5
    assert found["ister_connections",] == 1
    assert found["ister_topic_messages_in_total", "/default/a"] == 5
    assert found["ister_subscription_consumers", "/default/a", "s"] == 1
    assert found["process_resident_memory_bytes",] > 0


def test_other_paths_and_methods_are_refused(broker: BrokerProcess) -> None:
    assert get(broker.http, "/nothing")[0] == 404
    assert get(broker.http, "/metrics", "POST")[0] == 405
    assert get(broker.http, "/healthz", "HEAD") == (200, "")


def test_bytes_that_are_no_http_cost_only_their_connection(broker: BrokerProcess) -> None:
    host, _, port = broker.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.sendall(b"\x00\xff" * 100_000)
        # The door may close with our bytes unread, which the kernel reports as a reset.
        with suppress(ConnectionResetError):
            while connection.recv(65_536):
                pass

    assert get(broker.http, "/healthz")[0] == 200


def test_taken_ports_are_reported_together(broker: BrokerProcess) -> None:
    native, web = (address.rpartition(":")[2] for address in (broker.native, broker.http))

    result = serve("--port", native, "--http-port", web)

    assert result.returncode == 64
    assert f"--port {native}: 127.0.0.1:{native} is taken" in result.stderr
    assert f"--http-port {web}: 127.0.0.1:{web} is taken" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_host_is_a_clear_error() -> None:
    result = serve("--host", "no.such.host.invalid", "--port", "0", "--http-port", "0")

    assert result.returncode == 64
    assert "no.such.host.invalid" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_bad_configuration_reports_every_mistake_and_starts_nothing(tmp_path: Path) -> None:
    file = tmp_path / "ister.toml"
    file.write_text("[limits]\ntopics_max = 0\n")

    result = serve("--port", "x", "--config", str(file), environment={"ISTER_LOG_LEVEL": "loud"})

    assert result.returncode == 64
    assert result.stdout == ""
    for words in ("--port x:", "ISTER_LOG_LEVEL=loud:", "topics_max = 0:"):
        assert words in result.stderr


def test_a_data_folder_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("")

    result = serve("--data", str(file), "--port", "0", "--http-port", "0")

    assert result.returncode == 64
    assert f"--data {file}:" in result.stderr


async def test_a_limit_given_by_flag_is_obeyed(start_broker: StartBroker) -> None:
    broker = start_broker("--limit", "topics_max=1")
    async with ister.connect(broker.url) as client:
        await client.create_topic("/default/a")

        with pytest.raises(ister.BusyError, match="topics_max"):
            await client.create_topic("/default/b")


def test_the_log_is_json_without_a_terminal(broker: BrokerProcess) -> None:
    broker.stop()

    events = [json.loads(line)["event"] for line in broker.log_text().splitlines()]
    assert "broker_ready" in events
    assert events[-1] == "broker_closed"


def test_a_broker_comes_back_on_its_ports_at_once(broker: BrokerProcess) -> None:
    native = broker.native
    with socket.create_connection((broker.host, broker.port), timeout=WAIT_S):
        broker.kill()
    broker.restart()

    assert broker.native == native
    assert get(broker.http, "/readyz")[0] == 200


@contextmanager
def silent_consumer(broker: BrokerProcess) -> Iterator[None]:
    """Run a client process whose consumer has stopped taking, with messages waiting for it."""
    code = SILENT_CONSUMER.format(url=broker.url)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"stuck\n"
            yield
        finally:
            process.kill()


SILENT_CONSUMER = """
import asyncio, time, ister

async def main():
    async with ister.connect("{url}") as taker, ister.connect("{url}") as giver:
        async with (
            taker.subscribe("/default/a", "s", buffer_count=1) as sub,
            giver.producer("/default/a") as producer,
        ):
            await producer.send_batch([b"x"] * 10)
            print("stuck", flush=True)
            time.sleep(3600)

asyncio.run(main())
"""


def wait_for_log(broker: BrokerProcess, event: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while event not in broker.log_text():
        assert time.monotonic() < deadline, broker.log_text()
        time.sleep(0.005)
