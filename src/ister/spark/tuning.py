"""A Spark session with settings that suit streams, and the Java to run it on.

Spark's own defaults are made for large clusters: 200 shuffle partitions, TCP with Nagle between
the JVM and Python, a checkpoint manager for HDFS. The settings here halve the time of a small
micro-batch on one machine. Settings of the caller override them.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ister.base.errors import ExtraMissingError, JavaMissingError
from ister.base.limits import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
# A Java that works at all says its version in a fraction of a second.
JAVA_ANSWER_S = 20.0
JAVA_FOLDERS = Path("/usr/lib/jvm")

# The sink gets its rows in batches of this many: 2 MB of rows of 100 B, one of the broker's batches
# or two, and 20 MB of rows of 1 kB, which a worker has in memory. Spark's own are 10,000.
ARROW_ROWS = 20_000

# Between the JVM and its Python workers, each way: Spark's own 64 KiB cost a system call for every
# 600 rows of 100 B, a quarter of the time of a scan.
BUFFER_BYTES = MIB

# A quarter of the memory, as the JVM itself would take, but enough for two tasks with state, and
# no more than 8 GiB: beyond that is for those who know their data.
HEAP_SHARE = 4
HEAP_MIB_MIN = 1_024
HEAP_MIB_MAX = 8 * 1_024
# Where a container says how much it may use, in both versions of control groups.
MEMORY_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)

# Checkpoints on a disk of this machine need no more than a rename, 36 ms less for each batch.
# It must not be used on HDFS or object stores, which have no such rename.
LOCAL_CHECKPOINTS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
# State that is larger than the heap, and the only store that `transformWithState` has.
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

WORKER_PYTHON = Path(__file__).with_name("worker-python")

# One line for what is wrong, none for what is normal.
QUIET = Path(__file__).with_name("log4j2.properties")


def session(
    name: str,
    *,
    master: str = "local[*]",
    settings: Mapping[str, str] | None = None,
    checkpoint: str | None = None,
) -> "SparkSession":
    """Return the Spark session of this process; the first call makes it.

    One that is there, whoever made it, stays as it is but for `settings`. They are Spark's own and
    go before everything that is set here. `checkpoint` is where checkpoints will be, when that is
    known. Raises `ExtraMissingError` without PySpark and `JavaMissingError` without Java.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ExtraMissingError("Spark", "spark") from error
    chosen: dict[str, str] = {}
    if SparkSession.getActiveSession() is None:
        # Spark's launcher looks nowhere else.
        os.environ["JAVA_HOME"] = str(find_java())
        if "PYSPARK_PYTHON" not in os.environ:
            # Else workers are whatever `python3` is, which need not be this environment; it is
            # used on the driver as well. On a cluster, machines that are alike have it, too.
            is_here = master.startswith("local")
            os.environ["PYSPARK_PYTHON"] = worker_python() if is_here else sys.executable
        chosen = tuned_settings(
            master, cores=cores_of(master), memory_mib=memory_mib(), checkpoint=checkpoint
        )
    builder = SparkSession.builder.appName(name).master(master)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def tuned_settings(
    master: str, *, cores: int, memory_mib: int, checkpoint: str | None = None
) -> dict[str, str]:
    """Return the settings for a session on `master`."""
    chosen = {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.buffer.size": str(BUFFER_BYTES),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ARROW_ROWS),
        "spark.sql.session.timeZone": "UTC",
        # Fixed for ever by the first batch of a checkpoint.
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if is_local_folder(checkpoint, master):
        chosen["spark.sql.streaming.checkpointFileManagerClass"] = LOCAL_CHECKPOINTS
    if "SPARK_CONF_DIR" not in os.environ:
        chosen["spark.driver.extraJavaOptions"] = f"-Dlog4j2.configurationFile=file:{QUIET}"
    if master.startswith("local"):
        heap_mib = min(HEAP_MIB_MAX, max(HEAP_MIB_MIN, memory_mib // HEAP_SHARE))
        chosen["spark.driver.memory"] = f"{heap_mib}m"
        # Nobody from outside has business there, and a laptop's own name may lead nowhere.
        chosen["spark.driver.bindAddress"] = "127.0.0.1"
        chosen["spark.driver.host"] = "127.0.0.1"
    return chosen


def worker_python() -> str:
    """Return the Python for workers on this machine: this one, made to start sooner if it can."""
    if os.access(WORKER_PYTHON, os.X_OK):
        os.environ["PYSPARK_ISTER_PYTHON"] = sys.executable
        return str(WORKER_PYTHON)
    return sys.executable


def is_local_folder(checkpoint: str | None, master: str) -> bool:
    """Return whether checkpoints are on a plain file system, as far as one can tell."""
    if checkpoint is None:
        return master.startswith("local")
    scheme, colon, _ = checkpoint.partition(":/")
    return not colon or scheme == "file"


def cores_of(master: str) -> int:
    """Return how many tasks run at a time on `master`; of a cluster, as many as there are here."""
    found = re.fullmatch(r"local(?:\[(\d+|\*)(?:,\d+)?\])?", master)
    if found and found[1] is None:
        return 1
    if found and found[1] != "*":
        return int(found[1])
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_mib() -> int:
    """Return the memory of this machine, or of the container that this runs in."""
    size_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in MEMORY_LIMITS:
        try:
            size_bytes = min(size_bytes, int(limit.read_text()))
        except (OSError, ValueError):
            continue  # There is none, or it is `max`.
    return size_bytes // 2**20


def find_java() -> Path:
    """Return the home folder of a Java that Spark runs on, or raise `JavaMissingError`.

    That of JAVA_HOME, else that of the PATH, else the oldest one of the system that will do:
    Spark is tested most on the oldest.
    """
    refused = []
    for home in _homes():
        version = java_version(home)
        if version >= JAVA_VERSION_MIN:
            return home
        if version:
            refused.append(f"{home} is Java {version}")
    raise JavaMissingError(", ".join(refused) or "there is none")


def _homes() -> Iterator[Path]:
    """Yield where a Java may be, the preferred first."""
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named)
    if command := shutil.which("java"):
        yield Path(command).resolve().parent.parent
    yield from sorted(JAVA_FOLDERS.glob("*/"), key=java_version)


def java_version(home: Path) -> int:
    """Return the version of the Java in `home`, 0 when there is none."""
    try:
        answer = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            text=True,
            timeout=JAVA_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return parse_java_version(answer.stderr + answer.stdout)


def parse_java_version(text: str) -> int:
    """Return the version that `java -version` tells: 17 of "17.0.15", 8 of "1.8.0_412"."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0
