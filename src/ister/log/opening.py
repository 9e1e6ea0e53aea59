"""Opening a log: manifest, snapshot, replay."""

import secrets
from collections.abc import Callable

from ister.base.errors import ObjectExistsError, StorageTakenError
from ister.log.backend import Backend, ChunkBackend, FileBackend
from ister.log.chunks import ChunkJournal, ChunkReplay
from ister.log.entry import Kind
from ister.log.index import Index
from ister.log.journal import FileJournal
from ister.log.log import Log, Parts
from ister.log.manifest import (
    Manifest,
    decode_document,
    decode_manifest,
    encode_document,
    encode_manifest,
)
from ister.log.numbers import Numbers
from ister.log.options import LogOptions
from ister.log.ports import Keyring
from ister.log.reading import Reader
from ister.log.recovery import Apply, RecoveryReport, replay_files
from ister.log.segment import MANIFESTS, SEGMENTS, manifest_name, number_of, snapshot_name

# Manifests that a former owner may make while a new one takes over.
TAKE_OVER_ATTEMPTS_MAX = 100


def open_log(
    backend: FileBackend | ChunkBackend,
    options: LogOptions,
    *,
    restore: Callable[[bytes], None],
    apply: Apply,
) -> Log:
    """Open a log, or begin one. Blocks; for a worker thread.

    `restore` is called with the last snapshot, if there is one; then `apply` with every entry
    that may have come after it, in order. Some of them may be in the snapshot already.

    Raises `CorruptedError`, `EncryptionKeyError` or `OSError` with nothing changed.
    """
    owner = secrets.token_hex(8)
    manifest = load_manifest(backend, options.ciphers)
    if isinstance(backend, ChunkBackend):
        manifest = _take_over(backend, options, manifest, owner)
    index = Index(options.extent_bytes)
    report = RecoveryReport()
    if manifest is not None:
        if manifest.snapshot >= 0:
            name = snapshot_name(manifest.snapshot)
            body = decode_document(Kind.SNAPSHOT, backend.get(name), name, options.ciphers)
            restore(bytes(body))
        index.load(manifest.segments, manifest.spans)
    if isinstance(backend, ChunkBackend):
        chunks = ChunkReplay(backend, options, manifest, index, apply, report)
        journal: FileJournal | ChunkJournal = chunks.run(owner)
        numbers = Numbers(_next_segment(backend, manifest))
    else:
        replayed = replay_files(backend, options, manifest, index, apply, report)
        numbers = Numbers(replayed.next_segment)
        journal = FileJournal(
            backend, options, numbers=numbers, entry_end=replayed.entry_end, owner=owner
        )
        journal.open = replayed.resumed
        journal.resumed = replayed.resumed is not None
    return Log(
        Parts(
            backend=backend,
            options=options,
            journal=journal,
            index=index,
            reader=Reader(backend, options.remote, options.ciphers),
            numbers=numbers,
            manifest=manifest,
            replay_from=_replay_from(index, manifest),
            owner=owner,
            recovery=report,
        )
    )


def load_manifest(backend: Backend, keyring: Keyring | None) -> Manifest | None:
    """Return the manifest in force: the one with the highest number.

    It was made whole or not at all. One that cannot be read has been changed since, and an older
    one may name segments that were removed: that is for a human to decide.
    """
    numbers = [number_of(name) for name in backend.names(MANIFESTS)]
    number = max(numbers, default=-1)
    if number < 0:
        return None
    name = manifest_name(number)
    body = decode_document(Kind.MANIFEST, backend.get(name), name, keyring)
    return decode_manifest(number, body, name)


def _take_over(
    backend: ChunkBackend, options: LogOptions, manifest: Manifest | None, owner: str
) -> Manifest:
    """Make the next manifest, so that a former owner that still runs can make none any more."""
    for _ in range(TAKE_OVER_ATTEMPTS_MAX):
        number = manifest.number + 1 if manifest is not None else 1
        if manifest is None:
            taken = Manifest(number, 1, False, 1, 1, -1, [], {})
        else:
            taken = manifest._replace(number=number)
        document = encode_document(
            Kind.MANIFEST,
            number,
            encode_manifest(taken),
            options.ciphers,
            owner=owner,
            now_ms=options.now_ms(),
        )
        try:
            backend.put(manifest_name(number), document)
        except ObjectExistsError:
            manifest = load_manifest(backend, options.ciphers)
        else:
            return taken
    raise StorageTakenError(backend.store.url, "another broker")


def _replay_from(index: Index, manifest: Manifest | None) -> int:
    """Return the number behind the last file that was replayed and is closed."""
    known = set(manifest.segments) if manifest is not None else set()
    closed = [segment.number + 1 for segment in index.segments if segment not in known]
    return max([*closed, manifest.replay_from if manifest is not None else 0])


def _next_segment(backend: Backend, manifest: Manifest | None) -> int:
    numbers = [number_of(name) for name in backend.names(SEGMENTS)]
    return max([*numbers, manifest.next_segment - 1 if manifest else 0]) + 1
