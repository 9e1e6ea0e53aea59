"""The broker goes away and comes back on the same port: clients go on by themselves."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.e2e.conftest import BrokerProcess, StartBroker
from tests.e2e.raw import WAIT_S, RawClient, eventually

import ister
from ister import sync
from ister.base.errors import (
    ConnectionLostError,
    NotConnectedError,
    RequestTimeoutError,
    SubscriptionTakenError,
)
from ister.client import SubscriptionTypeName
from ister.client.session import Event
from ister.wire import ConsumerClosed, Subscribe, Subscribed

pytestmark = pytest.mark.e2e

TOPIC = "/default/a"
ENDS = pytest.mark.parametrize("end", [BrokerProcess.kill, BrokerProcess.stop])


class Resumption:
    """Waits for `Resumed` events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._came = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._came.set()

    async def wait(self) -> None:
        async with asyncio.timeout(WAIT_S):
            await self._came.wait()
        self._came.clear()


async def end_broker(broker: BrokerProcess, end: object) -> None:
    """End it from another thread: a graceful end needs its clients to run."""
    assert callable(end)
    await asyncio.to_thread(end, broker)


async def start_again(broker: BrokerProcess) -> None:
    await asyncio.to_thread(broker.restart)


@ENDS
async def test_producers_and_subscriptions_come_back_by_themselves(
    broker: BrokerProcess, end: object
) -> None:
    resumed = Resumption()
    async with (
        ister.connect(broker.url) as client,
        client.subscribe(TOPIC, "s", on_event=resumed) as sub,
        client.producer(TOPIC) as producer,
    ):
        for round_ in range(2):
            payload = b"%d" % round_
            await producer.send(payload)
            assert (await sub.receive(WAIT_S)).payload == payload
            await end_broker(broker, end)
            await start_again(broker)
            await resumed.wait()

        await producer.send(b"last")
        assert (await sub.receive(WAIT_S)).payload == b"last"
        [report] = await client.subscriptions()

    assert resumed.events == [ister.Resumed("s")] * 2
    assert len(report.consumers) == 1


@ENDS
async def test_a_wildcard_subscription_resumes_with_topics_old_and_new(
    broker: BrokerProcess, end: object
) -> None:
    resumed = Resumption()
    async with (
        ister.connect(broker.url) as client,
        client.subscribe("/default/a.*", "s", on_event=resumed) as sub,
        client.producer("/default/a.old") as old,
    ):
        await old.send(b"before")
        await sub.receive(WAIT_S)
        await end_broker(broker, end)
        await start_again(broker)
        await resumed.wait()

        async with client.producer("/default/a.new") as new:
            await old.send(b"1")
            await new.send(b"2")
            messages = [await sub.receive(WAIT_S), await sub.receive(WAIT_S)]

    assert [(m.topic, m.payload) for m in messages] == [
        ("/default/a.old", b"1"),
        ("/default/a.new", b"2"),
    ]


async def test_every_type_of_subscription_has_all_its_consumers_again(
    broker: BrokerProcess,
) -> None:
    types: list[SubscriptionTypeName] = ["shared", "failover", "key_shared"]
    async with ister.connect(broker.url) as client, ister.connect(broker.url) as other:
        subs = [one.subscribe(TOPIC, kind, type=kind) for kind in types for one in (client, other)]
        for sub in subs:
            await sub.open()
        await end_broker(broker, BrokerProcess.kill)
        await start_again(broker)
        await eventually(lambda: client.connected and other.connected)
        # Answered after the subscriptions, which were asked for first on each connection.
        await other.broker()

        reports = {report.type: report for report in await client.subscriptions(TOPIC)}
        active = [sub.active for sub in subs]

    counts = {kind: len(report.consumers) for kind, report in reports.items()}
    assert counts == dict.fromkeys(types, 2)
    assert [c.active for c in reports["failover"].consumers] == [True, False]
    assert active.count(True) == 5
    assert active[2] != active[3]


@asynccontextmanager
async def unanswered(
    broker: BrokerProcess, client: ister.Client, *, resend: bool
) -> AsyncIterator[ister.Producer]:
    """Give a producer whose messages leave, but are never acknowledged."""
    async with client.producer(TOPIC, resend=resend) as producer:
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            yield producer
        finally:
            if broker.process is not None:
                os.kill(broker.pid, signal.SIGCONT)


