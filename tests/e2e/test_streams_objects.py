"""Streams in an object store: acknowledged means stored there, and the data folder may be lost."""

import asyncio
import shutil

import pytest
from tests.contract.objects.conftest import S3Server, s3_server
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.disks import segments
from tests.e2e.raw import WAIT_S

import ister
from ister.base.errors import BadRequestError, ShardMovedError
from ister.objects import open_store

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]

__all__ = ["s3_server"]

TOPIC = "/default/ledger"
VARIABLES = {
    "endpoint": "AWS_ENDPOINT_URL",
    "region": "AWS_REGION",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
}


@pytest.fixture
def store(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, with the variables set that a broker finds it by."""
    for option, variable in VARIABLES.items():
        monkeypatch.setenv(variable, s3_server.options[option])
    return s3_server


async def read_all(client: ister.Client) -> list[bytes]:
    async with client.reader(TOPIC) as reader:
        return [payload async for batch in reader for payload in batch.payloads]


async def test_a_stream_in_an_object_store_survives_the_loss_of_the_data_folder(
    store: S3Server, start_broker: StartBroker
) -> None:
    broker = start_broker("--object-store", store.url("journal"))
    payloads = [b"%d" % n for n in range(50)]
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream", durability="object")
        async with client.producer(TOPIC, name="p") as producer:
            for payload in payloads:
                await producer.send(payload)
        async with client.subscribe(TOPIC, "s", start="earliest") as sub:
            for _ in range(20):
                await (await sub.receive(WAIT_S)).ack(confirm=True)
    broker.kill()
    shutil.rmtree(broker.folder / "data")

    broker.restart()

    async with ister.connect(broker.url) as client:
        assert await read_all(client) == payloads
        async with client.subscribe(TOPIC, "s") as sub:
            assert (await sub.receive(WAIT_S)).offset == 20
        async with client.producer(TOPIC, name="p") as producer:
            assert (await producer.send(b"next")).offset == len(payloads)


async def test_durability_object_is_refused_without_an_object_store(broker: BrokerProcess) -> None:
    async with ister.connect(broker.url) as client:
        with pytest.raises(BadRequestError, match="--object-store"):
            await client.create_topic(TOPIC, kind="stream", durability="object")


async def test_a_broker_whose_object_journal_was_taken_over_acknowledges_nothing_more(
    store: S3Server, start_broker: StartBroker
) -> None:
    url = store.url("fought-over")
    former = start_broker("--object-store", url)
    async with ister.connect(former.url, timeout=5.0) as client:
        await client.create_topic(TOPIC, kind="stream", durability="object")
        async with client.producer(TOPIC, name="p") as producer:
            await producer.send(b"0")
            latter = start_broker("--object-store", url)
            async with ister.connect(latter.url) as other:
                async with other.producer(TOPIC, name="q") as successor:
                    await successor.send(b"1")
                with pytest.raises(ShardMovedError):
                    await producer.send(b"lost")
                assert await read_all(other) == [b"0", b"1"]


async def test_old_files_are_moved_to_the_tier_and_read_from_there(
    store: S3Server, start_broker: StartBroker
) -> None:
    payloads = [b"%d " % n + b"x" * 50_000 for n in range(30)]
    url = store.url("tier")
    broker = start_broker("--segment-size", "1MiB", "--tier", url, "--tier-after", "0s")
    async with ister.connect(broker.url) as client:
        await client.create_topic(TOPIC, kind="stream")
        async with client.producer(TOPIC, name="p") as producer:
            for payload in payloads:
                await producer.send(payload)
    data = broker.folder / "data"

    async with asyncio.timeout(60):
        # Of 1.5 MB in files of 1 MiB, all but the open one; it is another process that does it.
        while len(segments(data)) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    assert open_store(url, store.options).names("segments/")
    async with ister.connect(broker.url) as client:
        assert await read_all(client) == payloads
    broker.kill()
    broker.restart()
    async with ister.connect(broker.url) as client:
        assert await read_all(client) == payloads
