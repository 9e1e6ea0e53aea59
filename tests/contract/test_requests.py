"""Request and reply: many in flight, first answer wins, no responder, time limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.contract.harness import LIMITS

import ister
from ister.base.errors import (
    BadRequestError,
    MessageTooLargeError,
    NoResponderError,
    NotARequestError,
    RequestTimeoutError,
)

TOPIC = "/default/price"


@asynccontextmanager
async def responder(client: ister.Client, prefix: bytes = b"re:") -> AsyncIterator[None]:
    """Answer every request with its own payload behind `prefix`."""
    sub = client.subscribe(TOPIC, f"responder-{prefix.hex()}")
    await sub.open()

    async def respond() -> None:
        async for msg in sub:
            await msg.reply(prefix + msg.payload, attributes=msg.attributes or None)

    task = asyncio.ensure_future(respond())
    yield
    await sub.close()
    await task


async def test_a_request_is_answered(client: ister.Client) -> None:
    async with responder(client):
        answer = await client.request(TOPIC, b"sku-1", timeout=10.0)

        assert answer == b"re:sku-1"
        assert answer.payload == b"re:sku-1"
        assert answer.attributes == {}


async def test_key_and_attributes_travel_both_ways(client: ister.Client) -> None:
    async with responder(client):
        answer = await client.request(TOPIC, b"x", key="k", attributes={"a": "1"}, timeout=10.0)

        assert answer.attributes == {"a": "1"}


async def test_many_requests_in_flight_get_their_own_answers(client: ister.Client) -> None:
    async with responder(client):
        requests = [client.request(TOPIC, b"%d" % n, timeout=10.0) for n in range(50)]
        answers = await asyncio.gather(*requests)

        assert answers == [b"re:%d" % n for n in range(50)]


async def test_the_first_answer_wins(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "slow") as slow, client.subscribe(TOPIC, "fast") as fast:
        asking = asyncio.ensure_future(client.request(TOPIC, b"x", timeout=10.0))
        late, early = await slow.receive(), await fast.receive()
        await early.reply(b"early")
        answer = await asking
        await late.reply(b"late")
        await late.reply(b"later")

        assert answer == b"early"
        # The late answers are dropped and disturb nobody.
        asking = asyncio.ensure_future(client.request(TOPIC, b"y", timeout=10.0))
        await (await fast.receive()).reply(b"second")
        assert await asking == b"second"


async def test_no_responder_is_told_at_once(client: ister.Client) -> None:
    with pytest.raises(NoResponderError) as caught:
        await client.request(TOPIC, b"x", timeout=3600.0)

    assert caught.value.topic == TOPIC


async def test_a_responder_that_filters_the_request_out_is_none(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "eu", filters={"region": "eu"}) as sub:
        with pytest.raises(NoResponderError):
            await client.request(TOPIC, b"x", attributes={"region": "us"}, timeout=3600.0)

        asking = asyncio.ensure_future(
            client.request(TOPIC, b"x", attributes={"region": "eu"}, timeout=10.0)
        )
        await (await sub.receive()).reply(b"ok")
        assert await asking == b"ok"


async def test_a_silent_responder_is_a_timeout(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "silent") as sub:
        with pytest.raises(RequestTimeoutError) as caught:
            await client.request(TOPIC, b"x", timeout=0.01)

        assert caught.value.timeout_s == 0.01
        assert TOPIC in caught.value.what
        # An answer after that goes nowhere.
        await (await sub.receive()).reply(b"late")


async def test_requests_work_again_after_their_topic_was_deleted(client: ister.Client) -> None:
    async with responder(client):
        await client.request(TOPIC, b"x", timeout=10.0)
    await client.delete_topic(TOPIC)

    with pytest.raises(ister.NotFoundError):
        await client.request(TOPIC, b"x", timeout=10.0)
    async with responder(client):
        assert await client.request(TOPIC, b"x", timeout=10.0) == b"re:x"


async def test_only_a_request_takes_a_reply(client: ister.Client) -> None:
    async with (
        client.subscribe(TOPIC, "responder") as sub,
        client.producer(TOPIC) as producer,
    ):
        await producer.send(b"x")
        msg = await sub.receive()

        assert msg.reply_address is None
        with pytest.raises(NotARequestError) as caught:
            await msg.reply(b"y")
        assert caught.value.topic == TOPIC


async def test_a_wrong_answer_is_refused_where_it_is_given(client: ister.Client) -> None:
    async with client.subscribe(TOPIC, "responder") as sub:
        asking = asyncio.ensure_future(client.request(TOPIC, b"x", timeout=10.0))
        msg = await sub.receive()

        with pytest.raises(MessageTooLargeError):
            await msg.reply(bytes(LIMITS.message_bytes_max + 1))
        with pytest.raises(BadRequestError):
            await msg.reply("text")  # type: ignore[arg-type]
        with pytest.raises(BadRequestError):
            await msg.reply(b"x", attributes={"a": 1})  # type: ignore[dict-item]
        await msg.reply(b"right")
        assert await asking == b"right"


async def test_attributes_count_for_the_size_of_a_batch_of_answers(client: ister.Client) -> None:
    attributes = {f"a{n}": "v" * 8_000 for n in range(20)}
    count = LIMITS.batch_bytes_max // 80_000
    async with client.subscribe(TOPIC, "responder") as sub:
        requests = [client.request(TOPIC, b"x", timeout=10.0) for _ in range(count)]
        asking = asyncio.gather(*requests)
        asked = [await sub.receive() for _ in range(count)]
        await asyncio.gather(*(msg.reply(b"y", attributes=attributes) for msg in asked))

        assert await asking == [b"y"] * count
