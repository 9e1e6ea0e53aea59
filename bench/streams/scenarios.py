"""What is measured about stored data: the variants of each threshold and how one is run once.

Every run has a home of its own on the disk, removed before the next one starts; where filling it
takes long (`stocked`) all runs of a scenario share one and the broker is started anew on it. Then
what a run reads was written by a process that is gone: nothing comes from a broker's memory.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness.brokers import starter_of
from bench.harness.counters import Counters
from bench.harness.disk import evict, files_of, settle, warm
from bench.harness.job import Figures, Job
from bench.harness.processes import BenchError, cpu_s, peak_mb, tail, worker
from bench.harness.rounds import note
from bench.harness.scenarios import Run, Variant, drain, sample

# Generous: a slow disk takes minutes for the largest filling.
LONG_S = 1_800.0
KIB = 1024
# The default of `Job`.
PAYLOAD_BYTES = 100
TOPIC_COUNT = 1_000
STORED_TOPICS = 8
# A journal entry of one 100-byte message: 40 B header, 64 B batch header, 128 B of columns with
# a producer's name of up to 16 letters, 8 B of padding at most.
ENTRY_BYTES = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much the scenarios that count messages, not seconds, work through.

    JetStream gets a tenth: at its rate that still takes seconds, and all of it would take minutes.
    """

    ack_count: int = 1_000_000
    replay_count: int = 5_000_000
    reader_count: int = 1_000_000
    stored_bytes: int = 10_000_000_000

    def count_for(self, variant: Variant, count: int) -> int:
        """Return the share of `count` that the variant works through."""
        return count // 10 if variant.contender.startswith("jetstream") else count


QUICK = Sizes(
    ack_count=100_000, replay_count=300_000, reader_count=100_000, stored_bytes=300_000_000
)


class Stage:
    """Where one scenario runs: a folder on the disk, how long and how much, and filled homes."""

    def __init__(self, folder: Path, *, seconds: float, sizes: Sizes) -> None:
        self.folder = folder
        self.seconds = seconds
        self.sizes = sizes
        self.homes: dict[str, Path] = {}

    def new_home(self, contender: str) -> Path:
        """Make an empty home for a broker."""
        home = self.folder / f"{contender}-{time.monotonic_ns()}"
        home.mkdir()
        return home

    @contextmanager
    def fresh(self, variant: Variant) -> Iterator[Run]:
        """Start a broker with nothing stored; its home is gone afterwards."""
        home = self.new_home(variant.contender)
        try:
            settle()
            with self.started(variant, home) as run:
                yield run
        finally:
            shutil.rmtree(home, ignore_errors=True)

    @contextmanager
    def started(self, variant: Variant, home: Path) -> Iterator[Run]:
        """Start a broker on `home`; a failure carries the broker's last words."""
        with starter_of(variant.contender)(home) as broker:
            try:
                yield Run(variant, broker, folder=home, seconds=self.seconds)
            except BenchError as error:
                raise BenchError(f"{error}\nbroker: {tail(broker.log)}") from error

    def stocked(
        self, variant: Variant, *, count: int, settings: dict[str, int] | None = None
    ) -> Path:
        """Return a home of the contender with `count` messages stored; fill it once."""
        home = self.homes.get(variant.contender)
        if home is None:
            home = self.new_home(variant.contender)
            note(f"  storing {count:,} messages for {variant.contender}")
            with self.started(variant, home) as run:
                store(run, count=count, settings=settings)
            check_on_disk(home, count * (settings or {}).get("payload_bytes", PAYLOAD_BYTES))
            settle()
            self.homes[variant.contender] = home
        return home

    def clear(self) -> None:
        """Remove the filled homes."""
        for home in self.homes.values():
            shutil.rmtree(home, ignore_errors=True)
        self.homes.clear()


@dataclass(frozen=True, slots=True)
class StreamScenario:
    """A named measurement over several variants."""

    name: str
    measure: Callable[[Stage, Variant], Figures]
    variants: list[Variant]
    # The contender whose stored data all variants read; without it there is nothing to measure.
    stock: str = ""


