"""Messages that are handed out: to whom, and until when.

A lease is a set of messages given to one consumer at once, under a number that fences it: who
comes back with the number of a lease that has ended has come too late. Always true:
- an offset is in at most one lease;
- a lease with nothing left in it does not exist;
- `count` and `size_bytes` are the sums over all leases.

The heaps by deadline and by first offset may hold entries of leases that have changed since: an
entry is looked at when it comes up, and they are made anew when half of them are out of date.
"""

from collections.abc import Collection, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush

from ister.subscriptions.offsets import OffsetSet

# Parts of one lease with deadlines of their own. A client renews what it still holds in one go,
# so that there are two or three; a hostile one must not make every acknowledgement look at 16,384.
PARTS_MAX = 16
# Below this many entries, looking for those out of date is not worth it.
HEAP_COUNT_MIN = 256


class Part:
    """Messages of a lease with a deadline of their own."""

    __slots__ = ("deadline_ms", "offsets")

    def __init__(self, offsets: OffsetSet, deadline_ms: int) -> None:
        self.offsets = offsets
        self.deadline_ms = deadline_ms


class Lease:
    """Messages in the hands of one consumer. Read it; only `Leases` changes it.

    `attempt` counts the deliveries of its messages, this one included. `end` stays as it was when
    the lease began. `count` and `size_bytes` are of what is left of it.
    """

    __slots__ = (
        "attempt",
        "consumer",
        "count",
        "deadline_ms",
        "end",
        "number",
        "offsets",
        "parts",
        "size_bytes",
    )

    def __init__(
        self,
        *,
        number: int,
        offsets: OffsetSet,
        consumer: Hashable,
        attempt: int,
        deadline_ms: int,
        size_bytes: int,
    ) -> None:
        self.number = number
        self.consumer = consumer
        self.attempt = attempt
        self.end = offsets.end
        self.count = offsets.count
        self.size_bytes = size_bytes
        # Those with the deadline of the lease; `parts` are the others.
        self.offsets = offsets
        self.deadline_ms = deadline_ms
        self.parts: Sequence[Part] = ()

    @property
    def first(self) -> int:
        """The lowest offset left."""
        if not self.parts:
            return self.offsets.first
        return min(part.offsets.first for part in self.all_parts())

    def all_parts(self) -> Iterator["Lease | Part"]:
        """Yield the lease itself and its parts, as far as there are messages in them."""
        if self.offsets:
            yield self
        for part in self.parts:
            if part.offsets:
                yield part

    def within(self, start: int, end: int) -> OffsetSet:
        """Return what is left of the lease in a range."""
        found = self.offsets.within(start, end)
        for part in self.parts:
            found.update(part.offsets.within(start, end))
        return found


