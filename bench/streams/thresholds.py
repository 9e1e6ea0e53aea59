"""What Ister promises about stream topics.

The competitor's variant that a promise names is the API the promise is about. The quickest thing
anybody can do with nats-py stands below as a comparison without a limit, so that nobody has to
take our choice on trust.
"""

from __future__ import annotations

from bench.harness.thresholds import Promises, Target, Threshold

BARS = [
    Threshold(
        key="publish_vs_jetstream",
        title="publish, acknowledged on disk; JetStream: before",
        scenario="publish",
        figure="msg_s",
        ours="ister_messages",
        theirs=("jetstream_async", "jetstream_concurrent"),
        limit=10.0,
    ),
    Threshold(
        key="publish_vs_jetstream_fsync",
        title="publish, both acknowledged on disk",
        scenario="publish",
        figure="msg_s",
        ours="ister_messages",
        theirs=("jetstream_fsync_async", "jetstream_fsync_by_hand"),
        limit=20.0,
    ),
    Threshold(
        key="ack_vs_jetstream",
        title="consume, every message acknowledged",
        scenario="ack",
        figure="msg_s",
        theirs=("jetstream_pull",),
        limit=10.0,
    ),
    Threshold(
        key="replay_vs_jetstream",
        title="replay, cold, one message at a time",
        scenario="replay",
        figure="msg_s",
        theirs=("jetstream_ordered", "jetstream_iterator", "jetstream_pull"),
        limit=10.0,
    ),
    Threshold(
        key="bytes_vs_disk",
        title="bytes on disk, 1 KiB messages",
        scenario="bytes",
        figure="mb_s",
        ours="ister_batches",
        theirs=("disk",),
        limit=0.6,
    ),
    Threshold(
        key="single_p50_vs_disk",
        title="one durable publish at a time, p50",
        scenario="single",
        figure="p50_us",
        theirs=("disk_append",),
        limit=1.5,
    ),
    Threshold(
        key="stored_vs_empty",
        title="publish → consume, much stored",
        scenario="stored",
        figure="msg_s",
        ours="ister_stored",
        theirs=("ister_empty",),
        limit=0.9,
    ),
    Threshold(
        key="topics_1000_vs_1",
        title="1,000 topics written at once",
        scenario="topics",
        figure="msg_s",
        ours="ister_1000",
        theirs=("ister_1",),
        limit=0.7,
    ),
    Threshold(
        key="reader_vs_file",
        title="reader, 1 KiB messages, from the page cache",
        scenario="reader",
        figure="mb_s",
        ours="ister_columns",
        theirs=("disk",),
    ),
    Threshold(
        key="reader_cold_vs_file",
        title="reader, 1 KiB messages, from the disk",
        scenario="reader_cold",
        figure="mb_s",
        ours="ister_columns",
        theirs=("disk",),
    ),
    Threshold(
        key="publish_batches_vs_jetstream",
        title="publish in batches, acknowledged on disk",
        scenario="publish",
        figure="msg_s",
        ours="ister_batches",
        theirs=("jetstream_async", "jetstream_concurrent"),
    ),
    Threshold(
        key="publish_vs_jetstream_by_hand",
        title="publish; JetStream without futures",
        scenario="publish",
        figure="msg_s",
        ours="ister_messages",
        theirs=("jetstream_by_hand",),
    ),
    Threshold(
        key="ack_vs_jetstream_push",
        title="consume and acknowledge; JetStream by callback",
        scenario="ack",
        figure="msg_s",
        theirs=("jetstream_push",),
    ),
    Threshold(
        key="replay_vs_jetstream_iterator",
        title="replay, both with `async for`",
        scenario="replay",
        figure="msg_s",
        theirs=("jetstream_iterator",),
    ),
    Threshold(
        key="single_p50_vs_disk_allocated",
        title="one at a time; the disk in allocated space",
        scenario="single",
        figure="p50_us",
        theirs=("disk_allocated",),
    ),
]

TARGETS = [
    Target(
        key="restart_s",
        title="restart to ready, much stored",
        scenario="stored",
        unit="s",
        limit=3.0,
        variant="ister_stored",
        scale="ister_empty",
    ),
    Target(
        key="restart_killed_s",
        title="the same after kill -9",
        scenario="stored",
        unit="s",
        limit=3.0,
        variant="ister_stored",
        scale="ister_empty",
    ),
]

RECORDED = {
    "reader_gb_s": ("reader", "ister_columns", "gb_s"),
    "reader_cold_gb_s": ("reader_cold", "ister_columns", "gb_s"),
    "stored_gb": ("stored", "ister_stored", "stored_gb"),
    "topics_1000_broker_mb": ("topics", "ister_1000", "broker_mb"),
    "publish_broker_cpu_us": ("publish", "ister_messages", "broker_cpu_us"),
    "jetstream_publish_broker_cpu_us": ("publish", "jetstream_async", "broker_cpu_us"),
}

STREAMS = Promises(thresholds=BARS, targets=TARGETS, recorded=RECORDED)
