"""What is measured: for each threshold the variants to compare and how one variant is run once.

A variant is one way of doing the job: a contender, and the API it is used through. Every run of a
variant gets a fresh broker and fresh client processes, so it inherits no heap and no backlog.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness.brokers import Broker, start_broker
from bench.harness.counters import Counters
from bench.harness.job import Figures, Job
from bench.harness.processes import BenchError, Worker, cpu_s, tail, worker

WARMUP_S = 0.4
# A consumer whose count has not moved for this long has everything it will get.
QUIET_S = 0.2
DRAIN_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of doing a scenario's job; `settings` are fields of `Job`."""

    contender: str
    mode: str = ""
    settings: dict[str, int] = field(default_factory=dict)
    # The module of the client processes, below `bench`: "live.ister".
    client: str = ""

    @property
    def key(self) -> str:
        """The name of the variant in the results."""
        return f"{self.contender}_{self.mode}" if self.mode else self.contender


class Run:
    """One run of one variant: its broker, its counters and the folder for its files."""

    def __init__(self, variant: Variant, broker: Broker, *, folder: Path, seconds: float) -> None:
        self.variant = variant
        self.broker = broker
        self.folder = folder
        self.seconds = seconds
        self.counters = Counters.create(folder / f"board-{time.monotonic_ns()}")

    def job(self, **settings: Any) -> Job:
        """Return the job of this variant, with `settings` over the variant's own."""
        fields = {
            "topic": "/default/bench" if self.variant.contender == "ister" else "bench",
            "mode": self.variant.mode,
            "seconds": self.seconds,
        }
        return Job(self.broker.address, **{**fields, **self.variant.settings, **settings})

    def worker(self, role: str, job: Job) -> AbstractContextManager[Worker]:
        """Start one client process of this variant."""
        return worker(self.variant.client, role, self.counters, job, folder=self.folder)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named measurement over several variants."""

    name: str
    measure: Callable[[Run], Figures]
    variants: list[Variant]
    # Slow scenarios whose figures hardly vary are run once, however many repeats are asked for.
    once: bool = False


def run_variant(scenario: Scenario, variant: Variant, *, folder: Path, seconds: float) -> Figures:
    """Measure one variant once, on a broker of its own; a failure quotes the end of its log."""
    with start_broker(variant.contender, folder) as broker:
        try:
            return scenario.measure(Run(variant, broker, folder=folder, seconds=seconds))
        except BenchError as error:
            raise BenchError(f"{error}\nbroker: {tail(broker.log)}") from error


def sample(
    run: Run, clients: dict[str, Worker], *, all_counters: Sequence[Counters] | None = None
) -> Figures:
    """Read every process's CPU clock and the counters twice and return the rates in between.

    Given `all_counters` in their place, the rate is that of all of them together.
    """
    all_counters = all_counters or [run.counters]

    def received() -> int:
        return sum(counters.received for counters in all_counters)

    def clocks() -> Figures:
        used = {name: client.cpu_s() for name, client in clients.items()}
        return {"broker": cpu_s(run.broker.pid), **used}

    time.sleep(WARMUP_S)
    before = clocks()
    began, count_before = time.perf_counter(), received()
    time.sleep(run.seconds)
    elapsed, count = time.perf_counter() - began, received() - count_before
    cpu = {name: used - before[name] for name, used in clocks().items()}
    figures = {f"{name}_cpu": used / elapsed for name, used in cpu.items()}
    if count == 0:
        raise BenchError(f"nothing arrived within {elapsed:.1f} s")
    figures["broker_cpu_us"] = cpu["broker"] * 1e6 / count
    figures["msg_s"] = count / elapsed
    return figures


def drain(counters: Counters) -> None:
    """Wait until the consumer has received what was still on its way."""
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    seen = -1
    while seen != counters.received and time.monotonic() < deadline:
        seen = counters.received
        time.sleep(QUIET_S)
