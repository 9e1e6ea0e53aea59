"""Whether a pattern reads every text at full speed.

The library matches with an automaton. It makes a state when a text first leads there, and has room
for 256 KiB of them: a pattern with few states in all reads any text at hundreds of MB/s. There are
patterns with more states than any memory has room for. For those a text can be chosen that makes
the library simulate the pattern, a thousand times slower.

So the states are counted. Syntax that libraries understand differently is given up on, and so is
what takes long to count: then the pattern counts as slow. That is never wrong, only strict.
"""

import string
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

# States of the library's automaton: each takes 200 to 400 B of the 256 KiB.
STATES_MAX = 400
# A character beyond ASCII has several bytes, with a state behind each: so many for a state of ours
# that takes all of them alike, and for one that looks for spaces among them.
WIDE_STATES = 4
SPACES_STATES = 20
# Handwritten ones have a hundred characters. 2 µs each.
PATTERN_CHARS_MAX = 2_000
# Places in a pattern, with each repetition written out, and levels of brackets.
PLACES_MAX = 1_000
LEVELS_MAX = 16
# Looks at places while counting, 0.2 µs each.
LOOKS_MAX = 50_000

# A set of characters has a bit for each: ASCII, spaces beyond it, and all others.
_ASCII = (1 << 128) - 1
_SPACES = 1 << 128
_OTHERS = 1 << 129
_ALL = _ASCII | _SPACES | _OTHERS


def _set_of(characters: Iterable[str]) -> int:
    bits = 0
    for one in characters:
        bits |= 1 << ord(one)
    return bits


_DIGITS = _set_of(string.digits)
_WORDS = _set_of(string.ascii_letters + string.digits + "_")
_BLANKS = _set_of(" \t\n\r\f\v") | _SPACES
_ESCAPES = {
    "d": _DIGITS,
    "D": _ALL & ~_DIGITS,
    "w": _WORDS,
    "W": _ALL & ~_WORDS,
    "s": _BLANKS,
    "S": _ALL & ~_BLANKS,
    **{name: _set_of(one) for name, one in zip("tnrfv", "\t\n\r\f\v", strict=True)},
    **{one: _set_of(one) for one in string.punctuation},
}
_DOT = _ALL & ~_set_of("\n\r")
_SPECIAL = frozenset("^$\\.*+?()[]{}|")


class _GivenUpError(Exception):
    """It cannot be told, or not soon."""


def is_fast(pattern: str) -> bool:
    """Return whether a pattern is known to read every text at full speed."""
    if len(pattern) > PATTERN_CHARS_MAX:
        return False
    try:
        return _Places(_Parser(pattern).parse()).count_states() <= STATES_MAX
    except _GivenUpError:
        return False


class _Choice(NamedTuple):
    """One of several sequences."""

    choices: "list[list[_Part]]"


class _Repeated(NamedTuple):
    """A part, so often at least and, unless `None`, at most."""

    part: "_Part"
    least: int
    most: int | None


_Part: TypeAlias = int | _Choice | _Repeated


class _Places:
    """The places of a pattern, and where each character leads from there. It begins at place 0."""

    def __init__(self, alternatives: list[tuple[bool, list[_Part]]]) -> None:
        self._moves: list[list[tuple[int, int]]] = [[]]
        self._skips: list[list[int]] = [[]]
        anywhere = 0
        if not all(at_start for at_start, _ in alternatives):
            anywhere = self._add()
            self._skips[0].append(anywhere)
            self._moves[anywhere].append((_ALL, anywhere))
        for at_start, parts in alternatives:
            self._lay_out(parts, 0 if at_start else anywhere)

    def _add(self) -> int:
        if len(self._moves) >= PLACES_MAX:
            raise _GivenUpError
        self._moves.append([])
        self._skips.append([])
        return len(self._moves) - 1

    def _lay_out(self, parts: list[_Part], start: int) -> int:
        """Add the places of parts behind each other from a place, and return the last place."""
        for part in parts:
            if isinstance(part, int):
                end = self._add()
                self._moves[start].append((part, end))
            elif isinstance(part, _Choice):
                end = self._add()
                for choice in part.choices:
                    inner = self._add()
                    self._skips[start].append(inner)
                    self._skips[self._lay_out(choice, inner)].append(end)
            else:
                end = self._repeat(part, start)
            start = end
        return start

    def _repeat(self, repeated: _Repeated, start: int) -> int:
        part, least, most = repeated
        for _ in range(least):
            start = self._lay_out([part], start)
        end = self._add()
        self._skips[start].append(end)
        if most is None:
            self._skips[self._lay_out([part], end)].append(end)
        else:
            for _ in range(most - least):
                start = self._lay_out([part], start)
                self._skips[start].append(end)
        return end

    def count_states(self) -> int:
        """Return how many states the library may make, or a number above `STATES_MAX`."""
        first = self._reached([0])
        known, waiting = {first}, [first]
        left, total = LOOKS_MAX, 0
        while waiting and total <= STATES_MAX:
            state = waiting.pop()
            moves = [move for place in state for move in self._moves[place]]
            parts = _parts_of(characters for characters, _ in moves)
            left -= 1 + len(state) + len(moves) * (1 + len(parts))
            if left < 0:
                raise _GivenUpError
            spaces = others = frozenset[int]()
            for part in parts:
                found = self._reached(end for characters, end in moves if characters & part)
                left -= len(found)
                spaces = found if part & _SPACES else spaces
                others = found if part & _OTHERS else others
                if found not in known:
                    known.add(found)
                    waiting.append(found)
            total += 1
            if spaces or others:
                total += WIDE_STATES if spaces == others else SPACES_STATES
        return total

    def _reached(self, places: Iterable[int]) -> frozenset[int]:
        """Return all places that can be skipped to."""
        found: set[int] = set()
        waiting = list(places)
        while waiting:
            place = waiting.pop()
            if place not in found:
                found.add(place)
                waiting += self._skips[place]
        return frozenset(found)


