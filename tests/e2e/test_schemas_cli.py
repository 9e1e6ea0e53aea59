"""`ister schemas` as a process, against a real broker; the rest of it is in tests/unit/cli."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess
from tests.e2e.shell import Shell

import ister
from ister.base.errors import ConflictError, InvalidError

pytestmark = pytest.mark.e2e

TOPIC, SUBJECT = "/default/orders", "orders"
ORDER = {"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}
BROKEN = {**ORDER, "properties": {"id": {"type": "string"}}}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A running broker."""
    broker = BrokerProcess(tmp_path)
    broker.start()
    yield broker
    broker.kill()


async def test_schemas_are_registered_by_files_and_survive_a_crash_of_the_broker(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    shell = Shell(broker.url)
    (tmp_path / "order.json").write_text(json.dumps(ORDER))
    (tmp_path / "broken.json").write_text(json.dumps(BROKEN))
    shell.run("schemas", "register", SUBJECT, str(tmp_path / "order.json"))
    shell.run("schemas", "bind", TOPIC, SUBJECT)
    async with ister.connect(broker.url) as client:
        broker.kill()
        broker.start(native_port=broker.port)

        assert (await client.schemas.latest(SUBJECT)).version == 1
        async with client.producer(TOPIC) as producer:
            with pytest.raises(ister.errors.SchemaViolationError):
                await producer.send(b"no order")
    refused = shell.run("produce", TOPIC, "no order", code=InvalidError.exit_code)
    assert b"schema 'orders'" in refused.stderr
    broken = str(tmp_path / "broken.json")
    told = shell.run(
        "schemas",
        "check",
        SUBJECT,
        "-",
        "--type",
        "json_schema",
        input=json.dumps(BROKEN).encode(),
        code=ConflictError.exit_code,
    )
    assert b"id" in told.stdout
    assert (
        b"id"
        in shell.run("schemas", "register", SUBJECT, broken, code=ConflictError.exit_code).stderr
    )
    assert json.loads(shell.run("schemas", "get", SUBJECT).stdout) == ORDER
