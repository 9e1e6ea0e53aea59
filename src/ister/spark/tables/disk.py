"""Every change that a table makes to a file system, one method for each.

A table is kept whole by the order of these calls alone, so they go through one object: a test
stops it before any of them and looks at what is left.
"""

import errno
import os
import secrets
import shutil
from pathlib import Path

from ister.base.errors import BadRequestError

# A manifest under way to its name.
TEMPORARY_PREFIX = ".new-"


class TableDisk:
    """The file system of this machine."""

    def make_folder(self, path: Path) -> None:
        """Make a folder and those above it, durably; it may be there."""
        if path.is_dir():
            return
        self.make_folder(path.parent)
        path.mkdir(exist_ok=True)
        self.sync(path.parent)

    def put(self, path: Path, data: bytes) -> None:
        """Make a whole file, durably, or raise `FileExistsError` with the other one untouched."""
        temporary = path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")
        with temporary.open("xb") as file:
            file.write(data)
        self.sync(temporary)
        try:
            # Unlike a rename, a link never replaces a file that somebody else made meanwhile.
            self.link(temporary, path)
        finally:
            temporary.unlink()
        self.sync(path.parent)

    def move(self, source: Path, target: Path) -> None:
        """Give a file another name. Durable after a `sync` of the target's folder."""
        source.rename(target)

    def link(self, source: Path, target: Path) -> None:
        """Give a file one more name, or raise `FileExistsError`."""
        try:
            target.hardlink_to(source)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
                raise
            raise BadRequestError(
                f"{target.parent} is on a file system without hard links, which a table needs: "
                "choose a folder on a disk of this machine, or on NFS"
            ) from error

    def remove(self, path: Path) -> None:
        """Remove a file; it may be missing."""
        path.unlink(missing_ok=True)

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with all that is in it; it may be missing."""
        shutil.rmtree(path, ignore_errors=True)

    def sync(self, path: Path) -> None:
        """Have the bytes of a file, or the names in a folder, on the disk."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
