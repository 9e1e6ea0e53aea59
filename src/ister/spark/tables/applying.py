"""Writes a batch into a table exactly once, and merges small files."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ister.base.errors import BadRequestError, InternalError, TableNotFoundError
from ister.spark.tables.folder import GRACE_MS, StagedFile, TableFolder
from ister.spark.tables.manifest import (
    DataFile,
    TableChange,
    TableColumn,
    TableManifest,
    is_written,
)
from ister.spark.tables.parquet import (
    check_installed,
    describe_file,
    has_duplicates,
    keys_in,
    leave_out,
    merge,
)
from ister.spark.tables.rules import (
    TARGET_BYTES,
    FittedColumns,
    check_keys,
    fit,
    plan_all_merges,
    plan_merges,
)

MODES = ("append", "update", "complete")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableBatch:
    """A batch to write, and how to write it.

    `write` writes the rows as Parquet files into a folder that does not exist yet, with the
    columns of `FittedColumns` and folders `column=value` for `partition_by`, and returns how many
    rows it wrote.
    """

    query: str
    number: int
    columns: tuple[TableColumn, ...]
    write: Callable[[FittedColumns, Path], int]
    partition_by: tuple[str, ...] = ()
    mode: str = "append"
    keys: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WrittenBatch:
    """The result of a batch. `repeated`: it was in the table before, and nothing was done."""

    manifest: TableManifest
    repeated: bool
    rows: int
    files: int
    merged: int


@dataclass(frozen=True, slots=True)
class TableCompaction:
    """The result of merging: how many files there were, how many there are, and their size."""

    before: int
    after: int
    size_bytes: int


def wall_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def apply(
    folder: TableFolder,
    batch: TableBatch,
    *,
    now_ms: Callable[[], int] = wall_ms,
    grace_ms: int = GRACE_MS,
    target_bytes: int = TARGET_BYTES,
) -> WrittenBatch:
    """Write a batch into a table, which is made by its first batch; then merge files if it pays.

    The last batch of its query is not written again; one before that is refused with
    `BadRequestError`. After an error, or if the process is stopped, the table is as before or has
    the whole batch.
    """
    check_installed()
    if batch.mode not in MODES:
        raise BadRequestError(f"mode {batch.mode!r} is not one of {', '.join(MODES)}")
    with folder.lock():
        before = folder.find()
        if before is not None and is_written(before, batch.query, batch.number):
            _check_last(folder, before, batch)
            return WrittenBatch(before, repeated=True, rows=0, files=0, merged=0)
        fitted = fit(
            str(folder.path),
            before,
            columns=batch.columns,
            partition_by=batch.partition_by,
        )
        if batch.mode == "update":
            check_keys(
                str(folder.path),
                columns=fitted.columns,
                partition_by=batch.partition_by,
                keys=batch.keys,
            )
        written = _write(folder, before, batch, fitted, now_ms=now_ms(), grace_ms=grace_ms)
        merged = 0
        manifest = written.manifest
        for group in plan_merges(manifest.files, target_bytes=target_bytes):
            manifest = _merge(folder, manifest, group, now_ms=now_ms(), grace_ms=grace_ms)
            merged += len(group)
        return WrittenBatch(
            manifest, repeated=False, rows=written.rows, files=written.files, merged=merged
        )


def compact(
    folder: TableFolder,
    *,
    now_ms: Callable[[], int] = wall_ms,
    grace_ms: int = GRACE_MS,
    target_bytes: int = TARGET_BYTES,
) -> TableCompaction:
    """Merge all small files of a table. A pipeline may write meanwhile: it waits for one merge.

    Raises `TableNotFoundError`.
    """
    check_installed()
    if folder.find() is None:
        raise TableNotFoundError(str(folder.path))
    with folder.lock():
        # Also when nothing is left to merge, what a stopped writer left behind is mended.
        manifest = folder.find()
    assert manifest is not None
    merged = size_bytes = results = 0
    for planned in plan_all_merges(manifest.files, target_bytes=target_bytes):
        names = {one.name for one in planned}
        with folder.lock():
            latest = folder.find()
            assert latest is not None
            # What a pipeline has merged or replaced since is no longer there to merge.
            group = [one for one in latest.files if one.name in names]
            if len(group) < 2:
                continue
            _merge(folder, latest, group, now_ms=now_ms(), grace_ms=grace_ms)
        merged += len(group)
        results += 1
        size_bytes += sum(one.size_bytes for one in group)
    return TableCompaction(merged, results, size_bytes)


def _check_last(folder: TableFolder, before: TableManifest, batch: TableBatch) -> None:
    """Raise unless a batch that was written before is the last one of its query.

    Spark repeats only that one. Under a number of before, it may have planned other rows now.
    """
    last = before.marks[batch.query].batch
    if batch.number < last:
        raise BadRequestError(
            f"batch {batch.number} comes after batch {last} of the same query is in table "
            f"{folder.path}: its checkpoint is older than the table, as one from a backup is. "
            "Start it with a new checkpoint, from where the table ends, or with a new table too"
        )


def _write(
    folder: TableFolder,
    before: TableManifest | None,
    batch: TableBatch,
    fitted: FittedColumns,
    *,
    now_ms: int,
    grace_ms: int,
) -> WrittenBatch:
    staging = folder.begin()
    rows = batch.write(fitted, staging / "rows")
    staged = _collect(folder, before, staging / "rows", len(fitted.columns))
    found = sum(one.file.rows for one in staged)
    if found < rows:
        # Spark reports success when its workers wrote to disks of their own.
        raise BadRequestError(
            f"{rows - found:,} of {rows:,} rows for {folder.path} were written to a place that is "
            "not this folder: all of Spark's workers need to see it, on a shared disk"
        )
    removed: tuple[str, ...] = ()
    rest: list[StagedFile] = []
    match batch.mode:
        case "complete":
            removed = () if before is None else tuple(one.name for one in before.files)
        case "update":
            removed, rest = _without_replaced(folder, before, batch, staged, staging)
    change = TableChange(
        added=tuple(one.file for one in (*rest, *staged)),
        removed=removed,
        columns=fitted.columns,
        partition_by=batch.partition_by if before is None else before.partition_by,
        topics=batch.topics,
        query=batch.query,
        batch=batch.number,
    )
    if before is not None and not change.added and not removed and not _is_news(before, change):
        # An empty batch, as watermarks make them: repeated it is empty again.
        folder.end()
        return WrittenBatch(before, repeated=False, rows=0, files=0, merged=0)
    manifest = folder.commit(before, change, [*rest, *staged], now_ms=now_ms, grace_ms=grace_ms)
    folder.end()
    return WrittenBatch(manifest, repeated=False, rows=found, files=len(staged), merged=0)


def _is_news(before: TableManifest, change: TableChange) -> bool:
    return change.columns != before.columns or not set(change.topics) <= set(before.topics)


def _collect(
    folder: TableFolder, before: TableManifest | None, root: Path, columns: int
) -> list[StagedFile]:
    """Return the files that were written, under the names they will have."""
    paths = [
        path
        for path in sorted(root.rglob("*.parquet"))
        if not any(part.startswith((".", "_")) and "=" not in part for part in _parts(path, root))
    ]
    partitions = ["/".join(_parts(path, root)[:-1]) for path in paths]
    names = folder.new_names(before, partitions)
    staged = [
        StagedFile(path, describe_file(path, name=name, columns=columns))
        for path, name in zip(paths, names, strict=True)
    ]
    # Spark writes a file without rows to keep the columns of an empty result.
    return [one for one in staged if one.file.rows]


def _parts(path: Path, root: Path) -> tuple[str, ...]:
    return path.relative_to(root).parts


def _without_replaced(
    folder: TableFolder,
    before: TableManifest | None,
    batch: TableBatch,
    staged: Sequence[StagedFile],
    staging: Path,
) -> tuple[tuple[str, ...], list[StagedFile]]:
    """Return the files that hold rows which are replaced, and what is left of them.

    Only partitions of the new rows are looked at: the partition is part of the key.
    """
    keys = [key for key in batch.keys if key not in batch.partition_by]
    removed: list[str] = []
    rest: list[StagedFile] = []
    by_partition: dict[str, list[StagedFile]] = {}
    for one in staged:
        by_partition.setdefault(one.file.partition, []).append(one)
    old: Sequence[DataFile] = () if before is None else before.files
    for partition, members in sorted(by_partition.items()):
        taken = keys_in([one.path for one in members], keys or _no_keys())
        if has_duplicates(taken):
            raise BadRequestError(
                f"a batch has two rows with the same keys ({', '.join(batch.keys)}) for table "
                f"{folder.path}: group by the keys, or use mode `append`"
            )
        for file in (one for one in old if one.partition == partition):
            target = staging / f"rest-{len(rest)}.parquet"
            left_out = leave_out(
                folder.stored_path(file.name), target, keys=keys or _no_keys(), taken=taken
            )
            if not left_out:
                continue
            removed.append(file.name)
            if left_out < file.rows:
                [name] = folder.new_names(before, [partition])
                rest.append(
                    StagedFile(target, describe_file(target, name=name, columns=file.columns))
                )
    return tuple(removed), rest


def _no_keys() -> list[str]:
    """Return a column that no file has, so that all rows of a partition have the same key."""
    return [""]


def _merge(
    folder: TableFolder,
    before: TableManifest,
    group: Sequence[DataFile],
    *,
    now_ms: int,
    grace_ms: int,
) -> TableManifest:
    """Make one file of a group of files of one partition."""
    target = folder.begin() / "merged.parquet"
    order = [one.name for one in before.columns]
    merge([folder.stored_path(one.name) for one in group], target, order=order)
    [name] = folder.new_names(before, [group[0].partition])
    columns = max(one.columns for one in group)
    staged = StagedFile(target, describe_file(target, name=name, columns=columns))
    _check_merged(folder, group, staged.file)
    change = TableChange(
        added=(staged.file,),
        removed=tuple(one.name for one in group),
        columns=before.columns,
        partition_by=before.partition_by,
    )
    manifest = folder.commit(before, change, [staged], now_ms=now_ms, grace_ms=grace_ms)
    folder.end()
    return manifest


def _check_merged(folder: TableFolder, group: Iterable[DataFile], merged: DataFile) -> None:
    expected = sum(one.rows for one in group)
    if merged.rows != expected:
        raise InternalError(
            f"merging files of {folder.path} gave {merged.rows:,} rows instead of {expected:,}"
        )
