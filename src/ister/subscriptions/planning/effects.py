"""What planning says is to be done, and what it has to know of a partition and of consumers.

Planners are generators. Always true: each effect is carried out before the next one is asked for,
so that credit, room and deliveries are as that has left them.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol, TypeAlias

from ister.codec import Batch
from ister.subscriptions.deliveries import Deliveries
from ister.subscriptions.ordered import KeyGate
from ister.subscriptions.planning.selection import Selector
from ister.subscriptions.ring import Ring


class Deliver(NamedTuple):
    """Lease the messages at `slots` of a batch to a consumer, and send them."""

    consumer: "Member"
    batch: Batch
    slots: Sequence[int]
    attempt: int


class Skip(NamedTuple):
    """Count a range as acknowledged: nobody wants it, or it is not there."""

    start: int
    end: int


class Hold(NamedTuple):
    """Set messages aside: planning has queued them for the owners of their keys."""

    offsets: Sequence[int]


Effect: TypeAlias = Deliver | Skip | Hold


class Purpose(Enum):
    """What a batch is wanted for. Each reads on by itself: they are in different places."""

    NEW = auto()
    REDELIVERY = auto()
    QUEUED = auto()
    DEAD_LETTER = auto()


class State(Enum):
    """Whether messages of a partition may be handed out for the first time.

        OPEN
        REDELIVERING   one consumer gets all of it in order, and a redelivery is being read
        RESTORING      after a start, where keys are kept in order: its dead messages are not all
                       in the gate yet, and later messages of their keys have to wait behind them

    OPEN --a redelivery has to be read--> REDELIVERING --it was read--> OPEN
    OPEN --it starts over, with dead messages and a gate--> RESTORING --all are in the gate--> OPEN
    """

    OPEN = auto()
    REDELIVERING = auto()
    RESTORING = auto()


class Member(Protocol):
    """A consumer, as planning sees it."""

    name: str
    credit_count: int

    @property
    def ready(self) -> bool:
        """Whether it can be sent something now."""

    @property
    def load(self) -> int:
        """How many messages it has to deal with."""


class KeyOwners(Protocol):
    """The consumers of a key-shared subscription."""

    ring: Ring

    @property
    def by_name(self) -> Mapping[str, Member]:
        """All of them."""


class Plannable(Protocol):
    """A partition, as planning sees it."""

    deliveries: Deliveries
    selector: Selector
    gate: KeyGate | None
    state: State
    # Key-shared: offsets with their keys that wait for room at the owner of the key, as a heap
    # for each owner by name; and how many they are.
    queued: dict[str, list[tuple[int, str]]]
    queued_count: int

    @property
    def end_offset(self) -> int:
        """The offset after the newest message."""

    @property
    def ttl_ms(self) -> int:
        """How long its messages live; 0: for good."""

    def batch_at(self, offset: int, purpose: Purpose) -> Batch | None:
        """Return the batch with a message, or the next one stored; `None` while it is read."""

    def is_gone(self, purpose: Purpose) -> bool:
        """Whether what was asked for last, and not given, is not stored any more."""

    def end_reading(self, purpose: Purpose) -> None:
        """Let go of what was read for a purpose: there is nothing more for now."""