class Leases:
    """The leases of one topic. `numbers` gives each lease its number, and may be shared."""

    __slots__ = (
        "_by_consumer",
        "_by_number",
        "_deadlines",
        "_heap_count_max",
        "_numbers",
        "_starts",
        "count",
        "size_bytes",
    )

    def __init__(self, numbers: Iterator[int]) -> None:
        self.count = 0
        self.size_bytes = 0
        self._numbers = numbers
        self._by_number: dict[int, Lease] = {}
        self._by_consumer: dict[Hashable, dict[int, Lease]] = {}
        # Deadline or first offset, number of the lease.
        self._deadlines: list[tuple[int, int]] = []
        self._starts: list[tuple[int, int]] = []
        self._heap_count_max = HEAP_COUNT_MIN

    def open(
        self,
        offsets: OffsetSet,
        *,
        consumer: Hashable,
        attempt: int,
        deadline_ms: int,
        size_bytes: int,
    ) -> Lease:
        """Begin a lease of messages that are in no other; there is at least one."""
        lease = Lease(
            number=next(self._numbers),
            offsets=offsets,
            consumer=consumer,
            attempt=attempt,
            deadline_ms=deadline_ms,
            size_bytes=size_bytes,
        )
        number = lease.number
        self._by_number[number] = lease
        its_leases = self._by_consumer.get(consumer)
        if its_leases is None:
            its_leases = self._by_consumer[consumer] = {}
        its_leases[number] = lease
        self.count += lease.count
        self.size_bytes += size_bytes
        heappush(self._starts, (offsets.first, number))
        self._watch(deadline_ms, number)
        return lease

    def put_back(
        self,
        number: int,
        offsets: OffsetSet,
        *,
        consumer: Hashable,
        attempt: int,
        deadline_ms: int,
        size_bytes: int,
    ) -> None:
        """Give messages that were taken out of a lease back to it, also when it has ended since.

        What is left of the lease lasts until `deadline_ms` as well.
        """
        lease = self._by_number.get(number)
        if lease is None:
            lease = self._by_number[number] = Lease(
                number=number,
                offsets=offsets,
                consumer=consumer,
                attempt=attempt,
                deadline_ms=deadline_ms,
                size_bytes=size_bytes,
            )
            self._by_consumer.setdefault(consumer, {})[number] = lease
        else:
            lease.offsets.update(offsets)
            lease.count += offsets.count
            lease.size_bytes += size_bytes
            lease.end = max(lease.end, offsets.end)
            lease.deadline_ms = max(lease.deadline_ms, deadline_ms)
        self.count += offsets.count
        self.size_bytes += size_bytes
        heappush(self._starts, (lease.first, number))
        self._watch(lease.deadline_ms, number)

    def find(self, number: int) -> Lease | None:
        """Return a lease that has not ended."""
        return self._by_number.get(number)

    def has_any(self, consumer: Hashable) -> bool:
        """Tell whether a consumer has a lease."""
        return consumer in self._by_consumer

    def take_whole(self, number: int, start: int, end: int) -> bool:
        """Take a range that is not empty out of a lease if all of it is there; tell whether.

        This is how most messages come back; a lease in parts is left to `take`.
        """
        lease = self._by_number.get(number)
        if lease is None or lease.parts or not lease.offsets.take_whole(start, end):
            return False
        self._shrink(lease, end - start)
        return True

    def take(self, lease: Lease, start: int, end: int) -> OffsetSet:
        """Take a range out of a lease and return what of it was there."""
        taken = lease.offsets.take(start, end)
        for part in lease.parts:
            taken.update(part.offsets.take(start, end))
        self._shrink(lease, taken.count)
        return taken

    def take_all(
        self, consumer: Hashable, *, besides: Collection[int] = frozenset()
    ) -> list[tuple[int, OffsetSet]]:
        """End every lease of a consumer, `besides` some, and return what was left of each."""
        ended: list[tuple[int, OffsetSet]] = []
        leases = self._by_consumer.pop(consumer, {})
        kept = {number: lease for number, lease in leases.items() if number in besides}
        if kept:
            self._by_consumer[consumer] = kept
        for number, lease in leases.items():
            if number in kept:
                continue
            taken = lease.offsets.copy()
            for part in lease.parts:
                taken.update(part.offsets)
            ended.append((number, taken))
            del self._by_number[number]
            self._count_out(lease, lease.count)
        return ended

    def drop_below(self, end: int) -> None:
        """Take everything below `end` out of all leases."""
        while self._starts and self._starts[0][0] < end:
            _, number = heappop(self._starts)
            lease = self._by_number.get(number)
            if lease is None:
                continue
            self.take(lease, 0, end)
            if lease.count:
                heappush(self._starts, (lease.first, number))

    def take_expired(self, now_ms: int, leases_max: int) -> list[tuple[Lease, OffsetSet]]:
        """Take out what is past its deadline, of at most so many leases."""
        expired: list[tuple[Lease, OffsetSet]] = []
        while self._deadlines and self._deadlines[0][0] <= now_ms and len(expired) < leases_max:
            _, number = heappop(self._deadlines)
            lease = self._by_number.get(number)
            if lease is None:
                continue
            if lease.parts:
                taken = _take_late(lease, now_ms)
            elif lease.deadline_ms <= now_ms:
                taken = lease.offsets
            else:
                continue
            if taken:
                self._shrink(lease, taken.count)
                expired.append((lease, taken))
        return expired

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline."""
        while self._deadlines:
            deadline_ms, number = self._deadlines[0]
            lease = self._by_number.get(number)
            if lease is not None and any(
                part.deadline_ms == deadline_ms for part in lease.all_parts()
            ):
                return deadline_ms
            heappop(self._deadlines)
        return None

    def extend(self, lease: Lease, start: int, end: int, *, deadline_ms: int) -> OffsetSet:
        """Give what is left of a lease in a range another deadline; return what that is.

        With more than `PARTS_MAX` deadlines in one lease, messages share the later of two.
        """
        if not lease.parts and start <= lease.offsets.first and end >= lease.offsets.end:
            self._set_deadline(lease, lease, deadline_ms)
            return lease.offsets
        moved = lease.offsets.take(start, end)
        for part in lease.parts:
            moved.update(part.offsets.take(start, end))
        if moved:
            self._add_part(lease, moved, deadline_ms)
        return moved

    def end_by(self, consumer: Hashable, deadline_ms: int) -> None:
        """Bring every deadline of a consumer forward to `deadline_ms`."""
        its_leases = self._by_consumer.get(consumer)
        if its_leases is None:
            return
        for lease in its_leases.values():
            lease.deadline_ms = min(lease.deadline_ms, deadline_ms)
            for part in lease.parts:
                part.deadline_ms = min(part.deadline_ms, deadline_ms)
        self._rebuild_deadlines()

    def last_until(self, consumer: Hashable, deadline_ms: int) -> None:
        """Put off every deadline of a consumer to `deadline_ms`."""
        its_leases = self._by_consumer.get(consumer)
        if its_leases is None:
            return
        for lease in its_leases.values():
            lease.deadline_ms = max(lease.deadline_ms, deadline_ms)
            for part in lease.parts:
                part.deadline_ms = max(part.deadline_ms, deadline_ms)
        self._rebuild_deadlines()

    def clear(self) -> None:
        """End every lease."""
        self.count = self.size_bytes = 0
        self._by_number.clear()
        self._by_consumer.clear()
        self._deadlines.clear()
        self._starts.clear()

    def _set_deadline(self, lease: Lease, part: Lease | Part, deadline_ms: int) -> None:
        part.deadline_ms = deadline_ms
        self._watch(deadline_ms, lease.number)

    def _add_part(self, lease: Lease, offsets: OffsetSet, deadline_ms: int) -> None:
        parts = [part for part in lease.parts if part.offsets]
        same = next((part for part in parts if part.deadline_ms == deadline_ms), None)
        if same is None and len(parts) >= PARTS_MAX:
            same = max(parts, key=_deadline)
            deadline_ms = max(deadline_ms, same.deadline_ms)
        if same is None:
            parts.append(Part(offsets.copy(), deadline_ms))
            self._watch(deadline_ms, lease.number)
        else:
            same.offsets.update(offsets)
            self._set_deadline(lease, same, deadline_ms)
        lease.parts = parts
        # Renewed bit by bit, all of it has one deadline again: most leases are to be plain.
        if not lease.offsets and len(parts) == 1:
            lease.offsets, lease.deadline_ms = parts[0].offsets, parts[0].deadline_ms
            lease.parts = ()

    def _watch(self, deadline_ms: int, number: int) -> None:
        heappush(self._deadlines, (deadline_ms, number))
        if len(self._deadlines) + len(self._starts) > self._heap_count_max:
            self._rebuild_heaps()

    def _rebuild_heaps(self) -> None:
        self._rebuild_deadlines()
        self._starts = [(lease.first, number) for number, lease in self._by_number.items()]
        heapify(self._starts)
        count = len(self._deadlines) + len(self._starts)
        self._heap_count_max = max(HEAP_COUNT_MIN, 2 * count)

    def _rebuild_deadlines(self) -> None:
        leases = self._by_number.items()
        self._deadlines = [(lease.deadline_ms, number) for number, lease in leases]
        for number, lease in leases:
            if lease.parts:
                self._deadlines += ((part.deadline_ms, number) for part in lease.parts)
        heapify(self._deadlines)

    def _shrink(self, lease: Lease, count: int) -> None:
        self._count_out(lease, count)
        if not lease.count:
            del self._by_number[lease.number]
            its_leases = self._by_consumer[lease.consumer]
            del its_leases[lease.number]
            if not its_leases:
                del self._by_consumer[lease.consumer]

    def _count_out(self, lease: Lease, count: int) -> None:
        if not count:
            return
        # Each message counts with its share of the bytes; the last takes what is left of them.
        size_bytes = lease.size_bytes * count // lease.count
        lease.count -= count
        lease.size_bytes -= size_bytes
        self.count -= count
        self.size_bytes -= size_bytes


def _take_late(lease: Lease, now_ms: int) -> OffsetSet:
    """Take out of the parts of a lease what is past its deadline."""
    taken = OffsetSet()
    for part in lease.all_parts():
        if part.deadline_ms <= now_ms:
            taken.update(part.offsets)
            part.offsets = OffsetSet()
    return taken


def _deadline(part: Part) -> int:
    return part.deadline_ms
