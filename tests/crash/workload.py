"""A short life of a log in which everything happens that a log can do."""

from functools import partial

from tests.crash.machine import SEGMENT_BYTES, History, Machine, OpenBackend, start

from ister.log import Keyring, LogOptions
from ister.testing import Crash, FaultyDisk


def log_options(keyring: Keyring | None = None) -> LogOptions:
    """Return options for small files and a clock that stands still."""
    return LogOptions(
        segment_bytes=SEGMENT_BYTES,
        segment_entries=12,
        # The first file of each life grows, behind groups and for groups.
        allocate_bytes=512,
        extent_bytes=512,
        unsynced_bytes_max=2_048,
        ciphers=keyring,
        now_ms=lambda: 1_000,
    )


def live(
    disk: FaultyDisk, open_backend: OpenBackend, options: LogOptions, history: History
) -> Machine:
    """Begin a log and use it; return the machine at the end, not closed."""
    machine = start(disk, open_backend, options, history)
    first_day(machine)
    machine = machine.restart()
    second_day(machine)
    return machine


def first_day(machine: Machine) -> None:
    publish, transact, series = machine.publish, machine.transact, machine.series
    machine.commit(partial(publish, 1, 50, 60, 70), machine.mark)
    machine.commit(partial(publish, 2, 20), partial(publish, 3, 20), sync=False)
    machine.commit(partial(publish, 1, 10), machine.mark, sync=False)
    machine.commit(partial(transact, 1, 2))
    machine.commit(partial(series, 1, 2, 1), machine.mark)
    # Over several sectors, and over a whole file.
    machine.commit(partial(publish, 2, 1_400))
    machine.commit(partial(publish, 1, 3_500), partial(publish, 2, 30))
    machine.checkpoint()
    for _ in range(4):
        machine.commit(partial(publish, 3, 200, 200), machine.mark)
    machine.commit(partial(publish, 1, 30), sync=False)


def second_day(machine: Machine) -> None:
    publish, transact = machine.publish, machine.transact
    machine.commit(partial(publish, 2, 100, 100))
    machine.commit(partial(transact, 2, 3), partial(publish, 2, 25))
    # Behind something that is not synced, and larger than a file.
    machine.commit(machine.mark, sync=False)
    machine.commit(partial(publish, 1, 10), partial(machine.series, *(1, 2, 3) * 4))
    # Topic 3 is deleted; of topic 1 the beginning is dropped, in the middle of a batch.
    machine.checkpoint({1: 2, 2: 4})
    for _ in range(3):
        machine.commit(partial(publish, 1, 300), partial(publish, 2, 300), machine.mark)
    machine.checkpoint({1: machine.next_offsets[1], 2: 4})
    machine.commit(partial(publish, 1, 10))
    machine.commit(partial(publish, 1, 10), partial(transact, 1, 2), sync=False)


def live_until_crash(disk: FaultyDisk, open_backend: OpenBackend, options: LogOptions) -> History:
    """Use a log until the disk stops, or to the end; return what was promised."""
    history = History()
    try:
        live(disk, open_backend, options, history)
    except Crash:
        pass
    return history
