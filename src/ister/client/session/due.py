"""When something is due: a point in time, or a delay from now."""

from datetime import timedelta

from ister.base import Seconds, Time, delay_us, epoch_us
from ister.base.errors import BadRequestError
from ister.base.limits import TIME_MS_MAX

# A point in time, or a timedelta from now.
When = Time | timedelta


def due_ms_of(
    at: When | None,
    after: Seconds | None,
    now_ms: int,
    names: tuple[str, str] = ("at", "after"),
) -> int:
    """Return when something is due, in milliseconds of the broker's clock: never earlier.

    That is a point in time, or so long from now; now without either. `names` are the arguments.
    """
    if at is not None and after is not None:
        raise BadRequestError("give {} or {}, not both".format(*names))
    span = at if isinstance(at, timedelta) else after
    if span is not None:
        due_ms = now_ms - (-delay_us(span, names[1], names[0]) // 1000)
    elif at is not None:
        due_ms = -(-epoch_us(at, *names) // 1000)
    else:
        due_ms = now_ms
    if due_ms >= TIME_MS_MAX:
        wrong = at if after is None else after
        raise BadRequestError(f"{names[after is not None]} {wrong!r} is later than the year 9999")
    return due_ms
