"""Restoring a data folder from a backup: no broker uses the folder before it is whole."""

from collections.abc import Callable
from pathlib import Path

from ister.base.errors import BadRequestError, ConfigError
from ister.objects import BackupContents, LocalDisk, load_contents, make_folder, restore

# Made before the first file of a salvage is written, and removed after the last one.
SALVAGE_MARKER = "salvaging"
# Made before the first file of a backup is restored, and removed after the last one.
MARKER = "restoring"


def check_restored(folder: Path) -> None:
    """Raise `ConfigError` for a folder whose restore or salvage was cut short."""
    if (folder / SALVAGE_MARKER).exists():
        mistake = (
            f"--data {folder}: its salvage was not finished: run `ister storage salvage` again"
        )
        raise ConfigError([mistake])
    if (folder / MARKER).exists():
        mistake = f"--data {folder}: its restore was not finished: remove the folder, restore again"
        raise ConfigError([mistake])


def restore_folder(
    place: Path, folder: Path, *, on_progress: Callable[[str, int], object]
) -> BackupContents:
    """Restore a backup into a new or empty folder; after an error the folder is empty.

    Raises `BadRequestError` for a folder that is not empty, and what `restore` raises.
    """
    load_contents(place)
    make_folder(folder)
    if any(folder.iterdir()):
        raise BadRequestError(f"{folder} is not empty: a backup is restored into a new folder")
    disk = LocalDisk(folder)
    disk.lock()
    try:
        disk.put(MARKER, b"")
        try:
            contents = restore(place, folder, on_progress=on_progress)
        except BaseException:
            (folder / "lock").unlink()
            disk.remove(MARKER)
            raise
        disk.remove(MARKER)
    finally:
        disk.unlock()
    return contents
