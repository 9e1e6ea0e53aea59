"""What people type for places in a stream, time spans and sizes, as the SDK takes it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from ister.base import parse_size, parse_span
from ister.base.errors import BadRequestError
from ister.client import Place

PLACE_HELP = "earliest, latest, an offset, a time (2026-11-15T10:00Z) or how long ago (15m, 7d)."

_T = TypeVar("_T")


def parse_place(text: str, option: str, *, now: datetime | None = None) -> Place:
    """Return a place in a stream, or raise `BadRequestError`.

    A time without a zone is that of this machine; a span counts back from `now`.
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
        return datetime.fromisoformat(word).astimezone()
    except (ValueError, OverflowError):
        raise BadRequestError(f"{option} {text!r} is no place: {PLACE_HELP}") from None


def parse_span_option(text: str | None, option: str) -> float | None:
    """Return seconds, `None` for an option that was not given."""
    return _parsed(text, option, parse_span)


def parse_size_option(text: str | None, option: str) -> int | None:
    """Return bytes, `None` for an option that was not given."""
    return _parsed(text, option, parse_size)


def _parsed(text: str | None, option: str, parse: Callable[[str], _T]) -> _T | None:
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise BadRequestError(f"{option} {text!r} {error}") from None
