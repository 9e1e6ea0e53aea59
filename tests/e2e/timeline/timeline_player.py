"""A process that owns or consumes messages of a timeline until it is killed, and writes it down.

Run as a program, with these arguments: `owner`, `consumer` or `undertaker`, which consumes dead
letters; URL, name, seed, log file, the file that says, by being there, that things are to come to
an end; and of the topic its kind and how often messages are leased.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from random import Random
from typing import TypeVar

from tests.e2e.timeline.timeline_history import (
    DELETE,
    DONE,
    EXTEND,
    MOVE,
    PUT,
    RELEASE,
    UPDATE,
    Answer,
    Change,
    payload_of,
)

import ister
from ister.base.errors import (
    BusyError,
    ClosedError,
    ConsumerNameTakenError,
    IsterError,
    TopicNotFoundError,
)

TOPIC = "/default/storm"
LETTERS = f"{TOPIC}-dlq"
LEVELS = 32
GROUP = "owners"
OWNER_TASKS = 4
PAUSE_S = 0.02
# Most are due within the time that consumers are sent them ahead; some wait in the window.
DUE_S_MAX = 2.5
# Owners put no more while so many messages wait. Four consumers may all be slow, and finish 30
# a second: what waits is gone in 7 s, however fast the machine puts it. A message is a letter
# at its third lease, and each comes behind all that wait: after 20 s.
WAITING_MAX = 200
# How often an owner looks for that, in acts.
LOOKED_EVERY = 10
LEASES_S = (0.5, 1.0, 2.0)
PREFETCHES_S = (0.0, 0.5, 2.0)
CREDITS = (1, 5, 50)
SLOW_SHARE = 0.4
LEASE_EXTENDED_S = 2.0
WORK_S = (0.01, 0.4)
# A client that waits this long for a broker which is away is not told of a timeout.
PATIENCE_S = 120.0
# What was asked for may have been done or not.
DOUBTS = (BusyError, ClosedError)

Result = TypeVar("Result")


class Diary:
    """Lines that outlive a kill of the process as soon as they are written."""

    def __init__(self, file: Path, name: str, calm_file: Path, *, letters: bool) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._calm_file = calm_file
        self._number = 0
        self._name = name
        self._letters = letters
        self.begin()

    def begin(self) -> None:
        """Note that this process has none of the leases of its name."""
        self.write("begin", self._name, self._letters)

    @property
    def calm(self) -> bool:
        """Whether things come to an end."""
        return self._calm_file.exists()

    def number(self) -> int:
        """Return a number that this process has not had."""
        self._number += 1
        return self._number

    def write(self, what: str, *values: object) -> None:
        """Note that something happens now."""
        line = json.dumps([what, time.time_ns() // 1000, *values])
        os.write(self._file, line.encode() + b"\n")


# Owners


class Known:
    """A message as its owner knows it."""

    def __init__(self, name: str, number: int) -> None:
        self.id = name
        self.number = number
        self.updates = 0
        self.version = 0
        # The one before, which no change may be made under.
        self.old_version = 0
        self.gone = False
        # Nobody knows what became of the last change: it is left alone.
        self.doubtful = False

    @property
    def payload(self) -> str:
        """What it says."""
        return payload_of(self.id, self.number, self.updates)


class Owner:
    """Makes messages of so many levels and changes them, one act after the other."""

    def __init__(
        self, timeline: ister.Timeline, diary: Diary, name: str, random: Random, levels: int
    ) -> None:
        self._levels = levels
        self._timeline = timeline
        self._diary = diary
        self._name = name
        self._random = random
        self._count = 0
        self._known: list[Known] = []

    async def live(self) -> None:
        """Act until things come to an end."""
        acts: list[tuple[Callable[[], Awaitable[None]], int]] = [
            (self._put, 4),
            (self._put_many, 3),
            (self._put_again, 1),
            (self._move, 5),
            (self._update, 3),
            (self._delete, 3),
            (self._change_outdated, 2),
            (self._transact, 4),
        ]
        calls, weights = zip(*acts, strict=True)
        for number in count(1):
            if self._diary.calm:
                return
            if number % LOOKED_EVERY == 0:
                await self._await_consumers()
            await self._random.choices(calls, weights)[0]()
            await asyncio.sleep(self._random.uniform(0, 2 * PAUSE_S))

    async def _await_consumers(self) -> None:
        """Return when few enough messages wait to be consumed, or things come to an end."""
        while not self._diary.calm:
            with suppress(BusyError):
                if await self._timeline.count() < WAITING_MAX:
                    return
            await asyncio.sleep(PAUSE_S)

    async def _put(self) -> None:
        await self._act([self._putting(self._new())])

    async def _put_many(self) -> None:
        await self._act([self._putting(self._new()) for _ in range(self._random.randint(2, 8))])

    async def _put_again(self) -> None:
        """Put an id once more: refused, unless the message is gone."""
        settled = [known for known in self._known if not known.doubtful]
        if settled:
            old = self._random.choice(settled)
            known, slot = Known(old.id, old.number + 1), self._known.index(old)
            self._known[slot] = known
            if not await self._act([self._putting(known)]) and not known.doubtful:
                self._known[slot] = old

    async def _move(self) -> None:
        for known in self._some(1):
            await self._act([self._moving(known)])

    async def _update(self) -> None:
        for known in self._some(1):
            await self._act([self._updating(known)])

    async def _delete(self) -> None:
        for known in self._some(1):
            await self._act([self._deleting(known)])

    async def _change_outdated(self) -> None:
        """Change a message at a version that it does not have any more."""
        for known in self._some(1):
            if known.old_version:
                change = self._random.choice([self._moving, self._deleting])(known)
                await self._act([change._replace(version=known.old_version)])

    async def _transact(self) -> None:
        """Put, move, update and delete in one go; now and then so that it must be refused."""
        olds = self._some(3)
        if len(olds) < 3:
            return
        changes = [
            self._putting(self._new()),
            self._moving(olds[0]),
            self._deleting(olds[1]),
            self._updating(olds[2]),
        ]
        if self._random.random() < 0.3 and olds[2].old_version:
            changes[3] = changes[3]._replace(version=olds[2].old_version)
        await self._act(changes, atomic=True)

    # Changes

    def _new(self) -> Known:
        self._count += 1
        known = Known(f"{self._name}-{self._count}", 1)
        self._known.append(known)
        del self._known[:-60]
        return known

    def _some(self, count: int) -> list[Known]:
        """Return messages that may be there, each once."""
        there = [k for k in self._known if k.version and not (k.gone or k.doubtful)]
        return self._random.sample(there, min(count, len(there)))

    def _due_ms(self) -> int:
        return time.time_ns() // 1_000_000 + int(self._random.uniform(0, DUE_S_MAX) * 1000)

    def _condition(self, known: Known) -> int:
        return known.version if self._random.random() < 0.5 else 0

    def _putting(self, known: Known) -> Change:
        level = self._random.randrange(self._levels)
        return Change(PUT, known.id, known.number, known.payload, self._due_ms(), 0, level)

    def _moving(self, known: Known) -> Change:
        version = self._condition(known)
        return Change(MOVE, known.id, known.number, known.payload, self._due_ms(), version)

    def _updating(self, known: Known) -> Change:
        payload = payload_of(known.id, known.number, known.updates + 1)
        return Change(UPDATE, known.id, known.number, payload, 0, self._condition(known))

    def _deleting(self, known: Known) -> Change:
        version = self._condition(known)
        return Change(DELETE, known.id, known.number, known.payload, 0, version)

    # Acts

    async def _act(self, changes: list[Change], *, atomic: bool = False) -> bool:
        """Have changes made; return whether they all are."""
        act = self._diary.number()
        self._diary.write("act", act, atomic, changes)
        answers = await self._answers(changes, atomic)
        self._diary.write("told", act, answers)
        for change, answer in zip(changes, answers, strict=True):
            for known in self._known:
                if (known.id, known.number) == (change.id, change.number):
                    learn(known, change, answer)
        return all(isinstance(answer, int) for answer in answers)

    async def _answers(self, changes: list[Change], atomic: bool) -> list[Answer]:
        try:
            if atomic:
                return await self._commit(changes)
            if len(changes) > 1:
                puts = [
                    (c.payload.encode(), time_of(c.due_ms), c.id, None, c.priority) for c in changes
                ]
                results = await self._timeline.put_many(puts)
                return [
                    answer_of(result) if isinstance(result, IsterError) else result.version
                    for result in results
                ]
            return [await self._change(changes[0])]
        except IsterError as error:
            return [answer_of(error)] * len(changes)

    async def _change(self, change: Change) -> int:
        timeline = self._timeline
        payload, due, version = (
            change.payload.encode(),
            time_of(change.due_ms),
            change.version or None,
        )
        if change.kind == PUT:
            put = await timeline.put(payload, due, id=change.id, priority=change.priority)
            return put.version
        if change.kind == MOVE:
            return (await timeline.move(change.id, due, version)).version
        if change.kind == UPDATE:
            return (await timeline.update(change.id, payload, version=version)).version
        await timeline.delete(change.id, version)
        return 0

    async def _commit(self, changes: list[Change]) -> list[Answer]:
        async with self._timeline.transaction() as tx:
            for change in changes:
                payload, version = change.payload.encode(), change.version or None
                if change.kind == PUT:
                    due, level = time_of(change.due_ms), change.priority
                    tx.put(payload, due, id=change.id, priority=level)
                elif change.kind == MOVE:
                    tx.move(change.id, time_of(change.due_ms), version)
                elif change.kind == UPDATE:
                    tx.update(change.id, payload, version=version)
                else:
                    tx.delete(change.id, version)
        return [result.version for result in tx.results]


def learn(known: Known, change: Change, answer: Answer) -> None:
    """Remember what became of a message."""
    if answer is None:
        known.doubtful = True
    elif isinstance(answer, str):
        known.gone |= answer == "MessageNotFoundError"
    elif change.kind == DELETE:
        known.gone = True
    else:
        known.old_version, known.version = known.version, answer
        known.updates += change.kind == UPDATE


def time_of(due_ms: int) -> datetime:
    """Return a time as owners say it."""
    return datetime.fromtimestamp(due_ms / 1000, UTC)


def answer_of(error: IsterError) -> Answer:
    """Return what to note of an error."""
    return None if isinstance(error, DOUBTS) else type(error).__name__


async def own(url: str, name: str, random: Random, diary: Diary, *, levels: int) -> None:
    """Own messages, several at a time."""
    async with await connected(url) as client:
        timeline = client.timeline(TOPIC, group=GROUP)
        owners = [
            Owner(timeline, diary, f"{name}.{slot}", Random(random.random()), levels)
            for slot in range(OWNER_TASKS)
        ]
        await asyncio.gather(*(owner.live() for owner in owners))


# Consumers


class Worker:
    """Takes messages and deals with them, well or badly; more often badly if `careless`."""

    def __init__(self, diary: Diary, random: Random, lease_s: float, *, careless: bool) -> None:
        # The square root of what is even over 0 to 1 is above 0.8 in 36 % instead of 20 %.
        self._exponent = 0.5 if careless else 1.0
        self._diary = diary
        self._random = random
        self._lease_s = lease_s

    def note(self, lease: ister.TimelineLease) -> int:
        """Note that a message was handed over."""
        number = self._diary.number()
        self._diary.write(
            "handed",
            number,
            lease.id,
            lease.version,
            lease.due_ms,
            lease._held.until_ms,
            lease.payload.decode(),
            lease.attempt,
            lease.priority,
        )
        return number

    async def work(self, lease: ister.TimelineLease, number: int) -> None:
        """Deal with a message."""
        chance = 0.0 if self._diary.calm else self._random.random() ** self._exponent
        # Some take their time, and have something when they are killed.
        await asyncio.sleep(self._random.uniform(0, self._random.choice(WORK_S)))
        if chance > 0.97:
            return  # Forgotten: it comes again when the lease ends.
        if chance > 0.92:
            # Too slow: somebody else has it by now.
            await asyncio.sleep(self._lease_s + self._random.uniform(0, 0.5))
        elif chance > 0.85:
            due_ms = time.time_ns() // 1_000_000 + self._random.randint(10, 600)
            await self._finish(number, RELEASE, due_ms, lambda: lease.release(time_of(due_ms)))
            return
        elif chance > 0.8:
            span_ms = int(LEASE_EXTENDED_S * 1000)
            for _ in range(self._random.randint(1, 3)):
                await self._finish(number, EXTEND, span_ms, lambda: lease.extend(LEASE_EXTENDED_S))
                await asyncio.sleep(self._random.uniform(0, LEASE_EXTENDED_S))
        await self._finish(number, DONE, 0, lease.done)

    async def _finish(
        self, number: int, kind: str, time_ms: int, ask: Callable[[], Awaitable[None]]
    ) -> None:
        self._diary.write("finish", number, kind, time_ms)
        try:
            await ask()
            answer: Answer = ""
        except IsterError as error:
            answer = answer_of(error)
        self._diary.write("finished", number, kind, answer)


async def consume(
    url: str, name: str, random: Random, diary: Diary, *, topic: str, careless: bool
) -> None:
    """Consume, until another one takes the name."""
    lease_s = random.choice(LEASES_S)
    worker = Worker(diary, random, lease_s, careless=careless)
    async with await connected(url) as client, asyncio.TaskGroup() as tasks:
        prefetch_s, credit = random.choice(PREFETCHES_S), random.choice(CREDITS)
        # One message after the other: what waits meanwhile is given back.
        is_slow = random.random() < SLOW_SHARE

        async def opened() -> ister.TimelineConsumer:
            # One that could not be opened is not used again, and the next one ends its leases.
            diary.begin()
            leases = client.timeline(topic).consume(
                name, lease=lease_s, prefetch=prefetch_s, credit=credit, max_renewal=0.0
            )
            await leases.open()
            return leases

        while True:
            try:
                async for lease in await persist(opened):
                    work = worker.work(lease, worker.note(lease))
                    if is_slow:
                        await work
                    else:
                        tasks.create_task(work)
            except (ClosedError, ConsumerNameTakenError):
                return
            except BusyError:
                pass  # The storage failed just when it came back.


async def connected(url: str) -> ister.Client:
    """Return a client that is connected, though the broker may be down just now."""
    client = ister.connect(url, timeout=PATIENCE_S, busy_poll=0)
    await persist(client.open)
    return client


async def persist(attempt: Callable[[], Awaitable[Result]]) -> Result:
    """Try something until the broker is there for it, and the topic: letters have one late."""
    while True:
        try:
            return await attempt()
        except (BusyError, TopicNotFoundError):
            await asyncio.sleep(PAUSE_S)


def main(arguments: Sequence[str]) -> None:
    """Play a part."""
    part, url, name, seed, file, calm_file, kind, max_leases = arguments
    letters = part == "undertaker"
    diary = Diary(Path(file), name, Path(calm_file), letters=letters)
    random = Random(seed)
    if part == "owner":
        levels = LEVELS if kind == "priority" else 1
        asyncio.run(own(url, name, random, diary, levels=levels))
    else:
        topic = LETTERS if letters else TOPIC
        careless = int(max_leases) > 0
        asyncio.run(consume(url, name, random, diary, topic=topic, careless=careless))


if __name__ == "__main__":
    main(sys.argv[1:])
