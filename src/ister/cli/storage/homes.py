"""Where streams are, for commands that work on what a stopped broker has stored."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from ister.base import without_secrets
from ister.base.errors import BadRequestError, StorageTakenError

if TYPE_CHECKING:
    from ister.log import ChunkBackend, FileBackend
    from ister.objects import LocalDisk, VerifiedStore

    Home: TypeAlias = LocalDisk | VerifiedStore

TierOption = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where its segments were moved to, if they were."),
]


def told_place(place: str) -> str:
    """Return a folder or URL for people."""
    return without_secrets(place) if "://" in place else place


def find_home(place: str) -> "Home":
    """Return the data folder or the object store that streams are in. Nothing is locked yet."""
    from ister.objects import LocalDisk
    from ister.server import check_restored

    if "://" in place:
        return open_verified(place)
    folder = Path(place)
    if not (folder / "segments").is_dir():
        told = place if folder.exists() else without_secrets(place)
        raise BadRequestError(f"{told} has no streams: it has no folder `segments`")
    check_restored(folder)
    return LocalDisk(folder)


def open_verified(url: str) -> "VerifiedStore":
    """Return an object store, which is verified before the first write."""
    from ister.objects import VerifiedStore, open_store
    from ister.server import store_options

    return VerifiedStore(open_store(url, store_options(os.environ)))


def backend_of(home: "Home") -> "FileBackend | ChunkBackend":
    """Return what a log is opened with."""
    from ister.log import ChunkBackend, FileBackend
    from ister.objects import LocalDisk

    return FileBackend(home) if isinstance(home, LocalDisk) else ChunkBackend(home)


@contextmanager
def owned(home: "Home") -> Iterator[None]:
    """Keep brokers away from a data folder; see that an object store can be taken over."""
    from ister.objects import LocalDisk

    if not isinstance(home, LocalDisk):
        # Two owners of one journal are told apart by this alone.
        home.verify()
        yield
        return
    home.lock()
    try:
        yield
    finally:
        home.unlock()


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep brokers away from a folder while it is looked at, without writing anything."""
    try:
        file = (folder / "lock").open("rb")
    except FileNotFoundError:
        yield  # A copy, most likely.
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = file.read(32).decode("ascii", "replace").strip()
            raise StorageTakenError(str(folder), f"process {owner}") from None
        yield
