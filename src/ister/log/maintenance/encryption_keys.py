"""Which master keys the files of a log are encrypted with, as the headers of the files say it.

Counted is what a broker may come to read: the files that the manifest in force names, the journal
behind them, and every manifest and snapshot. A key that none of them has is no longer needed for
this log.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ister.base.errors import BadRequestError, CorruptedError
from ister.log.files.fences import FENCE_ROLE
from ister.log.files.manifest import Manifest
from ister.log.files.ports import Keyring, Store
from ister.log.files.scan import read_file_header
from ister.log.files.segment import (
    CHUNKS,
    MANIFESTS,
    SEGMENTS,
    SNAPSHOTS,
    Place,
    chunk_name,
    number_of,
    segment_name,
)
from ister.log.journal.backend import ChunkBackend, FileBackend
from ister.log.opening import load_manifest
from ister.log.upkeep.checkpoint import highest_manifest

# What stands for a key where a file is not encrypted.
NO_KEY = ""
# A broker that runs replaces and removes files meanwhile: then all of it is done once more.
ATTEMPTS_MAX = 10


class KeyUse(NamedTuple):
    """The files under one master key."""

    files: int = 0
    size_bytes: int = 0


class _Located(NamedTuple):
    name: str
    # In the store of --tier, not beside the journal.
    in_tier: bool = False


def find_keys(
    backend: FileBackend | ChunkBackend,
    *,
    keyring: Keyring | None,
    remote: Store | None = None,
) -> dict[str, KeyUse]:
    """Return the ids of the master keys in use, each with its files. Writes nothing.

    A broker may use the log meanwhile. Raises `EncryptionKeyError` when the manifest cannot be
    decrypted, `BadRequestError` when segments are in a tier that is not given, and
    `CorruptedError`.
    """
    for _ in range(ATTEMPTS_MAX):
        number = highest_manifest(backend)
        found: dict[str, KeyUse] = {}
        try:
            manifest = load_manifest(backend, keyring, number)
            for file in _files_of(backend, manifest):
                key, size_bytes = _key_of(backend, remote, file)
                if key is None:
                    continue
                known = found.get(key, KeyUse())
                found[key] = KeyUse(known.files + 1, known.size_bytes + size_bytes)
        except FileNotFoundError as error:
            if highest_manifest(backend) == number:
                name = str(error.filename or "a file of the log")
                raise CorruptedError(name, 0, "the file is missing") from error
        else:
            return found
    raise BadRequestError("the broker replaces files quicker than they are read: try again")


def _files_of(backend: FileBackend | ChunkBackend, manifest: Manifest | None) -> Iterator[_Located]:
    """Yield the files of a log that count."""
    segments = manifest.segments if manifest is not None else []
    is_chunks = isinstance(backend, ChunkBackend)
    for segment in segments:
        yield _Located(segment.name, segment.place is Place.REMOTE and not is_chunks)
    replay_from = manifest.replay_from if manifest is not None else 0
    journal = Place.CHUNK if is_chunks else Place.LOCAL
    known = {segment.number for segment in segments if segment.place is journal}
    for number in map(number_of, backend.names(CHUNKS if is_chunks else SEGMENTS)):
        if number >= max(replay_from, 0) and number not in known:
            yield _Located(chunk_name(number) if is_chunks else segment_name(number))
    # Of those that the manifest keeps, some may not be there: a backup has the last ones only.
    for folder in (MANIFESTS, SNAPSHOTS):
        yield from (_Located(name) for name in backend.names(folder) if number_of(name) >= 0)


def _key_of(
    backend: FileBackend | ChunkBackend, remote: Store | None, file: _Located
) -> tuple[str | None, int]:
    """Return the key of a file and its size; no key for what holds nothing: nobody decrypts it."""
    name = file.name
    store = remote if file.in_tier else None
    if file.in_tier and store is None:
        raise BadRequestError(f"{name} was moved to a store: name it by --tier")

    def read(position: int, size_bytes: int) -> bytes:
        if store is not None:
            return store.get_range(name, position, size_bytes)
        return backend.read(name, position, size_bytes)

    size_bytes = store.size(name) if store is not None else backend.size(name)
    header = read_file_header(read, size_bytes, name)
    if header is None or header[1].role == FENCE_ROLE:
        # Of a journal file, its making was cut short.
        return None, size_bytes
    return header[1].key_id or NO_KEY, size_bytes
