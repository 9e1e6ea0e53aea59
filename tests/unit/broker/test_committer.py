"""Group commit: what is told when, and what a failing disk changes."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from ister.base.errors import (
    DiskFullError,
    IsterError,
    StorageFailedError,
    StorageUncertainError,
)
from ister.broker.scheduling.workers import Worker
from ister.broker.storage.committer import COMMITTING_BYTES_MAX, RETRY_S, Committer
from ister.log import Group, Log


class FakeGroup:
    def __init__(self, entries: list[str]) -> None:
        self.entries = entries
        self.size_bytes = len(entries)
        self.needs_sync = True
        self.reached = False


class FakeLog:
    """Collects words; writing and syncing raise what a test wants."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.written: list[list[str]] = []
        self.taken: list[FakeGroup] = []
        self.shown: list[str] = []
        self.error: OSError | None = None
        self.recoveries = 0
        self.unrecoverable: OSError | None = None
        self.voided = False
        self.reaches = True
        self.disk_full = False
        self.collecting_bytes = 0

    @property
    def collecting(self) -> bool:
        return bool(self.words)

    def take(self) -> FakeGroup | None:
        words, self.words = self.words, []
        if not words:
            return None
        self.taken.append(FakeGroup(words))
        return self.taken[-1]

    def write(self, group: FakeGroup) -> None:
        self.written.append(group.entries)
        group.reached = self.reaches

    def sync(self, group: FakeGroup) -> None:
        if self.error is not None:
            raise self.error

    def committed(self, group: FakeGroup) -> None:
        self.shown += group.entries

    def failed(self, group: FakeGroup) -> None:
        self.words = []

    def recover(self) -> None:
        self.recoveries += 1
        if self.error is not None:
            raise self.error
        if self.unrecoverable is not None:
            raise self.unrecoverable


