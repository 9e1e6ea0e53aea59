"""The folder of a table: where its files are, and the order in which they change.

    lake/orders/day=2026-11-16/<name>.parquet     what readers of the folder see
    lake/orders/_ister/files/day=2026-11-16/<name>.data     the same files, for as long as needed
    lake/orders/_ister/manifests/<number>.json    the truth
    lake/_orders.staging/                         there only while something is being written

A file of rows has two names (hard links). The one under `_ister` is there before the manifest that
names it, and until the grace time of its retirement is over: whoever reads by the list of a
manifest finds all of it. The one outside comes after the manifest and goes with the next: whoever
reads the folder never sees rows of a batch that did not happen.

Always true:
- only the holder of the lock changes anything, and it makes the staging folder first and removes
  it last: where there is one and no holder, a writer was stopped, and `repair` follows;
- rows are on the disk before their manifest is;
- the staging folder is outside, because `**/*.parquet` of DuckDB and Polars looks into every folder
  inside, whatever its name.
"""

import fcntl
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ister.base.errors import BadRequestError, TableBusyError
from ister.spark.tables.disk import TEMPORARY_PREFIX, TableDisk
from ister.spark.tables.manifest import (
    NUMBER_DIGITS,
    DataFile,
    TableChange,
    TableManifest,
    decode_manifest,
    encode_manifest,
    manifest_name,
    names_of,
    next_manifest,
)
from ister.spark.tables.rules import check_file_count, plan_repairs

PRIVATE = "_ister"
STORED_ENDING = ".data"
VISIBLE_ENDING = ".parquet"

