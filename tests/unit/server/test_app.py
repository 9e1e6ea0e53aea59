"""The pages of the HTTP door, without a door."""

import errno
from collections.abc import AsyncIterator

import pytest

from ister.base.errors import StorageFailedError
from ister.server.http import App
from ister.server.native import NativeDoor
from ister.testing import Fault, FaultyDisk, MemoryBroker, VirtualClock


async def get(app: App, path: str) -> tuple[int, str]:
    sent = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    async def send(event: object) -> None:
        sent.append(event)

    await app({"type": "http", "method": "GET", "path": path}, receive, send)
    start, body = sent
    assert isinstance(start, dict)
    assert isinstance(body, dict)
    return start["status"], body["body"].decode()


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def broker(disk: FaultyDisk, clock: VirtualClock) -> AsyncIterator[MemoryBroker]:
    async with MemoryBroker(disk=disk, clock=clock) as broker:
        yield broker


async def test_readiness_and_metrics_tell_that_durable_writes_are_refused_until_they_are_taken(
    broker: MemoryBroker, disk: FaultyDisk, clock: VirtualClock
) -> None:
    app = App(broker.engine, NativeDoor(broker.engine))
    async with broker.connect() as client:
        await client.create_topic("/default/a", kind="stream")
        assert await get(app, "/readyz") == (200, "ready\n")
        async with client.producer("/default/a") as producer:
            await producer.send(b"one")
            disk.fail(Fault(errno.ENOSPC, actions=["write"], lasting=True))

            with pytest.raises(StorageFailedError, match="No space left"):
                await producer.send(b"two")
            status, reason = await get(app, "/readyz")
            metrics = (await get(app, "/metrics"))[1]

            assert status == 503
            assert "the storage fails" in reason
            assert "No space left on device" in reason
            assert await get(app, "/healthz") == (200, "ok\n")
            assert 'ister_storage_up{journal="local"} 0.0' in metrics
            assert 'ister_journal_failures_total{journal="local"} 1.0' in metrics
            assert "ister_ready 0.0" in metrics

            disk.heal()
            await clock.elapse(5.0)
            assert await get(app, "/readyz") == (200, "ready\n")
            assert 'ister_storage_up{journal="local"} 1.0' in (await get(app, "/metrics"))[1]
            assert (await producer.send(b"three")).offset == 1
