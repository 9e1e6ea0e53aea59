"""`ister storage salvage`: what it says, and what it refuses."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ister.base import AckSettings, StreamSettings
from ister.base.errors import BadRequestError, EncryptionKeyError, StorageTakenError
from ister.broker import StoppedLog
from ister.broker.state.changes import CursorMoved, SubscriptionCreated, TopicCreated
from ister.cli.app import make_app
from ister.codec import Batch, encode
from ister.log import FileBackend, Kind, LogOptions
from ister.objects import FileKeyring, LocalDisk

TOPIC = "/default/orders"


def make(folder: Path, keyring: FileKeyring | None = None) -> None:
    """Make a data folder with a stream of ten messages in as many entries, or add ten more."""
    stopped = StoppedLog(FileBackend(LocalDisk(folder)), LogOptions(ciphers=keyring))
    if not stopped.state.topics:
        created = SubscriptionCreated(
            1, TOPIC, "billing", "shared", "round_robin", {}, [], AckSettings()
        )
        stopped.record([TopicCreated(1, TOPIC, StreamSettings()), created, CursorMoved(1, 1, 0)])
    first = stopped.state.topics[1].next_offset
    for offset in range(first, first + 10):
        batch = Batch(b"".join(encode([b"message %d" % offset])))
        batch.stamp(offset, 1_000 + offset)
        stopped.log.append(
            Kind.BATCH,
            1,
            [batch.stamp_bytes(), batch.tail],
            count=1,
            base_offset=offset,
            time_ms=1_000 + offset,
        )
        stopped.commit()
        stopped.state.on_batch(1, batch)
    stopped.checkpoint()
    stopped.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a data folder in it."""
    make(tmp_path / "data")
    return tmp_path


def salvage(folder: Path, *more: str) -> Result:
    words = ["storage", "salvage", str(folder / "data"), str(folder / "new"), *more]
    return CliRunner().invoke(make_app(["storage"]), words)


def damage(folder: Path, message: bytes) -> None:
    for path in (folder / "data" / "segments").iterdir():
        data = path.read_bytes()
        path.write_bytes(data.replace(message, b"X" * len(message)))


def test_an_intact_folder_ends_with_0_and_says_that_nothing_is_lost(folder: Path) -> None:
    result = salvage(folder)

    assert result.exit_code == 0
    assert result.stdout == ""
    assert "1 stream with 10 messages" in result.stderr
    assert "no message is lost" in result.stderr


def test_what_is_lost_is_listed_and_the_exit_code_is_70(folder: Path) -> None:
    damage(folder, b"message 4")
    result = salvage(folder)

    assert result.exit_code == 70
    assert result.stdout == f"lost: {TOPIC}: offsets 4 to 4, 1 message\n"
    assert "1 message of streams lost" in result.stderr


def test_json_has_everything_that_is_lost(folder: Path) -> None:
    damage(folder, b"message 0")
    result = salvage(folder, "--json")
    found = json.loads(result.stdout)

    assert result.exit_code == 70
    assert (found["topics"], found["messages"]) == (1, 9)
    assert found["lost"] == {
        "messages": 1,
        "ranges": [{"topic": TOPIC, "start": 0, "end": 1, "messages": 1}],
        "names": [],
        "subscriptions": [],
        "entries": [],
        "timelines": [],
        "timeline_messages": {},
        "facts": [],
        "is_complete": True,
    }
    assert [one["reason"] for one in found["problems"]] == ["the checksum does not match"]


def test_a_snapshot_is_made_again_of_an_older_one_and_the_journal(folder: Path) -> None:
    make(folder / "data")
    max((folder / "data" / "snapshots").iterdir()).unlink()
    result = salvage(folder, "--json")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["messages"] == 20


def test_a_stream_of_which_the_name_is_lost_is_salvaged_under_another(folder: Path) -> None:
    for snapshot in (folder / "data" / "snapshots").iterdir():
        snapshot.unlink()
    damage(folder, b"SubscriptionCreated")
    result = salvage(folder, "--json")
    found = json.loads(result.stdout)

    assert result.exit_code == 70
    assert (found["lost"]["names"], found["messages"]) == (["/salvaged/topic-1"], 10)
    assert found["lost"]["entries"] == [[1, 2]]


def test_subscriptions_are_listed_when_later_changes_may_be_lost(folder: Path) -> None:
    make(folder / "data")
    max((folder / "data" / "snapshots").iterdir()).unlink()
    damage(folder, b"message 15")
    result = salvage(folder, "--json")

    assert result.exit_code == 70
    [one] = json.loads(result.stdout)["lost"]["subscriptions"]
    assert (one["topic"], one["name"]) == (TOPIC, "billing")


def test_files_under_a_key_that_is_lost_count_as_damaged(tmp_path: Path) -> None:
    make(tmp_path / "data", FileKeyring.create(tmp_path / "keys.json"))
    FileKeyring.create(tmp_path / "others.json")
    assert isinstance(salvage(tmp_path).exception, EncryptionKeyError)
    assert not (tmp_path / "new").exists()

    result = salvage(tmp_path, "--key-file", str(tmp_path / "others.json"), "--json")
    assert result.exit_code == 70
    found = json.loads(result.stdout)
    assert "encrypted with key" in " ".join(one["reason"] for one in found["problems"])
    assert not found["lost"]["is_complete"]


def test_a_folder_that_a_broker_has_is_left_alone(folder: Path) -> None:
    disk = LocalDisk(folder / "data")
    disk.lock()
    result = salvage(folder)
    disk.unlock()

    assert isinstance(result.exception, StorageTakenError)
    assert not (folder / "new").exists()


@pytest.mark.parametrize("place", ["s3://bucket/ister", "nowhere"])
def test_what_is_not_a_data_folder_is_refused(tmp_path: Path, place: str) -> None:
    words = ["storage", "salvage", place, str(tmp_path / "new")]
    result = CliRunner().invoke(make_app(["storage"]), words)

    assert isinstance(result.exception, BadRequestError)
    assert not (tmp_path / "new").exists()
