"""What a stream remembers of its producers, so that a repetition is known.

Always true:
- a producer's messages are numbered from 0, and `next_sequence` is one more than the highest
  number stored; below it there is a hole where a batch was refused and a later one was not;
- memory is bounded: the producer silent for longest makes room, and of each producer at most
  twice `RUNS_REMEMBERED` runs are known, also when it fills hole after hole;
- the producers of all streams together take at most as much as their `SharedBudget` says.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import msgspec

from ister.base.limits import PRODUCERS_REMEMBERED_MAX
from ister.broker.state.shared_budget import SharedBudget

# Runs of neighbouring messages for which the offsets are remembered. A producer that is alone on
# its topic has one run for ever; among others, a run is a batch. A client has at most 4 MiB in
# flight, which is 128 batches of 32 KiB; a repetition from before that gets no offset.
RUNS_REMEMBERED = 128

# What a producer takes of memory besides its name, and what a run takes.
PRODUCER_BYTES = 300
RUN_BYTES = 140
# Runs and producers that are encoded in one step of a snapshot: below 1 ms.
RUNS_AT_ONCE = 1_024

OFFSET_UNKNOWN = 2**64 - 1


class ProducerRecord(msgspec.Struct, array_like=True):
    """One producer of one stream."""

    next_sequence: int = 0
    # First sequence number, base offset or `OFFSET_UNKNOWN`, count; the oldest first.
    runs: list[tuple[int, int, int]] = []

    def on_stored(self, first_sequence: int, base_offset: int, count: int) -> None:
        """Remember a batch that is in the journal. Once more changes nothing."""
        if first_sequence < self.next_sequence:
            if self.is_hole(first_sequence, count):
                insort(self.runs, (first_sequence, base_offset, count))
                self._forget_oldest()
            return
        self.next_sequence = first_sequence + count
        if self.runs:
            sequence, offset, length = self.runs[-1]
            if (sequence + length, offset + length) == (first_sequence, base_offset):
                self.runs[-1] = (sequence, offset, length + count)
                return
        self.runs.append((first_sequence, base_offset, count))
        self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Forget the runs with the lowest numbers, when there are too many.

        What lies below those that are left counts as stored, holes included: a repetition of it is
        answered, and never stored again. A client that fills a hole does so within what it has in
        flight, so nothing of an honest one is refused by that.
        """
        if len(self.runs) > 2 * RUNS_REMEMBERED:
            del self.runs[:RUNS_REMEMBERED]

    def is_hole(self, first_sequence: int, count: int) -> bool:
        """Tell whether none of these was ever stored; not of what is forgotten by now."""
        if first_sequence >= self.next_sequence:
            return True
        end = first_sequence + count
        return (
            bool(self.runs)
            and first_sequence >= self.runs[0][0]
            and not any(first < end and first + n > first_sequence for first, _, n in self.runs)
        )

    def offset_of(self, sequence: int) -> int:
        """Return where a message was stored, or `OFFSET_UNKNOWN` when that is long ago."""
        for first, offset, count in reversed(self.runs):
            if first <= sequence < first + count:
                return offset if offset == OFFSET_UNKNOWN else offset + sequence - first
        return OFFSET_UNKNOWN


class Producers:
    """The producers of one stream by name, those heard of last at the end."""

    __slots__ = ("_budget", "_records", "counted", "size")

    def __init__(self, budget: SharedBudget) -> None:
        # `None` when the stream is gone.
        self._budget: SharedBudget | None = budget
        self._records: OrderedDict[str, ProducerRecord] = OrderedDict()
        # About how many bytes of memory they take, and how many the budget has counted.
        self.size = 0
        self.counted = 0

    def __len__(self) -> int:
        return len(self._records)

    def on_stored(self, name: str, first_sequence: int, base_offset: int, count: int) -> None:
        """Remember a batch of a producer that is in the journal. Once more changes nothing."""
        found = self._records.get(name)
        if found is None:
            found = self._records[name] = ProducerRecord()
            self.size += PRODUCER_BYTES + len(name)
        else:
            self._records.move_to_end(name)
        runs = len(found.runs)
        found.on_stored(first_sequence, base_offset, count)
        self.size += RUN_BYTES * (len(found.runs) - runs)
        self._settle()

    def find(self, name: str) -> ProducerRecord | None:
        """Return what is known of a producer."""
        return self._records.get(name)

    def next_sequence(self, name: str) -> int:
        """Return the number of the next message of a producer."""
        found = self._records.get(name)
        return found.next_sequence if found is not None else 0

    def is_hole(self, name: str, first_sequence: int, count: int) -> bool:
        """Tell whether none of these messages of a producer was ever stored."""
        found = self._records.get(name)
        return found is None or found.is_hole(first_sequence, count)

    def offset_of(self, name: str, sequence: int) -> int:
        """Return where a message of a producer was stored, or `OFFSET_UNKNOWN`."""
        found = self._records.get(name)
        return found.offset_of(sequence) if found is not None else OFFSET_UNKNOWN

    def forget_oldest(self, size: int) -> None:
        """Forget the producers silent for longest, until that is so many bytes less."""
        end = self.size - size
        while self._records and self.size > end:
            name, record = self._records.popitem(last=False)
            self.size -= PRODUCER_BYTES + len(name) + RUN_BYTES * len(record.runs)

    def rows(self) -> Iterator[list[tuple[str, ProducerRecord]]]:
        """Yield producers for `restore`, some at a time, the longest silent first.

        What comes, goes or changes between two steps may be among them or not.
        """
        some, runs = [], 0
        for name, record in list(self._records.items()):
            some.append((name, record))
            runs += 1 + len(record.runs)
            if runs >= RUNS_AT_ONCE:
                yield some
                some, runs = [], 0
        if some:
            yield some

    def restore(self, rows: Sequence[tuple[str, ProducerRecord]]) -> None:
        """Remember what `rows` gave."""
        self._records = OrderedDict(rows)
        self.size = sum(
            PRODUCER_BYTES + len(name) + RUN_BYTES * len(record.runs)
            for name, record in self._records.items()
        )
        self._settle()

    def close(self) -> None:
        """The stream is gone: nothing of it counts any more."""
        if self._budget is not None:
            self._budget.remove(self)
            self._budget = None

    def _settle(self) -> None:
        while len(self._records) > PRODUCERS_REMEMBERED_MAX:
            self.forget_oldest(1)
        if self._budget is not None and self.size != self.counted:
            self._budget.on_changed(self)
