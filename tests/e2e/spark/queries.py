"""A streaming query from Parquet files to a topic with faults on order, and what came of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.e2e.spark import faults

import ister.sync
from ister.spark.tuning import session, tuned_settings

FILES = 3
ROWS_PER_FILE = 80_000
PARTITIONS = 2
# What must be in the topic in the end.
ALL = list(range(FILES * ROWS_PER_FILE))
# For a JVM that lives for minutes: without the second compiler, 18 small queries took 23 s of the
# processor instead of 44 s.
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Small, so that a task has eight of them, and the first are with the broker before the last.
ARROW_ROWS = 5_000
ARROW_SETTING = "spark.sql.execution.arrow.maxRecordsPerBatch"


def small_session(name: str, *, master: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session that starts quickly and stays small."""
    option = "spark.driver.extraJavaOptions"
    usual = tuned_settings(master, cores=2, memory_mib=0).get(option, "")
    quick = {"spark.driver.memory": "1g", option: f"{usual} {QUICK_START}"}
    return session(name, master=master, settings=quick | dict(settings))


@dataclass(frozen=True)
class Query:
    """One query with one checkpoint, run as often as a test likes."""

    folder: Path
    url: str
    topic: str

    @property
    def faults(self) -> Path:
        """Where faults are ordered."""
        return self.folder / "faults"

    def prepare(self) -> None:
        """Write the files: `payload` counts all rows, 100 B each."""
        self.faults.mkdir(parents=True)
        (self.folder / "files").mkdir()
        for number in range(FILES):
            self.add_file(number)

    def add_file(self, number: int) -> None:
        """Write one of the files."""
        first = number * ROWS_PER_FILE
        payloads = [b"%0100d" % n for n in range(first, first + ROWS_PER_FILE)]
        keys = [f"key-{n % 1000}" for n in range(ROWS_PER_FILE)]
        table = pa.table({"payload": pa.array(payloads, pa.binary()), "key": keys})
        pq.write_table(table, self.folder / "files" / f"{number}.parquet")

    def order(self, fault: str, text: str = "") -> None:
        """Have a fault happen in the next run."""
        faults.order(self.faults, fault, text)

    def happened(self, fault: str) -> bool:
        """Whether it did."""
        return faults.happened(self.faults, fault)

    def run(self, spark: SparkSession) -> None:
        """Go through the files, a batch for each; raise what ends it."""
        spark.dataSource.register(faults.FaultySource)
        usual = spark.conf.get(ARROW_SETTING)
        spark.conf.set(ARROW_SETTING, str(ARROW_ROWS))
        try:
            self._start(spark).awaitTermination()
        finally:
            spark.conf.set(ARROW_SETTING, str(usual))

    def _start(self, spark: SparkSession) -> StreamingQuery:
        return (
            spark.readStream.schema("payload binary, key string")
            .option("maxFilesPerTrigger", 1)
            .parquet(str(self.folder / "files"))
            .repartition(2)
            .mapInArrow(partial(faults.rows, folder=self.faults), "payload binary, key string")
            .writeStream.format("ister-faulty")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .option("faults", str(self.faults))
            .option("url", self.url)
            .option("topic", self.topic)
            .option("partitions", PARTITIONS)
            .trigger(availableNow=True)
            .start()
        )

    def values(self) -> list[int]:
        """Return what is in the topic, sorted."""
        return values(self.url, self.topic)

    def batches_done(self) -> list[int]:
        """Return the batches that Spark has written down as done."""
        commits = (self.folder / "checkpoint" / "commits").glob("[0-9]*")
        return sorted(int(path.name) for path in commits)

    def set_back(self, batch: int) -> None:
        """Make of the checkpoint what it was when this batch was done."""
        for log in ("offsets", "commits"):
            for path in (self.folder / "checkpoint" / log).iterdir():
                number = path.name.removeprefix(".").removesuffix(".crc")
                if number.isdecimal() and int(number) > batch:
                    path.unlink()


def values(url: str, topic: str) -> list[int]:
    """Return the numbers in the payloads of a topic, sorted."""
    with ister.sync.connect(url) as client:
        return sorted(
            int(payload)
            for stream in streams(client, topic)
            for payload in payloads(client, stream)
        )


def streams(client: ister.sync.Client, topic: str) -> list[str]:
    """Return the partitions of a topic, or the topic itself when it has none."""
    names = [report.topic for report in client.topics(topic)]
    return sorted(name for name in names if name != topic) or names


def payloads(client: ister.sync.Client, stream: str) -> Sequence[bytes]:
    """Return the payloads of one stream, in order."""
    with client.reader(stream) as reader:
        return [payload for batch in reader for payload in batch.payloads]
