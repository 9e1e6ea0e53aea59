"""The sink with faults on order, each of which happens once: `format("ister-faulty")`.

A test orders a fault by a file of its name in a folder, which it names with option `faults`. Who
carries it out renames that file first, so that the test sees that it happened, and nobody does it
again.
"""

import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, WriterCommitMessage
from pyspark.sql.types import StructType

from ister.spark.sink.writers import StreamSink

# The batch that the faults happen to: not the first, so that there is something before it.
BATCH = 1
# In a task, when so many Arrow batches have passed: 3 MB, of which most is staged.
PARTS_BEFORE = 6
DEATH_TIMEOUT_S = 20.0


class FaultyError(Exception):
    """The fault that was ordered."""


def due(folder: Path, name: str, *, batch: int) -> str | None:
    """Return what was ordered under `name` if it is due now, else `None`."""
    if batch != BATCH:
        return None
    order = folder / name
    try:
        text = order.read_text()
        order.rename(order.with_suffix(".happened"))
    except FileNotFoundError:
        return None
    return text


def order(folder: Path, name: str, text: str = "") -> None:
    """Have a fault happen."""
    (folder / name).write_text(text)


def happened(folder: Path, name: str) -> bool:
    """Whether it did."""
    return (folder / f"{name}.happened").exists()


def kill(pid: int) -> None:
    """End a process as a crash would, and return once it is gone or a zombie."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + DEATH_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} does not end")


def parent(pid: int) -> int:
    """Return the process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor() -> int:
    """Return the JVM this task runs for: worker, its daemon, JVM."""
    return parent(parent(os.getpid()))


def rows(batches: Iterator[pa.RecordBatch], *, folder: Path) -> Iterator[pa.RecordBatch]:
    """Pass rows on; a fault in a task comes when some of its rows are with the sink already."""
    context = TaskContext.get()
    assert context is not None
    batch = int(context.getLocalProperty("streaming.sql.batchId") or -1)
    for number, part in enumerate(batches):
        if number == PARTS_BEFORE and context.partitionId() == 0:
            if due(folder, "task", batch=batch) is not None:
                raise FaultyError("in a task")
            if due(folder, "executor", batch=batch) is not None:
                victim = executor()
                command = Path(f"/proc/{victim}/cmdline").read_bytes()
                (folder / "victim").write_bytes(command)
                kill(victim)
            if (broker := due(folder, "broker-in-task", batch=batch)) is not None:
                kill(int(broker))
        yield part


class FaultySink(StreamSink):
    """The sink, with faults around its commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType, folder: Path) -> None:
        super().__init__(options, schema)
        self._folder = folder

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        folder = self._folder
        if due(folder, "commit-before", batch=batchId) is not None:
            raise FaultyError("before the publish")
        if (broker := due(folder, "broker-before-publish", batch=batchId)) is not None:
            kill(int(broker))
        super().commit(messages, batchId)
        if due(folder, "commit-after", batch=batchId) is not None:
            raise FaultyError("after the publish")
        if (driver := due(folder, "driver", batch=batchId)) is not None:
            kill(int(driver))


class FaultySource(DataSource):
    """Makes the sink."""

    @classmethod
    def name(cls) -> str:
        return "ister-faulty"

    def streamWriter(self, schema: StructType, overwrite: bool) -> FaultySink:  # noqa: N802
        options = {name.lower(): value for name, value in self.options.items()}
        folder = Path(options.pop("faults"))
        return FaultySink(options, schema, folder)
