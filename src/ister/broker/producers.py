"""What a stream remembers of its producers, so that a repetition is known.

Always true:
- a producer's messages are numbered from 0, and `next_sequence` is one more than the highest
  number stored; below it there is a hole where a batch was refused and a later one was not;
- memory is bounded: the producer silent for longest makes room.
"""

from bisect import insort
from collections import OrderedDict

import msgspec

from ister.base.limits import PRODUCERS_REMEMBERED_MAX

# Runs of neighbouring messages for which the offsets are remembered. A producer that is alone on
# its topic has one run for ever; among others, a run is a batch. A client has at most 4 MiB in
# flight, which is 128 batches of 32 KiB; a repetition from before that gets no offset.
RUNS_REMEMBERED = 128

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
            return
        self.next_sequence = first_sequence + count
        if self.runs:
            sequence, offset, length = self.runs[-1]
            if (sequence + length, offset + length) == (first_sequence, base_offset):
                self.runs[-1] = (sequence, offset, length + count)
                return
        self.runs.append((first_sequence, base_offset, count))
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

    __slots__ = ("records",)

    def __init__(self) -> None:
        self.records: OrderedDict[str, ProducerRecord] = OrderedDict()

    def record(self, name: str) -> ProducerRecord:
        """Return what is known of a producer, from now on something at least."""
        found = self.records.get(name)
        if found is None:
            found = self.records[name] = ProducerRecord()
            while len(self.records) > PRODUCERS_REMEMBERED_MAX:
                self.records.popitem(last=False)
        else:
            self.records.move_to_end(name)
        return found

    def next_sequence(self, name: str) -> int:
        """Return the number of the next message of a producer."""
        found = self.records.get(name)
        return found.next_sequence if found is not None else 0

    def is_hole(self, name: str, first_sequence: int, count: int) -> bool:
        """Tell whether none of these messages of a producer was ever stored."""
        found = self.records.get(name)
        return found is None or found.is_hole(first_sequence, count)
