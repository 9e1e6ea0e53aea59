"""Connecting, staying connected, and giving up: what the asyncio client does with its transport."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from typing import cast

import pytest

import ister
from ister.base.errors import (
    BadRequestError,
    ConnectionLostError,
    NotConnectedError,
    UntrustedBrokerError,
    VersionError,
)
from ister.client.aio.connection.sockets import UntrustedError
from ister.testing import MemoryBroker, MemoryTransport, VirtualClock, connect_pair, settle
from ister.wire import Welcome, control_frame


class MuteBroker(asyncio.Protocol):
    """Says welcome, and nothing ever after."""

    version = 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("MemoryTransport", transport)
        self._welcomed = False

    def data_received(self, data: bytes) -> None:
        """Answer the first bytes."""
        if not self._welcomed:
            self._welcomed = True
            self._transport.write(control_frame(self.welcome()))

    def welcome(self) -> Welcome:
        """Return the answer to hello."""
        return Welcome(
            version=self.version,
            broker="mute",
            session=1,
            codecs=["none"],
            message_bytes_max=1_000,
            batch_bytes_max=10_000,
            heartbeat_ms=10_000,
        )


class NewerBroker(MuteBroker):
    """Speaks a version of the protocol that does not exist yet."""

    version = 99


class Network:
    """Where connections lead can be changed by the test."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.attempts: list[str] = []
        # Nobody listens before.
        self.opens_ms = 0
        self.server: Callable[[], asyncio.BaseProtocol] = MuteBroker

    def connect(
        self, url: str = "ister://somewhere", connect_timeout: float | None = 0
    ) -> ister.Client:
        """Return a client in this network."""
        return ister.connect(
            url,
            timeout=10.0,
            connect_timeout=connect_timeout,
            clock=self.clock,
            connector=self._connector,
            busy_poll=0.0,
        )

    async def _connector(
        self, protocol: Callable[[], asyncio.BaseProtocol], address: tuple[str, int]
    ) -> MemoryTransport:
        self.attempts.append(address[0])
        if address[0] == "nowhere" or self.clock.monotonic_ms() < self.opens_ms:
            raise ConnectionRefusedError("nobody listens")
        return connect_pair(protocol, self.server)


@pytest.fixture
def network() -> Network:
    """A network with a mute broker."""
    return Network()


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    """A real broker, in memory."""
    async with MemoryBroker() as broker:
        yield broker


async def test_addresses_are_tried_in_order(network: Network) -> None:
    async with network.connect("ister://nowhere,nowhere:1,here,there") as client:
        assert client.connected
        assert network.attempts == ["nowhere", "nowhere", "here"]


async def test_no_broker_anywhere_is_told_with_every_reason(network: Network) -> None:
    with pytest.raises(NotConnectedError) as caught:
        await network.connect("ister://nowhere,nowhere:1")

    assert caught.value.url == "ister://nowhere:6655,nowhere:1"
    assert caught.value.reason == "nobody listens; nobody listens"
    assert str(caught.value).startswith("no broker at ister://nowhere:6655,nowhere:1 (")


async def test_a_broker_that_starts_later_is_reached(network: Network) -> None:
    network.opens_ms = network.clock.monotonic_ms() + 1_000
    client = network.connect(connect_timeout=None)
    opening = asyncio.ensure_future(client.open())

    await network.clock.elapse(0.999)
    assert not opening.done()
    await network.clock.elapse(9.0)

    await opening
    assert client.connected
    await client.close()


