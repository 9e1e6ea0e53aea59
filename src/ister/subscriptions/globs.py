"""Globs for keys and attributes: `*` matches any run of characters, `?` exactly one.

Always true: matching scans the text once for each star, without backtracking. Each part between two
stars is matched at its first occurrence: a later one would leave less text for the other parts.
"""

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ister.base.errors import BadRequestError
from ister.base.limits import GLOB_LOOSE_MAX, GLOB_STARS_MAX, KEY_BYTES_MAX

Match = Callable[[str], bool]

# One with question marks in what it looks for goes over a text at 20 ns a character, others at 4.
LOOSE_WEIGHT = 4


class _Part(NamedTuple):
    """A part between two stars: it follows the part before, at least `gap` characters later."""

    gap: int
    text: str
    # Only for a part with question marks inside.
    pattern: re.Pattern[str] | None


def check_glob(glob: str) -> None:
    """Raise `BadRequestError` for a glob that could be slow to match."""
    if len(glob) > KEY_BYTES_MAX or glob.count("*") > GLOB_STARS_MAX:
        raise BadRequestError(
            f"filter {glob[:40]!r} is too long or has more than {GLOB_STARS_MAX} stars"
        )
    for part in glob.split("*")[1:-1]:
        inner = part.strip("?")
        if "?" in inner and len(inner) > GLOB_LOOSE_MAX:
            raise BadRequestError(
                f"filter {glob[:40]!r} has '?' and more than {GLOB_LOOSE_MAX} characters between "
                "two stars: shorten that part, or remove a star or the '?'"
            )


def weigh(glob: str) -> int:
    """Return how many plain globs it takes as long as to match this one."""
    is_loose = any("?" in part.strip("?") for part in glob.split("*")[1:-1])
    return LOOSE_WEIGHT if is_loose else 1


def compile_glob(glob: str) -> Match:
    """Return a function that matches a text. The glob must have passed `check_glob`."""
    head, *rest = glob.split("*")
    if not rest:
        return glob.__eq__ if "?" not in glob else _pattern_of(glob).fullmatch  # type: ignore[return-value]
    tail = rest.pop()
    if "?" not in glob and not rest:
        if not tail:
            return lambda text: text.startswith(head)
        fixed = len(head) + len(tail)
        return lambda text: len(text) >= fixed and text.startswith(head) and text.endswith(tail)
    return _compile_loose(head, rest, tail)


def compile_globs(globs: Iterable[str]) -> Match:
    """Return a function that tells whether a text matches any of these globs."""
    words: set[str] = set()
    heads: list[str] = []
    others: list[Match] = []
    for glob in globs:
        if "*" not in glob and "?" not in glob:
            words.add(glob)
        elif glob.endswith("*") and "*" not in glob[:-1] and "?" not in glob:
            heads.append(glob[:-1])
        else:
            others.append(compile_glob(glob))
    starts = tuple(heads)

    def match(text: str) -> bool:
        return text in words or text.startswith(starts) or any(other(text) for other in others)

    return match


def _compile_loose(head: str, middle: list[str], tail: str) -> Match:
    starts = _pattern_of(head).match if "?" in head else None
    ends = _pattern_of(tail).match if "?" in tail else None
    parts, last_gap = _parts_of(middle)

    def match(text: str) -> bool:
        position, end = len(head), len(text) - len(tail)
        if position > end:
            return False
        if not (text.startswith(head) if starts is None else starts(text)):
            return False
        if not (text.endswith(tail) if ends is None else ends(text, end)):
            return False
        for gap, wanted, pattern in parts:
            if pattern is None:
                place = text.find(wanted, position + gap, end)
                if place < 0:
                    return False
            else:
                found = pattern.search(text, position + gap, end)
                if found is None:
                    return False
                place = found.start()
            position = place + len(wanted)
        return position + last_gap <= end

    return match


def _parts_of(middle: list[str]) -> tuple[list[_Part], int]:
    """Return the parts between stars, and how many characters must follow the last one."""
    parts: list[_Part] = []
    gap = 0
    for text in middle:
        inner = text.strip("?")
        if not inner:
            gap += len(text)
            continue
        gap += len(text) - len(text.lstrip("?"))
        parts.append(_Part(gap, inner, _pattern_of(inner) if "?" in inner else None))
        gap = len(text) - len(text.rstrip("?"))
    return parts, gap


def _pattern_of(text: str) -> re.Pattern[str]:
    """Return a pattern of characters and question marks, without a star."""
    return re.compile("".join("." if c == "?" else re.escape(c) for c in text), re.DOTALL)
