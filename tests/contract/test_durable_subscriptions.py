"""Durable subscriptions: where they start, what they survive, how they are moved and paused."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from tests.contract.harness import Harness
from tests.contract.test_reconnecting import Events

import ister
from ister.base.errors import (
    BadRequestError,
    ClosedError,
    RequestTimeoutError,
    SnapshotNotFoundError,
    SubscriptionNotFoundError,
)

TOPIC = "/default/ledger"

# Long enough that a message which is to come has come.
SOON_S = 0.2


@pytest.fixture(autouse=True)
async def stream(client: ister.Client) -> None:
    """A stream to subscribe to."""
    await client.create_topic(TOPIC, kind="stream")


async def publish(client: ister.Client, *payloads: bytes) -> None:
    """Send messages one after the other."""
    async with client.producer(TOPIC) as producer:
        for payload in payloads:
            await producer.send(payload)


async def received(sub: ister.Subscription, count: int) -> list[bytes]:
    """Return the payloads of the next messages."""
    return [(await sub.receive(timeout=10.0)).payload for _ in range(count)]


async def nothing_comes(sub: ister.Subscription) -> bool:
    """Whether nothing is delivered for a while."""
    return await sub.fetch(1, timeout=SOON_S) == []


# Where they start


async def test_a_subscription_starts_with_what_comes_after_it(client: ister.Client) -> None:
    await publish(client, b"before")
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish(client, b"after")

        assert await received(sub, 1) == [b"after"]


@pytest.mark.parametrize(
    ("start", "payloads"),
    [("earliest", [b"0", b"1", b"2"]), (0, [b"0", b"1", b"2"]), (2, [b"2"])],
)
async def test_a_subscription_starts_where_it_is_told(
    client: ister.Client, start: str | int, payloads: list[bytes]
) -> None:
    await publish(client, b"0", b"1", b"2")
    async with client.subscribe(TOPIC, "billing", start=start) as sub:
        assert await received(sub, len(payloads)) == payloads


async def test_a_subscription_starts_at_a_time(client: ister.Client) -> None:
    await publish(client, b"0")
    # Into the next millisecond.
    await asyncio.sleep(0.002)
    now = datetime.now(UTC)
    await publish(client, b"1")

    async with client.subscribe(TOPIC, "billing", start=now) as sub:
        assert await received(sub, 1) == [b"1"]
    async with client.subscribe(TOPIC, "other", start=now - timedelta(hours=1)) as sub:
        assert await received(sub, 2) == [b"0", b"1"]


@pytest.mark.parametrize("start", ["first", -1, datetime(2024, 1, 1)])  # noqa: DTZ001
async def test_a_start_that_is_no_place_is_refused(
    client: ister.Client, start: str | int | datetime
) -> None:
    with pytest.raises(BadRequestError):
        client.subscribe(TOPIC, "billing", start=start)


async def test_the_start_counts_once(client: ister.Client) -> None:
    await publish(client, b"0", b"1")
    async with client.subscribe(TOPIC, "billing", start="earliest") as sub:
        await (await sub.receive()).ack()

    async with client.subscribe(TOPIC, "billing", start="earliest") as sub:
        assert await received(sub, 1) == [b"1"]


# What they survive


async def test_messages_wait_for_a_subscription_without_consumers(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing"):
        pass
    await publish(client, b"0", b"1")

    async with client.subscribe(TOPIC, "billing") as sub:
        assert await received(sub, 2) == [b"0", b"1"]


async def test_a_restart_keeps_messages_and_positions(
    harness: Harness, client: ister.Client
) -> None:
    events = Events()
    async with client.subscribe(TOPIC, "billing", on_event=events.tell) as sub:
        await publish(client, b"0", b"1", b"2")
        await (await sub.receive()).ack(confirm=True)
        await harness.restart()
        await events.next()
        after_restart = await received(sub, 2)
        await publish(client, b"3")

        assert after_restart == [b"1", b"2"]
        assert await received(sub, 1) == [b"3"]


async def test_what_was_taken_before_a_restart_comes_again(
    harness: Harness, client: ister.Client
) -> None:
    events = Events()
    async with client.subscribe(TOPIC, "billing", on_event=events.tell) as sub:
        await publish(client, b"0", b"1")
        before = await sub.receive()
        await harness.restart()
        await events.next()

        assert before.payload == b"0"
        assert await received(sub, 2) == [b"0", b"1"]
        assert await nothing_comes(sub)


async def test_a_cut_connection_loses_and_repeats_nothing(
    harness: Harness, client: ister.Client
) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish(client, *(b"%d" % n for n in range(10)))
        first = [await sub.receive() for _ in range(5)]
        await harness.disconnect_all()
        for msg in first:
            await msg.ack(confirm=True)
        rest = [await sub.receive(timeout=10.0) for _ in range(5)]

        assert [m.payload for m in [*first, *rest]] == [b"%d" % n for n in range(10)]
        assert {m.attempt for m in rest} == {1}
        assert await nothing_comes(sub)


# Sharing


async def test_shared_consumers_divide_messages(client: ister.Client) -> None:
    async with (
        client.subscribe(TOPIC, "billing", type="shared", buffer_count=20) as first,
        client.subscribe(TOPIC, "billing", type="shared", buffer_count=20) as second,
    ):
        async with client.producer(TOPIC) as producer:
            await producer.send_batch([b"%02d" % n for n in range(20)])
        seen: list[bytes] = []
        for sub in (first, second):
            for batch in await sub.fetch_batches(timeout=10.0):
                seen += batch.payloads
                await sub.ack_batch(batch, confirm=True)

        assert sorted(seen) == [b"%02d" % n for n in range(20)]


# Moving


@pytest.mark.parametrize(
    ("to", "payloads"), [("earliest", [b"0", b"1", b"2"]), (1, [b"1", b"2"]), ("latest", [])]
)
async def test_a_seek_goes_on_elsewhere(
    client: ister.Client, to: str | int, payloads: list[bytes]
) -> None:
    async with client.subscribe(TOPIC, "billing", start="earliest") as sub:
        await publish(client, b"0", b"1", b"2")
        await (await sub.receive()).ack()
        await sub.seek(to)
        await publish(client, b"new")

        assert await received(sub, len(payloads) + 1) == [*payloads, b"new"]
        assert await nothing_comes(sub)


async def test_a_seek_to_a_time_goes_on_there(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish(client, b"0")
        await asyncio.sleep(0.002)
        now = datetime.now(UTC)
        await publish(client, b"1")
        for _ in range(2):
            await (await sub.receive()).ack()
        await sub.seek(now)

        assert await received(sub, 1) == [b"1"]


async def test_acks_of_before_a_seek_are_too_late(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish(client, b"0", b"1")
        old = await sub.receive()
        await sub.seek("earliest")
        await old.ack()
        # After the answer to this the acknowledgement is known to have been dealt with.
        await client.broker()

        assert sub.refused == 1
        assert await received(sub, 2) == [b"0", b"1"]


async def test_a_saved_cursor_is_a_place_to_seek_to(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish(client, b"0", b"1", b"2")
        await (await sub.receive()).ack()
        await sub.save_cursor("before-release")
        for _ in range(2):
            await (await sub.receive()).ack()
        await sub.seek(snapshot="before-release")
        again = await received(sub, 2)
        await sub.drop_cursor("before-release")

        assert again == [b"1", b"2"]
        with pytest.raises(SnapshotNotFoundError):
            await sub.seek(snapshot="before-release")


async def test_a_seek_is_to_a_place_or_a_snapshot(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        with pytest.raises(BadRequestError):
            await sub.seek()
        with pytest.raises(BadRequestError):
            await sub.seek("earliest", snapshot="x")
        with pytest.raises(BadRequestError):
            await sub.seek("elsewhere")


async def test_a_subscription_without_consumers_can_be_moved(client: ister.Client) -> None:
    await publish(client, b"0", b"1")
    async with client.subscribe(TOPIC, "billing", start="latest"):
        pass
    await client.seek(TOPIC, "billing", "earliest")

    async with client.subscribe(TOPIC, "billing") as sub:
        assert await received(sub, 2) == [b"0", b"1"]


# Pulling and pausing


async def test_a_pull_subscription_gets_what_it_asks_for(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing", pull=True) as sub:
        await publish(client, *(b"%d" % n for n in range(6)))
        first = await sub.fetch(2, timeout=10.0)
        [report] = await client.subscriptions(TOPIC)
        assert report.cursor is not None
        assert report.cursor.in_flight == 2
        one = await sub.receive(timeout=10.0)

        assert [m.payload for m in first] == [b"0", b"1"]
        assert one.payload == b"2"
        seen = []
        async for msg in sub:
            seen.append(msg.payload)
            if msg.payload == b"5":
                break
        assert seen == [b"3", b"4", b"5"]
        assert await sub.fetch(3, timeout=SOON_S) == []


async def test_pulled_batches_are_at_most_a_buffer(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing", pull=True, buffer_count=4) as sub:
        async with client.producer(TOPIC) as producer:
            await producer.send_batch([b"%d" % n for n in range(6)])
        batches = await sub.fetch_batches(timeout=10.0)

        assert [p for batch in batches for p in batch.payloads] == [b"0", b"1", b"2", b"3"]


async def test_a_paused_consumer_is_sent_no_more_than_a_buffer(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing", buffer_count=2) as sub:
        await sub.pause()
        await publish(client, *(b"%d" % n for n in range(4)))
        before = await received(sub, 2)
        assert sub.paused
        assert await nothing_comes(sub)
        await sub.resume()

        assert before == [b"0", b"1"]
        assert await received(sub, 2) == [b"2", b"3"]


async def test_a_paused_subscription_rests(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await client.pause_subscription(TOPIC, "billing")
        await publish(client, b"0")
        assert await nothing_comes(sub)
        await client.resume_subscription(TOPIC, "billing")

        assert await received(sub, 1) == [b"0"]


# Ends


async def test_a_deleted_subscription_ends_its_consumers(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await client.delete_subscription(TOPIC, "billing")

        with pytest.raises(ClosedError):
            await sub.receive()
    assert await client.subscriptions(TOPIC) == []
    with pytest.raises(SubscriptionNotFoundError):
        await client.delete_subscription(TOPIC, "billing")


async def test_purged_messages_are_not_delivered(client: ister.Client) -> None:
    await publish(client, b"0", b"1", b"2")
    dropped = await client.purge(TOPIC, before=2)

    assert dropped == 2
    async with client.subscribe(TOPIC, "billing", start="earliest") as sub:
        assert await received(sub, 1) == [b"2"]
        assert await client.purge(TOPIC) == 1
        with pytest.raises(RequestTimeoutError):
            await sub.receive(timeout=SOON_S)


async def test_settings_of_a_live_topic_are_refused(client: ister.Client) -> None:
    with pytest.raises(BadRequestError):
        await client.create_topic("/default/live", max_age=5.0)


async def test_a_message_that_keeps_failing_is_dropped_if_that_is_wanted(
    client: ister.Client,
) -> None:
    await client.create_topic("/default/poison", kind="stream")
    async with (
        client.producer("/default/poison") as producer,
        client.subscribe("/default/poison", "s", max_deliveries=1, poison="drop") as sub,
    ):
        await producer.send_batch([b"bad", b"good"])
        bad, good = [await sub.receive(timeout=10.0) for _ in range(2)]
        await bad.nack(delay=0.0)
        await good.ack(confirm=True)
        [report] = await client.subscriptions("/default/poison")

        assert (bad.payload, good.payload) == (b"bad", b"good")
        assert report.cursor is not None
        assert report.cursor.settings.poison == "drop"
        assert report.cursor.lag == 0
