"""`expected_key_offset`: optimistic concurrency on each key of a stream."""

import asyncio

import pytest
from tests.contract.harness import Harness

import ister
from ister.base.errors import (
    BadRequestError,
    KeyOffsetMismatchError,
    TopicExistsError,
    WrongKindError,
)
from ister.codec import encode

TOPIC, PARTS = "/default/accounts", "/default/parts"


@pytest.fixture
async def accounts(client: ister.Client) -> ister.Client:
    """A client of a broker with streams that keep the offsets of their keys."""
    await client.create_topic(TOPIC, kind="stream", key_offsets=True)
    await client.create_topic(PARTS, kind="stream", key_offsets=True, partitions=3)
    return client


async def test_a_message_is_stored_if_its_key_is_where_it_was_read(accounts: ister.Client) -> None:
    opened = await accounts.publish(TOPIC, b"opened", key="a", expected_key_offset=-1)
    async with accounts.producer(TOPIC) as producer:
        await producer.send(b"other", key="b")
        moved = await producer.send(b"+5", key="a", expected_key_offset=opened.offset)
        with pytest.raises(KeyOffsetMismatchError) as caught:
            await producer.send(b"+7", key="a", expected_key_offset=opened.offset)

    error = caught.value
    assert (error.topic, error.key) == (TOPIC, "a")
    assert (error.expected_key_offset, error.key_offset) == (opened.offset, moved.offset)
    [row] = await accounts.topics(TOPIC)
    assert row.next_offset == 3


async def test_keys_are_where_they_were_after_a_restart(
    harness: Harness, accounts: ister.Client
) -> None:
    first = await accounts.publish(TOPIC, b"", key="a", expected_key_offset=-1)
    await harness.restart()

    with pytest.raises(KeyOffsetMismatchError):
        await accounts.publish(TOPIC, b"", key="a", expected_key_offset=-1)
    await accounts.publish(TOPIC, b"", key="a", expected_key_offset=first.offset)


async def test_of_many_who_read_the_same_one_writes(
    harness: Harness, accounts: ister.Client
) -> None:
    async with harness.connect() as other:
        sends = [c.publish(TOPIC, b"", key="a", expected_key_offset=-1) for c in (accounts, other)]
        results = await asyncio.gather(*sends, return_exceptions=True)

    assert sorted(type(r).__name__ for r in results) == ["KeyOffsetMismatchError", "MessageId"]


async def test_a_key_of_a_partitioned_topic_counts_in_its_partition(
    accounts: ister.Client,
) -> None:
    for key in ("a", "b", "c", "d"):
        first = await accounts.publish(PARTS, b"", key=key, expected_key_offset=-1)
        second = await accounts.publish(PARTS, b"", key=key, expected_key_offset=first.offset)
        assert second.partition == first.partition
    async with accounts.transaction() as tx:
        tx.send(PARTS, b"", key="d", expected_key_offset=second.offset)

    assert tx.results[0].partition == second.partition


async def test_a_transaction_with_a_key_elsewhere_does_nothing(accounts: ister.Client) -> None:
    async with accounts.transaction() as tx:
        tx.send(TOPIC, b"0", key="a", expected_key_offset=-1)
        tx.send(TOPIC, b"1", key="b")
    late = accounts.transaction()
    late.send(TOPIC, b"lost", key="b", expected_key_offset=1)
    late.send(TOPIC, b"lost", key="a", expected_key_offset=-1)
    with pytest.raises(KeyOffsetMismatchError):
        await late.commit()

    [row] = await accounts.topics(TOPIC)
    assert row.next_offset == 2


async def test_what_cannot_be_expected_is_refused(accounts: ister.Client) -> None:
    await accounts.create_topic("/default/plain", kind="stream")
    with pytest.raises(BadRequestError, match="keeps no offsets of keys"):
        await accounts.publish("/default/plain", b"", key="a", expected_key_offset=-1)
    with pytest.raises(BadRequestError, match="with a key"):
        await accounts.publish(TOPIC, b"", expected_key_offset=-1)
    with pytest.raises(BadRequestError, match="not both"):
        await accounts.publish(TOPIC, b"", key="a", expected_offset=0, expected_key_offset=0)
    with pytest.raises(BadRequestError, match="from -1"):
        await accounts.publish(TOPIC, b"", key="a", expected_key_offset=-2)
    with pytest.raises(BadRequestError, match="deliver_at"):
        await accounts.publish(TOPIC, b"", key="a", expected_key_offset=0, deliver_after=1.0)
    with pytest.raises(WrongKindError):
        await accounts.publish("/default/live", b"", key="a", expected_key_offset=-1)
    with pytest.raises(BadRequestError, match="key_offsets"):
        await accounts.create_topic("/default/other", key_offsets=True)
    with pytest.raises(TopicExistsError):
        await accounts.create_topic(TOPIC, kind="stream")


async def test_stages_are_not_for_topics_that_keep_key_offsets(accounts: ister.Client) -> None:
    with pytest.raises(BadRequestError, match="takes no stages"):
        await accounts.stage_batches("word", [(TOPIC, encode([b"x"], keys=["a"]))])
