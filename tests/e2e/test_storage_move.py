"""A stream of a real broker is moved to an object store while its clients wait."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess, StartBroker, plain_environment
from tests.e2e.raw import WAIT_S

import ister

pytestmark = pytest.mark.e2e

TOPIC = "/default/orders"


def move(broker: BrokerProcess, url: str) -> None:
    place = ["--data", str(broker.folder / "data"), "--object-store", url]
    words = ["storage", "move", TOPIC, "--durability", "object", *place]
    done = subprocess.run(
        [sys.executable, "-m", "ister", *words],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=plain_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr


async def test_clients_go_on_with_a_stream_that_was_moved(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    url = (tmp_path / "store").as_uri()
    broker = start_broker("--object-store", url)
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream", partitions=2)
        async with (
            client.producer(TOPIC, name="shop") as producer,
            client.subscribe(TOPIC, "billing", start="earliest") as sub,
        ):
            for key in ("a", "b", "c"):
                await producer.send(b"before", key=key, id=key)
            for _ in range(3):
                await (await sub.receive(timeout=WAIT_S)).ack(confirm=True)
            broker.stop()
            move(broker, url)
            broker.restart()
            known = await producer.send(b"before", key="a", id="a")
            await producer.send(b"after", key="a", id="d")
            message = await sub.receive(timeout=WAIT_S)
        rows = await client.topics(TOPIC)

    assert known.duplicate
    assert message.payload == b"after"
    assert {row.stream.settings.durability for row in rows if row.stream} == {"object"}
