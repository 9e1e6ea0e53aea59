"""What subscriptions promise: receive, fetch, batches, time limits, closing while waiting."""

import asyncio

import pytest
from tests.contract.harness import Harness

import ister
from ister.base.errors import ClosedError, RequestTimeoutError

SOON_S = 0.01


async def test_receive_waits_for_a_message(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        waiting = asyncio.ensure_future(sub.receive(timeout=30.0))
        await producer.send(b"x")

        assert (await waiting).payload == b"x"


@pytest.mark.parametrize("timeout", [0.0, SOON_S])
async def test_receive_raises_when_nothing_comes_in_time(
    client: ister.Client, timeout: float
) -> None:
    async with client.subscribe("/default/orders", "billing") as sub:
        with pytest.raises(RequestTimeoutError) as caught:
            await sub.receive(timeout=timeout)

        assert isinstance(caught.value, TimeoutError)
        assert "billing" in caught.value.what


async def test_fetch_returns_nothing_when_nothing_comes_in_time(client: ister.Client) -> None:
    async with client.subscribe("/default/orders", "billing") as sub:
        assert await sub.fetch(10, timeout=SOON_S) == []


async def test_fetch_returns_what_is_there_and_no_more_than_asked(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        await producer.send_batch([b"0", b"1", b"2"])
        await producer.send_batch([b"3", b"4"])
        # The last message of a later batch has come, so the ones before it are at hand.
        assert (await sub.receive()).payload == b"0"
        await fill(client)

        assert [m.payload for m in await sub.fetch(3, timeout=1.0)] == [b"1", b"2", b"3"]
        assert [m.payload for m in await sub.fetch(3, timeout=1.0)] == [b"4"]


async def test_iteration_goes_on_where_it_was_left(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        await producer.send_batch([b"0", b"1", b"2"])
        seen = []
        async for msg in sub:
            seen.append(msg.payload)
            if msg.payload == b"1":
                break
        async for msg in sub:
            seen.append(msg.payload)
            break

        assert seen == [b"0", b"1", b"2"]


async def test_batches_are_columns(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders", "shop") as producer,
    ):
        await producer.send_batch([b"a", b"b"], keys=["x", "y"])
        batch = await anext(aiter(sub.batches()))

        assert len(batch) == 2
        assert batch.payloads == [b"a", b"b"]
        assert batch.keys == ["x", "y"]
        assert list(batch.offsets) == [0, 1]
        assert (batch.topic, batch.producer) == ("/default/orders", "shop")


async def test_fetch_batches_returns_all_at_hand(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        assert await sub.fetch_batches(timeout=SOON_S) == []
        await producer.send_batch([b"a", b"b"])
        [batch] = await sub.fetch_batches()

        assert batch.payloads == [b"a", b"b"]


async def test_several_waiters_share_one_batch(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing") as sub,
        client.producer("/default/orders") as producer,
    ):
        waiting = [asyncio.ensure_future(sub.receive()) for _ in range(3)]
        await fill(client)
        await producer.send_batch([b"0", b"1", b"2"])

        assert sorted([(await one).payload for one in waiting]) == [b"0", b"1", b"2"]


async def test_a_small_buffer_still_gets_everything(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing", buffer_count=3, buffer_bytes=100) as sub,
        client.producer("/default/orders") as producer,
    ):
        await producer.send_batch([b"%03d" % n for n in range(100)])
        received = [(await sub.receive()).payload for _ in range(100)]

        assert received == [b"%03d" % n for n in range(100)]
        assert sub.dropped == 0


async def test_messages_before_the_subscription_are_not_seen(client: ister.Client) -> None:
    async with client.producer("/default/orders") as producer:
        await producer.send(b"before")
        async with client.subscribe("/default/orders", "billing") as sub:
            await producer.send(b"after")

            assert (await sub.receive()).payload == b"after"


async def test_closing_a_subscription_ends_its_iteration(client: ister.Client) -> None:
    sub = client.subscribe("/default/orders", "billing")
    await sub.open()

    async def iterate() -> int:
        return len([msg async for msg in sub])

    iterating = asyncio.ensure_future(iterate())
    receiving = asyncio.ensure_future(sub.receive())
    await fill(client)
    await sub.close()

    assert await iterating == 0
    with pytest.raises(ClosedError):
        await receiving


async def test_closing_the_client_ends_what_waits(harness: Harness) -> None:
    async with harness.connect() as client:
        sub = client.subscribe("/default/orders", "billing")
        await sub.open()
        receiving = asyncio.ensure_future(sub.receive())
        fetching = asyncio.ensure_future(sub.fetch(1))
        await fill(client)

    for waiting in (receiving, fetching):
        with pytest.raises(ClosedError):
            await waiting


async def test_what_was_received_can_be_taken_after_closing(client: ister.Client) -> None:
    sub = client.subscribe("/default/orders", "billing")
    await sub.open()
    async with client.producer("/default/orders") as producer:
        await producer.send_batch([b"0", b"1", b"2"])
    assert (await sub.receive()).payload == b"0"
    await sub.close()

    assert [m.payload for m in await sub.fetch(10)] == [b"1", b"2"]
    with pytest.raises(ClosedError):
        await sub.fetch(10)


async def test_a_closed_subscription_leaves_its_place(client: ister.Client) -> None:
    async with client.subscribe("/default/orders", "billing"):
        pass
    async with client.subscribe("/default/orders", "billing") as sub:
        assert sub.active


async def test_leaving_twice_is_harmless(client: ister.Client) -> None:
    async with client.subscribe("/default/orders", "billing") as sub:
        await sub.close()
    async with client.producer("/default/orders") as producer:
        await producer.close()
    await client.close()


async def fill(client: ister.Client) -> None:
    """A round trip to the broker: what was sent before it has arrived here after it."""
    await client.broker()
