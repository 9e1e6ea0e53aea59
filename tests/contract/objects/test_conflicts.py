"""S3's answers to a conditional write: 412 (exists), 409 (conflict, retry) and 503 (slow down).

`obstore` raises one error for 409 and 412, so only a read can tell them apart.
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.objects.s3_like import BUCKET, CONFLICT, SLOW_DOWN, S3Like, s3_like
from tests.unit.log.harness import Bench

from ister.base.errors import ConfigError, ObjectExistsError, StorageTakenError
from ister.base.limits import Limits
from ister.broker import Broker
from ister.config import ServerConfig, StorageConfig
from ister.log import ChunkBackend
from ister.objects import verify_store
from ister.objects.remote import ATTEMPTS_MAX
from ister.server.storage import Storages
from ister.telemetry import SystemClock


@pytest.fixture
def server() -> Iterator[S3Like]:
    with s3_like() as running:
        yield running


@pytest.mark.parametrize("times", [1, 2, ATTEMPTS_MAX - 1])
def test_put_is_retried_while_s3_answers_409(server: S3Like, times: int) -> None:
    server.answer("PUT", 409, CONFLICT, times=times)
    store = server.store()
    store.put("chunks/1", b"ours")

    assert store.get("chunks/1") == b"ours"
    assert server.counts["PUT"] == times + 1


def test_put_fails_with_a_storage_error_when_s3_keeps_answering_409(server: S3Like) -> None:
    server.answer("PUT", 409, CONFLICT, times=ATTEMPTS_MAX)

    with pytest.raises(OSError, match=r"chunks/1"):
        server.store().put("chunks/1", b"ours")
    assert server.counts["PUT"] == ATTEMPTS_MAX
    assert server.objects == {}


def test_put_after_409_finds_the_object_of_another_writer(server: S3Like) -> None:
    server.answer("PUT", 409, CONFLICT)
    server.objects["log/chunks/1"] = b"rival"

    with pytest.raises(ObjectExistsError):
        server.store().put("chunks/1", b"ours")
    assert server.objects["log/chunks/1"] == b"rival"


def test_put_that_was_stored_but_answered_503_finds_its_own_object(server: S3Like) -> None:
    server.answer("PUT", 503, SLOW_DOWN, carried_out=True)
    server.answer("PUT", 409, CONFLICT)
    server.store().put("chunks/1", b"ours")

    assert server.objects["log/chunks/1"] == b"ours"


def test_put_of_an_existing_object_is_refused_after_one_request(server: S3Like) -> None:
    store = server.store()
    store.put("chunks/1", b"first")

    with pytest.raises(ObjectExistsError):
        store.put("chunks/1", b"second")
    assert server.counts["PUT"] == 2


def test_store_that_first_answers_409_passes_verification(server: S3Like) -> None:
    server.answer("PUT", 409, CONFLICT, times=2)

    verify_store(server.store())


def test_owner_keeps_its_journal_when_s3_answers_409(server: S3Like) -> None:
    bench = Bench(ChunkBackend(server.store()))
    bench.publish(1, b"one")
    for number in range(3):
        server.answer("PUT", 409, CONFLICT, times=2)
        bench.publish(1, b"%d" % number)

    assert bench.reopened().payloads(1) == [b"one", b"0", b"1", b"2"]


def test_former_owner_loses_its_journal_even_when_s3_answers_409(server: S3Like) -> None:
    old = Bench(ChunkBackend(server.store()))
    old.publish(1, b"one")
    Bench(ChunkBackend(server.store())).publish(1, b"new")
    server.answer("PUT", 409, CONFLICT, times=2)

    old.append(1, b"lost")
    group = old.log.take()
    assert group is not None
    with pytest.raises(StorageTakenError):
        old.log.write(group)


def test_start_succeeds_when_the_store_is_busy_during_the_replay(server: S3Like) -> None:
    bench = Bench(ChunkBackend(server.store()))
    for number in range(63):
        bench.publish(1, b"%d" % number)
    server.busy_above = 4
    server.latency_s = 0.002

    assert bench.reopened().payloads(1) == [b"%d" % number for number in range(63)]
    assert server.counts[SLOW_DOWN] > 0


@pytest.mark.parametrize("option", ["tier", "object_store"])
async def test_broker_refuses_a_store_that_replaces_objects(
    server: S3Like, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    server.replaces = True
    url = f"s3://{BUCKET}/x"
    kept = StorageConfig(tier=url) if option == "tier" else StorageConfig(object_store=url)
    clock = SystemClock(asyncio.get_running_loop().call_later)
    storage = Storages(ServerConfig(data=tmp_path, storage=kept), clock, environment=os.environ)
    broker = Broker(name="b", limits=Limits(), clock=clock, random_slot=lambda _: 0)

    async def start() -> None:
        await storage.open(broker)
        await storage.take_over(broker)

    with pytest.raises(ConfigError, match="conditional writes"):
        await start()
    await storage.close()
