"""Where timelines are worked on: one place at a time has the file, and calls stay in order."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ister.base.errors import StorageFailedError
from ister.server.store_places import (
    AT_ONCE_S,
    CALM_S,
    SMALL_BYTES,
    SMALL_CHANGES,
    STAYS,
    Place,
    StorePlaces,
)
from ister.timeline import Group, MemoryStore, Put, Work

AWAY, HERE = "away", "here"


class File:
    """Tells who has it open, and what was done to it in which order."""

    def __init__(self) -> None:
        self.owner = ""
        self.made: list[tuple[str, int]] = []


class OneStore(MemoryStore):
    """A store in one of the places. Fails the test when another one has the file open."""

    def __init__(self, file: File, name: str) -> None:
        super().__init__()
        self._file = file
        self._name = name
        self.fails = False
        # What a change takes.
        self.on_apply: Callable[[], object] = lambda: None

    def apply(self, now_ms: int, work: Any) -> list[Any]:
        self.use(now_ms)
        self.on_apply()
        return []

    def use(self, number: int) -> None:
        assert self._file.owner in ("", self._name), "two have the file open"
        if self.fails:
            raise StorageFailedError("the disk does not answer")
        self._file.owner = self._name
        self._file.made.append((self._name, number))

    def close(self) -> None:
        assert self._file.owner in ("", self._name)
        self._file.owner = ""


class Lane:
    """A process or a thread: makes its calls when the test says so."""

    def __init__(self, store: OneStore) -> None:
        self.store = store
        self.calls: deque[tuple[Any, Any]] = deque()

    def run(self, call: Any, done: Any) -> None:
        self.calls.append((call, done))

    def try_at_once(self, call: Any) -> Any:
        raise AssertionError("nobody waits for a process or a thread")

    def step(self) -> None:
        call, done = self.calls.popleft()
        try:
            told = call(self.store)
        except StorageFailedError as error:
            told = error
        done(told)


class Bench:
    """The places, with a clock that is moved by hand."""

    def __init__(self) -> None:
        self.file = File()
        self.process = Lane(OneStore(self.file, AWAY))
        self.thread = Lane(OneStore(self.file, HERE))
        self.soon: deque[Callable[[], object]] = deque()
        self.is_calm = True
        self.now_s = 0.0
        self.told: list[tuple[int, Any]] = []
        self.places = StorePlaces(
            self.process,
            self.thread,
            self.thread.store,
            calm=lambda: self.is_calm,
            call_soon=lambda call, *given: self.soon.append(lambda: call(*given)),
            now_s=lambda: self.now_s,
        )
        self._number = 0

    def change(self, count: int = 1, size: int = 10) -> int:
        """Ask for changes; return their number."""
        self._number += 1
        puts = [Put(1, str(n), "", 0, b"x" * size) for n in range(count)]
        size_bytes = sum(len(put.payload) for put in puts)
        self._run(Group(self._number, [Work([*puts])], [], size_bytes))
        return self._number

    def at_once(self, count: int = 1, size: int = 10) -> Any:
        """Ask for changes to be made at once; return what came of them, or `None`."""
        self._number += 1
        puts = [Put(1, str(n), "", 0, b"x" * size) for n in range(count)]
        return self.places.try_at_once(Group(self._number, [Work([*puts])], [], count * size))

    def read(self) -> int:
        """Ask for what is no change."""
        self._number = number = self._number + 1
        self._run(lambda store: store.use(number))
        return number

    def _run(self, call: Any) -> None:
        number = self._number
        self.places.run(call, lambda told: self.told.append((number, told)))

    def settle(self) -> None:
        while self.soon or self.process.calls or self.thread.calls:
            self.step()

    def step(self) -> None:
        if self.soon:
            self.soon.popleft()()
        elif self.process.calls:
            self.process.step()
        elif self.thread.calls:
            self.thread.step()

    def come(self) -> None:
        """Have the file here."""
        self.change()
        self.settle()
        self.now_s += CALM_S
        self.change()
        self.settle()
        assert self.place() is Place.HERE
        # The first one opens the file, in the thread.
        self.change()
        self.settle()

    def place(self) -> Place:
        return self.places.place

    def where(self, number: int) -> str:
        """Return where a call was made, or else an empty text."""
        return next((place for place, one in self.file.made if one == number), "")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_first_changes_are_the_process_s_and_one_more_comes_when_it_was_calm_for_long(
    bench: Bench,
) -> None:
    first = bench.change()
    bench.settle()
    bench.now_s = CALM_S - 0.01
    second = bench.change()
    bench.settle()
    bench.now_s = CALM_S
    third = bench.change()
    bench.settle()

    assert [bench.where(number) for number in (first, second, third)] == [AWAY, AWAY, HERE]


def test_it_does_not_come_before_the_process_has_stored_anything(bench: Bench) -> None:
    bench.now_s = 10 * CALM_S

    assert bench.where(bench.change()) == ""
    assert len(bench.process.calls) == 1
    bench.process.store.fails = True
    bench.settle()
    bench.change()
    assert bench.place() is Place.AWAY


def test_here_a_small_change_is_made_at_once_and_told_in_the_next_turn(bench: Bench) -> None:
    bench.come()

    number = bench.change()

    assert bench.where(number) == HERE
    assert not bench.thread.calls
    assert bench.told[-1][0] != number
    bench.settle()
    assert bench.told[-1][0] == number


@pytest.mark.parametrize(("size", "at_once"), [(SMALL_BYTES, True), (SMALL_BYTES + 1, False)])
def test_a_large_message_is_the_thread_s(bench: Bench, size: int, at_once: bool) -> None:
    bench.come()

    bench.change(1, size)

    assert len(bench.thread.calls) == (0 if at_once else 1)
    assert bench.place() is Place.HERE


def test_reading_is_the_thread_s_and_changes_behind_it_do_not_overtake_it(bench: Bench) -> None:
    bench.come()
    reading, behind = bench.read(), bench.change()

    assert len(bench.thread.calls) == 2
    bench.settle()
    assert bench.file.made[-2:] == [(HERE, reading), (HERE, behind)]


def test_many_changes_have_the_file_go_back_with_all_that_comes_meanwhile_behind_them(
    bench: Bench,
) -> None:
    bench.come()
    many = bench.change(SMALL_CHANGES + 1)
    assert bench.place() is Place.LEAVING
    behind = bench.change()

    bench.settle()

    assert bench.file.made[-2:] == [(AWAY, many), (AWAY, behind)]
    assert [number for number, _ in bench.told[-2:]] == [many, behind]


def test_as_many_changes_as_are_small_are_made_here(bench: Bench) -> None:
    bench.come()

    assert bench.where(bench.change(SMALL_CHANGES)) == HERE


def test_it_takes_twice_as_long_to_come_when_it_did_not_stay(bench: Bench) -> None:
    bench.come()
    bench.change(SMALL_CHANGES + 1)
    bench.settle()

    bench.now_s += CALM_S
    bench.change()
    bench.settle()
    assert bench.place() is Place.AWAY
    bench.now_s += CALM_S
    bench.change()
    bench.settle()
    assert bench.place() is Place.HERE

    bench.now_s += 2 * CALM_S * STAYS
    bench.change(SMALL_CHANGES + 1)
    bench.settle()
    bench.now_s += CALM_S
    bench.change()
    bench.settle()
    assert bench.place() is Place.HERE


def test_it_goes_back_when_many_are_connected_and_comes_again_when_it_was_calm_for_long(
    bench: Bench,
) -> None:
    bench.come()
    bench.is_calm = False
    first = bench.change()
    bench.settle()
    bench.is_calm = True
    second = bench.change()
    bench.settle()
    bench.now_s += 2 * CALM_S
    third = bench.change()
    bench.settle()

    assert [bench.where(number) for number in (first, second, third)] == [AWAY, AWAY, HERE]


def test_what_comes_while_the_process_closes_the_file_is_made_behind_what_it_came_for(
    bench: Bench,
) -> None:
    bench.change()
    bench.settle()
    bench.now_s += CALM_S
    first = bench.change()
    assert bench.place() is Place.COMING
    second, third = bench.read(), bench.change()

    bench.settle()

    assert bench.file.made[-3:] == [(HERE, first), (HERE, second), (HERE, third)]


def test_it_does_not_come_while_the_process_has_calls(bench: Bench) -> None:
    bench.change()
    bench.settle()
    bench.now_s += CALM_S
    bench.read()

    bench.change()

    assert bench.place() is Place.AWAY


def test_a_slow_disk_has_changes_made_by_the_thread_for_a_while(bench: Bench) -> None:
    bench.come()

    def slow() -> None:
        bench.now_s += 2 * AT_ONCE_S

    bench.thread.store.on_apply = slow
    bench.change()
    bench.thread.store.on_apply = lambda: None
    by_thread = 0
    for _ in range(20):
        bench.change()
        by_thread += len(bench.thread.calls)
        bench.settle()

    # 2 × 0.9⁷ is the first that is below 1.
    assert by_thread == 7


def test_after_an_error_of_the_disk_the_thread_opens_the_file_again(bench: Bench) -> None:
    bench.come()
    bench.thread.store.fails = True
    bench.change()
    bench.settle()
    assert isinstance(bench.told[-1][1], StorageFailedError)
    bench.thread.store.fails = False

    bench.change()
    assert len(bench.thread.calls) == 1
    bench.settle()
    bench.change()
    assert not bench.thread.calls


acts = st.one_of(
    st.tuples(st.just("change"), st.sampled_from([1, SMALL_CHANGES, SMALL_CHANGES + 1])),
    st.tuples(st.just("read"), st.just(0)),
    st.tuples(st.just("step"), st.integers(1, 5)),
    st.tuples(st.just("wait"), st.just(0)),
    st.tuples(st.just("calm"), st.integers(0, 1)),
    st.tuples(st.just("fail"), st.integers(0, 1)),
)


@given(st.lists(acts, max_size=60))
def test_whatever_comes_is_made_once_and_told_in_order_and_the_file_is_open_once(
    story: list[tuple[str, int]],
) -> None:
    bench = Bench()
    asked: list[int] = []
    for act, value in story:
        if act == "change":
            asked.append(bench.change(value))
        elif act == "read":
            asked.append(bench.read())
        elif act == "step":
            for _ in range(value):
                bench.step()
        elif act == "wait":
            bench.now_s += CALM_S
        elif act == "calm":
            bench.is_calm = bool(value)
        else:
            bench.process.store.fails = bench.thread.store.fails = bool(value)
    bench.settle()

    assert [number for number, _ in bench.told] == asked
    made = [number for _, number in bench.file.made]
    assert made == sorted(set(made))


def test_a_small_change_is_made_at_once_only_while_the_file_is_here_and_in_order(
    bench: Bench,
) -> None:
    away = bench.at_once()
    bench.come()
    here = bench.at_once()
    many, large = bench.at_once(SMALL_CHANGES + 1), bench.at_once(1, SMALL_BYTES + 1)
    bench.read()
    behind_another = bench.at_once()
    bench.settle()
    again = bench.at_once()
    bench.is_calm = False
    busy = bench.at_once()

    assert here is not None
    assert again is not None
    assert [away, many, large, behind_another, busy] == [None] * 5


def test_an_error_of_a_change_at_once_is_told_and_the_next_one_is_the_thread_s(
    bench: Bench,
) -> None:
    bench.come()
    bench.thread.store.fails = True
    failed = bench.at_once()
    bench.thread.store.fails = False

    assert isinstance(failed, StorageFailedError)
    assert bench.at_once() is None


def test_nothing_is_made_at_once_while_the_disk_is_slow(bench: Bench) -> None:
    bench.come()

    def hang() -> None:
        bench.now_s += 1.0

    bench.thread.store.on_apply = hang
    slow = bench.at_once()

    assert slow is not None
    assert bench.at_once() is None
