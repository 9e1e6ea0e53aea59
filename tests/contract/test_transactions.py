"""Transactions: messages to several streams, and acknowledgements, all or nothing."""

import asyncio
from datetime import UTC, datetime

import pytest
from tests.contract.harness import Harness

import ister
from ister.base.errors import (
    BadRequestError,
    LeaseLostError,
    LimitReachedError,
    MessageTooLargeError,
    NotFoundError,
    OffsetMismatchError,
    TransactionError,
    WrongKindError,
)
from ister.base.limits import KIB, TRANSACTION_BYTES_MAX

IN, OUT, OTHER, PARTS = "/default/in", "/default/out", "/default/other", "/default/parts"


@pytest.fixture
async def streams(client: ister.Client) -> ister.Client:
    """A client of a broker with streams, of which one has messages and one partitions."""
    for topic in (IN, OUT, OTHER):
        await client.create_topic(topic, kind="stream")
    await client.create_topic(PARTS, kind="stream", partitions=3)
    async with client.producer(IN) as producer:
        await producer.send_batch([b"0", b"1", b"2", b"3"])
    return client


async def held(client: ister.Client, topic: str) -> list[bytes]:
    """Return what a topic holds."""
    [row] = await client.topics(topic)
    async with client.subscribe(topic, "check", start="earliest") as sub:
        return [(await sub.receive(timeout=10.0)).payload for _ in range(row.next_offset)]


async def lag(client: ister.Client, subscription: str) -> int:
    """Return how many messages a subscription has not acknowledged."""
    [row] = [s for s in await client.subscriptions(IN) if s.subscription == subscription]
    assert row.cursor is not None
    return row.cursor.lag


async def test_everything_in_a_block_happens(streams: ister.Client) -> None:
    client = streams
    async with client.subscribe(IN, "work", start="earliest") as sub:
        messages = [await sub.receive() for _ in range(3)]
        async with client.transaction() as tx:
            for msg in messages:
                tx.send(OUT, b"out " + msg.payload, key="k", attributes={"a": "1"}, id=None)
                tx.ack(msg)
            tx.send(OTHER, b"done")

        assert tx.results == [
            *(ister.MessageId(OUT, n) for n in range(3)),
            ister.MessageId(OTHER, 0),
        ]
        assert await lag(client, "work") == 1
    assert await held(client, OUT) == [b"out 0", b"out 1", b"out 2"]
    assert await held(client, OTHER) == [b"done"]


async def test_messages_of_a_transaction_arrive_with_everything(streams: ister.Client) -> None:
    client = streams
    async with client.subscribe(OUT, "read", start="earliest") as sub:
        async with client.transaction() as tx:
            tx.send(OUT, b"x", key="k", attributes={"a": "1"}, id="i", ttl=60.0)
        msg = await sub.receive(timeout=10.0)

        assert (msg.payload, msg.key, msg.id, msg.offset) == (b"x", "k", "i", 0)
        assert msg.attributes == {"a": "1", "ister-ttl-ms": "60000"}


async def test_an_exception_leaves_nothing_behind(streams: ister.Client) -> None:
    client = streams
    async with client.subscribe(IN, "work", start="earliest") as sub:
        msg = await sub.receive()
        tx = client.transaction()
        with pytest.raises(ZeroDivisionError):
            await _break(tx, msg)

        with pytest.raises(BadRequestError):
            tx.send(OUT, b"late")
        assert await lag(client, "work") == 4
    assert await held(client, OUT) == []


async def _break(tx: "ister.client.Transaction", msg: ister.Message) -> None:
    async with tx:
        tx.send(OUT, b"x")
        tx.ack(msg)
        raise ZeroDivisionError


