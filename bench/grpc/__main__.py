"""The gRPC door against a bare grpcio server, both through Danube's client: `make bench-grpc`.

Run from the repository root as `.venv/bin/python -m bench.grpc`.
"""

from __future__ import annotations

from bench.grpc.scenarios import GRPC, SCENARIOS
from bench.harness.runner import run_contest


def main() -> int:
    """Run it."""
    return run_contest(
        "Benchmark the gRPC door against a bare server.", SCENARIOS, GRPC, ["ister_grpc", "echo"]
    )


if __name__ == "__main__":
    raise SystemExit(main())