def measure_publish(stage: Stage, variant: Variant) -> Figures:
    """One producer process, pipelined: what is acknowledged per second."""
    with stage.fresh(variant) as run:
        job = run.job()
        with run.worker("publish", job) as producer:
            producer.wait_ready()
            figures = sample(run, {"producer": producer})
            run.counters.stop()
            seen = producer.finish()
        if seen["sent"] != seen["stored"]:
            raise BenchError(f"{seen['sent']:.0f} acknowledged, {seen['stored']:.0f} stored")
        if variant.contender == "ister":
            # JetStream may acknowledge before it has written anything.
            check_on_disk(run.folder, int(seen["sent"]) * job.payload_bytes)
        figures["mb_s"] = figures["msg_s"] * job.payload_bytes / 1e6
        figures["broker_mb"] = peak_mb(run.broker.pid)
    return figures


def measure_bytes(stage: Stage, variant: Variant) -> Figures:
    """As `measure_publish` with larger messages; the disk by itself for comparison."""
    if variant.contender != "disk":
        return without_rate(measure_publish(stage, variant))
    return on_disk(stage, "write")


def measure_single(stage: Stage, variant: Variant) -> Figures:
    """One durable write at a time: how long it takes."""
    if variant.contender == "disk":
        return on_disk(stage, "write_one", mode=variant.mode)
    with stage.fresh(variant) as run, run.worker("publish_one", run.job(chunk=1)) as client:
        client.wait_ready()
        figures = client.finish()
        figures["broker_mb"] = peak_mb(run.broker.pid)
    return figures


def measure_ack(stage: Stage, variant: Variant) -> Figures:
    """Consume what was stored before and acknowledge every message."""
    count = stage.sizes.count_for(variant, stage.sizes.ack_count)
    with stage.fresh(variant) as run:
        store(run, count=count)
        figures = run_to_end(run, "acks", run.job(count=count))
    if figures.pop("left"):
        raise BenchError("messages are left that were acknowledged")
    return figures


def measure_replay(stage: Stage, variant: Variant) -> Figures:
    """Read from the first message on, on a broker that has just started, from the disk."""
    count = stage.sizes.count_for(variant, stage.sizes.replay_count)
    home = stage.stocked(variant, count=count)
    evict(home / "data")
    with stage.started(variant, home) as run:
        job = run.job(count=count, subscription=f"replay-{time.monotonic_ns()}")
        figures = run_to_end(run, "replay", job)
    if figures.pop("size_bytes") != count * job.payload_bytes:
        raise BenchError(f"{count} messages did not arrive whole")
    return figures


def measure_reader(stage: Stage, variant: Variant) -> Figures:
    """Read a whole topic in batches on a broker that has just started; files in the page cache."""
    return read_stored(stage, variant, warm)


def measure_reader_cold(stage: Stage, variant: Variant) -> Figures:
    """As `measure_reader`, with nothing in the page cache."""
    return read_stored(stage, variant, evict)


def read_stored(stage: Stage, variant: Variant, prepare: Callable[[Path], object]) -> Figures:
    """Read what Ister stored, through it or as plain files, after `prepare` of the page cache."""
    count = stage.sizes.reader_count
    home = stage.stocked(ister(), count=count, settings=FILL_1K)
    prepare(home / "data")
    if variant.contender == "disk":
        return on_disk(stage, "read", address=str(home / "data"))
    with stage.started(variant, home) as run:
        figures = run_to_end(run, "read", run.job(payload_bytes=KIB))
    if figures["received"] != count or figures.pop("size_bytes") not in (0, count * KIB):
        raise BenchError(f"{figures['received']:.0f} of {count} messages read, or not whole")
    return figures


