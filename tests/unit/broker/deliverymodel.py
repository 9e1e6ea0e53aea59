"""A durable subscription beside a simple reference: random steps, checked after each of them.

The reference knows of every message whether it is acknowledged, leased and until when, or waiting
and until when. It does not say who gets what, only what may and what must be delivered.
"""

from dataclasses import dataclass, field, replace
from random import Random

from tests.unit.broker.streambench import TOPIC, Delivered, Member, StreamBench, saved

from ister.broker.durable.subscription import GRACE_MS
from ister.testing import Fault
from ister.testing.disk import Action

# Every time is a multiple of this, so that moving on by it meets each deadline exactly.
TICK_MS = 50
ACK_TIMEOUT_MS = 1_000
BACKOFF_MS = (100, 300)
MAX_DELIVERIES = 3
LETTERS = f"{TOPIC}-s-dlq"


@dataclass
class Message:
    """What the reference knows of one message."""

    offset: int
    key: str
    acked: bool = False
    # The lease, if it was acknowledged under one since the last seek; and all that were ever told
    # that it is.
    acked_under: int = 0
    confirmed: set[int] = field(default_factory=set)
    dead: bool = False
    failures: int = 0
    # To whom, under which number, until when.
    holder: str = ""
    lease: int = 0
    deadline_ms: int = 0
    due_ms: int = 0

    @property
    def settled(self) -> bool:
        return self.acked or self.dead

    def free(self) -> None:
        self.holder, self.lease = "", 0


