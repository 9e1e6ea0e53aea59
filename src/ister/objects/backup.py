"""A backup: copies of the files of a data folder, in a folder of their own.

    backup.json     the contents: name, size and SHA-256 of each file, and its copy
    files/          the copies, each named by what it is a copy of and its SHA-256

Always true:
- `backup.json` is replaced whole, and after every copy that it names is on the disk. So a backup
  that is cut short leaves the one before it as it was, or no backup at all;
- a copy is never changed. Sealed segments are copied once, and so is what a backup that was cut
  short has copied; copies that the contents do not name are removed at the end;
- a restored file is one whose bytes have the SHA-256 of the contents.
"""

import errno
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from ister.base import rounded_size
from ister.base.errors import BackupDamagedError, BackupFailedError, BackupRunningError
from ister.objects.local import LocalFile, make_folder, new_file, sync_all, sync_folder

CONTENTS = "backup.json"
FILES = "files"
VERSION = 1
# What is copied between two reports, and at once in memory.
PIECE_BYTES = 1024 * 1024
# Files of these folders never change once they are whole, and no name is used twice.
LASTING = ("segments/", "manifests/", "snapshots/")
# Of a file whose copy may be there: a journal file begins with a random number of its own, and one
# that was sealed ends with its footer.
ENDS_BYTES = 4096
# `timelines.db` and `segments/00000000000000000001.seg`; nothing that leads out of a folder.
_NAME = re.compile(r"[a-z]+(/[0-9]+)?(\.[a-z]+)?")
_TEMPORARY = ".new-"


class SourceFile(NamedTuple):
    """A file to copy: its name in the data folder, and how much of it."""

    name: str
    size_bytes: int


class BackupFile(msgspec.Struct, frozen=True):
    """A file of a backup. `copy` is its name below `files/`."""

    name: str
    copy: str
    size_bytes: int
    sha256: str


