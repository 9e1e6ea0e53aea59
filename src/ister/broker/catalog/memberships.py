"""Consumers and what they are attached to: a live subscription, durable ones, or both."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ister.base import EARLIEST, LATEST, AckSettings, Position
from ister.base.errors import IsterError
from ister.broker.consumers import Consumer
from ister.broker.durable import DurableSubscription, Run, TimedRun, slot_of
from ister.broker.live import Subscription
from ister.broker.scheduling import Done, after_all
from ister.broker.storage import Storage
from ister.broker.subscriptions import Wanted

AnyRun = Run | TimedRun
Act = Callable[[DurableSubscription, Sequence[Any]], list[Run]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeOptions:
    """What a consumer asks for. The broker checks the words, so that every door refuses alike."""

    topic: str
    subscription: str
    consumer: str
    type: str = "exclusive"
    policy: str = "least_loaded"
    key_filters: Sequence[str] = ()
    filters: dict[str, str]
    # As the client remembers them from before a restart of the broker.
    partitions: int = 0
    kind: str = ""
    start: Position = LATEST
    acks: AckSettings | None = None
    # Of a pattern: whether it covers work queues, of which each has one subscription only.
    work_queues: bool = False
    # Whether it stays without consumers, and for how long if not for good.
    durable: bool = True
    expire_after_ms: int = 0
    # The names of the settings that the consumer chose: see `Wanted`.
    given: Collection[str] | None = None
    # Of a client that comes back: the leases it still holds, if it says.
    held: list[int] | None = None


@dataclass(slots=True, eq=False)
class Membership:
    """One consumer, and where it gets its messages from."""

    consumer: Consumer
    live: Subscription | None = None
    durables: list[DurableSubscription] = field(default_factory=list)
    # Where a durable subscription was asked for, those included that are not made yet.
    asked: set[Storage] = field(default_factory=set)
    # What it asked for, for topics that appear later.
    wanted: Wanted | None = None
    # Whether the consumer has left: what is still under way is not for it any more.
    left: bool = False

    @property
    def type(self) -> str:
        """The type of its subscription."""
        source = self.live or self.durables[0]
        return source.type.value

    @property
    def active(self) -> bool:
        """Whether the consumer is sent messages now."""
        if self.live is not None:
            return self.live.members.is_active(self.consumer)
        return all(d.members.is_active(self.consumer) for d in self.durables)

    def wanted_anew(self) -> Wanted:
        """Return what it wants of a stream that has just appeared: all of it."""
        assert self.wanted is not None
        return replace(self.wanted, start=EARLIEST)

    def confirm(self, done: Done) -> None:
        """Have `done` called when every journal has what was acknowledged so far."""
        each = after_all(len(self.durables), done)
        for durable in self.durables:
            try:
                durable.ack_journal.confirm(each)
            except IsterError as error:
                each(error)

    @property
    def life(self) -> int:
        """What its leases belong to: changes when they become void."""
        if not self.durables:
            return 0
        return self.durables[0].storage.life + sum(d.epoch for d in self.durables)

    def on_void(self) -> None:
        """All leases are void."""
        consumer = self.consumer
        consumer.sink.leases_void(consumer.channel, self.life, active=self.active)

    def ack(self, runs: Sequence[Run], *, confirm: bool = False) -> list[Run]:
        """Acknowledge; returns the runs refused.

        With `confirm` the journal records the leases, so that the same can be repeated after a
        restart of the broker.
        """
        return self._sort_out(runs, lambda durable, some: durable.ack(some, confirm=confirm))

    def ack_through(self, runs: Sequence[Run], *, confirm: bool = False) -> list[Run]:
        """Acknowledge everything below the ends of runs; returns the runs refused."""
        return self._sort_out(
            runs, lambda durable, some: durable.ack_through(some, confirm=confirm)
        )

    def nack(self, runs: Sequence[TimedRun], backoff_delay: int, reason: str = "") -> list[Run]:
        """Give messages back; returns the runs refused."""
        return self._sort_out(runs, lambda durable, some: durable.nack(some, backoff_delay, reason))

    def extend(self, runs: Sequence[TimedRun]) -> list[Run]:
        """Give leases more time; returns the runs refused."""
        return self._sort_out(runs, lambda durable, some: durable.extend(some))

    def _sort_out(self, runs: Sequence[AnyRun], act: Act) -> list[Run]:
        """Give each run to the subscription whose lease it is: mostly there is one."""
        if len(self.durables) == 1:
            return act(self.durables[0], runs)
        refused: list[Run] = []
        for run in runs:
            owner = next((d for d in self.durables if d.journal == slot_of(run[0])[0]), None)
            refused += act(owner, [run]) if owner is not None else [run[:3]]
        return refused
