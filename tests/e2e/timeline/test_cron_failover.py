"""Cron rules of two brokers that take turns on one PostgreSQL: each slot fires once, whoever does.

The rules are put where a broker of some minutes ago would have left them, so that there is much to
make up for while brokers die; and each is due at another second of the minute, so that something
fires all the time. What was made is told by the database itself: a trigger notes each message, and
by which session of the server it came.
"""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import psycopg
import pytest
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.timeline.postgres_server import TEST_TIMEOUT_S, PostgresServer

import ister
from ister.base.errors import IsterError, StorageFailedError
from ister.timeline import (
    AHEAD_MS,
    Place,
    Work,
    find_rules,
    firing_id,
    first_row,
    parse_rule,
    postgres_timelines,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(TEST_TIMEOUT_S)]

TOPIC = "/default/jobs"
GROUP = "shop"
# Four of them are due in every second, and 15 each have been since somebody was there last.
NAMES = [f"r-{number}" for number in range(240)]
AWAY_MS = 15 * 60_000
RULE = parse_rule("* * * * *", jitter_ms=59_000, overlap="allow")
SEED = 5
TURNS = 3
WAIT_S = 60.0
POLL_S = 0.01
RETRY_S = 0.2
ATTEMPTS = 5
_numbers = itertools.count(1)

# Messages have an @ in their ids, and rules have none.
NOTES = """
CREATE TABLE public.notes (
    number bigint GENERATED ALWAYS AS IDENTITY, id text, due_ms bigint, made_ms bigint, session int
);
CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.notes (id, due_ms, made_ms, session) VALUES (
        NEW.id, NEW.due_ms, extract(epoch FROM clock_timestamp()) * 1000, pg_backend_pid()
    );
    RETURN NULL;
END
$$;
CREATE TRIGGER note AFTER INSERT ON ister.messages
    FOR EACH ROW WHEN (NEW.id LIKE '%@%') EXECUTE FUNCTION public.note();
"""
LOCKS = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted = %s AND objsubid = 2
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class Note(NamedTuple):
    """A message that was made, in a transaction that was committed."""

    id: str
    due_ms: int
    made_ms: int
    session: int


