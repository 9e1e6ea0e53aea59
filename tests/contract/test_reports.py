"""What a broker tells about its topics, subscriptions and itself."""

import ister


async def test_topics_are_listed_with_their_figures(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/orders", "billing"),
        client.producer("/default/orders") as producer,
    ):
        await producer.send_batch([b"a", b"b"])
        [report] = await client.topics()

        assert (report.topic, report.kind) == ("/default/orders", "live")
        assert (report.producers, report.subscriptions) == (1, 1)
        assert (report.messages_in, report.messages_out, report.messages_dropped) == (2, 2, 0)
        assert report.next_offset == 2
    [report] = await client.topics()
    assert (report.producers, report.subscriptions) == (0, 0)


async def test_messages_nobody_wants_are_counted_as_dropped(client: ister.Client) -> None:
    async with client.producer("/default/orders") as producer:
        await producer.send_batch([b"a", b"b"])
        [report] = await client.topics()

        assert (report.messages_in, report.messages_out, report.messages_dropped) == (2, 0, 2)


async def test_topics_are_listed_by_pattern_and_over_pages(client: ister.Client) -> None:
    for number in range(1_001):
        await client.create_topic(f"/default/many.{number:04}")
    await client.create_topic("/default/one")

    assert len(await client.topics()) == 1_002
    many = await client.topics("/default/many.*")
    assert [r.topic for r in many] == [f"/default/many.{n:04}" for n in range(1_001)]
    assert [r.topic for r in await client.topics("/default/one")] == ["/default/one"]


async def test_subscriptions_are_listed_with_their_consumers(client: ister.Client) -> None:
    async with (
        client.subscribe("/default/o", "w", type="failover", consumer="first"),
        client.subscribe("/default/o", "w", type="failover", consumer="second"),
        client.subscribe("/default/other", "x", filters={"a": "1*"}, key_filters=["k"]),
    ):
        failover, filtered = await client.subscriptions()

        assert (failover.topic, failover.subscription) == ("/default/o", "w")
        assert failover.type == "failover"
        assert [(c.name, c.active) for c in failover.consumers] == [
            ("first", True),
            ("second", False),
        ]
        assert (filtered.filters, filtered.key_filters) == ({"a": "1*"}, ["k"])
        assert await client.subscriptions("/default/o") == [failover]


async def test_the_broker_tells_its_totals(client: ister.Client) -> None:
    async with client.producer("/default/orders") as producer:
        await producer.send(b"x")
        report = await client.broker()

        assert (report.connections, report.topics, report.messages_in) == (1, 1, 1)
        assert report.version


async def test_namespaces_are_listed_by_name(client: ister.Client) -> None:
    await client.create_namespace("other")
    await client.create_namespace("another")

    assert await client.namespaces() == ["another", "default", "other", "system"]
