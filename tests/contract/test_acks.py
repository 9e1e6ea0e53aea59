"""Acknowledgements on streams: what comes again, when, how often, and what is too late."""

import asyncio
from time import monotonic

import pytest
from tests.contract.harness import Harness

import ister
from ister.base.errors import (
    BadRequestError,
    ClosedError,
    LeaseLostError,
    RequestTimeoutError,
    SubscriptionNotFoundError,
    WrongKindError,
)

TOPIC = "/default/ledger"
LETTERS = "/default/ledger-billing-dlq"

# Long enough that a message which is to come has come.
SOON_S = 0.2
# A busy machine makes a delay longer, never shorter, but for what two clocks round away.
DELAY_S = 0.2
ROUNDING_S = 0.01
# The shortest there is, in seconds.
ACK_TIMEOUT_S = 1.0


@pytest.fixture(autouse=True)
async def stream(client: ister.Client) -> None:
    """A stream to subscribe to."""
    await client.create_topic(TOPIC, kind="stream")


async def publish(client: ister.Client, *payloads: bytes) -> None:
    """Send messages one after the other, each in a batch of its own."""
    async with client.producer(TOPIC) as producer:
        for payload in payloads:
            await producer.send(payload)


async def publish_batch(client: ister.Client, count: int) -> None:
    """Send messages in one batch: their payloads are their numbers."""
    async with client.producer(TOPIC) as producer:
        await producer.send_batch([b"%d" % n for n in range(count)])


async def nothing_comes(sub: ister.Subscription, timeout: float = SOON_S) -> bool:
    """Whether nothing is delivered for a while."""
    return await sub.fetch(1, timeout=timeout) == []


