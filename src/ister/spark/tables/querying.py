"""How to query a table: a line to paste for each reader."""

from pathlib import Path

from ister.spark.tables.manifest import TableManifest


def queries(path: Path, manifest: TableManifest) -> dict[str, str]:
    """Return, for each reader, the line that reads the table in a folder.

    Where some files lack columns that were added later, the line asks for null in them.
    """
    glob = f"{path}/**/*.parquet"
    if manifest.has_added_columns:
        # Polars and pyarrow take the columns of the first file they see, so `ister` says which.
        return {
            "duckdb": _duckdb(glob, "hive_partitioning = true, union_by_name = true"),
            "polars": (
                f"import polars as pl, ister.spark.tables; pl.scan_parquet("
                f"ister.spark.tables.files({str(path)!r}), hive_partitioning=True, "
                'missing_columns="insert")'
            ),
            "spark": f'spark.read.option("mergeSchema", "true").parquet({str(path)!r})',
            "pyarrow": f"import ister.spark.tables; ister.spark.tables.dataset({str(path)!r})",
        }
    return {
        "duckdb": _duckdb(glob, "hive_partitioning = true"),
        "polars": f"import polars as pl; pl.scan_parquet({glob!r}, hive_partitioning=True)",
        "spark": f"spark.read.parquet({str(path)!r})",
        "pyarrow": (
            f'import pyarrow.dataset as ds; ds.dataset({str(path)!r}, partitioning="hive")'
        ),
    }


def _duckdb(glob: str, options: str) -> str:
    quoted = glob.replace("'", "''")
    return f"SELECT * FROM read_parquet('{quoted}', {options});"  # noqa: S608 - shown, never run
