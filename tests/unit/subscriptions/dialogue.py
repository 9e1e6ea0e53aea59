"""Carries out a dialogue with the planners: a text of commands, each with the effects it has.

A command is a line; behind it is `----` and what planning had done because of it, up to an empty
line. Commands:

    subscription TYPE [policy=P] [max_deliveries=N] [ttl_ms=N] [name=GLOB ...] [ordered=1]
    join NAME [CREDIT]              a consumer comes; `leave NAME`
    credit NAME COUNT               it grants credit
    publish COUNT [keys=a,b] [color=red,blue]    one batch; attributes and keys in turn
    forget OFFSET                   the batch with it has to be read from the disk from now on
    load                            what was asked for has been read
    ack LEASE START-END             `nack LEASE START-END [DELAY_MS]`
    advance MS                      time goes by, and deadlines pass
    room COUNT                      so many messages may be in flight from now on
"""

from collections.abc import Callable, Iterable
from itertools import count

from ister.base import AckSettings
from ister.codec import Batch, encode
from ister.subscriptions import (
    Cursor,
    Deliveries,
    Filter,
    KeyGate,
    KeyMatcher,
    Policy,
    Ring,
    SubscriptionType,
)
from ister.subscriptions.planning import (
    Deliver,
    Effect,
    Exclusive,
    Hold,
    KeyShared,
    Purpose,
    Selector,
    Shared,
    Skip,
    State,
    Strategy,
    Times,
    cut,
    plan_again,
    plan_new,
)


class Reader:
    """A consumer that takes what it has credit for."""

    def __init__(self, name: str, credit_count: int) -> None:
        self.name = name
        self.credit_count = credit_count
        self.load = 0

    @property
    def ready(self) -> bool:
        return self.credit_count > 0


class Readers:
    """The consumers of a key-shared subscription, and of any other."""

    def __init__(self) -> None:
        self.ring = Ring()
        self.by_name: dict[str, Reader] = {}
        self.all: list[Reader] = []


class Topic:
    """One partition, all in memory but for the batches that are forgotten."""

    def __init__(self, acks: AckSettings, filter_: Filter, *, ordered: bool, ttl_ms: int) -> None:
        self.deliveries = Deliveries(Cursor(), acks, count(1))
        self.selector = Selector(filter_)
        self.gate = KeyGate() if ordered else None
        self.state = State.OPEN
        self.queued: dict[str, list[tuple[int, str]]] = {}
        self.queued_count = 0
        self.end_offset = 0
        self.ttl_ms = ttl_ms
        self.batches: list[Batch] = []
        self.forgotten: set[int] = set()
        self.asked: dict[tuple[int, Purpose], None] = {}

    def batch_at(self, offset: int, purpose: Purpose) -> Batch | None:
        batch = next(b for b in self.batches if offset < b.offsets[-1] + 1)
        if batch.base_offset not in self.forgotten:
            return batch
        self.asked[batch.base_offset, purpose] = None
        return None

    def is_gone(self, purpose: Purpose) -> bool:
        return False

    def end_reading(self, purpose: Purpose) -> None:
        """Nothing is kept for it."""


