"""The disk fails at each step of checkpoints and rewrites, once or several times, then works again.

Afterwards the machine crashes, at once or later. All acknowledged messages are stored, every kept
manifest has its snapshot, and checkpoints continue.
"""

import errno
from dataclasses import replace
from itertools import count

import pytest
from tests.crash.conftest import WAYS
from tests.crash.housekeeping import HOMES, KEYED, Chore, Home, Repeated, check_names
from tests.crash.machine import History, check

from ister.log import Place
from ister.testing import Crash, Fault, FaultyDisk, Keep

FAULTS = [
    (errno.ENOSPC, 1, False),
    (errno.EIO, 5, False),
    (errno.EIO, 1, True),
    (errno.ENOSPC, 18, False),
    (errno.EIO, 5, True),
]
# The operation is not done, or is done and its answer is lost.
SINGLE_FAULTS = [(errno.EIO, False), (errno.EIO, True), (errno.ENOSPC, False)]


@pytest.fixture(params=list(HOMES.values()), ids=list(HOMES))
def home(request: pytest.FixtureRequest) -> Home:
    """A log in files, in an object store, and in files with a remote tier."""
    found = request.param
    assert isinstance(found, Home)
    return found


CHORES = [(name, reason) for name, home in HOMES.items() for reason in home.reasons]


@pytest.fixture(params=CHORES, ids=[f"{name}-{reason}" for name, reason in CHORES])
def chore(request: pytest.FixtureRequest) -> Chore:
    """A rewrite for each reason, wherever there may be one."""
    name, reason = request.param
    return Chore(HOMES[name], reason)


def test_housekeeping_creates_and_removes_every_kind_of_file(home: Home) -> None:
    disk = FaultyDisk()
    history = History()
    machine = home.live(disk, history)
    seen = {(operation.action, operation.name.split("/")[0]) for operation in disk.operations}

    assert check(machine, history.committed) == len(history.entries) > 30
    assert {("remove", "manifests"), ("remove", "snapshots"), ("put", "snapshots")} <= seen
    assert ("remove", "chunks" if home is HOMES["chunks"] else "segments") in seen
    if home.tiered:
        assert {("put", "tier"), ("remove", "tier"), ("put", "uploads")} <= seen


def test_a_chore_rewrites_segments_for_its_reason_where_they_are(chore: Chore) -> None:
    machine, _ = chore.start()
    rewrite = machine.plan(chore.reason)

    assert rewrite is not None
    assert rewrite.reason == {"urgent": "expired"}.get(chore.reason, chore.reason)
    assert rewrite.place is (Place.LOCAL if chore.home is HOMES["files"] else Place.REMOTE)
    chore.run(machine)
    check_names(machine)
    for topic, spans in rewrite.spans.items():
        assert not {*spans} & {*machine.log.index.spans(topic)}
    assert check(machine, machine.history.committed) == len(machine.history.entries)
    is_whole = len(machine.messages_of(KEYED)) == machine.next_offsets[KEYED]
    assert is_whole is (chore.reason not in ("keys", "expired", "urgent"))


def test_after_failures_of_any_step_nothing_is_lost_and_checkpoints_continue(home: Home) -> None:
    for number in range(home.operations()):
        fail_and_verify(home, number, FAULTS[number % len(FAULTS)])


def fail_and_verify(home: Home, number: int, fault: tuple[int, int, bool]) -> None:
    """Fail an operation, continue to the end, and crash there."""
    error, times, done = fault
    disk = FaultyDisk()
    planned = Repeated(error, at=number, times=times, done=done)
    disk.fail(planned)
    history = History()
    keep, seed = WAYS[number % len(WAYS)]
    try:
        machine = home.live(disk, history)
        assert planned.hits
        disk.heal()
        assert check(machine, len(history.entries)) == history.committed
        home.verify(disk.reopen(keep, seed=seed), history)
    except Exception as problem:
        what = disk.operations[number]
        problem.add_note(f"{planned} at operation {number}: {what}, found {keep!r}, seed {seed}")
        raise


def test_after_repeated_failures_of_a_step_and_a_later_crash_nothing_is_lost(home: Home) -> None:
    for number in range(0, home.operations(), 2):
        error, times, done = FAULTS[number % len(FAULTS)]
        later = (1, 2, 3, 5, 8, 13, 21)[number // 2 % 7] + times
        disk = FaultyDisk()
        disk.fail(Repeated(error, at=number, times=times, done=done))
        disk.crash_at(number + later)
        history = History()
        try:
            home.live(disk, history)
        except Crash:
            pass
        keep, seed = WAYS[number // 2 % len(WAYS)]
        try:
            home.verify(disk.reopen(keep, seed=seed), history)
        except Exception as problem:
            what = disk.operations[number]
            problem.add_note(
                f"{error}, {times} times, done {done}, at operation {number}: {what}; stop "
                f"{later} later, found {keep!r}, seed {seed}"
            )
            raise


def test_after_a_failure_of_any_step_of_a_rewrite_and_a_later_crash_nothing_is_lost(
    chore: Chore,
) -> None:
    """The machine stops at every step: at each third of them after each failure."""
    for failed in range(-1, chore.operations()):
        for crashed in count(failed + 1 + failed % 3, 3):
            error, done = SINGLE_FAULTS[(failed + crashed // 3) % len(SINGLE_FAULTS)]
            fault = Fault(error, at=failed, done=done)
            if not crash_and_verify(chore, fault, crashed, *WAYS[(failed + crashed) % len(WAYS)]):
                break


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_after_every_failure_of_any_step_of_a_rewrite_and_every_later_crash_nothing_is_lost(
    chore: Chore,
) -> None:
    for failed in range(-1, chore.operations()):
        for error, done in SINGLE_FAULTS:
            for crashed in count(failed + 1):
                stopped = [
                    crash_and_verify(chore, Fault(error, at=failed, done=done), crashed, *way)
                    # Every other way: the next crash is found in the others.
                    for way in WAYS[crashed % 2 :: 2]
                ]
                if not any(stopped):
                    break


def crash_and_verify(chore: Chore, fault: Fault, crashed: int, keep: Keep, seed: int) -> bool:
    """Fail a step of a chore, or none when its number is -1, and stop the machine at another one.

    Tells whether the machine stopped before the chore was done.
    """
    machine, begun = chore.start()
    disk = machine.disk
    assert fault.at is not None
    what = f"{fault}, stop at {crashed}, found {keep!r}, seed {seed}, start until {begun}"
    if fault.at >= 0:
        disk.fail(replace(fault, at=begun + fault.at))
    disk.crash_at(begun + crashed)
    try:
        chore.run(machine)
    except Crash:
        pass
    try:
        is_removal = disk.operations[begun + fault.at].action == "remove"
        if not disk.crashed and not fault.done and not is_removal:
            # Nothing is left to the next start to remove.
            check_names(machine)
        chore.home.verify(disk.reopen(keep, seed=seed), machine.history)
    except Exception as problem:
        problem.add_note(what)
        raise
    return disk.crashed