def measure_stored(stage: Stage, variant: Variant) -> Figures:
    """Publish → consume at the tail, with nothing or much stored; then two kinds of restart."""
    if variant.mode == "empty":
        with stage.fresh(variant) as run:
            return {"restart_s": run.broker.ready_s, **measure_tail(run)}
    # Whole shares, so that every topic gets all of its own.
    count = stage.sizes.stored_bytes // KIB // STORED_TOPICS * STORED_TOPICS
    home = stage.stocked(variant, count=count, settings={**FILL_1K, "topics": STORED_TOPICS})
    data = home / "data"
    stored_gb = on_disk_bytes(home) / 1e9
    evict(data)
    with stage.started(variant, home) as run:
        figures = {"restart_s": run.broker.ready_s, **measure_tail(run)}
        os.kill(run.broker.pid, signal.SIGKILL)
    evict(data)
    with stage.started(variant, home) as run:
        figures["restart_killed_s"] = run.broker.ready_s
    return {**figures, "stored_gb": stored_gb}


def measure_tail(run: Run) -> Figures:
    """Producer process → broker → consumer process, every message acknowledged."""
    # The first of the filled topics, so that the tail has a past when there is one.
    job = run.job(topic="/default/bench.0", subscription=f"tail-{time.monotonic_ns()}")
    with run.worker("consume", job) as consumer:
        consumer.wait_ready()
        with run.worker("produce", job) as producer:
            producer.wait_ready()
            figures = sample(run, {"producer": producer, "consumer": consumer})
            run.counters.stop()
            producer.finish()
        drain(run.counters)
        seen = consumer.stop()
    if seen["received"] != run.counters.sent:
        raise BenchError(f"{seen['received']:.0f} of {run.counters.sent} messages arrived")
    figures["broker_mb"] = peak_mb(run.broker.pid)
    return figures


def measure_topics(stage: Stage, variant: Variant) -> Figures:
    """One producer process that writes batches to one topic or to many."""
    with stage.fresh(variant) as run:
        with run.worker("publish_many", run.job()) as producer:
            producer.wait_ready()
            figures = sample(run, {"producer": producer})
            run.counters.stop()
            producer.finish()
        check_on_disk(run.folder, run.counters.received * PAYLOAD_BYTES)
        figures["broker_mb"] = peak_mb(run.broker.pid)
    return figures


def check_on_disk(home: Path, size_bytes: int) -> None:
    """Raise unless the broker of `home` has at least `size_bytes` in files.

    Random payloads cannot shrink, so a broker with less has not stored what it acknowledged.
    """
    found = on_disk_bytes(home)
    if found < size_bytes:
        raise BenchError(f"{found:,} B in files for {size_bytes:,} B of acknowledged payload")


def on_disk_bytes(home: Path) -> int:
    """Return how much the broker of `home` has in files."""
    return sum(path.stat().st_size for path in files_of(home / "data"))


def store(run: Run, *, count: int, settings: dict[str, int] | None = None) -> None:
    """Fill the broker of `run`, the quickest way its contender has."""
    job = run.job(mode="batches", count=count, **(settings or FILL[run.variant.contender]))
    with run.worker("fill", job) as client:
        client.wait_ready()
        stored = client.finish(timeout_s=LONG_S)["stored"]
    if stored != count:
        raise BenchError(f"{stored:.0f} of {count} messages stored")


def run_to_end(run: Run, role: str, job: Job) -> Figures:
    """Run a client that ends by itself, and add what its broker used meanwhile."""
    with run.worker(role, job) as client:
        client.wait_ready()
        began, used = time.perf_counter(), cpu_s(run.broker.pid)
        figures = client.finish(timeout_s=LONG_S)
        figures["broker_cpu"] = (cpu_s(run.broker.pid) - used) / (time.perf_counter() - began)
    figures["broker_mb"] = peak_mb(run.broker.pid)
    return figures


