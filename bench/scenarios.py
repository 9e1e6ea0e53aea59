"""What is measured: for each bar the lanes to compare and how one lane is run once.

A lane is one way of doing the job (a side, and the API it is used through). Every run of a lane
gets a fresh broker and fresh client processes, so no run inherits another's heap or backlog.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.board import Board
from bench.brokers import Broker, start_broker
from bench.job import Figures, Job
from bench.processes import BenchError, Worker, cpu_s, resident_mb, tail, worker

WARMUP_S = 0.4
# A consumer whose count has not moved for this long has everything it will get.
QUIET_S = 0.2
DRAIN_TIMEOUT_S = 5.0
IDLE_SETTLE_S = 1.0
TOPIC_COUNT = 10_000
CONNECTION_COUNT = 1_000


@dataclass(frozen=True, slots=True)
class Lane:
    """One way of doing a scenario's job; `settings` are fields of `Job`."""

    side: str
    mode: str = ""
    settings: dict[str, int] = field(default_factory=dict)
    # The module of the client processes, `bench.<client>_side`; empty: the side's own.
    client: str = ""

    @property
    def key(self) -> str:
        """The name of the lane in the results."""
        return f"{self.side}_{self.mode}" if self.mode else self.side


class Run:
    """One run of one lane: its broker, its counters and the folder for its files."""

    def __init__(self, lane: Lane, broker: Broker, *, folder: Path, seconds: float) -> None:
        self.lane = lane
        self.broker = broker
        self.folder = folder
        self.seconds = seconds
        self.board = Board.create(folder / f"board-{time.monotonic_ns()}")

    def job(self, **settings: Any) -> Job:
        """Return the job of this lane, with `settings` over the lane's own."""
        fields = {
            "topic": "/default/bench" if self.lane.side == "ister" else "bench",
            "mode": self.lane.mode,
            "seconds": self.seconds,
        }
        return Job(self.broker.address, **{**fields, **self.lane.settings, **settings})

    def worker(self, role: str, job: Job) -> AbstractContextManager[Worker]:
        """Start one client process of this lane."""
        client = self.lane.client or self.lane.side
        return worker(client, role, self.board, job, folder=self.folder)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named measurement over several lanes."""

    name: str
    measure: Callable[[Run], Figures]
    lanes: list[Lane]
    # Slow scenarios whose figures hardly vary are run once, however many repeats are asked for.
    once: bool = False


def run_lane(scenario: Scenario, lane: Lane, *, folder: Path, seconds: float) -> Figures:
    """Measure one lane once, on a broker of its own; a failure carries the broker's last words."""
    with start_broker(lane.side, folder) as broker:
        try:
            return scenario.measure(Run(lane, broker, folder=folder, seconds=seconds))
        except BenchError as error:
            raise BenchError(f"{error}\nbroker: {tail(broker.log)}") from error


def measure_flow(run: Run) -> Figures:
    """Producer process → broker → consumer process: what arrives per second, and what is lost."""
    job = run.job()
    with run.worker("consume", job) as consumer:
        consumer.wait_ready()
        with run.worker("produce", job) as producer:
            producer.wait_ready()
            figures = sample(run, {"producer": producer, "consumer": consumer})
            run.board.stop()
            producer.finish()
        drain(run.board)
        seen = consumer.stop()
    received = int(seen["received"])
    # A consumer that reads payloads must have read them whole; one that only counts reports 0.
    if seen.get("size_bytes", 0) not in (0, received * job.payload_bytes):
        raise BenchError(f"{received} messages had {seen['size_bytes']} B of payload in all")
    figures["mb_s"] = figures["msg_s"] * job.payload_bytes / 1e6
    figures["dropped"] = run.board.sent * job.fan - received
    return figures


def measure_relay_flow(run: Run) -> Figures:
    """As `measure_flow`; the relay knows bytes, not messages."""
    figures = measure_flow(run)
    if run.lane.side == "relay":
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
            run.board.stop()
            requester.finish()
            return figures


def measure_connections(run: Run) -> Figures:
    """Many connections in one process, each publishing one message at a time with an answer."""
    with run.worker("publish_acked", run.job()) as client:
        client.wait_ready()
        figures = sample(run, {"client": client})
        run.board.stop()
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


def sample(
    run: Run, clients: dict[str, Worker], *, boards: Sequence[Board] | None = None
) -> Figures:
    """Read every process's CPU clock and the board twice and return the rates in between.

    Of several `boards` in its place, the rate is that of all of them together.
    """
    boards = boards or [run.board]

    def received() -> int:
        return sum(board.received for board in boards)

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


def drain(board: Board) -> None:
    """Wait until the consumer has received what was still on its way."""
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    seen = -1
    while seen != board.received and time.monotonic() < deadline:
        seen = board.received
        time.sleep(QUIET_S)


# Each side gets the chunk and the distance at which it was fastest (tried: chunks of 32 … 4,096,
# distances of 4,096 … 65,536). nats-py keeps every message of the distance as an object, so more
# of them only feed its garbage collector. Ister at 2.5 M msg/s makes 2,500 messages in the 1 ms
# nap of a waiting producer; 16,384 hide such a nap.
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
            Lane("nats", "callback", NATS_FLOW),
            Lane("ister", "messages", ISTER_FLOW),
            Lane("nats", "iterator", NATS_FLOW),
            Lane("ister", "batches", ISTER_BATCH_FLOW),
            Lane("ister", "columns", ISTER_BATCH_FLOW),
        ],
    ),
    Scenario(
        "relay",
        measure_relay_flow,
        [Lane("relay", "", RELAY_FLOW_1K), Lane("ister", "columns", ISTER_FLOW_1K)],
    ),
    Scenario(
        "roundtrip",
        measure_roundtrip,
        [Lane("nats", "callback"), Lane("ister"), Lane("nats", "iterator")],
    ),
    Scenario("request", measure_request, [Lane("nats"), Lane("ister")]),
    Scenario(
        "request_100",
        measure_request,
        [Lane("nats", "", {"in_flight": 100}), Lane("ister", "", {"in_flight": 100})],
    ),
    Scenario(
        "connections",
        measure_connections,
        [Lane("nats", "", {"connections": 200}), Lane("ister", "", {"connections": 200})],
    ),
    Scenario(
        "fanout",
        measure_flow,
        [
            Lane("nats", "callback", {**NATS_FLOW, "fan": 10}),
            Lane("ister", "messages", {**ISTER_FLOW, "fan": 10}),
        ],
    ),
    Scenario("start", measure_start, [Lane("nats"), Lane("ister")]),
    Scenario("memory", measure_memory, [Lane("nats"), Lane("ister")], once=True),
]
