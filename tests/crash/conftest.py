"""The kinds of log that every test of this folder is run on."""

import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from structlog.typing import EventDict
from tests.crash.machine import History, Machine, OpenBackend, check, content, in_store, on_disk
from tests.crash.workload import live_until_crash, log_options

from ister.log import FileBackend, LogOptions
from ister.objects import FileKeyring
from ister.testing import FaultyDisk, Keep


@dataclass(frozen=True)
class Setup:
    """Where a log is kept and how."""

    open_backend: OpenBackend
    options: LogOptions

    def live(self, disk: FaultyDisk) -> History:
        """Use a log on `disk` until it stops, or to the end."""
        return live_until_crash(disk, self.open_backend, self.options)

    def open(self, disk: FaultyDisk, history: History) -> Machine:
        """Open the log on `disk`."""
        return Machine(disk, self.open_backend, self.options, history)

    def operations(self) -> int:
        """Count the operations of the whole workload."""
        disk = FaultyDisk()
        self.live(disk)
        return len(disk.operations)

    def verify(self, disk: FaultyDisk, history: History, at_least: int) -> None:
        """Open what was found; check every promise; start again, go on, and check again."""
        machine = self.open(disk, history)
        found = check(machine, at_least)
        # What was shown once stays: neither lost by another power cut nor joined by more.
        history = machine.history = History(
            history.entries[:found], found, found, dict(history.horizon), history.serial
        )
        before, again = content(disk), disk.reopen("none")
        assert check(self.open(again, history), found) == found
        if isinstance(self.open_backend(again), FileBackend):
            assert content(again) == before
            self.go_on(machine, found)
        else:
            # The second broker has taken over: the first could not write any more.
            self.go_on(self.open(again, history), found)

    def go_on(self, machine: Machine, found: int) -> None:
        """Write to a log that was found, and see that this hurts nothing, now and later."""
        machine.commit(lambda: machine.publish(1, 20, 20), machine.mark)
        assert check(machine, found + 2) == found + 2
        machine.checkpoint()
        assert check(machine, found + 2) == found + 2
        disk = machine.disk.reopen("none")
        assert check(self.open(disk, machine.history), found + 2) == found + 2


@pytest.fixture(params=["files", "chunks"])
def setup(request: pytest.FixtureRequest) -> Setup:
    """A log in files, and in an object store."""
    return Setup(on_disk if request.param == "files" else in_store, log_options())


@pytest.fixture
def encrypted(tmp_path: Path) -> Setup:
    """A log in encrypted files."""
    return Setup(on_disk, log_options(FileKeyring.create(tmp_path / "keys.json")))


# What is found of un-synced bytes: nothing, all, and parts chosen by a seed.
WAYS: list[tuple[Keep, int]] = [
    ("none", 0),
    ("all", 0),
    ("torn", 1),
    ("torn", 2),
    ("torn", 3),
    ("torn", 4),
]


def promised(history: History, keep: Keep) -> int:
    """Return how many entries must be found: what was written outlives its process."""
    return history.committed if keep == "all" else history.safe


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What a broker has to say of a thousand failures helps nobody; but its own bugs do."""
    before = structlog.get_config()
    structlog.configure(
        processors=[_raise_bugs],
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        cache_logger_on_first_use=False,
    )
    yield
    structlog.configure(**before)


def _raise_bugs(_: object, __: str, event: EventDict) -> EventDict:
    if event["event"] == "internal_error":
        raise AssertionError("the broker met a bug of its own, and went on") from sys.exception()
    raise structlog.DropEvent


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have everything happen that can between two steps of a snapshot."""
    monkeypatch.setattr("ister.broker.state.state.ROWS_AT_ONCE", 1)
    monkeypatch.setattr("ister.broker.state.message_ids.CHUNK_COUNT", 1)
