"""What is measured about timelines: the variants of each threshold and how one variant is run once.

Four consumers are two processes with two each: at 5,000 messages a second all of them together
took less than half of a core, so that none is near its limit, and two cores have the broker to
run as well. What each contender used is printed (`broker_cpu`, `consumers_cpu`).
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.harness.brokers import Broker, starter_of
from bench.harness.counters import Counters
from bench.harness.disk import settle
from bench.harness.job import Figures, Job, percentiles
from bench.harness.processes import BenchError, Worker, cpu_s, resident_mb, tail, worker
from bench.harness.rounds import note
from bench.timeline.ister import AHEAD_S, PER_MS
from bench.timeline.samples import Deliveries, deliveries, load
from ister.timeline import FILE_NAME, Put, SqliteStore, Work

TOPIC = {"ister": "/default/bench", "jetstream": "bench"}
# The module of the client processes, below `bench`.
CLIENT = {"ister": "timeline.ister", "jetstream": "timeline.nats"}

CONSUMER_PROCESSES = 2
CONSUMERS_EACH = 2
PUT_PROCESSES = 1
POLL_S = 0.02
# Messages are put before the first of them is due, at no less than this rate; both contenders and a
# slow disk need some seconds more.
FILL_RATE_MIN = 6_000
LEAD_S = 2.0
# Of setting timers, all of them before the first one fires.
TIMER_RATE_MIN = 50_000
# All were due by then, and nothing came for that long: something is lost.
LATE_S = 60.0
LONG_S = 300.0
SPREAD_MS = 30 * 24 * 3_600_000
FSYNC_BYTES = 4_096
NOTE_EVERY = 200_000
STORE_CHUNK = 20_000

PUT_FLOW: dict[str, Any] = {"chunk": 2_000, "in_flight": 4}
TRANSACTION_COUNT = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How long and how much."""

    lateness_s: int = 30
    burst_count: int = 100_000
    # About as long as a burst takes: what else the machine does happens in both.
    idle_s: float = 12.0
    lease_count: int = 100_000
    waiting_count: int = 5_000_000
    # Lateness beside them: shorter, since it is measured again and again.
    waiting_s: int = 10
    seconds: float = 3.0


QUICK = Sizes(
    lateness_s=5,
    burst_count=20_000,
    idle_s=3.0,
    lease_count=10_000,
    waiting_count=500_000,
    waiting_s=2,
    seconds=1.0,
)


class Stage:
    """Where scenarios run: a folder on the disk, how much, and the home with waiting messages."""

    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self.folder = folder
        self.sizes = sizes
        self.stocked: Path | None = None

    @contextmanager
    def fresh(self, contender: str) -> Iterator[Run]:
        """Start a broker with nothing stored, and make the topics."""
        settle()
        home = self.folder / f"{contender}-{time.monotonic_ns()}"
        home.mkdir()
        try:
            with starter_of(contender)(home) as broker:
                run = Run(broker, self.folder)
                with run.told():
                    run.to_end("create", run.job())
                    yield run
        finally:
            shutil.rmtree(home, ignore_errors=True)

    @contextmanager
    def waiting(self) -> Iterator[Run]:
        """Start a broker on the home with many messages that wait, filled only once."""
        if self.stocked is None:
            self.stocked = self.folder / "waiting"
            self.stocked.mkdir()
            with starter_of("ister")(self.stocked) as broker:
                run = Run(broker, self.folder)
                run.to_end("create", run.job())
            stock(self.stocked / "data" / FILE_NAME, self.sizes.waiting_count)
        settle()
        with starter_of("ister")(self.stocked) as broker:
            run = Run(broker, self.folder)
            with run.told():
                yield run


class Run:
    """One broker and the client processes beside it."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder

    @contextmanager
    def told(self) -> Iterator[None]:
        """Have a failure carry the broker's last words."""
        try:
            yield
        except BenchError as error:
            raise BenchError(f"{error}\nbroker: {tail(self.broker.log)}") from error

    def job(self, *, topic: str = "", **settings: Any) -> Job:
        """Return a job for clients of this broker."""
        return Job(self.broker.address, topic or TOPIC[self.broker.contender], **settings)

    @contextmanager
    def worker(self, role: str, job: Job) -> Iterator[tuple[Counters, Worker]]:
        """Start a client with counters of its own."""
        with alone(CLIENT[self.broker.contender], role, job, self.folder) as (counters, client):
            yield counters, client

    def to_end(self, role: str, job: Job) -> Figures:
        """Run a client that ends by itself."""
        with self.worker(role, job) as (_, client):
            client.wait_ready()
            return client.finish(timeout_s=LONG_S)

    def fill(self, count: int, mode: str, *, lead_s: float) -> Figures:
        """Put messages that are due from `lead_s` on; raise when that was not enough time."""
        job = self.job(mode=mode, count=count, seconds=lead_s)
        figures = self.to_end("fill", job)
        if lead_s and figures["spare_s"] < 1.0:
            raise BenchError(f"{count} messages were not put within {lead_s:.0f} s")
        return figures

    @contextmanager
    def consumers(self) -> Iterator[Consumers]:
        """Start the processes of the consumers; they begin when they are told."""
        with ExitStack() as stack:
            job = self.job(connections=CONSUMERS_EACH)
            pairs = [
                stack.enter_context(self.worker("consume", job)) for _ in range(CONSUMER_PROCESSES)
            ]
            for _, client in pairs:
                client.wait_ready()
            yield Consumers(pairs)


