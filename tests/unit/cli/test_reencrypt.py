"""`ister storage keys`, `ister storage reencrypt` and `ister keys remove`: retiring a key."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ister.base import StreamSettings
from ister.base.errors import BadRequestError, EncryptionKeyError, StorageTakenError
from ister.broker import StoppedLog
from ister.broker.state.changes import TopicCreated
from ister.cli.app import make_app
from ister.log import ChunkBackend, FileBackend, LogOptions
from ister.objects import FileKeyring, LocalDisk, open_store

pytest.importorskip("cryptography", reason="the extra `encryption` is not installed")


class Shell:
    """The command line, with a key file and streams that are under its first key."""

    def __init__(self, folder: Path) -> None:
        self.keys = folder / "keys.json"
        self.data = folder / "data"
        self.keyring = FileKeyring.create(self.keys)
        self.old = self.keyring.ids[0]

    def fill(self, backend: FileBackend | ChunkBackend) -> None:
        stopped = StoppedLog(backend, LogOptions(ciphers=self.keyring))
        stopped.record([TopicCreated(1, "/default/orders", StreamSettings())])
        stopped.close()

    def run(self, *words: str, exit_code: int = 0) -> Result:
        result = CliRunner().invoke(make_app(["storage", "keys"]), words)
        assert result.exit_code == exit_code, result.output
        return result

    def states(self, place: str) -> dict[str, str]:
        result = self.run("storage", "keys", place, "--key-file", str(self.keys), "--json")
        return {row["key"]: row["state"] for row in json.loads(result.stdout)["keys"]}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Streams in a data folder."""
    shell = Shell(tmp_path)
    shell.fill(FileBackend(LocalDisk(shell.data)))
    return shell


def test_a_key_is_rotated_retired_and_removed(shell: Shell) -> None:
    data, keys = str(shell.data), str(shell.keys)
    new = shell.keyring.rotate()
    assert shell.states(data) == {shell.old: "used", new: "newest"}

    done = shell.run("storage", "reencrypt", data, "--key-file", keys)
    assert f"key {shell.old} is no longer used here" in done.stderr
    assert shell.states(data) == {shell.old: "unused", new: "newest"}
    shell.run("keys", "remove", keys, shell.old, "--yes")
    assert shell.states(data) == {new: "newest"}
    stopped = StoppedLog(
        FileBackend(LocalDisk(shell.data)), LogOptions(ciphers=FileKeyring.open(shell.keys))
    )
    assert stopped.state.names() == {"/default/orders"}


def test_streams_in_an_object_store_are_re_encrypted(tmp_path: Path) -> None:
    shell, url = Shell(tmp_path), (tmp_path / "store").as_uri()
    shell.fill(ChunkBackend(open_store(url)))
    new = shell.keyring.rotate()

    shell.run("storage", "reencrypt", url, "--key-file", str(shell.keys))
    assert shell.states(url) == {shell.old: "unused", new: "newest"}


def test_a_key_that_was_removed_too_early_is_shown_as_missing(shell: Shell) -> None:
    # The manifest is under the new one already, the journal is not.
    shell.keyring.rotate()
    stopped = StoppedLog(FileBackend(LocalDisk(shell.data)), LogOptions(ciphers=shell.keyring))
    stopped.checkpoint()
    stopped.close()
    shell.keyring.remove(shell.old)

    assert shell.states(str(shell.data)) == {shell.old: "missing", shell.keyring.ids[-1]: "newest"}


def test_the_newest_key_and_unknown_ones_are_not_removed(shell: Shell) -> None:
    for key in (shell.old, "nosuchkey"):
        result = CliRunner().invoke(
            make_app(["keys"]), ["keys", "remove", str(shell.keys), key, "--yes"]
        )
        assert isinstance(result.exception, BadRequestError)
    assert FileKeyring.open(shell.keys).ids == [shell.old]


def test_a_folder_that_a_broker_uses_is_refused(shell: Shell) -> None:
    shell.keyring.rotate()
    disk = LocalDisk(shell.data)
    disk.lock()
    words = ["storage", "reencrypt", str(shell.data), "--key-file", str(shell.keys)]

    result = CliRunner().invoke(make_app(["storage"]), words)
    disk.unlock()
    assert isinstance(result.exception, StorageTakenError)


def test_without_the_key_of_the_data_nothing_is_changed(shell: Shell, tmp_path: Path) -> None:
    other = FileKeyring.create(tmp_path / "other.json")
    before = sorted((p.name, p.read_bytes()) for p in shell.data.glob("*/*"))
    words = ["storage", "reencrypt", str(shell.data), "--key-file", str(other.path)]

    result = CliRunner().invoke(make_app(["storage"]), words)
    assert isinstance(result.exception, EncryptionKeyError)
    assert sorted((p.name, p.read_bytes()) for p in shell.data.glob("*/*")) == before
