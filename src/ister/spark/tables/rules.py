"""The rules of a table, as plain functions: its columns, files to merge, files to repair."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ister.base.errors import BadRequestError, TableSchemaError
from ister.base.limits import KIB, MIB
from ister.spark.tables.manifest import (
    NUMBER_DIGITS,
    DataFile,
    TableColumn,
    TableManifest,
    names_of,
)

# What readers like best: large enough that a file's footer and a request per file cost nothing
# beside its rows, small enough that 8 workers share 1 GiB.
TARGET_BYTES = 128 * MIB
# So many files of like size are merged into one. A row is rewritten once for each tier: from
# 64 KiB to 64 MiB that is 4 times in its life, and a partition keeps at most 5 × 7 small files.
MERGE_FILES_MIN = 8
TIER_BYTES = 64 * KIB
# Merged after one batch: at 40 MiB/s on one core (4 M rows of 60 B) about three seconds of work,
# so that the next batch never waits for long.
MERGE_BYTES_PER_BATCH = 128 * MIB
# Files of one table. The manifest names them all, and is 25 MB then.
FILES_MAX = 100_000

# What a file of ours is called, with the number of its manifest in front.
FILE_NAME = re.compile(rf"\d{{{NUMBER_DIGITS}}}-[0-9a-f]{{8}}-\d+")

# What a narrower column may be cast to without losing a value.
WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}
# Types that can identify a row: their text is the same exactly for the same value.
KEY_TYPES = re.compile(
    r"string|boolean|tinyint|smallint|int|bigint|date|timestamp|timestamp_ntz|decimal\(.*\)"
)


@dataclass(frozen=True, slots=True)
class FittedColumns:
    """How the columns of a batch become those of its table.

    `columns` are the table's from now on. `taken` has, for each of them, the name of the batch's
    column, or `None` when the batch has none and its rows get null.
    """

    columns: tuple[TableColumn, ...]
    taken: tuple[str | None, ...]


def fit(
    table: str,
    manifest: TableManifest | None,
    *,
    columns: Sequence[TableColumn],
    partition_by: Sequence[str],
) -> FittedColumns:
    """Decide which columns a table has after a batch with `columns`.

    New columns go to the end; columns that the batch lacks stay. Names are the same whatever their
    case, as in Spark's SQL. Raises `TableSchemaError` for a changed type, one that could lose
    values, and for other partition columns; `BadRequestError` for partition columns that are not
    there.
    """
    given = {one.name.lower(): one for one in columns}
    missing = [name for name in partition_by if name.lower() not in given]
    if missing:
        names = ", ".join(one.name for one in columns)
        raise BadRequestError(
            f"table {table} is partitioned by {missing[0]!r}, which is no column of the batch "
            f"({names}): add it to the SELECT, as `to_date(at) AS {missing[0]}`"
        )
    if len(partition_by) >= len(columns):
        raise BadRequestError(
            f"table {table} has only partition columns: a file needs a column of its own"
        )
    old = () if manifest is None else manifest.columns
    clashes = _clashes(old, given)
    if manifest is not None and [*map(str.lower, partition_by)] != [
        *map(str.lower, manifest.partition_by)
    ]:
        clashes.append(
            f"it is partitioned by {list(manifest.partition_by)}, not {list(partition_by)}"
        )
    if clashes:
        raise TableSchemaError(table, clashes)
    known = {one.name.lower() for one in old}
    new = [one for one in columns if one.name.lower() not in known]
    after = (*old, *new)
    return FittedColumns(
        after,
        tuple(given[one.name.lower()].name if one.name.lower() in given else None for one in after),
    )


def _clashes(old: Iterable[TableColumn], given: dict[str, TableColumn]) -> list[str]:
    return [
        f"column {one.name!r} is {one.type}, not {found.type}"
        for one in old
        if (found := given.get(one.name.lower())) is not None
        and found.type != one.type
        and one.type not in WIDER.get(found.type, ())
    ]


def check_keys(
    table: str, *, columns: Sequence[TableColumn], partition_by: Sequence[str], keys: Sequence[str]
) -> None:
    """Raise `BadRequestError` unless rows of a table can be replaced by these keys."""
    if not keys:
        raise BadRequestError(
            f"table {table} in mode `update` needs `keys`, the columns that tell which row is "
            "replaced: add them, or use mode `append` with a watermark, or `complete`"
        )
    types = {one.name: one.type for one in columns}
    for key in keys:
        if key not in types:
            raise BadRequestError(f"key {key!r} is no column of table {table} ({', '.join(types)})")
        if not KEY_TYPES.fullmatch(types[key]):
            raise BadRequestError(
                f"key {key!r} of table {table} is {types[key]}: a key is a text, a whole number, "
                "a date or a time (take `window.start AS start` instead of a window)"
            )
    if outside := [name for name in partition_by if name not in keys]:
        # Else a row could move to another partition, and its old form would stay behind.
        raise BadRequestError(
            f"table {table} is partitioned by {outside[0]!r}, which is none of its keys "
            f"({', '.join(keys)}): add it to `keys`, or do not partition by it"
        )


def plan_merges(
    files: Sequence[DataFile],
    *,
    target_bytes: int = TARGET_BYTES,
    budget_bytes: int = MERGE_BYTES_PER_BATCH,
) -> list[list[DataFile]]:
    """Return the groups of files that it pays to merge now, each into one file.

    It pays when a partition has `MERGE_FILES_MIN` files of one tier; smaller ones come along. All
    groups together have at most `budget_bytes`, but for the first.
    """
    planned: list[list[DataFile]] = []
    for members in _by_partition(files):
        small = [one for one in members if one.size_bytes < target_bytes // 2]
        tiers = [tier(one.size_bytes) for one in small]
        full = [one for one in set(tiers) if tiers.count(one) >= MERGE_FILES_MIN]
        if full:
            chosen = [one for one, at in zip(small, tiers, strict=True) if at <= max(full)]
            planned += _groups(chosen, target_bytes)
    return _within(planned, budget_bytes)


def plan_all_merges(
    files: Sequence[DataFile], *, target_bytes: int = TARGET_BYTES
) -> list[list[DataFile]]:
    """Return the groups that leave as few files as the target size allows."""
    planned: list[list[DataFile]] = []
    for members in _by_partition(files):
        small = [one for one in members if one.size_bytes < target_bytes // 2]
        planned += _groups(small, target_bytes)
    return planned


def tier(size_bytes: int) -> int:
    """Return which files are of like size: each tier is up to eight times the one before."""
    return ((size_bytes // TIER_BYTES).bit_length() + 2) // 3


def _by_partition(files: Sequence[DataFile]) -> list[list[DataFile]]:
    partitions: dict[str, list[DataFile]] = {}
    for one in files:
        partitions.setdefault(one.partition, []).append(one)
    return [partitions[name] for name in sorted(partitions)]


def _groups(files: Sequence[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Return files in order, cut where a group would pass the target; lone files are left out."""
    groups: list[list[DataFile]] = [[]]
    size_bytes = 0
    for one in files:
        if groups[-1] and size_bytes + one.size_bytes > target_bytes:
            groups.append([])
            size_bytes = 0
        groups[-1].append(one)
        size_bytes += one.size_bytes
    return [group for group in groups if len(group) > 1]


