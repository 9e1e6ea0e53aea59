"""Group commit: what is with the store, and who is told what, in which order."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from ister.base.errors import IsterError, StorageFailedError
from ister.broker.timelines.store.committer import AHEAD_CHANGES_MIN, GROUP_BYTES_MAX, Committer
from ister.testing import VirtualClock
from ister.timeline import Group, MemoryStore, Put, Work, do_nothing


class HeldBack:
    """A worker whose calls are made when a test says so."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.calls: deque[tuple[Any, Callable[[Any], object]]] = deque()

    def run(self, call: Any, done: Callable[[Any], object]) -> None:
        self.calls.append((call, done))

    def make(self) -> None:
        call, done = self.calls.popleft()
        done(call(self.store))

    def fail(self, error: Exception) -> None:
        self.calls.popleft()[1](error)


class Bench:
    def __init__(self) -> None:
        self.worker = HeldBack()
        self.number = self.worker.store.create_topic("/default/a", "timeline", b"").number
        self.turns: deque[Callable[[], object]] = deque()
        self.told: list[str] = []
        self.committer = Committer(
            self.worker,
            clock=VirtualClock(),
            call_soon=self.turns.append,
            after_group=lambda: None,
        )

    def put(self, name: str, count: int = 1, payload: bytes = b"") -> None:
        puts = [Put(self.number, f"{name}-{n}", "g", 0, payload) for n in range(count)]

        def done(outcomes: Any) -> None:
            failed = isinstance(outcomes, IsterError)
            self.told.append(f"{name} failed" if failed else name)

        self.committer.add(Work([*puts]), done)
        self.settle()

    def look(self, name: str) -> None:
        self.committer.query(do_nothing, lambda _: self.told.append(name))
        self.settle()

    def make(self) -> None:
        self.worker.make()
        self.settle()

    def settle(self) -> None:
        while self.turns:
            self.turns.popleft()()


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_few_changes_gather_while_the_store_is_at_work(bench: Bench) -> None:
    bench.put("a")
    bench.put("b")
    bench.put("c")
    assert len(bench.worker.calls) == 1

    bench.make()
    assert bench.told == ["a"]
    group = bench.worker.calls[0][0]
    assert isinstance(group, Group)
    assert len(group.work) == 2

    bench.make()
    assert bench.told == ["a", "b", "c"]


def test_a_group_has_so_many_bytes_unless_one_piece_has_more(bench: Bench) -> None:
    bench.put("a")
    bench.put("b", payload=bytes(GROUP_BYTES_MAX + 1))
    bench.put("c", payload=bytes(GROUP_BYTES_MAX // 2))
    bench.put("d", payload=bytes(GROUP_BYTES_MAX // 2))
    bench.put("e", payload=b"1")

    told = []
    while bench.worker.calls:
        bench.make()
        told.append("".join(bench.told))
    assert told == ["a", "ab", "abcd", "abcde"]


def test_many_changes_do_not_wait_for_the_group_before_them(bench: Bench) -> None:
    bench.put("a")
    bench.put("b", AHEAD_CHANGES_MIN - 1)
    assert len(bench.worker.calls) == 1
    bench.put("c")
    assert len(bench.worker.calls) == 2
    bench.put("d", AHEAD_CHANGES_MIN)
    assert len(bench.worker.calls) == 2

    for _ in range(3):
        bench.make()

    assert bench.told == ["a", "b", "c", "d"]


def test_a_look_is_told_of_after_all_work_before_it(bench: Bench) -> None:
    bench.put("a")
    bench.put("b", AHEAD_CHANGES_MIN)
    bench.look("look")

    bench.make()
    bench.make()
    assert bench.told == ["a", "b"]
    bench.make()
    assert bench.told == ["a", "b", "look"]


def test_who_waits_behind_a_failure_is_told_so_and_a_group_on_its_way_is_not(bench: Bench) -> None:
    bench.put("a")
    bench.put("b", AHEAD_CHANGES_MIN)
    bench.put("c")

    bench.worker.fail(StorageFailedError("no room"))
    bench.settle()
    assert bench.told == ["a failed", "c failed"]
    bench.make()
    assert bench.told == ["a failed", "c failed", "b"]
    bench.put("d")
    bench.make()
    assert bench.told[-1] == "d"
    assert bench.committer.failures == 1
    assert not bench.committer.full
    assert not bench.committer.is_busy


def test_flush_waits_for_what_those_who_are_told_add(bench: Bench) -> None:
    bench.committer.add(Work([Put(bench.number, "a", "g", 0, b"")]), lambda _: bench.put("added"))
    bench.committer.flush(lambda: bench.told.append("flushed"))
    bench.settle()

    while bench.worker.calls:
        bench.make()

    assert bench.told == ["added", "flushed"]
