"""What the Spark benchmark measures: one session, one broker, one topic and its Parquet twin.

A streaming figure is rows of a micro-batch over the median time of one, without the first, which
compiles code. The Parquet files hold the very rows of the topic, written by Spark, half a million
in each; both contenders take a million rows in a micro-batch and have two tasks for them.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody calls it so

import ister
from bench.harness.job import Figures
from bench.harness.processes import BenchError

TOPIC = "/default/bench.rows"
PARTITIONS = 2
KEYS = 1_000
# Each row has a value of its own, as events do: of one for all, Parquet would keep a single copy.
PAYLOAD = b'{"order":%09d,"customer":"c-%06d","cents":%07d,"token":"%032x"}'
BATCH_ROWS = 1_000_000
SEND_AT_ONCE = 20_000
# 130 B a row; what is not asked for is neither read nor written, on either side.
SCHEMA = "partition int, offset long, publish_time timestamp, key string, payload binary"
QUERY_TIMEOUT_S = 300.0
# Micro-batches until the JVM has compiled what matters, once; and those of a query that begins.
WARM_BATCHES = 300
FIRST_BATCHES = 20
# Between an event's arrival and the next one, so that Spark has written its commit log by then and
# waits: events come at their own time, not at that of the micro-batches.
PAUSE_S = (0.1, 0.3)
# The floor's micro-batches begin as seldom as those of the events: back to back they would find
# every cache warm.
FLOOR_EVERY = "250 milliseconds"

# Planning a job takes a quarter of a second, whatever it reads.
SCAN_TIMES = 3


@dataclass(slots=True)
class Ground:
    """Where everything is."""

    spark: SparkSession
    url: str
    broker_pid: int
    folder: Path
    rows: int

    @property
    def parquet(self) -> str:
        """The twin of the topic."""
        return str(self.folder / "parquet")

    def checkpoint(self) -> str:
        """Return a folder for one query."""
        return str(self.folder / "checkpoints" / uuid.uuid4().hex)


def fill(url: str, rows: int) -> None:
    """Publish the rows, with keys, over the partitions."""
    asyncio.run(_fill(url, rows))


async def _fill(url: str, rows: int) -> None:
    keys = [f"k{number:08d}" for number in range(KEYS)]
    chance = random.Random(1)
    async with ister.connect(url) as client:
        await client.create_topic(TOPIC, kind="stream", partitions=PARTITIONS)
        async with client.producer(TOPIC, name="bench") as producer:
            for start in range(0, rows, SEND_AT_ONCE):
                for row in range(start, min(rows, start + SEND_AT_ONCE)):
                    token = chance.getrandbits(128)
                    payload = PAYLOAD % (row, token % 1_000_000, token % 9_999_999, token)
                    producer.send_nowait(payload, key=keys[row % KEYS])
                await producer.flush()


def make_parquet(ground: Ground) -> None:
    """Write the twin: files of half a million rows."""
    rows = read_batch(ground)
    rows.repartition(max(1, ground.rows * 2 // BATCH_ROWS)).write.parquet(ground.parquet)


def read_batch(ground: Ground, **options: Any) -> DataFrame:
    """Return the topic as it is."""
    return (
        ground.spark.read.schema(SCHEMA)
        .format("ister")
        .options(url=ground.url, topic=TOPIC, **options)
        .load()
    )


def read_parquet(ground: Ground) -> DataFrame:
    """Return the twin as it is."""
    return ground.spark.read.parquet(ground.parquet)


def read_stream(ground: Ground) -> DataFrame:
    """Return the topic as a stream from its beginning."""
    return (
        ground.spark.readStream.schema(SCHEMA)
        .format("ister")
        .options(
            url=ground.url,
            topic=TOPIC,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=BATCH_ROWS,
        )
        .load()
    )


def read_parquet_stream(ground: Ground) -> DataFrame:
    """Return the twin as a stream."""
    return (
        ground.spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 2)
        .parquet(ground.parquet)
    )


# Throughput


def stream(source: Callable[[Ground], DataFrame], ground: Ground) -> Figures:
    """Read everything in micro-batches, and do nothing with it."""
    return drained(ground, source(ground).writeStream.format("noop"))


def batch(ground: Ground, rows: Callable[[Ground], DataFrame]) -> Figures:
    """Read everything at once, and do nothing with it."""
    began = time.perf_counter()
    rows(ground).write.format("noop").mode("overwrite").save()
    return {"msg_s": ground.rows / (time.perf_counter() - began)}


def windows(rows: DataFrame) -> DataFrame:
    """Return counts and bytes by ten seconds and key."""
    return (
        rows.withWatermark("publish_time", "10 seconds")
        .groupBy(F.window("publish_time", "10 seconds"), "key")
        .agg(F.count("*").alias("count"), F.sum(F.length("payload")).alias("bytes"))
    )


def window_ister(ground: Ground) -> Figures:
    """Aggregate the topic into a topic."""
    counts = windows(read_stream(ground)).select(
        "key", F.to_json(F.struct("window", "count", "bytes")).cast("binary").alias("payload")
    )
    writer = counts.writeStream.outputMode("append").format("ister")
    return drained(ground, writer.options(url=ground.url, topic=new_topic(ground)))


def window_parquet(ground: Ground) -> Figures:
    """Aggregate the files into nothing."""
    counts = windows(read_parquet_stream(ground))
    return drained(ground, counts.writeStream.outputMode("append").format("noop"))


def sink_ister(ground: Ground) -> Figures:
    """Write the rows of the files to a topic."""
    rows = read_parquet_stream(ground).select("key", "payload")
    writer = rows.writeStream.format("ister").options(url=ground.url, topic=new_topic(ground))
    return drained(ground, writer)


def sink_noop(ground: Ground) -> Figures:
    """Hand the rows of the files to a Python writer that does nothing."""
    rows = read_parquet_stream(ground).select("key", "payload")
    return drained(ground, rows.writeStream.format("bench_hole"))


def new_topic(ground: Ground) -> str:
    """Make an empty topic for one run."""
    topic = f"/default/bench.out-{uuid.uuid4().hex[:8]}"
    with ister.sync.connect(ground.url) as client:
        client.create_topic(topic, kind="stream", partitions=PARTITIONS)
    return topic


def drained(ground: Ground, writer: Any) -> Figures:
    """Run a query over everything there is, and return its steady rate."""
    checkpoint = ground.checkpoint()
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(QUERY_TIMEOUT_S):
            raise BenchError(f"a query did not end within {QUERY_TIMEOUT_S:.0f} s")
    except StreamingQueryException as error:
        raise BenchError(str(error)) from error
    finally:
        query.stop()
    batches = [p for p in query.recentProgress if p.numInputRows]
    seen = sum(p.numInputRows for p in batches)
    if seen != ground.rows:
        raise BenchError(f"{seen} rows of {ground.rows} came")
    full = [p for p in batches[1:] if p.numInputRows > BATCH_ROWS * 0.9]
    if not full:
        raise BenchError("too few rows for a steady figure")
    rates = [p.numInputRows / p.durationMs["triggerExecution"] * 1000 for p in full]
    shutil.rmtree(checkpoint, ignore_errors=True)
    return {
        "msg_s": median(rates),
        "batches": float(len(full)),
        "trigger_ms": median(float(p.durationMs["triggerExecution"]) for p in full),
    }


# Latency


def warm_up(ground: Ground) -> None:
    """Have what both contenders of the latency need compiled before either is measured."""
    event(ground, 0, skip=WARM_BATCHES)
    floor(ground, 0, skip=WARM_BATCHES, every="0 seconds")


def floor(
    ground: Ground, seconds: float, *, skip: int = FIRST_BATCHES, every: str = FLOOR_EVERY
) -> Figures:
    """Return how long a micro-batch of a Python source takes when nothing is to be done."""
    query = (
        ground.spark.readStream.format("bench_ticks")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", ground.checkpoint())
        .trigger(processingTime=every)
        .start()
    )
    try:
        deadline = time.monotonic() + 60
        while len(query.recentProgress) <= skip and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(seconds)
    finally:
        query.stop()
    times = [p.durationMs["triggerExecution"] * 1000.0 for p in query.recentProgress[skip:]]
    if not times:
        raise BenchError("too few micro-batches ended")
    return {"p50_us": median(times), "batches": float(len(times))}


def event(ground: Ground, seconds: float, *, skip: int = FIRST_BATCHES) -> Figures:
    """Return how long one event takes from its publishing to the consumer of another topic."""
    source, target = new_topic(ground), new_topic(ground)
    events = (
        ground.spark.readStream.format("ister")
        .options(url=ground.url, topic=source, startingOffsets="earliest")
        .load()
        .select("key", F.upper(F.col("payload").cast("string")).cast("binary").alias("payload"))
    )
    query = (
        events.writeStream.format("ister")
        .options(url=ground.url, topic=target, checkpointLocation=ground.checkpoint())
        .start()
    )
    try:
        return asyncio.run(_events(ground.url, source, target, seconds, skip))
    except ister.IsterError as error:
        raise BenchError(str(error)) from error
    finally:
        query.stop()


async def _events(url: str, source: str, target: str, seconds: float, skip: int) -> Figures:
    times: list[float] = []
    async with (
        ister.connect(url) as client,
        client.producer(source, name="bench") as producer,
        client.subscribe(target, "bench", start="earliest") as events,
    ):
        # The first events come while the query begins.
        deadline = time.perf_counter() + 90 + seconds
        ends = 0.0
        number = 0
        while time.perf_counter() < deadline and (not ends or time.perf_counter() < ends):
            if number >= skip:
                await asyncio.sleep(random.uniform(*PAUSE_S))
            began = time.perf_counter()
            await producer.send(b"event %d" % number, key="one")
            message = await events.receive(timeout=30)
            if message.payload != b"EVENT %d" % number:
                raise BenchError(f"{message.payload!r} came for event {number}")
            took = time.perf_counter() - began
            await message.ack()
            number += 1
            if number > skip:
                ends = ends or time.perf_counter() + seconds
                times.append(took * 1e6)
    if not times:
        raise BenchError("no event came through")
    times.sort()
    return {
        "p50_us": median(times),
        "p99_us": times[int(len(times) * 0.99)],
        "events": float(len(times)),
    }


# Scaling


def sealed(url: str) -> tuple[str, int]:
    """Return where the sealed part of the topic ends, as Spark takes it, and its rows."""
    ends: dict[str, int] = {}
    with ister.sync.connect(url) as client:
        for number in range(PARTITIONS):
            topic = f"{TOPIC}-part-{number}"
            (head,) = client.heads([topic])
            rows = client.locate(topic, 0, head.next_offset).rows
            ends[str(number)] = rows[-1].end_offset if rows else 0
    return json.dumps({TOPIC: ends}), sum(ends.values())


def cpu_s(pid: int) -> float:
    """Return the processor time of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def scan(ground: Ground, tasks: int, ends: str) -> Figures:
    """Read everything that is sealed, a few times over; return also what that cost the broker."""
    before = cpu_s(ground.broker_pid)
    began = time.perf_counter()
    once = read_batch(ground, minPartitions=tasks, endingOffsets=ends)
    rows = reduce(DataFrame.union, [once] * SCAN_TIMES)
    rows.write.format("noop").mode("overwrite").save()
    took = time.perf_counter() - began
    return {
        "msg_s": ground.rows * SCAN_TIMES / took,
        "broker_cpu_share": (cpu_s(ground.broker_pid) - before) / took,
    }
