"""A tier that hangs or refuses the broker: its data is local, and so it starts and ends as ever."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.contract.objects.s3_like import BUCKET, S3Like, s3_like
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.raw import eventually

import ister

pytestmark = pytest.mark.e2e

TOPIC = "/default/old"
# Two segments of 1 MiB, and the beginning of a third.
PAYLOADS = [b"%d " % number + bytes(100_000) for number in range(25)]
# For ever, as far as a test is concerned.
HANGING_S = 3_600.0
TIER = ("--tier", f"s3://{BUCKET}/tier", "--tier-after", "0", "--segment-size", "1MiB")


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Like]:
    with s3_like() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield server


async def publish(broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        async with client.producer(TOPIC, name="p") as producer:
            for payload in PAYLOADS:
                await producer.send(payload)


async def stored(broker: BrokerProcess) -> list[bytes]:
    async with ister.connect(broker.url) as client, client.reader(TOPIC) as reader:
        return [payload async for batch in reader for payload in batch.payloads]


async def test_an_upload_that_hangs_does_not_keep_the_broker_from_ending(
    start_broker: StartBroker, store: S3Like
) -> None:
    broker = start_broker(*TIER)
    store.latency_s = HANGING_S
    await publish(broker)
    await eventually(lambda: store.under_way > 0)

    assert await asyncio.to_thread(broker.stop) == 0
    assert "upkeep_abandoned" in broker.log_text()
    assert broker.log_text().count("broker_closed") == 1
    store.latency_s = 0.0
    await asyncio.to_thread(broker.restart)
    assert await stored(broker) == PAYLOADS


async def test_a_broker_starts_with_a_tier_that_refuses_it_and_uses_it_later(
    start_broker: StartBroker, store: S3Like
) -> None:
    store.answer("PUT", 403, "AccessDenied", times=1_000)
    broker = start_broker(*TIER)
    assert "tier_not_verified" in broker.log_text()
    assert "AccessDenied" in broker.log_text()
    await publish(broker)
    assert await stored(broker) == PAYLOADS

    store.answers.clear()
    await eventually(lambda: any(name.startswith("tier/segments/") for name in store.objects))
    assert await stored(broker) == PAYLOADS