class Consumers:
    """The processes that messages are handed to."""

    def __init__(self, pairs: Sequence[tuple[Counters, Worker]]) -> None:
        self.counters = [counters for counters, _ in pairs]
        self.workers = [client for _, client in pairs]
        # When the last of them ended, and what all have used of processors since they began.
        self.ended_ns = 0
        self.used_s = 0.0

    def begin(self) -> int:
        """Have all of them start; return when that was."""
        for counters in self.counters:
            counters.sent = 1
        return time.time_ns()

    def finish(self, count: int, *, timeout_s: float) -> Deliveries:
        """Wait until `count` messages were handed over, stop, and return how it went."""
        deadline = time.monotonic() + timeout_s
        while sum(counters.received for counters in self.counters) < count:
            for client in self.workers:
                client.check()
            if time.monotonic() > deadline:
                break  # What is missing is told below.
            time.sleep(POLL_S)
        ends = [client.stop() for client in self.workers]
        self.ended_ns = int(max(end["ended_ns"] for end in ends))
        self.used_s = sum(end.get("cpu_s", 0.0) for end in ends)
        return deliveries(self.counters, count)

    def cpu_s(self) -> float:
        """Return the processor time of all so far."""
        return sum(client.cpu_s() for client in self.workers)


@contextmanager
def alone(contender: str, role: str, job: Job, folder: Path) -> Iterator[tuple[Counters, Worker]]:
    """Run a process with counters of its own."""
    counters = Counters.create(folder / f"board-{time.monotonic_ns()}")
    with worker(contender, role, counters, job, folder=folder) as client:
        yield counters, client


def lead_for(count: int) -> float:
    """Return how long before the first of `count` messages is due they have to be put."""
    return LEAD_S + count / FILL_RATE_MIN


@dataclass(frozen=True, slots=True)
class Variant:
    """One way of doing a scenario's job."""

    key: str
    measure: Callable[[Stage], Figures]
    # What has to be among the chosen contenders.
    contender: str = "ister"


@dataclass(frozen=True, slots=True)
class TimelineScenario:
    """A named measurement over several variants."""

    name: str
    variants: list[Variant] = field(default_factory=list)
    # Of what takes long, or has so many samples that another run would show the same.
    repeats_max: int = 9


# How late


def measure_lateness(stage: Stage) -> Figures:
    """5,000 due messages a second."""
    with stage.fresh("ister") as run:
        return lateness(run, stage.sizes.lateness_s)


def measure_nats_lateness(stage: Stage) -> Figures:
    """The same in NATS."""
    with stage.fresh("jetstream") as run:
        return lateness(run, stage.sizes.lateness_s)


def measure_timers(stage: Stage) -> Figures:
    """The same as timers of an event loop, which has nothing else to do."""
    count = stage.sizes.lateness_s * 1000 * PER_MS
    job = Job("", count=count, seconds=LEAD_S + count / TIMER_RATE_MIN)
    with alone("timeline.floor", "call_at", job, stage.folder) as (counters, client):
        client.wait_ready()
        timers = Consumers([(counters, client)])
        return late_figures(timers.finish(count, timeout_s=stage.sizes.lateness_s + LATE_S))


def lateness(run: Run, seconds: int) -> Figures:
    """Put messages, hand each over when it is due, and say how much later that was."""
    count = seconds * 1000 * PER_MS
    with run.consumers() as consumers:
        consumers.begin()
        spare_s = run.fill(count, "spread", lead_s=lead_for(count))["spare_s"]
        time.sleep(max(0.0, spare_s - 0.5))
        began, used = time.perf_counter(), (cpu_s(run.broker.pid), consumers.cpu_s())
        time.sleep(seconds)
        elapsed = time.perf_counter() - began
        shares = cpu_s(run.broker.pid) - used[0], consumers.cpu_s() - used[1]
        figures = late_figures(consumers.finish(count, timeout_s=LATE_S))
    figures["broker_cpu"], figures["consumers_cpu"] = (share / elapsed for share in shares)
    return figures