async def test_sends_in_flight_fail_with_a_connection_lost_error(broker: BrokerProcess) -> None:
    async with (
        ister.connect(broker.url) as client,
        unanswered(broker, client, resend=False) as producer,
    ):
        flying = [producer.send_nowait(b"%d" % n) for n in range(10)]
        batch = producer.send_batch_nowait([b"x"] * 10)
        await asyncio.sleep(0)
        await end_broker(broker, BrokerProcess.kill)

        for sent in flying:
            with pytest.raises(ConnectionLostError):
                await sent
        with pytest.raises(ConnectionLostError):
            await batch
        await start_again(broker)
        # The producer itself is fine.
        assert (await producer.send(b"again")).offset == 0


async def test_sends_in_flight_are_sent_again_in_order_with_resend(broker: BrokerProcess) -> None:
    async with (
        ister.connect(broker.url) as client,
        client.subscribe(TOPIC, "s") as sub,
        unanswered(broker, client, resend=True) as producer,
    ):
        flying = []
        for number in range(10):
            flying.append(producer.send_nowait(b"%d" % number))
            await asyncio.sleep(0)
        await end_broker(broker, BrokerProcess.kill)
        await start_again(broker)

        ids = [await sent for sent in flying]
        received = [(await sub.receive(WAIT_S)).payload for _ in range(10)]

    assert [one.offset for one in ids] == list(range(10))
    assert received == [b"%d" % n for n in range(10)]


async def test_sends_during_downtime_wait_for_the_next_broker(broker: BrokerProcess) -> None:
    async with (
        ister.connect(broker.url) as client,
        client.subscribe(TOPIC, "s") as sub,
        client.producer(TOPIC) as producer,
    ):
        await end_broker(broker, BrokerProcess.kill)
        await eventually(lambda: not client.connected)
        waiting = [producer.send_nowait(b"%d" % n) for n in range(10)]
        await start_again(broker)

        ids = [await sent for sent in waiting]
        received = [(await sub.receive(WAIT_S)).payload for _ in range(10)]

    assert [one.offset for one in ids] == list(range(10))
    assert received == [b"%d" % n for n in range(10)]


async def test_calls_during_downtime_end_with_a_clear_error_after_their_timeout(
    broker: BrokerProcess,
) -> None:
    async with (
        ister.connect(broker.url, timeout=0.3) as client,
        client.producer(TOPIC) as producer,
    ):
        await end_broker(broker, BrokerProcess.kill)
        await eventually(lambda: not client.connected)

        with pytest.raises(NotConnectedError, match=f"no broker at ister://{broker.native}"):
            await client.request(TOPIC, b"anybody?")
        with pytest.raises(NotConnectedError):
            await client.create_topic("/default/b")
        with pytest.raises(RequestTimeoutError, match="publish to"):
            await producer.send(b"x")


async def test_a_request_during_downtime_waits_no_longer_than_it_was_told(
    broker: BrokerProcess,
) -> None:
    async with ister.connect(broker.url, timeout=3_600) as client:
        await end_broker(broker, BrokerProcess.kill)
        await eventually(lambda: not client.connected)

        with pytest.raises(NotConnectedError):
            await client.request(TOPIC, b"anybody?", timeout=0.1)


async def test_a_request_under_way_fails_with_a_connection_lost_error(
    broker: BrokerProcess,
) -> None:
    async with ister.connect(broker.url) as client, client.subscribe(TOPIC, "s") as sub:
        asking = asyncio.create_task(client.request(TOPIC, b"?", timeout=WAIT_S))
        await sub.receive(WAIT_S)
        await end_broker(broker, BrokerProcess.kill)

        with pytest.raises(ConnectionLostError):
            await asking


async def test_a_client_falls_over_to_another_broker_of_its_url(start_broker: StartBroker) -> None:
    first, second = start_broker(), start_broker()
    resumed = Resumption()
    url = f"ister://{first.native},{second.native}"
    async with (
        ister.connect(url) as client,
        client.subscribe(TOPIC, "s", on_event=resumed) as sub,
        client.producer(TOPIC) as producer,
    ):
        await end_broker(first, BrokerProcess.kill)
        await resumed.wait()
        await producer.send(b"x")

        assert (await sub.receive(WAIT_S)).payload == b"x"


@ENDS
def test_the_blocking_client_comes_back_by_itself(broker: BrokerProcess, end: object) -> None:
    assert callable(end)
    with (
        sync.connect(broker.url) as client,
        client.subscribe(TOPIC, "s") as sub,
        client.producer(TOPIC) as producer,
    ):
        producer.send(b"before")
        assert sub.receive(WAIT_S).payload == b"before"
        end(broker)
        broker.restart()

        # Waits for the connection, on which the subscription is back before anything is sent.
        producer.send(b"after")
        assert sub.receive(WAIT_S).payload == b"after"


