"""Clients at work on streams while their broker is killed and started again, over and over.

Everything that clients are told is written down in a `History` for each topic, which the checker
compares with what is stored in the end. All clients live in the process of the test, so that there
is one order of events; the broker is a process of its own and dies by SIGKILL.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from tests.e2e.checker import Delivery, History, Outcome, Send, Stored
from tests.e2e.conftest import BrokerProcess

import ister
from ister.base import Timer, TopicReport
from ister.base.errors import (
    ClosedError,
    ConnectionLostError,
    IsterError,
    LeaseLostError,
    NotConnectedError,
    RequestTimeoutError,
    TransactionError,
)
from ister.client import SubscriptionTypeName
from ister.telemetry import SystemClock

# Enough to have the broker write while it is killed, little enough to leave the machine alone.
BURST_MAX = 10
BURST_PAUSE_S = 0.03
WINDOW = 200
KEYS = 64
# So many kills, then it is asked politely once.
STOPPED_EVERY = 8
# A client may be unlucky many times in a row while the broker is there for a second only: no
# promise is broken by that.
PATIENCE_S = 1_200.0
# Clients live this much faster, to be back within a second of a restart and not of five.
HURRY = 4
PROGRESS_TIMEOUT_S = 2.5
DRAIN_TIMEOUT_S = 40.0
POLL_S = 0.05


def payload_of(value: str) -> bytes:
    """Return a payload that tells its value and is recognizably whole, some bytes to some KiB."""
    text = value.encode()
    return text + b"|" + b"." * (sum(text) * 7 % 1500)


def value_of(payload: bytes) -> str:
    """Return the value of a payload, or something nobody has sent when it is not whole."""
    value = payload.partition(b"|")[0].decode(errors="replace")
    return value if payload_of(value) == payload else f"broken payload {payload[:80]!r}"


class HurriedClock(SystemClock):
    """The machine's clock, but every wait is shorter than one thinks."""

    def monotonic_ms(self) -> int:
        """See `Clock`."""
        return super().monotonic_ms() * HURRY

    def call_later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """See `Clock`."""
        return super().call_later(delay_s / HURRY, call)


