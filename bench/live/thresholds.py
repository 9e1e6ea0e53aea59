"""What Ister promises about live topics."""

from __future__ import annotations

from bench.harness.thresholds import Promises, Target, Threshold

NATS_APIS = ("nats_callback", "nats_iterator")

BARS = [
    Threshold(
        key="throughput_vs_nats",
        title="1 → 1, one message at a time",
        scenario="throughput",
        figure="msg_s",
        ours="ister_messages",
        theirs=NATS_APIS,
        limit=7.0,
    ),
    Threshold(
        key="batch_throughput_vs_nats",
        title="1 → 1, batches, every payload read",
        scenario="throughput",
        figure="msg_s",
        ours="ister_batches",
        theirs=NATS_APIS,
        limit=15.0,
    ),
    Threshold(
        key="batches_vs_relay",
        title="1 → 1, batches, 1 KiB payloads",
        scenario="relay",
        figure="mb_s",
        ours="ister_columns",
        theirs=("relay",),
        limit=0.6,
    ),
    Threshold(
        key="roundtrip_p50_vs_nats",
        title="round trip, p50",
        scenario="roundtrip",
        figure="p50_us",
        theirs=NATS_APIS,
        limit=0.6,
    ),
    Threshold(
        key="roundtrip_p99_vs_nats",
        title="round trip, p99",
        scenario="roundtrip",
        figure="p99_us",
        theirs=NATS_APIS,
        limit=1.0,
    ),
    Threshold(
        key="request_p50_vs_nats",
        title="request, one at a time, p50",
        scenario="request",
        figure="p50_us",
        limit=0.7,
    ),
    Threshold(
        key="request_100_vs_nats",
        title="requests, 100 in flight",
        scenario="request_100",
        figure="msg_s",
        limit=2.0,
    ),
    Threshold(
        key="connections_200_vs_nats",
        title="200 connections, acknowledged",
        scenario="connections",
        figure="msg_s",
        limit=1.0,
    ),
    Threshold(
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

RECORDED = {
    "memory_topics_10k_mb": ("memory", "ister", "topics_10k_mb"),
    "memory_topics_10k_connections_1k_mb": ("memory", "ister", "topics_10k_connections_1k_mb"),
    "broker_cpu_us_per_message": ("throughput", "ister_messages", "broker_cpu_us"),
    "broker_cpu_us_per_message_in_batches": ("throughput", "ister_batches", "broker_cpu_us"),
    "nats_broker_cpu_us_per_message": ("throughput", "nats_callback", "broker_cpu_us"),
}

LIVE = Promises(thresholds=BARS, targets=TARGETS, recorded=RECORDED)
