"""Single messages, published and looked at by an operator."""

import asyncio
import threading

import pytest

import ister
from ister.base.errors import BadRequestError, OffsetGoneError, TopicNotFoundError, WrongKindError
from ister.base.limits import MIB
from ister.codec import Batch
from ister.operations import (
    CreateTopic,
    PeekMessages,
    PublishMessage,
    PurgeTopic,
    RedriveSubscription,
)
from ister.server.operations import Dispatcher

TOPIC = "/default/orders"


@pytest.fixture(autouse=True)
async def stream(dispatcher: Dispatcher) -> None:
    """A stream to look into."""
    await dispatcher.run(CreateTopic(TOPIC, kind="stream"))


async def test_a_message_is_published_and_looked_at(dispatcher: Dispatcher) -> None:
    assert (await dispatcher.run(PublishMessage(TOPIC, b"0"))).offset == 0
    assert (
        await dispatcher.run(PublishMessage(TOPIC, b"1", key="k", attributes={"a": "1"}))
    ).offset == 1

    first, second = (await dispatcher.run(PeekMessages(TOPIC, 0))).rows
    assert (first.offset, first.payload, first.key, first.attributes) == (0, b"0", None, {})
    assert (second.offset, second.payload, second.key) == (1, b"1", "k")
    assert second.attributes == {"a": "1"}
    assert second.producer.startswith("admin:")


async def test_looking_starts_and_ends_where_it_is_told(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    async with client.producer(TOPIC) as producer:
        futures = [producer.send_nowait(b"%d" % number) for number in range(10)]
        for future in futures:
            await future

    rows = (await dispatcher.run(PeekMessages(TOPIC, 3, limit=4))).rows
    assert [row.payload for row in rows] == [b"3", b"4", b"5", b"6"]
    assert (await dispatcher.run(PeekMessages(TOPIC, 10))).rows == []


async def test_large_messages_make_a_short_page(dispatcher: Dispatcher) -> None:
    for _ in range(4):
        await dispatcher.run(PublishMessage(TOPIC, bytes(3 * MIB)))

    assert len((await dispatcher.run(PeekMessages(TOPIC, 0))).rows) == 2


async def test_a_live_topic_takes_a_message_and_shows_none(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    await dispatcher.run(CreateTopic("/default/live"))
    async with client.subscribe("/default/live", "billing") as sub:
        await dispatcher.run(PublishMessage("/default/live", b"now"))

        assert (await sub.receive(timeout=10)).payload == b"now"
    with pytest.raises(WrongKindError):
        await dispatcher.run(PeekMessages("/default/live", 0))


async def test_a_topic_is_not_made_by_publishing(dispatcher: Dispatcher) -> None:
    with pytest.raises(TopicNotFoundError):
        await dispatcher.run(PublishMessage("/default/nothing", b"0"))


async def test_partitions_are_named_one_by_one(dispatcher: Dispatcher) -> None:
    await dispatcher.run(CreateTopic("/default/wide", kind="stream", partitions=2))

    published = await dispatcher.run(PublishMessage("/default/wide", b"0", key="k"))
    assert published.topic.startswith("/default/wide-part-")
    with pytest.raises(BadRequestError):
        await dispatcher.run(PeekMessages("/default/wide", 0))
    assert (await dispatcher.run(PublishMessage("/default/wide-part-1", b"0"))).offset >= 0
    assert len((await dispatcher.run(PeekMessages("/default/wide-part-1", 0))).rows) == 1


async def test_what_is_gone_cannot_be_looked_at(dispatcher: Dispatcher) -> None:
    await dispatcher.run(PublishMessage(TOPIC, b"0"))
    await dispatcher.run(PurgeTopic(TOPIC))

    with pytest.raises(OffsetGoneError):
        await dispatcher.run(PeekMessages(TOPIC, 0))


@pytest.mark.parametrize(("offset", "count"), [(-1, 1), (0, 0), (0, 1_001), (1, 1)])
async def test_a_place_or_count_that_is_none_is_refused(
    dispatcher: Dispatcher, offset: int, count: int
) -> None:
    with pytest.raises(BadRequestError):
        await dispatcher.run(PeekMessages(TOPIC, offset, limit=count))


async def test_a_client_whose_producer_is_called_admin_is_let_be(
    dispatcher: Dispatcher, client: ister.Client
) -> None:
    async with client.producer(TOPIC, name="admin") as producer:
        await producer.send(b"0")
        await dispatcher.run(PublishMessage(TOPIC, b"1"))
        await producer.send(b"2")

    assert [row.payload for row in (await dispatcher.run(PeekMessages(TOPIC, 0))).rows] == [
        b"0",
        b"1",
        b"2",
    ]


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
    dispatcher: Dispatcher, client: ister.Client, topic: str
) -> None:
    watch = Watch()
    if topic != TOPIC:
        await dispatcher.run(CreateTopic(topic))
    dispatcher.node.broker.schema_check_of = lambda _: watch
    await asyncio.gather(*(dispatcher.run(PublishMessage(topic, bytes(MIB))) for _ in range(3)))
    assert len(watch.threads) == 3
    assert threading.get_ident() not in watch.threads

    await dispatcher.run(PublishMessage(topic, b"short"))
    assert watch.threads[3:] == [threading.get_ident()]


async def test_long_letters_are_checked_aside_of_the_event_loop(dispatcher: Dispatcher) -> None:
    letters = f"{TOPIC}-billing-dlq"
    await dispatcher.run(CreateTopic(letters, kind="stream"))
    for _ in range(3):
        await dispatcher.run(PublishMessage(letters, bytes(MIB)))
    watch = Watch()
    dispatcher.node.broker.schema_check_of = lambda name: watch if name == TOPIC else None

    assert (await dispatcher.run(RedriveSubscription(TOPIC, "billing"))).messages == 3
    assert watch.threads
    assert threading.get_ident() not in watch.threads
