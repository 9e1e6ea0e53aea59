"""What is measured of the gRPC door, and how one lane is run once."""

from __future__ import annotations

from dataclasses import replace

from bench.bars import Bar, Promises
from bench.job import Figures
from bench.processes import worker
from bench.scenarios import Lane, Run, Scenario, sample

TOPIC = "/default/bench"
# Of the bare server: whoever subscribes to it gets one message for ever.
FLOOD = "/default/flood"


def measure_send(run: Run) -> Figures:
    """One process, one message at a time: the latency of a send."""
    with run.worker("send", run.job(topic=TOPIC)) as client:
        client.wait_ready()
        return client.finish()


def measure_send_many(run: Run) -> Figures:
    """One process, many messages under way: sends per second."""
    with run.worker("send_many", run.job(topic=TOPIC)) as client:
        client.wait_ready()
        figures = sample(run, {"client": client})
        run.board.stop()
        client.finish()
    return figures


def measure_roundtrip(run: Run) -> Figures:
    """One process, send → receive, one at a time."""
    with run.worker("roundtrip", run.job(topic=TOPIC)) as client:
        client.wait_ready()
        return client.finish()


def measure_receive(run: Run) -> Figures:
    """Messages per second that a receiver takes; a native producer keeps Ister's topic full."""
    if run.lane.side == "echo":
        with run.worker("receive", run.job(topic=FLOOD)) as client:
            client.wait_ready()
            figures = sample(run, {"client": client})
            client.stop()
        return figures
    job = run.job(topic=TOPIC)
    feed = replace(job, address=run.broker.native, mode="batches", chunk=128, distance_max=1_024)
    with worker("ister", "produce", run.board, feed, folder=run.folder) as producer:
        producer.wait_ready()
        with run.worker("receive", job) as client:
            client.wait_ready()
            figures = sample(run, {"client": client})
            run.board.stop()
            client.stop()
        producer.finish()
    return figures


def lanes(*, reliable: bool, **settings: int) -> list[Lane]:
    """Return the bare server and the broker, both driven by Danube's client."""
    found = [Lane("echo", "", settings, "danube"), Lane("ister_grpc", "", settings, "danube")]
    return [*found, Lane("ister_grpc", "reliable", settings, "danube")] if reliable else found


SCENARIOS = [
    Scenario("send", measure_send, lanes(reliable=True)),
    Scenario("send_many", measure_send_many, lanes(reliable=True, in_flight=100)),
    Scenario("roundtrip", measure_roundtrip, lanes(reliable=True)),
    Scenario("receive", measure_receive, lanes(reliable=False)),
]

BARS = [
    Bar(
        key="grpc_vs_echo",
        title="SendMessage, 100 under way",
        scenario="send_many",
        figure="msg_s",
        ours="ister_grpc",
        theirs=("echo",),
        limit=0.7,
    ),
    Bar(
        key="grpc_receive_vs_echo",
        title="ReceiveMessages",
        scenario="receive",
        figure="msg_s",
        ours="ister_grpc",
        theirs=("echo",),
        limit=0.7,
    ),
    Bar(
        key="grpc_send_p50_vs_echo",
        title="SendMessage, one at a time, p50",
        scenario="send",
        figure="p50_us",
        ours="ister_grpc",
        theirs=("echo",),
        limit=1.43,
    ),
    Bar(
        key="grpc_roundtrip_p50_vs_echo",
        title="SendMessage → ReceiveMessages, p50",
        scenario="roundtrip",
        figure="p50_us",
        ours="ister_grpc",
        theirs=("echo",),
        limit=1.43,
    ),
    Bar(
        key="grpc_reliable_vs_echo",
        title="SendMessage on the disk, 100 under way",
        scenario="send_many",
        figure="msg_s",
        ours="ister_grpc_reliable",
        theirs=("echo",),
    ),
    Bar(
        key="grpc_reliable_p50_vs_echo",
        title="SendMessage on the disk, p50",
        scenario="send",
        figure="p50_us",
        ours="ister_grpc_reliable",
        theirs=("echo",),
    ),
]

RECORDED = {
    "grpc_broker_cpu_us_per_message": ("send_many", "ister_grpc", "broker_cpu_us"),
    "echo_broker_cpu_us_per_message": ("send_many", "echo", "broker_cpu_us"),
    "grpc_broker_cpu_us_per_delivery": ("receive", "ister_grpc", "broker_cpu_us"),
    "echo_broker_cpu_us_per_delivery": ("receive", "echo", "broker_cpu_us"),
}

GRPC = Promises(bars=BARS, recorded=RECORDED)
