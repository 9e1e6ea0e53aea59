"""Files of rows, read and written with pyarrow: footers, merging, and leaving rows out. No JVM."""

import datetime
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ister.base.errors import ExtraMissingError
from ister.base.limits import MIB
from ister.spark.tables.manifest import ColumnBound, DataFile

# Rows that a reader skips or takes as a whole; 1 M rows of 100 B are well packed by zstd, and are
# what one worker reads in a tenth of a second.
ROW_GROUP_ROWS = 1_000_000
# Of wide rows fewer: this is held in memory while a group is made.
ROW_GROUP_BYTES = 256 * MIB
# Read at once from one file.
BATCH_ROWS = 65_536
# Columns whose smallest and largest values a manifest tells, and how long a text may be for that.
BOUNDS_MAX = 16
BOUND_CHARACTERS_MAX = 64


def describe_file(path: Path, *, name: str, columns: int) -> DataFile:
    """Return what a file's footer tells of it; `columns` are those of its table."""
    from pyarrow import parquet

    footer = parquet.read_metadata(path)
    lowest, highest = _bounds(footer)
    return DataFile(
        name=name,
        rows=footer.num_rows,
        size_bytes=path.stat().st_size,
        columns=columns,
        lowest=lowest,
        highest=highest,
    )


def check_installed() -> None:
    """Raise `ExtraMissingError` when pyarrow is not there."""
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ExtraMissingError("a table", "spark") from error
    del pyarrow


def merge(paths: Sequence[Path], target: Path, *, order: Sequence[str]) -> None:
    """Write the rows of some files into one, in order. Columns that a file lacks become null."""
    schema = _common_schema(paths, order)
    _write(target, schema, _batches(paths, schema))


def leave_out(path: Path, target: Path, *, keys: Sequence[str], taken: Any) -> int:
    """Write the rows whose key is not among `taken` to `target`; return how many were left out.

    Nothing is written when that is none of them.
    """
    import pyarrow.compute as pc
    from pyarrow import parquet

    schema = parquet.read_schema(path)
    found = sum(
        pc.sum(pc.is_in(key_texts(batch, keys), value_set=taken)).as_py() or 0
        for batch in _batches([path], schema)
    )
    if found:
        rest = (
            batch.filter(pc.invert(pc.is_in(key_texts(batch, keys), value_set=taken)))
            for batch in _batches([path], schema)
        )
        _write(target, schema, rest)
    return int(found)


def keys_in(paths: Sequence[Path], keys: Sequence[str]) -> Any:
    """Return the keys of all rows of some files, as an array of texts."""
    import pyarrow as pa
    from pyarrow import parquet

    texts: list[Any] = []
    for path in paths:
        schema = parquet.read_schema(path)
        texts += [key_texts(batch, keys) for batch in _batches([path], schema)]
    return pa.concat_arrays(texts) if texts else pa.array([], pa.string())


def has_duplicates(texts: Any) -> bool:
    """Whether some key is there more than once."""
    import pyarrow.compute as pc

    return bool(pc.count_distinct(texts, mode="all").as_py() < len(texts))


def key_texts(batch: Any, keys: Sequence[str]) -> Any:
    """Return one text for each row that is the same exactly for rows with the same key.

    Each part has its length in front, and null, which equals null here, has none: no two keys can
    run together into the same text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = []
    for key in keys:
        if key not in batch.schema.names:
            parts.append(pa.array(["-"] * batch.num_rows, pa.string()))
            continue
        values = batch.column(key)
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.int64())
        text = values.cast(pa.string())
        length = pc.utf8_length(text).cast(pa.string())
        parts.append(pc.fill_null(pc.binary_join_element_wise(length, text, ":"), "-"))
    return pc.binary_join_element_wise(*parts, "")


def _batches(paths: Iterable[Path], schema: Any) -> Iterator[Any]:
    """Yield the rows of some files as record batches of one schema."""
    import pyarrow as pa
    from pyarrow import parquet

    for path in paths:
        with parquet.ParquetFile(path, memory_map=True) as file:
            for batch in file.iter_batches(BATCH_ROWS):
                names = batch.schema.names
                yield pa.RecordBatch.from_arrays(
                    [
                        batch.column(field.name).cast(field.type)
                        if field.name in names
                        else pa.nulls(batch.num_rows, field.type)
                        for field in schema
                    ],
                    schema=schema,
                )


def _common_schema(paths: Sequence[Path], order: Sequence[str]) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    fields: dict[str, Any] = {}
    for path in paths:
        for field in parquet.read_schema(path):
            fields.setdefault(field.name, _nullable(field))
    return pa.schema([fields[name] for name in order if name in fields])


def _nullable(field: Any) -> Any:
    """Return a field that takes null everywhere in it, as the next file may have.

    Spark writes that `array(1)` has no null in it, and of another query's array that it may.
    """
    import pyarrow as pa

    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_nullable(kind.field(slot)) for slot in range(kind.num_fields)])
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_type, _nullable(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(_nullable(kind.value_field))
    return field.with_type(kind).with_nullable(True)


def _write(target: Path, schema: Any, batches: Iterable[Any]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    # Dictionaries are on by default. The schema of Arrow itself is left out: it would tell readers
    # of types that Spark's files do not have.
    with parquet.ParquetWriter(target, schema, compression="zstd", store_schema=False) as writer:
        held: list[Any] = []
        rows = size_bytes = 0
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
            if rows >= ROW_GROUP_ROWS or size_bytes >= ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(held), row_group_size=rows)
                held, rows, size_bytes = [], 0, 0
        if rows:
            writer.write_table(pa.Table.from_batches(held), row_group_size=rows)


def _bounds(footer: Any) -> tuple[dict[str, ColumnBound], dict[str, ColumnBound]]:
    """Return smallest and largest values of the first plain columns, from their statistics."""
    lowest: dict[str, ColumnBound] = {}
    highest: dict[str, ColumnBound] = {}
    for slot in range(footer.num_columns):
        name = footer.schema.column(slot).path
        if len(lowest) == BOUNDS_MAX:
            break
        found = [footer.row_group(group).column(slot) for group in range(footer.num_row_groups)]
        stats = [one.statistics for one in found if one.is_stats_set]
        if "." in name or len(stats) < len(found) or not stats:
            continue
        stats = [one for one in stats if one.null_count != one.num_values + one.null_count]
        if not stats or not all(one.has_min_max for one in stats):
            continue
        low = _bound(min(one.min for one in stats))
        high = _bound(max(one.max for one in stats))
        if low is not None and high is not None:
            lowest[name], highest[name] = low, high
    return lowest, highest


def _bound(value: object) -> ColumnBound | None:
    match value:
        case bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case str():
            # Writers cut long texts, and a cut text is no bound.
            return value if len(value) < BOUND_CHARACTERS_MAX else None
        case datetime.datetime() | datetime.date():
            return value.isoformat()
        case _:
            return None
