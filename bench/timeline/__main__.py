"""Timelines against NATS's scheduled messages, an event loop and SQLite: `make bench-timeline`.

Run from the repository root as `.venv/bin/python -m bench.timeline`. All
data lies in a folder of its own on a real disk, which is removed at the end, also of a run that
is interrupted. The table comes at the end; the last line of stdout is one JSON object. Progress
goes to stderr.
"""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path

from bench.harness.disk import choose_folder, filesystem, in_memory
from bench.harness.report import Runs, summary, table
from bench.harness.rounds import leave_on_signals, note, take_turns
from bench.harness.runner import parse
from bench.timeline.scenarios import (
    CONSUMER_PROCESSES,
    CONSUMERS_EACH,
    QUICK,
    SCENARIOS,
    Sizes,
    Stage,
)
from bench.timeline.thresholds import TIMELINES, add_ratios

SIDES = ["ister", "nats", "floor"]


def main() -> int:
    """Run the chosen scenarios, print the table and the JSON line; 1 when a run broke."""
    names = [scenario.name for scenario in SCENARIOS]
    options = parse("Benchmark timelines against NATS, an event loop and SQLite.", names, SIDES)
    leave_on_signals()
    place = choose_folder(None)
    sizes = QUICK if options.quick else Sizes()
    remarks = remarks_on(place, sizes)
    for remark in remarks:
        note(remark)
    runs: Runs = {}
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="ister-bench-", dir=place) as folder:
        stage = Stage(Path(folder), sizes)
        for scenario in SCENARIOS:
            variants = {
                variant.key: partial(variant.measure, stage)
                for variant in scenario.variants
                if variant.contender in options.contenders
            }
            if variants and scenario.name in (options.only or names):
                repeats = min(options.repeats, scenario.repeats_max)
                runs[scenario.name] = take_turns(
                    scenario.name, variants, repeats=repeats, broken=broken
                )
    add_ratios(runs)
    print(table(runs, TIMELINES))
    found = summary(runs, TIMELINES)
    print(json.dumps({**found, "remarks": remarks, "broken": broken}))
    return 1 if broken else 0


def remarks_on(place: Path, sizes: Sizes) -> list[str]:
    """Return what a reader of the figures must know about where and how much."""
    remarks = [
        f"data on {filesystem(place)}",
        f"{CONSUMER_PROCESSES * CONSUMERS_EACH} consumers in {CONSUMER_PROCESSES} processes",
        f"lateness for {sizes.lateness_s} s; beside those that wait {sizes.waiting_s} s",
        f"a burst of {sizes.burst_count:,} messages",
        f"`at_5m` is beside {sizes.waiting_count:,} messages that wait",
    ]
    if in_memory(place):
        remarks.append("THE DATA IS IN MEMORY: nothing here says anything about a disk")
    return remarks


if __name__ == "__main__":
    raise SystemExit(main())
