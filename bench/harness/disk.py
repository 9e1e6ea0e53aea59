"""The disk that a benchmark of stored data stands on.

A figure about durability means nothing on a file system in memory, and one about cold reads
nothing while the page cache still holds the file; both are looked after here.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import psutil

IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}


def choose_folder(asked: Path | None) -> Path:
    """Return the folder to work in: the one asked for, else the first that is on a disk."""
    if asked is not None:
        asked.mkdir(parents=True, exist_ok=True)
        return asked.resolve()
    places = [Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd()]
    usable = [place.resolve() for place in places if os.access(place, os.W_OK)]
    return next((place for place in usable if not in_memory(place)), usable[0])


def in_memory(path: Path) -> bool:
    """Tell whether `path` is lost with the power."""
    return filesystem(path) in IN_MEMORY


def filesystem(path: Path) -> str:
    """Return the type of the file system that holds `path`, such as `ext4`."""
    mounts = {Path(part.mountpoint): part.fstype for part in psutil.disk_partitions(all=True)}
    path = path.resolve()
    found = next((place for place in (path, *path.parents) if place in mounts), None)
    return "unknown" if found is None else str(mounts[found])


def free_bytes(path: Path) -> int:
    """Return how much more fits on the disk that holds `path`."""
    return shutil.disk_usage(path).free


def files_of(folder: Path) -> list[Path]:
    """Return the files below `folder`, in the order of their names."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def evict(folder: Path) -> None:
    """Have the page cache forget the files below `folder`, so that they are read from the disk.

    Does nothing where the system offers no such advice.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for path in files_of(folder):
        with path.open("rb") as file:
            # Only pages that are on the disk can be dropped.
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def warm(folder: Path) -> int:
    """Read the files below `folder` into the page cache; return how many bytes they have."""
    buffer = bytearray(1 << 20)
    total = 0
    for path in files_of(folder):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                total += count
    return total


def settle() -> None:
    """Wait until nothing of a former run is still on its way to the disk."""
    os.sync()
