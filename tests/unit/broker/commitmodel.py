"""Consumers of a durable subscription that use transactions: random steps, checked after each one.

Each processed message has an effect: a message of the same number in another topic. The reference
knows which messages are done, and which are in a commit whose result is not known yet.

Always true:
- a message is delivered only when it is neither done nor in a commit;
- a message is in at most one lease or commit, and an acknowledged message is in none;
- a message has one effect, and one more for each seek that brought it back;
- all messages that are not done are delivered in the end, and then done;
- with dead letters, a message has either an effect or a dead letter.
"""

from dataclasses import dataclass, field
from random import Random

import msgspec
from tests.unit.broker.streambench import TOPIC, Delivered, Member, Outcome, StreamBench

from ister.base import AckSettings, Position
from ister.base.errors import (
    IsterError,
    StorageFailedError,
    StorageUncertainError,
    TransactionError,
)
from ister.testing import Fault
from ister.testing.disk import Action

OUT = "/default/out"
LETTERS = "/default/letters"
NAMES = "abc"
ACK_TIMEOUT_MS = 1_000


@dataclass(eq=False)
class Commit:
    """A transaction that was sent and not answered yet."""

    word: str
    work: list[Delivered]
    # The seeks that came before it.
    seeks: int

    @property
    def offsets(self) -> set[int]:
        return {delivered.offset for delivered in self.work}


