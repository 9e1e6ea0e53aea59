"""Start-up of storage: what object stores are told, who is blamed, and what is said meanwhile."""

import asyncio
import errno
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.fakes import FakeClock

from ister.base.errors import BadRequestError, ConfigError
from ister.base.limits import Limits
from ister.broker import Broker
from ister.cli.serve import _show_banner, places
from ister.config import ServerConfig, StorageConfig
from ister.log import Buffer, Entry, Kind
from ister.objects import LocalStore, MemoryDisk, VerifiedStore
from ister.server import storage as module
from ister.server import store_options
from ister.server.backups import pin
from ister.server.serve import Addresses
from ister.server.storage import (
    PROGRESS_MS,
    Replaying,
    Storages,
    blamed_on,
    in_thread,
    verify_tier,
)
from ister.telemetry import SystemClock

HTTP = "http://127.0.0.1:9000"
WAIT_S = 30.0


@pytest.mark.parametrize(
    "name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ENDPOINT"]
)
def test_an_endpoint_without_tls_is_taken_at_its_word(name: str) -> None:
    assert store_options({name: HTTP}) == {"allow_http": "true"}


@pytest.mark.parametrize(
    "environment",
    [{}, {"AWS_ENDPOINT_URL": "https://a"}, {"MY_ENDPOINT": HTTP}, {"AWS_PROXY": HTTP}],
)
def test_everything_else_stays_with_tls(environment: dict[str, str]) -> None:
    assert store_options(environment) == {}


def test_an_error_of_the_disk_names_its_setting_and_the_file() -> None:
    with pytest.raises(PermissionError) as caught, blamed_on("--data d"):
        raise OSError(errno.EACCES, "Permission denied", "d/segments/1.seg")

    assert caught.value.filename == "--data d"
    assert caught.value.strerror == "d/segments/1.seg: Permission denied"


def test_an_error_that_says_it_all_is_not_made_longer() -> None:
    with pytest.raises(OSError, match="no bucket") as caught, blamed_on("--tier s3://b"):
        raise OSError(errno.EIO, "no bucket for probes/1", "probes/1")

    assert caught.value.strerror == "no bucket for probes/1"


def entry(number: int) -> Entry:
    return Entry(Kind.CHANGES, 0, number, 3, 64, memoryview(b""), 0)


def test_a_replay_tells_how_far_it_is_once_in_a_while() -> None:
    clock = FakeClock()
    told: list[tuple[str, dict[str, object]]] = []
    replaying = Replaying("d", clock, lambda event, **fields: told.append((event, fields)))

    replaying.on_entry(entry(1))
    clock.ms += PROGRESS_MS - 1
    replaying.on_entry(entry(2))
    assert told == []

    clock.ms += 1
    replaying.on_entry(entry(3))
    replaying.on_entry(entry(4))
    fields = {"place": "d", "entries": 3, "segment": 3, "position": 64}
    assert told == [("storage_replaying", fields)]


async def test_a_thread_gives_back_what_it_returns_or_raises() -> None:
    assert await in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


def test_the_banner_tells_where_streams_are_kept(tmp_path: Path) -> None:
    storage = StorageConfig(tier="s3://b/t", object_store="s3://b/o", key_file=Path("keys.json"))
    config = ServerConfig(data=tmp_path, storage=storage)

    assert places(config) == [
        ("data", f"{tmp_path}, encrypted with keys.json"),
        ("tier", "s3://b/t"),
        ("objects", "s3://b/o"),
    ]


def test_the_banner_shows_ipv6_addresses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["native", "http", "grpc", "admin"]
    shown = {name: f"[fd00::1]:{7_000 + port}" for port, name in enumerate(names)}
    _show_banner(ServerConfig(data=tmp_path), Addresses(pid=1, tls=False, **shown))

    told = capsys.readouterr().err
    assert [address for address in shown.values() if address not in told] == []


def test_the_banner_tells_that_a_folder_is_not_made_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert places(ServerConfig()) == [("data", "ister-data, made with the first stream")]


