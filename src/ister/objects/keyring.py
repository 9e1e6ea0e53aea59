"""Keys for encryption at rest, from a key file that only the broker can read.

Two layers. A *data key* encrypts one journal file or object and is stored in it, wrapped; a
*master key* wraps data keys and is only in the key file. So a new master key needs no byte of the
stored data rewritten, and a stolen disk without the key file tells nothing.

The file is JSON, the newest key last: `{"version": 1, "keys": [{"id": "5f…", "key": "base64…"}]}`.

Always true:
- a key leaves the file only by `remove`, which asks for it by its id, and the newest never does:
  data may be wrapped with it for as long as the data lives;
- the file is replaced whole and synced, so that a key in use cannot be lost by a power cut;
- a wrong or missing key is found while opening a cipher, before anything is written.
"""

import base64
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from ister.base.errors import BadRequestError, ConfigError, EncryptionKeyError, ExtraMissingError
from ister.objects.local import (
    FILE_MODE,
    LocalFile,
    new_file,
    sync_folder,
    warn,
    warn_if_open_to_others,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Buffer = bytes | bytearray | memoryview

KEY_BYTES = 32
NONCE_BYTES = 12
# One a day for eleven years, in a file of 400 KB.
KEYS_MAX = 4_096


class MasterKey(msgspec.Struct, frozen=True):
    """One key of the file."""

    id: str
    # Text, not msgspec's own base64: the size is checked with a message that says what to do.
    key: str


class KeyFile(msgspec.Struct, frozen=True):
    """The whole file."""

    version: int
    keys: list[MasterKey]


class GcmCipher:
    """AES-256-GCM under one data key."""

    __slots__ = ("_aead",)

    def __init__(self, key: bytes) -> None:
        self._aead = new_aead(key)

    def encrypt(self, plain: Buffer, aad: bytes, nonce: bytes) -> bytes:
        """Return the sealed form, 16 bytes longer; a nonce of 12 bytes is used once."""
        return self._aead.encrypt(nonce, plain, aad)

    def decrypt(self, sealed: Buffer, aad: bytes, nonce: bytes) -> bytes:
        """Return what was sealed, or raise `ValueError` when it was changed."""
        return unseal(self._aead, nonce, sealed, aad)


class FileKeyring:
    """The keys of a key file. Made by `open` or `create`; any threads may share it."""

    def __init__(self, path: Path, keys: dict[str, bytes]) -> None:
        self.path = path
        # By id, the newest last.
        self._keys = keys
        self._seen = stamp(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Read a key file. Raises `ConfigError`, or `ExtraMissingError` without the library."""
        new_aead(bytes(KEY_BYTES))
        warn_if_open_to_others("key_file_open_to_others", path, FILE_MODE)
        return cls(path, load_keys(path))

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make a key file with one new key. Raises `FileExistsError`: keys are never replaced."""
        new_aead(bytes(KEY_BYTES))
        keys = {new_id(): secrets.token_bytes(KEY_BYTES)}
        temporary = write_beside(path, keys)
        try:
            # Unlike a rename, a link never replaces a file.
            os.link(temporary, path)
        finally:
            temporary.unlink()
        sync_folder(path.parent)
        return cls(path, keys)

    @property
    def ids(self) -> list[str]:
        """The ids of all master keys, the newest last."""
        return list(self._keys)

    def rotate(self) -> str:
        """Add a master key, which every new journal file uses from now on, and return its id.

        Brokers that have the file open see it when they begin their next journal file.
        """
        with locked(self.path):
            # Only what is in the file now counts: another process may have added a key.
            keys = load_keys(self.path)
            if len(keys) >= KEYS_MAX:
                raise ConfigError([f"key file {self.path} has {KEYS_MAX} keys: start a new one"])
            key_id = new_id()
            keys[key_id] = secrets.token_bytes(KEY_BYTES)
            write_beside(self.path, keys).replace(self.path)
            sync_folder(self.path.parent)
        self._load_again()
        return key_id

    def remove(self, key_id: str) -> None:
        """Remove a master key: nothing that is under it can be read by this file any more.

        Brokers that have the file open keep it in memory. Raises `BadRequestError` for the newest
        key, and for one that is not there.
        """
        with locked(self.path):
            keys = load_keys(self.path)
            if key_id not in keys:
                raise BadRequestError(f"key file {self.path} has no key {key_id!r}")
            if key_id == next(reversed(keys)):
                raise BadRequestError(
                    f"key {key_id!r} is the newest, which new data is encrypted with: "
                    "`ister keys rotate` adds another one"
                )
            del keys[key_id]
            write_beside(self.path, keys).replace(self.path)
            sync_folder(self.path.parent)
        self._keys = keys
        self._seen = stamp(self.path)

    def new_cipher(self) -> tuple[GcmCipher, str, bytes]:
        """Return a cipher with a new data key, the id of its master key, and the wrapped key."""
        self._load_again()
        key_id, master = next(reversed(self._keys.items()))
        data_key = secrets.token_bytes(KEY_BYTES)
        nonce = secrets.token_bytes(NONCE_BYTES)
        wrapped = nonce + new_aead(master).encrypt(nonce, data_key, wrapping(key_id))
        return GcmCipher(data_key), key_id, wrapped

    def open_cipher(self, key_id: str, wrapped: bytes) -> GcmCipher:
        """Return the cipher of a wrapped key, or raise `EncryptionKeyError`."""
        if key_id not in self._keys:
            self._load_again()
        master = self._keys.get(key_id)
        if master is None:
            raise EncryptionKeyError(key_id, f"key file {self.path} does not have it")
        nonce, sealed = wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:]
        try:
            data_key = unseal(new_aead(master), nonce, sealed, wrapping(key_id))
        except ValueError:
            reason = f"the key of that name in {self.path} is not the one"
            raise EncryptionKeyError(key_id, reason) from None
        return GcmCipher(data_key)

    def _load_again(self) -> None:
        """Take in keys that were added to the file since it was read."""
        try:
            seen = stamp(self.path)
            if seen == self._seen:
                return
            found = load_keys(self.path)
        except (ConfigError, OSError) as error:
            # What is in memory still works. Whoever took the file away must learn of it before
            # the next start, which will fail.
            warn("key_file_unreadable", path=str(self.path), reason=str(error))
            return
        # Keys of before stay usable even if somebody removed them from the file.
        self._keys = {**{k: v for k, v in self._keys.items() if k not in found}, **found}
        self._seen = seen


def load_keys(path: Path) -> dict[str, bytes]:
    """Read and check a key file."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=KeyFile)
        keys = {one.id: base64.b64decode(one.key, validate=True) for one in file.keys}
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError([f"key file {path} cannot be read: {reason}"]) from error
    except ValueError:
        # The text of the error could show a part of a key.
        raise ConfigError([f"key file {path} is not as `ister keys create` makes it"]) from None
    if file.version != 1:
        raise ConfigError([f"key file {path} is of version {file.version}: this one knows 1"])
    if not keys or len(keys) < len(file.keys):
        raise ConfigError([f"key file {path} needs one key or more, each with an id of its own"])
    if short := [key_id for key_id, key in keys.items() if len(key) != KEY_BYTES]:
        raise ConfigError([f"key {short[0]!r} in {path} is not {KEY_BYTES} bytes in base64"])
    return keys


def write_beside(path: Path, keys: dict[str, bytes]) -> Path:
    """Write a key file, synced, under another name in the same folder; return its path."""
    rows = [MasterKey(id=one, key=base64.b64encode(key).decode()) for one, key in keys.items()]
    text = msgspec.json.format(msgspec.json.encode(KeyFile(version=1, keys=rows)), indent=2)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    file = LocalFile(new_file(temporary))
    try:
        file.write(0, [text, b"\n"])
        file.sync()
    except OSError:
        temporary.unlink()
        raise
    finally:
        file.close()
    return temporary


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Be the only one to change the file: of two at once, one would lose the other's key."""
    while True:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Replaced while this waited: the lock is on a file that nobody reads any more.
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                yield
                return


def stamp(path: Path) -> tuple[int, int, int]:
    """Return what differs after the file was replaced or edited."""
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def new_id() -> str:
    return secrets.token_hex(4)


def wrapping(key_id: str) -> bytes:
    """Return what binds a wrapped data key to its purpose and its master key."""
    return b"ister data key " + key_id.encode()


def new_aead(key: bytes) -> "AESGCM":
    """Return the algorithm, or raise `ExtraMissingError`."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise ExtraMissingError("encryption at rest", "encryption") from None
    return AESGCM(key)


def unseal(aead: "AESGCM", nonce: bytes, sealed: Buffer, aad: bytes) -> bytes:
    """Return what was sealed, or raise `ValueError`."""
    from cryptography.exceptions import InvalidTag

    try:
        return aead.decrypt(nonce, sealed, aad)
    except InvalidTag:
        raise ValueError("sealed bytes were changed, or this is not their key") from None
