"""At most one message of a key in flight: the order of a key-shared subscription that asks for it.

Always true: of each key at most one message is admitted; the others of that key that came are
parked behind it in the order they came, and the next is admitted when it is done. A message that
is to be delivered again stays admitted, so that the later ones of its key wait for it.

Work here is for each message, since each has a key of its own.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

# Messages that wait behind another of their key: about 250 B each, so 16 MB for one topic.
PARKED_MAX = 65_536


class Admission(NamedTuple):
    """Which messages may go now, by slot; those from slot `end` on were not looked at."""

    slots: list[int]
    end: int


class KeyGate:
    """Lets one message of each key through at a time. One for each topic of a subscription."""

    __slots__ = ("_current", "_following", "_keys", "_last", "parked", "parked_max")

    def __init__(self, parked_max: int = PARKED_MAX) -> None:
        self.parked_max = parked_max
        # Messages that wait behind another.
        self.parked = 0
        # The key of each message, admitted or parked.
        self._keys: dict[int, str] = {}
        # Of each key the message that is admitted, and the last one in its line.
        self._current: dict[str, int] = {}
        self._last: dict[str, int] = {}
        # A line: behind each message the next of its key. A queue for each key would cost more
        # than all its messages, of which there are mostly one or two.
        self._following: dict[int, int] = {}

    def admit(self, keys: Sequence[str], offsets: Sequence[int]) -> Admission:
        """Let messages through whose key is free, or that are admitted already; park the others.

        Offsets rise from call to call, except for those to be delivered again. Ends early, at the
        first message that would have to be parked beyond `parked_max`.
        """
        slots: list[int] = []
        for slot, (key, offset) in enumerate(zip(keys, offsets, strict=True)):
            current = self._current.get(key)
            if current is None:
                self._keys[offset] = key
                self._current[key] = self._last[key] = offset
                slots.append(slot)
            elif current == offset:
                slots.append(slot)
            elif offset not in self._keys:
                if self.parked >= self.parked_max:
                    return Admission(slots, slot)
                self._keys[offset] = key
                self._following[self._last[key]] = offset
                self._last[key] = offset
                self.parked += 1
        return Admission(slots, len(offsets))

    def done(self, offsets: Iterable[int]) -> list[int]:
        """Forget messages that are acknowledged; return those admitted in their place, rising."""
        freed: set[int] = set()
        for offset in offsets:
            key = self._keys.pop(offset, None)
            if key is None:
                continue
            if self._current[key] == offset:
                freed.discard(offset)
                freed.update(self._admit_next(key, offset))
            else:
                # It keeps its place in the line until its turn comes, and is left out then.
                self.parked -= 1
        return sorted(freed)

    def done_within(self, start: int, end: int) -> list[int]:
        """Forget every message of a range; return those admitted in their place, rising."""
        if end - start <= len(self._keys):
            return self.done(range(start, end))
        return self.done(sorted(offset for offset in self._keys if start <= offset < end))

    def key_of(self, offset: int) -> str:
        """Return the key of a message that is admitted or parked."""
        return self._keys[offset]

    def clear(self) -> None:
        """Forget everything."""
        self.parked = 0
        self._keys.clear()
        self._current.clear()
        self._last.clear()
        self._following.clear()

    def _admit_next(self, key: str, offset: int) -> list[int]:
        following = self._following.pop(offset, None)
        while following is not None and following not in self._keys:
            following = self._following.pop(following, None)
        if following is None:
            del self._current[key], self._last[key]
            return []
        self._current[key] = following
        self.parked -= 1
        return [following]
