"""Who gets which message: the subscription types, filters and wildcards."""

import asyncio
from collections.abc import Sequence

import pytest
from tests.contract.harness import Harness

import ister
from ister.client import PolicyName

WORK = ("/default/orders", "work")


async def test_every_subscription_gets_every_message(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing") as billing,
        client.subscribe("/default/orders", "shipping") as shipping,
        client.producer("/default/orders") as producer,
    ):
        await producer.send_batch([b"0", b"1"])

        assert await payloads(billing, 2) == [b"0", b"1"]
        assert await payloads(shipping, 2) == [b"0", b"1"]


@pytest.mark.parametrize("policy", ["least_loaded", "round_robin", "random"])
async def test_a_shared_subscription_gives_each_message_to_one_consumer(
    client: ister.Client, policy: PolicyName
) -> None:
    async with (
        client.subscribe(*WORK, type="shared", policy=policy, buffer_count=20) as first,
        client.subscribe(*WORK, type="shared", policy=policy, buffer_count=20) as second,
        client.producer("/default/orders") as producer,
    ):
        for number in range(20):
            await producer.send(b"%02d" % number)
        await arrive(client)
        shares = [await at_hand(first), await at_hand(second)]

        assert sorted(shares[0] + shares[1]) == [b"%02d" % n for n in range(20)]
        assert shares == [sorted(share) for share in shares]


@pytest.mark.parametrize("kind", ["live", "stream"])
async def test_a_busy_consumer_of_a_shared_subscription_leaves_the_rest_to_others(
    client: ister.Client, kind: str
) -> None:
    await client.create_topic(WORK[0], kind=kind)
    async with (
        client.subscribe(*WORK, type="shared") as busy,
        client.producer(WORK[0]) as producer,
    ):
        await producer.send_batch([b"%d" % number for number in range(10)])
        held = await busy.receive(timeout=10.0)
        async with client.subscribe(*WORK, type="shared") as idle:
            # None waits behind the one that is held.
            got = [await idle.receive(timeout=10.0) for _ in range(9)]

            assert [msg.offset for msg in (held, *got)] == list(range(10))


async def test_round_robin_gives_messages_in_turn(client: ister.Client) -> None:
    async with (
        client.subscribe(*WORK, type="shared", policy="round_robin") as first,
        client.subscribe(*WORK, type="shared", policy="round_robin") as second,
        client.producer("/default/orders") as producer,
    ):
        await producer.send_batch([b"0", b"1", b"2", b"3"])
        await arrive(client)

        assert len(await at_hand(first)) == 2
        assert len(await at_hand(second)) == 2


async def test_a_standby_takes_over_when_the_active_consumer_leaves(client: ister.Client) -> None:
    loop = asyncio.get_running_loop()
    promoted: asyncio.Future[ister.Event] = loop.create_future()
    active = client.subscribe("/default/orders", "work", type="failover")
    await active.open()
    async with (
        client.subscribe(
            "/default/orders",
            "work",
            type="failover",
            on_event=lambda event: loop.call_soon_threadsafe(promoted.set_result, event),
        ) as standby,
        client.producer("/default/orders") as producer,
    ):
        assert (active.active, standby.active) == (True, False)
        await producer.send(b"0")
        assert (await active.receive()).payload == b"0"

        await active.close()
        await producer.send(b"1")

        assert (await standby.receive()).payload == b"1"
        assert await promoted == ister.Promoted("work")
        assert standby.active


async def test_key_shared_gives_a_key_to_one_consumer_always(client: ister.Client) -> None:
    keys = [f"key-{n}" for n in range(40)]
    async with (
        client.subscribe("/default/orders", "work", type="key_shared") as first,
        client.subscribe("/default/orders", "work", type="key_shared") as second,
        client.producer("/default/orders") as producer,
    ):
        for _ in range(3):
            await producer.send_batch([key.encode() for key in keys], keys=keys)
        await arrive(client)
        shares = [await at_hand(first), await at_hand(second)]

        assert set(shares[0]).isdisjoint(shares[1])
        assert all(shares)
        assert sorted(shares[0] + shares[1]) == sorted(3 * [key.encode() for key in keys])


