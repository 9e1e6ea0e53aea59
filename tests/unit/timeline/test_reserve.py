"""What becomes of work on a full disk: refused, or made a few changes at a time."""

import pytest

from ister.base.errors import DiskFullError
from ister.timeline import Changed, Delete, Lease, Outcomes, Put, Update, Work
from ister.timeline.sqlite.reserve import FULL_COUNT_MAX, FullDiskCommits


class Disk:
    """Makes work of at most so many changes at once; of none, only with the reserve."""

    def __init__(self, room: int, reserve: int = 0) -> None:
        self.commits: list[int] = []
        self._room = room
        self._reserve = reserve

    def commit(self, work: Work) -> Outcomes:
        return self._make(work, self._room)

    def commit_reserved(self, work: Work) -> Outcomes:
        return self._make(work, self._reserve)

    def _make(self, work: Work, room: int) -> Outcomes:
        if len(work.changes) > room:
            raise DiskFullError("the disk is full")
        self.commits.append(len(work.changes))
        return [Changed(getattr(change, "id", ""), 1, 1, 0, 0) for change in work.changes]

    def make(self, work: Work, *, leases: bool = True) -> Outcomes:
        return FullDiskCommits(self.commit, self.commit_reserved, leases=leases).make(work)


def put(name: str) -> Put:
    return Put(1, name, "g", 0, b"x")


def delete(name: str) -> Delete:
    return Delete(1, name, "g")


def told(outcomes: Outcomes) -> list[str]:
    """Return the ids of changes that were made, and what others were refused for."""
    assert isinstance(outcomes, list)
    return [one.id if isinstance(one, Changed) else type(one).__name__ for one in outcomes]


def test_only_changes_that_store_more_are_refused() -> None:
    disk = Disk(room=10)
    work = Work([put("a"), delete("b"), Update(1, "c", "g", b"y"), delete("d")])

    assert told(disk.make(work)) == ["DiskFullError", "b", "DiskFullError", "d"]
    assert disk.commits == [2]


@pytest.mark.parametrize("change", [put("a"), Update(1, "a", "g", b"y")])
def test_a_transaction_that_stores_more_is_refused_whole(change: Put | Update) -> None:
    disk = Disk(room=10)

    outcome = disk.make(Work([delete("b"), change], atomic=True))

    assert isinstance(outcome, DiskFullError)
    assert disk.commits == []


def test_a_transaction_is_never_divided() -> None:
    disk = Disk(room=1)

    outcome = disk.make(Work([delete("a"), delete("b")], atomic=True))

    assert isinstance(outcome, DiskFullError)
    assert disk.commits == []


def test_many_changes_are_made_a_few_at_a_time() -> None:
    disk = Disk(room=FULL_COUNT_MAX)
    names = [f"m{number}" for number in range(FULL_COUNT_MAX * 2 + 1)]

    assert told(disk.make(Work([delete(name) for name in names]))) == names
    assert disk.commits == [FULL_COUNT_MAX, FULL_COUNT_MAX, 1]


def test_changes_that_do_not_fit_together_are_made_in_halves() -> None:
    disk = Disk(room=3)
    names = [f"m{number}" for number in range(8)]

    assert told(disk.make(Work([delete(name) for name in names]))) == names
    assert disk.commits == [2, 2, 2, 2]


def test_a_lone_change_is_made_with_the_reserve() -> None:
    disk = Disk(room=0, reserve=1)

    assert told(disk.make(Work([delete("a"), delete("b")]))) == ["a", "b"]


def test_a_change_without_any_room_is_refused_alone() -> None:
    assert told(Disk(room=0).make(Work([delete("a")]))) == ["DiskFullError"]


@pytest.mark.parametrize(("leases", "expected"), [(True, ""), (False, "DiskFullError")])
def test_leases_leave_the_last_part_of_the_reserve(leases: bool, expected: str) -> None:
    disk = Disk(room=10)
    work = Work([Lease(1, 1, 1, "c", 5), delete("a")])

    assert told(disk.make(work, leases=leases)) == [expected, "a"]
