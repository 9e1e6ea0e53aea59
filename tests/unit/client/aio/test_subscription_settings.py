"""Settings of subscriptions from an application's side, over the real broker in memory."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

import ister
from ister.base import AckSettings
from ister.base.errors import BadRequestError, SubscriptionMismatchError
from ister.testing import MemoryBroker

ORDERS = "/default/orders"


@pytest.fixture
async def client() -> AsyncIterator[ister.Client]:
    async with MemoryBroker() as broker, broker.connect() as client:
        await client.create_topic(ORDERS, kind="stream")
        yield client


async def settings(client: ister.Client) -> AckSettings:
    (row,) = await client.subscriptions(ORDERS)
    assert row.cursor is not None
    return row.cursor.settings


async def test_what_a_consumer_does_not_say_stays_as_it_is(client: ister.Client) -> None:
    async with client.subscribe(ORDERS, "s", type="shared", ack_timeout=60.0, max_deliveries=9):
        pass
    async with client.subscribe(ORDERS, "s", backoff=[1.0]):
        assert [row.type for row in await client.subscriptions(ORDERS)] == ["shared"]

    wanted = AckSettings(ack_timeout_ms=60_000, max_deliveries=9, backoff_ms=(1_000,))
    assert await settings(client) == wanted


async def test_an_update_without_a_setting_is_refused(client: ister.Client) -> None:
    async with client.subscribe(ORDERS, "s", type="shared"):
        pass

    with pytest.raises(BadRequestError, match="no setting is given: say what is to change"):
        await client.update_subscription(ORDERS, "s")


async def test_a_setting_can_be_set_back_to_its_default(client: ister.Client) -> None:
    async with (
        client.subscribe(ORDERS, "s", type="shared", ack_timeout=60.0),
        client.subscribe(ORDERS, "s", ack_timeout=30.0),
    ):
        assert await settings(client) == AckSettings()


async def test_an_update_changes_what_is_given_under_its_consumers(client: ister.Client) -> None:
    async with client.subscribe(ORDERS, "s", start="earliest", ack_timeout=60.0) as sub:
        await client.update_subscription(ORDERS, "s", filters={"a": "1"}, poison="drop")
        async with client.producer(ORDERS) as producer:
            await producer.send(b"0")
            await producer.send(b"1", attributes={"a": "1"})

        assert (await sub.receive(timeout=5.0)).payload == b"1"
    assert await settings(client) == AckSettings(ack_timeout_ms=60_000, poison="drop")


async def test_a_consumer_knows_the_type_that_it_did_not_ask_for(client: ister.Client) -> None:
    async with client.subscribe(ORDERS, "s", type="shared", start="earliest"):
        pass
    async with client.producer(ORDERS) as producer:
        await producer.send(b"0")
    async with client.subscribe(ORDERS, "s") as sub:
        with pytest.raises(BadRequestError, match="'s' is shared"):
            await sub.ack_through(await sub.receive(timeout=5.0))


async def test_another_type_is_refused_in_plain_english(client: ister.Client) -> None:
    async with client.subscribe(ORDERS, "s", type="shared"):
        with pytest.raises(SubscriptionMismatchError) as caught:
            await client.update_subscription(ORDERS, "s", type="failover")

    assert str(caught.value) == (
        "subscription 's' on '/default/orders' exists with type 'shared' and 1 consumer: subscribe "
        "with that type, or change it while the subscription has no consumers"
    )
    await client.update_subscription(ORDERS, "s", type="failover")
    assert [row.type for row in await client.subscriptions(ORDERS)] == ["failover"]


@pytest.mark.parametrize("given", [{"filters": ["a"]}, {"type": 5}, {"max_deliveries": "many"}])
async def test_settings_that_make_no_sense_are_refused(
    client: ister.Client, given: dict[str, Any]
) -> None:
    with pytest.raises(BadRequestError):
        await client.update_subscription(ORDERS, "s", **given)
    with pytest.raises(BadRequestError):
        client.subscribe(ORDERS, "s", **given)


async def test_a_pattern_covers_work_queues_when_it_is_asked_to(client: ister.Client) -> None:
    await client.create_topic("/default/jobs", kind="stream", retention="workqueue")
    async with (
        client.subscribe("/default/*", "dashboard"),
        client.subscribe("/default/jobs", "workers"),
    ):
        (row,) = await client.subscriptions("/default/jobs")
        assert row.subscription == "workers"
    await client.delete_subscription("/default/jobs", "workers")
    async with client.subscribe("/default/*", "dashboard", work_queues=True):
        (row,) = await client.subscriptions("/default/jobs")
        assert row.subscription == "dashboard"
