"""Mistakes get a typed error with fields, where they are made, and disturb nothing else."""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.contract.harness import LIMITS, Harness

import ister
from ister.base.errors import (
    BadNameError,
    BadRequestError,
    ClosedError,
    CodecMissingError,
    ConsumerNameTakenError,
    MessageTooLargeError,
    NamespaceExistsError,
    NamespaceNotFoundError,
    SubscriptionMismatchError,
    SubscriptionTakenError,
    TopicNotFoundError,
)


async def test_an_exclusive_subscription_has_one_consumer(client: ister.Client) -> None:
    async with client.subscribe("/default/orders", "billing", consumer="first"):
        with pytest.raises(SubscriptionTakenError) as caught:
            await client.subscribe("/default/orders", "billing").open()

        error = caught.value
        assert (error.topic, error.subscription) == ("/default/orders", "billing")
        assert error.consumer == "first"


async def test_a_refused_consumer_can_try_again(client: ister.Client) -> None:
    second = client.subscribe("/default/orders", "billing")
    async with client.subscribe("/default/orders", "billing"):
        with pytest.raises(SubscriptionTakenError):
            await second.open()
    async with second, client.producer("/default/orders") as producer:
        await producer.send(b"x")

        assert (await second.receive(timeout=10.0)).payload == b"x"


async def test_consumers_of_a_subscription_agree_on_its_type(client: ister.Client) -> None:
    async with client.subscribe("/default/orders", "work", type="shared"):
        with pytest.raises(SubscriptionMismatchError) as caught:
            await client.subscribe("/default/orders", "work", type="failover").open()

        assert (caught.value.topic, caught.value.subscription) == ("/default/orders", "work")
        assert caught.value.detail


async def test_a_consumer_name_belongs_to_one_client(harness: Harness) -> None:
    async with (
        harness.connect() as one,
        harness.connect() as other,
        one.subscribe("/default/orders", "work", type="shared", consumer="me"),
    ):
        with pytest.raises(ConsumerNameTakenError) as caught:
            await other.subscribe("/default/orders", "work", type="shared", consumer="me").open()

        assert (caught.value.subscription, caught.value.consumer) == ("work", "me")


@pytest.mark.parametrize(
    "name", ["a/b", "/default", "/default/", "/default/a b", "/default/a.*", "/a/b/c", "/d/é/x"]
)
async def test_a_bad_topic_name_is_refused(client: ister.Client, name: str) -> None:
    with pytest.raises(BadNameError) as caught:
        await client.create_topic(name)
    assert caught.value.name == name
    assert caught.value.reason

    with pytest.raises(BadNameError):
        await client.producer(name).open()


@pytest.mark.parametrize("pattern", ["a/>", "/default/a*", "/default/>.a", "/default/a b"])
async def test_a_bad_pattern_is_refused(client: ister.Client, pattern: str) -> None:
    with pytest.raises(BadNameError):
        await client.subscribe(pattern, "work").open()
    with pytest.raises(BadNameError):
        await client.topics(pattern)

    assert await client.namespaces() == ["default", "system"]


async def test_a_name_that_is_no_text_is_refused_and_costs_nothing_else(
    client: ister.Client,
) -> None:
    wrong: Any = 5
    with pytest.raises(BadRequestError):
        await client.create_topic(wrong)
    with pytest.raises(BadRequestError):
        await client.create_topic("/default/\ud800")
    with pytest.raises(BadRequestError):
        await client.subscribe("/default/orders", wrong).open()

    assert await client.namespaces() == ["default", "system"]


async def test_an_unknown_namespace_is_not_made(client: ister.Client) -> None:
    for work in (
        client.create_topic("/other/x"),
        client.producer("/other/x").open(),
        client.subscribe("/other/x", "work").open(),
        client.subscribe("/other/*", "work").open(),
    ):
        with pytest.raises(NamespaceNotFoundError) as caught:
            await work
        assert caught.value.namespace == "other"

    await client.create_namespace("other")
    await client.create_topic("/other/x")
    with pytest.raises(NamespaceExistsError):
        await client.create_namespace("other")


