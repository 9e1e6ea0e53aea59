"""What the platform needs of a clock, so that tests can bring their own."""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

_C = TypeVar("_C", bound=Callable[..., Any])


class Timer(Protocol):
    """A call that has not happened yet."""

    def cancel(self) -> None:
        """Make sure the call never happens. Harmless when it already did."""


class Clock(Protocol):
    """Wall time for stamps, monotonic time for waiting, and calls at a later time."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970 in UTC."""

    def now_us(self) -> int:
        """Return the same in microseconds, as exactly as the machine knows it."""

    def monotonic_ms(self) -> int:
        """Return milliseconds from some fixed point; never goes back."""

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Call `call` once, `delay_s` seconds from now."""


def housekeeping(call: _C) -> _C:
    """Mark what is called about once a second for as long as a process lives.

    When exactly does not matter, so a clock of a test may call it later.
    """
    call.__housekeeping__ = True  # type: ignore[attr-defined]
    return call


def is_housekeeping(call: Callable[[], object]) -> bool:
    """Return whether a call is marked."""
    return getattr(call, "__housekeeping__", False)
