"""Spark over topics against Spark over its own Parquet: `make bench-spark`.

Run from the repository root as `.venv/bin/python -m bench.spark`. One broker, one warm session;
prints the table, and last one JSON object for machines.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.harness.brokers import start_broker
from bench.harness.job import Figures
from bench.harness.processes import ROOT
from bench.harness.report import Runs, summary, table
from bench.harness.rounds import leave_on_signals, note, take_turns
from bench.harness.runner import parse
from bench.spark.thresholds import SPARK

if TYPE_CHECKING:
    from bench.spark.measurements import Ground

Variants = dict[str, Callable[[], Figures]]

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
            for scenario, variants in measures(
                options.only or NAMES, folder, (broker.address, broker.pid), rows, options.seconds
            ):
                runs[scenario] = take_turns(
                    scenario, variants, repeats=options.repeats, broken=broken
                )
    print(table(runs, SPARK))
    print(json.dumps({**summary(runs, SPARK), "broken": broken}))
    return 1 if broken else 0


def measures(
    chosen: list[str], folder: Path, broker: tuple[str, int], rows: int, seconds: float
) -> Iterator[tuple[str, Variants]]:
    """Yield the variants of each chosen scenario; what they need lives until the next one."""
    from bench.spark import measurements as contender

    url, pid = broker
    note(f"publishing {rows:,} rows")
    contender.fill(url, rows)
    if set(chosen) - {"scaling"}:
        with warm_session(folder, broker, rows) as ground:
            variants: dict[str, Variants] = {
                "stream": {
                    "ister": partial(contender.stream, contender.read_stream, ground),
                    "parquet": partial(contender.stream, contender.read_parquet_stream, ground),
                },
                "batch": {
                    "ister": partial(contender.batch, ground, contender.read_batch),
                    "parquet": partial(contender.batch, ground, contender.read_parquet),
                },
                "window": {
                    "ister": partial(contender.window_ister, ground),
                    "parquet": partial(contender.window_parquet, ground),
                },
                "sink": {
                    "ister": partial(contender.sink_ister, ground),
                    "noop": partial(contender.sink_noop, ground),
                },
                "latency": {
                    "ister": partial(contender.event, ground, seconds * 8),
                    "floor": partial(contender.floor, ground, seconds * 8),
                },
            }
            for name in (name for name in variants if name in chosen):
                if name == "latency":
                    note("latency: warming up")
                    contender.warm_up(ground)
                yield name, variants[name]
    if "scaling" in chosen:
        with cluster_variants(folder, url, pid) as scans:
            yield "scaling", scans


@contextmanager
def warm_session(folder: Path, broker: tuple[str, int], rows: int) -> Iterator[Ground]:
    """Start Spark, write the Parquet twin, and have everything compiled once."""
    from bench.spark import measurements as contender
    from bench.spark import sources
    from ister.spark.tuning import session

    note("starting Spark, writing the Parquet files")
    spark = session("bench", settings={"spark.sql.streaming.numRecentProgressUpdates": "2000"})
    try:
        spark.dataSource.register(sources.Ticks)
        spark.dataSource.register(sources.Hole)
        ground = contender.Ground(spark, *broker, folder, rows)
        contender.make_parquet(ground)
        yield ground
    finally:
        spark.stop()


@contextmanager
def cluster_variants(folder: Path, url: str, pid: int) -> Iterator[Variants]:
    """Start a cluster of two executors, and a driver for one and for two of them in turn."""
    from bench.spark.cluster import loops_per_s, start_cluster, start_driver
    from bench.spark.measurements import sealed

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
