"""What Ister promises about timelines."""

from __future__ import annotations

from bench.harness.job import Figures
from bench.harness.report import Runs
from bench.harness.thresholds import Promises, Target, Threshold, medians

BARS = [
    Threshold(
        key="lateness_p50_vs_nats",
        title="lateness p50; NATS's scheduled messages",
        scenario="lateness",
        figure="p50_us",
    ),
    Threshold(
        key="lateness_p99_vs_nats",
        title="lateness p99; NATS's scheduled messages",
        scenario="lateness",
        figure="p99_us",
    ),
    Threshold(
        key="lateness_p50_vs_call_at",
        title="lateness p50; timers of a loop that does nothing else",
        scenario="lateness",
        figure="p50_us",
        theirs=("call_at",),
    ),
    Threshold(
        key="lateness_p99_vs_call_at",
        title="lateness p99; timers of a loop that does nothing else",
        scenario="lateness",
        figure="p99_us",
        theirs=("call_at",),
    ),
    Threshold(
        key="put_vs_executemany",
        title="put, acknowledged on disk; plain `executemany`",
        scenario="put",
        figure="msg_s",
        theirs=("executemany",),
    ),
    Threshold(
        key="put_natural_vs_executemany",
        title="put with ids of one's own; plain `executemany`",
        scenario="put",
        figure="msg_s",
        ours="ister_natural",
        theirs=("executemany",),
    ),
    Threshold(
        key="single_put_p50_vs_fsync",
        title="one put at a time, p50; an append and its fsync",
        scenario="single",
        figure="p50_us",
        theirs=("fsync",),
    ),
]

TARGETS = [
    Target(
        key="lateness_p50_ms",
        title="lateness p50, 5,000 due a second",
        scenario="lateness",
        unit="ms",
        limit=1.0,
    ),
    Target(
        key="lateness_p99_ms",
        title="lateness p99, 5,000 due a second",
        scenario="lateness",
        unit="ms",
        limit=5.0,
    ),
    Target(
        key="early_count",
        title="handed over before they were due",
        scenario="lateness",
        unit="",
        limit=1.0,
    ),
    Target(
        key="burst_publish_p99_ratio",
        title="publishing elsewhere during a burst, p99 / idle",
        scenario="burst",
        unit="",
        limit=3.0,
    ),
    Target(
        key="put_per_s",
        title="put, acknowledged on disk",
        scenario="put",
        unit="/s",
        limit=50_000,
        at_least=True,
    ),
    Target(
        key="single_put_p50_us",
        title="one put at a time, p50",
        scenario="single",
        unit="µs",
        limit=1_500,
        figure="p50_us",
    ),
    Target(
        key="lease_done_per_s",
        title="leased and done",
        scenario="lease",
        unit="/s",
        limit=20_000,
        at_least=True,
    ),
    Target(
        key="at_5m_ratio",
        title="the worst of the ratios beside many that wait",
        scenario="waiting",
        unit="",
        limit=1.3,
        variant="ratios",
    ),
    Target(
        key="at_5m_memory_mb",
        title="memory that many that wait take",
        scenario="waiting",
        unit="MB",
        limit=100.0,
        variant="ratios",
    ),
]

RECORDED = {
    "lateness_max_ms": ("lateness", "ister", "lateness_max_ms"),
    "delivered_count": ("lateness", "ister", "delivered"),
    "nats_early_count": ("lateness", "nats", "early_count"),
    "drain_per_s": ("burst", "ister", "drain_per_s"),
    "burst_early_count": ("burst", "ister", "burst_early_count"),
    "burst_stream_p99_ratio": ("burst", "ister", "burst_stream_p99_ratio"),
    "burst_live_p99_ratio": ("burst", "ister", "burst_live_p99_ratio"),
    "put_natural_per_s": ("put", "ister_natural", "put_per_s"),
    "at_5m_put_ratio": ("waiting", "ratios", "at_5m_put_ratio"),
    "at_5m_lease_done_ratio": ("waiting", "ratios", "at_5m_lease_done_ratio"),
    "at_5m_lateness_p50_ratio": ("waiting", "ratios", "at_5m_lateness_p50_ratio"),
    "at_5m_lateness_p99_ratio": ("waiting", "ratios", "at_5m_lateness_p99_ratio"),
}

TIMELINES = Promises(thresholds=BARS, targets=TARGETS, recorded=RECORDED)


def add_ratios(runs: Runs) -> None:
    """Add a variant that says how much worse each figure is beside many messages that wait."""
    variants = runs.get("waiting", {})
    if not (variants.get("none") and variants.get("many")):
        return
    none, many = medians(variants["none"]), medians(variants["many"])
    ratios: Figures = {
        "at_5m_put_ratio": none["put_per_s"] / many["put_per_s"],
        "at_5m_lease_done_ratio": none["lease_done_per_s"] / many["lease_done_per_s"],
        "at_5m_lateness_p50_ratio": many["p50_us"] / none["p50_us"],
        "at_5m_lateness_p99_ratio": many["p99_us"] / none["p99_us"],
    }
    memory_mb = many["broker_mb"] - none["broker_mb"]
    variants["ratios"] = [
        {"at_5m_ratio": max(ratios.values()), **ratios, "at_5m_memory_mb": memory_mb}
    ]
