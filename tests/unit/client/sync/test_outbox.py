"""What threads collect for the loop crosses in order, with one wake-up for many."""

from collections.abc import Callable
from typing import Any

import pytest

from ister.base.errors import ClosedError
from ister.client.sync.outbox import Outbox


class Loop:
    """Keeps what it is asked to call."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []
        self.closed = False

    def post(self, call: Callable[[], object]) -> None:
        """Take a call."""
        if self.closed:
            raise ClosedError("the client")
        self.calls.append(call)

    def turn(self) -> None:
        """Make the calls."""
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def put(outbox: Outbox[int, Any], item: int) -> Callable[[], Any]:
    """Put an item in; returns what tells its result."""
    with outbox.lock:
        run = outbox.run()
        slot = len(run.items)
        run.items.append(item)
    return lambda: run.results[slot] if run.results is not None else None


def test_many_items_wake_the_loop_once() -> None:
    loop = Loop()
    outbox: Outbox[int, int] = Outbox(loop.post, lambda items: [10 * item for item in items])
    results = [put(outbox, number) for number in range(100)]

    assert len(loop.calls) == 1
    assert results[0]() is None
    loop.turn()
    assert [result() for result in results] == [10 * n for n in range(100)]


def test_items_after_the_loop_looked_wake_it_again() -> None:
    loop, seen = Loop(), list[int]()
    outbox: Outbox[int, None] = Outbox(loop.post, lambda items: list(map(seen.append, items)))
    put(outbox, 1)
    loop.turn()
    put(outbox, 2)

    assert len(loop.calls) == 1
    loop.turn()
    assert seen == [1, 2]


def test_what_was_dealt_with_ahead_of_its_turn_is_not_dealt_with_again() -> None:
    loop, seen = Loop(), list[int]()
    outbox: Outbox[int, None] = Outbox(loop.post, lambda items: list(map(seen.append, items)))
    put(outbox, 1)
    outbox.empty()
    loop.turn()

    assert seen == [1]


def test_nothing_is_taken_by_a_loop_that_has_stopped() -> None:
    loop = Loop()
    outbox: Outbox[int, int] = Outbox(loop.post, lambda items: items)
    loop.closed = True
    with pytest.raises(ClosedError):
        put(outbox, 1)

    loop.closed = False
    put(outbox, 2)
    assert len(loop.calls) == 1


def test_what_is_put_in_while_the_loop_is_woken_is_not_lost() -> None:
    loop, seen = Loop(), list[int]()

    def post(call: Callable[[], object]) -> None:
        loop.post(call)
        if len(loop.calls) == 1:
            put(outbox, 1)  # As a signal handler does.

    outbox: Outbox[int, None] = Outbox(post, lambda items: list(map(seen.append, items)))
    put(outbox, 2)
    loop.turn()

    assert seen == [1, 2]