class Bench:
    """A committer whose worker and whose loop run when the test says so."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.soon: list[Callable[[], object]] = []
        self.jobs: list[tuple[Callable[[], Any], Callable[[Any], object]]] = []
        self.later: list[tuple[float, Callable[[], object]]] = []
        self.told: list[str] = []
        self.taken_back = 0
        self.committer = Committer(
            cast("Log", self.log),
            worker=cast("Worker", self),
            clock=cast("Any", self),
            call_soon=self.soon.append,
        )
        self.committer.on_failure.append(self._on_failed)

    def run(self, call: Callable[[], Any], done: Callable[[Any], object]) -> None:
        self.jobs.append((call, done))

    def call_later(self, delay_s: float, call: Callable[[], object]) -> None:
        self.later.append((delay_s, call))

    def append(self, word: str) -> None:
        self.committer.check()
        self.log.words.append(word)
        self.committer.add(lambda error: self.told.append(word if error is None else f"!{word}"))

    def turn(self) -> None:
        """One turn of the loop."""
        soon, self.soon[:] = self.soon[:], []
        for call in soon:
            call()

    def work(self) -> None:
        """Let the worker finish a job."""
        call, done = self.jobs.pop(0)
        try:
            result = call()
        except OSError as error:
            result = error
        done(result)

    def _on_failed(self) -> None:
        self.taken_back += 1


def test_nothing_is_told_before_the_group_is_synced() -> None:
    bench = Bench()
    bench.append("a")
    bench.turn()

    assert bench.told == []
    bench.work()

    assert bench.told == ["a"]
    assert bench.log.shown == ["a"]


def test_entries_of_one_turn_are_one_group() -> None:
    bench = Bench()
    bench.append("a")
    bench.append("b")
    bench.turn()
    bench.work()

    assert bench.log.written == [["a", "b"]]


def test_what_comes_while_a_group_is_written_goes_with_the_next() -> None:
    bench = Bench()
    bench.append("a")
    bench.turn()
    bench.append("b")
    bench.append("c")
    bench.turn()

    assert len(bench.jobs) == 1
    bench.work()
    bench.work()

    assert bench.log.written == [["a"], ["b", "c"]]
    assert bench.told == ["a", "b", "c"]


def test_the_next_group_is_under_way_before_anybody_is_told_of_this_one() -> None:
    bench = Bench()
    bench.append("a")
    bench.turn()
    bench.append("b")
    bench.committer.add(lambda _: None)
    jobs_when_told: list[int] = []
    bench.committer.after_commit.append(lambda: jobs_when_told.append(len(bench.jobs)))
    bench.work()

    assert jobs_when_told == [1]


def test_a_wait_for_nothing_is_told_at_once() -> None:
    bench = Bench()
    bench.committer.add(lambda error: bench.told.append(str(error)))
    bench.turn()

    assert bench.told == ["None"]


def test_a_failed_sync_acknowledges_nothing_and_refuses_what_follows() -> None:
    bench = Bench()
    bench.log.error = OSError(5, "Input/output error")
    bench.append("a")
    bench.turn()
    bench.append("b")
    bench.work()

    # Nobody is told before it was tried to make sure of what is said.
    assert bench.told == []
    assert bench.taken_back == 1
    with pytest.raises(StorageFailedError, match="Input/output error"):
        bench.append("c")
    bench.work()
    assert bench.told == ["!a", "!b"]
    assert bench.log.shown == []
    with pytest.raises(StorageFailedError, match="Input/output error"):
        bench.append("c")


@pytest.mark.parametrize(
    ("reached", "recovers", "voided", "expected"),
    [
        (False, False, False, StorageFailedError),
        (True, True, False, StorageFailedError),
        (True, False, True, StorageFailedError),
        (True, False, False, StorageUncertainError),
    ],
    ids=["never written", "void", "cut off", "may be there"],
)
def test_what_failed_is_uncertain_unless_no_start_can_find_it(
    reached: bool, recovers: bool, voided: bool, expected: type[IsterError]
) -> None:
    bench = Bench()
    errors: list[IsterError | None] = []
    bench.log.error = OSError(5, "Input/output error")
    bench.log.words.append("a")
    bench.committer.add(errors.append)
    bench.turn()
    call, done = bench.jobs.pop(0)
    group = bench.log.taken[0]
    with pytest.raises(OSError, match="Input/output"):
        call()
    group.reached = reached
    done(bench.log.error)
    bench.log.error = None
    if reached:
        if not recovers:
            bench.log.unrecoverable = OSError("still not")
        bench.log.voided = voided
        assert errors == []
        bench.work()

    assert [type(error) for error in errors] == [expected]
    assert (bench.committer.error is None) is recovers
    assert bench.committer.resting


def test_the_storage_is_tried_again_until_it_works() -> None:
    bench = Bench()
    bench.log.error = OSError(5, "Input/output error")
    bench.append("a")
    bench.turn()
    bench.work()
    bench.work()

    for _ in range(2):
        delay_s, retry = bench.later.pop()
        assert delay_s == RETRY_S
        retry()
        bench.work()
        assert bench.committer.error is not None
    bench.log.error = None
    bench.later.pop()[1]()
    bench.work()
    bench.append("b")
    bench.turn()
    bench.work()

    assert bench.told == ["!a", "b"]
    assert bench.log.recoveries == 4


def test_a_full_disk_is_tried_again_at_once_and_then_every_second() -> None:
    bench = Bench()
    bench.log.reaches = False
    bench.log.error = OSError(28, "No space left on device")
    bench.append("a")
    bench.turn()
    bench.work()
    with pytest.raises(DiskFullError, match="No space left on device"):
        bench.append("b")
    delays = []
    for _ in range(3):
        delay_s, retry = bench.later.pop()
        delays.append(delay_s)
        retry()
        bench.work()

    assert delays == [0.0, RETRY_S, RETRY_S]


def test_changes_are_taken_and_messages_refused_while_there_is_only_the_reserve() -> None:
    bench = Bench()
    bench.log.disk_full = True
    bench.append("a")
    bench.turn()
    bench.work()

    assert bench.told == ["a"]
    assert "purge or delete topics" in bench.committer.trouble
    with pytest.raises(DiskFullError, match="no space left for messages"):
        bench.committer.check_room()
    bench.log.disk_full = False
    bench.committer.check_room()
    assert bench.committer.trouble == ""


def test_a_closed_committer_writes_nothing_more() -> None:
    bench = Bench()
    bench.append("a")
    bench.committer.close()
    bench.turn()

    assert bench.jobs == []


def test_producers_are_held_up_until_the_disk_has_caught_up() -> None:
    bench = Bench()
    relieved: list[bool] = []
    bench.append("a")
    bench.log.collecting_bytes = COMMITTING_BYTES_MAX + 1
    assert bench.committer.full
    bench.committer.on_relief(lambda: relieved.append(True))
    bench.turn()
    bench.log.collecting_bytes = 0
    bench.work()

    assert relieved == [True]
    assert not bench.committer.full


def test_idle_is_told_when_everything_is_committed() -> None:
    bench = Bench()
    idle: list[str] = []
    bench.append("a")
    bench.committer.on_idle(lambda: idle.append("idle"))
    bench.turn()
    assert idle == []
    bench.work()

    assert idle == ["idle"]


def test_an_error_of_ours_is_told_in_its_own_words() -> None:
    bench = Bench()
    errors: list[IsterError | None] = []
    bench.log.error = OSError("disk on fire")
    bench.log.words.append("a")
    bench.committer.add(errors.append)
    bench.turn()
    bench.work()
    bench.work()

    assert isinstance(errors[0], StorageUncertainError)
    assert "disk on fire" in errors[0].reason


def test_groups_have_what_the_committer_asks_of_them() -> None:
    group = Group()

    assert (group.size_bytes, group.needs_sync) == (0, False)


def test_a_small_group_is_written_at_once_when_the_disk_is_quick_and_few_are_connected() -> None:
    bench = Bench()
    bench.committer.at_once = lambda: True
    for word in map(str, range(100)):
        bench.append(word)
        bench.turn()
        if bench.jobs:  # Until it is known how quick the disk is.
            bench.work()

    assert bench.told == list(map(str, range(100)))
    bench.append("last")
    bench.turn()
    assert bench.jobs == []
    assert bench.told[-1] == "last"


def test_a_group_that_fails_at_once_is_told_as_any_other() -> None:
    bench = Bench()
    bench.committer.at_once = lambda: True
    bench.committer._commit_s = 0.0
    bench.log.error = OSError(5, "Input/output error")
    bench.append("a")
    bench.turn()
    bench.work()

    assert bench.told == ["!a"]
    assert bench.committer.error is not None
