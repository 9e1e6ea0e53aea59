"""Judges what clients saw of a stream while its broker was killed again and again.

The words are those of `jepsen.tests.kafka`. A send is *ok* (acknowledged), *failed* (certainly
not stored) or *info* (nobody knows: it may be in the log, once, or not). The log is what a reader
finds at the end. Everything that happened in the test has a number, `at`, which rises: the test is
one process, so what has the lower number was there before.

Each fault says what promise was broken:

    lost          an acknowledged message is not in the log
    duplicate     one message is in the log twice
    misplaced     an acknowledged message is not at the offset that its producer was told
    reordered     messages are not in the order they were sent, or not delivered in their order
    unexpected    a message that nobody sent, or whose send has failed, is there
    hole          an offset of the log is missing
    inconsistent  somebody saw another message at an offset than the log has, or one beyond its end
    redelivered   a message came again although its acknowledgement was confirmed
    skipped       a consumer was sent past a message that nobody had acknowledged
    unseen        a message of the log was never delivered
    overtaken     a message came before the one of the same key in front of it was acknowledged
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from itertools import pairwise
from typing import NamedTuple


class Fault(StrEnum):
    """What promise was broken; see the module."""

    LOST = "lost"
    DUPLICATE = "duplicate"
    MISPLACED = "misplaced"
    REORDERED = "reordered"
    UNEXPECTED = "unexpected"
    HOLE = "hole"
    INCONSISTENT = "inconsistent"
    REDELIVERED = "redelivered"
    SKIPPED = "skipped"
    UNSEEN = "unseen"
    OVERTAKEN = "overtaken"


class Anomaly(NamedTuple):
    """One broken promise."""

    fault: Fault
    detail: str

    def __str__(self) -> str:
        return f"{self.fault}: {self.detail}"


class Outcome(Enum):
    """What is known of a send."""

    OK = "ok"
    FAILED = "failed"
    INFO = "info"


# What a producer is told when the broker has stored a message so long ago that it forgot where.
OFFSET_UNKNOWN = -1


@dataclass(slots=True)
class Send:
    """A message on its way; `info` until somebody says otherwise."""

    producer: str
    value: str
    outcome: Outcome = Outcome.INFO
    offset: int = OFFSET_UNKNOWN


@dataclass(slots=True)
class Delivery:
    """A message that the application was given."""

    at: int
    consumer: str
    # Changes whenever this consumer was attached anew: what was in flight then may come again.
    epoch: int
    offset: int
    value: str
    key: str = ""
    # When it was acknowledged or given back, and when the broker has confirmed the first.
    settled_at: int | None = None
    confirmed_at: int | None = None


class Stored(NamedTuple):
    """A message as a reader finds it."""

    offset: int
    value: str


@dataclass(slots=True)
class History:
    """What happened to one topic."""

    sends: list[Send] = field(default_factory=list)
    # By the name of the subscription.
    deliveries: dict[str, list[Delivery]] = field(default_factory=lambda: defaultdict(list))
    # What readers saw, by their names; all started at offset 0.
    reads: dict[str, list[Stored]] = field(default_factory=lambda: defaultdict(list))


def check_log(history: History, log: Sequence[Stored]) -> list[Anomaly]:
    """Compare the log with what was sent and what readers saw."""
    return [
        *_check_offsets(log),
        *_check_sends(history.sends, log),
        *_check_order(history.sends, log),
        *(
            anomaly
            for name, read in history.reads.items()
            for anomaly in _check_read(name, read, log)
        ),
    ]


def check_subscription(
    name: str, deliveries: Sequence[Delivery], log: Sequence[Stored]
) -> list[Anomaly]:
    """Check what holds for a subscription of any type that was begun at offset 0 and drained."""
    return [
        *_check_seen(name, deliveries, log),
        *_check_redelivered(name, deliveries),
    ]


def check_exclusive(name: str, deliveries: Sequence[Delivery]) -> list[Anomaly]:
    """Check the order of deliveries to one consumer at a time.

    Between two attachments offsets rise, and nothing is left out that is not acknowledged.
    """
    return list(_check_rising(name, deliveries))


def check_ordered_keys(name: str, deliveries: Sequence[Delivery]) -> list[Anomaly]:
    """Check that messages of one key were delivered one after the other."""
    return list(_check_keys(name, deliveries))


def check_derived(inputs: Iterable[Stored], outputs: Iterable[Stored], what: str) -> list[Anomaly]:
    """Compare two logs where each message of the first makes one of the second, in any order."""
    wanted = {stored.value for stored in inputs}
    found = Counter(stored.value for stored in outputs)
    return [
        *(
            Anomaly(Fault.LOST, f"{what}: nothing was made of {value}")
            for value in sorted(wanted - found.keys())
        ),
        *(
            Anomaly(Fault.UNEXPECTED, f"{what}: {value} was made of nothing")
            for value in sorted(found.keys() - wanted)
        ),
        *(
            Anomaly(Fault.DUPLICATE, f"{what}: {value} was made {count} times")
            for value, count in found.items()
            if count > 1 and value in wanted
        ),
    ]


# The log.


def _check_offsets(log: Sequence[Stored]) -> Iterator[Anomaly]:
    expected = 0
    for offset, value in log:
        if offset > expected:
            yield Anomaly(Fault.HOLE, f"offsets {expected} to {offset - 1} are missing")
        elif offset < expected:
            yield Anomaly(Fault.REORDERED, f"offset {offset} ({value}) came after {expected - 1}")
        expected = offset + 1


def _check_sends(sends: Sequence[Send], log: Sequence[Stored]) -> Iterator[Anomaly]:
    places: dict[str, list[int]] = defaultdict(list)
    for offset, value in log:
        places[value].append(offset)
    for send in sends:
        found = places.get(send.value, [])
        if send.outcome is Outcome.FAILED and found:
            yield Anomaly(Fault.UNEXPECTED, f"{send.value} had failed, and is at {found}")
        elif send.outcome is Outcome.OK and not found:
            yield Anomaly(Fault.LOST, f"{send.value}, acknowledged at offset {send.offset}")
        elif (
            send.outcome is Outcome.OK
            and send.offset != OFFSET_UNKNOWN
            and send.offset not in found
        ):
            yield Anomaly(
                Fault.MISPLACED, f"{send.value}, acknowledged at {send.offset}, is at {found}"
            )
    sent = {send.value for send in sends}
    for value, found in places.items():
        if value not in sent:
            yield Anomaly(Fault.UNEXPECTED, f"{value} at {found} was never sent")
        elif len(found) > 1:
            yield Anomaly(Fault.DUPLICATE, f"{value} at {found}")


def _check_order(sends: Sequence[Send], log: Sequence[Stored]) -> Iterator[Anomaly]:
    """Messages of one producer are in the log in the order they were sent."""
    # The last place counts: a message that is there twice is reported as such.
    places = {value: place for place, (_, value) in enumerate(log)}
    by_producer: dict[str, list[Send]] = defaultdict(list)
    for send in sends:
        if send.value in places:
            by_producer[send.producer].append(send)
    for producer, sent in by_producer.items():
        for before, after in pairwise(sent):
            if places[before.value] > places[after.value]:
                yield Anomaly(
                    Fault.REORDERED,
                    f"{producer} sent {before.value} before {after.value}, which is at "
                    f"{log[places[after.value]].offset}, before {log[places[before.value]].offset}",
                )


def _check_read(name: str, read: Sequence[Stored], log: Sequence[Stored]) -> Iterator[Anomaly]:
    """A reader sees the log from its beginning, and nothing it saw is gone or another later."""
    values = dict(log)
    for before, after in pairwise(read):
        if after.offset != before.offset + 1:
            fault = Fault.HOLE if after.offset > before.offset else Fault.REORDERED
            yield Anomaly(fault, f"reader {name} saw {after.offset} after {before.offset}")
    yield from _check_consistent(f"reader {name}", read, values)


def _check_consistent(
    who: str, seen: Iterable[Stored], values: dict[int, str]
) -> Iterator[Anomaly]:
    for offset, value in seen:
        stored = values.get(offset)
        if stored is None:
            yield Anomaly(Fault.INCONSISTENT, f"{who} saw {value} at {offset}, which is not there")
        elif stored != value:
            yield Anomaly(
                Fault.INCONSISTENT, f"{who} saw {value} at {offset}, which holds {stored}"
            )


# Subscriptions.


def _check_seen(
    name: str, deliveries: Sequence[Delivery], log: Sequence[Stored]
) -> Iterator[Anomaly]:
    seen = [Stored(one.offset, one.value) for one in deliveries]
    yield from _check_consistent(f"subscription {name}", seen, dict(log))
    delivered = {one.offset for one in deliveries}
    for offset, value in log:
        if offset not in delivered:
            yield Anomaly(Fault.UNSEEN, f"{value} at {offset} never came to {name}")


def _check_redelivered(name: str, deliveries: Sequence[Delivery]) -> Iterator[Anomaly]:
    confirmed: dict[int, int] = {}
    for one in deliveries:
        at = one.confirmed_at
        if at is not None:
            confirmed[one.offset] = min(at, confirmed.get(one.offset, at))
    for one in deliveries:
        at = confirmed.get(one.offset)
        if at is not None and one.at > at:
            yield Anomaly(
                Fault.REDELIVERED,
                f"{one.value} at {one.offset} came to {one.consumer} of {name} ({one.at}) although "
                f"its acknowledgement was confirmed ({at})",
            )


def _check_rising(name: str, deliveries: Sequence[Delivery]) -> Iterator[Anomaly]:
    settled: dict[int, int] = {}
    # What an acknowledgement was asked for, by the number of that moment.
    for one in deliveries:
        if one.settled_at is not None:
            settled[one.offset] = min(one.settled_at, settled.get(one.offset, one.settled_at))
    reached: dict[str, tuple[int, int]] = {}
    for one in deliveries:
        epoch, next_offset = reached.get(one.consumer, (-1, 0))
        if epoch != one.epoch:
            # Begun anew: at the first message that is not acknowledged.
            next_offset = 0
        elif one.offset < next_offset:
            yield Anomaly(
                Fault.REORDERED,
                f"{one.offset} came to {one.consumer} of {name} after {next_offset - 1}",
            )
        for offset in range(next_offset, one.offset):
            if settled.get(offset, one.at) >= one.at:
                yield Anomaly(
                    Fault.SKIPPED,
                    f"{one.offset} came to {one.consumer} of {name} before {offset}, "
                    "which was not acknowledged",
                )
        reached[one.consumer] = (one.epoch, one.offset + 1)


def _check_keys(name: str, deliveries: Sequence[Delivery]) -> Iterator[Anomaly]:
    settled: dict[int, int] = {}
    for one in deliveries:
        if one.settled_at is not None:
            settled[one.offset] = min(one.settled_at, settled.get(one.offset, one.settled_at))
    by_key: dict[str, list[Delivery]] = defaultdict(list)
    for one in deliveries:
        by_key[one.key].append(one)
    for key, some in by_key.items():
        before = _neighbours(some)
        for one in some:
            former = before.get(one.offset)
            if former is not None and settled.get(former, one.at) >= one.at:
                yield Anomaly(
                    Fault.OVERTAKEN,
                    f"{one.offset} of key {key} came to {one.consumer} of {name} before {former} "
                    "was acknowledged",
                )


def _neighbours(deliveries: Iterable[Delivery]) -> dict[int, int]:
    """Return for each offset the one in front of it."""
    offsets = sorted({one.offset for one in deliveries})
    return {after: before for before, after in pairwise(offsets)}
