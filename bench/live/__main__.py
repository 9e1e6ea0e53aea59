"""Live topics against nats-server and a dumb TCP relay: `make bench-live`.

Run from the repository root as `.venv/bin/python -m bench.live`.
"""

from __future__ import annotations

from bench.harness.runner import run_contest
from bench.live.scenarios import SCENARIOS
from bench.live.thresholds import LIVE


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