@dataclass
class Model:
    """See the module."""

    seed: int
    type: str
    ordered: bool = False
    filtered: bool = False
    in_flight_max: int = 262_144
    tail_bytes: int = 1 << 24
    poison: str = "dead_letter"
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.bench = StreamBench(tail_bytes=self.tail_bytes)
        self.bench.create()
        self.messages: list[Message] = []
        self.members: dict[str, Member] = {}
        self.lost: dict[str, int] = {}
        self.held: list[Delivered] = []
        self.saves: dict[str, tuple[set[int], int]] = {}
        self.letters = 0
        # Whether all of it was blocked after the last step.
        self.stuck = False
        self.paused = False
        self.first = 0
        # What there was before the subscription was, it does not get.
        self.join("a")

    # Steps

    def step(self) -> None:
        """Do something at random, then check."""
        steps = [
            (self.publish, 20),
            (self.join_some, 6),
            (self.leave, 2),
            (self.lose, 3),
            (self.grant, 15),
            (self.ack, 25),
            (self.nack, 10),
            (self.ack_late, 3),
            (self.extend, 4),
            (self.tick, 20),
            (self.seek, 1),
            (self.save, 1),
            (self.restore, 1),
            (self.pause, 1),
            (self.resume, 3),
            (self.restart, 2),
            (self.purge, 1),
            (self.fail_disk, 1),
            (self.fail_to_seek, 1),
        ]
        if self.type in ("exclusive", "failover"):
            steps.append((self.ack_through, 4))
        (act,) = self.random.choices([s for s, _ in steps], [w for _, w in steps])
        self.log.append(act.__name__)
        act()
        self.check()

    def publish(self) -> None:
        count = self.random.randint(1, 8)
        keys = [self.random.choice("abcdef") for _ in range(count)]
        start = len(self.messages)
        self.messages += [Message(start + n, key) for n, key in enumerate(keys)]
        wanted = ["yes" if self.wanted(m) else "no" for m in self.messages[start:]]
        self.bench.publish(
            *(b"%d" % (start + n) for n in range(count)),
            keys=keys,
            attributes=[{"wanted": word} for word in wanted],
        )

    def wanted(self, message: Message) -> bool:
        return not self.filtered or message.offset % 3 != 0

    def join_some(self) -> None:
        self.join(self.random.choice("abc"))

    def join(self, name: str) -> None:
        if name in self.members or (self.type == "exclusive" and self.members):
            return
        now_ms = self.now_ms
        for message in self.messages:
            if message.holder == name:
                message.deadline_ms = max(message.deadline_ms, now_ms + ACK_TIMEOUT_MS)
        self.lost.pop(name, None)
        self.members[name] = self.bench.consume(
            subscription="s",
            consumer=name,
            owner=name,
            type=self.type,
            credit=0,
            filters={"wanted": "yes"} if self.filtered else {},
            acks={
                "ack_timeout_ms": ACK_TIMEOUT_MS,
                "backoff_ms": BACKOFF_MS,
                "max_deliveries": MAX_DELIVERIES,
                "ordered": self.ordered,
                "in_flight_max": self.in_flight_max,
                "poison": self.poison,
            },
        )
        self.end_grace()
        self.members[name].grant(self.random.choice((0, 1, 5, 100)))

    def leave(self) -> None:
        if self.members:
            name = self.random.choice(sorted(self.members))
            for message in self.messages:
                if message.holder == name:
                    message.free()
                    message.due_ms = 0
            self.take_all()
            member = self.members.pop(name)
            member.leave()
            assert member.take() == []

    def lose(self) -> None:
        if self.members:
            name = self.random.choice(sorted(self.members))
            now_ms = self.now_ms
            for message in self.messages:
                if message.holder == name:
                    message.deadline_ms = min(message.deadline_ms, now_ms + GRACE_MS)
            self.lost[name] = now_ms
            member = self.members.pop(name)
            member.lose()
            self.end_grace()

    def end_grace(self) -> None:
        """One at a time: whoever takes over has everything."""
        if self.type in ("exclusive", "failover") and self.members:
            for message in self.messages:
                if message.holder in self.lost:
                    self.fail(message)
            self.lost.clear()

    def grant(self) -> None:
        if self.members:
            name = self.random.choice(sorted(self.members))
            self.members[name].grant(self.random.choice((1, 3, 50)))

    def ack(self) -> None:
        for member, some in self.some_held():
            for delivered in some:
                message = self.messages[delivered.offset]
                message.acked = True
                message.acked_under = delivered.lease
                message.confirmed.add(delivered.lease)
                message.free()
            assert member.ack(*some, confirm=True) == []

    def ack_late(self) -> None:
        late = [d for d in self.held if not self.is_current(d)]
        if late and self.members:
            delivered = self.random.choice(late)
            member = self.members[self.random.choice(sorted(self.members))]
            refused = member.ack(delivered)
            # One that is acknowledged is refused as well, unless it was under this lease.
            message = self.messages[delivered.offset]
            expected = [] if delivered.lease in message.confirmed else [delivered.run]
            if not message.dead and (not message.acked or message.acked_under):
                assert refused == expected, (refused, expected)

    def ack_through(self) -> None:
        for member, some in self.some_held():
            last = some[-1]
            assert member.ack_through(last) == []
            for message in self.messages[: last.offset + 1]:
                message.acked = True
                message.free()

    def nack(self) -> None:
        for member, some in self.some_held():
            delay_ms = self.random.choice((None, 0, 50, 200))
            for delivered in some:
                self.fail(self.messages[delivered.offset], delay_ms)
            assert member.nack(*some, delay_ms=delay_ms) == []

    def extend(self) -> None:
        for member, some in self.some_held():
            extension_ms = self.random.choice((100, 500, 3_000))
            for delivered in some:
                message = self.messages[delivered.offset]
                message.deadline_ms = self.now_ms + extension_ms
            assert member.extend(*some, extension_ms=extension_ms) == []

    def tick(self, times: int = 0) -> None:
        self.take_all()
        for _ in range(times or self.random.choice((1, 2, 5, 30))):
            self.bench.advance(TICK_MS)
            for message in self.messages:
                if message.holder and message.deadline_ms <= self.now_ms:
                    self.fail(message)
            self.check()

    def seek(self) -> None:
        offset = self.random.randint(self.first, len(self.messages))
        self.move({m.offset for m in self.messages if m.offset < offset})
        assert self.bench.seek(offset) is None

    def save(self) -> None:
        acked = {m.offset for m in self.messages if m.settled and not self.blocks(m)}
        self.saves["one"] = (acked, len(self.messages))
        assert self.bench.change("save_cursor", TOPIC, "s", "one") is None

    def restore(self) -> None:
        if "one" in self.saves:
            self.move(self.saves["one"][0])
            assert self.bench.seek(saved("one")) is None

    def move(self, acked: set[int]) -> None:
        for message in self.messages:
            message.acked = message.offset in acked or message.offset < self.first
            message.dead = False
            message.failures = message.due_ms = message.acked_under = 0
            message.free()
        for member in self.members.values():
            member.take()

    def pause(self) -> None:
        self.paused = True
        assert self.bench.change("pause", TOPIC, "s", paused=True) is None

    def resume(self) -> None:
        self.paused = False
        assert self.bench.change("pause", TOPIC, "s", paused=False) is None

    def restart(self) -> None:
        self.take_all()
        assert self.bench.confirm() is None
        self.bench.restart(self.random.choice((None, "none", "all")))
        for message in self.messages:
            message.free()
            message.due_ms = 0
        self.members.clear()
        self.lost.clear()
        self.join(self.random.choice("abc"))

    def purge(self) -> None:
        if self.random.random() < 0.7:
            return
        before = self.random.randint(self.first, len(self.messages))
        self.first = max(self.first, before)
        for message in self.messages[:before]:
            message.acked = True
            message.free()
        self.bench.broker.purge(TOPIC, before, lambda _: None)
        self.bench.settle()

    def fail_disk(self) -> None:
        """Have the journal fail, and recover; what is acknowledged stays so."""
        self.take_all()
        action: Action = self.random.choice(("write", "sync"))
        self.bench.disk.fail(Fault(actions=(action,)))
        sent = self.bench.send([b"never stored"])
        assert sent.error is not None
        # What failed in the meantime is kept for the journal as well.
        self.ack()
        self.nack()
        self.recover()

    def fail_to_seek(self) -> None:
        """Have a seek taken back: only the leases are void."""
        self.take_all()
        self.bench.disk.fail(Fault(actions=["sync"]))
        for message in self.messages:
            message.free()
            message.due_ms = 0
        assert self.bench.seek(len(self.messages)) is not None
        self.recover()

    def recover(self) -> None:
        """Wait until the journal is good again, and letters that it did not take are written."""
        self.tick(2_500 // TICK_MS)
        assert self.bench.storage.committer.error is None

    # The reference

    @property
    def now_ms(self) -> int:
        return self.bench.clock.monotonic_ms()

    def fail(self, message: Message, delay_ms: int | None = None) -> None:
        message.free()
        message.failures += 1
        if message.failures >= MAX_DELIVERIES:
            message.dead = True
            self.letters += self.poison == "dead_letter"
        elif delay_ms is None:
            step = min(message.failures, len(BACKOFF_MS)) - 1
            message.due_ms = self.now_ms + BACKOFF_MS[step]
        else:
            message.due_ms = self.now_ms + delay_ms

    def blocks(self, message: Message) -> bool:
        """Whether a message keeps others from being delivered."""
        if self.poison != "block" or not message.dead:
            return False
        return not message.acked and message.offset >= self.first

    @property
    def blocked(self) -> bool:
        """Whether nothing may be delivered."""
        return self.type != "key_shared" and any(map(self.blocks, self.messages))

    def is_current(self, delivered: Delivered) -> bool:
        return self.messages[delivered.offset].lease == delivered.lease

    def some_held(self) -> list[tuple[Member, list[Delivered]]]:
        """Return some messages that a consumer holds, with that consumer."""
        if not self.members:
            return []
        name = self.random.choice(sorted(self.members))
        held = [
            d for d in self.held if self.is_current(d) and self.messages[d.offset].holder == name
        ]
        if not held:
            return []
        some = self.random.sample(held, self.random.randint(1, min(len(held), 6)))
        return [(self.members[name], sorted(some, key=lambda d: d.offset))]

    def take_all(self) -> None:
        """Take what was delivered, and check that each message may be."""
        for name, member in self.members.items():
            for delivered in member.take():
                message = self.messages[delivered.offset]
                assert not (self.stuck and self.blocked), f"{message} in spite of a block"
                assert not message.settled, f"{message} was settled"
                assert not message.holder, f"{message} is leased"
                assert message.due_ms <= self.now_ms, f"{message} is not due at {self.now_ms}"
                assert delivered.attempt == message.failures + 1, f"{message}: {delivered}"
                assert delivered.payload == b"%d" % message.offset
                assert self.wanted(message)
                message.holder, message.lease = name, delivered.lease
                message.deadline_ms = self.now_ms + ACK_TIMEOUT_MS
                self.held.append(delivered)

    def check(self) -> None:
        self.take_all()
        if self.ordered:
            self.check_order()
        self.check_live()
        unsettled = [m for m in self.messages if not m.settled and self.wanted(m)]
        cursor = self.bench.report().cursor
        assert cursor.in_flight == sum(1 for m in unsettled if m.holder)
        assert cursor.in_flight <= self.in_flight_max
        assert cursor.paused == self.paused
        self.stuck = self.blocked
        assert cursor.blocked == any(map(self.blocks, self.messages))

    def check_order(self) -> None:
        by_key: dict[str, list[Message]] = {}
        for message in self.messages:
            if (not message.settled or self.blocks(message)) and self.wanted(message):
                by_key.setdefault(message.key, []).append(message)
        for line in by_key.values():
            held = [m for m in line if m.holder]
            assert len(held) <= 1, f"two of a key in flight: {held}"
            assert not held or held[0] is line[0], f"{held[0]} before {line[0]}"

    def check_live(self) -> None:
        """Nothing waits that could be delivered."""
        if self.paused or self.blocked or not self.members:
            return
        unsettled = [m for m in self.messages if not m.settled and self.wanted(m)]
        free = [m for m in unsettled if not m.holder and m.due_ms <= self.now_ms]
        if self.in_flight_max <= len(self.messages):
            return
        for member in self.members.values():
            consumer = member.membership.consumer
            if not member.membership.active or not consumer.ready:
                continue
            if self.type == "key_shared":
                ring = member.durable.members.ring
                mine = [m for m in free if ring.owner(m.key) == consumer.name]
                if self.ordered:
                    mine = [m for m in mine if self.is_first_of_key(m, unsettled)]
                    # Behind one that the dead letters do not have yet.
                    (partition,) = member.durable.partitions
                    dead = [m for m in self.messages if m.dead]
                    late = {m.key for m in dead if partition.deliveries.is_exhausted(m.offset)}
                    mine = [m for m in mine if m.key not in late]
            else:
                mine = free
            assert not mine, f"{mine[0]} waits for nothing"

    @staticmethod
    def is_first_of_key(message: Message, unsettled: list[Message]) -> bool:
        return next(m for m in unsettled if m.key == message.key) is message

    def finish(self) -> None:
        """Acknowledge everything there is: each message is delivered or was settled."""
        self.resume()
        if self.poison == "block":
            if not self.members:
                self.join("a")
            self.poison = "drop"
            acks = replace(next(iter(self.members.values())).durable.acks, poison="drop")
            assert self.bench.change("set_acks", TOPIC, "s", acks) is None
        for _ in range(200):
            if not self.members:
                self.join("a")
            for name in list(self.members):
                self.members[name].grant(1_000)
            self.check()
            for delivered in [d for d in self.held if self.is_current(d)]:
                message = self.messages[delivered.offset]
                member = self.members.get(message.holder)
                if member is not None:
                    message.acked = True
                    message.free()
                    assert member.ack(delivered) == []
            self.held.clear()
            if all(m.settled or not self.wanted(m) for m in self.messages):
                break
            self.tick()
        assert all(m.settled or not self.wanted(m) for m in self.messages), "some never came"
        self.check()
        if self.letters:
            assert len(self.bench.stored(LETTERS)) == self.letters
        assert self.bench.lag() == 0