def late_figures(seen: Deliveries) -> Figures:
    """Return what is said about lateness."""
    late = percentiles(seen.lateness_ns)
    return {
        **late,
        "lateness_p50_ms": late["p50_us"] / 1000,
        "lateness_p99_ms": late["p99_us"] / 1000,
        "lateness_max_ms": seen.lateness_ns[-1] / 1e6,
        "early_count": seen.early_count,
        "delivered": len(seen.lateness_ns),
    }


# All at once


def measure_burst(stage: Stage) -> Figures:
    """Everything due in the same millisecond, and what others of the broker notice of it."""
    count = stage.sizes.burst_count
    with stage.fresh("ister") as run, ExitStack() as stack:
        topics = {"stream": "/default/bench-stream", "live": "/default/bench-live"}
        publishers = {
            name: stack.enter_context(run.worker("publish", run.job(topic=topic)))
            for name, topic in topics.items()
        }
        consumers = stack.enter_context(run.consumers())
        for _, publisher in publishers.values():
            publisher.wait_ready()
        # They wait for messages in the idle time too: only the burst is to make a difference.
        consumers.begin()
        # The first second is for caches and connections.
        idle_from = time.time_ns() + 1_000_000_000
        time.sleep(1.0 + stage.sizes.idle_s)
        idle_to = time.time_ns()
        filled = run.fill(count, "same", lead_s=lead_for(count))
        seen = consumers.finish(count, timeout_s=filled["spare_s"] + LATE_S)
        due_ns = int(filled["start_ms"]) * 1_000_000
        figures = {
            "drain_per_s": count / ((seen.last_ns - due_ns) / 1e9),
            "burst_s": (seen.last_ns - due_ns) / 1e9,
            "burst_early_count": seen.early_count,
        }
        for name, (counters, publisher) in publishers.items():
            publisher.stop()
            idle = publish_p99(counters, idle_from, idle_to)
            busy = publish_p99(counters, due_ns, seen.last_ns)
            figures[f"{name}_idle_p99_us"] = idle
            figures[f"{name}_burst_p99_us"] = busy
            figures[f"burst_{name}_p99_ratio"] = busy / idle
    worst = max(figures[f"burst_{name}_p99_ratio"] for name in topics)
    return {**figures, "burst_publish_p99_ratio": worst}


def publish_p99(counters: Counters, start_ns: int, end_ns: int) -> float:
    """Return the 99th percentile of what was sent from `start_ns` up to before `end_ns`."""
    took = [done - sent for _, sent, done in load(counters) if start_ns <= sent < end_ns]
    if not took:
        raise BenchError("nothing was published meanwhile: the burst was too short")
    return percentiles(took)["p99_us"]


# Putting


def measure_put(stage: Stage) -> Figures:
    """Lists of messages, acknowledged on disk; ids from the client."""
    with stage.fresh("ister") as run:
        return put(run, stage.sizes.seconds)


def measure_put_natural(stage: Stage) -> Figures:
    """The same with ids from the application."""
    with stage.fresh("ister") as run:
        return put(run, stage.sizes.seconds, mode="natural")


def put(run: Run, seconds: float, mode: str = "") -> Figures:
    """Put as fast as it goes."""
    with ExitStack() as stack:
        job = run.job(mode=mode, seconds=seconds, **PUT_FLOW)
        pairs = [stack.enter_context(run.worker("put", job)) for _ in range(PUT_PROCESSES)]
        for _, client in pairs:
            client.wait_ready()
        began, used = time.perf_counter(), cpu_s(run.broker.pid)
        for counters, _ in pairs:
            counters.sent = 1
        ends = [client.finish(timeout_s=LONG_S) for _, client in pairs]
        broker_cpu = (cpu_s(run.broker.pid) - used) / (time.perf_counter() - began)
    rate = sum(end["msg_s"] for end in ends)
    return {
        "msg_s": rate,
        "put_per_s": rate,
        "broker_cpu": broker_cpu,
        "producers_cpu": sum(end["cpu"] for end in ends),
    }


