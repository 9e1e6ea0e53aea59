"""Hands out by key: each message to the owner of its key; those that must wait are parked.

Always true:
- a parked message is held by its partition's `Deliveries`, so that nobody else hands it out, and
  waits under the owner of its key as the ring has it now (nobody's: under ""), among those to be
  sorted after the ring has changed, or in the gate behind another message of its key;
- nothing is handed out while something is to be sorted;
- while messages are parked for an owner, later ones of the same topic are parked behind them, so
  that those of one key leave in order.
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush

from ister.broker.consumers.consumer import Consumer
from ister.broker.consumers.members import Members
from ister.broker.durable.partition import Again, Partition
from ister.broker.durable.selection import fresh, slots_of
from ister.codec import Batch
from ister.subscriptions import keys_of

# Messages of one topic that are parked; with more, nothing of it is handed out until some went.
PARKED_MAX = 16_384
# Of these, sorted by owner between two looks at the clock when consumers come and go: 3 µs each,
# more with many globs. All topics of a subscription may have parked as much as may be in flight.
SORTED_AT_ONCE = 64

Give = Callable[[Consumer, Partition, Batch, Sequence[int], int], int]
# Tells of messages that are done without having been handed out.
Skip = Callable[[Partition, int, int], object]


class Parking:
    """The messages of a key-shared subscription that wait for room at the owners of their keys."""

    def __init__(self, members: Members, *, give: Give, skip: Skip) -> None:
        self._members = members
        self._give = give
        self._skip = skip
        # By owner, the partitions that have something for it.
        self._partitions: dict[str, dict[Partition, None]] = {}
        # Parked under owners of before.
        self._unsorted: list[tuple[Partition, list[tuple[int, str]]]] = []

    def hand_out(
        self, partition: Partition, batch: Batch, slots: Sequence[int], attempt: int
    ) -> bool:
        """Give the messages at `slots` to the owners of their keys, or park them.

        Returns whether any moved on, either way.
        """
        if self.is_full(partition):
            return False
        offsets, first = batch.offsets, slots[0]
        keys = keys_of(batch, first, slots[-1] + 1)
        if partition.gate is not None:
            its_keys = [keys[s - first] for s in slots]
            admission = partition.gate.admit(its_keys, [offsets[s] for s in slots])
            slots = slots[: admission.end]
            if not slots:
                return False
            partition.deliveries.hold([offsets[s] for s in slots])
            slots = [slots[n] for n in admission.slots]
        else:
            partition.deliveries.hold([offsets[s] for s in slots])
        for owner, share in self._shares(slots, keys, first).items():
            given = self._give_share(owner, partition, batch, share, attempt)
            if given < len(share):
                self._park(partition, owner, [(offsets[s], keys[s - first]) for s in share[given:]])
        return True

    def is_full(self, partition: Partition) -> bool:
        """Whether so much of a topic is parked that nothing more of it is taken."""
        gated = partition.gate.parked if partition.gate is not None else 0
        return gated + partition.parked_count >= PARKED_MAX

    def unpark(self, now_ms: int, is_over: Callable[[], bool]) -> list[Partition]:
        """Give what is parked to consumers that have room by now; return the partitions it was of.

        Ends early when the turn `is_over`.
        """
        by_name = self._members.by_name
        partitions = {
            partition: None
            for owner, partitions in self._partitions.items()
            if owner in by_name and by_name[owner].ready
            for partition in partitions
        }
        return [partition for partition in partitions if self._unpark(partition, now_ms, is_over)]

    def on_done(self, partition: Partition, start: int, end: int) -> None:
        """Messages are done: the next ones of their keys may go."""
        gate = partition.gate
        if gate is None:
            return
        for offset in gate.done_within(start, end):
            if partition.deliveries.is_exhausted(offset):
                continue  # It is on its way to the dead letters, and the next waits for that.
            key = gate.key_of(offset)
            self._park(partition, self._members.ring.owner(key) or "", [(offset, key)])

    def reroute(self) -> None:
        """The owners of keys have changed: what is parked is sorted anew by `sort`."""
        partitions = {partition: None for some in self._partitions.values() for partition in some}
        self._partitions.clear()
        for partition in partitions:
            self._unsorted += [(partition, heap) for heap in partition.parked.values()]
            partition.parked.clear()

    def sort(self, is_over: Callable[[], bool]) -> bool:
        """Sort what is parked by owner until the turn `is_over`; return whether all of it is."""
        owner_of = self._members.ring.owner
        while self._unsorted:
            partition, entries = self._unsorted[-1]
            some = entries[-SORTED_AT_ONCE:]
            del entries[-SORTED_AT_ONCE:]
            if not entries:
                self._unsorted.pop()
            for entry in some:
                self._park_one(partition, owner_of(entry[1]) or "", entry)
            if self._unsorted and is_over():
                return False
        return True

    def trim(self, partition: Partition, first_offset: int) -> None:
        """Everything below `first_offset` is gone."""
        if partition.parked_count:
            parked = [entry for heap in partition.parked.values() for entry in heap]
            for other, heap in self._unsorted:
                parked += heap if other is partition else ()
            self.forget(partition)
            left = [entry for entry in parked if entry[0] >= first_offset]
            partition.parked_count = len(left)
            self._unsorted.append((partition, left))
        self.on_done(partition, 0, first_offset)

    def forget(self, partition: Partition) -> None:
        """A partition starts over, or is gone."""
        for owner in partition.parked:
            self._leave(owner, partition)
        partition.parked.clear()
        partition.parked_count = 0
        self._unsorted = [one for one in self._unsorted if one[0] is not partition]

    def _shares(
        self, slots: Sequence[int], keys: Sequence[str], first: int
    ) -> dict[str, list[int]]:
        """Return the slots by owner; `keys` are those of the messages from slot `first` on."""
        owner_of = self._members.ring.owner
        shares: dict[str, list[int]] = {}
        for slot in slots:
            owner = owner_of(keys[slot - first]) or ""
            share = shares.get(owner)
            if share is None:
                shares[owner] = [slot]
            else:
                share.append(slot)
        return shares

    def _give_share(
        self, owner: str, partition: Partition, batch: Batch, share: Sequence[int], attempt: int
    ) -> int:
        consumer = self._members.by_name.get(owner)
        if consumer is None or owner in partition.parked:
            return 0
        return self._give(consumer, partition, batch, share, attempt)

    def _park(self, partition: Partition, owner: str, entries: Sequence[tuple[int, str]]) -> None:
        """Have messages wait, which are held already."""
        for entry in entries:
            self._park_one(partition, owner, entry)
        partition.parked_count += len(entries)

    def _park_one(self, partition: Partition, owner: str, entry: tuple[int, str]) -> None:
        heap = partition.parked.get(owner)
        if heap is None:
            heap = partition.parked[owner] = []
            self._partitions.setdefault(owner, {})[partition] = None
        heappush(heap, entry)

    def _forget_first(self, partition: Partition, owner: str) -> None:
        heappop(partition.parked[owner])
        partition.parked_count -= 1
        self._leave_if_empty(partition, owner)

    def _leave_if_empty(self, partition: Partition, owner: str) -> None:
        if not partition.parked[owner]:
            del partition.parked[owner]
            self._leave(owner, partition)

    def _leave(self, owner: str, partition: Partition) -> None:
        partitions = self._partitions[owner]
        del partitions[partition]
        if not partitions:
            del self._partitions[owner]

    def _unpark(self, partition: Partition, now_ms: int, is_over: Callable[[], bool]) -> bool:
        """Give what is parked of one topic, in the order of offsets, as far as there is room."""
        moved = False
        firsts = [(heap[0][0], owner) for owner, heap in partition.parked.items()]
        heapify(firsts)
        while firsts:
            offset, owner = heappop(firsts)
            consumer = self._members.by_name.get(owner)
            if consumer is None or not consumer.ready:
                continue
            batch = partition.old_batch(offset, Again.PARKED)
            if batch is None and partition.is_gone(Again.PARKED):
                self._skip(partition, offset, offset + 1)
                self._forget_first(partition, owner)
                if owner in partition.parked:
                    heappush(firsts, (partition.parked[owner][0][0], owner))
                moved = True
                continue
            if batch is None:
                return moved
            given, left = self._give_parked(partition, batch, consumer, now_ms)
            moved = moved or given
            if left:
                heappush(firsts, (partition.parked[owner][0][0], owner))
            batch.forget_columns()
            if is_over():
                break
        if not partition.parked_count:
            partition.end_reading(Again.PARKED)
        return moved

    def _give_parked(
        self, partition: Partition, batch: Batch, consumer: Consumer, now_ms: int
    ) -> tuple[bool, bool]:
        """Give a consumer what is parked for it of one batch, as far as it has room.

        Returns whether any moved on, and whether more of it can.
        """
        owner = consumer.name
        heap = partition.parked[owner]
        entries = self._take(partition, heap, batch, consumer.credit_count)
        slots, attempt = self._sort_out(partition, batch, entries, now_ms)
        given = self._give(consumer, partition, batch, slots, attempt) if slots else 0
        if given < len(slots):
            left = {batch.offsets[s] for s in slots[given:]}
            self._park(partition, owner, [entry for entry in entries if entry[0] in left])
        else:
            self._leave_if_empty(partition, owner)
        return given > 0 or not slots, given == len(slots) and bool(heap)

    def _take(
        self, partition: Partition, heap: list[tuple[int, str]], batch: Batch, count_max: int
    ) -> list[tuple[int, str]]:
        """Take what is parked of one batch, and went wrong as often, out of its heap."""
        cursor, end = partition.cursor, batch.offsets[-1] + 1
        failures = cursor.failures_of(heap[0][0])
        entries: list[tuple[int, str]] = []
        while heap and len(entries) < count_max and heap[0][0] < end:
            offset = heap[0][0]
            if not cursor.is_acked(offset):
                if cursor.failures_of(offset) != failures:
                    break
                entries.append(heap[0])
            heappop(heap)
            partition.parked_count -= 1
        return entries

    def _sort_out(
        self, partition: Partition, batch: Batch, entries: Sequence[tuple[int, str]], now_ms: int
    ) -> tuple[Sequence[int], int]:
        """Return the slots that can be given, and their attempt; skip what is gone or too old."""
        if not entries:
            return [], 1
        offsets = [offset for offset, _ in entries]
        ttl_ms = partition.topic.record.settings.ttl_ms
        slots = fresh(batch, slots_of(batch, offsets), ttl_ms=ttl_ms, now_ms=now_ms)
        attempt = partition.cursor.failures_of(offsets[0]) + 1
        if len(slots) < len(offsets):
            left = {batch.offsets[s] for s in slots}
            for offset in offsets:
                if offset not in left:
                    self._skip(partition, offset, offset + 1)
        return slots, attempt