def _parts_of(sets: Iterable[int]) -> list[int]:
    """Return the sets of characters that all of `sets` take alike; without those none takes."""
    parts: list[int] = []
    for characters in set(sets):
        rest, divided = characters, []
        for part in parts:
            divided += [one for one in (part & characters, part & ~characters) if one]
            rest &= ~part
        parts = [*divided, rest] if rest else divided
    return parts


class _Parser:
    """Goes through a pattern once. A part is a set of characters, a choice or a repetition."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._position = 0

    def parse(self) -> list[tuple[bool, list[_Part]]]:
        """Return the alternatives, and whether each begins at the start. Raises `_GivenUpError`."""
        found = []
        while True:
            found.append((self._take("^"), self._sequence(0)))
            self._take("$")
            if not self._take("|"):
                break
        if self._position < len(self._text):
            raise _GivenUpError
        return found

    def _take(self, wanted: str) -> bool:
        found = self._text.startswith(wanted, self._position)
        self._position += len(wanted) if found else 0
        return found

    def _next(self) -> str:
        if self._position >= len(self._text):
            raise _GivenUpError
        self._position += 1
        return self._text[self._position - 1]

    def _sequence(self, level: int) -> list[_Part]:
        found: list[_Part] = []
        while self._position < len(self._text) and self._text[self._position] not in "|)$":
            part = self._part(level)
            least, most = self._times()
            found.append(part if least == most == 1 else _Repeated(part, least, most))
        return found

    def _times(self) -> tuple[int, int | None]:
        """Read how often the part before is repeated."""
        if self._take("*"):
            times: tuple[int, int | None] = (0, None)
        elif self._take("+"):
            times = (1, None)
        elif self._take("?"):
            times = (0, 1)
        elif self._take("{"):
            least, comma, most = self._until("}").partition(",")
            if not least.isdecimal() or not (most or "0").isdecimal() or len(least + most) > 8:
                raise _GivenUpError
            times = (int(least), (int(most) if most else None) if comma else int(least))
        else:
            return 1, 1
        self._take("?")  # Rather few: the same texts match.
        if self._position < len(self._text) and self._text[self._position] in "*+?{":
            raise _GivenUpError
        return times

    def _until(self, end: str) -> str:
        start = self._position
        while self._next() != end:
            pass
        return self._text[start : self._position - 1]

    def _part(self, level: int) -> _Part:
        one = self._next()
        if one == "(":
            return self._group(level + 1)
        if one == "[":
            return self._class()
        if one == ".":
            return _DOT
        if one == "\\":
            return self._escape()
        if one in _SPECIAL or not one.isascii():
            raise _GivenUpError
        return _set_of(one)

    def _group(self, level: int) -> _Part:
        if level > LEVELS_MAX or (self._take("?") and not self._take(":")):
            raise _GivenUpError
        choices = [self._sequence(level)]
        while not self._take(")"):
            if not self._take("|"):
                raise _GivenUpError
            choices.append(self._sequence(level))
        return _Choice(choices)

    def _escape(self) -> int:
        characters = _ESCAPES.get(self._next())
        if characters is None:
            raise _GivenUpError
        return characters

    def _class(self) -> int:
        is_negated = self._take("^")
        found = 0
        while not self._take("]"):
            first = self._member()
            if not self._take("-"):
                found |= first
            elif self._text.startswith("]", self._position):
                found |= first | _set_of("-")
            else:
                last = self._member()
                # A set, as `\d`, begins or ends no range.
                if first.bit_count() != 1 or last.bit_count() != 1 or last < first:
                    raise _GivenUpError
                found |= (last << 1) - first
        if not found:
            raise _GivenUpError
        return _ALL & ~found if is_negated else found

    def _member(self) -> int:
        # Some libraries know sets within sets, and what is in two of them.
        if any(self._text.startswith(two, self._position) for two in ("&&", "--", "~~", "[")):
            raise _GivenUpError
        one = self._next()
        if one == "\\":
            return self._escape()
        if not one.isascii():
            raise _GivenUpError
        return _set_of(one)
