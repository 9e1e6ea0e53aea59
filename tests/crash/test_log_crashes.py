"""The machine stops at every operation of a log's life, and at those of its recovery."""

from tests.crash.conftest import WAYS, Setup, promised
from tests.crash.machine import History, check

from ister.log import FileBackend
from ister.testing import Crash, FaultyDisk


def test_the_workload_rolls_files_trims_and_ends_with_all_of_it_found(setup: Setup) -> None:
    disk = FaultyDisk()
    history = setup.live(disk)
    machine = setup.open(disk.reopen("all"), history)

    assert check(machine, 0) == len(history.entries) == history.committed > 30
    actions = {operation.action for operation in disk.operations}
    assert {"put", "remove"} <= actions
    assert ("allocate" in actions) == isinstance(setup.open_backend(disk), FileBackend)
    assert machine.log.first_offset(1) > 0
    assert machine.messages()[3] == {}


def test_after_a_stop_at_any_operation_every_promise_holds(setup: Setup) -> None:
    for number in range(setup.operations() + 1):
        stop_and_verify(setup, number)


def test_after_a_stop_every_promise_of_an_encrypted_log_holds(encrypted: Setup) -> None:
    for number in range(0, encrypted.operations() + 1, 4):
        stop_and_verify(encrypted, number)


def test_after_a_stop_in_the_middle_of_a_recovery_every_promise_holds(setup: Setup) -> None:
    for number in range(0, setup.operations() + 1, 3):
        disk = FaultyDisk()
        disk.crash_at(number)
        history = setup.live(disk)
        keep, seed = WAYS[number // 3 % len(WAYS)]
        second = 0
        while stops_while_opening(setup, again := disk.reopen(keep, seed=seed), history, second):
            for keep_again, seed_again in WAYS[:3]:
                try:
                    found = again.reopen(keep_again, seed=seed_again)
                    setup.verify(found, history, history.safe)
                except Exception as error:
                    error.add_note(
                        f"stopped at operation {number}, found {keep!r}, seed {seed}; then at "
                        f"{second} of opening, found {keep_again!r}, seed {seed_again}"
                    )
                    raise
            second += 1


def stop_and_verify(setup: Setup, number: int) -> None:
    """Stop at an operation, and look at what may be found after it."""
    disk = FaultyDisk()
    disk.crash_at(number)
    history = setup.live(disk)
    for keep, seed in (*WAYS[:2], WAYS[2 + number % 4]):
        try:
            setup.verify(disk.reopen(keep, seed=seed), history, promised(history, keep))
        except Exception as error:
            error.add_note(f"stopped at operation {number}, found {keep!r}, seed {seed}")
            raise


def stops_while_opening(setup: Setup, disk: FaultyDisk, history: History, number: int) -> bool:
    disk.crash_at(number)
    try:
        setup.open(disk, history)
    except Crash:
        return True
    return False
