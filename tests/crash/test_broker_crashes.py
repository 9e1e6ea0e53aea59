"""The machine stops at every operation of a broker's life: every promise to its clients holds."""

from tests.crash.aftermath import verify
from tests.crash.business import live_until_crash
from tests.crash.conftest import WAYS

from ister.testing import FaultyDisk


def operations() -> int:
    """Count the operations of the whole workload."""
    disk = FaultyDisk()
    live_until_crash(disk)
    return len(disk.operations)


def test_after_a_stop_at_any_operation_every_promise_to_clients_holds() -> None:
    for number in range(operations() + 1):
        disk = FaultyDisk()
        disk.crash_at(number)
        promises = live_until_crash(disk)
        for keep, seed in (*WAYS[:2], WAYS[2 + number % 4]):
            try:
                found = disk.reopen(keep, seed=seed)
                verify(found, promises, power_cut=keep != "all")
            except Exception as error:
                error.add_note(f"stopped at operation {number}, found {keep!r}, seed {seed}")
                raise
