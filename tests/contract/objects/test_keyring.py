"""Key files: made once, rotated without loss, and errors that say which key is missing."""

import json
import os
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ister.base.errors import ConfigError, EncryptionKeyError, ExtraMissingError
from ister.log.files.ports import Keyring
from ister.objects import FileKeyring

NONCE = bytes(12)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def test_what_a_cipher_seals_its_wrapped_key_opens(path: Path) -> None:
    keyring: Keyring = FileKeyring.create(path)
    cipher, key_id, wrapped = keyring.new_cipher()
    sealed = cipher.encrypt(memoryview(b"message"), b"header", NONCE)

    assert b"message" not in sealed
    opened = FileKeyring.open(path).open_cipher(key_id, wrapped)
    assert opened.decrypt(memoryview(sealed), b"header", NONCE) == b"message"


def test_every_cipher_has_a_key_of_its_own(path: Path) -> None:
    keyring = FileKeyring.create(path)
    sealed = [keyring.new_cipher()[0].encrypt(b"message", b"", NONCE) for _ in range(10)]

    assert len(set(sealed)) == 10


@pytest.mark.parametrize("changed", ["bytes", "header", "nonce"])
def test_a_changed_message_is_refused(path: Path, changed: str) -> None:
    cipher, _, _ = FileKeyring.create(path).new_cipher()
    sealed = bytearray(cipher.encrypt(b"message", b"header", NONCE))
    header, nonce = b"header", NONCE
    match changed:
        case "bytes":
            sealed[0] ^= 1
        case "header":
            header = b"Header"
        case _:
            nonce = b"\1" + NONCE[1:]

    with pytest.raises(ValueError, match="changed"):
        cipher.decrypt(sealed, header, nonce)


def test_a_key_file_is_for_its_owner_alone_and_never_replaced(path: Path) -> None:
    FileKeyring.create(path)
    before = path.read_bytes()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        FileKeyring.create(path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]  # noqa: PTH208 - names, nothing more


def test_a_rotated_keyring_seals_with_the_new_key_and_opens_with_the_old(path: Path) -> None:
    keyring = FileKeyring.create(path)
    old_cipher, old_id, old_wrapped = keyring.new_cipher()
    new_id = keyring.rotate()

    assert keyring.new_cipher()[1] == new_id != old_id
    again = FileKeyring.open(path)
    assert again.ids == [old_id, new_id]
    sealed = old_cipher.encrypt(b"message", b"", NONCE)
    assert again.open_cipher(old_id, old_wrapped).decrypt(sealed, b"", NONCE) == b"message"
    assert os.listdir(path.parent) == [path.name]  # noqa: PTH208 - names, nothing more


def test_an_open_keyring_sees_a_key_that_another_process_added(path: Path) -> None:
    broker = FileKeyring.create(path)
    operator = FileKeyring.open(path)
    new_id = operator.rotate()
    _, key_id, wrapped = operator.new_cipher()

    assert broker.new_cipher()[1] == new_id
    broker.open_cipher(key_id, wrapped)


def test_keys_added_at_the_same_time_are_all_kept(path: Path) -> None:
    FileKeyring.create(path)
    with ThreadPoolExecutor(8) as threads:
        added = list(threads.map(lambda _: FileKeyring.open(path).rotate(), range(24)))

    assert set(added) < set(FileKeyring.open(path).ids)
    assert len(FileKeyring.open(path).ids) == 25


def test_a_missing_key_is_named(path: Path, tmp_path: Path) -> None:
    _, key_id, wrapped = FileKeyring.create(path).new_cipher()
    other = FileKeyring.create(tmp_path / "other.json")

    with pytest.raises(EncryptionKeyError, match=key_id) as caught:
        other.open_cipher(key_id, wrapped)
    assert caught.value.key == key_id
    assert "other.json does not have it" in str(caught.value)


def test_a_wrong_key_of_the_same_name_is_told_apart(path: Path, tmp_path: Path) -> None:
    _, key_id, wrapped = FileKeyring.create(path).new_cipher()
    other = tmp_path / "other.json"
    FileKeyring.create(other)
    content = json.loads(other.read_text())
    content["keys"][0]["id"] = key_id
    other.write_text(json.dumps(content))

    with pytest.raises(EncryptionKeyError, match="is not the one"):
        FileKeyring.open(other).open_cipher(key_id, wrapped)


@pytest.mark.parametrize("wrapped", [b"", b"short", bytes(60)])
def test_a_damaged_wrapped_key_is_refused(path: Path, wrapped: bytes) -> None:
    keyring = FileKeyring.create(path)

    with pytest.raises(EncryptionKeyError):
        keyring.open_cipher(keyring.ids[0], wrapped)


def test_keys_in_memory_outlive_a_key_file_taken_away(path: Path) -> None:
    keyring = FileKeyring.create(path)
    _, key_id, wrapped = keyring.new_cipher()
    path.unlink()

    with capture_logs() as lines:
        assert keyring.new_cipher()[1] == key_id
        keyring.open_cipher(key_id, wrapped)
    assert [line["event"] for line in lines] == ["key_file_unreadable"]


KEY = "A" * 43 + "="


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '{"version": 1, "keys": []}',
        '{"version": 1, "keys": [{"id": "a", "key": "c2hvcnQ="}]}',
        '{"version": 1, "keys": [{"id": "a", "key": "no base64!"}]}',
        f'{{"version": 2, "keys": [{{"id": "a", "key": "{KEY}"}}]}}',
        f'{{"version": 1, "keys": [{{"id": "a", "key": "{KEY}"}}, {{"id": "a", "key": "{KEY}"}}]}}',
    ],
    ids=["empty", "no fields", "no keys", "short key", "no base64", "version", "two of one id"],
)
def test_a_bad_key_file_is_a_mistake_in_the_settings(path: Path, content: str) -> None:
    path.write_text(content)

    with pytest.raises(ConfigError, match=r"keys\.json"):
        FileKeyring.open(path)


def test_a_missing_key_file_is_a_mistake_in_the_settings(path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        FileKeyring.open(path)


def test_a_key_file_that_others_can_read_is_warned_of(path: Path) -> None:
    FileKeyring.create(path)
    path.chmod(0o640)

    with capture_logs() as lines:
        FileKeyring.open(path)
    assert [(line["event"], line["mode"]) for line in lines] == [("key_file_open_to_others", "640")]


def test_without_the_library_the_error_says_what_to_install(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)

    with pytest.raises(ExtraMissingError, match=r"ister\[encryption\]"):
        FileKeyring.create(path)
    assert not path.exists()