class Shared:
    """A database that two brokers want for their timelines."""

    def __init__(self, url: str, brokers: list[BrokerProcess], since_ms: int) -> None:
        self.url = url
        self.brokers = brokers
        self.names: list[str] = []
        # When the rules were made.
        self.since_ms = since_ms

    @property
    def urls(self) -> str:
        """Where a client finds whichever broker is there."""
        return "ister://" + ",".join(broker.native for broker in self.brokers)

    def execute(self, statement: Any, *values: object) -> list[tuple[Any, ...]]:
        """Ask the database."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    def notes(self) -> list[Note]:
        """Return what was made, in its order."""
        rows = self.execute("SELECT id, due_ms, made_ms, session FROM public.notes ORDER BY number")
        return [Note(*row) for row in rows]

    def sessions(self, *, granted: bool) -> list[int]:
        """Return the session that has the timelines, or those that wait for them."""
        return [pid for (pid,) in self.execute(LOCKS, granted)]

    def put_rules(self, names: list[str]) -> None:
        """Put rules where a broker would have, at that time."""
        store = postgres_timelines(self.url)
        [(messages, rules)] = find_rules(store.topics())[0].items()
        place = Place(rules, messages)
        puts = [first_row(place, name, GROUP, RULE, b"go", b"", self.since_ms) for name in names]
        store.apply(self.since_ms, [Work([*puts])])
        store.close()
        self.names += names

    def wait_next(self) -> None:
        """Return when one more message was made."""
        found = "SELECT max(number) FROM public.notes"
        before = self.execute(found)
        wait_for(lambda: self.execute(found) != before)

    def wait_made(self, until_ms: int) -> None:
        """Return when everything was made that is due by then."""
        count = len(self.expected(until_ms))
        found = "SELECT count(DISTINCT id) FROM public.notes WHERE due_ms <= %s"
        wait_for(lambda: self.execute(found, until_ms) == [(count,)])

    def wait_done(self, until_ms: int) -> None:
        """Return when nothing is left of what is due by then."""
        found = "SELECT id FROM ister.messages WHERE position('@' in id) > 0 AND due_ms <= %s"
        wait_for(lambda: not self.execute(found, until_ms))

    def next_owner(self, owners: list[int]) -> None:
        """Add the session that has the timelines, as soon as that is another one."""
        # One whose broker was killed has them for a moment longer.
        wait_for(lambda: set(self.sessions(granted=True)) - set(owners))
        owners += self.sessions(granted=True)

    def stand_by(self) -> None:
        """Return when somebody waits for the timelines."""
        wait_for(lambda: self.sessions(granted=False))

    def expected(self, until_ms: int) -> dict[str, int]:
        """Return the messages that are due by then, and when."""
        return {
            firing_id(name, slot_ms): due_ms
            for slot_ms in slots_behind(self.since_ms, until_ms)
            for name in self.names
            if (due_ms := RULE.due_ms(name, slot_ms)) <= until_ms
        }


def wait_for(found: Callable[[], object]) -> None:
    """Return when something is found."""
    deadline = time.monotonic() + WAIT_S
    while not found():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(POLL_S)


def now_ms() -> int:
    """Return the time."""
    return time.time_ns() // 1_000_000


def slots_behind(after_ms: int, until_ms: int) -> Iterator[int]:
    """Return all slots behind a time, up to another."""
    slot_ms = RULE.next_slot(after_ms)
    while slot_ms is not None and slot_ms <= until_ms:
        yield slot_ms
        slot_ms = RULE.next_slot(slot_ms)


@pytest.fixture
async def shared(server: PostgresServer, start_broker: StartBroker) -> AsyncIterator[Shared]:
    """Two brokers for one database. Both are down, and have been for a quarter of an hour."""
    name = f"failover_{next(_numbers)}"
    server.execute(f"CREATE DATABASE {name}")
    url = server.url_of(name)
    first = start_broker("--timelines", url)
    async with ister.connect(first.url) as client:
        await client.create_topic(TOPIC, kind="cron")
    first.kill()
    second = start_broker("--timelines", url)
    second.kill()
    brokers = [first, second]
    one = Shared(url, brokers, now_ms() - AWAY_MS)
    one.execute(NOTES)
    one.put_rules(NAMES)
    yield one
    for broker in brokers:
        broker.kill()
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")


class Taker:
    """A consumer that goes to whichever broker is there, and finishes what it is handed."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        # Messages of which a broker has said that they are done; and those that came too early.
        self.done: Counter[str] = Counter()
        self.early: list[str] = []
        # Those that were handed out.
        self.seen: set[str] = set()

    async def run(self) -> None:
        """Take messages until this is cancelled."""
        async with ister.connect(self._shared.urls, timeout=WAIT_S) as client:
            jobs = client.timeline(TOPIC, group=GROUP)
            async with jobs.consume("taker") as leases, asyncio.TaskGroup() as tasks:
                async for lease in leases:
                    if now_ms() < lease.due_ms:
                        self.early.append(lease.id)
                    self.seen.add(lease.id)
                    tasks.create_task(self._finish(lease))

    async def _finish(self, lease: ister.TimelineLease) -> None:
        # A broker that died may have done it or not: then it is handed out again, or gone.
        with suppress(IsterError):
            while True:
                try:
                    await lease.done()
                except StorageFailedError:
                    await asyncio.sleep(RETRY_S)
                else:
                    self.done[lease.id] += 1
                    return

    def check(self, until_ms: int) -> None:
        """See that everything came that was due by then, in time, and not after it was done."""
        assert self.seen >= self._shared.expected(until_ms).keys()
        assert self.early == []
        assert set(self.done.values()) == {1}


@asynccontextmanager
async def taking(shared: Shared) -> AsyncIterator[Taker]:
    """Have messages taken all the while."""
    taker = Taker(shared)
    task = asyncio.create_task(taker.run())
    try:
        yield taker
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_each_slot_fires_once_while_brokers_are_killed_and_take_over(shared: Shared) -> None:
    chance = random.Random(SEED)
    await asyncio.to_thread(shared.brokers[0].restart)
    owners: list[int] = []
    await asyncio.to_thread(shared.next_owner, owners)
    async with taking(shared) as taker:
        # While there is much to make up for, and when there is only what comes.
        for number in range(2 * TURNS):
            if number == TURNS:
                await asyncio.to_thread(shared.wait_made, now_ms())
            await take_over(shared, number, owners, taker, chance.random() / 20)
        await asyncio.to_thread(shared.wait_next)
        until_ms = now_ms()
        await asyncio.to_thread(shared.wait_made, until_ms)
        await asyncio.to_thread(shared.wait_done, until_ms)
        rules = await all_rules(shared.brokers[0])

    check(shared, owners, until_ms)
    taker.check(until_ms)
    assert {(rule.missed, rule.skipped) for rule in rules} == {(0, 0)}


