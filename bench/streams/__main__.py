"""Stream topics against JetStream and the plain disk: `make bench-streams`.

Run from the repository root as `.venv/bin/python -m bench.streams`. All
data lies in a folder of its own on a real disk, which is removed at the end, also of a run that
is interrupted. The table comes at the end; the last line of stdout is one JSON object. Progress
goes to stderr.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.harness.disk import choose_folder, filesystem, free_bytes, in_memory
from bench.harness.job import Figures
from bench.harness.report import Runs, summary, table
from bench.harness.rounds import leave_on_signals, note, take_turns
from bench.streams.scenarios import QUICK, SCENARIOS, Sizes, Stage, StreamScenario
from bench.streams.thresholds import STREAMS

SIDES = ["ister", "jetstream", "disk"]
# What is stored shares the disk with the other variants of its run and with whoever else is there.
FREE_SHARE = 4
STORED_BYTES_MIN = 2_000_000_000


def main() -> int:
    """Run the chosen scenarios, print the table and the JSON line; 1 when a run broke."""
    options = parse()
    leave_on_signals()
    place = choose_folder(options.folder)
    sizes = QUICK if options.quick else scaled(Sizes(), free_bytes(place))
    remarks = remarks_on(place, sizes)
    for remark in remarks:
        note(remark)
    runs: Runs = {}
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ister-bench-", dir=place) as folder:
        for scenario in SCENARIOS:
            if options.only and scenario.name not in options.only:
                continue
            stage = Stage(Path(folder), seconds=options.seconds, sizes=sizes)
            variants = variants_of(scenario, stage, options.contenders)
            if variants:
                runs[scenario.name] = take_turns(
                    scenario.name, variants, repeats=options.repeats, broken=broken
                )
            stage.clear()
    print(table(runs, STREAMS))
    found = summary(runs, STREAMS)
    print(json.dumps({**found, "remarks": remarks, "broken": broken}))
    return 1 if broken else 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Benchmark streams against JetStream and a disk.")
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--only", nargs="+", choices=names, help="run these scenarios only")
    parser.add_argument(
        "--contenders", nargs="+", choices=SIDES, default=SIDES, help="leave contenders out"
    )
    parser.add_argument("--repeats", type=int, help="runs per variant (default 3, with --quick 1)")
    parser.add_argument(
        "--quick", action="store_true", help="short runs: a smoke test, not a figure"
    )
    parser.add_argument("--folder", type=Path, help="where to work (default: one on a real disk)")
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 3)
    options.seconds = 0.5 if options.quick else 3.0
    return options


def scaled(sizes: Sizes, free: int) -> Sizes:
    """Return `sizes` with no more stored than the disk has room for, but never below the least."""
    stored = max(STORED_BYTES_MIN, min(sizes.stored_bytes, free // FREE_SHARE))
    return dataclasses.replace(sizes, stored_bytes=stored)


def remarks_on(place: Path, sizes: Sizes) -> list[str]:
    """Return what a reader of the figures must know about where and how much."""
    remarks = [
        f"data on {filesystem(place)}",
        f"replay of {sizes.replay_count:,} messages; JetStream: {sizes.replay_count // 10:,}",
        f"consuming with acks: {sizes.ack_count:,} messages; JetStream: {sizes.ack_count // 10:,}",
        f"much stored: {sizes.stored_bytes / 1e9:.1f} GB",
    ]
    if in_memory(place):
        remarks.append("THE DATA IS IN MEMORY: nothing here says anything about a disk")
    if sizes.stored_bytes > free_bytes(place) // 2:
        remarks.append("the disk is nearly full: expect slow or broken runs")
    return remarks


def variants_of(
    scenario: StreamScenario, stage: Stage, contenders: list[str]
) -> dict[str, Callable[[], Figures]]:
    """Return what runs each chosen variant once; `jetstream_fsync` is part of `jetstream`."""
    if scenario.stock and scenario.stock not in contenders:
        return {}
    return {
        variant.key: partial(scenario.measure, stage, variant)
        for variant in scenario.variants
        if variant.contender.partition("_")[0] in contenders
    }


if __name__ == "__main__":
    raise SystemExit(main())
