"""What a log needs of the outside: files, an object store, encryption. Everything here blocks.

An `OSError` of any of these means that the storage failed; nobody in this folder retries it, but
for a read of a file, once.
"""

from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """One open file."""

    def write(self, position: int, parts: Sequence[Buffer]) -> None:
        """Write all of `parts` one after the other from `position` on, or raise `OSError`."""

    def read(self, position: int, size_bytes: int) -> bytes:
        """Return bytes from `position` on; fewer than asked for only at the end of the file."""

    def sync(self) -> None:
        """Have everything written so far on the disk, or raise `OSError`."""

    def size(self) -> int:
        """Return the size of the file."""

    def allocate(self, size_bytes: int) -> None:
        """Reserve zeros up to a size, or raise `OSError` with the file as it was.

        The size is durable after the next `sync`.
        """

    def truncate(self, size_bytes: int) -> None:
        """Cut the file off, durably."""

    def close(self) -> None:
        """Let go of the file."""


class Disk(Protocol):
    """A folder of files, named `folder/name`."""

    def create(self, name: str, *, allocate_bytes: int = 0) -> File:
        """Make a file, or raise `FileExistsError`. Its name is durable on return."""

    def open(self, name: str) -> File:
        """Open a file for reading and writing, or raise `FileNotFoundError`."""

    def put(self, name: str, data: Buffer) -> None:
        """Make a whole file: after a crash all of it is there or nothing. `FileExistsError`."""

    def names(self, folder: str) -> list[str]:
        """Return the files of a folder, sorted; none when it is missing."""

    def remove(self, name: str) -> None:
        """Remove a file, durably. It may be missing."""

    def room(self) -> tuple[int, int] | None:
        """Return how many bytes are free, and of how many; `None` when that is not known."""


class Store(Protocol):
    """An object store. Objects are never changed, only made and removed."""

    url: str

    def put(self, name: str, data: Buffer) -> None:
        """Make an object, durably, or raise `ObjectExistsError`."""

    def get(self, name: str) -> bytes:
        """Return an object, or raise `FileNotFoundError`."""

    def get_range(self, name: str, position: int, size_bytes: int) -> bytes:
        """Return a part of an object; fewer bytes than asked for only at its end."""

    def size(self, name: str) -> int:
        """Return the size of an object, or raise `FileNotFoundError`."""

    def names(self, prefix: str) -> list[str]:
        """Return the names that start with `prefix`, sorted."""

    def remove(self, name: str) -> None:
        """Remove an object. It may be missing."""


class Cipher(Protocol):
    """Authenticated encryption under one data key."""

    def encrypt(self, plain: Buffer, aad: bytes, nonce: bytes) -> bytes:
        """Return the sealed form; a nonce is used once."""

    def decrypt(self, sealed: Buffer, aad: bytes, nonce: bytes) -> bytes:
        """Return what was sealed, or raise `ValueError` when it was changed."""


class Keyring(Protocol):
    """Makes and unwraps data keys."""

    def new_cipher(self) -> tuple[Cipher, str, bytes]:
        """Return a cipher with a new data key, the id of its master key, and the wrapped key."""

    def open_cipher(self, key_id: str, wrapped: bytes) -> Cipher:
        """Return the cipher of a wrapped key, or raise `EncryptionKeyError`."""
