"""How work that takes time ends: one callback, called once, with an error or without.

The contract of every function that takes such a callback: it never raises for what its caller could
not have checked beforehand. What goes wrong later goes to the callback.
"""

from collections.abc import Callable

from ister.base.errors import IsterError

Done = Callable[[IsterError | None], object]


def ignore(_: IsterError | None) -> None:
    """For what nobody waits for."""


def after_all(count: int, done: Done) -> Done:
    """Return what to call `count` times: `done` is called after the last one, with the first error.

    With nothing to wait for, it is called at once.
    """
    first: IsterError | None = None
    left = count

    def one(error: IsterError | None) -> None:
        nonlocal first, left
        left -= 1
        first = first or error
        if not left:
            done(first)

    if not count:
        done(None)
    return one
