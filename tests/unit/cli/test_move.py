"""`ister storage move`: what it says, and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ister.base import StreamSettings
from ister.base.errors import BadRequestError, NotFoundError, StorageTakenError
from ister.broker import StoppedLog
from ister.broker.state.changes import TopicCreated
from ister.cli.app import make_app
from ister.log import ChunkBackend, FileBackend, LogOptions
from ister.objects import LocalDisk, open_store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder with a stream."""
    stopped = StoppedLog(FileBackend(LocalDisk(tmp_path / "data")), LogOptions())
    stopped.record([TopicCreated(1, "/default/orders", StreamSettings())])
    stopped.close()
    return tmp_path


def words(folder: Path, *more: str) -> list[str]:
    url = (folder / "store").as_uri()
    place = ["--data", str(folder / "data"), "--object-store", url]
    return ["storage", "move", *more, *place]


def test_a_move_says_what_it_has_done_and_once_more_that_it_is_done(folder: Path) -> None:
    again = words(folder, "orders", "--durability", "object", "--json")

    done = [json.loads(CliRunner().invoke(make_app(["storage"]), again).stdout) for _ in range(2)]
    url = (folder / "store").as_uri()
    assert [(row["topic"], row["place"], row["moved"]) for row in done] == [
        ("/default/orders", url, True),
        ("/default/orders", url, False),
    ]
    there = StoppedLog(ChunkBackend(open_store(url)), LogOptions())
    assert [one.settings.durability for one in there.state.topics.values()] == ["object"]


def test_an_unknown_stream_is_not_moved_and_the_streams_there_are_named(folder: Path) -> None:
    result = CliRunner().invoke(
        make_app(["storage"]), words(folder, "ordres", "--durability", "object")
    )
    assert result.exit_code == NotFoundError.exit_code
    assert result.stderr == (
        "ister: stream '/default/ordres' does not exist: there are /default/orders\n"
    )


def test_an_object_store_that_was_empty_is_told(folder: Path) -> None:
    runs = [
        CliRunner().invoke(make_app(["storage"]), words(folder, "orders", "--durability", kind))
        for kind in ("object", "object", "fsync")
    ]

    assert ["this object store was empty" in run.stderr for run in runs] == [True, False, False]


def test_a_folder_without_streams_is_refused(folder: Path) -> None:
    result = CliRunner().invoke(
        make_app(["storage"]), words(folder / "data", "orders", "--durability", "object")
    )
    assert isinstance(result.exception, BadRequestError)
    assert not (folder / "data" / "data").exists()


def test_a_folder_that_a_broker_uses_is_left_alone(folder: Path) -> None:
    disk = LocalDisk(folder / "data")
    disk.lock()

    result = CliRunner().invoke(
        make_app(["storage"]), words(folder, "orders", "--durability", "object")
    )
    disk.unlock()
    assert isinstance(result.exception, StorageTakenError)
    assert not (folder / "store").exists()
