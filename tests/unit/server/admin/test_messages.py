"""Single messages, published and looked at by an operator."""

import asyncio
import threading

import pytest

import ister
from ister.base.errors import BadRequestError, OffsetGoneError, TopicNotFoundError, WrongKindError
from ister.base.limits import MIB
from ister.codec import Batch
from ister.server.admin import Admin

TOPIC = "/default/orders"


@pytest.fixture(autouse=True)
async def stream(admin: Admin) -> None:
    """A stream to look into."""
    await admin.topics.create(TOPIC, kind="stream")


async def test_a_message_is_published_and_looked_at(admin: Admin) -> None:
    assert await admin.messages.publish(TOPIC, b"0") == 0
    assert await admin.messages.publish(TOPIC, b"1", key="k", attributes={"a": "1"}) == 1

    first, second = await admin.messages.peek(TOPIC, 0)
    assert (first.offset, first.payload, first.key, first.attributes) == (0, b"0", None, {})
    assert (second.offset, second.payload, second.key) == (1, b"1", "k")
    assert second.attributes == {"a": "1"}
    assert second.producer.startswith("admin:")


async def test_looking_starts_and_ends_where_it_is_told(admin: Admin, client: ister.Client) -> None:
    async with client.producer(TOPIC) as producer:
        futures = [producer.send_nowait(b"%d" % number) for number in range(10)]
        for future in futures:
            await future

    rows = await admin.messages.peek(TOPIC, 3, count=4)
    assert [row.payload for row in rows] == [b"3", b"4", b"5", b"6"]
    assert await admin.messages.peek(TOPIC, 10) == []


async def test_large_messages_make_a_short_page(admin: Admin) -> None:
    for _ in range(4):
        await admin.messages.publish(TOPIC, bytes(3 * MIB))

    assert len(await admin.messages.peek(TOPIC, 0)) == 2


async def test_a_live_topic_takes_a_message_and_shows_none(
    admin: Admin, client: ister.Client
) -> None:
    await admin.topics.create("/default/live")
    async with client.subscribe("/default/live", "billing") as sub:
        await admin.messages.publish("/default/live", b"now")

        assert (await sub.receive(timeout=10)).payload == b"now"
    with pytest.raises(WrongKindError):
        await admin.messages.peek("/default/live", 0)


async def test_a_topic_is_not_made_by_publishing(admin: Admin) -> None:
    with pytest.raises(TopicNotFoundError):
        await admin.messages.publish("/default/nothing", b"0")


async def test_partitions_are_named_one_by_one(admin: Admin) -> None:
    await admin.topics.create("/default/wide", kind="stream", partitions=2)

    with pytest.raises(BadRequestError):
        await admin.messages.publish("/default/wide", b"0")
    with pytest.raises(BadRequestError):
        await admin.messages.peek("/default/wide", 0)
    assert await admin.messages.publish("/default/wide-part-1", b"0") == 0
    assert len(await admin.messages.peek("/default/wide-part-1", 0)) == 1


async def test_what_is_gone_cannot_be_looked_at(admin: Admin) -> None:
    await admin.messages.publish(TOPIC, b"0")
    await admin.topics.purge(TOPIC)

    with pytest.raises(OffsetGoneError):
        await admin.messages.peek(TOPIC, 0)


@pytest.mark.parametrize(("offset", "count"), [(-1, 1), (0, 0), (0, 1_001), (1, 1)])
async def test_a_place_or_count_that_is_none_is_refused(
    admin: Admin, offset: int, count: int
) -> None:
    with pytest.raises(BadRequestError):
        await admin.messages.peek(TOPIC, offset, count=count)


async def test_a_client_whose_producer_is_called_admin_is_let_be(
    admin: Admin, client: ister.Client
) -> None:
    async with client.producer(TOPIC, name="admin") as producer:
        await producer.send(b"0")
        await admin.messages.publish(TOPIC, b"1")
        await producer.send(b"2")

    assert [row.payload for row in await admin.messages.peek(TOPIC, 0)] == [b"0", b"1", b"2"]


class Watch:
    """A schema check that knows in which threads it was asked."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def weight(self, batch: Batch) -> int:
        return 1

    def check(self, batch: Batch) -> None:
        self.threads.append(threading.get_ident())


@pytest.mark.parametrize("topic", [TOPIC, "/default/live"])
async def test_a_long_message_is_checked_aside_of_the_event_loop(
    admin: Admin, client: ister.Client, topic: str
) -> None:
    watch = Watch()
    if topic != TOPIC:
        await admin.topics.create(topic)
    admin.broker.schema_check_of = lambda _: watch
    await asyncio.gather(*(admin.messages.publish(topic, bytes(MIB)) for _ in range(3)))
    assert len(watch.threads) == 3
    assert threading.get_ident() not in watch.threads

    await admin.messages.publish(topic, b"short")
    assert watch.threads[3:] == [threading.get_ident()]


async def test_long_letters_are_checked_aside_of_the_event_loop(admin: Admin) -> None:
    letters = f"{TOPIC}-billing-dlq"
    await admin.topics.create(letters, kind="stream")
    for _ in range(3):
        await admin.messages.publish(letters, bytes(MIB))
    watch = Watch()
    admin.broker.schema_check_of = lambda name: watch if name == TOPIC else None

    assert await admin.subscriptions.redrive(TOPIC, "billing") == 3
    assert watch.threads
    assert threading.get_ident() not in watch.threads