async def test_idle_storage_has_no_threads_of_its_own(tmp_path: Path) -> None:
    kept = StorageConfig(object_store="memory://")
    clock = SystemClock(asyncio.get_running_loop().call_later)
    storage = Storages(ServerConfig(data=tmp_path, storage=kept), clock, environment={})
    broker = Broker(name="b", limits=Limits(), clock=clock, random_slot=lambda _: 0)
    await storage.open(broker)
    await storage.take_over(broker)
    own = ("ister-disk", "ister-store")
    idle = [t.name for t in threading.enumerate() if t.name.startswith(own)]
    done = asyncio.get_running_loop().create_future()
    broker.create_topic("/default/x", done.set_result, kind="stream")
    assert await done is None
    busy = [t.name for t in threading.enumerate() if t.name.startswith("ister-disk")]
    await storage.close()

    assert idle == []
    assert busy in ([], ["ister-disk-journal-0"])


class AwayDisk(MemoryDisk):
    """A store that does not answer while it is away."""

    away = True

    def put(self, name: str, data: Buffer) -> None:
        """Make a file, or fail as a store does that cannot be reached."""
        if self.away:
            raise OSError(errno.EIO, "connection refused", name)
        super().put(name, data)


class ReplacingDisk(AwayDisk):
    """A store that ignores the condition, and replaces objects."""

    def put(self, name: str, data: Buffer) -> None:
        """Make a file, or replace it."""
        self.remove(name)
        super().put(name, data)


def test_a_tier_that_does_not_answer_is_verified_before_the_first_upload() -> None:
    disk = ReplacingDisk()
    tier = VerifiedStore(LocalStore(disk))
    with capture_logs() as logs:
        verify_tier(tier)
    disk.away = False

    assert [line["event"] for line in logs] == ["tier_not_verified"]
    with pytest.raises(ConfigError, match="conditional writes"):
        tier.put("segments/1", b"")
    assert tier.names("segments/") == []


def test_a_tier_that_comes_back_takes_uploads() -> None:
    disk = AwayDisk()
    tier = VerifiedStore(LocalStore(disk))
    verify_tier(tier)
    with pytest.raises(OSError, match="refused"):
        tier.put("segments/1", b"")
    disk.away = False
    tier.put("segments/1", b"1")

    assert tier.names("probes/") == []
    assert tier.get("segments/1") == b"1"


def test_a_tier_that_replaces_objects_is_refused_at_the_start() -> None:
    disk = ReplacingDisk()
    disk.away = False

    with pytest.raises(ConfigError, match="conditional writes"):
        verify_tier(VerifiedStore(LocalStore(disk)))


def test_a_tier_that_refuses_the_credentials_does_not_stop_the_start() -> None:
    class Refusing(AwayDisk):
        def put(self, name: str, data: Buffer) -> None:
            if self.away:
                raise PermissionError(errno.EACCES, "the access key has expired", name)
            super().put(name, data)

    disk = Refusing()
    tier = VerifiedStore(LocalStore(disk))
    with capture_logs() as logs:
        verify_tier(tier)
    [line] = logs
    assert (line["event"], line["log_level"]) == ("tier_not_verified", "error")
    assert "expired" in line["reason"]
    with pytest.raises(PermissionError):
        tier.put("segments/1", b"")

    disk.away = False
    tier.put("segments/1", b"1")
    assert tier.names("segments/") == ["segments/1"]


def test_a_tier_that_hangs_does_not_hold_up_the_start() -> None:
    answer = threading.Event()

    class Hanging(MemoryDisk):
        def put(self, name: str, data: Buffer) -> None:
            answer.wait()
            super().put(name, data)

    tier = VerifiedStore(LocalStore(Hanging()))
    with capture_logs() as logs:
        verify_tier(tier, answer_s=0)
    answer.set()
    tier.put("segments/1", b"")

    assert [line["event"] for line in logs] == ["tier_not_verified"]
    assert tier.names("probes/") == []


