"""What Ister promises about Spark, on the same machine in the same run."""

from __future__ import annotations

from bench.harness.thresholds import Promises, Threshold

SPARK = Promises(
    thresholds=[
        Threshold(
            key="stream_vs_parquet",
            title="streaming read → noop, 1 M rows a batch",
            scenario="stream",
            figure="msg_s",
            theirs=("parquet",),
            limit=0.6,
        ),
        Threshold(
            key="batch_vs_parquet",
            title="batch read → noop",
            scenario="batch",
            figure="msg_s",
            theirs=("parquet",),
            limit=0.6,
        ),
        Threshold(
            key="window_vs_parquet",
            title="topic → windows → topic; Parquet → windows → noop",
            scenario="window",
            figure="msg_s",
            theirs=("parquet",),
            limit=0.7,
        ),
        Threshold(
            key="sink_vs_noop",
            title="sink; a Python writer that does nothing",
            scenario="sink",
            figure="msg_s",
            theirs=("noop",),
        ),
        Threshold(
            key="latency_p50_vs_floor",
            title="one event, topic → topic; an empty micro-batch",
            scenario="latency",
            figure="p50_us",
            theirs=("floor",),
            limit=1.5,
        ),
        Threshold(
            key="executor_scaling",
            title="scan of segments, two executors; one",
            scenario="scaling",
            figure="msg_s",
            ours="two",
            theirs=("one",),
            limit=1.6,
        ),
        Threshold(
            key="machine_scaling",
            title="what this machine has: plain loops, two processors; one",
            scenario="scaling",
            figure="loops_s",
            ours="two",
            theirs=("one",),
        ),
    ],
    recorded={
        "sink_rows_per_s": ("sink", "ister", "msg_s"),
        "broker_cpu_share": ("scaling", "two", "broker_cpu_share"),
    },
)
