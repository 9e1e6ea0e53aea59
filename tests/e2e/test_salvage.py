"""A real broker's folder is damaged, salvaged, and a real broker goes on with what is left."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import StartBroker, plain_environment
from tests.e2e.raw import WAIT_S

import ister

pytestmark = pytest.mark.e2e

ORDERS, REMINDERS = "/default/orders", "/default/reminders"
PAYLOAD = b"x" * 3_000
COUNT = 40


def salvage(source: Path, folder: Path) -> "subprocess.CompletedProcess[str]":
    words = ["storage", "salvage", str(source), str(folder), "--json"]
    return subprocess.run(
        [sys.executable, "-m", "ister", *words],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env=plain_environment(),
        check=False,
    )


async def test_a_broker_goes_on_with_what_was_salvaged(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker()
    async with ister.connect(broker.url) as client:
        await client.create_topic(ORDERS, kind="stream")
        async with client.subscribe(ORDERS, "billing", start="earliest") as sub:
            async with client.producer(ORDERS, name="shop") as producer:
                for number in range(COUNT):
                    await producer.send(b"%d " % number + PAYLOAD)
            for _ in range(5):
                await (await sub.receive(timeout=WAIT_S)).ack(confirm=True)
        await client.create_topic(REMINDERS, kind="timeline")
        await client.timeline(REMINDERS).put(b"later", id="one", after=3600)
    data = broker.folder / "data"
    refused = salvage(data, tmp_path / "refused")
    broker.stop()
    [segment] = (data / "segments").iterdir()
    raw = bytearray(segment.read_bytes())
    # In messages 19 and 39, the last one.
    for number in (19, COUNT - 1):
        raw[raw.index(b"%d x" % number) + 100] ^= 1
    segment.write_bytes(raw)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}

    done = salvage(data, tmp_path / "new")
    found = json.loads(done.stdout)
    again = start_broker("--data", str(tmp_path / "new"))
    async with ister.connect(again.url) as client:
        reader_offsets: list[int] = []
        async with client.reader(ORDERS, start=0, end=COUNT) as reader:
            async for batch in reader:
                reader_offsets += list(batch.offsets)
        async with client.producer(ORDERS, name="shop") as producer:
            new = await producer.send(b"new")
        received: list[int] = []
        async with client.subscribe(ORDERS, "billing") as sub:
            while not received or received[-1] != new.offset:
                message = await sub.receive(timeout=WAIT_S)
                received.append(message.offset)
                await message.ack()
        kept = await client.timeline(REMINDERS).get("one")

    assert refused.returncode != 0
    assert "in use" in refused.stderr or "process" in refused.stderr
    assert not (tmp_path / "refused").exists()
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before
    assert done.returncode == 70
    assert [(one["start"], one["end"]) for one in found["lost"]["ranges"]] == [(19, 20), (39, 40)]
    assert reader_offsets == [n for n in range(COUNT) if n not in (19, 39)]
    assert new.offset == COUNT
    assert received == [*(n for n in range(5, COUNT) if n not in (19, 39)), COUNT]
    assert kept.payload == b"later"