async def test_a_first_stream_asks_nothing_of_the_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stream is made in the event loop."""
    monkeypatch.chdir(tmp_path)
    asked: list[int] = []

    class Asked(MemoryDisk):
        def put(self, name: str, data: Buffer) -> None:
            asked.append(threading.get_ident())
            super().put(name, data)

    monkeypatch.setattr(module, "open_store", lambda *_: LocalStore(Asked()))
    clock = SystemClock(asyncio.get_running_loop().call_later)
    config = ServerConfig(storage=StorageConfig(tier="memory://"))
    storage = Storages(config, clock, environment={})
    broker = Broker(
        name="b",
        limits=Limits(),
        clock=clock,
        random_slot=lambda _: 0,
        open_local=storage.open_local,
    )
    await storage.open(broker)
    await storage.take_over(broker)
    done = asyncio.get_running_loop().create_future()
    broker.create_topic("/default/x", done.set_result, kind="stream")
    assert await done is None
    await storage.close()

    assert len(asked) == 2
    assert threading.get_ident() not in asked


@pytest.mark.parametrize("work", ["reading", "housekeeping", "compacting"])
async def test_a_store_that_does_not_answer_holds_up_the_end_for_a_bounded_time(
    tmp_path: Path, work: str
) -> None:
    clock = SystemClock(asyncio.get_running_loop().call_later)
    config = ServerConfig(data=tmp_path)
    storage = Storages(config, clock, environment={}, closing_s=0.05)
    broker = Broker(name="b", limits=Limits(), clock=clock, random_slot=lambda _: 0)
    await storage.open(broker)
    await storage.take_over(broker)
    done = asyncio.get_running_loop().create_future()
    broker.create_topic("/default/x", done.set_result, kind="stream")
    assert await done is None
    begun, answer = threading.Event(), threading.Event()

    def ask_the_store() -> None:
        begun.set()
        answer.wait()

    [kept] = broker.streams.storages
    getattr(kept.workers, work).run(ask_the_store, lambda _: None)
    try:
        await in_thread(begun.wait)
        with capture_logs() as logs:
            await asyncio.wait_for(storage.close(), WAIT_S)
    finally:
        answer.set()

    assert "upkeep_abandoned" in [line["event"] for line in logs]
    again = Storages(config, clock, environment={})
    other = Broker(name="b", limits=Limits(), clock=clock, random_slot=lambda _: 0)
    await again.open(other)
    await again.take_over(other)
    assert other.catalog.is_taken("/default/x")
    await again.close()


async def test_a_folder_whose_restore_was_cut_short_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "restoring").touch()
    clock = SystemClock(asyncio.get_running_loop().call_later)
    storage = Storages(ServerConfig(data=tmp_path), clock, environment={})
    broker = Broker(name="b", limits=Limits(), clock=clock, random_slot=lambda _: 0)
    with pytest.raises(ConfigError, match="its restore was not finished"):
        await storage.open(broker)
    await storage.close()


async def test_streams_in_an_object_store_cannot_be_backed_up(tmp_path: Path) -> None:
    kept = StorageConfig(object_store="s3://bucket/ister")
    clock = SystemClock(asyncio.get_running_loop().call_later)
    storage = Storages(ServerConfig(data=tmp_path, storage=kept), clock, environment={})
    with pytest.raises(BadRequestError, match="streams in s3://bucket/ister, which a backup"):
        storage.sources()
    await storage.close()


async def test_a_backup_has_what_was_committed_and_its_folder(tmp_path: Path) -> None:
    clock = SystemClock(asyncio.get_running_loop().call_later)
    storage = Storages(ServerConfig(data=tmp_path), clock, environment={})
    broker = Broker(name="b", limits=Limits(), clock=clock, random_slot=lambda _: 0)
    await storage.open(broker)
    await storage.take_over(broker)
    done = asyncio.get_running_loop().create_future()
    broker.create_topic("/default/x", done.set_result, kind="stream")
    assert await done is None
    files = await pin(storage.sources(), tmp_path / "backup" / "1")
    await storage.close()

    [size_bytes] = [size for name, size in files if name.startswith("segments/")]
    # Not what is reserved behind it.
    assert 0 < size_bytes < 4_096
    assert all((tmp_path / "backup" / "1" / name).exists() for name, _ in files)
