"""Blocking methods made from asynchronous ones: same name, same parameters, same documentation.

The signature is written once, in `ister.client.aio`; type checkers and `help()` see it here too.
"""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from ister.client.sync.thread import LoopThread

# Covariant: what is made of a method of a base class is for its subclasses too.
_A_co = TypeVar("_A_co", covariant=True)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_W = TypeVar("_W")


class Blocking(Generic[_A_co]):
    """An object of the asyncio client, and the thread it lives in."""

    def __init__(self, thread: LoopThread, inner: _A_co) -> None:
        self._thread = thread
        self._inner = inner

    def _before(self) -> None:
        """Hand over what callers have collected. Called on the loop ahead of every call."""


def blocking(
    method: Callable[Concatenate[_A_co, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate[Blocking[_A_co], _P], _R]:
    """Return the method that runs `method` on the loop and waits for its result."""

    async def work(outer: Blocking[_A_co], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        outer._before()  # noqa: SLF001 - of the class above
        return await method(outer._inner, *args, **kwargs)  # noqa: SLF001

    @wraps(method)
    def call(outer: Blocking[_A_co], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return outer._thread.run(work(outer, *args, **kwargs))  # noqa: SLF001

    return call


def wrapping(
    method: Callable[Concatenate[_A_co, _P], _R], wrap: Callable[[Any, _R], _W]
) -> Callable[Concatenate[Blocking[_A_co], _P], _W]:
    """Return the method that calls `method` on the loop and wraps what it makes."""

    async def work(outer: Blocking[_A_co], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        outer._before()  # noqa: SLF001 - of the class above
        return method(outer._inner, *args, **kwargs)  # noqa: SLF001

    @wraps(method)
    def call(outer: Blocking[_A_co], /, *args: _P.args, **kwargs: _P.kwargs) -> _W:
        return wrap(outer, outer._thread.run(work(outer, *args, **kwargs)))  # noqa: SLF001

    return call
