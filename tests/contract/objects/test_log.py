"""A log's whole life on real storage: a folder, an object store in a folder, and S3."""

import secrets
from pathlib import Path

import pytest
from tests.contract.objects.conftest import S3Server
from tests.crash.machine import History, Machine, OpenBackend, check
from tests.crash.workload import live, log_options
from tests.unit.broker.streambench import StreamBench

from ister.base.errors import StorageTakenError
from ister.base.limits import MIB
from ister.log import ChunkBackend, FileBackend, LogOptions
from ister.objects import LocalDisk, open_store
from ister.testing import FaultyDisk

STORES = ["store", pytest.param("s3", marks=pytest.mark.e2e)]


@pytest.fixture(params=["disk", *STORES])
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> OpenBackend:
    """Storage that fails by itself or not at all: the disk to break is not used."""
    match request.param:
        case "disk":
            return lambda _: FileBackend(LocalDisk(tmp_path))
        case "store":
            return lambda _: ChunkBackend(open_store(tmp_path.as_uri()))
    server: S3Server = request.getfixturevalue("s3_server")
    url = server.url(secrets.token_hex(8))
    return lambda _: ChunkBackend(open_store(url, server.options))


def test_everything_is_found_after_a_restart(open_backend: OpenBackend) -> None:
    history = History()
    machine = live(FaultyDisk(), open_backend, log_options(), history)
    machine.close()

    again = Machine(FaultyDisk(), open_backend, log_options(), history)
    assert check(again, history.committed) == len(history.entries) > 30
    again.close()


@pytest.mark.parametrize("streams", [1, 20])
def test_streams_with_one_small_message_each_take_little_of_the_disk(
    streams: int, tmp_path: Path
) -> None:
    disk = LocalDisk(tmp_path)
    bench = StreamBench(disk, segment_bytes=LogOptions().segment_bytes)  # type: ignore[arg-type]
    for number in range(streams):
        bench.create(f"/default/s{number}")
        bench.publish(b"hello", topic=f"/default/s{number}")
    # As long as a checkpoint, and what is reserved for a full disk.
    bench.storage.checkpoint(lambda _: None)
    bench.settle()

    blocks = [path.stat().st_blocks for path in tmp_path.rglob("*")]
    assert sum(blocks) * 512 <= 4 * MIB
    bench.storage.log.close()


@pytest.mark.parametrize("open_backend", STORES, indirect=True)
def test_a_former_owner_of_an_object_log_is_stopped(open_backend: OpenBackend) -> None:
    history = History()
    former = Machine(FaultyDisk(), open_backend, log_options(), history)
    former.commit(former.mark)
    owner = Machine(FaultyDisk(), open_backend, log_options(), history)

    with pytest.raises(StorageTakenError):
        former.commit(former.mark)
    del history.entries[1:]
    owner.commit(owner.mark)
    assert check(Machine(FaultyDisk(), open_backend, log_options(), history), 2) == 2
