"""Drivers that are killed while they write a table, with Spark in processes of their own."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from tests.e2e.conftest import plain_environment

from ister.spark.tables import TableFolder, dataset, describe

pytestmark = pytest.mark.e2e

JOB = Path(__file__).with_name("table_job.py")
# Of a driver that starts, and writes ten small batches, on a busy machine.
RUN_TIMEOUT_S = 200.0
FILES = 10
ROWS_PER_FILE = 40
PARTITIONS = 3


def start(folder: Path, *words: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, str(JOB), str(folder), *words],
        env={**plain_environment(), "XDG_STATE_HOME": str(folder / "state")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def ended(job: "subprocess.Popen[bytes]") -> int:
    try:
        _, said = job.communicate(timeout=RUN_TIMEOUT_S)
    finally:
        job.kill()
    if job.returncode not in (0, -signal.SIGKILL):
        pytest.fail(said.decode())
    return job.returncode


def kill_in_the_middle(job: "subprocess.Popen[bytes]", table: TableFolder, *, after: int) -> None:
    """Kill a driver while a batch is on its way, once the table has changed `after` times."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while time.monotonic() < deadline and job.poll() is None:
        manifest = table.find()
        if manifest is not None and manifest.number >= after and table.staging.exists():
            # Held for a look: the batch may have come to its end just now.
            job.send_signal(signal.SIGSTOP)
            if table.staging.exists():
                job.kill()
                job.communicate()
                return
            job.send_signal(signal.SIGCONT)
        time.sleep(0.001)
    ended(job)
    pytest.fail("the driver came to its end before it could be killed")


def ids(found: ds.Dataset) -> Counter[int]:
    return Counter(found.to_table(columns=["id"]).column("id").to_pylist())


def test_a_driver_that_is_killed_twice_and_starts_again_loses_and_doubles_no_row(
    tmp_path: Path,
) -> None:
    (tmp_path / "source").mkdir()
    for slot in range(FILES):
        numbers = range(slot * ROWS_PER_FILE, (slot + 1) * ROWS_PER_FILE)
        text = "\n".join(json.dumps({"id": n, "part": n % PARTITIONS}) for n in numbers)
        (tmp_path / "source" / f"{slot:03}.json").write_text(text)
    table = TableFolder(tmp_path / "t")

    # Between the manifest of batch 2 and Spark's own note that it is done.
    assert ended(start(tmp_path, "2")) == -signal.SIGKILL
    manifest = describe(table.path)
    assert manifest.rows == 3 * ROWS_PER_FILE
    commits = {path.name for path in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")}
    assert commits == {"0", "1"}
    # While a later batch is being written.
    kill_in_the_middle(start(tmp_path), table, after=manifest.number + 2)
    # To the end.
    assert ended(start(tmp_path)) == 0

    wanted = Counter(range(FILES * ROWS_PER_FILE))
    assert ids(dataset(table.path)) == wanted
    assert ids(ds.dataset(str(table.path), format="parquet", partitioning="hive")) == wanted
    live = {one.name for one in describe(table.path).files}
    retired = {one.name for one in describe(table.path).retired}
    stored = {
        path.relative_to(table.stored).as_posix().removesuffix(".data")
        for path in table.stored.rglob("*.data")
    }
    assert stored == live | retired
    assert not table.staging.exists()
