"""Filters of a subscription: which messages of a batch it wants, by attributes and key.

A filter looks at columns, never at payloads. A batch without the column costs one test.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import translate

from ister.base.errors import BadRequestError
from ister.base.limits import FILTERS_BYTES_MAX, FILTERS_MAX, KEY_BYTES_MAX
from ister.codec import Batch
from ister.subscriptions.ring import KeyMatcher


class Filter:
    """Attribute globs, all of which must match, and key globs, one of which must match."""

    __slots__ = ("_attributes", "_keys", "attributes", "key_globs", "takes_all")

    def __init__(self, attributes: Mapping[str, str], key_globs: Sequence[str]) -> None:
        self.attributes = dict(attributes)
        self.key_globs = tuple(key_globs)
        self._attributes: dict[str, re.Pattern[str]] = {
            name: re.compile(translate(glob.replace("[", "[[]")))
            for name, glob in attributes.items()
        }
        self._keys = KeyMatcher(key_globs)
        # Whether there is nothing to look at.
        self.takes_all = not attributes and not key_globs

    def select(self, batch: Batch) -> list[int] | None:
        """Return the slots of the wanted messages, or `None` for all of them."""
        if self.takes_all:
            return None
        slots: Sequence[int] = range(len(batch))
        if self.key_globs:
            # A message without a key counts as one with an empty key, as on the ring.
            keys = batch.keys or [None] * len(batch)
            slots = [s for s in slots if self._keys(keys[s] or "")]
        if self._attributes:
            rows = batch.attributes
            slots = [s for s in slots if rows is not None and self._matches(rows[s])]
        return None if len(slots) == len(batch) else list(slots)

    def _matches(self, attributes: Mapping[str, str]) -> bool:
        return all(
            name in attributes and pattern.match(attributes[name])
            for name, pattern in self._attributes.items()
        )


def check_globs(attributes: Mapping[str, str], key_globs: Sequence[str]) -> None:
    """Raise `BadRequestError` when a filter is too large to be evaluated on every batch."""
    if len(attributes) + len(key_globs) > FILTERS_MAX:
        raise BadRequestError(f"a subscription takes at most {FILTERS_MAX} filters")
    for glob in (*attributes, *attributes.values(), *key_globs):
        # Every star may backtrack over the whole value: bound their number, and the value is
        # bounded by its own limit.
        if len(glob) > KEY_BYTES_MAX or glob.count("*") > 4:
            raise BadRequestError(f"filter {glob[:40]!r} is too long or has more than 4 stars")
    size_bytes = sum(len(g.encode()) for g in (*attributes, *attributes.values(), *key_globs))
    if size_bytes > FILTERS_BYTES_MAX:
        raise BadRequestError(f"filters of {size_bytes} B exceed {FILTERS_BYTES_MAX} B together")
