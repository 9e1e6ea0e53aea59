"""The near future of one timeline: the slots of messages that are due, or will be soon.

Always true of each level:
- every message that stands at `complete_to` or before is here, or was taken out to be leased; of
  what stands behind it, some may be here;
- `known` has one slot of a message at most. What stands in a heap and not in `known` is passed
  over when it comes up;
- there are at most `slots_max`: of more, the last ones are left out, and `complete_to` goes back.

A slot is a hint. Whether its message may still be leased is decided by the store, so one that is
out of date costs a refusal; but one that is missing would never be delivered.
"""

from heapq import heapify, heappop, heappush

from ister.timeline import (
    FAR,
    FIRST_KEY,
    LAST_KEY,
    Changed,
    Key,
    Row,
    Scan,
    Slot,
    before,
    key_of,
)

# How far ahead slots are loaded, and how far ahead the window is complete at least, if there is
# room: consumers may be sent messages so long before they are due (PREFETCH_MS_MAX).
WINDOW_MS = 10_000
LEAD_MS = 5_000
# Slots of one level: 4 s at 5,000 messages a second; 350 B each, 7 MB. The levels of a priority
# topic have less room each, as there are 32 of them.
SLOTS_MAX = 20_000
PRIORITY_SLOTS_MAX = 2_000
# Of all topics together: 70 MB. When there are more, each level has a few only.
SLOTS_TOTAL = 200_000
SLOTS_MIN = 100
# Messages that consumers have, of all topics together: 570 B each, 285 MB. Five of the largest
# credits; beyond that nobody is given more before somebody has finished some.
LEASES_TOTAL = 500_000
# Loaded at once: a millisecond of the thread, which others wait for.
SCAN_SLOTS = 2_000
# Slots that are out of date in the heaps of a level, beside as many as are good.
STALE_MAX = 1_000


class Room:
    """What all topics of a broker have in memory: slots, and leases of connected consumers."""

    __slots__ = ("leases", "used")

    def __init__(self) -> None:
        self.used = 0
        self.leases = 0

    @property
    def leases_left(self) -> int:
        """How many messages more may be handed out."""
        return max(0, LEASES_TOTAL - self.leases)


def free_slot(changed: Changed) -> Slot:
    """Return the slot of a message that nobody has since a change."""
    return Slot(changed.position_ms, changed.seq, changed.version, changed.due_ms, held=False)


