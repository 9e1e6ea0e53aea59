"""A broker that speaks TLS and asks for a token, and pipelines between its topics."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.certificates import Certificates, make_certificates
from tests.e2e.conftest import BrokerProcess

import ister
import ister.sync

TOKEN = "hunter2-of-the-spark-tests"
WRONG = "hunter3-is-known-to-nobody"


@dataclass(frozen=True)
class Guarded:
    """The broker, and what it wants to see."""

    broker: BrokerProcess
    certificates: Certificates
    token_file: Path

    @property
    def url(self) -> str:
        """Where it is, as `isters://host:port`."""
        return self.broker.url

    @property
    def options(self) -> dict[str, str]:
        """The options of the data source that open it."""
        return {"url": self.url, "token": TOKEN, "tlsCa": str(self.certificates.ca)}

    def connect(self) -> ister.sync.Client:
        """Return a client that it lets in."""
        return ister.sync.connect(self.url, token=TOKEN, tls=ister.Tls(ca=self.certificates.ca))

    def write_pipeline(self, folder: Path, topic: str, **keys: str) -> Path:
        """Write a pipeline from `topic` to `topic`-out, whose broker has these keys."""
        rows = {"topic": topic, "format": "json", "schema": "id long", "start": "earliest"}
        whole = {
            "name": topic.rpartition("/")[2],
            "broker": self.url,
            **keys,
            "sources": {"rows": rows},
            "steps": [{"name": "doubled", "sql": "SELECT id * 2 AS id FROM rows"}],
            "sinks": [{"topic": f"{topic}-out", "from": "doubled"}],
            "dead_letters": f"{topic}-dead",
        }
        file = folder / "pipeline.yaml"
        file.write_text(json.dumps(whole))  # JSON is YAML.
        return file


@contextmanager
def running_guarded(folder: Path) -> Iterator[Guarded]:
    """Run such a broker; it seals segments of 1 MiB."""
    certificates = make_certificates(folder / "certificates")
    tokens, token_file = folder / "tokens", folder / "token"
    tokens.write_text(f"spark {TOKEN}\n")
    tokens.chmod(0o600)
    token_file.write_text(f"{TOKEN}\n")
    options = {
        "--tls-cert": certificates.cert,
        "--tls-key": certificates.key,
        "--tokens": tokens,
        "--segment-size": "1MiB",
    }
    broker = BrokerProcess(folder, [str(word) for pair in options.items() for word in pair])
    broker.start()
    try:
        yield Guarded(broker, certificates, token_file)
    finally:
        broker.kill()


def kept_in(*folders: Path) -> str:
    """Return the content of all files in some folders, as far as it is text."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert files, f"nothing is in {folders}"
    return "\n".join(path.read_text(errors="replace") for path in files)
