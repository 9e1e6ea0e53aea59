"""Bounds the turns of a broker's loop, and the waits of an honest client, while somebody attacks.

See `watched_broker.py` for what they are.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.e2e.conftest import BrokerProcess, free_port
from tests.e2e.raw import RawClient, wait_until
from tests.e2e.watched_broker import ANSWERS, FIGURES_BYTES, TURN, WAIT, Figures, open_figures
from tests.fuzz.stalling import speed

# What nobody may be held up by.
TURN_S_MAX = 0.050
# The client rests for a turn, has its message read in the next, and its answer in another.
WAIT_S_MAX = 3 * TURN_S_MAX
TRIALS = 3


class WatchedBroker(BrokerProcess):
    """A broker with an honest client in its process."""

    def start(self, **_: int) -> None:
        """Start the process and return once every door is open."""
        self.figures_file = self.folder / "figures"
        self.figures_file.write_bytes(bytes(FIGURES_BYTES))
        flags = {
            "data": str(self.folder / "data"),
            "ready_file": str(self.ready_file),
            "native.port": free_port(),
            "http.port": free_port(),
            "grpc.port": free_port(),
            "grpc.admin_port": free_port(),
        }
        command = [sys.executable, "-m", "tests.e2e.watched_broker", json.dumps(flags)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, str(self.figures_file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        ready = self._wait_ready()
        self.native, self.http, self.url = ready["native"], ready["http"], ready["url"]
        self.grpc, self.admin = ready["grpc"], ready["admin"]

    def greeted(self) -> RawClient:
        """Return a connection that has shaken hands."""
        raw = RawClient(self)
        raw.greet()
        return raw


@contextmanager
def watched_broker(folder: Path) -> Iterator[WatchedBroker]:
    """Run a broker with an honest client in its process."""
    broker = WatchedBroker(folder)
    broker.start()
    try:
        yield broker
    finally:
        broker.kill()


class Trial:
    """One attack: turns and waits are measured while this is entered."""

    def __init__(self, number: int, figures: Figures) -> None:
        # For the names of topics, which no other trial may have.
        self.number = number
        self.turn_s = self.wait_s = 0.0
        self._figures = figures

    def __enter__(self) -> Self:
        self._await_answers()
        self._figures[TURN] = self._figures[WAIT] = 0.0
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._await_answers()
            self.turn_s, self.wait_s = self._figures[TURN], self._figures[WAIT]

    def __str__(self) -> str:
        return f"turn {self.turn_s * 1000:.0f} ms, wait {self.wait_s * 1000:.0f} ms"

    def is_good(self, slowness: float) -> bool:
        """Whether nobody was held up, on a machine that is so slow."""
        is_short = self.turn_s <= TURN_S_MAX * slowness
        return is_short and self.wait_s <= WAIT_S_MAX * slowness

    def _await_answers(self) -> None:
        """Wait until the honest client has an answer to what it sent later than now."""
        answered = self._figures[ANSWERS]
        wait_until(lambda: self._figures[ANSWERS] >= answered + 2, "answers to the honest client")


def trials(broker: WatchedBroker) -> Iterator[Trial]:
    """Yield trials of one attack until nobody was held up in one of them.

    What is too long counts when it is so in all of them, on a machine whose speed is measured
    beside it.
    """
    bad: list[str] = []
    figures = open_figures(broker.figures_file)
    for number in range(TRIALS):
        trial = Trial(number, figures)
        yield trial
        if trial.is_good(1.0) or trial.is_good(speed()):
            return
        bad.append(str(trial))
    raise AssertionError(f"too long, in processor time: {'; '.join(bad)}")
