"""Live topics against nats-server and a dumb TCP relay: `make bench-live`.

Run from the repository root as `.venv/bin/python -m bench.live` or `… bench/live.py`. The table
comes at the end; the last line of stdout is one JSON object. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.job import Figures
from bench.live_bars import LIVE
from bench.report import Runs, summary, table
from bench.scenarios import SCENARIOS, Scenario, run_lane
from bench.turns import leave_on_signals, take_turns

SIDES = ["ister", "nats", "relay"]


def main() -> int:
    """Run the chosen scenarios, print the table and the JSON line; 1 when a run broke."""
    options = parse()
    leave_on_signals()
    runs: Runs = {}
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ister-bench-") as folder:
        for scenario in SCENARIOS:
            if options.only and scenario.name not in options.only:
                continue
            runs[scenario.name] = take_turns(
                scenario.name,
                lanes_of(scenario, options, Path(folder)),
                repeats=1 if scenario.once else options.repeats,
                broken=broken,
            )
    print(table(runs, LIVE))
    print(json.dumps({**summary(runs, LIVE), "broken": broken}))
    return 1 if broken else 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Benchmark live topics against NATS and a relay.")
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--only", nargs="+", choices=names, help="run these scenarios only")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, help="leave sides out")
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


if __name__ == "__main__":
    raise SystemExit(main())
