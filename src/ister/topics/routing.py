"""Which partition a message goes to.

A message with a key goes to FNV-1a(key) modulo the number of partitions: the hash Danube's
clients use, so that both kinds of client keep a key's messages in one partition. A message
without a key goes to the partitions in turn.
"""

_FNV_BASIS = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = 0xFFFF_FFFF_FFFF_FFFF

# Hashing costs microseconds, a lookup 30 ns. Topics with more keys than this in use hash anew.
CACHED_KEYS_MAX = 65_536


def fnv1a(data: bytes) -> int:
    """Return the 64-bit FNV-1a hash of `data`."""
    value = _FNV_BASIS
    for byte in data:
        value = ((value ^ byte) * _FNV_PRIME) & _MASK
    return value


class Router:
    """Picks partitions for the messages of one producer."""

    __slots__ = ("_cache", "_next", "partitions")

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self._next = 0
        self._cache: dict[str, int] = {}

    def route(self, key: str | None) -> int:
        """Return the partition of the next message."""
        if key is None:
            partition = self._next
            self._next = (partition + 1) % self.partitions
            return partition
        found = self._cache.get(key)
        if found is None:
            if len(self._cache) >= CACHED_KEYS_MAX:
                self._cache.clear()
            found = self._cache[key] = fnv1a(key.encode()) % self.partitions
        return found
