"""Subscriptions, as an operator sees them."""

import asyncio
from dataclasses import asdict, replace

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
from ister.operations import (
    ChangeSettings,
    CreateSubscription,
    CreateTopic,
    DeleteSubscription,
    DeleteTopic,
    DescribeSettings,
    DescribeSubscription,
    DropCursor,
    ListSubscriptionsOfTopic,
    PauseSubscription,
    PeekMessages,
    PublishMessage,
    RedriveSubscription,
    ResumeSubscription,
    SaveCursor,
    SeekSubscription,
)
from ister.server.operations import Dispatcher
from ister.testing import settle

TOPIC = "/default/orders"
ONE_TRY = AckSettings(max_deliveries=1)


@pytest.fixture(autouse=True)
async def stream(dispatcher: Dispatcher) -> None:
    """A stream to subscribe to."""
    await dispatcher.run(CreateTopic(TOPIC, kind="stream"))


async def publish(client: ister.Client, *payloads: bytes, topic: str = TOPIC) -> None:
    async with client.producer(topic) as producer:
        for payload in payloads:
            await producer.send(payload, key="k", attributes={"a": "1"}, id=payload.decode())


async def lag(dispatcher: Dispatcher, topic: str = TOPIC, name: str = "billing") -> int:
    cursor = (await dispatcher.run(DescribeSubscription(topic, name))).cursor
    assert cursor is not None
    return cursor.lag


# Made, found, removed


