"""Consistent hashing: which consumer of a key-shared subscription owns a key.

Every consumer stands at many points of a ring; a key belongs to the next point clockwise. A
consumer that joins takes over only what lies before its own points, and one that leaves gives
up only its own keys, so most keys stay where they are.
"""

import re
from bisect import bisect
from collections.abc import Sequence
from fnmatch import translate
from hashlib import blake2b
from itertools import compress

from ister.codec import Batch

# With 64 points a share is within about ±25 % of even for any number of consumers; 256 would
# halve that, at four times the cost of a join.
POINTS = 64

# Owners already worked out; more keys than this in use are worked out anew.
CACHED_KEYS_MAX = 65_536


def keys_of(batch: Batch) -> list[str]:
    """Return the key of every message: its own, else the name of its producer.

    So messages without keys keep the order of their producer, and are shared all the same.
    """
    name = batch.producer
    keys = batch.keys
    if keys is None:
        return [name] * batch.count
    return [name if key is None else key for key in keys]


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


class KeyMatcher:
    """Globs over keys: `*` any run, `?` one character, OR-ed. Without globs all keys match."""

    __slots__ = ("_pattern", "globs")

    def __init__(self, globs: Sequence[str]) -> None:
        self.globs = tuple(globs)
        # A bracket is an ordinary character here, so it must not open a set.
        alternatives = "|".join(translate(g.replace("[", "[[]")) for g in globs)
        self._pattern: re.Pattern[str] | None = re.compile(alternatives) if globs else None

    def __call__(self, key: str) -> bool:
        return self._pattern is None or self._pattern.match(key) is not None


class Ring:
    """The consumers of one key-shared subscription, by name."""

    __slots__ = ("_cache", "_members", "_names", "_points")

    def __init__(self) -> None:
        self._members: dict[str, KeyMatcher] = {}
        self._points: list[int] = []
        self._names: list[str] = []
        self._cache: dict[str, str | None] = {}

    def join(self, name: str, matcher: KeyMatcher) -> None:
        """Add a consumer."""
        self._members[name] = matcher
        for number in range(POINTS):
            point = _hash(f"{name}\0{number}")
            place = bisect(self._points, point)
            self._points.insert(place, point)
            self._names.insert(place, name)
        self._cache.clear()

    def leave(self, name: str) -> None:
        """Remove a consumer."""
        del self._members[name]
        stays = [other != name for other in self._names]
        self._points = list(compress(self._points, stays))
        self._names = list(compress(self._names, stays))
        self._cache.clear()

    def owner(self, key: str) -> str | None:
        """Return the consumer of `key`, or `None` when no consumer's filter takes it."""
        try:
            return self._cache[key]
        except KeyError:
            pass
        if len(self._cache) >= CACHED_KEYS_MAX:
            self._cache.clear()
        found = self._cache[key] = self._find(key)
        return found

    def _find(self, key: str) -> str | None:
        start = bisect(self._points, _hash(key))
        refused: set[str] = set()
        count = len(self._names)
        for step in range(count):
            name = self._names[(start + step) % count]
            if name in refused:
                continue
            if self._members[name](key):
                return name
            refused.add(name)
            if len(refused) == len(self._members):
                break
        return None