class Level:
    """The slots of one level."""

    __slots__ = ("complete_to", "free", "held", "known", "loaded", "room", "slots_max")

    def __init__(self, room: Room, slots_max: int) -> None:
        self.room = room
        self.slots_max = slots_max
        self.complete_to = FIRST_KEY
        self.known: dict[int, Slot] = {}
        # Nobody has these: as they were loaded, the last one first; and those that came since.
        self.loaded: list[Slot] = []
        self.free: list[Slot] = []
        # These are leased until they stand where they do.
        self.held: list[Slot] = []

    @property
    def slots_end(self) -> int:
        """How many there may be now."""
        return self.slots_max if self.room.used < SLOTS_TOTAL else SLOTS_MIN

    def add(self, slot: Slot, now_ms: int) -> bool:
        """A message stands here now, and nowhere else; return whether anything has changed."""
        was_known = self.forget(slot.seq)
        if key_of(slot) > self.complete_to:
            return was_known
        if slot.position_ms > now_ms + WINDOW_MS:
            self.complete_to = before(slot)
            return True
        self.keep(slot)
        if len(self.known) > self.slots_max:
            self._trim()
        return True

    def keep(self, slot: Slot) -> None:
        """Have a slot."""
        self.forget(slot.seq)
        self.known[slot.seq] = slot
        self.room.used += 1
        heappush(self.held if slot.held else self.free, slot)

    def forget(self, seq: int) -> bool:
        """Have no slot of a message; return whether there was one."""
        if self.known.pop(seq, None) is None:
            return False
        self.room.used -= 1
        if len(self.loaded) + len(self.free) + len(self.held) > 2 * len(self.known) + STALE_MAX:
            self._rebuild()
        return True

    def load(self, slots: list[Slot]) -> None:
        """Have slots that were loaded, in order: most of them stand behind all there are."""
        if self.loaded and slots and slots[0] < self.loaded[0]:
            # The window was made smaller meanwhile.
            for slot in slots:
                self.keep(slot)
            return
        for slot in slots:
            self.forget(slot.seq)
            self.known[slot.seq] = slot
            if slot.held:
                heappush(self.held, slot)
        self.room.used += len(slots)
        self.loaded = [slot for slot in reversed(slots) if not slot.held] + self.loaded

    def clear(self) -> None:
        """Have no slots, and know nothing of what there is."""
        self.room.used -= len(self.known)
        self.known.clear()
        self.loaded.clear()
        self.free.clear()
        self.held.clear()
        self.complete_to = FIRST_KEY

    def first_free(self) -> Slot | None:
        """Return the first slot that nobody has."""
        loaded, known = self.loaded, self.known
        while loaded and known.get(loaded[-1][1]) is not loaded[-1]:
            loaded.pop()
        added = self._first(self.free)
        if not loaded or added is None:
            return loaded[-1] if loaded else added
        return min(loaded[-1], added)

    def first(self) -> Slot | None:
        """Return the first slot."""
        free, held = self.first_free(), self._first(self.held)
        if free is None or held is None:
            return free or held
        return min(free, held)

    def take_due(self, now_ms: int, limit: int) -> list[Slot]:
        """Take out the first slots that are due."""
        taken: list[Slot] = []
        loaded, free, held, known = self.loaded, self.free, self.held, self.known
        while len(taken) < limit:
            heap = held if held and (not free or held[0] < free[0]) else free
            if loaded and (not heap or loaded[-1] < heap[0]):
                if loaded[-1][0] > now_ms:
                    break
                slot = loaded.pop()
            elif heap and heap[0][0] <= now_ms:
                slot = heappop(heap)
            else:
                break
            if known.get(slot[1]) is slot:
                del known[slot[1]]
                taken.append(slot)
        self.room.used -= len(taken)
        return taken

    def lower(self, key: Key) -> None:
        """Something unknown may stand behind `key`: load it from there."""
        if key < self.complete_to:
            self.complete_to = key
            if len(self.known) > self.slots_end // 2:
                # There would be no room to load it.
                self._cut()

    def _first(self, heap: list[Slot]) -> Slot | None:
        while heap and self.known.get(heap[0].seq) is not heap[0]:
            heappop(heap)
        return heap[0] if heap else None

    def _trim(self) -> None:
        """Leave out the later half."""
        keys = sorted(map(key_of, self.known.values()))
        self.lower(keys[self.slots_max // 2])

    def _cut(self) -> None:
        """Leave out what stands behind `complete_to`."""
        count = len(self.known)
        end = self.complete_to
        self.known = {seq: slot for seq, slot in self.known.items() if key_of(slot) <= end}
        self.room.used -= count - len(self.known)
        self._rebuild()

    def _rebuild(self) -> None:
        self.loaded = []
        self.free = [slot for slot in self.known.values() if not slot.held]
        self.held = [slot for slot in self.known.values() if slot.held]
        heapify(self.free)
        heapify(self.held)


class Window:
    """The slots of a timeline, by level."""

    def __init__(self, room: Room, levels: int) -> None:
        slots_max = SLOTS_MAX if levels == 1 else PRIORITY_SLOTS_MAX
        self.levels = [Level(room, slots_max) for _ in range(levels)]

    def __len__(self) -> int:
        return sum(len(level.known) for level in self.levels)

    def add(self, slot: Slot, level: int | None, now_ms: int) -> bool:
        """A message stands at `slot` since a commit; `level` is `None` when that is not known.

        Return whether anything has changed: not by a message that stands behind all slots.
        """
        if level is None:
            level = self._find_level(slot.seq)
        if level is not None:
            return self.levels[level].add(slot, now_ms)
        for one in self.levels:
            one.lower(before(slot))
        return True

    def lease(self, row: Row, now_ms: int) -> None:
        """A message is leased since a commit: it stands at the end of its lease."""
        level = self.levels[row.level]
        if (row.position_ms, row.seq) <= level.complete_to or row.seq in level.known:
            level.add(Slot(row.position_ms, row.seq, row.version, row.due_ms, held=True), now_ms)

    def forget(self, seq: int) -> None:
        """A message is gone."""
        for level in self.levels:
            if level.forget(seq):
                return

    def clear(self) -> None:
        """Nobody knows what the store has: load it anew."""
        for level in self.levels:
            level.clear()

    # To be handed out

    def take_due(self, now_ms: int, limit: int) -> list[tuple[int, Slot]]:
        """Take out the first messages that are due, with their levels: the lowest goes first."""
        found: list[tuple[int, Slot]] = []
        for number, level in enumerate(self.levels):
            found += [(number, slot) for slot in level.take_due(now_ms, limit - len(found))]
            if len(found) == limit or level.complete_to[0] <= now_ms:
                # Others of this level may be due, and go before those of the next.
                break
        return found

    def take_early(self, level: int) -> None:
        """Take out the first message of a level that nobody has."""
        slot = self.levels[level].first_free()
        assert slot is not None
        self.levels[level].forget(slot.seq)

    def first_free(self, level: int) -> Slot | None:
        """Return the first message of a level that nobody has."""
        return self.levels[level].first_free()

    # When to do something

    def next_ms(self) -> int:
        """Return when the next message comes up."""
        firsts = (level.first() for level in self.levels)
        return min((slot.position_ms for slot in firsts if slot is not None), default=FAR)

    def next_free_ms(self) -> int:
        """Return when the next message is due that nobody has."""
        firsts = (level.first_free() for level in self.levels)
        return min((slot.position_ms for slot in firsts if slot is not None), default=FAR)

    def count_due(self, now_ms: int) -> int:
        """Return how many messages are due, of those in memory."""
        if self.next_ms() > now_ms:
            return 0
        return sum(
            slot.position_ms <= now_ms for level in self.levels for slot in level.known.values()
        )

    # Loading

    def load_ms(self) -> int:
        """Return when to load more."""
        places = (
            level.complete_to[0] - LEAD_MS
            for level in self.levels
            if level.complete_to < LAST_KEY and len(level.known) <= level.slots_end // 2
        )
        return min(places, default=FAR)

    def plan(self, now_ms: int) -> list[Scan]:
        """Return what to load now."""
        return [
            Scan(
                number,
                level.complete_to,
                now_ms + WINDOW_MS,
                min(SCAN_SLOTS, level.slots_end - len(level.known)),
                [],
            )
            for number, level in enumerate(self.levels)
            if level.complete_to[0] - LEAD_MS <= now_ms and len(level.known) <= level.slots_end // 2
        ]

    def loaded(self, scan: Scan) -> None:
        """Have what was found. All that was committed before it was told by now."""
        level = self.levels[scan.level]
        if level.complete_to != scan.after:
            # It went back meanwhile: there may be something between the two.
            return
        level.load(scan.slots)
        level.complete_to = scan.complete_to

    def _find_level(self, seq: int) -> int | None:
        if len(self.levels) == 1:
            return 0
        for number, level in enumerate(self.levels):
            if seq in level.known:
                return number
        return None
