"""What a subscription has acknowledged of one topic, and how often the rest has gone wrong.

This is the durable part of a subscription. Always true:
- everything below `floor` is acknowledged, and the message at `floor` is not;
- `acked` holds offsets beyond `floor` only;
- a message that is acknowledged has no failures.

Changes are collected for the journal: `take_changes` and `take_failures` give them as runs, so
that ten thousand acknowledgements of single messages become a few. Applying a change twice, or
to a cursor that is already further, changes nothing.
"""

import struct
from collections.abc import Iterator

from ister.base.limits import MAX_DELIVERIES_MAX
from ister.subscriptions.offsets import OFFSET_END_MAX, OffsetSet, Run

# Version, floor, bytes of the acknowledged set, number of failure counts.
_HEADER = struct.Struct("<BQII")
# A failure count, bytes of its set.
_FAILED = struct.Struct("<II")
_VERSION = 1


class Cursor:
    """What a subscription has acknowledged of one topic, and how often deliveries failed."""

    __slots__ = (
        "_changed",
        "_changed_failures",
        "_failed",
        "_failures",
        "acked",
        "floor",
    )

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self.acked = OffsetSet()
        # By count of failures: the un-acked offsets with exactly that many. No set is empty. A
        # lease of thousands that times out is one run here; a count for each would be thousands.
        self._failures: dict[int, OffsetSet] = {}
        # All of them: most messages are acknowledged without a look at each count.
        self._failed = OffsetSet()
        self._changed = OffsetSet()
        self._changed_failures = OffsetSet()

    def ack(self, start: int, end: int) -> int:
        """Acknowledge a range and return how many of its messages were not yet."""
        start = max(start, self.floor)
        if start >= end:
            return 0
        count = self._advance(start, end)
        if count:
            self._changed.add(start, end)
        return count

    def is_acked(self, offset: int) -> bool:
        """Tell whether a message is acknowledged."""
        return offset < self.floor or offset in self.acked

    def gaps(self, start: int, end: int) -> list[Run]:
        """Return the runs of the range that are not acknowledged, rising."""
        return self.acked.gaps_within(max(start, self.floor), end)

    def iter_gaps(self, start: int, end: int) -> Iterator[Run]:
        """Yield the same runs as `gaps`, for who needs only the first few."""
        return self.acked.gaps(max(start, self.floor), end)

    def unacked_count(self, next_offset: int) -> int:
        """Return how many messages below `next_offset` are not acknowledged: the lag."""
        if next_offset <= self.floor:
            return 0
        return next_offset - self.floor - self.acked.count_within(self.floor, next_offset)

    def unacked_within(self, start: int, end: int) -> int:
        """Return how many messages of a range are not acknowledged."""
        start = max(start, self.floor)
        return end - start - self.acked.count_within(start, end) if start < end else 0

    @property
    def is_plain(self) -> bool:
        """Whether there is no more to say than `floor`: nothing else acknowledged or failed."""
        return not self.acked and not self._failed

    def subtract_acked(self, offsets: OffsetSet) -> None:
        """Remove from `offsets` what is acknowledged."""
        offsets.discard(0, self.floor)
        if self.acked:
            offsets.subtract(self.acked)

    def seek(self, offset: int) -> None:
        """Go to `offset`: everything below counts as acknowledged, nothing else does.

        Changes not yet taken are dropped: the journal is to hear of the seek instead, and they
        must not come after it.
        """
        self.floor = offset
        self.acked.clear()
        self._failures.clear()
        self._failed.clear()
        self._changed.clear()
        self._changed_failures.clear()

    def trim(self, first_offset: int) -> None:
        """Count what retention has removed, everything below `first_offset`, as acknowledged.

        No change for the journal: where a topic begins is known on its own.
        """
        if first_offset > self.floor:
            self._advance(self.floor, first_offset)

    @property
    def has_changes(self) -> bool:
        """Whether something is to be taken for the journal."""
        return bool(self._changed) or bool(self._changed_failures)

    def take_changes(self) -> list[Run]:
        """Return the runs acknowledged since the last call, rising and merged."""
        runs = self._changed.runs()
        self._changed.clear()
        return runs

    def put_back(self, runs: list[Run], failed: list[tuple[int, int, int]]) -> None:
        """Have changes that were taken, and did not reach the journal, taken again."""
        for start, end in runs:
            self._changed.add(start, end)
        for start, end, _ in failed:
            self._changed_failures.add(start, end)

    # Failures.

    def fail(self, offsets: OffsetSet, failures: int) -> None:
        """Set the count of failures of these messages; those acknowledged stay without.

        Counts end at `MAX_DELIVERIES_MAX`.
        """
        offsets = offsets.copy()
        self.subtract_acked(offsets)
        if not offsets:
            return
        self._forget(offsets)
        if failures > 0:
            failures = min(failures, MAX_DELIVERIES_MAX)
            self._failures.setdefault(failures, OffsetSet()).update(offsets)
            self._failed.update(offsets)
        self._changed_failures.update(offsets)

    def fail_run(self, start: int, end: int, failures: int) -> None:
        """Do as `fail`, with a run: how the journal tells it."""
        self.fail(OffsetSet(start, end), failures)

    def failures_of(self, offset: int) -> int:
        """Return how often delivery of this message has gone wrong."""
        if offset not in self._failed:
            return 0
        return next(count for count, failed in self._failures.items() if offset in failed)

    def failed(self, failures_min: int) -> OffsetSet:
        """Return the messages that failed at least `failures_min` times, which is above 0."""
        result = OffsetSet()
        for failures, offsets in self._failures.items():
            if failures >= failures_min:
                result.update(offsets)
        return result

    def by_failures(self, offsets: OffsetSet) -> list[tuple[int, OffsetSet]]:
        """Divide a set by the count of failures; the part with the lowest offset comes first."""
        if not self._failed.intersection(offsets):
            return [(0, offsets)] if offsets else []
        rest = offsets.copy()
        parts = []
        for failures, failed in self._failures.items():
            if part := rest.intersection(failed):
                rest.subtract(part)
                parts.append((failures, part))
        if rest:
            parts.append((0, rest))
        return sorted(parts, key=_first_offset)

    def iter_by_failures(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the runs of a range with one count of failures each: start, end, failures."""
        while start < end:
            failures = self.failures_of(start)
            if failures:
                run_end = self._failures[failures].run_end(start)
            else:
                run_end = self._failed.next_at(start, default=end)
            yield start, min(run_end, end), failures
            start = run_end

    def take_failures(self) -> list[tuple[int, int, int]]:
        """Return runs with a new count of failures since the last call: start, end, failures.

        Messages acknowledged in the meantime are left out.
        """
        changed = self._changed_failures
        self._changed_failures = OffsetSet()
        self.subtract_acked(changed)
        return [
            (start, end, failures)
            for failures, offsets in self.by_failures(changed)
            for start, end in offsets.runs()
        ]

    def without_failures(self) -> "Cursor":
        """Return a cursor with the same acknowledgements, which shares them with this one."""
        cursor = Cursor(self.floor)
        cursor.acked = self.acked
        return cursor

    # Bytes.

    def encode(self) -> bytes:
        """Return the state as bytes; what waits for the journal is not in it."""
        acked = self.acked.encode()
        parts = [_HEADER.pack(_VERSION, self.floor, len(acked), len(self._failures)), acked]
        for failures, offsets in sorted(self._failures.items()):
            body = offsets.encode()
            parts += (_FAILED.pack(failures, len(body)), body)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> "Cursor":
        """Return the cursor that `encode` made these bytes of. Raises `ValueError` for others."""
        if len(data) < _HEADER.size:
            raise ValueError("a cursor ends in its header")
        version, floor, acked_bytes, counts = _HEADER.unpack_from(data)
        if version != _VERSION or floor > OFFSET_END_MAX:
            raise ValueError(f"no cursor of version {_VERSION}")
        cursor = cls(floor)
        position = _HEADER.size + acked_bytes
        cursor.acked = OffsetSet.decode(data[_HEADER.size : position])
        if cursor.acked and cursor.acked.first <= floor:
            raise ValueError("a cursor has acknowledged offsets at or below its floor")
        for _ in range(counts):
            if len(data) < position + _FAILED.size:
                raise ValueError("a cursor ends in its failures")
            failures, size_bytes = _FAILED.unpack_from(data, position)
            position += _FAILED.size
            cursor._decode_failed(failures, data[position : position + size_bytes])
            position += size_bytes
        if position != len(data):
            raise ValueError("a cursor is shorter or longer than it says")
        return cursor

    def _decode_failed(self, failures: int, body: bytes) -> None:
        offsets = OffsetSet.decode(body)
        if not 0 < failures <= MAX_DELIVERIES_MAX or failures in self._failures or not offsets:
            raise ValueError("a cursor has a bad count of failures")
        # Acknowledged, or counted twice.
        taken = (self.acked, OffsetSet(0, self.floor), self._failed)
        if any(offsets.intersection(other) for other in taken):
            raise ValueError("a cursor says two things about one message")
        self._failures[failures] = offsets
        self._failed.update(offsets)

    def _advance(self, start: int, end: int) -> int:
        """Make a range from `floor` or beyond acknowledged; return how much of it is new."""
        acked = self.acked
        if start > self.floor:
            known = acked.count
            acked.add(start, end)
            count = acked.count - known
        elif acked:
            count = end - start - acked.count_within(start, end)
            self.floor = acked.run_end(end)
            acked.discard(0, self.floor)
        else:
            count = end - start
            self.floor = end
        if self._failed:
            self._forget(OffsetSet(start, end))
        return count

    def _forget(self, offsets: OffsetSet) -> None:
        if not self._failed.intersection(offsets):
            return
        self._failed.subtract(offsets)
        for failures, failed in list(self._failures.items()):
            failed.subtract(offsets)
            if not failed:
                del self._failures[failures]


def _first_offset(part: tuple[int, OffsetSet]) -> int:
    return part[1].first
