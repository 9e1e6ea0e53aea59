"""Start-up of storage: what object stores are told, who is blamed, and what is said meanwhile."""

import errno
from pathlib import Path

import pytest
from tests.unit.broker.fakes import FakeClock

from ister.cli.serve import places
from ister.log import Entry, Kind
from ister.server import ServerConfig, StorageConfig, store_options
from ister.server.storage import PROGRESS_MS, Replaying, blamed_on, in_thread

HTTP = "http://127.0.0.1:9000"


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


def test_the_banner_tells_that_a_folder_is_not_made_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert places(ServerConfig()) == [("data", "ister-data, made with the first stream")]
