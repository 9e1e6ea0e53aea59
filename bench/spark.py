"""Spark over topics against Spark over its own Parquet: `make bench-spark`.

Run from the repository root as `.venv/bin/python -m bench.spark`. One broker, one warm session;
prints the table, and last one JSON object for machines.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.brokers import start_broker
from bench.contest import parse
from bench.job import Figures
from bench.processes import ROOT
from bench.report import Runs, summary, table
from bench.spark_bars import SPARK
from bench.turns import leave_on_signals, note, take_turns

if TYPE_CHECKING:
    from bench.spark_side import Ground

Lanes = dict[str, Callable[[], Figures]]

NAMES = ["stream", "batch", "window", "sink", "latency", "scaling"]
ROWS = 8_000_000
ROWS_QUICK = 4_000_000
# Of one driver; each takes some seconds.
SCANS = 2


def main() -> int:
    """Run it."""
    options = parse("Benchmark Spark over topics.", NAMES, ["ister"])
    rows = ROWS_QUICK if options.quick else ROWS
    # Spark's Python workers import the sources of this benchmark.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    leave_on_signals()
    runs: Runs = {}
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ister-bench-") as name:
        folder = Path(name)
        with start_broker("ister", folder) as broker:
            for scenario, lanes in measures(
                options.only or NAMES, folder, (broker.address, broker.pid), rows, options.seconds
            ):
                runs[scenario] = take_turns(scenario, lanes, repeats=options.repeats, broken=broken)
    print(table(runs, SPARK))
    print(json.dumps({**summary(runs, SPARK), "broken": broken}))
    return 1 if broken else 0


def measures(
    chosen: list[str], folder: Path, broker: tuple[str, int], rows: int, seconds: float
) -> Iterator[tuple[str, Lanes]]:
    """Yield the lanes of each chosen scenario; what they need lives until the next is asked for."""
    from bench import spark_side as side

    url, pid = broker
    note(f"publishing {rows:,} rows")
    side.fill(url, rows)
    if set(chosen) - {"scaling"}:
        with warm_session(folder, broker, rows) as ground:
            lanes: dict[str, Lanes] = {
                "stream": {
                    "ister": partial(side.stream, side.read_stream, ground),
                    "parquet": partial(side.stream, side.read_parquet_stream, ground),
                },
                "batch": {
                    "ister": partial(side.batch, ground, side.read_batch),
                    "parquet": partial(side.batch, ground, side.read_parquet),
                },
                "window": {
                    "ister": partial(side.window_ister, ground),
                    "parquet": partial(side.window_parquet, ground),
                },
                "sink": {
                    "ister": partial(side.sink_ister, ground),
                    "noop": partial(side.sink_noop, ground),
                },
                "latency": {
                    "ister": partial(side.event, ground, seconds * 8),
                    "floor": partial(side.floor, ground, seconds * 8),
                },
            }
            for name in (name for name in lanes if name in chosen):
                if name == "latency":
                    note("latency: warming up")
                    side.warm_up(ground)
                yield name, lanes[name]
    if "scaling" in chosen:
        with cluster_lanes(folder, url, pid) as scans:
            yield "scaling", scans


@contextmanager
def warm_session(folder: Path, broker: tuple[str, int], rows: int) -> Iterator[Ground]:
    """Start Spark, write the Parquet twin, and have everything compiled once."""
    from bench import spark_side as side
    from bench import spark_sources as sources
    from ister.spark.tuning import session

    note("starting Spark, writing the Parquet files")
    spark = session("bench", settings={"spark.sql.streaming.numRecentProgressUpdates": "2000"})
    try:
        spark.dataSource.register(sources.Ticks)
        spark.dataSource.register(sources.Hole)
        ground = side.Ground(spark, *broker, folder, rows)
        side.make_parquet(ground)
        yield ground
    finally:
        spark.stop()


@contextmanager
def cluster_lanes(folder: Path, url: str, pid: int) -> Iterator[Lanes]:
    """Start a cluster of two executors, and a driver for one and for two of them in turn."""
    from bench.spark_cluster import loops_per_s, start_cluster, start_driver
    from bench.spark_side import sealed

    ends, rows = sealed(url)
    note(f"starting a cluster for {rows:,} sealed rows")
    with start_cluster(folder, 2) as master:

        def scan(cores: int) -> Figures:
            loops = loops_per_s(cores)
            args = [master, str(cores), url, str(pid), ends, str(rows)]
            with start_driver(folder, args) as driver:
                scans = [driver.scan() for _ in range(SCANS)]
            found = {figure: median(one[figure] for one in scans) for figure in scans[0]}
            return {**found, "loops_s": loops}

        yield {"one": partial(scan, 1), "two": partial(scan, 2)}


if __name__ == "__main__":
    raise SystemExit(main())
