"""A table at one moment: which files hold its rows, and which batches they contain.

Manifests are numbered from 0 without holes, and never change once they are made; the one with the
highest number is the table. Making one is the only step of a write that counts: before it nothing
has happened, after it everything has.

Always true of a manifest:
- `files` hold every row of the table exactly once; `retired` are files of before, which readers
  that took an older list may still want;
- no name is used twice, in it or in any other: a name begins with the number of its manifest;
- a query's mark is the last batch of it that is in the table. What has that number or a lower one
  was written before.
"""

from collections.abc import Mapping

import msgspec

from ister.base.errors import CorruptedError, VersionError

VERSION = 1
# A name sorts as its number does: 20 digits hold any 64-bit number.
NUMBER_DIGITS = 20
# Queries that a table remembers. One is forgotten only after 1,000 others wrote later than it.
MARKS_MAX = 1_000

# Smallest and largest values as JSON can hold them; dates and times in ISO 8601.
ColumnBound = int | float | str | bool


class TableColumn(msgspec.Struct, frozen=True):
    """A column with its type in Spark's words, as `struct<a:int,b:array<string>>`."""

    name: str
    type: str


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of rows.

    `name` has the partition folders in front: `day=2026-11-16/00000000000000000042-9f3c01ab-0`.
    `columns` is how many of the table's columns it has: columns that were added later are missing.
    """

    name: str
    rows: int
    size_bytes: int
    columns: int
    lowest: dict[str, ColumnBound] = {}
    highest: dict[str, ColumnBound] = {}

    @property
    def partition(self) -> str:
        """The partition folders, `""` in a table without."""
        return self.name.rpartition("/")[0]


class RetiredFile(msgspec.Struct, frozen=True):
    """A file that is no longer part of the table, and since when."""

    name: str
    since_ms: int


class QueryMark(msgspec.Struct, frozen=True):
    """The last batch of a query, and the manifest that it came with."""

    batch: int
    number: int


class TableManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The table after a change."""

    version: int = VERSION
    number: int
    made_ms: int
    columns: tuple[TableColumn, ...]
    partition_by: tuple[str, ...]
    topics: tuple[str, ...]
    marks: dict[str, QueryMark]
    files: tuple[DataFile, ...]
    retired: tuple[RetiredFile, ...]

    @property
    def rows(self) -> int:
        """The rows of the table."""
        return sum(one.rows for one in self.files)

    @property
    def size_bytes(self) -> int:
        """The bytes of its files."""
        return sum(one.size_bytes for one in self.files)

    @property
    def has_added_columns(self) -> bool:
        """Whether some file lacks columns that others have."""
        return any(one.columns < len(self.columns) for one in self.files)


class TableChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a table. A merge of files belongs to no query."""

    added: tuple[DataFile, ...]
    removed: tuple[str, ...] = ()
    columns: tuple[TableColumn, ...]
    partition_by: tuple[str, ...]
    topics: tuple[str, ...] = ()
    query: str | None = None
    batch: int = -1


def manifest_name(number: int) -> str:
    """Return the file name of a manifest."""
    return f"{number:0{NUMBER_DIGITS}}.json"


def encode_manifest(manifest: TableManifest) -> bytes:
    """Return a manifest as the bytes of its file: JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode_manifest(data: bytes, place: str) -> TableManifest:
    """Return the manifest in the bytes of a file, or raise `CorruptedError`."""
    try:
        manifest = msgspec.json.decode(data, type=TableManifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptedError(place, 0, f"no manifest: {error}") from error
    if manifest.version != VERSION:
        raise VersionError(f"table format {manifest.version}", f"format {VERSION}")
    return manifest


def is_written(manifest: TableManifest | None, query: str, batch: int) -> bool:
    """Whether a batch is in the table already."""
    if manifest is None or query not in manifest.marks:
        return False
    return batch <= manifest.marks[query].batch


def next_manifest(
    before: TableManifest | None, change: TableChange, *, now_ms: int, grace_ms: int
) -> TableManifest:
    """Return the manifest after a change. Files retired `grace_ms` ago are forgotten."""
    number = 0 if before is None else before.number + 1
    removed = set(change.removed)
    kept = [] if before is None else [one for one in before.files if one.name not in removed]
    retired = [] if before is None else list(before.retired)
    retired = [one for one in retired if one.since_ms + grace_ms > now_ms]
    retired += [RetiredFile(name, now_ms) for name in change.removed]
    marks = {} if before is None else dict(before.marks)
    if change.query is not None:
        marks[change.query] = QueryMark(change.batch, number)
    topics = () if before is None else before.topics
    return TableManifest(
        number=number,
        made_ms=now_ms,
        columns=change.columns,
        partition_by=change.partition_by,
        topics=(*topics, *(one for one in change.topics if one not in topics)),
        marks=_newest(marks),
        files=(*kept, *change.added),
        retired=tuple(retired),
    )


def _newest(marks: Mapping[str, QueryMark]) -> dict[str, QueryMark]:
    """Return the marks that were set last, at most `MARKS_MAX` of them."""
    by_age = sorted(marks.items(), key=lambda one: one[1].number)
    return dict(by_age[-MARKS_MAX:])


def names_of(manifest: TableManifest | None) -> tuple[set[str], set[str]]:
    """Return the names of the files in use, and of those that are retired."""
    if manifest is None:
        return set(), set()
    return {one.name for one in manifest.files}, {one.name for one in manifest.retired}


def latest_batch(manifest: TableManifest) -> tuple[str, QueryMark] | None:
    """Return the query that wrote last, with its mark; `None` when none is remembered."""
    return max(manifest.marks.items(), key=lambda one: one[1].number, default=None)