def _within(groups: Sequence[list[DataFile]], budget_bytes: int) -> list[list[DataFile]]:
    taken: list[list[DataFile]] = []
    left = budget_bytes
    for group in groups:
        left -= sum(one.size_bytes for one in group)
        if taken and left < 0:
            break
        taken.append(group)
    return taken


@dataclass(frozen=True, slots=True)
class Repairs:
    """The changes that bring a folder back to its manifest. Names are without endings."""

    # Files nobody knows: a batch that did not come to its manifest, or whose time is over.
    dropped: tuple[str, ...]
    # Files of the table that readers of the folder do not see yet.
    shown: tuple[str, ...]
    # Files that readers of the folder still see, and should not.
    hidden: tuple[str, ...]


def plan_repairs(
    manifest: TableManifest | None, *, stored: Iterable[str], visible: Iterable[str]
) -> Repairs:
    """Compare what is in a folder with its manifest. Files that are not ours are left alone."""
    live, retired = names_of(manifest)
    seen = {name for name in visible if FILE_NAME.fullmatch(name.rpartition("/")[2])}
    return Repairs(
        dropped=tuple(sorted(set(stored) - live - retired)),
        shown=tuple(sorted(live - seen)),
        hidden=tuple(sorted(seen - live)),
    )


def check_file_count(table: str, count: int) -> None:
    """Raise `BadRequestError` when a table would have too many files."""
    if count > FILES_MAX:
        raise BadRequestError(
            f"table {table} would have {count:,} files, more than {FILES_MAX:,}: partition it by "
            "a column with fewer values, as a day instead of a customer"
        )