async def test_acknowledged_messages_do_not_come_again(
    harness: Harness, streams: ister.Client
) -> None:
    client = streams
    async with client.subscribe(IN, "work", start="earliest") as sub:
        messages = [await sub.receive() for _ in range(4)]
        async with client.transaction() as tx:
            tx.ack(messages[0])
            tx.ack(messages[2])
    async with harness.connect() as other, other.subscribe(IN, "work") as sub:
        again = [(await sub.receive(timeout=10.0)).payload for _ in range(2)]

        assert again == [b"1", b"3"]


async def test_a_lease_that_is_lost_undoes_all_of_it(
    harness: Harness, streams: ister.Client
) -> None:
    client = streams
    async with client.subscribe(IN, "work", start="earliest") as sub:
        first, second = await sub.receive(), await sub.receive()
        # Behind the back of this consumer.
        async with harness.connect() as other:
            await other.seek(IN, "work", "earliest")
        tx = client.transaction()
        tx.send(OUT, b"zombie")
        with pytest.raises((LeaseLostError, TransactionError)):
            await _commit(tx, first, second)

        assert await lag(client, "work") == 4
    assert await held(client, OUT) == []


async def _commit(tx: "ister.client.Transaction", *messages: ister.Message) -> None:
    for msg in messages:
        tx.ack(msg)
    await tx.commit()


async def test_messages_of_a_partitioned_topic_are_routed(streams: ister.Client) -> None:
    client = streams
    async with client.producer(PARTS) as producer:
        by_producer = [(await producer.send(b"", key=f"key-{n}")).partition for n in range(12)]
    async with client.transaction() as tx:
        for number in range(12):
            tx.send(PARTS, b"", key=f"key-{number}")

    assert [mid.partition for mid in tx.results] == by_producer
    assert len(set(by_producer)) == 3


async def test_a_topic_that_is_missing_or_live_undoes_all_of_it(streams: ister.Client) -> None:
    client = streams
    await client.create_topic("/default/live")
    for topic in ("/default/missing", "/default/live"):
        tx = client.transaction()
        tx.send(OUT, b"x")
        tx.send(topic, b"x")
        with pytest.raises((NotFoundError, WrongKindError, TransactionError)):
            await tx.commit()

    assert await held(client, OUT) == []


async def test_a_large_transaction_is_one(streams: ister.Client) -> None:
    count, payload = 3_000, bytes(2 * KIB)
    async with streams.transaction() as tx:
        for _ in range(count):
            tx.send(OUT, payload)

    assert [mid.offset for mid in tx.results] == list(range(count))


