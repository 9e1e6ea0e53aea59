"""Each message goes to the owner of its key; messages that must wait are queued by owner.

Always true:
- a queued message is held by its partition's `Deliveries`, so that nobody else hands it out, and
  waits under the owner of its key as the ring has it now (nobody's: under ""), among those to be
  sorted after the ring has changed, or in the gate behind another message of its key;
- nothing is handed out while something is to be sorted;
- while messages are queued for an owner, later ones of the same topic are queued behind them, so
  that those of one key leave in order.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from ister.codec import Batch
from ister.subscriptions.filters import piece_end
from ister.subscriptions.planning.effects import (
    Deliver,
    Effect,
    Hold,
    KeyOwners,
    Member,
    Plannable,
    Purpose,
    Skip,
)
from ister.subscriptions.planning.selection import fresh, slots_of
from ister.subscriptions.ring import OWNER_WEIGHT, keys_of

# Messages of one topic that are queued; with more, nothing of it is handed out until some went.
QUEUED_MAX = 16_384
# Of these, sorted by owner between two looks at the clock when consumers come and go: 3 µs each,
# more with many globs. All topics of a subscription may have queued as much as may be in flight.
SORTED_AT_ONCE = 64
# Messages whose owners are looked for in one go, and how long that may take.
KEYED_AT_ONCE = 4_096
KEYED_US = 8_000


class KeyShared:
    """Gives messages to the owners of their keys, and queues those that wait for room there.

    `room` says how many more messages may be in flight: queued ones do not count there.
    """

    in_order = False

    def __init__(self, members: KeyOwners, room: Callable[[], int]) -> None:
        self._members = members
        self._room = room
        # By owner, the partitions that have something for it.
        self._partitions: dict[str, dict[Plannable, None]] = {}
        # Queued under owners of before.
        self._unsorted: list[tuple[Plannable, list[tuple[int, str]]]] = []

    @property
    def is_ready(self) -> bool:
        """Whether any consumer can be sent something now."""
        return any(member.ready for member in self._members.by_name.values())

    @property
    def credit(self) -> int:
        """How many messages can be dealt with now: those without room for them are queued."""
        return KEYED_AT_ONCE

    def share(
        self, partition: Plannable, batch: Batch, slots: Sequence[int], attempt: int
    ) -> Iterator[Effect]:
        """Give messages to the owners of their keys, or queue them."""
        if self.is_full(partition):
            return
        offsets, first = batch.offsets, slots[0]
        weight = OWNER_WEIGHT + self._members.ring.globs
        end = piece_end(batch, first, weight=weight, work_us=KEYED_US)
        slots = slots[: bisect_left(slots, end)]
        keys = keys_of(batch, first, slots[-1] + 1)
        if partition.gate is not None:
            its_keys = [keys[s - first] for s in slots]
            admission = partition.gate.admit(its_keys, [offsets[s] for s in slots])
            slots = slots[: admission.end]
            if not slots:
                return
            yield Hold([offsets[s] for s in slots])
            slots = [slots[n] for n in admission.slots]
        else:
            yield Hold([offsets[s] for s in slots])
        for owner, its_slots in self._by_owner(slots, keys, first).items():
            member = None if owner in partition.queued else self._members.by_name.get(owner)
            given = 0 if member is None else self._fitting(member, len(its_slots))
            if member is not None and given:
                yield Deliver(member, batch, its_slots[:given], attempt)
            if given < len(its_slots):
                left = [(offsets[s], keys[s - first]) for s in its_slots[given:]]
                self._queue(partition, owner, left)

    def _fitting(self, member: Member, count: int) -> int:
        """Return how many of `count` messages a consumer can be sent now."""
        return max(min(count, member.credit_count, self._room()), 0) if member.ready else 0

    def is_full(self, partition: Plannable) -> bool:
        """Whether so much of a topic is queued that nothing more of it is taken."""
        gated = partition.gate.parked if partition.gate is not None else 0
        return gated + partition.queued_count >= QUEUED_MAX

    def ready_partitions(self) -> list[Plannable]:
        """Return the partitions that have something queued for consumers with room."""
        by_name = self._members.by_name
        partitions = {
            partition: None
            for owner, partitions in self._partitions.items()
            if owner in by_name and by_name[owner].ready
            for partition in partitions
        }
        return list(partitions)

    def on_done(self, partition: Plannable, start: int, end: int) -> None:
        """Messages are done: the next ones of their keys may go."""
        gate = partition.gate
        if gate is None:
            return
        for offset in gate.done_within(start, end):
            if partition.deliveries.is_exhausted(offset):
                continue  # It is on its way to the dead letters, and the next waits for that.
            key = gate.key_of(offset)
            self._queue(partition, self._members.ring.owner(key) or "", [(offset, key)])

    def reroute(self) -> None:
        """The owners of keys have changed: what is queued is sorted anew by `sort`."""
        partitions = {partition: None for some in self._partitions.values() for partition in some}
        self._partitions.clear()
        for partition in partitions:
            self._unsorted += [(partition, heap) for heap in partition.queued.values()]
            partition.queued.clear()

    def sort(self, is_over: Callable[[], bool]) -> bool:
        """Sort what is queued by owner until the turn `is_over`; return whether all of it is."""
        owner_of = self._members.ring.owner
        while self._unsorted:
            partition, entries = self._unsorted[-1]
            some = entries[-SORTED_AT_ONCE:]
            del entries[-SORTED_AT_ONCE:]
            if not entries:
                self._unsorted.pop()
            for entry in some:
                self._queue_one(partition, owner_of(entry[1]) or "", entry)
            if self._unsorted and is_over():
                return False
        return True

    def trim(self, partition: Plannable, first_offset: int) -> None:
        """Everything below `first_offset` is gone."""
        if partition.queued_count:
            queued = [entry for heap in partition.queued.values() for entry in heap]
            for other, heap in self._unsorted:
                queued += heap if other is partition else ()
            self.forget(partition)
            left = [entry for entry in queued if entry[0] >= first_offset]
            partition.queued_count = len(left)
            self._unsorted.append((partition, left))
        self.on_done(partition, 0, first_offset)

    def forget(self, partition: Plannable) -> None:
        """A partition starts over, or is gone."""
        for owner in partition.queued:
            self._leave(owner, partition)
        partition.queued.clear()
        partition.queued_count = 0
        self._unsorted = [one for one in self._unsorted if one[0] is not partition]

    def _by_owner(
        self, slots: Sequence[int], keys: Sequence[str], first: int
    ) -> dict[str, list[int]]:
        """Return the slots by owner; `keys` are those of the messages from slot `first` on."""
        owner_of = self._members.ring.owner
        by_owner: dict[str, list[int]] = {}
        for slot in slots:
            owner = owner_of(keys[slot - first]) or ""
            its_slots = by_owner.get(owner)
            if its_slots is None:
                by_owner[owner] = [slot]
            else:
                its_slots.append(slot)
        return by_owner

    def _queue(self, partition: Plannable, owner: str, entries: Sequence[tuple[int, str]]) -> None:
        """Have messages wait, which are held already."""
        for entry in entries:
            self._queue_one(partition, owner, entry)
        partition.queued_count += len(entries)

    def _queue_one(self, partition: Plannable, owner: str, entry: tuple[int, str]) -> None:
        heap = partition.queued.get(owner)
        if heap is None:
            heap = partition.queued[owner] = []
            self._partitions.setdefault(owner, {})[partition] = None
        heappush(heap, entry)

    def _forget_first(self, partition: Plannable, owner: str) -> None:
        heappop(partition.queued[owner])
        partition.queued_count -= 1
        self._leave_if_empty(partition, owner)

    def _leave_if_empty(self, partition: Plannable, owner: str) -> None:
        if not partition.queued[owner]:
            del partition.queued[owner]
            self._leave(owner, partition)

    def _leave(self, owner: str, partition: Plannable) -> None:
        partitions = self._partitions[owner]
        del partitions[partition]
        if not partitions:
            del self._partitions[owner]

    def plan_queued(
        self, partition: Plannable, now_ms: int, is_over: Callable[[], bool]
    ) -> Iterator[Effect]:
        """Plan what of the queues of one topic goes, in the order of offsets.

        Ends early when the turn `is_over`.
        """
        firsts = [(heap[0][0], owner) for owner, heap in partition.queued.items()]
        heapify(firsts)
        while firsts:
            offset, owner = heappop(firsts)
            member = self._members.by_name.get(owner)
            if member is None or not member.ready:
                continue
            batch = partition.batch_at(offset, Purpose.QUEUED)
            if batch is None and partition.is_gone(Purpose.QUEUED):
                yield Skip(offset, offset + 1)
                self._forget_first(partition, owner)
                if owner in partition.queued:
                    heappush(firsts, (partition.queued[owner][0][0], owner))
                continue
            if batch is None:
                return
            yield from self._plan_owner(partition, batch, member, now_ms)
            if owner in partition.queued and self._fitting(member, 1):
                heappush(firsts, (partition.queued[owner][0][0], owner))
            batch.forget_columns()
            if is_over():
                break
        if not partition.queued_count:
            partition.end_reading(Purpose.QUEUED)

    def _plan_owner(
        self, partition: Plannable, batch: Batch, member: Member, now_ms: int
    ) -> Iterator[Effect]:
        """Plan what is queued for a consumer of one batch, as far as it has room."""
        heap = partition.queued[member.name]
        entries = self._take(partition, heap, batch, member.credit_count)
        offsets = [offset for offset, _ in entries]
        attempt = partition.deliveries.cursor.failures_of(offsets[0]) + 1 if offsets else 1
        slots = fresh(batch, slots_of(batch, offsets), ttl_ms=partition.ttl_ms, now_ms=now_ms)
        if len(slots) < len(offsets):
            left = {batch.offsets[s] for s in slots}
            for offset in offsets:
                if offset not in left:
                    yield Skip(offset, offset + 1)
        given = self._fitting(member, len(slots))
        if given:
            yield Deliver(member, batch, slots[:given], attempt)
        if given < len(slots):
            left = {batch.offsets[s] for s in slots[given:]}
            self._queue(partition, member.name, [entry for entry in entries if entry[0] in left])
        else:
            self._leave_if_empty(partition, member.name)

    def _take(
        self, partition: Plannable, heap: list[tuple[int, str]], batch: Batch, count_max: int
    ) -> list[tuple[int, str]]:
        """Take what is queued of one batch, and went wrong as often, out of its heap."""
        cursor, end = partition.deliveries.cursor, batch.offsets[-1] + 1
        failures = cursor.failures_of(heap[0][0])
        entries: list[tuple[int, str]] = []
        while heap and len(entries) < count_max and heap[0][0] < end:
            offset = heap[0][0]
            if not cursor.is_acked(offset):
                if cursor.failures_of(offset) != failures:
                    break
                entries.append(heap[0])
            heappop(heap)
            partition.queued_count -= 1
        return entries
