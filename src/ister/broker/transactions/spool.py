"""A file without a name, in which the batches of one stage wait. Plain blocking code.

Always true:
- the file has no name, so that it is gone when it is closed, and when the process ends in any way;
- with a keyring, what is in it is sealed under a key that is in memory only;
- any thread may use it, and a call after `close` gets an `OSError`, never another file
  that has got the same descriptor since.
"""

import errno
import os
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import BinaryIO, NamedTuple

from ister.base.errors import BadBatchError
from ister.codec import Batch, crc32c
from ister.log import Buffer, Cipher, Keyring

# In front of each batch: its slot, how many messages, its size, the same as it is stored; and
# their checksum. The batch has one of its own.
_FIELDS = struct.Struct("<IIII")
_CRC = struct.Struct("<I")
_HEAD_BYTES = _FIELDS.size + _CRC.size
_NONCE = struct.Struct("<IQ")


class SpoolPlace(NamedTuple):
    """Where a batch is in a spool."""

    slot: int
    count: int  # type: ignore[assignment]  # Nobody counts the fields of a tuple.
    size_bytes: int
    position: int
    stored_bytes: int
    number: int


class Spool:
    """The file of one stage. It is made with the first batch."""

    __slots__ = (
        "_cipher",
        "_closed",
        "_count",
        "_end",
        "_file",
        "_folder",
        "_keyring",
        "_lock",
        "damaged",
    )

    def __init__(self, folder: Path | None, keyring: Keyring | None = None) -> None:
        """Without a `folder`, or while that is missing, the system's own is used."""
        self._folder = folder
        self._keyring = keyring
        self._cipher: Cipher | None = None
        self._file: BinaryIO | None = None
        self._closed = False
        self._end = 0
        self._count = 0
        self._lock = Lock()
        # Whether something in it could not be read back.
        self.damaged = False

    def write(self, rows: Sequence[tuple[int, Batch]]) -> None:
        """Add batches with their slots, or raise `OSError`; then only `close` may follow."""
        with self._lock:
            descriptor = self._opened().fileno()
            for slot, batch in rows:
                parts = self._sealed([batch.stamp_bytes(), batch.tail])
                size = sum(map(len, parts))
                fields = _FIELDS.pack(slot, batch.count, batch.size_bytes, size)
                head = fields + _CRC.pack(crc32c(fields))
                _write_all(descriptor, self._end, [head, *parts], _HEAD_BYTES + size)
                self._count += 1
                self._end += _HEAD_BYTES + size

    def places(self) -> Iterator[SpoolPlace]:
        """Yield where the batches are, in the order they came.

        Raises `OSError`, or `ValueError` when what is in the file is not what was written.
        """
        position = number = 0
        while position < self._end:
            head = self._read(position, _HEAD_BYTES)
            if _CRC.unpack_from(head, _FIELDS.size)[0] != crc32c(head[: _FIELDS.size]):
                self.damaged = True
                raise ValueError(f"what was staged is damaged at byte {position}")
            slot, count, size, stored = _FIELDS.unpack_from(head)
            yield SpoolPlace(slot, count, size, position + _HEAD_BYTES, stored, number)
            position += _HEAD_BYTES + stored
            number += 1

    def load(self, place: SpoolPlace) -> Batch:
        """Return a batch. Raises `OSError`; `ValueError` or `BadBatchError` when it is damaged."""
        data = self._read(place.position, place.stored_bytes)
        try:
            if self._cipher is not None:
                data = self._cipher.decrypt(data, b"", _NONCE.pack(0, place.number))
            return Batch(data)
        except (ValueError, BadBatchError):
            self.damaged = True
            raise

    def close(self) -> None:
        """Give the room back."""
        with self._lock:
            self._closed = True
            file, self._file = self._file, None
            if file is not None:
                file.close()

    def __del__(self) -> None:
        # Of a broker that is not used any more, which nobody has closed each stage of.
        self.close()

    def _opened(self) -> BinaryIO:
        if self._closed:
            raise OSError(errno.EBADF, "the stage is gone")
        if self._file is None:
            # The key first: without one, nothing is to be written.
            if self._keyring is not None:
                # The wrapped key is for those who come back to a file: nobody can to this one.
                self._cipher, _, _ = self._keyring.new_cipher()
            folder = self._folder
            self._file = tempfile.TemporaryFile(  # noqa: SIM115 - `close` is below
                buffering=0, dir=folder if folder is not None and folder.is_dir() else None
            )
        return self._file

    def _sealed(self, parts: Sequence[Buffer]) -> Sequence[Buffer]:
        if self._cipher is None:
            return parts
        return [self._cipher.encrypt(b"".join(parts), b"", _NONCE.pack(0, self._count))]

    def _read(self, position: int, size_bytes: int) -> bytes:
        try:
            with self._lock:
                data = os.pread(self._opened().fileno(), size_bytes, position)
        except OSError:
            self.damaged = True
            raise
        if len(data) < size_bytes:
            self.damaged = True
            raise ValueError(f"{len(data)} B where {size_bytes} B were staged")
        return data


def _write_all(descriptor: int, position: int, parts: Sequence[Buffer], size_bytes: int) -> None:
    written = os.pwritev(descriptor, parts, position)
    # A disk about to be full, or a signal: one copy is fine here.
    rest = memoryview(b"".join(parts) if written < size_bytes else b"")[written:]
    while rest:
        written = os.pwrite(descriptor, rest, position + size_bytes - len(rest))
        if written == 0:
            raise OSError(errno.EIO, "the disk takes no more bytes and gives no reason")
        rest = rest[written:]
