"""Work at the end of a turn is done once, whoever asked for it, and whatever fails."""

from collections.abc import Callable

import pytest

from ister.broker.scheduling import EndOfTurn


class Loop(list[Callable[[], object]]):
    """What is to be called in the next turn."""

    def turn(self) -> None:
        calls, self[:] = self[:], []
        for call in calls:
            call()


class Worker:
    """Writes down that its time has come, and does what it is told to."""

    def __init__(self, name: str, done: list[str], act: Callable[[], object] = int) -> None:
        self._name = name
        self._done = done
        self._act = act

    def go_through(self) -> None:
        self._done.append(self._name)
        self._act()


def fail() -> None:
    raise ValueError("a bug")


def test_work_that_was_asked_for_twice_is_done_once() -> None:
    loop, done = Loop(), list[str]()
    end = EndOfTurn(loop.append)
    first, second = Worker("first", done), Worker("second", done)
    for worker in (first, second, first):
        end.add(worker)
    assert len(loop) == 1

    end.run()
    loop.turn()

    assert done == ["first", "second"]


def test_the_loop_does_what_no_door_has_done() -> None:
    loop, done = Loop(), list[str]()
    end = EndOfTurn(loop.append)
    end.add(Worker("first", done))

    loop.turn()

    assert done == ["first"]


def test_the_loop_is_not_asked_while_a_door_is_about_to_run() -> None:
    loop, done = Loop(), list[str]()
    end = EndOfTurn(loop.append)
    end.expected = True
    end.add(Worker("first", done))

    assert loop == []
    end.run()
    assert done == ["first"]


def test_what_work_sets_off_is_done_in_the_same_turn() -> None:
    loop, done = Loop(), list[str]()
    end = EndOfTurn(loop.append)
    later = Worker("later", done)

    def add_and_run() -> None:
        end.add(later)
        # As a door does that has a lot to send: it must not begin within what is under way.
        end.run()
        assert done == ["first"]

    end.add(Worker("first", done, add_and_run))
    end.run()

    assert done == ["first", "later"]


def test_work_that_fails_does_not_keep_the_others_from_theirs() -> None:
    loop, done = Loop(), list[str]()
    end = EndOfTurn(loop.append)
    end.expected = True
    end.add(Worker("bad", done, fail))
    end.add(Worker("good", done))

    with pytest.raises(ValueError, match="a bug"):
        end.run()
    loop.turn()

    assert done == ["bad", "good"]
