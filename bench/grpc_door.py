"""The gRPC door against a bare grpcio server, both through Danube's client: `make bench-grpc`.

Run from the repository root as `.venv/bin/python -m bench.grpc_door`.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.contest import run_contest
from bench.grpc_scenarios import GRPC, SCENARIOS


def main() -> int:
    """Run it."""
    return run_contest(
        "Benchmark the gRPC door against a bare server.", SCENARIOS, GRPC, ["ister_grpc", "echo"]
    )


if __name__ == "__main__":
    raise SystemExit(main())