@dataclass
class CommitModel:
    """Random steps of consumers and the disk, with a reference to check against."""

    seed: int
    type: str
    ordered: bool = False
    # Deliveries before a message is a dead letter; 0 for as many as it takes.
    max_deliveries: int = 0
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.bench = StreamBench()
        for topic in (TOPIC, OUT, LETTERS):
            self.bench.create(topic)
        self.count = 0
        self.members: dict[str, Member] = {}
        # All that was ever delivered in this life of the broker, current or not.
        self.held: list[tuple[str, Delivered]] = []
        self.done: set[int] = set()
        # Of these, which a restart may bring back: nobody waited for the journal.
        self.lazily: set[int] = set()
        # Those that a restart may have brought back, ever.
        self.forgotten: set[int] = set()
        self.effects: dict[int, int] = {}
        self.commits: list[Commit] = []
        # Of which the broker could not say whether they were carried out.
        self.uncertain: list[Commit] = []
        # Seeks that nobody was told about yet, and how many were sent.
        self.seeking = 0
        self.seeks = 0
        self.words = 0
        self.last: Commit | None = None
        self.join("a")

    @property
    def acks(self) -> AckSettings:
        return AckSettings(
            ack_timeout_ms=ACK_TIMEOUT_MS,
            max_deliveries=self.max_deliveries,
            ordered=self.ordered,
            dead_letter_topic=LETTERS,
        )

    @property
    def in_commit(self) -> set[int]:
        return {offset for commit in self.commits for offset in commit.offsets}

    # Steps

    def step(self) -> None:
        """Do a random step, then check."""
        steps = [
            (self.publish, 15),
            (self.join_some, 8),
            (self.leave, 4),
            (self.lose, 4),
            (self.grant, 15),
            (self.ack, 6),
            (self.confirm, 4),
            (self.nack, 6),
            (self.extend, 4),
            (self.commit, 30),
            (self.commit_again, 4),
            (self.tick, 12),
            (self.hold, 10),
            (self.release, 10),
            (self.fail_disk, 3),
            (self.seek, 1),
            (self.set_acks, 2),
            (self.restart, 2),
        ]
        if self.type in ("exclusive", "failover"):
            steps.append((self.ack_through, 4))
        (act,) = self.random.choices([s for s, _ in steps], [w for _, w in steps])
        self.log.append(act.__name__)
        act()
        self.bench.settle()
        self.check()

    def publish(self) -> None:
        if self.bench.storage.committer.error is not None or self.bench.writing.holding:
            return
        for _ in range(self.random.randint(1, 3)):
            keys = [self.random.choice("uvwxyz") for _ in range(self.random.randint(1, 4))]
            payloads = [b"%d" % (self.count + n) for n in range(len(keys))]
            if self.bench.send(payloads, keys=keys).error is not None:
                return
            self.count += len(keys)

    def join_some(self) -> None:
        self.join(self.random.choice(NAMES))

    def join(self, name: str) -> None:
        if name in self.members or (self.type == "exclusive" and self.members):
            return
        acks = msgspec.to_builtins(self.acks) if not self.seeks else None
        sink, outcome = self.bench.subscribe(consumer=name, owner=name, type=self.type, acks=acks)
        self.bench.settle()
        if outcome.told and not isinstance(outcome.result, IsterError):
            self.members[name] = Member(self.bench, sink, outcome.result)
            self.members[name].grant(self.random.choice((0, 1, 5, 100)))
        else:
            # It waits for the journal, or that has failed: it gives up.
            assert self.bench.writing.holding or self.bench.storage.committer.error is not None
            self.bench.writing.release()
            self.bench.settle()
            if not isinstance(outcome.result, IsterError):
                Member(self.bench, sink, outcome.result).leave()

    def leave(self) -> None:
        if self.members:
            self.members.pop(self.random.choice(sorted(self.members))).leave()

    def lose(self) -> None:
        if self.members:
            self.members.pop(self.random.choice(sorted(self.members))).lose()

    def grant(self) -> None:
        if self.members:
            self.members[self.random.choice(sorted(self.members))].grant(
                self.random.choice((1, 3, 50))
            )

    def some_held(self) -> tuple[Member, list[Delivered]] | None:
        """Choose a consumer, and some messages that were ever delivered under its name."""
        if not self.members:
            return None
        name = self.random.choice(sorted(self.members))
        # Mostly of late: with all of it, hardly anything would still be leased.
        held = [delivered for holder, delivered in self.held if holder == name][-8:]
        if not held:
            return None
        some = self.random.sample(held, self.random.randint(1, min(len(held), 4)))
        return self.members[name], sorted(some, key=lambda d: (d.offset, d.lease))

    def ack(self) -> None:
        found = self.some_held()
        if found is not None:
            self.on_acked(found[1], found[0].ack(*found[1]))

    def on_acked(self, some: list[Delivered], refused: list[tuple[int, int, int]]) -> set[int]:
        if self.seeking:
            # What is below the new place counts as done, unless the seek fails.
            return set()
        accepted = {d.offset for d in some if d.run not in refused}
        assert not accepted & self.in_commit, "acknowledged while it is in a commit"
        self.lazily |= accepted - self.done
        self.done |= accepted
        return accepted

    def confirm(self) -> None:
        found = self.some_held()
        if found is None:
            return
        member, some = found
        accepted = self.on_acked(some, member.ack(*some))

        def confirmed(error: IsterError | None = None) -> None:
            if error is None:
                self.lazily.difference_update(accepted)

        try:
            self.bench.broker.durables.confirm(self.bench.storage, confirmed)
        except IsterError:
            return

    def ack_through(self) -> None:
        found = self.some_held()
        if found is not None:
            member, some = found
            if member.ack_through(some[-1]) == [] and not self.seeking:
                below = set(range(some[-1].offset + 1)) - self.in_commit
                self.lazily |= below - self.done
                self.done |= below

    def nack(self) -> None:
        found = self.some_held()
        if found is not None:
            found[0].nack(*found[1], delay_ms=self.random.choice((None, 0, 100)))

    def extend(self) -> None:
        found = self.some_held()
        if found is not None:
            found[0].extend(*found[1], extension_ms=self.random.choice((100, 3_000)))

    def tick(self) -> None:
        if self.random.random() < 0.5:
            self.bench.disk.heal()
        self.bench.advance(self.random.choice((50, 200, 1_000, 6_000)))

    def hold(self) -> None:
        """Hold writes to the disk from now on."""
        self.bench.writing.holding = True

    def release(self) -> None:
        self.bench.writing.release()

    def fail_disk(self) -> None:
        """Fail the next action on the disk, once or until the disk works again."""
        action: Action = self.random.choice(("write", "sync", "truncate", "create"))
        self.bench.disk.fail(Fault(actions=(action,), lasting=self.random.random() < 0.5))

    def set_acks(self) -> None:
        """Change the acknowledgement settings. In a key-shared subscription this voids leases."""
        if self.bench.storage.committer.error is not None:
            return
        if self.type == "key_shared":
            self.ordered = not self.ordered
        told = Outcome()
        self.bench.broker.durables.set_acks(TOPIC, "s", self.acks, told)
        self.release()
        self.bench.settle()
        if told.error is not None and self.type == "key_shared":
            self.ordered = not self.ordered

    def seek(self) -> None:
        offset = self.random.randint(0, self.count)
        self.seeks += 1
        self.seeking += 1

        def sought(error: IsterError | None = None) -> None:
            self.seeking -= 1
            if error is None:
                self.done = set(range(offset))
                self.lazily.clear()

        try:
            self.bench.broker.durables.seek(TOPIC, "s", _offset(offset), sought)
        except IsterError as error:
            sought(error)

    # Transactions

    def commit(self) -> None:
        found = self.some_held()
        if found is not None:
            self.words += 1
            self.send(Commit(f"word {self.words}", found[1], self.seeks), found[0])

    def commit_again(self) -> None:
        """Retry a commit, as a client does that has lost its connection and is back."""
        if self.last is not None and self.members:
            member = self.members[self.random.choice(sorted(self.members))]
            self.send(self.last, member, again=True)

    def send(self, commit: Commit, member: Member, *, again: bool = False) -> None:
        transaction = self.bench.begin(commit.word)
        for delivered in commit.work:
            self.bench.stage(transaction, 0, delivered.payload)

        def told(result: list[int] | IsterError) -> None:
            if not again:
                self.on_told(commit, result)

        if not again:
            self.commits.append(commit)
            self.last = commit
        acks = [(member.membership.durables, *delivered.run) for delivered in commit.work]
        try:
            self.bench.broker.commit(transaction, [OUT], acks, told)
        except IsterError as error:
            told(error)

    def on_told(self, commit: Commit, result: list[int] | IsterError) -> None:
        self.commits.remove(commit)
        if isinstance(result, IsterError):
            if isinstance(result, StorageUncertainError):
                self.uncertain.append(commit)
            elif not isinstance(result, TransactionError):
                assert isinstance(result, StorageFailedError), result
            if not isinstance(result, TransactionError):
                # The same again is another transaction.
                self.last = None
            return
        self.on_committed(commit)

    def on_committed(self, commit: Commit) -> None:
        if commit.seeks == self.seeks - self.seeking:
            assert not commit.offsets & self.done, f"{commit} was done"
        for delivered in commit.work:
            self.effects[delivered.offset] = self.effects.get(delivered.offset, 0) + 1
        self.done |= commit.offsets

    # Lives

    def restart(self) -> None:
        """Crash the broker, maybe between the write and the answer."""
        if self.seeking:
            self.finish_writing()
        if self.random.random() < 0.5:
            # Written, and nobody is told.
            self.bench.writing.release()
        self.bench.disk.heal()
        self.bench.restart(self.random.choice((None, "none", "all")))
        undecided, self.commits, self.uncertain = [*self.commits, *self.uncertain], [], []
        # The last ones may be there although their producer was not told so.
        self.count = self.bench.topic().next_offset
        self.members.clear()
        self.held.clear()
        # These may come back.
        self.done -= self.lazily
        self.forgotten |= self.lazily
        self.lazily.clear()
        stored = self.stored_effects()
        for commit in undecided:
            known = {o: self.effects.get(o, 0) for o in commit.offsets}
            added = {stored.get(o, 0) - count for o, count in known.items()}
            assert added in ({0}, {1}), f"half of {commit} is there"
            if added == {1}:
                self.on_committed(commit)
        assert stored == self.effects
        self.last = None

    def stored_effects(self) -> dict[int, int]:
        return self.count_of(OUT)

    def count_of(self, topic: str) -> dict[int, int]:
        """Return how often a topic has each message."""
        stored: dict[int, int] = {}
        for delivered in self.bench.stored(topic):
            offset = int(delivered.payload)
            stored[offset] = stored.get(offset, 0) + 1
        return stored

    def finish_writing(self) -> None:
        """Let the disk work again, and finish all writes."""
        self.bench.disk.heal()
        self.bench.writing.release()
        self.bench.advance(3_000)
        assert self.bench.storage.committer.error is None
        self.take_all()

    # Checks

    def check(self) -> None:
        if self.bench.storage.committer.error is None:
            # The journal has recovered: none of them was carried out.
            self.uncertain.clear()
        self.take_all()
        for durable in self.bench.broker.durables:
            if durable.pattern != TOPIC:
                continue
            for partition in durable.partitions:
                deliveries = partition.deliveries
                leases = deliveries._leases._by_number.values()
                sets = [set(p.offsets.offsets()) for lease in leases for p in lease.all_parts()]
                sets.append(set(deliveries._committing.offsets()))
                sets.append(set(deliveries._waiting.ready.offsets()) - self.done)
                sets.append(set(deliveries._held.offsets()) - self.done)
                all_of_them = set().union(*sets)
                assert sum(map(len, sets)) == len(all_of_them), "a message is in two places"
                assert not any(map(partition.cursor.is_acked, all_of_them)), (
                    "acknowledged, and held"
                )

    def take_all(self) -> None:
        for name, member in self.members.items():
            for delivered in member.take():
                assert delivered.offset not in self.in_commit, f"{delivered} is in a commit"
                assert delivered.offset not in self.done, f"{delivered} is done"
                self.held.append((name, delivered))

    def finish(self) -> None:
        """Process all messages, and check that all of them are delivered and done."""
        self.finish_writing()
        for _ in range(200):
            if not self.members:
                self.join("a")
            for member in list(self.members.values()):
                member.grant(1_000)
            self.check()
            for name, delivered in self.held:
                if name in self.members and delivered.offset not in self.done:
                    self.words += 1
                    self.send(
                        Commit(f"word {self.words}", [delivered], self.seeks), self.members[name]
                    )
                    self.bench.settle()
            self.held.clear()
            if self.bench.lag() == 0:
                break
            self.bench.advance(1_000)
        assert self.bench.lag() == 0, "some never came"
        assert self.commits == []
        assert self.stored_effects() == self.effects
        self.check_dead_letters()

    def check_dead_letters(self) -> None:
        letters = self.count_of(LETTERS)
        if self.seeks:
            return
        assert set(letters.values()) <= {1}, "a letter came twice"
        assert not letters.keys() & self.effects.keys(), "dead and done"
        known = letters.keys() | self.effects.keys() | self.done | self.forgotten
        assert set(range(self.count)) <= known, "some are nowhere"


def _offset(offset: int) -> Position:
    return Position(origin="offset", at=offset)