# Half-open connections: the client is back, and the broker has not noticed that it was gone.


class Relay:
    """Stands between a client and a broker, and can lose the client without a word."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._server: asyncio.Server | None = None
        self._client_sides: list[asyncio.StreamWriter] = []
        self._broker_sides: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"ister://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in (*self._client_sides, *self._broker_sides):
            writer.transport.abort()

    def cut(self) -> None:
        """End the connection towards the client only; the broker's half stays open."""
        for writer in self._client_sides:
            writer.transport.abort()
        self._client_sides.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._broker.host, self._broker.port)
        self._client_sides.append(writer)
        self._broker_sides.append(back)
        for source, goal in ((reader, back), (there, writer)):
            task = asyncio.create_task(_pass_on(source, goal))
            self._tasks.add(task)


async def _pass_on(source: asyncio.StreamReader, goal: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65_536):
            goal.write(data)
    except ConnectionError:
        pass


@asynccontextmanager
async def relaying(broker: BrokerProcess) -> AsyncIterator[Relay]:
    relay = Relay(broker)
    await relay.open()
    try:
        yield relay
    finally:
        await relay.close()


async def test_a_client_that_comes_back_takes_its_place_from_its_half_open_former_self(
    broker: BrokerProcess,
) -> None:
    resumed = Resumption()
    async with (
        relaying(broker) as relay,
        ister.connect(broker.url) as watcher,
        ister.connect(relay.url) as client,
        client.subscribe(TOPIC, "s", consumer="me", on_event=resumed) as sub,
    ):
        relay.cut()
        await resumed.wait()

        async with watcher.producer(TOPIC) as producer:
            await producer.send(b"x")
        assert (await sub.receive(WAIT_S)).payload == b"x"
        [report] = await watcher.subscriptions()
        assert [c.name for c in report.consumers] == ["me"]
        # The old connection is still there, and has nothing to say any more.
        assert (await watcher.broker()).connections == 3
        with pytest.raises(SubscriptionTakenError):
            await watcher.subscribe(TOPIC, "s").open()


def test_only_the_same_client_under_the_same_name_takes_the_place(broker: BrokerProcess) -> None:
    me = Subscribe(topic=TOPIC, subscription="s", consumer="me", channel=2)
    with RawClient(broker) as old, RawClient(broker) as new, RawClient(broker) as other:
        old.greet("me")
        old.call(me, Subscribed)
        other.greet("somebody else")
        assert type(other.refusal(me)).__name__ == "ConsumerNameTakenError"
        new.greet("me")

        new.call(me, Subscribed)

        assert "again" in old.expect(ConsumerClosed).reason


STOPPED_CONSUMER = """
import asyncio, ister, sys

async def main():
    async with ister.connect(sys.argv[1]) as client:
        def on_event(event):
            print(type(event).__name__, flush=True)
        async with client.subscribe("/default/a", "s", type=sys.argv[2], on_event=on_event) as sub:
            print("attached", flush=True)
            async for msg in sub:
                print(msg.payload.decode(), flush=True)

asyncio.run(main())
"""


def consumer_process(url: str, type: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", STOPPED_CONSUMER, url, type]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_a_stopped_process_loses_its_place_and_comes_back_as_the_standby(
    start_broker: StartBroker,
) -> None:
    broker = start_broker("--heartbeat", "0.5")
    promoted = Resumption()
    with consumer_process(broker.url, "failover") as process:
        assert process.stdout is not None
        line = process.stdout.readline
        try:
            assert line() == "attached\n"
            async with (
                ister.connect(broker.url) as client,
                client.subscribe(TOPIC, "s", type="failover", on_event=promoted) as sub,
                client.producer(TOPIC) as producer,
            ):
                await producer.send(b"first")
                assert await asyncio.to_thread(line) == "first\n"
                process.send_signal(signal.SIGSTOP)
                await promoted.wait()
                await producer.send(b"second")
                assert (await sub.receive(WAIT_S)).payload == b"second"

                process.send_signal(signal.SIGCONT)
                assert await asyncio.to_thread(line) == "Resumed\n"
                assert sub.active
                await sub.close()
                assert await asyncio.to_thread(line) == "Promoted\n"
        finally:
            process.kill()

    assert promoted.events == [ister.Promoted("s")]
