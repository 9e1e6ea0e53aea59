"""What is measured of the gRPC door, and how one variant is run once."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from bench.harness.counters import Counters
from bench.harness.job import Figures
from bench.harness.processes import Worker, worker
from bench.harness.scenarios import Run, Scenario, Variant, sample
from bench.harness.thresholds import Promises, Target, Threshold

TOPIC = "/default/bench"
# Topic of the bare server that delivers one message repeatedly, without end.
FLOOD = "/default/flood"
# Processes that receive. One takes 45,000 to 55,000 messages/s and a whole core, whoever sends
# them: a server that only writes a prepared frame reaches no more. So one says little of a server.
RECEIVERS = 2
# What fills a topic for a receiver, and takes 5 % of a core to do it.
FEED: dict[str, Any] = {"mode": "batches", "chunk": 128, "distance_max": 1_024}


def measure_send(run: Run) -> Figures:
    """One process, one message at a time: the latency of a send; and of a sync of the same disk."""
    with run.worker("send", run.job(topic=TOPIC)) as client:
        client.wait_ready()
        figures = client.finish()
    if run.variant.mode == "reliable":
        job = replace(run.job(), address=str(run.folder), mode="allocated")
        with worker(
            "streams.plain_disk", "write_one", run.counters, job, folder=run.folder
        ) as disk:
            disk.wait_ready()
            figures["fsync_p50_us"] = disk.finish()["p50_us"]
    return figures


def measure_send_many(run: Run) -> Figures:
    """One process, many messages under way: sends per second."""
    with run.worker("send_many", run.job(topic=TOPIC)) as client:
        client.wait_ready()
        figures = sample(run, {"client": client})
        run.counters.stop()
        client.finish()
    return figures


def measure_roundtrip(run: Run) -> Figures:
    """One process, send → receive, one at a time."""
    with run.worker("roundtrip", run.job(topic=TOPIC)) as client:
        client.wait_ready()
        return client.finish()


def measure_receive(run: Run) -> Figures:
    """Messages per second that the receivers take together, each a process with its own topic.

    Native producers keep Ister's topics full.
    """
    clients: dict[str, Worker] = {}
    producers: list[Worker] = []
    all_counters: list[Counters] = []
    with ExitStack() as stack:
        for number in range(run.job().connections):
            counters = Counters.create(run.folder / f"board-{time.monotonic_ns()}")
            all_counters.append(counters)
            job = run.job(topic=FLOOD)
            if run.variant.contender != "echo":
                job = run.job(topic=f"{TOPIC}-{number}")
                feed = replace(job, address=run.broker.native, **FEED)
                started = worker("live.ister", "produce", counters, feed, folder=run.folder)
                producers.append(stack.enter_context(started))
                producers[-1].wait_ready()
            started = worker(run.variant.client, "receive", counters, job, folder=run.folder)
            client = clients[f"client_{number}"] = stack.enter_context(started)
            client.wait_ready()
        figures = sample(run, clients, all_counters=all_counters)
        for counters in all_counters:
            counters.stop()
        for client in clients.values():
            client.stop()
        for producer in producers:
            producer.finish()
    return figures


def variants(*, reliable: bool, **settings: int) -> list[Variant]:
    """Return the bare server and the broker, both driven by Danube's client."""
    found = [
        Variant("echo", "", settings, "grpc.danube"),
        Variant("ister_grpc", "", settings, "grpc.danube"),
    ]
    return (
        [*found, Variant("ister_grpc", "reliable", settings, "grpc.danube")] if reliable else found
    )


SCENARIOS = [
    Scenario("send", measure_send, variants(reliable=True)),
    Scenario("send_many", measure_send_many, variants(reliable=True, in_flight=64)),
    Scenario("roundtrip", measure_roundtrip, variants(reliable=True)),
    Scenario("receive", measure_receive, variants(reliable=False, connections=RECEIVERS)),
    Scenario("receive_one", measure_receive, variants(reliable=False)),
]

BARS = [
    Threshold(
        key="grpc_vs_echo",
        title="SendMessage, 64 under way",
        scenario="send_many",
        figure="msg_s",
        ours="ister_grpc",
        theirs=("echo",),
        limit=2.5,
    ),
    Threshold(
        key="grpc_reliable_vs_echo",
        title="SendMessage on the disk, 64 under way",
        scenario="send_many",
        figure="msg_s",
        ours="ister_grpc_reliable",
        theirs=("echo",),
        limit=2.0,
    ),
    Threshold(
        key="grpc_receive_vs_echo",
        title="ReceiveMessages, two receivers",
        scenario="receive",
        figure="msg_s",
        ours="ister_grpc",
        theirs=("echo",),
        limit=2.0,
    ),
    Threshold(
        key="grpc_receive_one_vs_echo",
        title="ReceiveMessages, one receiver",
        scenario="receive_one",
        figure="msg_s",
        ours="ister_grpc",
        theirs=("echo",),
    ),
    Threshold(
        key="grpc_send_p50_vs_echo",
        title="SendMessage, one at a time, p50",
        scenario="send",
        figure="p50_us",
        ours="ister_grpc",
        theirs=("echo",),
        limit=1.0,
    ),
    Threshold(
        key="grpc_reliable_p50_vs_echo_and_fsync",
        title="SendMessage on the disk, p50; the echo and 1.5 syncs",
        scenario="send",
        figure="p50_us",
        ours="ister_grpc_reliable",
        theirs=("echo",),
        limit=1.0,
        allowance=(1.5, "fsync_p50_us"),
    ),
    Threshold(
        key="grpc_roundtrip_p50_vs_echo",
        title="SendMessage → ReceiveMessages, p50",
        scenario="roundtrip",
        figure="p50_us",
        ours="ister_grpc",
        theirs=("echo",),
    ),
]

TARGETS = [
    Target(
        key="grpc_broker_cpu_us_per_message",
        figure="broker_cpu_us",
        title="the broker's processor time for a message",
        scenario="send_many",
        unit="µs",
        limit=110.0,
        variant="ister_grpc",
        scale="echo",
    ),
    Target(
        key="grpc_broker_cpu_us_per_delivery",
        figure="broker_cpu_us",
        title="the broker's processor time for a delivery",
        scenario="receive",
        unit="µs",
        limit=25.0,
        variant="ister_grpc",
        scale="echo",
    ),
]

RECORDED = {
    "echo_broker_cpu_us_per_message": ("send_many", "echo", "broker_cpu_us"),
    "echo_broker_cpu_us_per_delivery": ("receive", "echo", "broker_cpu_us"),
    "grpc_reliable_p50_us": ("send", "ister_grpc_reliable", "p50_us"),
    "fsync_p50_us": ("send", "ister_grpc_reliable", "fsync_p50_us"),
}

GRPC = Promises(thresholds=BARS, targets=TARGETS, recorded=RECORDED)