async def take_over(
    shared: Shared, number: int, owners: list[int], taker: Taker, delay_s: float
) -> None:
    """Have the other broker wait for the timelines, and kill the one that has them.

    Just when it has made something, and something is done: then nothing of it is left but what the
    rule says, and a rule that says too little fires again.
    """
    active, other = shared.brokers[number % 2], shared.brokers[1 - number % 2]
    coming = asyncio.create_task(asyncio.to_thread(come, other))
    await asyncio.to_thread(shared.stand_by)
    await asyncio.to_thread(shared.wait_next)
    done = taker.done.total()
    await asyncio.to_thread(wait_for, lambda: taker.done.total() > done)
    await asyncio.sleep(delay_s)
    # Whoever waits has made nothing.
    assert {note.session for note in shared.notes()} <= {*owners}
    active.kill()
    await coming
    await asyncio.to_thread(shared.next_owner, owners)


def come(broker: BrokerProcess) -> None:
    """Start a broker that waits for the timelines, again if it was refused, as supervisors do."""
    for _ in range(ATTEMPTS):
        try:
            broker.restart()
            return
        except AssertionError:
            assert "another broker has the timelines" in broker.log_text()
    raise AssertionError(f"refused all the time: {broker.log_text()}")


async def test_a_broker_that_lost_its_session_makes_nothing_until_it_has_one_again(
    shared: Shared,
) -> None:
    first, second = shared.brokers
    await asyncio.to_thread(first.restart)
    owners: list[int] = []
    await asyncio.to_thread(shared.next_owner, owners)
    async with taking(shared) as taker:
        await asyncio.to_thread(shared.wait_made, now_ms())
        coming = asyncio.create_task(asyncio.to_thread(come, second))
        await asyncio.to_thread(shared.stand_by)
        # As a server does that is restarted; both brokers live on.
        shared.execute("SELECT pg_terminate_backend(%s, 5000)", owners[0])
        await coming
        await asyncio.to_thread(shared.next_owner, owners)
        await asyncio.to_thread(shared.stand_by)
        # What becomes of the timelines meanwhile the first one does not hear of.
        shared.put_rules([f"late-{number}" for number in range(10)])
        await asyncio.to_thread(shared.wait_next)
        assert {note.session for note in shared.notes()} <= {*owners}
        second.kill()
        await asyncio.to_thread(shared.next_owner, owners)
        await asyncio.to_thread(shared.wait_next)
        until_ms = now_ms()
        await asyncio.to_thread(shared.wait_made, until_ms)
        await asyncio.to_thread(shared.wait_done, until_ms)
        rules = await all_rules(first)

    check(shared, owners, until_ms)
    taker.check(until_ms)
    assert {(rule.missed, rule.skipped) for rule in rules} == {(0, 0)}


async def all_rules(broker: BrokerProcess) -> list[Any]:
    """Return what a broker tells of its rules."""
    async with ister.connect(broker.url) as client:
        return [rule.cron async for rule in client.timeline(TOPIC).rules()]


def check(shared: Shared, owners: list[int], until_ms: int) -> None:
    """See that all that was due by then was made, and nothing twice or long before its time.

    Each owner has made some, and nobody else any.
    """
    notes = shared.notes()
    made = Counter(note.id for note in notes)
    assert [name for name, count in made.items() if count > 1] == []
    assert {note.id: note.due_ms for note in notes if note.due_ms <= until_ms} == shared.expected(
        until_ms
    )
    assert [note for note in notes if note.made_ms < note.due_ms - AHEAD_MS] == []
    assert [session for session, _ in itertools.groupby(note.session for note in notes)] == owners
