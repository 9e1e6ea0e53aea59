"""The beginning of every file of a log: a header entry with its number, its maker and its key."""

import secrets
from typing import Literal, NamedTuple

import msgspec

from ister.log.files.entry import FileHeader, Kind, encode_file_header, pack_header, padding
from ister.log.files.envelope import Envelope, new_envelope
from ister.log.files.ports import Buffer, Keyring


class Beginning(NamedTuple):
    """What a file begins with, and what its other entries need of that."""

    envelope: Envelope
    # Told apart by it: entries of this file, and messages that contain the bytes of an entry.
    mark: int
    parts: list[Buffer]

    @property
    def size_bytes(self) -> int:
        """Where the next entry goes."""
        return sum(map(len, self.parts))


def begin_file(
    role: Literal["journal", "segment", "chunk", "fence", "manifest", "snapshot"],
    number: int,
    *,
    first_entry: int,
    owner: str,
    now_ms: int,
    keyring: Keyring | None,
    epoch: int | msgspec.UnsetType = msgspec.UNSET,
) -> Beginning:
    """Return the beginning of a new file, with a data key of its own if there is a keyring.

    The header of a chunk says the `epoch` of its maker.
    """
    mark = secrets.randbits(32)
    envelope = new_envelope(keyring, mark)
    header = FileHeader(
        role=role,
        number=number,
        first_entry=first_entry,
        created_ms=now_ms,
        owner=owner,
        key_id=envelope.key_id,
        wrapped_key=envelope.wrapped_key,
        epoch=epoch,
    )
    if envelope.cipher is not None:
        header = msgspec.structs.replace(header, proof=envelope.prove(header))
    return Beginning(envelope, mark, header_entry(header, mark))


def header_entry(header: FileHeader, mark: int) -> list[Buffer]:
    """Return the first entry of a file."""
    body = encode_file_header(header)
    head = pack_header(
        Kind.HEADER,
        0,
        [body],
        length=len(body),
        number=header.first_entry,
        synced=0,
        count=0,
        mark=mark,
    )
    return [head + body + padding(len(body))]