async def test_a_subscription_waits_for_its_first_consumer(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    await dispatcher.run(CreateSubscription(TOPIC, "billing", type="shared"))
    await publish(client, b"0")

    assert await lag(dispatcher) == 1
    assert (await dispatcher.run(DescribeSubscription(TOPIC, "billing"))).consumers == []


async def test_making_it_again_changes_nothing(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    await dispatcher.run(CreateSubscription(TOPIC, "billing"))
    async with client.subscribe(TOPIC, "billing"):
        await dispatcher.run(CreateSubscription(TOPIC, "billing"))

        assert len((await dispatcher.run(DescribeSubscription(TOPIC, "billing"))).consumers) == 1


async def test_another_one_of_its_name_is_refused(dispatcher: Dispatcher) -> None:
    await dispatcher.run(CreateSubscription(TOPIC, "billing"))

    with pytest.raises(SubscriptionMismatchError):
        await dispatcher.run(CreateSubscription(TOPIC, "billing", type="shared"))


async def test_a_live_topic_has_no_lasting_subscriptions(dispatcher: Dispatcher) -> None:
    await dispatcher.run(CreateTopic("/default/live"))

    with pytest.raises(WrongKindError):
        await dispatcher.run(CreateSubscription("/default/live", "billing"))
    with pytest.raises(TopicNotFoundError):
        await dispatcher.run(CreateSubscription("/default/nothing", "billing"))


async def test_subscriptions_come_in_pages(dispatcher: Dispatcher) -> None:
    for name in ("a", "b", "c"):
        await dispatcher.run(CreateSubscription(TOPIC, name))

    first = await dispatcher.run(ListSubscriptionsOfTopic(TOPIC, limit=2))
    second = await dispatcher.run(ListSubscriptionsOfTopic(TOPIC, limit=2, after=first.next))
    assert [row.subscription for row in (*first.rows, *second.rows)] == ["a", "b", "c"]
    assert second.next == ""


async def test_a_deleted_subscription_is_gone(dispatcher: Dispatcher) -> None:
    await dispatcher.run(CreateSubscription(TOPIC, "billing"))
    await dispatcher.run(DeleteSubscription(TOPIC, "billing"))

    with pytest.raises(SubscriptionNotFoundError):
        await dispatcher.run(DescribeSubscription(TOPIC, "billing"))
    with pytest.raises(SubscriptionNotFoundError):
        await dispatcher.run(DeleteSubscription(TOPIC, "billing"))


# Moved and set


async def test_a_subscription_is_moved(dispatcher: Dispatcher, client: ister.Client) -> None:
    await publish(client, b"0", b"1", b"2")
    await dispatcher.run(CreateSubscription(TOPIC, "billing"))

    await dispatcher.run(SeekSubscription(TOPIC, "billing", EARLIEST))
    assert await lag(dispatcher) == 3
    await dispatcher.run(SeekSubscription(TOPIC, "billing", Position(origin="offset", at=2)))
    assert await lag(dispatcher) == 1


async def test_a_saved_cursor_is_a_place_to_go_back_to(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    await dispatcher.run(CreateSubscription(TOPIC, "billing"))
    await dispatcher.run(SaveCursor(TOPIC, "billing", "start"))
    await publish(client, b"0", b"1")
    await dispatcher.run(SeekSubscription(TOPIC, "billing", Position(origin="latest")))

    to = Position(origin="snapshot", name="start")
    await dispatcher.run(SeekSubscription(TOPIC, "billing", to))
    assert await lag(dispatcher) == 2
    await dispatcher.run(DropCursor(TOPIC, "billing", "start"))
    with pytest.raises(SnapshotNotFoundError):
        await dispatcher.run(SeekSubscription(TOPIC, "billing", to))


async def test_a_paused_subscription_hands_nothing_out(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await dispatcher.run(PauseSubscription(TOPIC, "billing"))
        await publish(client, b"0")
        assert await sub.fetch(1, timeout=0.05) == []

        await dispatcher.run(ResumeSubscription(TOPIC, "billing"))
        assert (await sub.receive(timeout=10)).payload == b"0"


async def test_settings_change_while_a_consumer_is_attached(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    async with client.subscribe(TOPIC, "billing"):
        acks = replace(
            (await dispatcher.run(DescribeSettings(TOPIC, "billing"))), ack_timeout_ms=5_000
        )
        await dispatcher.run(ChangeSettings(TOPIC, "billing", asdict(acks)))

        assert (await dispatcher.run(DescribeSettings(TOPIC, "billing"))) == acks


async def test_settings_out_of_bounds_change_nothing(dispatcher: Dispatcher) -> None:
    await dispatcher.run(CreateSubscription(TOPIC, "billing"))
    former = await dispatcher.run(DescribeSettings(TOPIC, "billing"))

    with pytest.raises(BadRequestError):
        await dispatcher.run(
            ChangeSettings(TOPIC, "billing", asdict(AckSettings(ack_timeout_ms=1)))
        )
    assert (await dispatcher.run(DescribeSettings(TOPIC, "billing"))) == former


# Dead letters


async def let_die(
    dispatcher: Dispatcher,
    client: ister.Client,
    *payloads: bytes,
    topic: str = TOPIC,
    dlq: str = "",
) -> None:
    """Have messages fail until they are dead letters of the subscription `billing`."""
    await dispatcher.run(
        CreateSubscription(topic, "billing", acks=replace(ONE_TRY, dead_letter_topic=dlq))
    )
    before = await dead(dispatcher, topic)
    await publish(client, *payloads, topic=topic)
    async with client.subscribe(topic, "billing") as sub:
        for _ in payloads:
            await (await sub.receive(timeout=10)).nack()
        await settle()
    assert await dead(dispatcher, topic) == before + len(payloads)


async def dead(dispatcher: Dispatcher, topic: str) -> int:
    cursor = (await dispatcher.run(DescribeSubscription(topic, "billing"))).cursor
    assert cursor is not None
    return cursor.dead_lettered


async def test_dead_letters_go_back_as_they_were(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    await let_die(dispatcher, client, b"0", b"1")

    assert (await dispatcher.run(RedriveSubscription(TOPIC, "billing"))).messages == 2
    async with client.subscribe(TOPIC, "billing") as sub:
        again = [await sub.receive(timeout=10) for _ in range(2)]
    assert sorted(m.payload for m in again) == [b"0", b"1"]
    assert [(m.key, m.attributes) for m in again] == [("k", {"a": "1"})] * 2


async def test_letters_that_went_back_do_not_go_twice(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    await let_die(dispatcher, client, b"0", b"1", b"2")

    assert (await dispatcher.run(RedriveSubscription(TOPIC, "billing", count=2))).messages == 2
    assert (await dispatcher.run(RedriveSubscription(TOPIC, "billing"))).messages == 1
    assert (await dispatcher.run(RedriveSubscription(TOPIC, "billing"))).messages == 0
    assert await lag(dispatcher) == 3


async def test_letters_of_another_subscription_stay(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    other = "/default/payments"
    await dispatcher.run(CreateTopic(other, kind="stream"))
    await let_die(dispatcher, client, b"0", dlq="/default/dead")
    await let_die(dispatcher, client, b"1", topic=other, dlq="/default/dead")

    assert (await dispatcher.run(RedriveSubscription(TOPIC, "billing"))).messages == 1
    assert (await dispatcher.run(RedriveSubscription(other, "billing"))).messages == 1


async def test_letters_of_partitions_go_back_to_theirs(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    wide = "/default/wide"
    await dispatcher.run(CreateTopic(wide, kind="stream", partitions=3))
    await dispatcher.run(CreateSubscription(wide, "billing", acks=ONE_TRY))
    for number in range(3):
        await dispatcher.run(PublishMessage(f"{wide}-part-{number}", b"%d" % number))
    async with client.subscribe(wide, "billing") as sub:
        for _ in range(3):
            await (await sub.receive(timeout=10)).nack()
        await settle()

    assert (await dispatcher.run(RedriveSubscription(wide, "billing"))).messages == 3
    for number in range(3):
        rows = (await dispatcher.run(PeekMessages(f"{wide}-part-{number}", 0))).rows
        assert [row.payload for row in rows] == [b"%d" % number] * 2


async def test_more_letters_than_fit_into_one_transaction_go_back(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    letters = f"{TOPIC}-billing-dlq"
    await dispatcher.run(CreateTopic(letters, kind="stream"))
    async with client.producer(letters) as producer:
        for number in range(1_201):
            producer.send_nowait(b"%d" % number)
        await producer.flush()

    assert (
        await dispatcher.run(RedriveSubscription(TOPIC, "billing", count=1_100))
    ).messages == 1_100
    assert (await dispatcher.run(RedriveSubscription(TOPIC, "billing"))).messages == 101
    rows = (await dispatcher.run(PeekMessages(TOPIC, 0, limit=1_000))).rows
    assert [row.payload for row in rows] == [b"%d" % number for number in range(1_000)]


async def test_a_letter_whose_topic_is_gone_stays_where_it_is(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    await let_die(dispatcher, client, b"0")
    await dispatcher.run(DeleteTopic(TOPIC))

    with pytest.raises(TopicNotFoundError):
        await dispatcher.run(RedriveSubscription(TOPIC, "billing"))
    await dispatcher.run(CreateTopic(TOPIC, kind="stream"))
    assert (await dispatcher.run(RedriveSubscription(TOPIC, "billing"))).messages == 1


async def test_a_redrive_that_is_given_up_leaves_no_consumer_behind(dispatcher: Dispatcher) -> None:
    letters = f"{TOPIC}-billing-dlq"
    await dispatcher.run(CreateTopic(letters, kind="stream"))
    await dispatcher.run(PublishMessage(letters, b"0"))
    task = asyncio.create_task(dispatcher.run(RedriveSubscription(TOPIC, "billing")))
    # As far as to ask for its place, which the journal is to have first.
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()

    assert (await dispatcher.run(DescribeSubscription(letters, "redrive"))).consumers == []
    assert (await dispatcher.run(RedriveSubscription(TOPIC, "billing"))).messages == 1


async def test_a_redrive_ends_when_the_letters_are_deleted(dispatcher: Dispatcher) -> None:
    letters = f"{TOPIC}-billing-dlq"
    await dispatcher.run(CreateTopic(letters, kind="stream"))
    await dispatcher.run(PublishMessage(letters, b"0"))
    acks = AckSettings(max_deliveries=0)
    await dispatcher.run(CreateSubscription(letters, "redrive", start=EARLIEST, acks=acks))
    # So that it has to wait for them.
    await dispatcher.run(PauseSubscription(letters, "redrive"))
    task = asyncio.create_task(dispatcher.run(RedriveSubscription(TOPIC, "billing")))
    await settle()
    await dispatcher.run(DeleteTopic(letters))

    with pytest.raises(ClosedError, match="deleted"):
        await task


async def test_letters_by_pattern_need_the_name_of_a_topic(dispatcher: Dispatcher) -> None:
    with pytest.raises(BadRequestError, match="wildcards"):
        await dispatcher.run(RedriveSubscription("/default/*", "billing"))


async def test_without_dead_letters_nothing_goes_back(dispatcher: Dispatcher) -> None:
    await dispatcher.run(CreateSubscription(TOPIC, "billing"))

    assert (await dispatcher.run(RedriveSubscription(TOPIC, "billing"))).messages == 0


async def test_a_letter_that_names_no_topic_stays_where_it_is(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    letters = f"{TOPIC}-billing-dlq"
    await dispatcher.run(CreateTopic(letters, kind="stream"))
    forged = PublishMessage(letters, b"forged", attributes={"x-original-topic": "no name"})
    await dispatcher.run(forged)

    assert (await dispatcher.run(RedriveSubscription(TOPIC, "billing"))).messages == 0


async def test_a_redrive_leaves_no_consumer_behind(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    await let_die(dispatcher, client, b"0")
    await dispatcher.run(RedriveSubscription(TOPIC, "billing"))

    assert (
        await dispatcher.run(DescribeSubscription(f"{TOPIC}-billing-dlq", "redrive"))
    ).consumers == []


@pytest.mark.parametrize("count", [0, -1])
async def test_a_redrive_of_nothing_is_a_mistake(dispatcher: Dispatcher, count: int) -> None:
    with pytest.raises(BadRequestError):
        await dispatcher.run(RedriveSubscription(TOPIC, "billing", count=count))
