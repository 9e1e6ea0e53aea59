"""Futures as the session sees them, and errors that may be raised from several of them."""

from copy import copy
from typing import Any, Protocol

from ister.base.errors import IsterError


class Future(Protocol):
    """What asyncio's and the standard library's futures have in common."""

    def done(self) -> bool:
        """Whether it has a result or an error."""

    def set_result(self, result: Any, /) -> None:
        """Finish it well."""

    def set_exception(self, exception: BaseException, /) -> None:
        """Finish it badly."""


def error_to_raise(error: IsterError) -> IsterError:
    """Return a copy of an error that is kept beside messages.

    The traceback of a raised error refers to frames, and those refer to the futures of messages.
    An error that such a future refers to must never be raised itself: Python's garbage collector
    does not look into futures (`gc=False`), so the cycle with the messages would stay for ever.
    """
    copied = copy(error)
    copied.__cause__ = error.__cause__
    return copied
