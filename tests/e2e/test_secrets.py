"""No password or key of a store or a database is shown, wherever it was given."""

import pickle
import subprocess
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.contract.objects.s3_like import BUCKET, S3Like, s3_like
from tests.e2e.conftest import BrokerProcess, plain_environment
from tests.e2e.nursery import IsterProcess

from ister import sync
from ister.base.errors import ConfigError, IsterError
from ister.objects import open_store, verify_store

pytestmark = pytest.mark.e2e

SECRET = "sEcReT-0-XyZ"
WAIT_S = 40.0
# Without a key `obstore` would ask the machine for one.
KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIA",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
}
STORES = [
    f"s3://AKIA:{SECRET}@bucket/folder",
    f"s3://AKIA:a/b+c{SECRET}@bucket/folder",
    f"s3://AKIA:a#b?c{SECRET}@bucket/folder",
    f"s3://{SECRET}@bucket/folder",
    f"s3://bucket/folder?access_key_id=AKIA&secret_access_key={SECRET}",
    f"s3://bucket/folder#{SECRET}",
    f"gs://user:{SECRET}@bucket/folder",
    f"az://account:{SECRET}@container/folder",
    f"az://container/folder?sv=1&sig={SECRET}",
    f"abfss://box:{SECRET}@account.dfs.core.windows.net/folder",
    f"abfss://box@account.dfs.core.windows.net/folder?sig={SECRET}",
    f"https://account.blob.core.windows.net/box?sv=1&sig={SECRET}",
    f"http://user:{SECRET}@127.0.0.1:1/bucket",
    f"memory://user:{SECRET}@x",
    f"file://user:{SECRET}@host/folder",
    f"AKIA:{SECRET}@bucket",
]
DATABASES = [
    f"postgresql://user:{SECRET}@127.0.0.1:1/db",
    f"postgresql://user:a/b@{SECRET}@127.0.0.1:1/db",
    f"postgresql://127.0.0.1:1/db?password={SECRET}",
    f"postgresql://user:{SECRET}@127.0.0.1:none/db",
    f"postgres://user:{SECRET}",
    f"mysql://user:{SECRET}@host/db",
    f"host=127.0.0.1 password={SECRET}",
]


