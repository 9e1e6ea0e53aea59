"""What the deliveries of a subscription must do, with one entry for each message and no runs."""

from dataclasses import dataclass, field

from ister.base import AckSettings
from ister.subscriptions import InCommit

# Few, so that some are forgotten.
LOST_LEASES_MAX = 4


@dataclass
class Out:
    """One message in a lease."""

    number: int
    consumer: str
    attempt: int
    deadline_ms: int


@dataclass
class Undecided:
    """A run in a commit."""

    commit: InCommit
    # Those that retention has not removed.
    offsets: set[int]
    outs: dict[int, Out]
    # Whether its lease became void.
    void: bool = False


@dataclass
class Reference:
    """What each message is doing, in the plainest words."""

    settings: AckSettings
    floor: int = 0
    position: int = 0
    next_offset: int = 0
    refused: int = 0
    acked: set[int] = field(default_factory=set)
    failures: dict[int, int] = field(default_factory=dict)
    leased: dict[int, Out] = field(default_factory=dict)
    waiting: dict[int, int] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    exhausted: set[int] = field(default_factory=set)
    commits: list[Undecided] = field(default_factory=list)
    # What was taken from each lease, the last lease whose losses are forgotten, and the first lease
    # since all were void.
    lost: dict[int, set[int]] = field(default_factory=dict)
    forgotten: int = -1
    first: int | None = None
    # Under which leases a message was confirmed, since a seek made it new.
    confirmed: dict[int, set[int]] = field(default_factory=dict)

    @property
    def committing(self) -> set[int]:
        return {offset for undecided in self.commits for offset in undecided.offsets}

    def is_acked(self, offset: int) -> bool:
        return offset < self.floor or offset in self.acked

    def ack(self, offsets: set[int]) -> None:
        self.acked |= offsets
        while self.floor in self.acked:
            self.floor += 1
        self.acked = {offset for offset in self.acked if offset > self.floor}
        for offset in offsets:
            self.failures.pop(offset, None)
            self.leased.pop(offset, None)
            self.waiting.pop(offset, None)
        self.held -= offsets
        self.exhausted -= offsets

    def lose(self, number: int, offsets: set[int]) -> None:
        if number > self.forgotten:
            self.lost.setdefault(number, set()).update(offsets)
        if len(self.lost) > LOST_LEASES_MAX:
            self.forgotten = min(self.lost)
            del self.lost[self.forgotten]

    def fail(self, offset: int, now_ms: int, delay_ms: int | None) -> None:
        self.lose(self.leased[offset].number, {offset})
        attempt = self.leased.pop(offset).attempt
        self.failures[offset] = attempt
        if 0 < self.settings.max_deliveries <= attempt:
            self.exhausted.add(offset)
        else:
            delay_ms = self.settings.delay_ms(attempt) if delay_ms is None else delay_ms
            self.waiting[offset] = now_ms + delay_ms

    def ready(self, now_ms: int) -> list[int]:
        return sorted(offset for offset, due_ms in self.waiting.items() if due_ms <= now_ms)

    def new(self) -> list[int]:
        start = max(self.position, self.floor)
        return [
            offset
            for offset in range(start, self.next_offset)
            if not self.is_acked(offset)
            and offset not in self.exhausted
            and offset not in self.committing
        ]

    def claim(self, offsets: list[int]) -> None:
        """Take messages from where they wait; new ones passed over are due at once."""
        for offset in offsets:
            self.waiting.pop(offset, None)
            self.held.discard(offset)
        passed = [offset for offset in self.new() if offset < offsets[-1]]
        self.waiting |= {offset: 0 for offset in passed if offset not in offsets}
        self.position = max(self.position, offsets[-1] + 1)

    def start_over(self) -> None:
        self.leased.clear()
        self.waiting.clear()
        self.held.clear()
        self.position = self.floor
        failed_max = self.settings.max_deliveries or 10**9
        self.exhausted = {
            o
            for o, failures in self.failures.items()
            if failures >= failed_max and o not in self.committing
        }
        for undecided in self.commits:
            undecided.void = True
        self.first = None

    def change(self, settings: AckSettings) -> None:
        self.settings = settings
        failed_max = settings.max_deliveries or 10**9
        for offset in [o for o in self.exhausted if self.failures[o] < failed_max]:
            self.exhausted.remove(offset)
            if offset < self.position:
                self.waiting[offset] = 0

    def stale(self, number: int, start: int, end: int) -> set[int]:
        """What a lease has no claim to, acknowledged or not."""
        if self.first is None or number < max(self.first, self.forgotten + 1):
            held = {o for o, out in self.leased.items() if out.number == number}
            return set(range(start, end)) - held
        return {o for o in self.lost.get(number, ()) if start <= o < end}

    def refusals(self, number: int, start: int, end: int) -> set[int]:
        return {
            offset
            for offset in range(start, end)
            if not self.is_acked(offset)
            and (offset not in self.leased or self.leased[offset].number != number)
        }
