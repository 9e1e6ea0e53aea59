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

from bench.harness.job import Figures
from bench.harness.report import Runs, summary, table
from bench.harness.rounds import leave_on_signals, take_turns
from bench.harness.scenarios import Scenario, run_variant
from bench.harness.thresholds import Promises


def run_contest(
    what: str, scenarios: Sequence[Scenario], promises: Promises, contenders: list[str]
) -> int:
    """Run the chosen scenarios, print the table and the JSON line; 1 when a run broke."""
    options = parse(what, [scenario.name for scenario in scenarios], contenders)
    leave_on_signals()
    runs: Runs = {}
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ister-bench-") as folder:
        for scenario in scenarios:
            if options.only and scenario.name not in options.only:
                continue
            runs[scenario.name] = take_turns(
                scenario.name,
                variants_of(scenario, options, Path(folder)),
                repeats=1 if scenario.once else options.repeats,
                broken=broken,
            )
    print(table(runs, promises))
    print(json.dumps({**summary(runs, promises), "broken": broken}))
    return 1 if broken else 0


def parse(what: str, names: Sequence[str], contenders: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--only", nargs="+", choices=names, help="run these scenarios only")
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=contenders,
        default=contenders,
        help="leave contenders out",
    )
    parser.add_argument("--repeats", type=int, help="runs per variant (default 3, with --quick 1)")
    parser.add_argument(
        "--quick", action="store_true", help="short runs: a smoke test, not a figure"
    )
    options = parser.parse_args()
    options.repeats = options.repeats or (1 if options.quick else 3)
    options.seconds = 0.5 if options.quick else 1.5
    return options


def variants_of(
    scenario: Scenario, options: argparse.Namespace, folder: Path
) -> dict[str, Callable[[], Figures]]:
    """Return what runs each chosen variant once."""
    return {
        variant.key: partial(run_variant, scenario, variant, folder=folder, seconds=options.seconds)
        for variant in scenario.variants
        if variant.contender in options.contenders
    }
