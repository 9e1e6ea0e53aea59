"""The promises of the benchmark and how a measurement is held against them.

A lane's figure is the median over its repeats. Where NATS was measured through several of its
APIs, the one that does best on the figure in question counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.job import Figures

# scenario → lane → figure → value
Results = dict[str, dict[str, Figures]]

NATS_APIS = ("nats_callback", "nats_iterator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One promise: a figure of ours divided by the same figure of somebody else's."""

    key: str
    title: str
    scenario: str
    figure: str
    ours: str = "ister"
    theirs: tuple[str, ...] = ("nats",)
    limit: float

    @property
    def more_is_better(self) -> bool:
        """Rates should be high, latencies low."""
        return not self.figure.endswith("_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A figure of ours that should stay below a limit, whatever others need."""

    key: str
    title: str
    scenario: str
    unit: str
    limit: float


BARS = [
    Bar(
        key="throughput_vs_nats",
        title="1 → 1, one message at a time",
        scenario="throughput",
        figure="msg_s",
        ours="ister_messages",
        theirs=NATS_APIS,
        limit=7.0,
    ),
    Bar(
        key="batch_throughput_vs_nats",
        title="1 → 1, batches, every payload read",
        scenario="throughput",
        figure="msg_s",
        ours="ister_batches",
        theirs=NATS_APIS,
        limit=15.0,
    ),
    Bar(
        key="batches_vs_relay",
        title="1 → 1, batches, 1 KiB payloads",
        scenario="relay",
        figure="mb_s",
        ours="ister_columns",
        theirs=("relay",),
        limit=0.6,
    ),
    Bar(
        key="roundtrip_p50_vs_nats",
        title="round trip, p50",
        scenario="roundtrip",
        figure="p50_us",
        theirs=NATS_APIS,
        limit=0.6,
    ),
    Bar(
        key="roundtrip_p99_vs_nats",
        title="round trip, p99",
        scenario="roundtrip",
        figure="p99_us",
        theirs=NATS_APIS,
        limit=1.0,
    ),
    Bar(
        key="request_p50_vs_nats",
        title="request, one at a time, p50",
        scenario="request",
        figure="p50_us",
        limit=0.7,
    ),
    Bar(
        key="request_100_vs_nats",
        title="requests, 100 in flight",
        scenario="request_100",
        figure="msg_s",
        limit=2.0,
    ),
    Bar(
        key="connections_200_vs_nats",
        title="200 connections, acknowledged",
        scenario="connections",
        figure="msg_s",
        limit=1.0,
    ),
    Bar(
        key="fanout_10_vs_nats",
        title="fan-out to 10, delivered",
        scenario="fanout",
        figure="msg_s",
        ours="ister_messages",
        theirs=("nats_callback",),
        limit=5.0,
    ),
]

TARGETS = [
    Target(key="ready_s", title="start to ready", scenario="start", unit="s", limit=0.7),
    Target(key="idle_mb", title="idle resident memory", scenario="start", unit="MB", limit=70.0),
]


def medians(runs: Sequence[Figures]) -> Figures:
    """Return the median of every figure over the repeats of one lane."""
    return {name: median(run[name] for run in runs) for name in runs[0]}


def best_lane(results: Results, bar: Bar) -> str | None:
    """Return the competitor's lane with the best value of the bar's figure."""
    lanes = results.get(bar.scenario, {})
    measured = [lane for lane in bar.theirs if bar.figure in lanes.get(lane, {})]
    pick = max if bar.more_is_better else min
    return pick(measured, key=lambda lane: lanes[lane][bar.figure], default=None)


def ratio(results: Results, bar: Bar) -> float | None:
    """Return ours / theirs, or None when a side was not measured."""
    theirs = best_lane(results, bar)
    ours = results.get(bar.scenario, {}).get(bar.ours, {}).get(bar.figure)
    if theirs is None or ours is None:
        return None
    return ours / results[bar.scenario][theirs][bar.figure]


def passes(value: float, bar: Bar) -> bool:
    """Tell whether a ratio keeps the promise."""
    return value >= bar.limit if bar.more_is_better else value <= bar.limit
