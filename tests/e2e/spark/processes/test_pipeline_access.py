"""`ister pipeline run` between topics of a broker that speaks TLS and asks for a token."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import plain_environment
from tests.e2e.spark.guarded import TOKEN, kept_in, running_guarded
from tests.e2e.spark.queries import payloads
from tests.e2e.spark.reads import publish

pytestmark = pytest.mark.e2e

# Half a minute on two idle cores.
WAIT_S = 240.0


def test_a_pipeline_comes_in_with_a_token_by_reference_which_nobody_sees_or_keeps(
    tmp_path: Path,
) -> None:
    topic, folder = "/default/rows", tmp_path / "pipeline"
    folder.mkdir()
    with running_guarded(tmp_path) as guarded, guarded.connect() as client:
        client.create_topic(topic, kind="stream")
        publish(client, topic, [b'{"id": 1}', b"no object", b'{"id": 2}'])
        (folder / "token").write_text(f"{TOKEN}\n")
        (folder / "ca.pem").write_bytes(guarded.certificates.ca.read_bytes())
        file = guarded.write_pipeline(folder, topic, token="${file:token}", tls_ca="ca.pem")

        options = ("--available-now", "--no-restart", "--master", "local[2]")
        ended = subprocess.run(
            [sys.executable, "-m", "ister", "pipeline", "run", str(file), *options],
            env=plain_environment() | {"XDG_STATE_HOME": str(tmp_path / "state")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

        assert ended.returncode == 0, ended.stdout
        assert sorted(payloads(client, f"{topic}-out")) == [b'{"id":2}', b'{"id":4}']
        assert payloads(client, f"{topic}-dead") == [b"no object"]
        kept = kept_in(folder / ".ister", tmp_path / "state")
        for shown in (ended.stdout, kept, guarded.broker.log_text()):
            assert TOKEN not in shown
