"""Live topics against nats-server and a dumb TCP relay: `make bench-live`.

Run from the repository root as `.venv/bin/python -m bench.live` or `… bench/live.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.contest import run_contest
from bench.live_bars import LIVE
from bench.scenarios import SCENARIOS


def main() -> int:
    """Run it."""
    return run_contest(
        "Benchmark live topics against NATS and a relay.",
        SCENARIOS,
        LIVE,
        ["ister", "nats", "relay"],
    )


if __name__ == "__main__":
    raise SystemExit(main())