async def buried(client: ister.Client, count: int) -> None:
    """Return once so many dead letters are stored."""
    async with asyncio.timeout(10.0):
        while sum(row.next_offset for row in await client.topics(LETTERS)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_what_is_acknowledged_does_not_come_again(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish_batch(client, 4)
        for msg in [await sub.receive() for _ in range(4)]:
            if msg.payload != b"2":
                await msg.ack()

    async with client.subscribe(TOPIC, "billing") as sub:
        msg = await sub.receive()
        assert (msg.payload, msg.offset) == (b"2", 2)
        assert await nothing_comes(sub)


async def test_closing_counts_an_attempt_for_what_was_received_and_not_acknowledged(
    client: ister.Client,
) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish(client, b"received", b"waiting")
        assert (await sub.receive()).attempt == 1

    async with client.subscribe(TOPIC, "billing") as sub:
        found = [await sub.receive() for _ in range(2)]

    assert {msg.payload: msg.attempt for msg in found} == {b"received": 2, b"waiting": 1}


async def test_what_a_closed_consumer_had_not_taken_goes_to_the_others(
    client: ister.Client,
) -> None:
    async with client.subscribe(TOPIC, "billing", type="shared") as first:
        await publish(client, b"0", b"1", b"2")
        await (await first.receive()).ack()
        await first.close()

        with pytest.raises(ClosedError):
            await first.receive()
    async with client.subscribe(TOPIC, "billing", type="shared") as second:
        assert sorted([(await second.receive()).payload for _ in range(2)]) == [b"1", b"2"]


async def test_a_closed_client_gives_back_what_it_had(harness: Harness) -> None:
    async with harness.connect() as other:
        async with harness.connect() as client:
            sub = client.subscribe(TOPIC, "billing", type="shared")
            await sub.open()
            await publish(client, b"0", b"1")
            await (await sub.receive()).ack()
        async with other.subscribe(TOPIC, "billing", type="shared") as second:
            msg = await second.receive()

            assert (msg.payload, msg.attempt) == (b"1", 1)


async def test_a_confirmed_ack_survives_a_restart(harness: Harness, client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish(client, b"0", b"1")
        await (await sub.receive()).ack(confirm=True)
        await harness.restart()

        msg = await sub.receive()
        assert (msg.payload, msg.attempt) == (b"1", 1)


async def test_a_nacked_message_comes_again_and_counts_its_attempts(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish(client, b"x")
        attempts = []
        for _ in range(3):
            msg = await sub.receive()
            attempts.append(msg.attempt)
            await msg.nack()

        assert attempts == [1, 2, 3]


async def test_a_nacked_message_waits_for_its_delay(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish(client, b"x")
        msg = await sub.receive()
        nacked = monotonic()
        await msg.nack(delay=DELAY_S)

        assert (await sub.receive(timeout=10.0)).attempt == 2
        assert monotonic() - nacked > DELAY_S - ROUNDING_S


async def test_a_backoff_delays_what_is_nacked_without_a_delay(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing", backoff=[DELAY_S]) as sub:
        await publish(client, b"x")
        msg = await sub.receive()
        nacked = monotonic()
        await msg.nack()

        assert (await sub.receive(timeout=10.0)).attempt == 2
        assert monotonic() - nacked > DELAY_S - ROUNDING_S


async def test_a_whole_batch_is_acknowledged_at_once(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish_batch(client, 5)
        [batch] = await sub.fetch_batches()
        await sub.ack_batch(batch)
        await publish(client, b"next")
        [batch] = await sub.fetch_batches()
        await sub.ack_batch(batch, confirm=True)

    async with client.subscribe(TOPIC, "billing") as sub:
        assert await nothing_comes(sub)


async def test_a_part_of_a_batch_is_refused(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish_batch(client, 5)
        [batch] = await sub.fetch_batches()

        with pytest.raises(BadRequestError):
            await sub.ack_batch(batch.slice(0, 2))


@pytest.mark.parametrize("confirm", [False, True])
async def test_ack_through_covers_everything_before(client: ister.Client, confirm: bool) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish(client, b"0", b"1", b"2", b"3")
        messages = [await sub.receive() for _ in range(4)]
        await sub.ack_through(messages[2], confirm=confirm)

    async with client.subscribe(TOPIC, "billing") as sub:
        assert (await sub.receive()).payload == b"3"


async def test_ack_through_is_not_for_shared_subscriptions(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing", type="shared") as sub:
        await publish(client, b"0")

        with pytest.raises(BadRequestError):
            await sub.ack_through(await sub.receive())


async def test_a_live_topic_has_nothing_to_acknowledge(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/live", "billing") as sub,
        client.producer("/default/live") as producer,
    ):
        await producer.send(b"x")
        msg = await sub.receive()
        await msg.ack()
        await msg.ack(confirm=True)

        assert msg.attempt == 1
        with pytest.raises(WrongKindError):
            await msg.nack()
        with pytest.raises(WrongKindError):
            await msg.extend(5.0)
        with pytest.raises(WrongKindError):
            await sub.ack_through(msg)


async def test_a_message_that_is_not_renewed_comes_again_and_its_ack_is_too_late(
    client: ister.Client,
) -> None:
    async with client.subscribe(
        TOPIC, "billing", ack_timeout=ACK_TIMEOUT_S, max_renewal=0.0
    ) as sub:
        # In one batch: their leases end together.
        await publish_batch(client, 2)
        late, later = await sub.receive(), await sub.receive()
        again = await sub.receive(timeout=10.0)
        # At once: the rest may take longer than this lease would last on a busy machine.
        await again.extend(60.0)

        assert (again.payload, again.attempt) == (b"0", 2)
        with pytest.raises(LeaseLostError) as caught:
            await late.ack(confirm=True)
        assert (caught.value.topic, caught.value.offset) == (TOPIC, 0)
        with pytest.raises(LeaseLostError):
            await later.extend(5.0)
        await again.ack(confirm=True)


async def test_the_client_renews_what_the_application_works_on(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing", ack_timeout=ACK_TIMEOUT_S) as sub:
        await publish(client, b"x")
        msg = await sub.receive()

        with pytest.raises(RequestTimeoutError):
            await sub.receive(timeout=2 * ACK_TIMEOUT_S)
        await msg.ack(confirm=True)


async def test_an_extended_message_does_not_come_again(client: ister.Client) -> None:
    async with client.subscribe(
        TOPIC, "billing", ack_timeout=ACK_TIMEOUT_S, max_renewal=0.0
    ) as sub:
        await publish(client, b"x")
        msg = await sub.receive()
        await msg.extend(60.0)

        assert await nothing_comes(sub, 1.5 * ACK_TIMEOUT_S)
        await msg.ack(confirm=True)


@pytest.mark.parametrize("seconds", [-1.0, 13 * 3600.0])
async def test_times_have_bounds(client: ister.Client, seconds: float) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish(client, b"x")
        msg = await sub.receive()

        with pytest.raises(BadRequestError):
            await msg.nack(delay=seconds)
        with pytest.raises(BadRequestError):
            await msg.extend(seconds)
        await msg.ack(confirm=True)


async def test_acks_before_a_question_count_for_it(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish(client, b"0", b"1")
        await (await sub.receive()).ack()
        [report] = await client.subscriptions(TOPIC)

        assert report.cursor is not None
        assert report.cursor.lag == 1


async def test_dead_letters_keep_what_they_were_and_are_moved_back(client: ister.Client) -> None:
    async with (
        client.subscribe(TOPIC, "billing", max_deliveries=2) as sub,
        client.producer(TOPIC, "shop") as producer,
    ):
        for n in range(3):
            await producer.send(b"%d" % n, key=f"k{n}", attributes={"x-mine": "1"}, id=f"order-{n}")
        for _ in range(6):
            await (await sub.receive(timeout=10.0)).nack()
        await buried(client, 3)
        assert await nothing_comes(sub)
        async with client.subscribe(LETTERS, "look", start="earliest") as letters:
            dead = [await letters.receive(timeout=10.0) for _ in range(3)]

        assert {m.payload: m.key for m in dead} == {b"0": "k0", b"1": "k1", b"2": "k2"}
        assert {m.attributes["x-original-topic"] for m in dead} == {TOPIC}
        assert {m.attributes["x-original-subscription"] for m in dead} == {"billing"}
        assert await client.redrive(TOPIC, "billing", count=1) == 1
        assert await client.redrive(TOPIC, "billing") == 2
        assert await client.redrive(TOPIC, "billing") == 0
        back = [await sub.receive(timeout=10.0) for _ in range(3)]
        assert {m.payload: m.key for m in back} == {b"0": "k0", b"1": "k1", b"2": "k2"}
        assert [(m.attempt, m.attributes) for m in back] == [(1, {"x-mine": "1"})] * 3


async def letter_of(client: ister.Client) -> tuple[str, str]:
    """Return the attempts and the reason of the one dead letter."""
    await buried(client, 1)
    async with client.subscribe(LETTERS, "look", start="earliest") as letters:
        letter = await letters.receive(timeout=10.0)
    return letter.attributes["x-delivery-attempt"], letter.attributes["x-failure-reason"]


async def test_a_dead_letter_has_the_reason_of_the_last_nack(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing", max_deliveries=2) as sub:
        await publish(client, b"x")
        for reason in ("busy", "no such customer"):
            await (await sub.receive(timeout=10.0)).nack(reason=reason)

        assert await letter_of(client) == ("2", "no such customer")


@pytest.mark.parametrize("max_deliveries", [5, 0])
async def test_a_rejected_message_is_a_dead_letter_at_once(
    client: ister.Client, max_deliveries: int
) -> None:
    async with client.subscribe(TOPIC, "billing", max_deliveries=max_deliveries) as sub:
        await publish(client, b"bad", b"good")
        await (await sub.receive(timeout=10.0)).reject("no such customer")
        await (await sub.receive(timeout=10.0)).ack(confirm=True)

        assert await letter_of(client) == ("1", "no such customer")
        assert await nothing_comes(sub)


async def test_a_message_can_be_rejected_without_a_reason(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish(client, b"bad")
        await (await sub.receive(timeout=10.0)).reject()

        assert await letter_of(client) == ("1", "rejected by its consumer")


async def test_a_dead_letter_has_the_error_that_ended_the_block(client: ister.Client) -> None:
    async def work() -> None:
        async with client.subscribe(TOPIC, "billing", max_deliveries=1, start="earliest") as sub:
            await sub.receive(timeout=10.0)
            raise ValueError("sku 7 is unknown")

    await publish(client, b"bad")
    with pytest.raises(ValueError, match="sku"):
        await work()

    async with client.subscribe(TOPIC, "billing", max_deliveries=1):
        assert await letter_of(client) == ("1", "ValueError: sku 7 is unknown")


async def test_a_very_long_reason_is_cut(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing") as sub:
        await publish(client, b"bad")
        await (await sub.receive(timeout=10.0)).reject("é" * 200_000)

        assert await letter_of(client) == ("1", "é" * 512)


async def test_dead_letters_of_a_pattern_are_moved_back_by_topic(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/>", "billing", type="shared", max_deliveries=1) as sub,
        client.producer(TOPIC) as producer,
    ):
        await producer.send(b"x")
        await (await sub.receive(timeout=10.0)).nack()
        await buried(client, 1)
        with pytest.raises(BadRequestError, match="topic by topic"):
            await client.redrive("/default/>", "billing")
        assert await client.redrive(TOPIC, "billing") == 1


async def test_without_dead_letters_there_is_nothing_to_move(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing"):
        assert await client.redrive(TOPIC, "billing") == 0

    assert [row.topic for row in await client.topics()] == [TOPIC]


async def test_redrive_of_a_wrong_name_is_refused(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "billing"):
        assert await client.redrive(TOPIC, "billing") == 0
        for topic, name in ((TOPIC, "biling"), ("/default/leger", "billing")):
            with pytest.raises(SubscriptionNotFoundError):
                await client.redrive(topic, name)
