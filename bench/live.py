"""Live topics against nats-server and a dumb TCP relay: `make bench-live`.

Run from the repository root as `.venv/bin/python -m bench.live` or `… bench/live.py`. Lanes of a
scenario take turns (A, B, A, B …), so a machine that slows down meanwhile slows both. The table
comes at the end; the last line of stdout is one JSON object. Progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.job import Figures
from bench.processes import BenchError
from bench.report import Runs, summary, table
from bench.scenarios import SCENARIOS, Scenario, run_lane

SIDES = ["ister", "nats", "relay"]


def main() -> int:
    """Run the chosen scenarios, print the table and the JSON line; 1 when a run broke."""
    options = parse()
    signal.signal(signal.SIGTERM, leave)
    runs: Runs = {}
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ister-bench-") as folder:
        for scenario in SCENARIOS:
            if options.only and scenario.name not in options.only:
                continue
            runs[scenario.name] = run_scenario(scenario, options, Path(folder), broken)
    print(table(runs))
    print(json.dumps({**summary(runs), "broken": broken}))
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


def run_scenario(
    scenario: Scenario, options: argparse.Namespace, folder: Path, broken: list[str]
) -> dict[str, list[Figures]]:
    """Run every lane in turn, `repeats` times over, and return every run's figures.

    A lane that breaks is noted and not tried again; the others still give their figures.
    """
    lanes = {lane.key: lane for lane in scenario.lanes if lane.side in options.sides}
    runs: dict[str, list[Figures]] = {key: [] for key in lanes}
    for repeat in range(1 if scenario.once else options.repeats):
        for key, lane in list(lanes.items()):
            note(f"{scenario.name}: {key} ({repeat + 1})")
            try:
                figures = run_lane(scenario, lane, folder=folder, seconds=options.seconds)
            except BenchError as error:
                note(f"{scenario.name}: {key} broke: {error}")
                broken.append(f"{scenario.name}.{key}")
                del lanes[key]
            else:
                runs[key].append(figures)
    return runs


def note(text: str) -> None:
    """Tell the person who waits what is going on, away from the results."""
    print(text, file=sys.stderr, flush=True)


def leave(_signal: int, _frame: object) -> NoReturn:
    """Turn SIGTERM into an exception, so that every process we started is ended."""
    raise SystemExit(128 + signal.SIGTERM)


if __name__ == "__main__":
    raise SystemExit(main())