def measure_executemany(stage: Stage) -> Figures:
    """The same rows in a plain table, a transaction per 1,000."""
    home = stage.folder / f"plain-{time.monotonic_ns()}"
    home.mkdir()
    settle()
    try:
        job = Job(str(home), seconds=stage.sizes.seconds, chunk=TRANSACTION_COUNT)
        with alone("timeline.floor", "executemany", job, stage.folder) as (_, client):
            client.wait_ready()
            return client.finish(timeout_s=LONG_S)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def measure_single(stage: Stage) -> Figures:
    """One put at a time."""
    with stage.fresh("ister") as run:
        return run.to_end("put_one", run.job(seconds=stage.sizes.seconds))


def measure_fsync(stage: Stage) -> Figures:
    """One append at a time."""
    settle()
    job = Job(str(stage.folder), seconds=stage.sizes.seconds, payload_bytes=FSYNC_BYTES)
    with alone("streams.plain_disk", "write_one", job, stage.folder) as (_, client):
        client.wait_ready()
        return client.finish(timeout_s=LONG_S)


# Leasing


def measure_lease(stage: Stage) -> Figures:
    """Messages that are due already: leased and done, each."""
    with stage.fresh("ister") as run:
        return lease_done(run, stage.sizes.lease_count)


def lease_done(run: Run, count: int) -> Figures:
    """Have the consumers deal with `count` messages."""
    run.fill(count, "due", lead_s=0.0)
    with run.consumers() as consumers:
        used = cpu_s(run.broker.pid)
        began_ns = consumers.begin()
        consumers.finish(count, timeout_s=LATE_S)
        elapsed = (consumers.ended_ns - began_ns) / 1e9
        broker_cpu = (cpu_s(run.broker.pid) - used) / elapsed
    if left := run.to_end("left", run.job())["left"]:
        raise BenchError(f"{left:.0f} messages are left that were done")
    return {
        "lease_done_per_s": count / elapsed,
        "broker_cpu": broker_cpu,
        "consumers_cpu": consumers.used_s / elapsed,
    }


# Beside many that wait


def measure_beside_none(stage: Stage) -> Figures:
    """Everything from above in an empty topic."""
    with stage.fresh("ister") as run:
        return everything(run, stage.sizes)


def measure_beside_many(stage: Stage) -> Figures:
    """The same in a topic where many wait."""
    with stage.waiting() as run:
        return everything(run, stage.sizes)


def everything(run: Run, sizes: Sizes) -> Figures:
    """Put, lease and be on time, on one broker; what it has in memory after that."""
    put_rate = put(run, sizes.seconds)["put_per_s"]
    lease_rate = lease_done(run, sizes.lease_count)["lease_done_per_s"]
    late = lateness(run, sizes.waiting_s)
    return {
        "put_per_s": put_rate,
        "lease_done_per_s": lease_rate,
        "p50_us": late["p50_us"],
        "p99_us": late["p99_us"],
        "early_count": late["early_count"],
        "broker_mb": resident_mb(run.broker.pid),
    }


def stock(file: Path, count: int) -> None:
    """Have `count` messages wait in the store of a broker that is not running.

    Due behind all that is measured, up to 30 days from now, and in that order: as they would
    be stored by somebody who always asks for the same delay.
    """
    store = SqliteStore(file)
    topic = next(row.number for row in store.topics() if row.name == TOPIC["ister"])
    now_ms = time.time_ns() // 1_000_000
    first_ms = now_ms + int(AHEAD_S * 1000)
    step = (SPREAD_MS - int(AHEAD_S * 1000)) / count
    payload = bytes(range(100))
    try:
        for start in range(0, count, STORE_CHUNK):
            if not start % NOTE_EVERY:
                note(f"  {start:,} of {count:,} messages wait")
            puts: list[Put] = [
                Put(topic, f"stock-{number:010}", "", first_ms + int(number * step), payload)
                for number in range(start, min(start + STORE_CHUNK, count))
            ]
            store.apply(now_ms, [Work([*puts])])
    finally:
        store.close()


SCENARIOS = [
    TimelineScenario(
        "lateness",
        [
            Variant("ister", measure_lateness),
            Variant("nats", measure_nats_lateness, "nats"),
            Variant("call_at", measure_timers, "floor"),
        ],
        repeats_max=1,
    ),
    TimelineScenario("burst", [Variant("ister", measure_burst)]),
    TimelineScenario(
        "put",
        [
            Variant("ister", measure_put),
            Variant("executemany", measure_executemany, "floor"),
            Variant("ister_natural", measure_put_natural),
        ],
    ),
    TimelineScenario(
        "single", [Variant("ister", measure_single), Variant("fsync", measure_fsync, "floor")]
    ),
    TimelineScenario("lease", [Variant("ister", measure_lease)]),
    TimelineScenario(
        "waiting",
        [Variant("none", measure_beside_none), Variant("many", measure_beside_many)],
        repeats_max=2,
    ),
]