async def test_a_client_that_waits_for_its_broker_says_so_once(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    network.opens_ms = network.clock.monotonic_ms() + 5_000
    client = network.connect(connect_timeout=None)
    opening = asyncio.ensure_future(client.open())
    await network.clock.elapse(10.0)
    await opening
    await client.close()

    assert len(network.attempts) > 3
    [told] = [row.getMessage() for row in caplog.records if row.levelname == "WARNING"]
    assert "url='ister://somewhere:6655' reason='nobody listens' waits_s=10" in told


async def test_the_first_connection_is_tried_for_the_timeout_and_then_told(
    network: Network,
) -> None:
    opening = asyncio.ensure_future(network.connect("ister://nowhere", connect_timeout=None).open())

    await network.clock.elapse(9.9)
    assert not opening.done()
    await network.clock.elapse(0.2)

    with pytest.raises(NotConnectedError, match="nobody listens"):
        await opening
    assert len(network.attempts) > 3


async def test_a_certificate_that_is_not_trusted_is_told_at_once(network: Network) -> None:
    async def connector(
        protocol: Callable[[], asyncio.BaseProtocol], address: tuple[str, int]
    ) -> MemoryTransport:
        network.attempts.append("")
        raise UntrustedError("its certificate is not to be trusted")

    client = ister.connect("ister://x", clock=network.clock, connector=connector)

    with pytest.raises(UntrustedBrokerError, match="not to be trusted") as refused:
        await client.open()
    assert len(network.attempts) == 1
    # Not the one that asks to try again.
    assert refused.value.exit_code == 64


async def test_a_connection_that_is_closed_at_once_is_not_called_a_missing_broker(
    network: Network,
) -> None:
    class Closing(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            cast("MemoryTransport", transport).abort()

    network.server = Closing

    with pytest.raises(NotConnectedError) as caught:
        await network.connect()
    assert caught.value.answered
    assert str(caught.value).startswith("no connection to ister://")
    assert "no broker" not in str(caught.value)


async def test_a_broker_of_another_version_is_not_tried_again(network: Network) -> None:
    network.server = NewerBroker

    with pytest.raises(VersionError):
        await network.connect()
    assert len(network.attempts) == 1


async def test_a_broker_upgraded_beyond_us_ends_the_client_with_the_reason(
    network: Network,
) -> None:
    async with network.connect() as client:
        network.server = NewerBroker
        client.link.session.connection.close()
        transport = client.link._transport
        assert transport is not None
        transport.abort()
        await network.clock.elapse(1.0)

        with pytest.raises(VersionError):
            await client.topics()
        with pytest.raises(VersionError):
            await client.request("/default/x", b"x")
    assert len(network.attempts) == 2


async def test_a_mute_broker_is_left_after_three_heartbeats(network: Network) -> None:
    async with network.connect():
        await network.clock.elapse(29.0)
        before = len(network.attempts)
        await network.clock.elapse(4.0)

        assert (before, len(network.attempts)) == (1, 2)


async def test_closing_while_reconnecting_ends_at_once(network: Network) -> None:
    client = await network.connect("ister://here")
    network.server = MuteBroker
    transport = client.link._transport
    assert transport is not None
    transport.abort()
    await settle()
    waiting = asyncio.ensure_future(client.topics())
    await settle()
    await client.close()

    with pytest.raises(ister.InvalidError):
        await waiting
    assert network.attempts == ["here"]


async def test_reconnecting_draws_no_number_from_the_generator_of_the_application(
    network: Network,
) -> None:
    async with network.connect("ister://here") as client:
        transport = client.link._transport
        assert transport is not None
        before = random.getstate()

        transport.abort()
        await network.clock.elapse(5.0)

        assert len(network.attempts) == 2
        assert random.getstate() == before


async def test_a_client_that_was_not_opened_says_so(network: Network) -> None:
    with pytest.raises(BadRequestError):
        network.connect().producer("/default/orders")


@pytest.mark.parametrize(
    "url", ["", "here", "http://here", "ister://", "ister://a:b", "ister://a/b"]
)
async def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadRequestError):
        ister.connect(url)


async def test_an_opening_that_is_cancelled_leaves_nothing_at_the_broker(
    broker: MemoryBroker,
) -> None:
    async with broker.connect() as client:
        subscription = client.subscribe("/default/orders", "billing")
        producer = client.producer("/default/orders")
        openings = [asyncio.ensure_future(subscription.open())]
        openings.append(asyncio.ensure_future(producer.open()))
        # Far enough for the commands to leave, not far enough for the answers to come.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for opening in openings:
            opening.cancel()
        await settle()

        assert all(opening.cancelled() for opening in openings)
        [topic] = await client.topics()
        assert (topic.producers, topic.subscriptions) == (0, 0)


async def test_a_receive_that_is_cancelled_takes_no_message(broker: MemoryBroker) -> None:
    async with (
        broker.connect() as client,
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        receiving = asyncio.ensure_future(sub.receive())
        await settle()
        receiving.cancel()
        await producer.send(b"x")

        assert (await sub.receive()).payload == b"x"


async def test_a_request_that_is_cancelled_is_forgotten(broker: MemoryBroker) -> None:
    async with broker.connect() as client, client.subscribe("/default/price", "silent") as sub:
        asking = asyncio.ensure_future(client.request("/default/price", b"x"))
        msg = await sub.receive()
        asking.cancel()
        await settle()
        await msg.reply(b"late")

        assert len(client.link.session.requests) == 0


async def test_a_send_that_is_cancelled_disturbs_no_other_of_its_batch(
    broker: MemoryBroker,
) -> None:
    async with broker.connect() as client, client.producer("/default/orders") as producer:
        await producer.send(b"first")
        sends = [asyncio.ensure_future(producer.send(b"%d" % n)) for n in range(3)]
        await asyncio.sleep(0)
        sends[1].cancel()
        done = await asyncio.gather(*sends, return_exceptions=True)

        assert isinstance(done[1], asyncio.CancelledError)
        assert [m.offset for m in (done[0], done[2]) if isinstance(m, ister.MessageId)] == [1, 3]


async def test_an_event_callback_that_fails_is_logged_and_costs_nothing(
    broker: MemoryBroker, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(event: ister.Event) -> None:
        raise RuntimeError("bug of the application")

    async with (
        broker.connect() as client,
        client.subscribe("/default/o", "work", type="failover") as active,
        client.subscribe("/default/o", "work", type="failover", on_event=fail) as standby,
    ):
        with caplog.at_level(logging.ERROR, logger="ister.client"):
            await active.close()
            await client.broker()

        assert standby.active
        assert client.connected
        [record] = caplog.records
        assert record.message.startswith("event_callback_failed")


async def test_a_done_callback_that_fails_disturbs_no_other(broker: MemoryBroker) -> None:
    failed: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failed.append(context["exception"]))

    def fail(future: ister.SendFuture) -> None:
        raise RuntimeError("bug of the application")

    async with broker.connect() as client, client.producer("/default/orders") as producer:
        first, second = producer.send_nowait(b"0"), producer.send_nowait(b"1")
        first.add_done_callback(fail)
        second.add_done_callback(lambda _: None)
        await producer.flush()
        await settle()

        assert (await second).offset == 1
        assert client.connected
    assert [type(error) for error in failed] == [RuntimeError]


async def test_the_log_says_nothing_to_an_application_that_did_not_ask(
    broker: MemoryBroker, capfd: pytest.CaptureFixture[str]
) -> None:
    async with broker.connect() as client:
        broker.disconnect_all()
        await client.topics()

    assert capfd.readouterr() == ("", "")


async def test_a_question_is_asked_again_when_the_connection_is_lost_on_the_way(
    broker: MemoryBroker,
) -> None:
    async with broker.connect() as client:
        asking = asyncio.ensure_future(client.namespaces())
        await asyncio.sleep(0)
        broker.disconnect_all()

        assert await asking == ["default", "system"]


async def test_an_order_is_not_given_twice(broker: MemoryBroker) -> None:
    async with broker.connect() as client:
        creating = asyncio.ensure_future(client.create_namespace("other"))
        await asyncio.sleep(0)
        broker.disconnect_all()

        with pytest.raises(ConnectionLostError):
            await creating
