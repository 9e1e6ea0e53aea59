"""Views that are watched, and the history of a key; with both clients."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import ister
from ister.base.errors import BadRequestError, TopicNotFoundError
from ister.testing import MemoryBroker, ThreadedBroker

TOPIC, PARTS = "/default/prices", "/default/parts"


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with MemoryBroker() as broker:
        yield broker


@pytest.fixture
async def client(broker: MemoryBroker) -> AsyncIterator[ister.Client]:
    async with broker.connect() as client:
        await client.create_topic(TOPIC, kind="stream")
        yield client


async def publish(client: ister.Client, *pairs: tuple[str | None, bytes]) -> None:
    """Publish all in one batch, with an attribute."""
    keys, payloads = [key for key, _ in pairs], [payload for _, payload in pairs]
    async with client.producer(TOPIC) as producer:
        await producer.send_batch(payloads, keys=keys, attributes=[{"from": "shop"}] * len(pairs))


async def take(view: ister.View, count: int) -> list[tuple[str, bytes, dict[str, bytes]]]:
    """Return the next changes of a view, each with what the view is then."""
    changes = []
    async for change in view.watch():
        changes.append((change.key, change.entry.payload, dict(view)))
        if len(changes) == count:
            break
    return changes


# Watching


async def test_a_watched_view_is_as_of_each_change(client: ister.Client) -> None:
    await publish(client, ("a", b"1"))
    view = await client.view(TOPIC)
    await publish(client, ("b", b"2"), (None, b"no key"), ("a", b""), ("b", b"3"))

    assert await take(view, 3) == [
        ("b", b"2", {"a": b"1", "b": b"2"}),
        ("a", b"", {"b": b"2"}),
        ("b", b"3", {"b": b"3"}),
    ]
    assert view.entry("b").offset == 4


async def test_what_is_published_while_a_view_is_watched_arrives(client: ister.Client) -> None:
    view = await client.view(TOPIC)
    changes = aiter(view.watch())
    waiting = asyncio.ensure_future(anext(changes))
    await publish(client, ("a", b"1"))
    change = await waiting

    assert (change.key, change.is_removed) == ("a", False)
    assert (change.entry.topic, change.entry.attributes) == (TOPIC, {"from": "shop"})
    await publish(client, ("a", b""))
    assert (await anext(changes)).is_removed
    assert dict(view) == {}


async def test_a_view_that_is_watched_again_goes_on_where_it_was(client: ister.Client) -> None:
    view = await client.view(TOPIC)
    await publish(client, ("a", b"1"), ("b", b"2"), ("c", b"3"))
    await take(view, 1)

    assert [key for key, *_ in await take(view, 2)] == ["b", "c"]
    assert dict(view) == {"a": b"1", "b": b"2", "c": b"3"}


async def test_a_view_of_the_past_is_watched_from_there(client: ister.Client) -> None:
    await publish(client, ("a", b"1"), ("a", b"2"), ("a", b"3"))
    view = await client.view(TOPIC, at=0)

    assert [payload for _, payload, _ in await take(view, 2)] == [b"2", b"3"]


async def test_a_watched_view_of_partitions_gets_what_is_new_in_each(
    client: ister.Client,
) -> None:
    await client.create_topic(PARTS, kind="stream", partitions=3)
    async with client.producer(PARTS) as producer:
        await producer.send_batch([b"old"] * 10, keys=[f"{n}" for n in range(10)])
        view = await client.view(PARTS)
        await producer.send_batch([b"new"] * 10, keys=[f"{n}" for n in range(10)])
    changes = await take(view, 10)

    assert sorted(key for key, *_ in changes) == [f"{n}" for n in range(10)]
    assert set(view.values()) == {b"new"}


async def test_a_watched_view_goes_on_after_a_lost_connection(
    broker: MemoryBroker, client: ister.Client
) -> None:
    view = await client.view(TOPIC)
    changes = aiter(view.watch())
    waiting = asyncio.ensure_future(anext(changes))
    await publish(client, ("a", b"1"))
    await waiting
    broker.disconnect_all()
    await publish(client, ("a", b"2"))

    assert (await anext(changes)).entry.payload == b"2"


# History


async def test_the_history_of_a_key_is_its_messages_in_order(client: ister.Client) -> None:
    await publish(client, ("a", b"1"), ("b", b"2"), (None, b"a"), ("a", b""), ("a", b"3"))
    history = [entry async for entry in client.history(TOPIC, "a")]

    assert [(e.offset, e.payload) for e in history] == [(0, b"1"), (3, b""), (4, b"3")]
    assert (history[0].topic, history[0].attributes) == (TOPIC, {"from": "shop"})
    assert [e async for e in client.history(TOPIC, "none")] == []


async def test_the_history_of_a_key_has_a_start_and_an_end(client: ister.Client) -> None:
    await publish(client, *(("a", b"%d" % n) for n in range(5)))

    assert [e.offset async for e in client.history(TOPIC, "a", start=1, end=3)] == [1, 2]
    following = client.history(TOPIC, "a", start=4, end=None)
    assert (await anext(following)).payload == b"4"
    waiting = asyncio.ensure_future(anext(following))
    await publish(client, ("b", b"5"), ("a", b"6"))
    assert (await waiting).payload == b"6"


async def test_the_history_of_a_key_in_a_topic_with_partitions(client: ister.Client) -> None:
    await client.create_topic(PARTS, kind="stream", partitions=3)
    async with client.producer(PARTS) as producer:
        await producer.send_batch([b"%d" % n for n in range(9)], keys=["a", "b", "c"] * 3)

    assert [e.payload async for e in client.history(PARTS, "b")] == [b"1", b"4", b"7"]


async def test_a_history_needs_a_stream_and_a_key(client: ister.Client) -> None:
    with pytest.raises(TopicNotFoundError):
        await anext(client.history("/default/none", "a"))
    with pytest.raises(BadRequestError, match="a key is text"):
        client.history(TOPIC, 5)  # type: ignore[arg-type]


# The blocking client


def test_the_blocking_client_watches_and_reads_histories() -> None:
    with ThreadedBroker() as broker, ister.sync.connect(broker.url) as client:
        client.create_topic(TOPIC, kind="stream")
        client.publish(TOPIC, b"1", key="a")
        view = client.view(TOPIC)
        client.publish(TOPIC, b"2", key="b")
        client.publish(TOPIC, b"3", key="a")
        changes = view.watch()

        assert next(changes).key == "b"
        assert (dict(view), len(view), "b" in view) == ({"a": b"1", "b": b"2"}, 2, True)
        assert next(changes).entry.payload == b"3"
        assert (view["a"], view.entry("a").offset, repr(view)) == (b"3", 2, "View(2 keys)")
        assert [entry.payload for entry in client.history(TOPIC, "a")] == [b"1", b"3"]
        assert isinstance(view, ister.sync.View)