# For how long a retired file stays, for readers with an older list: longer than most queries.
GRACE_MS = 15 * 60_000
# To see what happened lately.
MANIFESTS_KEPT = 10
# A large batch of another query, or a merge of 128 MiB, is done by then.
LOCK_TIMEOUT_S = 600.0
LOCK_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that is written, but not part of the table yet."""

    path: Path
    file: DataFile


class TableFolder:
    """The folder of one table. It need not exist yet."""

    def __init__(self, path: Path, disk: TableDisk | None = None) -> None:
        self.path = path
        self.stored = path / PRIVATE / "files"
        self.manifests = path / PRIVATE / "manifests"
        self.staging = path.parent / f"_{path.name}.staging"
        self._disk = TableDisk() if disk is None else disk

    def find(self) -> TableManifest | None:
        """Return the newest manifest, or `None` when there is no table."""
        while True:
            names = self._manifest_names()
            if not names:
                return None
            path = self.manifests / names[-1]
            try:
                return decode_manifest(path.read_bytes(), str(path))
            except FileNotFoundError:
                continue  # Ten newer ones came meanwhile.

    def stored_path(self, name: str) -> Path:
        """Return where a file stays until nobody needs it."""
        return self.stored / f"{name}{STORED_ENDING}"

    def visible_path(self, name: str) -> Path:
        """Return where readers of the folder find a file."""
        return self.path / f"{name}{VISIBLE_ENDING}"

    @contextmanager
    def lock(self, *, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
        """Lock the table for changes; first repair what a stopped writer has left behind.

        Raises `TableBusyError` when another one does not end, `BadRequestError` when the folder
        holds something else.
        """
        self._check_ours()
        self._disk.make_folder(self.path / PRIVATE)
        with (self.path / PRIVATE / "lock").open("a+b") as file:
            _take(file.fileno(), table=str(self.path), timeout_s=timeout_s)
            if self.staging.exists():
                self.repair()
            yield

    def begin(self) -> Path:
        """Make the staging folder, which tells that something is under way.

        Returns a new folder inside: Spark's workers may outlive a driver that was killed, and go
        on writing where it told them to.
        """
        path = self.staging / secrets.token_hex(4)
        self._disk.make_folder(path)
        return path

    def end(self) -> None:
        """Remove the staging folder: nothing is under way any more."""
        self._disk.remove_tree(self.staging)

    def new_names(self, before: TableManifest | None, partitions: Sequence[str]) -> list[str]:
        """Return a new name in each of these partitions."""
        number = 0 if before is None else before.number + 1
        # A batch that was stopped and comes again has the same number, and no name of before.
        token = secrets.token_hex(4)
        return [
            f"{partition}/{name}" if partition else name
            for slot, partition in enumerate(partitions)
            for name in (f"{number:0{NUMBER_DIGITS}}-{token}-{slot}",)
        ]

    def commit(
        self,
        before: TableManifest | None,
        change: TableChange,
        staged: Sequence[StagedFile],
        *,
        now_ms: int,
        grace_ms: int = GRACE_MS,
    ) -> TableManifest:
        """Make a change of the table, whole and durable. Returns the new manifest.

        Between `begin` and `end`, under the lock. Whenever it is stopped, `repair` brings the
        folder back to before the change, or to after it.
        """
        after = next_manifest(before, change, now_ms=now_ms, grace_ms=grace_ms)
        check_file_count(str(self.path), len(after.files))
        for one in staged:
            self._disk.sync(one.path)
            target = self.stored_path(one.file.name)
            self._disk.make_folder(target.parent)
            self._disk.move(one.path, target)
        for parent in sorted({self.stored_path(one.file.name).parent for one in staged}):
            self._disk.sync(parent)
        self._disk.make_folder(self.manifests)
        self._disk.put(self.manifests / manifest_name(after.number), encode_manifest(after))
        # From here on it has happened. Old files go first: for a moment a reader of the folder
        # may miss rows, and mostly fails to open a file it has listed; it never counts a row twice.
        self._hide(change.removed)
        self._show(one.name for one in change.added)
        known_before, known_after = names_of(before), names_of(after)
        self._drop(known_before[1] - known_after[1])
        for name in self._manifest_names()[:-MANIFESTS_KEPT]:
            self._disk.remove(self.manifests / name)
        return after

    def repair(self) -> None:
        """Bring the folder back to its newest manifest, and remove what is left of a writer."""
        for temporary in self.manifests.glob(f"{TEMPORARY_PREFIX}*"):
            self._disk.remove(temporary)
        repairs = plan_repairs(
            self.find(),
            stored=_names(self.stored, STORED_ENDING),
            visible=(
                name
                for name in _names(self.path, VISIBLE_ENDING)
                if not name.startswith(f"{PRIVATE}/")
            ),
        )
        self._hide(repairs.hidden)
        self._show(repairs.shown)
        self._drop(repairs.dropped)
        self.end()

    def _show(self, names: Iterable[str]) -> None:
        parents = set()
        for name in names:
            target = self.visible_path(name)
            self._disk.make_folder(target.parent)
            self._disk.link(self.stored_path(name), target)
            parents.add(target.parent)
        for parent in sorted(parents):
            self._disk.sync(parent)

    def _hide(self, names: Iterable[str]) -> None:
        parents = set()
        for name in names:
            target = self.visible_path(name)
            self._disk.remove(target)
            parents.add(target.parent)
        for parent in sorted(parents):
            self._disk.sync(parent)

    def _drop(self, names: Iterable[str]) -> None:
        # Not synced: a file that comes back after a power cut is removed by the next repair, or
        # costs some room.
        for name in sorted(names):
            self._disk.remove(self.stored_path(name))

    def _manifest_names(self) -> list[str]:
        return sorted(path.name for path in self.manifests.glob("[0-9]*.json"))

    def _check_ours(self) -> None:
        if self.path.is_dir() and not (self.path / PRIVATE).is_dir() and any(self.path.iterdir()):
            raise BadRequestError(
                f"{self.path} holds files that no table wrote: choose an empty folder for the "
                "table, or move them away"
            )


def local_path(table: str | Path) -> Path:
    """Return the folder of a table, or raise `BadRequestError`: tables are in local folders."""
    # Hadoop writes `file:/lake`, and a `Path` has one slash of `s3a://lake` left.
    text = re.sub(r"^file:(//)?(?=/)", "", str(table))
    if re.match(r"\w[\w+.-]+:/", text):
        raise BadRequestError(
            f"table {table} is not in a folder: tables are kept on local or shared disks, as "
            "lake/orders; an object store can hold them once it is mounted"
        )
    return Path(text).absolute()


def _take(descriptor: int, *, table: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                raise TableBusyError(table, f"process {owner or '?'}", timeout_s) from None
            time.sleep(LOCK_POLL_S)
            continue
        os.ftruncate(descriptor, 0)
        os.write(descriptor, b"%d\n" % os.getpid())
        return


def _names(root: Path, ending: str) -> list[str]:
    """Return the files below a folder by their names from there, without the ending."""
    return [
        path.relative_to(root).as_posix().removesuffix(ending)
        for path in root.rglob(f"*{ending}")
        if path.is_file()
    ]
