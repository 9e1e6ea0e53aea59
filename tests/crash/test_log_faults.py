"""The disk fails at every operation of a log's life: with an error, once or for a while."""

import errno

import pytest
from tests.crash.conftest import WAYS, Setup
from tests.crash.machine import History, check
from tests.crash.workload import live

from ister.testing import Crash, Fault, FaultyDisk


@pytest.mark.parametrize(
    "fault",
    [
        Fault(errno.EIO),
        Fault(errno.ENOSPC, lasting=True),
        Fault(errno.EIO, done=True),
    ],
    ids=["once", "for a while", "though it was done"],
)
def test_an_error_at_any_operation_loses_nothing_and_shows_nothing_unpromised(
    setup: Setup, fault: Fault
) -> None:
    for number in range(setup.operations()):
        disk = FaultyDisk()
        planned = Fault(fault.error, at=number, lasting=fault.lasting, done=fault.done)
        disk.fail(planned)
        history = History()
        try:
            machine = live(disk, setup.open_backend, setup.options, history)
            assert planned.hits
            disk.heal()
            assert check(machine, len(history.entries)) == history.committed
            for keep, seed in (WAYS[0], WAYS[2]):
                found = disk.reopen(keep, seed=seed)
                setup.verify(found, history, history.safe)
        except Exception as error:
            error.add_note(f"{fault} at operation {number}: {disk.operations[number]}")
            raise


def test_a_stop_soon_after_an_error_loses_nothing(setup: Setup) -> None:
    for number in range(setup.operations()):
        for later in (1, 2, 4):
            disk = FaultyDisk()
            disk.fail(Fault(errno.EIO, at=number))
            disk.crash_at(number + later)
            history = History()
            try:
                live(disk, setup.open_backend, setup.options, history)
            except Crash:
                pass
            keep, seed = WAYS[(number + later) % len(WAYS)]
            try:
                setup.verify(disk.reopen(keep, seed=seed), history, history.safe)
            except Exception as error:
                error.add_note(
                    f"error at operation {number}, stop {later} later, found {keep!r}, seed {seed}"
                )
                raise
