"""Filters of a subscription: which messages of a batch it wants, by attributes and key.

A filter looks at columns, never at payloads. A batch without the column costs one test.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from ister.base.errors import BadRequestError
from ister.base.limits import FILTERS_BYTES_MAX, FILTERS_MAX
from ister.codec import Batch
from ister.subscriptions.globs import Match, check_glob, compile_glob
from ister.subscriptions.ring import KeyMatcher


class Filter:
    """Attribute globs, all of which must match, and key globs, one of which must match."""

    __slots__ = ("_attributes", "_keys", "attributes", "key_globs", "takes_all", "weight")

    def __init__(self, attributes: Mapping[str, str], key_globs: Sequence[str]) -> None:
        self.attributes = dict(attributes)
        self.key_globs = tuple(key_globs)
        self._attributes: dict[str, Match] = {
            name: compile_glob(glob) for name, glob in attributes.items()
        }
        self._keys = KeyMatcher(key_globs)
        # Whether there is nothing to look at.
        self.takes_all = not attributes and not key_globs
        # Globs that are looked at for each message.
        self.weight = len(attributes) + len(key_globs)

    def select(self, batch: Batch) -> list[int] | None:
        """Return the slots of the wanted messages, or `None` for all of them."""
        if self.takes_all:
            return None
        slots = self.select_between(batch, 0, len(batch))
        return None if len(slots) == len(batch) else list(slots)

    def select_between(self, batch: Batch, start: int, end: int) -> Sequence[int]:
        """Return the slots of the wanted ones among messages `start` to `end`."""
        slots: Sequence[int] = range(start, end)
        if self.key_globs:
            # A message without a key counts as one with an empty key, as on the ring.
            keys = batch.keys_between(start, end) or [None] * (end - start)
            slots = [s for s in slots if self._keys(keys[s - start] or "")]
        if self._attributes and slots:
            rows = batch.attributes_between(start, end)
            slots = [s for s in slots if rows is not None and self._matches(rows[s - start])]
        return slots

    def _matches(self, attributes: Mapping[str, str]) -> bool:
        return all(
            name in attributes and match(attributes[name])
            for name, match in self._attributes.items()
        )


def piece_end(batch: Batch, start: int, *, weight: int, work_us: int) -> int:
    """Return the end of the messages from `start` on that can be looked at in so much time.

    At least one of them. With each, `weight` globs are compared: 1 µs, and 60 ns for each byte at
    worst. Attributes are decoded, 0.5 µs each.
    """

    def needed_us(end: int) -> int:
        count, size_bytes = batch.texts_between(start, end)
        return weight * (end - start + size_bytes // 16) + count // 2

    last = min(batch.count, start + max(work_us // max(weight, 1), 1))
    if needed_us(last) <= work_us:
        return last
    return start + max(bisect_right(range(start + 1, last), work_us, key=needed_us), 1)


def check_globs(attributes: Mapping[str, str], key_globs: Sequence[str]) -> None:
    """Raise `BadRequestError` when a filter is too large to be evaluated on every batch."""
    if len(attributes) + len(key_globs) > FILTERS_MAX:
        raise BadRequestError(f"a subscription takes at most {FILTERS_MAX} filters")
    for glob in (*attributes, *attributes.values(), *key_globs):
        check_glob(glob)
    size_bytes = sum(len(g.encode()) for g in (*attributes, *attributes.values(), *key_globs))
    if size_bytes > FILTERS_BYTES_MAX:
        raise BadRequestError(f"filters of {size_bytes} B exceed {FILTERS_BYTES_MAX} B together")
