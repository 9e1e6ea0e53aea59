"""Key compaction: of each key only the newest message is kept.

A message without a key is always kept. One without a payload deletes its key: it goes itself once
it is old enough for every reader to have seen it.
"""

from ister.codec import Batch

# Keys whose newest offset is known at once: about 150 B each.
KEYS_MAX = 1_000_000


class KeyMap:
    """The newest offset of each key."""

    def __init__(self, keys_max: int = KEYS_MAX) -> None:
        self._newest: dict[str, int] = {}
        self._keys_max = keys_max

    def add(self, batch: Batch) -> None:
        """Take in the keys of a batch, which must come after all others.

        A key that finds no room is not known: its older messages stay until another time.
        """
        keys = batch.keys
        if keys is None:
            return
        newest = self._newest
        for key, offset in zip(keys, batch.offsets, strict=True):
            if key is not None and (key in newest or len(newest) < self._keys_max):
                newest[key] = offset

    def is_newest(self, key: str, offset: int) -> bool:
        """Tell whether no newer message of `key` is known."""
        return self._newest.get(key, offset) <= offset


def newest_only(batch: Batch, keys: KeyMap, tombstones_before_ms: int) -> Batch | None:
    """Return what is left of a batch, itself if that is everything; `None` if it is nothing."""
    names = batch.keys
    if names is None:
        return batch
    drop_tombstones = batch.publish_time_ms < tombstones_before_ms
    slots = [
        slot
        for slot, (key, offset) in enumerate(zip(names, batch.offsets, strict=True))
        if key is None or keys.is_newest(key, offset)
    ]
    if drop_tombstones:
        payloads = batch.payloads
        slots = [slot for slot in slots if names[slot] is None or payloads[slot]]
    if len(slots) == batch.count:
        return batch
    return batch.select(slots) if slots else None
