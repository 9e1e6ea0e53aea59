"""The OpenAPI document and a real broker agree, whatever Schemathesis thinks of."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.e2e.conftest import BrokerProcess, StartBroker, plain_environment
from tests.e2e.http.asking import API, ask

pytestmark = pytest.mark.e2e

TOPICS = f"{API}/namespaces/default/topics"
HOOKS = "tests.e2e.http.schemathesis_hooks"
ROOT = Path(__file__).resolve().parents[3]

# Some 2,000 requests in all. `SCHEMATHESIS_EXAMPLES=100` looks longer.
EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "8"))
# 20 seconds on two free cores.
RUN_S = 170


def furnish(broker: BrokerProcess) -> None:
    """Make what the requests find: topics, a subscription, messages, schemas, a binding."""
    for name, settings in {
        "orders": {"kind": "stream"},
        "prices": {"kind": "live"},
        "parts": {"kind": "stream", "partitions": 2},
    }.items():
        assert ask(broker.http, "PUT", f"{TOPICS}/{name}", settings).status == 201
    for number in range(20):
        ask(broker.http, "POST", f"{TOPICS}/orders/messages", {"payload": f"{number}"})
    billing = f"{TOPICS}/orders/subscriptions/billing"
    assert ask(broker.http, "PUT", billing, {}).status == 201
    assert ask(broker.http, "PUT", f"{billing}/cursors/start").status == 204
    for subject in ("order", "price"):
        for definition in ({"type": "object"}, {"type": "object", "required": []}):
            body = {"type": "json_schema", "definition": msgspec.json.encode(definition).decode()}
            target = f"{API}/schemas/{subject}/versions"
            assert ask(broker.http, "POST", target, body).status == 201
    assert ask(broker.http, "PUT", f"{TOPICS}/parts/binding", {"subject": "price"}).status == 200


@pytest.mark.timeout(RUN_S + 30)
def test_every_answer_is_as_the_document_says(start_broker: StartBroker, tmp_path: Path) -> None:
    store = tmp_path / "objects"
    store.mkdir()
    broker = start_broker("--object-store", f"file://{store}")
    furnish(broker)
    command = [sys.executable, "-m", "schemathesis.cli", "run"]
    command += [f"http://{broker.http}/api/openapi.json", "--checks", "all", "--no-color"]
    command += ["--phases", "examples,coverage,fuzzing,stateful", "-n", str(EXAMPLES)]
    command += ["--seed", "1", "--continue-on-failure", "--warnings", "off"]
    environment = plain_environment() | {"SCHEMATHESIS_HOOKS": HOOKS, "PYTHONPATH": str(ROOT)}

    run = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )

    assert run.returncode == 0, run.stdout[-8_000:] + run.stderr[-2_000:]
    assert "http_request_failed" not in broker.log_text()
    assert ask(broker.http, "GET", f"{API}/broker").status == 200
