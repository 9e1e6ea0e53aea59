"""How the variants of a scenario take turns, and how a benchmark speaks and leaves.

Variants run A, B, A, B …, so a machine that slows down meanwhile slows both.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from bench.harness.job import Figures
from bench.harness.processes import BenchError

# One run of one variant.
Measure = Callable[[], Figures]


def take_turns(
    scenario: str, variants: Mapping[str, Measure], *, repeats: int, broken: list[str]
) -> dict[str, list[Figures]]:
    """Run every variant in turn, `repeats` times over, and return every run's figures.

    A variant that breaks is noted and not tried again; the others still give their figures.
    """
    left = dict(variants)
    runs: dict[str, list[Figures]] = {key: [] for key in variants}
    for repeat in range(repeats):
        for key, measure in list(left.items()):
            note(f"{scenario}: {key} ({repeat + 1})")
            try:
                figures = measure()
            except BenchError as error:
                note(f"{scenario}: {key} broke: {error}")
                broken.append(f"{scenario}.{key}")
                del left[key]
            else:
                runs[key].append(figures)
    return runs


def note(text: str) -> None:
    """Tell the person who waits what is going on, away from the results."""
    print(text, file=sys.stderr, flush=True)


def leave_on_signals() -> None:
    """Turn the signals that end us into an exception, so that all we started is tidied up."""
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)


def leave(number: int, _frame: object) -> NoReturn:
    """Leave through every `finally` and `with` on the way."""
    raise SystemExit(128 + number)