class BackupContents(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a backup."""

    version: int
    # When it was begun: everything acknowledged before is in it. Milliseconds since 1970.
    made_ms: int
    # The data folder that it is a backup of.
    folder: str
    files: list[BackupFile]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)


class Copied(NamedTuple):
    """What a backup has taken: its contents, and what of it was copied now."""

    contents: BackupContents
    files: int
    size_bytes: int


# Called with the name of a file, and how many of its bytes are done since the last call.
Progress = Callable[[str, int], object]


def load_contents(place: Path) -> BackupContents:
    """Return the contents of a backup, or raise `BackupDamagedError`."""
    file = place / CONTENTS
    try:
        contents = msgspec.json.decode(file.read_bytes(), type=BackupContents)
    except OSError as error:
        raise BackupDamagedError(str(file), error.strerror or str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BackupDamagedError(str(file), str(error)) from error
    if contents.version != VERSION:
        reason = f"format {contents.version} is not {VERSION}: use the ister that wrote it"
        raise BackupDamagedError(str(file), reason)
    for one in contents.files:
        if not (_NAME.fullmatch(one.name) and one.copy == copy_name(one.name, one.sha256)):
            raise BackupDamagedError(str(file), f"{one.name!r} is not the name of a file")
    return contents


def copy_name(name: str, sha256: str) -> str:
    """Return what the copy of a file is called."""
    return f"{name.replace('/', '-')}.{sha256}"


def back_up(
    source: Path,
    files: Sequence[SourceFile],
    place: Path,
    *,
    folder: str,
    made_ms: int,
    on_progress: Progress = lambda _, __: None,
) -> Copied:
    """Copy `files` below `source` into the backup at `place`, which is made when it is missing.

    `folder` and `made_ms` are as in `BackupContents`. Raises `BackupFailedError`, with the former
    backup unchanged, and `BackupRunningError`.
    """
    with _blamed_on(place):
        make_folder(place / FILES)
        with _locked(place, fcntl.LOCK_EX):
            _check_before(place, folder)
            for leftover in [*place.glob(f"{_TEMPORARY}*"), *(place / FILES).glob(".new-*")]:
                leftover.unlink()
            return _back_up(source, files, place, folder, made_ms, on_progress)


def restore(
    place: Path, folder: Path, *, on_progress: Progress = lambda _, __: None
) -> BackupContents:
    """Copy the files of a backup into `folder`, and verify each.

    Raises `BackupDamagedError`, `BackupRunningError` or an `OSError`; then the files that were
    restored are removed again.
    """
    contents = load_contents(place)
    made: list[Path] = []
    with _locked(place, fcntl.LOCK_SH):
        try:
            for one in contents.files:
                path = folder / one.name
                make_folder(path.parent)
                made.append(path)
                _restore_file(place / FILES / one.copy, path, one, on_progress)
            for parent in {path.parent for path in made}:
                sync_folder(parent)
        except BaseException:
            for path in made:
                path.unlink(missing_ok=True)
            for parent in {path.parent for path in made} - {folder}:
                with suppress(OSError):
                    parent.rmdir()
            raise
    return contents


def _back_up(
    source: Path,
    files: Sequence[SourceFile],
    place: Path,
    folder: str,
    made_ms: int,
    on_progress: Progress,
) -> Copied:
    present = [path.name for path in (place / FILES).iterdir()]
    copies: dict[str, list[str]] = {}
    for name in present:
        copies.setdefault(name.rpartition(".")[0], []).append(name)
    found = {file: _find_copy(source, file, place, copies) for file in files}
    missing = [file for file, copy in found.items() if copy is None]
    _check_room(place, sum(file.size_bytes for file in missing))
    done = []
    for file, copy in found.items():
        if copy is not None:
            on_progress(file.name, file.size_bytes)
        done.append(copy or _copy_file(source, file, place, on_progress))
    sync_folder(place / FILES)
    contents = BackupContents(version=VERSION, made_ms=made_ms, folder=folder, files=done)
    _write(place / CONTENTS, [msgspec.json.format(msgspec.json.encode(contents), indent=1), b"\n"])
    sync_folder(place)
    named = {one.copy for one in done}
    for name in present:
        if name not in named:
            (place / FILES / name).unlink(missing_ok=True)
    return Copied(contents, len(missing), sum(file.size_bytes for file in missing))


def _check_before(place: Path, folder: str) -> None:
    """Raise `BackupFailedError` when the backup that is there is of another folder."""
    if not (place / CONTENTS).exists():
        return
    try:
        before = load_contents(place).folder
    except BackupDamagedError as error:
        raise BackupFailedError(str(place), f"{error.file}: {error.reason}") from error
    if before != folder:
        raise BackupFailedError(str(place), f"it has a backup of {before}: name another folder")


def _check_room(place: Path, size_bytes: int) -> None:
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    if size_bytes > free:
        reason = f"{rounded_size(size_bytes)} are to be copied and {rounded_size(free)} are free"
        raise BackupFailedError(str(place), reason)


def _find_copy(
    source: Path, file: SourceFile, place: Path, copies: Mapping[str, Sequence[str]]
) -> BackupFile | None:
    """Return the copy of a file that is there, if that file never changes.

    `copies` are the names of those that are there, by what they are without their SHA-256.
    """
    if not file.name.startswith(LASTING):
        return None
    for name in copies.get(file.name.replace("/", "-"), ()):
        if _is_same(source / file.name, file, place / FILES / name):
            return BackupFile(file.name, name, file.size_bytes, name.rpartition(".")[2])
    return None


def _is_same(path: Path, file: SourceFile, copy: Path) -> bool:
    if copy.stat().st_size != file.size_bytes:
        return False
    with path.open("rb") as one, copy.open("rb") as other:
        for position in (0, max(0, file.size_bytes - ENDS_BYTES)):
            one.seek(position)
            other.seek(position)
            count = min(ENDS_BYTES, file.size_bytes - position)
            if one.read(count) != other.read(count):
                return False
    return True


def _copy_file(source: Path, file: SourceFile, place: Path, on_progress: Progress) -> BackupFile:
    digest = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        with (source / file.name).open("rb") as opened:
            for piece in _pieces(opened, file.size_bytes):
                digest.update(piece)
                yield piece
                on_progress(file.name, len(piece))

    temporary = place / FILES / f"{_TEMPORARY}{secrets.token_hex(8)}"
    try:
        _fill(temporary, pieces())
    except FileNotFoundError as error:
        reason = f"{error.filename} is gone: the broker has ended"
        raise BackupFailedError(str(place), reason) from error
    if temporary.stat().st_size != file.size_bytes:
        raise BackupFailedError(str(place), f"{file.name} was cut while it was copied")
    name = copy_name(file.name, digest.hexdigest())
    temporary.replace(place / FILES / name)
    return BackupFile(file.name, name, file.size_bytes, digest.hexdigest())


def _restore_file(copy: Path, path: Path, file: BackupFile, on_progress: Progress) -> None:
    digest = hashlib.sha256()
    size = 0

    def pieces(opened: BinaryIO) -> Iterator[bytes]:
        nonlocal size
        for piece in _pieces(opened, file.size_bytes + 1):
            digest.update(piece)
            size += len(piece)
            yield piece
            on_progress(file.name, len(piece))

    try:
        opened = copy.open("rb")
    except OSError as error:
        raise BackupDamagedError(str(copy), error.strerror or str(error)) from error
    with opened:
        _fill(path, pieces(opened))
    if (size, digest.hexdigest()) != (file.size_bytes, file.sha256):
        reason = f"{size} B with another checksum than its {file.size_bytes} B had"
        raise BackupDamagedError(str(copy), reason)


def _pieces(opened: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    left = size_bytes
    while left and (piece := opened.read(min(left, PIECE_BYTES))):
        left -= len(piece)
        yield piece


def _write(path: Path, pieces: Iterable[bytes]) -> None:
    """Replace a file, whole."""
    temporary = path.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}")
    _fill(temporary, pieces)
    temporary.replace(path)


def _fill(path: Path, pieces: Iterable[bytes]) -> None:
    """Make a file, and have its bytes on the disk; after an error it is gone."""
    descriptor = new_file(path)
    file = LocalFile(descriptor)
    position = 0
    try:
        for piece in pieces:
            file.write(position, [piece])
            position += len(piece)
        sync_all(descriptor)
    except BaseException:
        path.unlink()
        raise
    finally:
        file.close()


@contextmanager
def _locked(place: Path, how: int) -> Iterator[None]:
    """Keep other backups away from a backup that is written or read."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise BackupRunningError(str(place)) from None
    finally:
        os.close(descriptor)


@contextmanager
def _blamed_on(place: Path) -> Iterator[None]:
    """Raise what the system says as an error of the backup."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) and error.filename:
            reason = f"{error.filename}: {reason}"
        raise BackupFailedError(str(place), reason) from error
