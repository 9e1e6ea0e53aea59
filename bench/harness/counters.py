"""A few counters that all processes of one measurement can see.

Why shared memory and not a message: the referee must read progress, and a producer must see how
far its consumer is, without sending anything through the broker or the loop under test.

Always true:
- every counter has one writer; a reader may see a value that is slightly old, never a torn one
  (aligned 8-byte stores on every platform we run on);
- a counter only rises while a measurement runs.
"""

from __future__ import annotations

import mmap
from pathlib import Path

BOARD_BYTES = 64
SENT, RECEIVED, STOP = 0, 1, 2
# A consumer publishes its count once per this many messages: one store per message would be a
# cost of the benchmark, and 256 of the >100,000 messages of a measurement is below 0.3 %.
TALLY_EVERY = 256


class Counters:
    """The counters of one measurement: messages sent, messages received, and a stop flag."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), BOARD_BYTES)
        self.cells = memoryview(self._memory).cast("Q")

    @classmethod
    def create(cls, path: Path) -> Counters:
        """Make new counters with every one at zero."""
        path.write_bytes(bytes(BOARD_BYTES))
        return cls(path)

    @property
    def sent(self) -> int:
        """Messages the producer has handed to its client library."""
        return self.cells[SENT]

    @sent.setter
    def sent(self, count: int) -> None:
        self.cells[SENT] = count

    @property
    def received(self) -> int:
        """Messages (relay: bytes) that reached user code, or calls that got their answer."""
        return self.cells[RECEIVED]

    @received.setter
    def received(self, count: int) -> None:
        self.cells[RECEIVED] = count

    @property
    def stopped(self) -> bool:
        """True once the referee wants the producer to finish."""
        return self.cells[STOP] != 0

    def stop(self) -> None:
        """Ask the producer to flush and finish."""
        self.cells[STOP] = 1

    def close(self) -> None:
        """Unmap the counters; the file stays until its directory goes."""
        self.cells.release()
        self._memory.close()