async def test_a_message_over_the_limit_is_refused_at_once(client: ister.Client) -> None:
    payload = bytes(LIMITS.message_bytes_max + 1)
    async with client.producer("/default/orders") as producer:
        for send in (producer.send, producer.send_nowait):
            with pytest.raises(MessageTooLargeError) as caught:
                await send(payload)
            assert caught.value.topic == "/default/orders"
            assert caught.value.size_bytes == len(payload)
            assert caught.value.size_bytes_max == LIMITS.message_bytes_max
        with pytest.raises(MessageTooLargeError):
            await producer.send_batch([b"small", payload])
        with pytest.raises(MessageTooLargeError):
            await client.request("/default/orders", payload)

        assert (await producer.send(b"small")).offset == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"payload": "text"},
        {"payload": None},
        {"payload": 5},
        {"key": 5},
        {"key": "k" * 4097},
        {"key": "\ud800"},
        {"id": 5},
        {"id": "i" * 256},
        {"attributes": {"a": 1}},
        {"attributes": {1: "a"}},
        {"attributes": {str(n): "" for n in range(129)}},
    ],
    ids=str,
)
async def test_a_wrong_argument_of_a_send_is_refused_at_once(
    client: ister.Client, wrong: dict[str, Any]
) -> None:
    message = {"payload": b"x"} | wrong
    payload = message.pop("payload")
    async with client.producer("/default/orders") as producer:
        with pytest.raises(BadRequestError):
            await producer.send(payload, **message)
        with pytest.raises(BadRequestError):
            producer.send_nowait(payload, **message)

        assert (await producer.send(b"right")).offset == 0


@pytest.mark.parametrize("keys", [["a"], ["a", 5], ["a", "k" * 4097]], ids=["few", "int", "long"])
async def test_wrong_keys_of_a_batch_are_refused_whole(client: ister.Client, keys: Any) -> None:
    async with client.producer("/default/orders") as producer:
        with pytest.raises(BadRequestError):
            await producer.send_batch([b"a", b"b"], keys=keys)

        assert (await producer.send(b"right")).offset == 0


async def test_a_wrong_choice_is_refused(client: ister.Client) -> None:
    wrong: Any = "wrong"
    with pytest.raises(BadRequestError):
        await client.subscribe("/default/orders", "work", type=wrong).open()
    with pytest.raises(BadRequestError):
        await client.subscribe("/default/orders", "work", type="shared", policy=wrong).open()
    with pytest.raises(BadRequestError):
        client.subscribe("/default/orders", "work", start=wrong)
    with pytest.raises(BadRequestError):
        client.subscribe("/default/orders", "work", buffer_count=0)
    with pytest.raises(CodecMissingError) as caught:
        client.producer("/default/orders", compression=wrong)
    assert caught.value.codec == "wrong"
    with pytest.raises(BadRequestError):
        await client.create_topic("/default/orders", kind="wrong")
    with pytest.raises(BadRequestError):
        await client.create_topic("/default/orders", partitions=-1)


async def test_a_deleted_topic_refuses_its_producers_and_closes_its_consumers(
    client: ister.Client,
) -> None:
    async with client.producer("/default/orders") as producer:
        sub = client.subscribe("/default/orders", "billing")
        await sub.open()
        await client.delete_topic("/default/orders")

        with pytest.raises(TopicNotFoundError) as caught:
            await producer.send(b"x")
        assert caught.value.topic == "/default/orders"
        assert [msg async for msg in sub] == []
        with pytest.raises(TopicNotFoundError):
            await client.delete_topic("/default/orders")


async def test_what_is_closed_says_so(harness: Harness) -> None:
    async with harness.connect() as client:
        producer = client.producer("/default/orders")
        await producer.open()
        await producer.close()
        with pytest.raises(ClosedError):
            await producer.send(b"x")
        with pytest.raises(ClosedError):
            producer.send_nowait(b"x")
        open_one = client.producer("/default/orders")
        await open_one.open()
        sub = client.subscribe("/default/orders", "billing")
        await sub.open()

    with pytest.raises(ClosedError):
        await client.topics()
    with pytest.raises(ClosedError):
        await client.request("/default/orders", b"x")
    with pytest.raises(ClosedError):
        await open_one.send(b"x")
    with pytest.raises(ClosedError):
        open_one.send_nowait(b"x")
    with pytest.raises(ClosedError):
        await sub.receive()


async def test_filters_of_a_wrong_type_are_refused(client: ister.Client) -> None:
    wrong: Any = {"country": 1}
    with pytest.raises(BadRequestError, match="must map attribute names to globs"):
        client.subscribe("/default/orders", "work", filters=wrong)
    with pytest.raises(BadRequestError, match="list of globs"):
        client.subscribe("/default/orders", "work", key_filters="eu-*")


async def test_buffers_and_attributes_of_a_wrong_type_are_refused(client: ister.Client) -> None:
    wrong: Any = 1e4
    for buffer in ("buffer_count", "buffer_bytes"):
        with pytest.raises(BadRequestError, match="whole numbers"):
            client.subscribe("/default/orders", "work", **{buffer: wrong})
    wrong = "country=at"
    async with client.producer("/default/orders") as producer:
        with pytest.raises(BadRequestError, match="mapping of text to text"):
            await producer.send(b"x", attributes=wrong)


