"""`ister topics table`: where the tables of a topic are, and how to query them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ister.base import parse_topic, rounded_size
from ister.cli.console.terminal import JsonOption, counted, say, write, write_json, write_table

if TYPE_CHECKING:
    from ister.spark.tables import TableManifest

READERS = {"duckdb": "DuckDB", "polars": "Polars", "spark": "Spark", "pyarrow": "pyarrow"}


def show_table(
    topic: Annotated[str, typer.Argument(help="As /default/orders.")],
    path: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A table by its folder, wherever it was made."),
    ] = None,
    compact: Annotated[
        bool, typer.Option("--compact", help="Merge its small files first.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the tables that pipelines on this machine made of a topic, and how to query them.

    A table is a folder of Parquet files, written by a pipeline with a `table` sink. No broker and
    no Spark is needed to read it.

    \b
    Examples:
      ister topics table /default/orders
      ister topics table /default/orders --path lake/orders --json
      ister topics table /default/orders --compact
    """
    found = _found(parse_topic(topic), path)
    if compact:
        _compact(list(found))
        found = _found(topic, path)
    if as_json:
        write_json({"topic": topic, "tables": [_row(place, one) for place, one in found.items()]})
        return
    if found:
        _write(found)
    else:
        say(
            f"no table has rows of {topic} yet: run a pipeline with a `table` sink, as\n"
            "  sinks:\n"
            f"    - table: lake/{topic.rpartition('/')[2]}\n"
            "      from: orders\n"
            "      partition_by: [day]\n"
            "`ister pipeline new NAME` makes a file to begin with; a table that was made elsewhere "
            "is shown with --path DIR"
        )


def _found(topic: str, path: Path | None) -> "dict[Path, TableManifest]":
    """Return the tables of a topic by their folders. Raises `TableNotFoundError` for `path`."""
    from ister.base.errors import TableNotFoundError
    from ister.spark.tables import describe, local_path, tables_of

    if path is not None:
        place = local_path(path)
        return {place: describe(place)}
    found = {}
    for place in tables_of(topic):
        try:
            found[place] = describe(place)
        except TableNotFoundError:
            say(f"note: table {place} is not there any more")
    return found


def _compact(places: list[Path]) -> None:
    from ister.spark.tables import TableFolder, compact

    for place in places:
        done = compact(TableFolder(place))
        if done.before:
            say(
                f"merged {counted(done.before, 'file')} of {place} into {done.after:,}, "
                f"{rounded_size(done.size_bytes)}"
            )
        else:
            say(f"{place} has no small files to merge")


def _write(found: "dict[Path, TableManifest]") -> None:
    from ister.spark.tables import queries

    write_table(
        ("TABLE", "ROWS", "FILES", "SIZE", "PARTITIONED BY", "NEWEST BATCH", "CHANGED"),
        [
            (
                place,
                one.rows,
                len(one.files),
                rounded_size(one.size_bytes),
                ", ".join(one.partition_by) or "-",
                _newest(one)["batch"] if _newest(one) else "-",
                _time(one.made_ms),
            )
            for place, one in found.items()
        ],
    )
    for place, one in found.items():
        lines = [f"  {READERS[name]:8} {line}" for name, line in queries(place, one).items()]
        write("\n".join(["", f"To query {place}:", *lines, ""]).encode())


def _row(place: Path, manifest: "TableManifest") -> dict[str, object]:
    from ister.spark.tables import queries

    return {
        "path": str(place),
        "rows": manifest.rows,
        "files": len(manifest.files),
        "size_bytes": manifest.size_bytes,
        "partition_by": manifest.partition_by,
        "columns": manifest.columns,
        "topics": manifest.topics,
        "newest": _newest(manifest),
        "changed": _time(manifest.made_ms),
        "queries": queries(place, manifest),
    }


def _newest(manifest: "TableManifest") -> dict[str, object]:
    from ister.spark.tables import latest_batch

    found = latest_batch(manifest)
    return {} if found is None else {"query": found[0], "batch": found[1].batch}


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")
