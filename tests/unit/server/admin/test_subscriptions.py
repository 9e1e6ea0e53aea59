"""Subscriptions, as an operator sees them."""

import asyncio
from dataclasses import replace

import pytest

import ister
from ister.base import EARLIEST, AckSettings, Position
from ister.base.errors import (
    BadRequestError,
    ClosedError,
    SnapshotNotFoundError,
    SubscriptionMismatchError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.server.admin import Admin
from ister.testing import settle

TOPIC = "/default/orders"
ONE_TRY = AckSettings(max_deliveries=1)


@pytest.fixture(autouse=True)
async def stream(admin: Admin) -> None:
    """A stream to subscribe to."""
    await admin.topics.create(TOPIC, kind="stream")


async def publish(client: ister.Client, *payloads: bytes, topic: str = TOPIC) -> None:
    async with client.producer(topic) as producer:
        for payload in payloads:
            await producer.send(payload, key="k", attributes={"a": "1"}, id=payload.decode())


def lag(admin: Admin, topic: str = TOPIC, name: str = "billing") -> int:
    cursor = admin.subscriptions.get(topic, name).cursor
    assert cursor is not None
    return cursor.lag


# Made, found, removed


async def test_a_subscription_waits_for_its_first_consumer(
    admin: Admin, client: ister.Client
) -> None:
    await admin.subscriptions.create(TOPIC, "billing", type="shared")
    await publish(client, b"0")

    assert lag(admin) == 1
    assert admin.subscriptions.get(TOPIC, "billing").consumers == []


async def test_making_it_again_changes_nothing(admin: Admin, client: ister.Client) -> None:
    await admin.subscriptions.create(TOPIC, "billing")
    async with client.subscribe(TOPIC, "billing"):
        await admin.subscriptions.create(TOPIC, "billing")

        assert len(admin.subscriptions.get(TOPIC, "billing").consumers) == 1


async def test_another_one_of_its_name_is_refused(admin: Admin) -> None:
    await admin.subscriptions.create(TOPIC, "billing")

    with pytest.raises(SubscriptionMismatchError):
        await admin.subscriptions.create(TOPIC, "billing", type="shared")


async def test_a_live_topic_has_no_lasting_subscriptions(admin: Admin) -> None:
    await admin.topics.create("/default/live")

    with pytest.raises(WrongKindError):
        await admin.subscriptions.create("/default/live", "billing")
    with pytest.raises(TopicNotFoundError):
        await admin.subscriptions.create("/default/nothing", "billing")


async def test_subscriptions_come_in_pages(admin: Admin) -> None:
    for name in ("a", "b", "c"):
        await admin.subscriptions.create(TOPIC, name)

    first = admin.subscriptions.page(TOPIC, limit=2)
    second = admin.subscriptions.page(TOPIC, limit=2, after=first.next)
    assert [row.subscription for row in (*first.rows, *second.rows)] == ["a", "b", "c"]
    assert second.next == ""


async def test_a_deleted_subscription_is_gone(admin: Admin) -> None:
    await admin.subscriptions.create(TOPIC, "billing")
    await admin.subscriptions.delete(TOPIC, "billing")

    with pytest.raises(SubscriptionNotFoundError):
        admin.subscriptions.get(TOPIC, "billing")
    with pytest.raises(SubscriptionNotFoundError):
        await admin.subscriptions.delete(TOPIC, "billing")


# Moved and set


async def test_a_subscription_is_moved(admin: Admin, client: ister.Client) -> None:
    await publish(client, b"0", b"1", b"2")
    await admin.subscriptions.create(TOPIC, "billing")

    await admin.subscriptions.seek(TOPIC, "billing", EARLIEST)
    assert lag(admin) == 3
    await admin.subscriptions.seek(TOPIC, "billing", Position(origin="offset", at=2))
    assert lag(admin) == 1


async def test_a_saved_cursor_is_a_place_to_go_back_to(admin: Admin, client: ister.Client) -> None:
    await admin.subscriptions.create(TOPIC, "billing")
    await admin.subscriptions.save_cursor(TOPIC, "billing", "start")
    await publish(client, b"0", b"1")
    await admin.subscriptions.seek(TOPIC, "billing", Position(origin="latest"))

    to = Position(origin="snapshot", name="start")
    await admin.subscriptions.seek(TOPIC, "billing", to)
    assert lag(admin) == 2
    await admin.subscriptions.drop_cursor(TOPIC, "billing", "start")
    with pytest.raises(SnapshotNotFoundError):
        await admin.subscriptions.seek(TOPIC, "billing", to)


async def test_a_paused_subscription_hands_nothing_out(admin: Admin, client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await admin.subscriptions.pause(TOPIC, "billing")
        await publish(client, b"0")
        assert await sub.fetch(1, timeout=0.05) == []

        await admin.subscriptions.resume(TOPIC, "billing")
        assert (await sub.receive(timeout=10)).payload == b"0"


async def test_settings_change_while_a_consumer_is_attached(
    admin: Admin, client: ister.Client
) -> None:
    async with client.subscribe(TOPIC, "billing"):
        acks = replace(admin.subscriptions.settings(TOPIC, "billing"), ack_timeout_ms=5_000)
        await admin.subscriptions.set_settings(TOPIC, "billing", acks)

        assert admin.subscriptions.settings(TOPIC, "billing") == acks


async def test_settings_out_of_bounds_change_nothing(admin: Admin) -> None:
    await admin.subscriptions.create(TOPIC, "billing")
    former = admin.subscriptions.settings(TOPIC, "billing")

    with pytest.raises(BadRequestError):
        await admin.subscriptions.set_settings(TOPIC, "billing", AckSettings(ack_timeout_ms=1))
    assert admin.subscriptions.settings(TOPIC, "billing") == former


# Dead letters


async def let_die(
    admin: Admin, client: ister.Client, *payloads: bytes, topic: str = TOPIC, dlq: str = ""
) -> None:
    """Have messages fail until they are dead letters of the subscription `billing`."""
    await admin.subscriptions.create(topic, "billing", acks=replace(ONE_TRY, dead_letter_topic=dlq))
    before = dead(admin, topic)
    await publish(client, *payloads, topic=topic)
    async with client.subscribe(topic, "billing") as sub:
        for _ in payloads:
            await (await sub.receive(timeout=10)).nack()
        await settle()
    assert dead(admin, topic) == before + len(payloads)


def dead(admin: Admin, topic: str) -> int:
    cursor = admin.subscriptions.get(topic, "billing").cursor
    assert cursor is not None
    return cursor.dead_lettered


async def test_dead_letters_go_back_as_they_were(admin: Admin, client: ister.Client) -> None:
    await let_die(admin, client, b"0", b"1")

    assert await admin.subscriptions.redrive(TOPIC, "billing") == 2
    async with client.subscribe(TOPIC, "billing") as sub:
        again = [await sub.receive(timeout=10) for _ in range(2)]
    assert sorted(m.payload for m in again) == [b"0", b"1"]
    assert [(m.key, m.attributes) for m in again] == [("k", {"a": "1"})] * 2


async def test_letters_that_went_back_do_not_go_twice(admin: Admin, client: ister.Client) -> None:
    await let_die(admin, client, b"0", b"1", b"2")

    assert await admin.subscriptions.redrive(TOPIC, "billing", count=2) == 2
    assert await admin.subscriptions.redrive(TOPIC, "billing") == 1
    assert await admin.subscriptions.redrive(TOPIC, "billing") == 0
    assert lag(admin) == 3


async def test_letters_of_another_subscription_stay(admin: Admin, client: ister.Client) -> None:
    other = "/default/payments"
    await admin.topics.create(other, kind="stream")
    await let_die(admin, client, b"0", dlq="/default/dead")
    await let_die(admin, client, b"1", topic=other, dlq="/default/dead")

    assert await admin.subscriptions.redrive(TOPIC, "billing") == 1
    assert await admin.subscriptions.redrive(other, "billing") == 1


async def test_letters_of_partitions_go_back_to_theirs(admin: Admin, client: ister.Client) -> None:
    wide = "/default/wide"
    await admin.topics.create(wide, kind="stream", partitions=3)
    await admin.subscriptions.create(wide, "billing", acks=ONE_TRY)
    for number in range(3):
        await admin.messages.publish(f"{wide}-part-{number}", b"%d" % number)
    async with client.subscribe(wide, "billing") as sub:
        for _ in range(3):
            await (await sub.receive(timeout=10)).nack()
        await settle()

    assert await admin.subscriptions.redrive(wide, "billing") == 3
    for number in range(3):
        rows = await admin.messages.peek(f"{wide}-part-{number}", 0)
        assert [row.payload for row in rows] == [b"%d" % number] * 2


async def test_more_letters_than_fit_into_one_transaction_go_back(
    admin: Admin, client: ister.Client
) -> None:
    letters = f"{TOPIC}-billing-dlq"
    await admin.topics.create(letters, kind="stream")
    async with client.producer(letters) as producer:
        for number in range(1_201):
            producer.send_nowait(b"%d" % number)
        await producer.flush()

    assert await admin.subscriptions.redrive(TOPIC, "billing", count=1_100) == 1_100
    assert await admin.subscriptions.redrive(TOPIC, "billing") == 101
    rows = await admin.messages.peek(TOPIC, 0, count=1_000)
    assert [row.payload for row in rows] == [b"%d" % number for number in range(1_000)]


async def test_a_letter_whose_topic_is_gone_stays_where_it_is(
    admin: Admin, client: ister.Client
) -> None:
    await let_die(admin, client, b"0")
    await admin.topics.delete(TOPIC)

    with pytest.raises(TopicNotFoundError):
        await admin.subscriptions.redrive(TOPIC, "billing")
    await admin.topics.create(TOPIC, kind="stream")
    assert await admin.subscriptions.redrive(TOPIC, "billing") == 1


async def test_a_redrive_that_is_given_up_leaves_no_consumer_behind(admin: Admin) -> None:
    letters = f"{TOPIC}-billing-dlq"
    await admin.topics.create(letters, kind="stream")
    await admin.messages.publish(letters, b"0")
    task = asyncio.create_task(admin.subscriptions.redrive(TOPIC, "billing"))
    # As far as to ask for its place, which the journal is to have first.
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()

    assert admin.subscriptions.get(letters, "redrive").consumers == []
    assert await admin.subscriptions.redrive(TOPIC, "billing") == 1


async def test_a_redrive_ends_when_the_letters_are_deleted(admin: Admin) -> None:
    letters = f"{TOPIC}-billing-dlq"
    await admin.topics.create(letters, kind="stream")
    await admin.messages.publish(letters, b"0")
    acks = AckSettings(max_deliveries=0)
    await admin.subscriptions.create(letters, "redrive", start=EARLIEST, acks=acks)
    # So that it has to wait for them.
    await admin.subscriptions.pause(letters, "redrive")
    task = asyncio.create_task(admin.subscriptions.redrive(TOPIC, "billing"))
    await settle()
    await admin.topics.delete(letters)

    with pytest.raises(ClosedError, match="deleted"):
        await task


async def test_letters_by_pattern_need_the_name_of_a_topic(admin: Admin) -> None:
    with pytest.raises(BadRequestError, match="wildcards"):
        await admin.subscriptions.redrive("/default/*", "billing")


async def test_without_dead_letters_nothing_goes_back(admin: Admin) -> None:
    await admin.subscriptions.create(TOPIC, "billing")

    assert await admin.subscriptions.redrive(TOPIC, "billing") == 0


async def test_a_letter_that_names_no_topic_stays_where_it_is(
    admin: Admin, client: ister.Client
) -> None:
    letters = f"{TOPIC}-billing-dlq"
    await admin.topics.create(letters, kind="stream")
    await admin.messages.publish(letters, b"forged", attributes={"x-original-topic": "no name"})

    assert await admin.subscriptions.redrive(TOPIC, "billing") == 0


async def test_a_redrive_leaves_no_consumer_behind(admin: Admin, client: ister.Client) -> None:
    await let_die(admin, client, b"0")
    await admin.subscriptions.redrive(TOPIC, "billing")

    assert admin.subscriptions.get(f"{TOPIC}-billing-dlq", "redrive").consumers == []


@pytest.mark.parametrize("count", [0, -1])
async def test_a_redrive_of_nothing_is_a_mistake(admin: Admin, count: int) -> None:
    with pytest.raises(BadRequestError):
        await admin.subscriptions.redrive(TOPIC, "billing", count=count)
