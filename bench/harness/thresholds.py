"""What a promise of a benchmark is, and how a measurement is held against it.

A variant's figure is the median over its repeats. Where somebody else was measured through several
APIs, the one that does best on the figure in question counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from bench.harness.job import Figures

# scenario → variant → figure → value
Results = dict[str, dict[str, Figures]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """One promise: a figure of ours divided by the same figure of a competitor.

    Without a limit it promises nothing and only says how the two compare.
    """

    key: str
    title: str
    scenario: str
    figure: str
    ours: str = "ister"
    theirs: tuple[str, ...] = ("nats",)
    limit: float | None = None
    # What is added to theirs: so many times a figure of our own variant.
    allowance: tuple[float, str] | None = None

    @property
    def more_is_better(self) -> bool:
        """Rates should be high, latencies low."""
        return not self.figure.endswith("_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A figure of ours that should stay below a limit, or reach it, whatever others need.

    The same figure of the variant `scale` stands beside it.
    """

    key: str
    title: str
    scenario: str
    unit: str
    limit: float
    variant: str = "ister"
    scale: str = "nats"
    at_least: bool = False
    # The figure's name, if it is not `key`.
    figure: str = ""

    @property
    def name(self) -> str:
        """Return the figure's name."""
        return self.figure or self.key

    def is_kept(self, value: float) -> bool:
        """Return whether a figure is what was promised."""
        return value >= self.limit if self.at_least else value < self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Promises:
    """All that one benchmark says by name."""

    thresholds: list[Threshold]
    targets: list[Target] = field(default_factory=list)
    # Figures without a threshold that deserve a name of their own: key → scenario, variant, figure.
    recorded: dict[str, tuple[str, str, str]] = field(default_factory=dict)


def medians(runs: Sequence[Figures]) -> Figures:
    """Return the median of every figure over the repeats of one variant."""
    return {name: median(run[name] for run in runs) for name in runs[0]}


def best_variant(results: Results, threshold: Threshold) -> str | None:
    """Return the competitor's variant with the best value of the threshold's figure."""
    variants = results.get(threshold.scenario, {})
    measured = [
        variant for variant in threshold.theirs if threshold.figure in variants.get(variant, {})
    ]
    pick = max if threshold.more_is_better else min
    return pick(measured, key=lambda variant: variants[variant][threshold.figure], default=None)


def ratio(results: Results, threshold: Threshold) -> float | None:
    """Return ours / theirs, or None when one side was not measured."""
    theirs = best_variant(results, threshold)
    ours = results.get(threshold.scenario, {}).get(threshold.ours, {}).get(threshold.figure)
    if theirs is None or ours is None:
        return None
    other = results[threshold.scenario][theirs][threshold.figure]
    if threshold.allowance is not None:
        times, figure = threshold.allowance
        other += times * results[threshold.scenario][threshold.ours][figure]
    return ours / other


def verdict(value: float | None, threshold: Threshold) -> str:
    """Say whether a ratio keeps the promise, if there is one and it was measured."""
    if value is None or threshold.limit is None:
        return "-"
    kept = value >= threshold.limit if threshold.more_is_better else value <= threshold.limit
    return "pass" if kept else "FAIL"
