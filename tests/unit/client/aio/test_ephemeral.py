"""Subscriptions that end with their consumers, from an application's side."""

from collections.abc import AsyncIterator

import pytest
from msgspec import UNSET

import ister
from ister.base.errors import BadRequestError, SubscriptionMismatchError
from ister.testing import MemoryBroker, VirtualClock, settle

ORDERS = "/default/orders"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def broker(clock: VirtualClock) -> AsyncIterator[MemoryBroker]:
    async with MemoryBroker(clock=clock) as broker:
        yield broker


@pytest.fixture
async def client(broker: MemoryBroker) -> AsyncIterator[ister.Client]:
    async with broker.connect() as client:
        await client.create_topic(ORDERS, kind="stream")
        yield client


async def names(client: ister.Client) -> list[str]:
    return [row.subscription for row in await client.subscriptions()]


async def test_a_subscription_without_a_name_ends_with_its_block(client: ister.Client) -> None:
    async with client.subscribe(ORDERS) as sub, client.producer(ORDERS) as producer:
        await producer.send(b"x")
        assert (await sub.receive(timeout=5.0)).payload == b"x"
        (row,) = await client.subscriptions(ORDERS)
        assert row.cursor is not None
        assert (row.subscription, row.cursor.durable) == (sub.name, False)

    assert await names(client) == []


async def test_a_subscription_with_a_name_may_end_with_its_consumers(client: ister.Client) -> None:
    async with client.subscribe("/default/>", "dashboard", durable=False):
        assert await names(client) == ["dashboard"]

    assert await names(client) == []


async def test_it_ends_when_its_client_is_closed(
    broker: MemoryBroker, client: ister.Client
) -> None:
    async with broker.connect() as other:
        await other.subscribe(ORDERS).open()
    await settle()

    assert await names(client) == []


async def test_one_that_expires_does_so(client: ister.Client, clock: VirtualClock) -> None:
    async with client.subscribe(ORDERS, "s", expire_after=3_600.0):
        (row,) = await client.subscriptions(ORDERS)
        assert row.cursor is not None
        assert (row.cursor.durable, row.cursor.expire_after_ms) == (UNSET, 3_600_000)
    await clock.elapse(3_500.0)
    assert await names(client) == ["s"]
    await clock.elapse(101.0)

    assert await names(client) == []


async def test_expiry_can_be_set_afterwards(client: ister.Client, clock: VirtualClock) -> None:
    async with client.subscribe(ORDERS, "s"):
        pass
    await client.update_subscription(ORDERS, "s", expire_after=10.0)
    await clock.elapse(12.0)

    assert await names(client) == []


async def test_what_contradicts_itself_is_refused(client: ister.Client) -> None:
    with pytest.raises(BadRequestError, match="needs a name"):
        client.subscribe(ORDERS, durable=True)
    with pytest.raises(BadRequestError, match="ends with its last consumer"):
        client.subscribe(ORDERS, expire_after=10.0)
    with pytest.raises(BadRequestError, match="expire_after is 0 or more, not -1s"):
        client.subscribe(ORDERS, "s", expire_after=-1.0)


async def test_it_leaves_no_dead_letters_behind(client: ister.Client, clock: VirtualClock) -> None:
    async with (
        client.subscribe("/default/>", max_renewal=0) as sub,
        client.subscribe("/default/>", "named", durable=False, max_deliveries=2, max_renewal=0),
    ):
        await client.publish(ORDERS, b"never acknowledged")
        assert (await sub.receive()).attempt == 1
        await clock.elapse(600.0)
        assert {row.topic for row in await client.topics()} == {ORDERS}
        for row in await client.subscriptions():
            assert row.cursor is not None
            assert (row.cursor.settings.poison, row.messages_dropped) == ("drop", 1)


async def test_it_has_dead_letters_when_they_are_asked_for(client: ister.Client) -> None:
    for sub in (
        client.subscribe(ORDERS, "s", durable=False, poison="dead_letter"),
        client.subscribe(ORDERS, "s", durable=False, dead_letter_topic="broken"),
    ):
        async with sub:
            await client.publish(ORDERS, b"x")
            await (await sub.receive()).reject("no")
            await settle()

    found = {row.topic for row in await client.topics()} - {ORDERS}
    assert found == {"/default/orders-s-dlq", "/default/broken"}


async def test_a_durable_subscription_does_not_become_ephemeral(client: ister.Client) -> None:
    async with client.subscribe(ORDERS, "billing"):
        with pytest.raises(SubscriptionMismatchError, match="leave out durable=False"):
            await client.subscribe(ORDERS, "billing", durable=False).open()

    assert await names(client) == ["billing"]
