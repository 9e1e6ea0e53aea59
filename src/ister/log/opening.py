"""Opening a log: manifest, snapshot, replay."""

import secrets
from collections.abc import Callable
from contextlib import ExitStack, suppress

from ister.base.errors import CorruptedError, ObjectExistsError, StorageTakenError
from ister.log.files.entry import Kind
from ister.log.files.manifest import (
    Manifest,
    decode_document,
    decode_manifest,
    encode_document,
    encode_manifest,
    is_encrypted,
)
from ister.log.files.numbers import Numbers
from ister.log.files.options import LogOptions
from ister.log.files.ports import Keyring
from ister.log.files.segment import (
    EPOCHS,
    epoch_name,
    first_number,
    manifest_name,
    number_of,
    snapshot_name,
)
from ister.log.index.index import Index
from ister.log.journal.backend import Backend, ChunkBackend, FileBackend
from ister.log.journal.chunks import ChunkReplay
from ister.log.journal.journal import FileJournal
from ister.log.journal.recovery import Apply, RecoveryReport, replay_files
from ister.log.log import Log, Parts
from ister.log.reading.reading import Reader
from ister.log.upkeep.checkpoint import highest_manifest

# Times that the log of an owner which still runs is read anew, because a checkpoint of that owner
# has removed what was being read. Then it is kept from making any more.
UNDISTURBED_ATTEMPTS_MAX = 3
TAKE_OVER_ATTEMPTS_MAX = 10


def open_log(
    backend: FileBackend | ChunkBackend,
    options: LogOptions,
    *,
    restore: Callable[[bytes], None],
    apply: Apply,
    reset: Callable[[], None],
    before_take_over: Callable[[], object] = lambda: None,
) -> Log:
    """Open a log, or begin one. Blocks; for a worker thread.

    `restore` is called with the last snapshot, if there is one; then `apply` with every entry
    that may have come after it, in order. Some of them may be in the snapshot already. When an
    owner that still runs changes a log in an object store meanwhile, it is read anew: then `reset`
    is called first, and all that came before must be forgotten.

    `before_take_over` is called when a log in an object store was read, and nothing is written yet.
    It raises an error to leave the log to its owner. Only an owner whose checkpoints have disturbed
    the reading `UNDISTURBED_ATTEMPTS_MAX` times may have lost the log by then.

    Raises `CorruptedError`, `EncryptionKeyError`, `NotEncryptedError` or `OSError` with nothing
    changed. In an object store an error may leave a fence, but only after everything that was there
    at the beginning was read and found good: the owner that still runs then has to start again.
    """
    if isinstance(backend, ChunkBackend):
        return _take_over(backend, options, restore, apply, reset, before_take_over)
    with ExitStack() as opened:
        # A start that fails may be tried again, as often as somebody makes a first stream.
        opened.callback(backend.close)
        log = _open_files(backend, options, restore, apply, opened)
        opened.pop_all()
    return log


def _open_files(
    backend: FileBackend,
    options: LogOptions,
    restore: Callable[[bytes], None],
    apply: Apply,
    opened: ExitStack,
) -> Log:
    """Open a log on a disk. If that fails, `opened` closes its files."""
    owner = secrets.token_hex(8)
    backend.space.open()
    manifest = load_manifest(backend, options.ciphers, highest_manifest(backend))
    _check_plain(options, manifest)
    index, report = Index(options.extent_bytes), RecoveryReport()
    _restore(backend, options, manifest, index, restore)
    replayed = replay_files(backend, options, manifest, index, apply, report, opened=opened)
    numbers = Numbers(replayed.next_segment)
    journal = FileJournal(
        backend, options, numbers=numbers, entry_end=replayed.entry_end, owner=owner
    )
    if not backend.space.is_full:
        # What was let go of is left to who opens other files of the folder next.
        with suppress(OSError):  # It is tried again and again.
            backend.space.refill()
    journal.open = replayed.resumed
    journal.resumed = replayed.resumed is not None
    return Log(
        Parts(
            backend=backend,
            options=options,
            journal=journal,
            index=index,
            reader=Reader(backend, options.remote, options.ciphers, plain=_plain(manifest, report)),
            numbers=numbers,
            manifest=manifest,
            replay_from=_replay_from(index, manifest),
            owner=owner,
            epoch=_begin_epoch(backend, manifest),
            recovery=report,
        )
    )


