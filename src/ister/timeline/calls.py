"""What is asked of a store: plain calls that take it, so that they can be made in any process.

A call is a function of this package with all but the store filled in, as `partial` or
`methodcaller` make it: it can be pickled, and so can what it returns. Changes and what came of them
are many, and travel in runs of one kind.
"""

import pickle
from collections.abc import Callable, Sequence
from itertools import groupby
from types import GenericAlias
from typing import Any, TypeVar

import msgspec

from ister.base.errors import IsterError, StorageFailedError
from ister.timeline.model import (
    Bury,
    Changed,
    Delete,
    Done,
    Extend,
    Lease,
    Move,
    Put,
    Redrive,
    Release,
    Row,
    Slot,
    Update,
    Work,
)
from ister.timeline.port import Outcomes, Store

T = TypeVar("T")

Call = Callable[[Store], T]
# The number of a kind, and its members; -1 is everything else.
Run = tuple[int, bytes]
# Whether it is atomic, and `Work.begun_ms`; then its changes.
PackedWork = tuple[bool, int, list[Run]]

KINDS: tuple[type, ...] = (
    Put,
    Move,
    Update,
    Delete,
    Lease,
    Extend,
    Release,
    Done,
    Bury,
    Redrive,
    Changed,
    Row,
    Slot,
)
NUMBERS = {kind: number for number, kind in enumerate(KINDS)}
OTHERS = -1


class Group:
    """Changes to be made together, and calls that are to see them."""

    __slots__ = ("calls", "now_ms", "work")

    def __init__(self, now_ms: int, work: list[Work], calls: list[Call[Any]]) -> None:
        self.now_ms = now_ms
        self.work = work
        self.calls = calls

    def __call__(self, store: Store) -> "GroupResult":
        """Make the changes, then the calls."""
        outcomes = store.apply(self.now_ms, self.work) if self.work else []
        return GroupResult(outcomes, try_all(store, self.calls))

    def __reduce__(self) -> tuple[object, ...]:
        work = [(one.atomic, one.begun_ms, pack(one.changes)) for one in self.work]
        return _unpack_group, (self.now_ms, work, self.calls)


class GroupResult:
    """What came of a group."""

    __slots__ = ("found", "outcomes")

    def __init__(self, outcomes: list[Outcomes], found: list[Any]) -> None:
        # For each piece of work, and for each call what it returned or raised.
        self.outcomes = outcomes
        self.found = found

    def __reduce__(self) -> tuple[object, ...]:
        packed = [one if isinstance(one, IsterError) else pack(one) for one in self.outcomes]
        return _unpack_result, (packed, self.found)


class Slots(list[Slot]):
    """Slots, thousands of them, that travel as changes do."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        return _unpack_slots, (pack(self),)


def try_all(store: Store, calls: Sequence[Call[Any]]) -> list[Any]:
    """Return what calls return or raise. When the storage fails, the others are not made.

    Each might wait as long as the first one did.
    """
    found: list[Any] = []
    failed: StorageFailedError | None = None
    for call in calls:
        one = try_call(store, call) if failed is None else failed
        if isinstance(one, StorageFailedError):
            failed = one
        found.append(one)
    return found


def try_call(store: Store, call: Call[T]) -> T | IsterError:
    """Return what a call returns or raises."""
    try:
        return call(store)
    except Exception as error:  # noqa: BLE001 - whoever asked is told
        return as_ister_error(error)


def as_ister_error(error: Exception) -> IsterError:
    """Return what to tell of an error of the store."""
    if isinstance(error, IsterError):
        return error
    return StorageFailedError(f"{type(error).__name__}: {error}")


def do_nothing(_: Store) -> None:
    """Do nothing: whoever asks knows that everything before it was done."""


# Packing


def pack(items: Sequence[Any]) -> list[Run]:
    """Return things as they travel."""
    return [_pack_run(NUMBERS.get(kind, OTHERS), [*run]) for kind, run in groupby(items, type)]


def unpack(runs: Sequence[Run]) -> list[Any]:
    """Return things as they were."""
    items: list[Any] = []
    for number, data in runs:
        items += _unpickle(data) if number == OTHERS else _decoders[number].decode(data)
    return items


def _pack_run(number: int, items: list[Any]) -> Run:
    if number != OTHERS:
        try:
            return number, _encoder.encode(items)
        except (UnicodeEncodeError, OverflowError):
            pass  # No store takes such a text, or such a number: it is refused there.
    return OTHERS, pickle.dumps(items)


def _unpack_group(now_ms: int, work: Sequence[PackedWork], calls: list[Call[Any]]) -> Group:
    unpacked = [Work(unpack(runs), atomic, begun_ms) for atomic, begun_ms, runs in work]
    return Group(now_ms, unpacked, calls)


def _unpack_result(outcomes: Sequence[list[Run] | IsterError], found: list[Any]) -> GroupResult:
    unpacked = [one if isinstance(one, IsterError) else unpack(one) for one in outcomes]
    return GroupResult(unpacked, found)


def _unpack_slots(runs: Sequence[Run]) -> Slots:
    return Slots(unpack(runs))


# Of our own process, or of the one that was started by it.
_unpickle = pickle.loads
_encoder = msgspec.msgpack.Encoder()
_decoders: "list[msgspec.msgpack.Decoder[Any]]" = [
    msgspec.msgpack.Decoder(GenericAlias(list, kind)) for kind in KINDS
]
