"""Requests that are sent again: after no answer, to nobody, or beside a slow replica."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import ister
from ister.base.errors import (
    BadRequestError,
    NoResponderError,
    RequestTimeoutError,
    ResponderFailedError,
)
from ister.testing import VirtualClock
from ister.testing.clock import settle

TOPIC = "/default/price"


@pytest.fixture
async def slow(client: ister.Client) -> AsyncIterator[ister.Subscription]:
    """A replica that answers when the test says so."""
    async with client.subscribe(TOPIC, "pricing", type="shared") as slow:
        yield slow


async def test_a_request_without_an_answer_is_sent_again_within_its_time(
    client: ister.Client, slow: ister.Subscription, clock: VirtualClock
) -> None:
    task = asyncio.create_task(client.request(TOPIC, b"x", timeout=9.0, retries=2))
    for _ in range(3):
        msg = await slow.receive()
        assert not task.done()
        await clock.elapse(2.999)
        assert not task.done()
        await clock.elapse(0.001)
    assert msg.payload == b"x"

    with pytest.raises(RequestTimeoutError, match=r"9\.0? ?s|9 s"):
        await task


async def test_the_answer_to_a_retry_counts(
    client: ister.Client, slow: ister.Subscription, clock: VirtualClock
) -> None:
    task = asyncio.create_task(client.request(TOPIC, b"x", timeout=4.0, retries=1))
    await slow.receive()
    await clock.elapse(2.0)
    await (await slow.receive()).reply(b"second")

    assert await task == b"second"


async def test_a_retry_finds_a_responder_that_has_come_meanwhile(
    client: ister.Client, clock: VirtualClock
) -> None:
    task = asyncio.create_task(client.request(TOPIC, b"x", timeout=10.0, retries=2))
    await settle()
    async with client.subscribe(TOPIC, "pricing") as sub:
        await clock.elapse(0.05)
        await (await sub.receive()).reply(b"42")

        assert await task == b"42"


async def test_without_a_responder_the_last_retry_says_so(
    client: ister.Client, clock: VirtualClock
) -> None:
    task = asyncio.create_task(client.request(TOPIC, b"x", timeout=10.0, retries=2))
    await clock.elapse(0.149)
    assert not task.done()
    await clock.elapse(0.001)

    with pytest.raises(NoResponderError):
        await task


async def test_a_slow_replica_is_hedged_by_another(
    client: ister.Client, slow: ister.Subscription, clock: VirtualClock
) -> None:
    async with client.subscribe(TOPIC, "pricing", type="shared") as other:
        task = asyncio.create_task(client.request(TOPIC, b"x", timeout=5.0, hedge_after=0.05))
        await clock.elapse(0.049)
        assert len(client.link.session.requests) == 1
        await clock.elapse(0.001)
        first, second = await slow.receive(), await other.receive()
        await second.reply(b"quick")
        assert await task == b"quick"
        await first.reply(b"slow")

        assert len(client.link.session.requests) == 0


async def test_the_first_replica_may_still_answer_first(
    client: ister.Client, slow: ister.Subscription, clock: VirtualClock
) -> None:
    task = asyncio.create_task(client.request(TOPIC, b"x", timeout=5.0, hedge_after=0.05))
    first = await slow.receive()
    await clock.elapse(0.05)
    await first.reply(b"first")

    assert await task == b"first"


async def test_a_quick_answer_needs_no_second_request(
    client: ister.Client, slow: ister.Subscription, clock: VirtualClock
) -> None:
    task = asyncio.create_task(client.request(TOPIC, b"x", timeout=5.0, hedge_after=0.05))
    await (await slow.receive()).reply(b"first")
    assert await task == b"first"
    more = asyncio.create_task(slow.receive(timeout=1.0))
    await clock.elapse(1.0)

    with pytest.raises(RequestTimeoutError):
        await more


async def test_an_error_of_the_responder_is_an_answer(
    client: ister.Client, slow: ister.Subscription
) -> None:
    task = asyncio.create_task(client.request(TOPIC, b"x", retries=3, hedge_after=1.0))
    await (await slow.receive()).reply(b"", attributes={"x-service-error": "KeyError: 'sku-1'"})

    with pytest.raises(ResponderFailedError, match="'/default/price' failed: KeyError: 'sku-1'"):
        await task


@pytest.mark.parametrize(
    "wrong",
    [
        {"retries": -1},
        {"retries": 101},
        {"hedge_after": -0.1},
        {"timeout": None},
        {"timeout": None, "retries": 1},
        {"timeout": None, "hedge_after": 0.1},
    ],
)
async def test_what_makes_no_sense_is_refused(client: ister.Client, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError):
        await client.request(TOPIC, b"x", **wrong)
