"""What a worker of Spark leaves out when it collects garbage."""

import subprocess
import sys

PROGRAM = """
import gc, sys
from importlib.machinery import ModuleSpec

sys.modules["__main__"].__spec__ = ModuleSpec({name!r}, None)
import ister.spark.data_source

counts = []
for _ in range(6):
    kept = [[number] for number in range(100)]
    globals()[f"kept{{len(counts)}}"] = kept
    gc.collect()
    counts.append(gc.get_freeze_count())
print(*counts)
"""


def frozen_counts(name: str) -> list[int]:
    """Collect six times in a process that runs module `name`; return what was frozen by then."""
    command = [sys.executable, "-c", PROGRAM.format(name=name)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [int(word) for word in answer.stdout.split()]


def test_a_worker_spares_what_survived_its_first_tasks() -> None:
    counts = frozen_counts("pyspark.daemon")
    assert counts[0] > 10_000
    assert counts[0] < counts[1] < counts[2] == counts[3] == counts[5]


def test_nothing_is_frozen_elsewhere() -> None:
    assert frozen_counts("a_program_of_somebody") == [0] * 6