def _take_over(
    backend: ChunkBackend,
    options: LogOptions,
    restore: Callable[[bytes], None],
    apply: Apply,
    reset: Callable[[], None],
    before_take_over: Callable[[], object],
) -> Log:
    """Open a log in an object store, whose owner may still run.

    Nothing is written before everything was read and found good, so that a start that fails
    leaves the owner as it was. Then two objects are made, in this order:

    1. The fence. From then on the former owner commits nothing. When it does not stop writing, a
       fence some numbers ahead comes first, and it commits nothing behind that (see `chunks`).
    2. The next manifest. From then on it makes no checkpoint, and removes nothing but what the
       manifest before ours has dropped.

    The second proves the first: when the manifest behind the one we began with can be made, and
    none is higher, the former owner has made no checkpoint meanwhile, and so removed nothing that
    we should have read; and the chunk where the fence is had never been there. When it cannot, all
    of it is done once more. A fence that is left then is an empty chunk like any other.
    """
    owner = secrets.token_hex(8)
    for attempt in range(TAKE_OVER_ATTEMPTS_MAX):
        if attempt:
            reset()
        number = highest_manifest(backend)
        index, report = Index(options.extent_bytes), RecoveryReport()
        try:
            base = load_manifest(backend, options.ciphers, number)
            _check_plain(options, base)
            if attempt >= UNDISTURBED_ATTEMPTS_MAX:
                # An owner that makes checkpoints quicker than we read: from now on it makes none.
                base = claim(backend, options, base, owner=owner)
                if base is None:
                    continue
                number = base.number
            _restore(backend, options, base, index, restore)
            replay = ChunkReplay(backend, options, base, index, apply, report)
            end = replay.replay()
            before_take_over()
            journal = replay.put_fence(end, owner)
        except (FileNotFoundError, CorruptedError):
            if highest_manifest(backend) == number:
                raise
            continue
        except StorageTakenError:
            continue  # The owner has taken back a chunk that failed and that we have read.
        plain = _plain(base, report)
        taken = claim(backend, options, base, owner=owner, epoch=journal.epoch, plain=plain)
        if taken is None:
            continue
        replay.remove_leftovers()
        return Log(
            Parts(
                backend=backend,
                options=options,
                journal=journal,
                index=index,
                reader=Reader(backend, options.remote, options.ciphers, plain=plain),
                numbers=Numbers(first_number(taken.epoch)),
                manifest=taken,
                replay_from=_replay_from(index, taken),
                owner=owner,
                epoch=taken.epoch,
                recovery=report,
            )
        )
    raise StorageTakenError(backend.store.url, "another broker")


def _check_plain(options: LogOptions, manifest: Manifest | None) -> None:
    """Raise `NotEncryptedError` for a plain manifest, unless that is accepted."""
    if manifest is not None and manifest.is_plain:
        options.check_plain(manifest_name(manifest.number))


def _plain(manifest: Manifest | None, report: RecoveryReport) -> frozenset[str]:
    """Return the files that were there before the log was encrypted."""
    plain = set(report.plain)
    if manifest is not None:
        plain |= manifest.plain
        if manifest.is_plain:
            plain.update(segment.name for segment in manifest.segments)
            if manifest.snapshot >= 0:
                plain.add(snapshot_name(manifest.snapshot))
    return frozenset(plain)


def _restore(
    backend: Backend,
    options: LogOptions,
    manifest: Manifest | None,
    index: Index,
    restore: Callable[[bytes], None],
) -> None:
    if manifest is None:
        return
    if manifest.snapshot >= 0:
        name = snapshot_name(manifest.snapshot)
        data = backend.get(name)
        keyring = options.ciphers
        # Made together with its manifest.
        plain = manifest.may_be_plain(name)
        body = decode_document(Kind.SNAPSHOT, data, name, keyring, may_be_plain=plain)
        restore(bytes(body))
    index.load(manifest.segments, manifest.spans)


def load_manifest(backend: Backend, keyring: Keyring | None, number: int) -> Manifest | None:
    """Return the manifest in force: the one with the highest number; none when that is -1.

    It was made whole or not at all. One that cannot be read has been changed since, and an older
    one may name segments that were removed: that is for a human to decide.
    """
    if number < 0:
        return None
    name = manifest_name(number)
    data = backend.get(name)
    body = decode_document(Kind.MANIFEST, data, name, keyring)
    found = decode_manifest(number, body, name)
    return found._replace(is_plain=not is_encrypted(data, name))


def claim(
    backend: ChunkBackend,
    options: LogOptions,
    base: Manifest | None,
    *,
    owner: str,
    epoch: int = 0,
    plain: frozenset[str] | None = None,
) -> Manifest | None:
    """Make the manifest behind `base`, under a new epoch; `None` when somebody else was first.

    The epoch is `epoch`, or one more than that of `base`. With keys, `plain` says which files need
    not be encrypted. While that is not known, a manifest behind a plain one is plain as well.
    """
    if base is None:
        base = Manifest(0, 1, False, 1, 1, -1, [], {}, is_plain=True)
    number = base.number + 1
    taken = base._replace(number=number, epoch=epoch or base.epoch + 1).follow(base.kept)
    keyring = options.ciphers
    if plain is not None:
        taken = taken._replace(plain=plain if keyring is not None else frozenset())
    elif base.is_plain:
        keyring = None
    document = encode_document(
        Kind.MANIFEST,
        number,
        encode_manifest(taken),
        keyring,
        owner=owner,
        now_ms=options.now_ms(),
    )
    try:
        backend.put(manifest_name(number), document)
    except ObjectExistsError:
        return None
    # Its number may have been free again: see `Checkpoint`.
    return taken if highest_manifest(backend) == number else None


def _begin_epoch(backend: FileBackend, manifest: Manifest | None) -> int:
    """Return the epoch of this owner of a log on a disk, after noting it there.

    An empty file for each: making one needs no space where a disk is full.
    """
    names = backend.names(EPOCHS)
    epoch = max([*map(number_of, names), manifest.epoch if manifest is not None else 0, 0]) + 1
    backend.put(epoch_name(epoch), b"")
    for name in names:
        if number_of(name) >= 0:
            backend.remove(name)
    return epoch


def _replay_from(index: Index, manifest: Manifest | None) -> int:
    """Return the number behind the last file that was replayed and is closed."""
    known = set(manifest.segments) if manifest is not None else set()
    closed = [segment.number + 1 for segment in index.segments if segment not in known]
    return max([*closed, manifest.replay_from if manifest is not None else 0])