async def test_key_filters_choose_between_consumers_of_a_key_shared_subscription(
    client: ister.Client,
) -> None:
    async with (
        client.subscribe("/default/o", "w", type="key_shared", key_filters=["eu.*"]) as europe,
        client.subscribe("/default/o", "w", type="key_shared", key_filters=["us.*"]) as america,
        client.producer("/default/o") as producer,
    ):
        sent = [b"eu.1", b"us.1", b"eu.2", b"as.1"]
        await producer.send_batch(sent, keys=[s.decode() for s in sent])
        await arrive(client)

        assert await at_hand(europe) == [b"eu.1", b"eu.2"]
        assert await at_hand(america) == [b"us.1"]


async def test_key_filters_elsewhere_drop_other_keys(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/o", "w", key_filters=["eu.*", "us.?"]) as sub,
        client.producer("/default/o") as producer,
    ):
        sent = [b"eu.1", b"us.1", b"us.10", b"as.1", b"none"]
        await producer.send_batch(sent, keys=["eu.1", "us.1", "us.10", "as.1", None])
        await arrive(client)

        assert await at_hand(sub) == [b"eu.1", b"us.1"]


async def test_attribute_filters_must_all_match(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/o", "w", filters={"kind": "a*", "size": "1"}) as sub,
        client.producer("/default/o") as producer,
    ):
        rows: Sequence[dict[str, str] | None] = [
            {"kind": "ab", "size": "1"},
            {"kind": "ab", "size": "2"},
            {"kind": "b", "size": "1"},
            {"kind": "a"},
            None,
            {"kind": "a", "size": "1", "more": "x"},
        ]
        for number, attributes in enumerate(rows):
            producer.send_nowait(b"%d" % number, attributes=attributes)
        await producer.flush()
        await arrive(client)

        assert await at_hand(sub) == [b"0", b"5"]


@pytest.mark.parametrize(
    ("pattern", "seen"),
    [
        ("/default/o.*", [b"o.eu", b"o.us"]),
        ("/default/o.>", [b"o.eu", b"o.eu.paris", b"o.us"]),
        ("/default/*.eu.paris", [b"o.eu.paris"]),
        ("/default/>", [b"o", b"o.eu", b"o.eu.paris", b"o.us"]),
    ],
)
async def test_a_wildcard_covers_topics_of_before_and_of_later(
    client: ister.Client, pattern: str, seen: list[bytes]
) -> None:
    await client.create_topic("/default/o")
    await client.create_topic("/default/o.eu")
    async with client.subscribe(pattern, "work") as sub:
        for topic in ("o", "o.eu", "o.us", "o.eu.paris"):
            async with client.producer(f"/default/{topic}") as producer:
                await producer.send(topic.encode())
        await arrive(client)
        received = await sub.fetch(10, timeout=1.0)
        while len(received) < len(seen):
            received += await sub.fetch(10, timeout=1.0)

        assert sorted(m.payload for m in received) == seen
        assert all(m.topic == f"/default/{m.payload.decode()}" for m in received)


async def test_consumers_of_several_clients_share_a_subscription(harness: Harness) -> None:
    async with (
        harness.connect() as one,
        harness.connect() as other,
        one.subscribe("/default/orders", "w", type="shared", policy="round_robin") as first,
        other.subscribe("/default/orders", "w", type="shared", policy="round_robin") as second,
        one.producer("/default/orders") as producer,
    ):
        await producer.send_batch([b"0", b"1"])

        assert {*await payloads(first, 1), *await payloads(second, 1)} == {b"0", b"1"}


async def payloads(sub: ister.Subscription, count: int) -> list[bytes]:
    """The next `count` payloads."""
    return [(await sub.receive(timeout=10.0)).payload for _ in range(count)]


async def at_hand(sub: ister.Subscription) -> list[bytes]:
    """The payloads that have arrived."""
    received = []
    while more := await sub.fetch(1000, timeout=0.0):
        received += [m.payload for m in more]
    return received


async def arrive(client: ister.Client) -> None:
    """A round trip to the broker: what was delivered before it is here after it."""
    await client.broker()