async def test_a_transaction_has_a_limit(streams: ister.Client) -> None:
    tx = streams.transaction()
    payload = bytes(1000 * KIB)
    for _ in range(TRANSACTION_BYTES_MAX // len(payload)):
        tx.send(OUT, payload)

    with pytest.raises(LimitReachedError):
        tx.send(OUT, payload)
    with pytest.raises(MessageTooLargeError):
        tx.send(OUT, bytes(1025 * KIB))
    tx.abandon()


async def test_transactions_at_the_same_time_are_all_carried_out(streams: ister.Client) -> None:
    client = streams

    async def one(number: int) -> list[ister.MessageId]:
        async with client.transaction() as tx:
            tx.send(OUT, b"%d" % number)
            tx.send(OTHER, b"%d" % number)
        return list(tx.results)

    results = await asyncio.gather(*map(one, range(20)))

    assert sorted(out.offset for out, _ in results) == list(range(20))
    assert [out.offset for out, _ in results] == [other.offset for _, other in results]
    assert sorted(await held(client, OUT)) == sorted(await held(client, OTHER))


async def test_a_transaction_outlives_its_connection_and_happens_once(
    harness: Harness, streams: ister.Client
) -> None:
    client = streams
    for number in range(10):
        tx = client.transaction()
        tx.send(OUT, b"%d" % number)
        committing = asyncio.ensure_future(tx.commit())
        for _ in range(number):
            await asyncio.sleep(0)
        await harness.disconnect_all()
        await committing

    assert await held(client, OUT) == [b"%d" % n for n in range(10)]


async def test_a_transaction_with_acknowledgements_outlives_its_connection(
    harness: Harness, streams: ister.Client
) -> None:
    client = streams
    async with client.subscribe(IN, "work", start="earliest") as sub:
        for number in range(4):
            msg = await sub.receive(timeout=10.0)
            tx = client.transaction()
            tx.send(OUT, msg.payload)
            tx.ack(msg)
            committing = asyncio.ensure_future(tx.commit())
            for _ in range(number * 3):
                await asyncio.sleep(0)
            await harness.disconnect_all()
            await committing

        assert await lag(client, "work") == 0
    assert await held(client, OUT) == [b"0", b"1", b"2", b"3"]


async def test_transactions_are_there_after_a_restart(
    harness: Harness, streams: ister.Client
) -> None:
    client = streams
    async with client.subscribe(IN, "work", start="earliest") as sub:
        msg = await sub.receive()
        async with client.transaction() as tx:
            tx.send(OUT, b"x")
            tx.send(PARTS, b"y", key="k")
            tx.ack(msg)
    await harness.restart()

    assert await held(client, OUT) == [b"x"]
    assert await lag(client, "work") == 3
    async with client.subscribe(IN, "work") as sub:
        assert (await sub.receive(timeout=10.0)).payload == b"1"


async def test_a_message_known_by_its_id_is_not_stored_again(client: ister.Client) -> None:
    await client.create_topic("/default/dedup", kind="stream")
    async with client.producer("/default/dedup") as producer:
        await producer.send(b"one", id="one")
    async with client.transaction() as tx:
        tx.send("/default/dedup", b"one", id="one")
        tx.send("/default/dedup", b"two", id="two")

    assert [(one.offset, one.duplicate) for one in tx.results] == [(0, True), (1, False)]


async def test_an_expected_offset_of_a_transaction_is_met_or_nothing_happens(
    streams: ister.Client,
) -> None:
    client = streams
    async with client.transaction() as tx:
        tx.send(OUT, b"0", expected_offset=0)
        tx.send(OUT, b"1", expected_offset=1)
    late = client.transaction()
    late.send(OTHER, b"lost")
    late.send(OUT, b"lost", expected_offset=1)
    with pytest.raises(OffsetMismatchError) as caught:
        await late.commit()

    assert [mid.offset for mid in tx.results] == [0, 1]
    error = caught.value
    assert (error.topic, error.expected_offset, error.next_offset) == (OUT, 1, 2)
    assert (await held(client, OUT), await held(client, OTHER)) == ([b"0", b"1"], [])


async def test_a_transaction_expects_offsets_of_streams_without_partitions(
    streams: ister.Client,
) -> None:
    with pytest.raises(BadRequestError, match="by its own name"):
        async with streams.transaction() as tx:
            tx.send(PARTS, b"x", expected_offset=0)
    with pytest.raises(BadRequestError, match="0 or more"):
        async with streams.transaction() as tx:
            tx.send(OUT, b"x", expected_offset=-1)
    async with streams.transaction() as tx:
        tx.send(f"{PARTS}-part-1", b"x", expected_offset=0)

    assert [mid.partition for mid in tx.results] == [1]


async def test_what_is_kept_in_another_store_is_refused_with_what_to_do_instead(
    streams: ister.Client,
) -> None:
    client = streams
    await client.create_topic("/default/reminders", kind="timeline")
    tx = client.transaction()
    with pytest.raises(BadRequestError, match="send it after the commit, with an `id`"):
        tx.send(OUT, b"later", deliver_after=60.0)
    with pytest.raises(BadRequestError, match="send it after the commit"):
        tx.send(OUT, b"later", deliver_at=datetime(2999, 1, 1, tzinfo=UTC))
    tx.send(OUT, b"now")
    tx.send("/default/reminders", b"due")
    with pytest.raises(WrongKindError, match=r"client\.timeline"):
        await tx.commit()

    assert await held(client, OUT) == []