class Storm:
    """See the module."""

    def __init__(self, broker: BrokerProcess, seed: int) -> None:
        self.broker = broker
        self.seed = seed
        self.histories: dict[str, History] = defaultdict(History)
        self.kills = 0
        # Acknowledgements of all kinds, to see whether anything goes on.
        self.acknowledged = 0
        # Sends whose outcome nobody was told, by what their producers were told instead.
        self.doubts: Counter[str] = Counter()
        # Once set, producers end; once set, consumers do.
        self.calm = asyncio.Event()
        self.drained = asyncio.Event()
        self._clients: set[ister.Client] = set()
        self._at = 0
        self._random = Random(seed)

    def tick(self) -> int:
        """Return a number that is higher than all before."""
        self._at += 1
        return self._at

    def choice(self) -> Random:
        """Return a source of chance of one's own: tasks run in no order one could repeat."""
        return Random(self._random.random())

    @asynccontextmanager
    async def client(self, timeout: float = PATIENCE_S) -> AsyncIterator[ister.Client]:
        """A client that connects even if the broker is down just now."""
        clock = HurriedClock(asyncio.get_running_loop().call_later)
        while True:
            client = ister.connect(self.broker.url, timeout=timeout, busy_poll=0, clock=clock)
            try:
                await client.open()
                break
            except (NotConnectedError, TimeoutError, OSError):
                await asyncio.sleep(POLL_S)
        self._clients.add(client)
        try:
            yield client
        finally:
            self._clients.remove(client)
            await client.close()

    # The weather.

    async def rage(self, kills: int) -> None:
        """Kill the broker that often, at random moments, and start it again each time.

        Now and then it is asked to end, besides: that leaves other things behind.
        """
        while self.kills < kills:
            await self._end(self.broker.kill)
            self.kills += 1
            if self.kills % STOPPED_EVERY == 0:
                await self._end(self.broker.stop)

    async def _end(self, end: Callable[[], object]) -> None:
        if self._random.random() < 0.8:
            await self._progress()
        await asyncio.sleep(self._random.uniform(0, 0.4))
        await asyncio.to_thread(end)
        await asyncio.to_thread(self.broker.restart)

    async def _progress(self) -> None:
        """Return when most clients are back at work, or have had time enough for that."""
        wanted = self.acknowledged + 60

        def is_enough() -> bool:
            connected = sum(client.connected for client in self._clients)
            return self.acknowledged >= wanted and connected >= 0.6 * len(self._clients)

        with suppress(TimeoutError):
            async with asyncio.timeout(PROGRESS_TIMEOUT_S):
                while not is_enough():  # noqa: ASYNC110 - any of many may be the last
                    await asyncio.sleep(POLL_S)

    # Producers.

    async def produce(self, topic: str, name: str) -> None:
        """Send under one name, many messages in flight, until the storm is over."""
        async with self.client() as client, client.producer(topic, name=name) as producer:
            await self._send_on(producer, topic, self.choice(), 0, self.calm)

    async def produce_in_lives(self, topic: str, name: str) -> None:
        """As `produce`, but leave without a word and come back under the same name."""
        random, number = self.choice(), 0
        while not self.calm.is_set():
            over = asyncio.Event()
            async with self.client() as client:
                producer = client.producer(topic, name=name)
                await producer.open()
                asyncio.get_running_loop().call_later(random.uniform(0.1, 1.5), over.set)
                number = await self._send_on(producer, topic, random, number, over, flush=False)

    async def produce_impatiently(self, topic: str, name: str) -> None:
        """As `produce`, with a client that gives up early: what becomes of a send is not known."""
        async with self.client(timeout=0.5 * HURRY) as client:
            random, number = self.choice(), 0
            while not self.calm.is_set():
                # It may give up while it opens, too.
                with suppress(IsterError):
                    async with client.producer(topic, name=name) as producer:
                        number = await self._send_on(producer, topic, random, number, self.calm)

    async def _send_on(
        self,
        producer: ister.Producer,
        topic: str,
        random: Random,
        number: int,
        over: asyncio.Event,
        *,
        flush: bool = True,
    ) -> int:
        """Send until it is over; return the number of the next message."""
        sends = self.histories[topic].sends
        flying: deque[tuple[Send, ister.SendFuture]] = deque()
        while not over.is_set() and not self.calm.is_set() and not producer.closed:
            for _ in range(random.randint(1, BURST_MAX)):
                send = Send(producer.name, f"{producer.name}/{number}")
                number += 1
                key = f"key-{random.randrange(KEYS)}"
                # Written down before it leaves: from now on it may be anywhere.
                sends.append(send)
                flying.append((send, producer.send_nowait(payload_of(send.value), key=key)))
            while flying and (len(flying) > WINDOW or flying[0][1].done()):
                await self._settle(*flying.popleft())
            await asyncio.sleep(random.uniform(0, 2 * BURST_PAUSE_S))
        if flush:
            while flying:
                await self._settle(*flying.popleft())
        self.doubts[f"{producer.name} left"] += len(flying)
        return number

    async def _settle(self, send: Send, future: ister.SendFuture) -> None:
        try:
            message_id = await future
        except (RequestTimeoutError, ConnectionLostError, ClosedError) as error:
            self.doubts[f"{send.producer}: {error}"] += 1
            return
        send.outcome, send.offset = Outcome.OK, message_id.offset
        self.acknowledged += 1

    # Consumers.

    async def consume(
        self,
        topic: str,
        subscription: str,
        consumer: str,
        *,
        type: SubscriptionTypeName,
        ordered: bool = False,
        nacks: bool = False,
    ) -> None:
        """Take messages and acknowledge most of them with confirmation, until all is drained."""
        epoch, random = 0, self.choice()
        deliveries = self.histories[topic].deliveries[subscription]

        def on_event(event: object) -> None:
            nonlocal epoch
            epoch += isinstance(event, ister.Resumed)

        async with (
            self.client() as client,
            client.subscribe(
                topic,
                subscription,
                type=type,
                start="earliest",
                consumer=consumer,
                ordered=ordered,
                max_deliveries=0,
                buffer_count=100,
                on_event=on_event,
            ) as sub,
        ):
            while not self.drained.is_set():
                messages = await sub.fetch(20, timeout=0.2 * HURRY)
                taken = []
                for msg in messages:
                    value = value_of(msg.payload)
                    one = Delivery(
                        self.tick(), consumer, epoch, msg.offset, value, key=msg.key or ""
                    )
                    deliveries.append(one)
                    taken.append((msg, one))
                await self._acknowledge(taken, random, nacks=nacks)

    async def _acknowledge(
        self, taken: Sequence[tuple[ister.Message, Delivery]], random: Random, *, nacks: bool
    ) -> None:
        waiting: list[tuple[Delivery, Awaitable[None]]] = []
        for msg, one in taken:
            chance = random.random()
            if nacks and chance < 0.03:
                await msg.nack(delay=random.choice([0, 0.01]))
                continue
            one.settled_at = self.tick()
            if chance < 0.1:
                await msg.ack()
            else:
                waiting.append((one, msg.ack(confirm=True)))
        for one, confirmation in waiting:
            # Lost: the broker was started anew in between. It will come again, unless the
            # acknowledgement was stored although nobody could be told.
            with suppress(LeaseLostError):
                await confirmation
                one.confirmed_at = self.tick()
                self.acknowledged += 1

    async def follow(self, topic: str, name: str) -> None:
        """Read a topic from its beginning and go on with what comes, until cancelled."""
        read = self.histories[topic].reads[name]
        async with self.client() as client, client.reader(topic, start=0, end=None) as reader:
            async for batch in reader:
                read += stored_of(batch)

    # Transactions.

    async def transform(self, worker: str, source: str, targets: Sequence[str]) -> None:
        """Make one message in each of `targets` of every message of `source`, exactly once."""
        random, number = self.choice(), 0
        async with (
            self.client() as client,
            client.subscribe(
                source,
                "workers",
                type="shared",
                start="earliest",
                consumer=worker,
                max_deliveries=0,
                buffer_count=20,
            ) as sub,
        ):
            while not self.drained.is_set():
                messages = await sub.fetch(random.randint(1, 3), timeout=0.2 * HURRY)
                if not messages:
                    continue
                number += 1
                word = f"{worker}-{number}"
                if random.random() < 0.1:
                    await self._change_ones_mind(client, messages, targets)
                    continue
                await self._transact(client, messages, targets, word, worker)

    async def _transact(
        self,
        client: ister.Client,
        messages: Sequence[ister.Message],
        targets: Sequence[str],
        word: str,
        worker: str,
    ) -> None:
        sends: list[Send] = []
        outcome = Outcome.INFO
        try:
            async with client.transaction() as tx:
                for msg in messages:
                    for target in targets:
                        send = Send(worker, f"{value_of(msg.payload)}@{word}")
                        sends.append(send)
                        self.histories[target].sends.append(send)
                        tx.send(target, payload_of(send.value))
                    tx.ack(msg)
        except (LeaseLostError, TransactionError):
            # The broker was started anew: they will come again. Nothing of this was carried out.
            outcome = Outcome.FAILED
        else:
            outcome = Outcome.OK
            for send, message_id in zip(sends, tx.results, strict=True):
                send.offset = message_id.offset
            self.acknowledged += 1
        for send in sends:
            send.outcome = outcome

    async def _change_ones_mind(
        self, client: ister.Client, messages: Sequence[ister.Message], targets: Sequence[str]
    ) -> None:
        """Begin a transaction and leave it by an exception: nothing of it must ever be seen."""
        with suppress(_ChangedMindError):
            async with client.transaction() as tx:
                for msg in messages:
                    for target in targets:
                        tx.send(target, payload_of(f"aborted {value_of(msg.payload)}"))
                    tx.ack(msg)
                raise _ChangedMindError
        for msg in messages:
            await msg.nack(delay=0)

    # The end.

    async def drain(self, subscriptions: Mapping[str, Sequence[str]]) -> None:
        """Wait until every subscription of every topic has acknowledged everything."""
        async with self.client() as client:
            deadline = asyncio.get_running_loop().time() + DRAIN_TIMEOUT_S
            while lagging := await self._lagging(client, subscriptions):
                if asyncio.get_running_loop().time() > deadline:
                    raise AssertionError(f"seed {self.seed}: not drained: {lagging}")
                await asyncio.sleep(POLL_S)
        self.drained.set()

    async def _lagging(
        self, client: ister.Client, subscriptions: Mapping[str, Sequence[str]]
    ) -> list[Any]:
        found = []
        for topic, names in subscriptions.items():
            reports = {r.subscription: r for r in await client.subscriptions(topic)}
            for name in names:
                report = reports.get(name)
                if report is None or report.cursor is None or report.cursor.lag:
                    found.append(report or name)
        return found

    async def caught_up(self, topic: str, name: str) -> None:
        """Wait until a follower has read all there is."""
        [report] = [row for row in await self._topics() if row.topic == topic]
        read = self.histories[topic].reads[name]
        deadline = asyncio.get_running_loop().time() + DRAIN_TIMEOUT_S
        while not read or read[-1].offset < report.next_offset - 1:
            if asyncio.get_running_loop().time() > deadline:
                raise AssertionError(
                    f"seed {self.seed}: {name} of {topic} stays at {read[-1:]}, {report}"
                )
            await asyncio.sleep(POLL_S)

    async def _topics(self) -> list[TopicReport]:
        async with self.client() as client:
            return await client.topics()

    async def read(self, topic: str) -> list[Stored]:
        """Read all of a topic."""
        log: list[Stored] = []
        async with self.client() as client, client.reader(topic) as reader:
            async for batch in reader:
                log += stored_of(batch)
        return log


class _ChangedMindError(Exception):
    """Whoever began a transaction does not want it."""


def stored_of(batch: ister.Batch) -> list[Stored]:
    """Return the messages of a batch."""
    return [
        Stored(offset, value_of(payload))
        for offset, payload in zip(batch.offsets, batch.payloads, strict=True)
    ]
