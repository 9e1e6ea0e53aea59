"""The pages of the HTTP door, without a door."""

import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ister.base.errors import StorageFailedError
from ister.server.http import App, Sites
from ister.server.http.app import STORAGE_FAILS
from ister.server.native import NativeDoor
from ister.server.security import Authenticator
from ister.testing import Fault, FaultyDisk, MemoryBroker, VirtualClock

TOKEN = "vX3p9mQm2T7yLw0c"


async def get(app: App, path: str, token: str = "", host: str = "") -> tuple[int, str]:
    sent = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request"}

    async def send(event: object) -> None:
        sent.append(event)

    headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
    headers += [(b"host", host.encode())] if host else []
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
    await app(scope, receive, send)
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
            assert "no space left for messages" in reason
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


async def test_where_tokens_are_asked_for_strangers_are_not_told_what_fails(
    broker: MemoryBroker, disk: FaultyDisk, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"billing {TOKEN}\n")
    tokens.chmod(0o600)
    app = App(broker.engine, NativeDoor(broker.engine), authenticator=Authenticator(tokens=tokens))
    async with broker.connect() as client:
        await client.create_topic("/default/a", kind="stream")
        async with client.producer("/default/a") as producer:
            disk.fail(Fault(errno.ENOSPC, actions=["write"], lasting=True))
            with pytest.raises(StorageFailedError):
                await producer.send(b"one")

            with capture_logs() as lines:
                strangers = [await get(app, "/readyz", token) for token in ("", f"{TOKEN}x")]
            status, reason = await get(app, "/readyz", TOKEN)

    assert strangers == [(503, f"{STORAGE_FAILS}\n")] * 2
    # Nobody was refused.
    assert lines == []
    assert status == 503
    assert "No space left on device" in reason


async def test_the_log_tells_an_operator_how_to_let_a_scraper_in(broker: MemoryBroker) -> None:
    app = App(broker.engine, NativeDoor(broker.engine), sites=Sites(["localhost"]))

    with capture_logs() as lines:
        refused = [(await get(app, "/metrics", host="ister:8655"))[0] for _ in range(3)]
        probed = await get(app, "/readyz", host="ister:8655")

    assert refused == [421] * 3
    assert probed == (200, "ready\n")
    [line] = [line for line in lines if line["event"] == "client_refused"]
    assert "'ister:8655'" in line["error"]
    assert "--http-allowed-hosts" in line["error"]


async def test_a_bug_that_comes_all_the_time_does_not_hide_another(broker: MemoryBroker) -> None:
    door = NativeDoor(broker.engine)
    session = door.session()

    with capture_logs() as lines:
        for error in (KeyError("a"), KeyError("b"), ValueError("c")):
            door.on_bug(session, error)

    assert [str(line["exc_info"]) for line in lines] == ["'a'", "c"]
