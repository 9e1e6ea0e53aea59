"""What is measured of live topics, and how each contender does it."""

from __future__ import annotations

import time

from bench.harness.job import Figures
from bench.harness.processes import BenchError, resident_mb
from bench.harness.scenarios import Run, Scenario, Variant, drain, sample

IDLE_SETTLE_S = 1.0
TOPIC_COUNT = 10_000
CONNECTION_COUNT = 1_000


def measure_flow(run: Run) -> Figures:
    """Producer process → broker → consumer process: what arrives per second, and what is lost."""
    job = run.job()
    with run.worker("consume", job) as consumer:
        consumer.wait_ready()
        with run.worker("produce", job) as producer:
            producer.wait_ready()
            figures = sample(run, {"producer": producer, "consumer": consumer})
            run.counters.stop()
            producer.finish()
        drain(run.counters)
        seen = consumer.stop()
    received = int(seen["received"])
    # A consumer that reads payloads must have read them whole; one that only counts reports 0.
    if seen.get("size_bytes", 0) not in (0, received * job.payload_bytes):
        raise BenchError(f"{received} messages had {seen['size_bytes']} B of payload in all")
    figures["mb_s"] = figures["msg_s"] * job.payload_bytes / 1e6
    figures["dropped"] = run.counters.sent * job.fan - received
    return figures


def measure_relay_flow(run: Run) -> Figures:
    """As `measure_flow`; the relay knows bytes, not messages."""
    figures = measure_flow(run)
    if run.variant.contender == "relay":
        figures["mb_s"] = figures["msg_s"] / 1e6
        figures["msg_s"] /= run.job().payload_bytes
        del figures["broker_cpu_us"]
    return figures


def measure_roundtrip(run: Run) -> Figures:
    """One client process, publish → receive, one at a time."""
    with run.worker("roundtrip", run.job()) as client:
        client.wait_ready()
        return client.finish()


def measure_request(run: Run) -> Figures:
    """Requester process → broker → responder process and back: latency, or rate with many."""
    job = run.job()
    with run.worker("respond", job) as responder:
        responder.wait_ready()
        with run.worker("request", job) as requester:
            requester.wait_ready()
            if job.in_flight == 1:
                return requester.finish()
            figures = sample(run, {"requester": requester, "responder": responder})
            run.counters.stop()
            requester.finish()
            return figures


def measure_connections(run: Run) -> Figures:
    """Many connections in one process, each publishing one message at a time with an answer."""
    with run.worker("publish_acked", run.job()) as client:
        client.wait_ready()
        figures = sample(run, {"client": client})
        run.counters.stop()
        client.finish()
    return figures


def measure_start(run: Run) -> Figures:
    """Start-up time, and resident memory once start-up work has settled."""
    time.sleep(IDLE_SETTLE_S)
    return {"ready_s": run.broker.ready_s, "idle_mb": resident_mb(run.broker.pid)}


def measure_memory(run: Run) -> Figures:
    """Resident memory with many topics, then with many idle connections as well."""
    pid = run.broker.pid
    time.sleep(IDLE_SETTLE_S)
    figures = {"idle_mb": resident_mb(pid)}
    with run.worker("crowd", run.job(topics=TOPIC_COUNT, connections=0)) as topics:
        topics.wait_ready()
        time.sleep(IDLE_SETTLE_S)
        figures["topics_10k_mb"] = resident_mb(pid)
        with run.worker("crowd", run.job(topics=0, connections=CONNECTION_COUNT)) as connections:
            connections.wait_ready()
            time.sleep(IDLE_SETTLE_S)
            figures["topics_10k_connections_1k_mb"] = resident_mb(pid)
    return figures


def variant(contender: str, mode: str = "", settings: dict[str, int] | None = None) -> Variant:
    """Return a way of doing a job whose client processes are of the contender's own module."""
    return Variant(contender, mode, settings or {}, client=f"live.{contender}")


# Each contender gets the chunk and the distance at which it was fastest (tried: chunks of 32 …
# 4,096, distances of 4,096 … 65,536). nats-py keeps every message of the distance as an object, so
# more of them only feed its garbage collector. Ister at 2.5 M msg/s makes 2,500 messages in the 1
# ms nap of a waiting producer; 16,384 hide such a nap.
NATS_FLOW = {"chunk": 256, "distance_max": 8_192}
ISTER_FLOW = {"chunk": 1_024, "distance_max": 16_384}
ISTER_BATCH_FLOW = {"chunk": 4_096, "distance_max": 65_536}
# The relay is quickest with 256 KiB per write, what uvloop reads at once; Ister with twice that,
# a batch as its client makes it. The relay needs no distance, TCP's own backpressure reaches
# from its consumer to its producer.
RELAY_FLOW_1K = {"chunk": 256, "payload_bytes": 1024}
ISTER_FLOW_1K = {"chunk": 512, "payload_bytes": 1024, "distance_max": 8_192}

SCENARIOS = [
    Scenario(
        "throughput",
        measure_flow,
        [
            variant("nats", "callback", NATS_FLOW),
            variant("ister", "messages", ISTER_FLOW),
            variant("nats", "iterator", NATS_FLOW),
            variant("ister", "batches", ISTER_BATCH_FLOW),
            variant("ister", "columns", ISTER_BATCH_FLOW),
        ],
    ),
    Scenario(
        "relay",
        measure_relay_flow,
        [variant("relay", "", RELAY_FLOW_1K), variant("ister", "columns", ISTER_FLOW_1K)],
    ),
    Scenario(
        "roundtrip",
        measure_roundtrip,
        [variant("nats", "callback"), variant("ister"), variant("nats", "iterator")],
    ),
    Scenario("request", measure_request, [variant("nats"), variant("ister")]),
    Scenario(
        "request_100",
        measure_request,
        [variant("nats", "", {"in_flight": 100}), variant("ister", "", {"in_flight": 100})],
    ),
    Scenario(
        "connections",
        measure_connections,
        [variant("nats", "", {"connections": 200}), variant("ister", "", {"connections": 200})],
    ),
    Scenario(
        "fanout",
        measure_flow,
        [
            variant("nats", "callback", {**NATS_FLOW, "fan": 10}),
            variant("ister", "messages", {**ISTER_FLOW, "fan": 10}),
        ],
    ),
    Scenario("start", measure_start, [variant("nats"), variant("ister")]),
    Scenario("memory", measure_memory, [variant("nats"), variant("ister")], once=True),
]