class Dialogue:
    """A subscription on one topic, as commands make it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.now_ms = 0
        self.room = 1_000_000

    def say(self, command: str) -> list[str]:
        """Carry out a command, hand out what can be, and return what that did."""
        self.lines = []
        word, *arguments = command.split()
        plain = [one for one in arguments if "=" not in one]
        options = dict(one.split("=", 1) for one in arguments if "=" in one)
        call: Callable[..., None] = getattr(self, f"do_{word}")
        call(*plain, **options)
        self.hand_out()
        return self.lines

    # Commands

    def do_subscription(self, type_: str, **options: str) -> None:
        acks = AckSettings(max_deliveries=int(options.pop("max_deliveries", 0)), backoff_ms=())
        policy = Policy(options.pop("policy", "least_loaded"))
        ordered, ttl_ms = "ordered" in options, int(options.pop("ttl_ms", 0))
        options.pop("ordered", None)
        self.topic = Topic(acks, Filter(options, ()), ordered=ordered, ttl_ms=ttl_ms)
        self.readers = Readers()
        self.queues: KeyShared | None = None
        self.strategy: Strategy
        if SubscriptionType(type_) is SubscriptionType.KEY_SHARED:
            self.strategy = self.queues = KeyShared(self.readers, lambda: self.left)
        elif SubscriptionType(type_) is SubscriptionType.SHARED:
            self.strategy = Shared(self.readers.all, policy, lambda _: 0)
        else:
            self.strategy = Exclusive(self.readers.all)

    def do_join(self, name: str, credit: str = "0") -> None:
        reader = self.readers.by_name[name] = Reader(name, int(credit))
        self.readers.all.append(reader)
        self.readers.ring.join(name, KeyMatcher(()))
        self.sort()

    def do_leave(self, name: str) -> None:
        self.readers.all.remove(self.readers.by_name.pop(name))
        self.readers.ring.leave(name)
        self.topic.deliveries.release(name)
        self.sort()

    def do_credit(self, name: str, more: str) -> None:
        self.readers.by_name[name].credit_count += int(more)

    def do_publish(self, number: str, keys: str = "", **attributes: str) -> None:
        size = int(number)
        rows = [
            {
                name: values.split(",")[n % len(values.split(","))]
                for name, values in attributes.items()
            }
            for n in range(size)
        ]
        some_keys = [keys.split(",")[n % len(keys.split(","))] for n in range(size)]
        payloads = [b"%d" % (self.topic.end_offset + n) for n in range(size)]
        head, body = encode(
            payloads,
            keys=some_keys if keys else None,
            attributes=rows if attributes else None,
            producer=b"p",
        )
        batch = Batch(head + body)
        batch.base_offset = self.topic.end_offset
        batch.publish_time_ms = self.now_ms
        self.topic.batches.append(batch)
        self.topic.end_offset += size

    def do_forget(self, offset: str) -> None:
        batch = next(b for b in self.topic.batches if int(offset) in b.offsets)
        self.topic.forgotten.add(batch.base_offset)

    def do_load(self) -> None:
        self.topic.forgotten.difference_update(base for base, _ in self.topic.asked)
        self.topic.asked.clear()

    def do_ack(self, lease: str, run: str) -> None:
        start, end = run_of(run)
        refused = self.topic.deliveries.ack(int(lease), start, end)
        self.lines += [f"refused {text_of(range(*one))}" for one in refused]
        if self.queues is not None:
            self.queues.on_done(self.topic, start, end)

    def do_nack(self, lease: str, run: str, delay_ms: str = "0") -> None:
        refused = self.topic.deliveries.nack(
            int(lease), *run_of(run), now_ms=self.now_ms, delay_ms=int(delay_ms)
        )
        self.lines += [f"refused {text_of(range(*one))}" for one in refused]

    def do_advance(self, ms: str) -> None:
        self.now_ms += int(ms)
        self.topic.deliveries.expire(self.now_ms)

    def do_room(self, number: str) -> None:
        self.room = int(number)

    # What the broker does

    @property
    def left(self) -> int:
        return self.room - self.topic.deliveries.unsettled + self.topic.deliveries.aside

    def sort(self) -> None:
        if self.queues is not None:
            self.queues.reroute()
            self.queues.sort(lambda: False)

    def hand_out(self) -> None:
        topic, strategy = self.topic, self.strategy
        times = Times(self.now_ms, lambda: self.now_ms, self.now_ms + 1)
        before, asked = topic.state, list(topic.asked)
        if self.readers.all:
            while strategy.is_ready and self.carry_out(plan_again(topic, strategy, times=times)):
                pass
            if self.queues is not None:
                for _ in self.queues.ready_partitions():
                    self.carry_out(self.queues.plan_queued(topic, self.now_ms, lambda: False))
            while (
                strategy.is_ready
                and self.left > 0
                and self.carry_out(plan_new(topic, strategy, room=self.left, times=times))
            ):
                pass
        self.lines += [
            f"read {base} for {p.name}" for base, p in topic.asked if (base, p) not in asked
        ]
        if topic.state is not before:
            self.lines.append(f"state {topic.state.name}")
        if topic.deliveries.any_exhausted:
            dead = [offset for offset, _ in topic.deliveries.exhausted(100)]
            self.lines.append(f"dead {text_of(dead)}")

    def carry_out(self, effects: Iterable[Effect]) -> bool:
        any_done = False
        for effect in effects:
            any_done = True
            if isinstance(effect, Deliver):
                self.deliver(effect)
            elif isinstance(effect, Hold):
                self.topic.deliveries.hold(effect.offsets)
            else:
                self.skip(effect)
        return any_done

    def deliver(self, effect: Deliver) -> None:
        reader, part = effect.consumer, cut(effect)
        lease = self.topic.deliveries.lease(
            part.offsets,
            consumer=reader.name,
            now_ms=self.now_ms,
            size_bytes=part.size_bytes,
            attempt=effect.attempt,
        )
        reader.credit_count -= part.count
        self.readers.by_name[reader.name].load += part.count
        again = f", attempt {effect.attempt}" if effect.attempt > 1 else ""
        self.lines.append(
            f"{reader.name} gets {text_of(part.offsets)} as lease {lease.number}{again}"
        )

    def skip(self, effect: Skip) -> None:
        self.topic.deliveries.skip(*effect)
        if self.queues is not None:
            self.queues.on_done(self.topic, *effect)
        self.lines.append(f"skip {text_of(range(*effect))}")


def run_of(text: str) -> tuple[int, int]:
    """Return a run that is written as its first and its last offset."""
    first, _, last = text.partition("-")
    return int(first), int(last or first) + 1


def text_of(offsets: Iterable[int]) -> str:
    """Return offsets as runs."""
    runs: list[list[int]] = []
    for offset in offsets:
        if runs and runs[-1][-1] + 1 == offset:
            runs[-1][1:] = [offset]
        else:
            runs.append([offset])
    return " ".join("-".join(map(str, run)) for run in runs)