def on_disk(stage: Stage, role: str, *, address: str = "", mode: str = "") -> Figures:
    """Run one loop on the plain disk in a process of its own."""
    settle()
    counters = Counters.create(stage.folder / f"board-{time.monotonic_ns()}")
    job = Job(
        address or str(stage.folder), mode=mode, seconds=stage.seconds, payload_bytes=ENTRY_BYTES
    )
    with worker("streams.plain_disk", role, counters, job, folder=stage.folder) as client:
        client.wait_ready()
        return client.finish(timeout_s=LONG_S)


def without_rate(figures: Figures) -> Figures:
    """Return figures whose main one is bytes, not messages."""
    return {name: value for name, value in figures.items() if name != "msg_s"}


def ister(mode: str = "", settings: dict[str, int] | None = None) -> Variant:
    """Return a variant of Ister's stream topics."""
    return Variant("ister", mode, settings or {}, client="streams.ister")


def jetstream(mode: str, settings: dict[str, int] | None = None, *, contender: str = "") -> Variant:
    """Return a variant of JetStream through nats-py."""
    return Variant(contender or "jetstream", mode, settings or {}, client="streams.jetstream")


# nats-py with 1,000 … 16,000 pending futures made 32 – 33 thousand messages a second, with 256,
# 1,024, 4,096 tasks 18, 21, 23 thousand.
JETSTREAM_FLOW = {"chunk": 256, "distance_max": 4_000, "in_flight": 4_096}
# A sync for each message makes 4,000 of them last longer than a quick run; fewer cost nothing.
JETSTREAM_FSYNC_FLOW = {"chunk": 64, "distance_max": 512}
# A group commit of 0.3 ms is 300 messages at a million a second: 64 chunks hide many of them.
ISTER_FLOW = {"chunk": 1_024, "distance_max": 65_536}
ISTER_BATCH_FLOW = {"chunk": 4_096, "distance_max": 131_072}
# Batches of half a MiB, 16 MiB on their way.
FILL_1K = {"chunk": 512, "distance_max": 16_384, "payload_bytes": KIB}
FILL = {"ister": ISTER_BATCH_FLOW, "jetstream": JETSTREAM_FLOW}
# 10 kB per batch and 10 MB on their way, whether in one topic or in many.
TOPICS_FLOW = {"chunk": 100, "in_flight": TOPIC_COUNT}

SCENARIOS = [
    StreamScenario(
        "publish",
        measure_publish,
        [
            jetstream("async", JETSTREAM_FLOW),
            ister("messages", ISTER_FLOW),
            jetstream("concurrent", JETSTREAM_FLOW),
            ister("batches", ISTER_BATCH_FLOW),
            jetstream("by_hand", JETSTREAM_FLOW),
            jetstream("async", JETSTREAM_FSYNC_FLOW, contender="jetstream_fsync"),
            jetstream("by_hand", JETSTREAM_FSYNC_FLOW, contender="jetstream_fsync"),
        ],
    ),
    StreamScenario("ack", measure_ack, [jetstream("pull"), ister(), jetstream("push")]),
    StreamScenario(
        "replay",
        measure_replay,
        [jetstream("ordered"), ister(), jetstream("iterator"), jetstream("pull")],
    ),
    StreamScenario(
        "reader",
        measure_reader,
        [Variant("disk"), ister("columns"), ister("payloads")],
        stock="ister",
    ),
    StreamScenario(
        "reader_cold", measure_reader_cold, [Variant("disk"), ister("columns")], stock="ister"
    ),
    StreamScenario("bytes", measure_bytes, [Variant("disk"), ister("batches", FILL_1K)]),
    StreamScenario(
        "single", measure_single, [Variant("disk", "append"), ister(), Variant("disk", "allocated")]
    ),
    StreamScenario(
        "stored", measure_stored, [ister("empty", ISTER_FLOW), ister("stored", ISTER_FLOW)]
    ),
    StreamScenario(
        "topics",
        measure_topics,
        [ister("1", {**TOPICS_FLOW, "topics": 1}), ister("1000", {**TOPICS_FLOW, "topics": 1_000})],
    ),
]
