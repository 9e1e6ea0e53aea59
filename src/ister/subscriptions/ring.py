"""Consistent hashing: which consumer of a key-shared subscription owns a key.

Every consumer stands at many points of a ring; a key belongs to the next point clockwise. A
consumer that joins takes over only what lies before its own points, and one that leaves gives
up only its own keys, so most keys stay where they are.

Always true: joining and leaving cost the same however many consumers there are, but for a copy of a
few KiB; consumers with the same key filters share a circle, so that a key is matched once for all.
"""

from bisect import bisect
from collections.abc import Sequence
from hashlib import blake2b

from ister.codec import Batch
from ister.subscriptions.globs import compile_globs, weigh

# With 64 points a share is within about ±25 % of even for any number of consumers; 256 would
# halve that, at four times the cost of a join.
POINTS = 64

# Owners already worked out; more keys than this in use are worked out anew. About 150 B each, and
# the key: longer ones are not kept, so that a ring has 15 MB of them at most.
CACHED_KEYS_MAX = 65_536
CACHED_KEY_CHARACTERS_MAX = 64

# Finding the owner of a key takes as long as comparing so many globs.
OWNER_WEIGHT = 4

# A circle with more consumers than this is kept in 256 arcs, by the first 8 bits of a point: of
# 10,000 consumers 2,500 points in each. The arcs alone take 30 KiB.
FEW_CONSUMERS = 64
ARC_BITS = 8


def keys_of(batch: Batch, start: int = 0, end: int | None = None) -> list[str]:
    """Return the key of messages `start` to `end`: its own, else the name of its producer.

    So messages without keys keep the order of their producer, and are shared all the same.
    """
    name = batch.producer
    end = batch.count if end is None else end
    keys = batch.keys_between(start, end)
    if keys is None:
        return [name] * (end - start)
    return [name if key is None else key for key in keys]


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


class KeyMatcher:
    """Globs over keys: `*` any run, `?` one character, OR-ed. Without globs all keys match."""

    __slots__ = ("_match", "globs", "weight")

    def __init__(self, globs: Sequence[str]) -> None:
        self.globs = tuple(globs)
        self._match = compile_globs(globs) if globs else None
        # How long a match takes, in plain globs.
        self.weight = sum(map(weigh, globs))

    def __call__(self, key: str) -> bool:
        return self._match is None or self._match(key)


class _Circle:
    """The points of consumers that have the same key filters."""

    __slots__ = ("_names", "_points", "_shift", "count", "matcher")

    def __init__(self, matcher: KeyMatcher) -> None:
        self.matcher = matcher
        # Consumers.
        self.count = 0
        # By arc; the arc of a point is what is left of it after a shift.
        self._points: list[list[int]] = [[]]
        self._names: list[list[str]] = [[]]
        self._shift = 64

    def add(self, name: str) -> None:
        self.count += 1
        if self.count > FEW_CONSUMERS and self._shift == 64:
            self._divide()
        for number in range(POINTS):
            point = _hash(f"{name}\0{number}")
            arc = point >> self._shift
            place = bisect(self._points[arc], point)
            self._points[arc].insert(place, point)
            self._names[arc].insert(place, name)

    def remove(self, name: str) -> None:
        self.count -= 1
        for number in range(POINTS):
            point = _hash(f"{name}\0{number}")
            arc = point >> self._shift
            place = bisect(self._points[arc], point) - 1
            while self._names[arc][place] != name:
                place -= 1
            del self._points[arc][place], self._names[arc][place]

    def next_at(self, point: int) -> tuple[int, str]:
        """Return how far the next point clockwise is, and whose; there is one."""
        arc = point >> self._shift
        place = bisect(self._points[arc], point)
        while place == len(self._points[arc]):
            arc, place = (arc + 1) % len(self._points), 0
        return (self._points[arc][place] - point) % (1 << 64), self._names[arc][place]

    def _divide(self) -> None:
        (points,), (names,) = self._points, self._names
        self._shift -= ARC_BITS
        self._points = [[] for _ in range(1 << ARC_BITS)]
        self._names = [[] for _ in range(1 << ARC_BITS)]
        for point, name in zip(points, names, strict=True):
            self._points[point >> self._shift].append(point)
            self._names[point >> self._shift].append(name)


class Ring:
    """The consumers of one key-shared subscription, by name."""

    __slots__ = ("_cache", "_circles", "_members")

    def __init__(self) -> None:
        # By name, the key filters.
        self._members: dict[str, tuple[str, ...]] = {}
        self._circles: dict[tuple[str, ...], _Circle] = {}
        self._cache: dict[str, str | None] = {}

    @property
    def globs(self) -> int:
        """How many globs a key is matched with; slow ones count more than once."""
        return sum(circle.matcher.weight for circle in self._circles.values())

    def globs_with(self, matcher: KeyMatcher) -> int:
        """Return what `globs` would be with this consumer too."""
        return self.globs + (0 if matcher.globs in self._circles else matcher.weight)

    def join(self, name: str, matcher: KeyMatcher) -> None:
        """Add a consumer."""
        self._members[name] = matcher.globs
        circle = self._circles.get(matcher.globs)
        if circle is None:
            circle = self._circles[matcher.globs] = _Circle(matcher)
        circle.add(name)
        self._cache.clear()

    def leave(self, name: str) -> None:
        """Remove a consumer."""
        globs = self._members.pop(name)
        circle = self._circles[globs]
        circle.remove(name)
        if not circle.count:
            del self._circles[globs]
        self._cache.clear()

    def owner(self, key: str) -> str | None:
        """Return the consumer of `key`, or `None` when no consumer's filter takes it."""
        try:
            return self._cache[key]
        except KeyError:
            pass
        found = self._find(key)
        if len(key) <= CACHED_KEY_CHARACTERS_MAX:
            if len(self._cache) >= CACHED_KEYS_MAX:
                self._cache.clear()
            self._cache[key] = found
        return found

    def _find(self, key: str) -> str | None:
        point = _hash(key)
        found = [c.next_at(point) for c in self._circles.values() if c.matcher(key)]
        return min(found)[1] if found else None