async def test_a_wrong_type_is_named_in_words_of_the_caller(client: ister.Client) -> None:
    wrong: Any = 4.0
    with pytest.raises(BadRequestError, match="Expected `int`, got `float`") as refused:
        await client.create_topic("/default/orders", partitions=wrong)
    assert "protocol" not in str(refused.value)


async def test_a_purge_goes_up_to_an_offset_only(client: ister.Client) -> None:
    await client.create_topic("/default/orders", kind="stream")
    async with client.producer("/default/orders") as producer:
        await producer.send(b"x")
    for place in (datetime.now(UTC), "latest", True, -1):
        wrong: Any = place
        with pytest.raises(BadRequestError, match="is no offset"):
            await client.purge("/default/orders", before=wrong)
    assert await client.purge("/default/orders") == 1


WRONG: list[Any] = [5, "x", b"x", object(), [], {}, [5], 1.5, float("nan"), -1, 2**70, "\ud800"]
# Of the constructors: what is wrong is told by them, or when they are opened.
MADE: list[Any] = [
    lambda client, wrong: client.producer(wrong),
    lambda client, wrong: client.producer("/default/s", wrong),
    lambda client, wrong: client.producer("/default/s", compression=wrong),
    lambda client, wrong: client.producer("/default/s", schema=wrong),
    lambda client, wrong: client.subscribe(wrong, "z"),
    lambda client, wrong: client.subscribe("/default/s", wrong),
    lambda client, wrong: client.subscribe("/default/s", "z", schema=wrong),
    lambda client, wrong: client.reader(wrong),
    lambda client, wrong: client.reader("/default/s", start=wrong),
    lambda client, wrong: client.reader("/default/s", end=wrong),
    *(
        lambda client, wrong, name=name: client.subscribe("/default/s", "z", **{name: wrong})
        for name in (
            "type", "start", "policy", "consumer", "filters", "key_filters", "buffer_count",
            "buffer_bytes", "ack_timeout", "max_deliveries", "backoff", "dead_letter_topic",
            "in_flight_max", "in_flight_bytes_max", "max_renewal",
        )
    ),
]  # fmt: skip
CALLS: list[Any] = [
    lambda client, wrong: client.view("/default/s", at=wrong),
    lambda client, wrong: client.request(wrong, b"x", timeout=0.01),
    lambda client, wrong: client.request("/default/r", wrong, timeout=0.01),
    lambda client, wrong: client.redrive(wrong, "z"),
    lambda client, wrong: client.redrive("/default/s", wrong),
    lambda client, wrong: client.redrive("/default/s", "z", count=wrong),
    lambda client, wrong: client.seek("/default/s", "z", wrong),
    lambda client, wrong: client.seek("/default/s", "z", snapshot=wrong),
    *(
        lambda client, wrong, name=name: client.create_topic(
            "/default/q", **({"kind": "stream"} | {name: wrong})
        )
        for name in (
            "kind", "partitions", "durability", "retention", "max_age", "max_bytes",
            "max_messages", "ttl", "dedup_window",
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
async def test_a_wholly_wrong_argument_gets_a_typed_error_or_is_taken(
    client: ister.Client, wrong: Any
) -> None:
    await client.create_topic("/default/s", kind="stream")
    for make in MADE:
        with suppress(ister.IsterError):
            made = make(client, wrong)
            await made.open()
            await made.close()
    for call in CALLS:
        with suppress(ister.IsterError):
            await call(client, wrong)

    assert "default" in await client.namespaces()


@pytest.mark.parametrize(
    "wrong",
    [w for w in WRONG if not isinstance(w, int | float)],
    ids=lambda wrong: type(wrong).__name__,
)
async def test_a_wholly_wrong_time_or_message_gets_a_typed_error(
    client: ister.Client, wrong: Any
) -> None:
    async with client.subscribe("/default/s", "z") as sub, client.producer("/default/s") as sender:
        for call in (
            lambda: sub.receive(timeout=wrong),
            lambda: sub.fetch(1, timeout=wrong),
            lambda: sub.fetch(wrong, timeout=0.0),
            lambda: sub.fetch_batches(timeout=wrong),
            lambda: sub.ack_batch(wrong),
            lambda: sub.ack_through(wrong),
            lambda: client.request("/default/s", b"", timeout=wrong),
            lambda: sender.send(b"", ttl=wrong),
            lambda: sender.send_batch([b""], keys=[wrong, wrong]),
        ):
            with pytest.raises(BadRequestError):
                await call()
