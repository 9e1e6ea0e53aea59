"""Encryption of the bodies in one file: one data key for each file, wrapped in its header.

A nonce is made of the numbers of file and entry. It is used once, because a number is given twice
only after a failure, and then in another file.
"""

import struct
from collections.abc import Sequence

from ister.base.errors import CorruptedError, EncryptionKeyError
from ister.log.entry import ENCRYPTED, FileHeader, Header
from ister.log.ports import Buffer, Cipher, Keyring

_NONCE = struct.Struct("<IQ")
# kind, topic, number, count
_BOUND = struct.Struct("<BIQI")


class Envelope:
    """Seals and opens the bodies of one file; without a cipher it leaves them as they are."""

    __slots__ = ("cipher", "file_number", "flags", "key_id", "wrapped_key")

    def __init__(
        self,
        file_number: int,
        cipher: Cipher | None = None,
        *,
        key_id: str = "",
        wrapped_key: bytes = b"",
    ) -> None:
        self.file_number = file_number
        self.cipher = cipher
        self.key_id = key_id
        self.wrapped_key = wrapped_key
        self.flags = ENCRYPTED if cipher is not None else 0

    def seal(
        self, kind: int, topic: int, number: int, count: int, parts: Sequence[Buffer]
    ) -> Sequence[Buffer]:
        """Return the parts as they are to be stored."""
        if self.cipher is None:
            return parts
        plain = parts[0] if len(parts) == 1 else b"".join(parts)
        bound = _BOUND.pack(kind, topic, number, count)
        return [self.cipher.encrypt(plain, bound, self._nonce(number))]

    def unseal(self, header: Header, body: memoryview, *, file: str, position: int) -> memoryview:
        """Return the body as it was given to `seal`, or raise `CorruptedError`."""
        if not header.flags & ENCRYPTED:
            return body
        if self.cipher is None:
            raise CorruptedError(file, position, "an encrypted entry in a file without a key")
        bound = _BOUND.pack(header.kind, header.topic, header.number, header.count)
        try:
            plain = self.cipher.decrypt(body, bound, self._nonce(header.number))
        except ValueError:
            raise CorruptedError(file, position, "the entry does not decrypt") from None
        return memoryview(plain)

    def _nonce(self, number: int) -> bytes:
        return _NONCE.pack(self.file_number & 0xFFFF_FFFF, number)


def new_envelope(keyring: Keyring | None, file_number: int) -> Envelope:
    """Return an envelope with a new data key; without a keyring, one that does nothing."""
    if keyring is None:
        return Envelope(file_number)
    cipher, key_id, wrapped = keyring.new_cipher()
    return Envelope(file_number, cipher, key_id=key_id, wrapped_key=wrapped)


def open_envelope(keyring: Keyring | None, header: FileHeader) -> Envelope:
    """Return the envelope of a file, or raise `EncryptionKeyError`."""
    if not header.key_id:
        return Envelope(header.number)
    if keyring is None:
        raise EncryptionKeyError(header.key_id, "no key was given")
    cipher = keyring.open_cipher(header.key_id, header.wrapped_key)
    return Envelope(header.number, cipher, key_id=header.key_id, wrapped_key=header.wrapped_key)
