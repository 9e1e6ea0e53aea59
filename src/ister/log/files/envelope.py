"""Encryption of the bodies in one file: one data key for each file, wrapped in its header.

Always true, with a data key:
- no nonce is used for two plaintexts. The numbers of entries are spaces of their own beside the
  header and footers. An entry's nonce is its number: a number is given twice only after a failure,
  and then in another file, and a file found at a start gets no more entries. It may get a footer,
  also a second one when the first was cut off, so a footer's nonce is drawn by chance;
- what an entry says beside its body is bound to it: kind, flags, topic, numbers, the file's mark;
- the header of the file proves that it was made by somebody who had the data key;
- every entry behind the header is encrypted.
"""

import secrets
import struct
from collections.abc import Sequence

import msgspec

from ister.base.errors import CorruptedError, EncryptionKeyError
from ister.log.files.entry import ENCRYPTED, FileHeader, Header, Kind, encode_file_header
from ister.log.files.ports import Buffer, Cipher, Keyring
from ister.log.files.segment import number_of

NONCE_BYTES = 12
# The first byte says what it is for; the rest of an entry's is its number, of a footer's chance.
_NONCE = struct.Struct("<B3xQ")
_ENTRY, _HEADER, _FOOTER = 0, 1, 2
# kind, flags, topic, number, synced, count, mark
_BOUND = struct.Struct("<BBIQQII")
_HEADER_BOUND = struct.Struct("<16sI")
_HEADER_NAME = b"ister header"
_HEADER_NONCE = _NONCE.pack(_HEADER, 0)


class Envelope:
    """Seals and opens the bodies of one file; without a cipher it leaves them as they are."""

    __slots__ = ("cipher", "flags", "key_id", "mark", "wrapped_key")

    def __init__(
        self,
        mark: int,
        cipher: Cipher | None = None,
        *,
        key_id: str = "",
        wrapped_key: bytes = b"",
    ) -> None:
        self.mark = mark
        self.cipher = cipher
        self.key_id = key_id
        self.wrapped_key = wrapped_key
        self.flags = ENCRYPTED if cipher is not None else 0

    def seal(
        self, kind: int, topic: int, number: int, count: int, synced: int, parts: Sequence[Buffer]
    ) -> Sequence[Buffer]:
        """Return the parts as they are to be stored."""
        if self.cipher is None:
            return parts
        plain = parts[0] if len(parts) == 1 else b"".join(parts)
        bound = _BOUND.pack(kind, self.flags, topic, number, synced, count, self.mark)
        if kind != Kind.FOOTER:
            return [self.cipher.encrypt(plain, bound, _NONCE.pack(_ENTRY, number))]
        nonce = bytes([_FOOTER]) + secrets.token_bytes(NONCE_BYTES - 1)
        return [nonce + self.cipher.encrypt(plain, bound, nonce)]

    def unseal(self, header: Header, body: memoryview, *, file: str, position: int) -> memoryview:
        """Return the body as it was given to `seal`, or raise `CorruptedError`."""
        if self.cipher is None:
            if header.flags & ENCRYPTED:
                raise CorruptedError(file, position, "an encrypted entry in a file without a key")
            return body
        if not header.flags & ENCRYPTED:
            raise CorruptedError(file, position, "a plain entry in an encrypted file")
        bound = _BOUND.pack(
            header.kind,
            header.flags,
            header.topic,
            header.number,
            header.synced,
            header.count,
            header.mark,
        )
        nonce, sealed = _NONCE.pack(_ENTRY, header.number), body
        if header.kind == Kind.FOOTER:
            nonce, sealed = bytes(body[:NONCE_BYTES]), body[NONCE_BYTES:]
        try:
            if header.kind == Kind.FOOTER and nonce[:1] != bytes([_FOOTER]):
                raise ValueError("the nonce is not that of a footer")
            plain = self.cipher.decrypt(sealed, bound, nonce)
        except ValueError:
            raise CorruptedError(file, position, "the entry does not decrypt") from None
        return memoryview(plain)

    def prove(self, header: FileHeader) -> bytes:
        """Return what proves that the maker of a file's header had its data key."""
        assert self.cipher is not None, "only an encrypted file is proved"
        return self.cipher.encrypt(b"", _bound_header(header, self.mark), _HEADER_NONCE)

    def check_proof(self, header: FileHeader, file: str) -> None:
        """Raise `CorruptedError` unless the header of the file is as its maker wrote it."""
        if self.cipher is None:
            return
        proof = b"" if isinstance(header.proof, msgspec.UnsetType) else header.proof
        try:
            self.cipher.decrypt(proof, _bound_header(header, self.mark), _HEADER_NONCE)
        except ValueError:
            raise CorruptedError(file, 0, "the header of the file is not authentic") from None


def new_envelope(keyring: Keyring | None, mark: int) -> Envelope:
    """Return an envelope with a new data key; without a keyring, one that does nothing."""
    if keyring is None:
        return Envelope(mark)
    cipher, key_id, wrapped = keyring.new_cipher()
    return Envelope(mark, cipher, key_id=key_id, wrapped_key=wrapped)


def open_envelope(
    keyring: Keyring | None, first: Header, header: FileHeader, *, file: str, may_be_plain: bool
) -> Envelope:
    """Return the envelope of a file, or raise `EncryptionKeyError` or `CorruptedError`.

    `may_be_plain`: whether it may have been written before the log was encrypted. It matters with
    a keyring only: else anybody who can write to the disk could put a file of their own there.
    """
    if not header.key_id:
        if keyring is not None and not may_be_plain:
            reason = "the file is not encrypted, but the log is"
            raise CorruptedError(file, 0, reason)
        return Envelope(first.mark)
    if keyring is None:
        raise EncryptionKeyError(header.key_id, "no key was given")
    cipher = keyring.open_cipher(header.key_id, header.wrapped_key)
    envelope = Envelope(first.mark, cipher, key_id=header.key_id, wrapped_key=header.wrapped_key)
    envelope.check_proof(header, file)
    if header.number != number_of(file):
        # As good as any other, but somewhere else.
        raise CorruptedError(file, 0, f"the header says file number {header.number}")
    return envelope


def _bound_header(header: FileHeader, mark: int) -> bytes:
    return _HEADER_BOUND.pack(_HEADER_NAME, mark) + encode_file_header(header.unproved)
