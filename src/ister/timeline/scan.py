"""Loading the near future of a topic. Calls of a store."""

from collections.abc import Sequence
from typing import NamedTuple

from ister.timeline.calls import Slots
from ister.timeline.model import FAR, Slot
from ister.timeline.port import Store

Key = tuple[int, int]
# Before and behind all keys.
FIRST_KEY: Key = (-FAR, 0)
LAST_KEY: Key = (FAR, FAR)


class Scan(NamedTuple):
    """What to load of a level, and then what was found."""

    level: int
    after: Key
    until_ms: int
    limit: int
    slots: list[Slot]
    complete_to: Key = FIRST_KEY

    def run(self, store: Store, topic: int) -> "Scan":
        """Load it."""
        slots = Slots(store.scan(topic, self.level, self.after, self.until_ms, self.limit))
        if len(slots) == self.limit:
            return self._replace(slots=slots, complete_to=key_of(slots[-1]))
        # Nothing is left until then. Where the next one stands tells when to look again.
        next_ones = store.scan(topic, self.level, (self.until_ms, FAR), FAR, 1)
        complete_to = before(next_ones[0]) if next_ones else LAST_KEY
        return self._replace(slots=slots, complete_to=complete_to)


def run_scans(store: Store, topic: int, scans: Sequence[Scan]) -> list[Scan]:
    """Load some levels of a topic."""
    return [scan.run(store, topic) for scan in scans]


def key_of(slot: Slot) -> Key:
    """Return where a slot stands in the order."""
    return slot.position_ms, slot.seq


def before(slot: Slot) -> Key:
    """Return the last place before a slot."""
    return slot.position_ms, slot.seq - 1
