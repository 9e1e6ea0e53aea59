"""The disk fails at every operation of a broker's life: once, for a while, or it only says so."""

import errno

import pytest
from tests.crash.aftermath import verify
from tests.crash.business import AFTER_MS, live, live_until_crash, operations
from tests.crash.conftest import WAYS
from tests.crash.life import Life
from tests.crash.machine import in_store
from tests.crash.promises import Promises, check, look

from ister.testing import Fault, FaultyDisk, Keep


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        (Fault(errno.EIO), 1),
        (Fault(errno.ENOSPC, lasting=True), 1),
        (Fault(errno.EIO, done=True), 5),
    ],
    ids=["once", "for a while", "though it was done"],
)
def test_after_an_error_at_any_operation_all_goes_on_and_nothing_is_lost(
    fault: Fault, step: int
) -> None:
    for number in range(0, operations(), step):
        disk = FaultyDisk()
        planned = Fault(fault.error, at=number, lasting=fault.lasting, done=fault.done)
        disk.fail(planned)
        promises = Promises()
        try:
            customer = live(disk, promises)
            assert planned.hits
            check(look(customer.life), promises, power_cut=False)
            check(look(Life(disk.reopen("none"), now_ms=AFTER_MS)), promises)
        except Exception as error:
            error.add_note(f"{fault} at operation {number}: {disk.operations[number]}")
            raise


@pytest.mark.parametrize("done", [False, True], ids=["refused", "though it was done"])
def test_after_an_error_of_an_object_store_nothing_is_lost_and_nothing_refused_comes_back(
    done: bool,
) -> None:
    for number in range(0, operations(in_store), 2):
        disk = FaultyDisk()
        disk.fail(Fault(errno.EIO, at=number, done=done))
        disk.crash_at(number + 1 + number % 3)
        promises = live_until_crash(disk, in_store)
        try:
            verify(
                disk.reopen("all"),
                promises,
                power_cut=False,
                go_on=number % 3 == 0,
                open_backend=in_store,
            )
        except Exception as error:
            error.add_note(f"error at operation {number}: {disk.operations[number]}")
            raise


def test_after_an_error_and_a_stop_soon_after_it_every_promise_to_clients_holds() -> None:
    whole = FaultyDisk()
    live_until_crash(whole)
    for number, operation in enumerate(whole.operations):
        keep, seed = WAYS[number % len(WAYS)]
        fail_and_stop(number, 1 + number % 5, keep, seed)
        if operation.action == "sync":
            # What was written without a sync is lost, and the broker has yet to find out.
            fail_and_stop(number, 5, "none", 0)


def test_what_is_uncertain_after_an_error_that_lasts_is_whole_or_absent_after_a_stop() -> None:
    whole = FaultyDisk()
    live_until_crash(whole)
    for number, operation in enumerate(whole.operations):
        if operation.action in ("write", "sync", "truncate"):
            # The journal cannot go on behind what failed: it may be found.
            keep, seed = WAYS[1 + number % 5]
            fail_and_stop(number, 1 + number % 4, keep, seed, lasting=True)


def fail_and_stop(number: int, later: int, keep: Keep, seed: int, *, lasting: bool = False) -> None:
    """Have the disk fail and then stop, and look at what may be found after it."""
    disk = FaultyDisk()
    disk.fail(Fault(errno.EIO, at=number, lasting=lasting))
    disk.crash_at(number + later)
    promises = live_until_crash(disk)
    try:
        verify(disk.reopen(keep, seed=seed), promises, go_on=number % 3 == 0)
    except Exception as error:
        error.add_note(
            f"error at operation {number}, stop {later} later, found {keep!r}, seed {seed}"
        )
        raise
