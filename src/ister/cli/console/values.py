"""What people type for places in a stream, time spans and sizes, as the SDK takes it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from ister.base import Time, delay_us, epoch_us, parse_size, parse_span, parse_time
from ister.base.errors import BadRequestError
from ister.client import Place

PLACE_HELP = "earliest, latest, an offset, a time (2026-11-15T10:00Z) or how long ago (15m, 7d)."

_T = TypeVar("_T")


def parse_place(text: str, option: str, *, now: datetime | None = None) -> Place:
    """Return a place in a stream, or raise `BadRequestError`.

    A span counts back from `now`.
    """
    word = text.strip()
    if word in ("earliest", "latest"):
        return word
    if word.isdecimal():
        return int(word)
    try:
        return (now or datetime.now(UTC)) - timedelta(seconds=parse_span(word))
    except (ValueError, OverflowError):
        pass
    try:
        return parse_time(word)
    except ValueError as error:
        if "zone" in str(error):
            raise BadRequestError(f"{option} {text!r} {error}") from None
        raise BadRequestError(f"{option} {text!r} is no place: {PLACE_HELP}") from None


def parse_time_option(text: str, option: str, delay: str) -> Time:
    """Return a point in time; `delay` is the option that takes a delay."""
    try:
        time = parse_time(text)
    except ValueError as error:
        hint = f", or give a delay with {delay}" if _is_span(text) else ""
        raise BadRequestError(f"{option} {text!r} {error}{hint}") from None
    epoch_us(time, option, delay)
    return time


def parse_delay_option(text: str, option: str, time: str) -> timedelta:
    """Return so long from now; `time` is the option that takes a point in time."""
    seconds = _parsed(text, option, parse_span)
    assert seconds is not None
    if not text.strip()[-1].isalpha():
        # With a unit it is a span however long it is.
        delay_us(seconds, option, time)
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        raise BadRequestError(f"{option} {text!r} ends after the year 9999") from None


def parse_span_option(text: str | None, option: str) -> float | None:
    """Return seconds, `None` for an option that was not given."""
    return _parsed(text, option, parse_span)


def parse_size_option(text: str | None, option: str) -> int | None:
    """Return bytes, `None` for an option that was not given."""
    return _parsed(text, option, parse_size)


def _is_span(text: str) -> bool:
    try:
        parse_span(text)
    except ValueError:
        return False
    return True


def _parsed(text: str | None, option: str, parse: Callable[[str], _T]) -> _T | None:
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise BadRequestError(f"{option} {text!r} {error}") from None
