"""Runs the scenarios of a benchmark, prints the table, and last one JSON object for machines.

Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.bars import Promises
from bench.job import Figures
from bench.report import Runs, summary, table
from bench.scenarios import Scenario, run_lane
from bench.turns import leave_on_signals, take_turns


def run_contest(
    what: str, scenarios: Sequence[Scenario], promises: Promises, sides: list[str]
) -> int:
    """Run the chosen scenarios, print the table and the JSON line; 1 when a run broke."""
    options = parse(what, [scenario.name for scenario in scenarios], sides)
    leave_on_signals()
    runs: Runs = {}
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ister-bench-") as folder:
        for scenario in scenarios:
            if options.only and scenario.name not in options.only:
                continue
            runs[scenario.name] = take_turns(
                scenario.name,
                lanes_of(scenario, options, Path(folder)),
                repeats=1 if scenario.once else options.repeats,
                broken=broken,
            )
    print(table(runs, promises))
    print(json.dumps({**summary(runs, promises), "broken": broken}))
    return 1 if broken else 0


def parse(what: str, names: Sequence[str], sides: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--only", nargs="+", choices=names, help="run these scenarios only")
    parser.add_argument("--sides", nargs="+", choices=sides, default=sides, help="leave sides out")
    parser.add_argument("--repeats", type=int, help="runs per lane (default 3, with --quick 1)")
    parser.add_argument(
        "--quick", action="store_true", help="short runs: a smoke test, not a figure"
    )
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 3)
    options.seconds = 0.5 if options.quick else 1.5
    return options


def lanes_of(
    scenario: Scenario, options: argparse.Namespace, folder: Path
) -> dict[str, Callable[[], Figures]]:
    """Return what runs each chosen lane once."""
    return {
        lane.key: partial(run_lane, scenario, lane, folder=folder, seconds=options.seconds)
        for lane in scenario.lanes
        if lane.side in options.sides
    }