class _EchoStore(BaseHTTPRequestHandler):
    """A store that refuses every request, and repeats the whole request in its answer."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = f"<Error><Message>{self.path}</Message></Error>\n{self.headers}".encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_GET = do_HEAD = do_POST = do_DELETE = _refuse  # noqa: N815 - of the library


@pytest.fixture(scope="module")
def echo_store() -> Iterator[str]:
    """The address of a server that repeats every request in its answer."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _EchoStore)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def all_output(*args: str, **environment: str) -> str:
    """Run a command that must fail, and return all of its output."""
    with IsterProcess(
        [*args],
        env={**plain_environment(), **KEYS, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        out, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode not in (0, -9), out
    return out.decode()


def serve(folder: Path, *args: str, **environment: str) -> str:
    """Start a broker whose start must fail."""
    ports = ["--port", "0", "--http-port", "0", "--no-grpc", "--log-level", "debug"]
    ready = folder / "ready"
    out = all_output(
        "serve", *ports, "--data", str(folder / "data"), "--ready-file", str(ready), *args,
        **environment,
    )  # fmt: skip
    assert not ready.exists()
    return out


# At the start


@pytest.mark.parametrize("url", STORES)
def test_a_secret_in_the_url_of_a_store_is_refused_and_not_shown(url: str, tmp_path: Path) -> None:
    quoted = url.replace("\\", "\\\\")
    file = tmp_path / "ister.toml"
    file.write_text(f'[storage]\nobject_store = "{quoted}"\ntier = "{quoted}"\n')
    told = [
        serve(tmp_path, "--object-store", url),
        serve(tmp_path, ISTER_TIER=url),
        serve(tmp_path, "--config", str(file)),
        all_output("storage", "check", url),
        all_output("storage", "check", str(tmp_path), "--tier", url),
    ]

    assert [one for one in told if SECRET in one] == []
    assert all("\nister: " in f"\n{one}" for one in told)


@pytest.mark.parametrize("url", DATABASES)
def test_the_password_of_a_database_is_not_shown(url: str, tmp_path: Path) -> None:
    file = tmp_path / "ister.toml"
    file.write_text(f'[storage]\ntimelines = "{url}"\n')
    told = [
        serve(tmp_path, "--timelines", url),
        serve(tmp_path, ISTER_TIMELINES=url),
        serve(tmp_path, "--config", str(file)),
    ]

    assert [one for one in told if SECRET in one] == []


@pytest.mark.parametrize(
    "flag", ["--key-file", "--data", "--ready-file", "--tls-cert", "--tls-key", "--tokens"]
)
def test_a_secret_in_a_url_instead_of_a_path_is_refused_and_not_shown(
    flag: str, tmp_path: Path
) -> None:
    url = f"https://user:{SECRET}@vault/x"
    told = serve(tmp_path, flag, url)

    assert SECRET not in told
    assert f"{flag}: is a URL" in told


def test_a_secret_in_the_path_of_a_command_is_not_shown() -> None:
    url = f"https://user:{SECRET}@vault/x"
    told = [
        all_output("keys", "list", url),
        all_output("keys", "create", url),
        all_output("serve", "--config", url),
        all_output("produce", "/default/a", "--file", url),
        all_output("schemas", "register", "a", url),
        all_output("topics", "list", "--token-file", url),
        all_output("topics", "list", "--tls-ca", url),
    ]

    assert [one for one in told if SECRET in one] == []


def test_a_secret_that_a_store_repeats_in_its_answer_is_not_shown(
    echo_store: str, tmp_path: Path
) -> None:
    azure = {
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_SAS_TOKEN": f"sv=2020-01-01&sig={SECRET}",
        "AZURE_STORAGE_ENDPOINT": f"http://{echo_store}",
        "AZURE_ALLOW_HTTP": "true",
    }
    told = [
        serve(tmp_path, "--object-store", "s3://b/f", AWS_ENDPOINT_URL=f"http://{echo_store}"),
        serve(
            tmp_path,
            "--object-store",
            "s3://b/f",
            AWS_ENDPOINT_URL=f"http://u:{SECRET}@{echo_store}",
        ),
        serve(
            tmp_path, "--object-store", "s3://b/f", AWS_ENDPOINT_URL=f"http://u:{SECRET}@[::1]:1"
        ),
        # The credential is the user alone.
        serve(
            tmp_path, "--object-store", "s3://b/f", AWS_ENDPOINT_URL=f"http://{SECRET}@{echo_store}"
        ),
        all_output(
            "storage", "check", "s3://b/f", AWS_ENDPOINT_URL=f"http://{SECRET}@{echo_store}"
        ),
        serve(tmp_path, "--object-store", "az://box/f", **azure),
        all_output("--verbose", "storage", "check", "az://box/f", **azure),
    ]

    assert [one for one in told if SECRET in one] == []


@pytest.mark.parametrize("url", STORES)
def test_an_error_that_is_sent_to_another_process_has_no_secret(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)

    assert SECRET not in str(caught.value)
    assert SECRET.encode() not in pickle.dumps(caught.value)
    assert SECRET not in repr(caught.value)


def test_a_failure_of_a_store_that_is_sent_to_another_process_has_no_secret(
    echo_store: str,
) -> None:
    options = {
        "endpoint": f"http://user:{SECRET}@{echo_store}",
        "region": "us-east-1",
        "access_key_id": "AKIA",
        "secret_access_key": SECRET,
    }
    store = open_store("s3://bucket/folder", options)

    with pytest.raises(OSError, match=r"folder/|probes/") as caught:
        verify_store(store)

    assert SECRET.encode() not in pickle.dumps(caught.value)
    assert SECRET not in store.url


# While it runs


@pytest.fixture
def store() -> Iterator[S3Like]:
    """A store that works until it is made to fail."""
    with s3_like() as server:
        yield server


def test_a_store_that_fails_later_shows_no_secret(
    store: S3Like, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    port = store.server_address[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://user:{SECRET}@127.0.0.1:{port}")
    broker = BrokerProcess(tmp_path, ["--object-store", f"s3://{BUCKET}/f", "--log-level", "debug"])
    broker.start()
    told: list[str] = [broker.ready_file.read_text()]
    try:
        with sync.connect(broker.url, timeout=30.0) as client:
            client.create_topic("/default/a", kind="stream", durability="object")
            store.answer("PUT", 500, "InternalError", times=1_000)
            with (
                client.producer("/default/a", resend=False) as producer,
                pytest.raises(IsterError) as caught,
            ):
                producer.send(b"x")
            told += [str(caught.value), repr(pickle.dumps(caught.value))]
            told.append(repr(client.broker()))
            for path in ("/readyz", "/metrics", "/api/v1/broker"):
                connection = HTTPConnection(broker.http, timeout=WAIT_S)
                connection.request("GET", path)
                told.append(connection.getresponse().read().decode())
                connection.close()
    finally:
        broker.kill()
    told.append(broker.log_text())

    assert "storage" in "".join(told)
    assert [one for one in told if SECRET in one] == []
