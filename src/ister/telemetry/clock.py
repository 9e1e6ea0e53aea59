"""The machine's clock."""

import time
from collections.abc import Callable

from ister.base import Timer


class SystemClock:
    """See `ister.base.Clock`. Timers are the event loop's, given by the caller."""

    def __init__(self, call_later: Callable[[float, Callable[[], object]], Timer]) -> None:
        self._call_later = call_later

    def now_ms(self) -> int:
        """Return milliseconds since 1970 in UTC."""
        return time.time_ns() // 1_000_000

    def now_us(self) -> int:
        """Return microseconds since 1970 in UTC."""
        return time.time_ns() // 1_000

    def monotonic_ms(self) -> int:
        """Return milliseconds from some fixed point."""
        return time.monotonic_ns() // 1_000_000

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Call `call` once, `delay_s` seconds from now."""
        return self._call_later(delay_s, call)
