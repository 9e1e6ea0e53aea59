"""A broker is paused while another one takes over its object store, and resumes afterwards."""

import asyncio
import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.conftest import BrokerProcess, StartBroker

import ister

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]

TOPIC = "/default/ledger"
NOISE = "/default/noise"
# A checkpoint is made every two seconds at most, and three manifests are kept: afterwards the
# number that the stopped broker may be about to make is free again.
CHECKPOINTS_S = 9.0
GOING_ON_S = 3.0

Acknowledged = dict[int, bytes]


async def publish(client: ister.Client, name: str, acknowledged: Acknowledged) -> None:
    """Publish as fast as the broker accepts it, and record what was acknowledged."""
    async with client.producer(TOPIC, name=name) as producer:
        number = 0
        while True:
            payload = b"%s %d" % (name.encode(), number)
            sent = await producer.send(payload)
            assert acknowledged.setdefault(sent.offset, payload) == payload
            number += 1


async def purge(client: ister.Client) -> None:
    """Purge now and then, so that there is a reason for checkpoints."""
    async with client.producer(NOISE, name="noise") as producer:
        while True:
            await producer.send(b"x")
            await client.purge(NOISE)
            await asyncio.sleep(0.5)


async def work(broker: BrokerProcess, name: str, acknowledged: Acknowledged) -> None:
    """Publish to a broker and purge until it refuses."""
    async with ister.connect(broker.url, timeout=5.0) as client:
        for topic in (TOPIC, NOISE):
            with suppress(ister.IsterError):
                await client.create_topic(topic, kind="stream", durability="object")
        with suppress(ister.IsterError):
            purging = asyncio.create_task(purge(client))
            try:
                await publish(client, name, acknowledged)
            finally:
                purging.cancel()
                await asyncio.gather(purging, return_exceptions=True)


async def use_for_a_while(broker: BrokerProcess, name: str, seconds: float) -> Acknowledged:
    """Use a broker for some seconds; return the messages it acknowledged."""
    acknowledged: Acknowledged = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work(broker, name, acknowledged)
    return acknowledged


async def take_over_while_stopped(
    start_broker: StartBroker, store: Path, *, stopped_after_s: float
) -> None:
    """Run one round; check that the last broker has all messages the other two acknowledged."""
    url = store.as_uri()
    former = start_broker("--object-store", url)
    acknowledged: Acknowledged = {}
    using = asyncio.create_task(work(former, "former", acknowledged))
    await asyncio.sleep(stopped_after_s)
    os.kill(former.pid, signal.SIGSTOP)
    latter = start_broker("--object-store", url)
    later = await use_for_a_while(latter, "latter", CHECKPOINTS_S)
    before = len(acknowledged)
    os.kill(former.pid, signal.SIGCONT)
    await asyncio.sleep(GOING_ON_S)
    latter.stop()
    using.cancel()
    await asyncio.gather(using, return_exceptions=True)
    former.kill()
    assert before
    assert later

    heir = start_broker("--object-store", url)
    found: Acknowledged = {}
    async with ister.connect(heir.url) as client, client.reader(TOPIC) as reader:
        async for batch in reader:
            found.update(zip(batch.offsets, map(bytes, batch.payloads), strict=True))
    for promised in (acknowledged, later):
        assert {offset: found.get(offset) for offset in promised} == promised


async def test_a_broker_that_resumes_after_another_took_over_loses_no_message(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    await take_over_while_stopped(start_broker, tmp_path / "store", stopped_after_s=6.0)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_brokers_that_resume_at_any_time_lose_no_message(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    chance = random.Random(1)
    for number in range(15):
        await take_over_while_stopped(
            start_broker, tmp_path / f"store-{number}", stopped_after_s=chance.uniform(2.0, 9.0)
        )
