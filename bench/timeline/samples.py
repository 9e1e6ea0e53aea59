"""What one process saw of each message, kept until the referee asks: three numbers a message.

Percentiles of several processes cannot be put together from those of each, so every sample is
kept. A file beside the process's counters holds them.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness.counters import Counters
from bench.harness.processes import BenchError

# How a payload begins: the number of its message, and when that is due in milliseconds. Taken
# from here, not from what a client tells, so that a wrong due time shows as a wrong lateness.
HEAD = struct.Struct("<QQ")
# A message's number, when it is due in ms, and when it was handed over in ns; of a publish:
# its number, when it was sent in ns, and when it was answered.
WIDTH = 3


class Samples:
    """The samples of one process."""

    def __init__(self, counters: Counters) -> None:
        self.values = array("q")
        self._counters = counters
        self._count = 0

    def handed_over(self, payload: bytes) -> None:
        """Note that the application has a message now."""
        now_ns = time.time_ns()
        number, due_ms = HEAD.unpack_from(payload)
        self.values.extend((number, due_ms, now_ns))
        self._count += 1
        # Each, not every so many: the referee waits for the last one.
        self._counters.received = self._count

    def save(self) -> None:
        """Leave them to the referee."""
        path_of(self._counters).write_bytes(self.values.tobytes())


def load(counters: Counters) -> list[tuple[int, int, int]]:
    """Return what the process of `counters` has saved."""
    values = array("q")
    values.frombytes(path_of(counters).read_bytes())
    return list(zip(values[::WIDTH], values[1::WIDTH], values[2::WIDTH], strict=True))


def path_of(counters: Counters) -> Path:
    """Return where the samples of a process are."""
    return counters.path.with_name(f"{counters.path.name}.samples")


@dataclass(frozen=True, slots=True)
class Deliveries:
    """What all consumers saw together. `lateness_ns` rises."""

    lateness_ns: list[int]
    first_ns: int
    last_ns: int

    @property
    def early_count(self) -> int:
        """How many came before they were due."""
        return sum(1 for value in self.lateness_ns if value < 0)


def deliveries(counters: Sequence[Counters], count: int) -> Deliveries:
    """Return what came of messages 0 to `count`; raise unless each came exactly once."""
    samples = [sample for counters in counters for sample in load(counters)]
    numbers = {number for number, _, _ in samples}
    if len(numbers) != len(samples) or numbers != set(range(count)):
        twice, missing = len(samples) - len(numbers), count - len(numbers)
        raise BenchError(f"of {count} messages {missing} did not come and {twice} came again")
    times = [handed_ns for _, _, handed_ns in samples]
    lateness = sorted(handed_ns - due_ms * 1_000_000 for _, due_ms, handed_ns in samples)
    return Deliveries(lateness, min(times), max(times))
