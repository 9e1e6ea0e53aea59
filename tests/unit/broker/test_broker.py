"""Namespaces, topics, partitions, wildcards, publishing, listings, and their limits."""

import pytest
from tests.unit.broker.fakes import Bench, FakeSink, numbered

from ister.base.errors import (
    BadBatchError,
    BadNameError,
    BadRequestError,
    BatchTooLargeError,
    LimitReachedError,
    MessageTooLargeError,
    NamespaceExistsError,
    NamespaceNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from ister.base.limits import (
    CONTROL_BYTES_MAX,
    LISTED_CONSUMERS_MAX,
    NAME_BYTES_MAX,
    PARTITIONS_MAX,
)
from ister.codec import Batch, Codec, available, encode
from ister.wire import Subscriptions, Topics, control_frame

COMPRESSED = [codec for codec in available() if codec is not Codec.NONE]


def made(*payloads: bytes, producer: bytes = b"p", **columns: object) -> Batch:
    return Batch(b"".join(encode(payloads, producer=producer, **columns)))  # type: ignore[arg-type]


# Namespaces


def test_the_default_namespace_exists() -> None:
    assert Bench().broker.namespaces() == ["default", "system"]


def test_a_new_namespace_takes_topics() -> None:
    broker = Bench().broker
    broker.create_namespace("shop")
    broker.create_topic("/shop/orders")

    assert broker.report().topics == 1


def test_a_namespace_is_never_made_by_itself() -> None:
    with pytest.raises(NamespaceNotFoundError):
        Bench().broker.create_topic("/shop/orders")


def test_a_namespace_that_exists_is_a_conflict() -> None:
    with pytest.raises(NamespaceExistsError):
        Bench().broker.create_namespace("default")


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "a b", "*"])
def test_a_bad_namespace_is_refused(name: str) -> None:
    with pytest.raises(BadNameError):
        Bench().broker.create_namespace(name)


def test_a_broker_takes_as_many_namespaces_as_its_limit() -> None:
    broker = Bench(namespaces_max=2).broker
    broker.create_namespace("one")

    with pytest.raises(LimitReachedError, match="namespaces_max"):
        broker.create_namespace("two")


# Topics


def test_creating_a_topic_again_does_nothing() -> None:
    broker = Bench().broker
    broker.create_topic("/default/a")
    broker.create_topic("/default/a")

    assert broker.report().topics == 1


@pytest.mark.parametrize(("first", "second"), [(0, 2), (2, 0), (2, 3)])
def test_a_topic_with_another_number_of_partitions_is_a_conflict(first: int, second: int) -> None:
    broker = Bench().broker
    broker.create_topic("/default/a", partitions=first)

    with pytest.raises(TopicExistsError, match=f"{first} partitions"):
        broker.create_topic("/default/a", partitions=second)


def test_another_kind_of_topic_is_refused() -> None:
    with pytest.raises(BadRequestError, match="stream"):
        Bench().broker.create_topic("/default/a", kind="stream")


def test_a_topic_is_made_by_its_first_producer() -> None:
    bench = Bench()
    bench.publish(b"a")

    assert bench.topic_report().messages_in == 1


def test_a_topic_is_made_by_its_first_consumer() -> None:
    bench = Bench()
    bench.consume()

    assert bench.topic_report().subscriptions == 1


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_broker_takes_as_many_topics_as_its_limit(partitions: int) -> None:
    broker = Bench(topics_max=2).broker
    broker.create_topic("/default/a", partitions=2)

    with pytest.raises(LimitReachedError, match="topics_max"):
        broker.create_topic("/default/b", partitions=partitions)


def test_a_refused_partitioned_topic_leaves_no_partitions() -> None:
    broker = Bench(topics_max=2).broker
    with pytest.raises(LimitReachedError):
        broker.create_topic("/default/b", partitions=3)

    assert broker.report().topics == 0


# Partitions


def test_partitions_are_topics_with_a_number() -> None:
    broker = Bench().broker
    broker.create_topic("/default/a", partitions=2)
    rows, _ = broker.topics("/default/a", after="", limit=10)

    assert [row.topic for row in rows] == ["/default/a-part-0", "/default/a-part-1"]


@pytest.mark.parametrize("partitions", [1, PARTITIONS_MAX])
def test_a_number_of_partitions_at_its_limits_is_accepted(partitions: int) -> None:
    broker = Bench().broker
    broker.create_topic("/default/a", partitions=partitions)

    assert broker.partitions("/default/a") == partitions


@pytest.mark.parametrize("partitions", [-1, PARTITIONS_MAX + 1])
def test_a_number_of_partitions_outside_the_limits_is_refused(partitions: int) -> None:
    with pytest.raises(BadRequestError, match="partitions are not"):
        Bench().broker.create_topic("/default/a", partitions=partitions)


def test_a_partitions_name_cannot_be_created() -> None:
    with pytest.raises(BadNameError, match="partitioned"):
        Bench().broker.create_topic("/default/a-part-0")


def test_a_topic_whose_partitions_have_the_longest_name_is_made() -> None:
    broker = Bench().broker
    broker.create_topic("/default/" + "a" * (NAME_BYTES_MAX - 9 - len("-part-9")), partitions=10)

    assert broker.report().topics == 10


def test_a_topic_whose_partitions_names_would_be_too_long_is_refused() -> None:
    broker = Bench().broker

    with pytest.raises(BadNameError):
        broker.create_topic(
            "/default/" + "a" * (NAME_BYTES_MAX - 9 - len("-part-9")), partitions=11
        )


def test_a_producer_opens_partitions_not_the_topic() -> None:
    broker = Bench().broker
    broker.create_topic("/default/a", partitions=2)

    with pytest.raises(BadRequestError, match="partitioned"):
        broker.open_producer("/default/a", "p")


def test_a_subscription_of_a_partitioned_topic_covers_all_partitions() -> None:
    bench = Bench()
    bench.broker.create_topic("/default/a", partitions=2)
    consumer = bench.consume()
    bench.publish(b"0", topic="/default/a-part-0")
    bench.publish(b"1", topic="/default/a-part-1")

    assert [(topic, b.payloads) for _, topic, b in consumer.sink.batches] == [
        ("/default/a-part-0", [b"0"]),
        ("/default/a-part-1", [b"1"]),
    ]


def test_a_subscription_of_one_partition_covers_that_one() -> None:
    bench = Bench()
    bench.broker.create_topic("/default/a", partitions=2)
    consumer = bench.consume("/default/a-part-1")
    bench.publish(b"0", topic="/default/a-part-0")
    bench.publish(b"1", topic="/default/a-part-1")

    assert consumer.payloads == [b"1"]


def test_each_partition_counts_its_own_offsets() -> None:
    bench = Bench()
    bench.broker.create_topic("/default/a", partitions=2)
    first = bench.publish(b"0", topic="/default/a-part-0")
    second = bench.publish(b"1", topic="/default/a-part-1")

    assert first.base_offset == second.base_offset == 0


# Wildcards


def test_a_wildcard_covers_topics_that_exist() -> None:
    bench = Bench()
    bench.producer("/default/orders.eu")
    consumer = bench.consume("/default/orders.*")
    bench.publish(b"a", topic="/default/orders.eu")

    assert consumer.payloads == [b"a"]


def test_a_wildcard_covers_topics_that_are_made_later() -> None:
    bench = Bench()
    consumer = bench.consume("/default/orders.>")
    bench.publish(b"a", topic="/default/orders.eu.paris")
    bench.publish(b"b", topic="/default/bills.eu")

    assert consumer.payloads == [b"a"]


def test_a_wildcard_covers_partitions_that_are_made_later() -> None:
    bench = Bench()
    consumer = bench.consume("/default/*")
    bench.broker.create_topic("/default/a", partitions=2)
    bench.publish(b"a", topic="/default/a-part-1")

    assert consumer.payloads == [b"a"]


def test_a_wildcard_makes_no_topic() -> None:
    bench = Bench()
    bench.consume("/default/>")

    assert bench.broker.report().topics == 0


def test_a_wildcard_that_has_ended_takes_no_more_topics() -> None:
    bench = Bench()
    bench.consume("/default/>").leave()
    bench.producer()

    assert bench.topic_report().subscriptions == 0


def test_a_wildcard_outlives_the_topics_it_covers() -> None:
    bench = Bench()
    consumer = bench.consume("/default/>")
    bench.producer()
    bench.broker.delete_topic("/default/a")
    bench.publish(b"b", topic="/default/b")

    assert (consumer.sink.closed, consumer.payloads) == ([], [b"b"])


# Deleting


def test_what_is_dropped_with_a_deleted_topic_is_in_the_totals() -> None:
    bench = Bench()
    bench.consume(credit=0)
    bench.publish(b"a", b"b")
    bench.broker.delete_topic("/default/a")

    assert bench.broker.report().messages_dropped == 2


def test_a_deleted_topic_is_gone() -> None:
    broker = Bench().broker
    broker.create_topic("/default/a")
    broker.delete_topic("/default/a")

    assert broker.report().topics == 0


def test_a_deleted_topic_takes_its_partitions_with_it() -> None:
    broker = Bench().broker
    broker.create_topic("/default/a", partitions=3)
    broker.delete_topic("/default/a")

    assert broker.report().topics == 0


@pytest.mark.parametrize("name", ["/default/b", "/default/a-part-0"])
def test_only_a_whole_topic_that_exists_can_be_deleted(name: str) -> None:
    broker = Bench().broker
    broker.create_topic("/default/a", partitions=2)

    with pytest.raises(TopicNotFoundError):
        broker.delete_topic(name)


def test_consumers_of_a_deleted_topic_are_closed_and_told_why() -> None:
    bench = Bench()
    consumer = bench.consume()
    bench.broker.delete_topic("/default/a")

    assert consumer.sink.closed == [(consumer.consumer.channel, "topic /default/a was deleted")]


def test_consumers_of_one_partition_are_closed_with_the_topic() -> None:
    bench = Bench()
    bench.broker.create_topic("/default/a", partitions=2)
    consumer = bench.consume("/default/a-part-1")
    bench.broker.delete_topic("/default/a")

    assert len(consumer.sink.closed) == 1


def test_a_producer_of_a_deleted_topic_is_told_when_it_publishes() -> None:
    bench = Bench()
    bench.publish(b"a")
    bench.broker.delete_topic("/default/a")

    with pytest.raises(TopicNotFoundError):
        bench.publish(b"b")


def test_what_waited_on_a_deleted_topic_leaves_the_budget() -> None:
    bench = Bench()
    for _ in range(3):
        bench.consume(type="failover", credit=0)
    bench.publish(*numbered(0, 5))
    bench.broker.delete_topic("/default/a")

    assert bench.broker.budget.queued_bytes == 0


def test_totals_of_the_broker_do_not_fall_when_a_topic_is_deleted() -> None:
    bench = Bench()
    bench.consume()
    bench.publish(b"a", b"b")
    bench.broker.delete_topic("/default/a")
    report = bench.broker.report()

    assert (report.messages_in, report.messages_out) == (2, 2)


def test_a_topic_made_again_starts_at_offset_zero_with_a_new_number() -> None:
    bench = Bench()
    first = bench.producer()
    bench.publish(b"a")
    bench.broker.delete_topic("/default/a")
    second = bench.broker.open_producer("/default/a", "p")

    assert (second.topic.next_offset, second.topic.number > first.topic.number) == (0, True)


# Publishing


def test_a_batch_is_stamped_with_offset_and_time() -> None:
    bench = Bench()
    bench.publish(b"a", b"b")
    bench.clock.ms = 5_000
    batch = bench.publish(b"c")

    assert (batch.base_offset, batch.publish_time_ms) == (2, 5_000)


def test_a_message_nobody_takes_is_dropped_and_counted() -> None:
    bench = Bench()
    bench.publish(b"a", b"b")

    assert bench.topic_report().messages_dropped == 2


def test_a_batch_under_another_name_is_refused() -> None:
    bench = Bench()

    with pytest.raises(BadBatchError, match="name"):
        bench.broker.publish(bench.producer(), made(b"a", producer=b"q"))


def test_a_producer_cannot_choose_its_offsets() -> None:
    bench = Bench()

    with pytest.raises(BadBatchError, match="offsets are given by the broker"):
        bench.broker.publish(bench.producer(), made(b"a", offsets=[1_000]))


def test_a_refused_batch_uses_no_offsets() -> None:
    bench = Bench()
    with pytest.raises(BadBatchError):
        bench.broker.publish(bench.producer(), made(b"a", offsets=[1_000]))

    assert bench.publish(b"a").base_offset == 0


@pytest.mark.parametrize("size", [99, 100])
def test_a_message_up_to_the_limit_is_taken(size: int) -> None:
    bench = Bench(message_bytes_max=100)

    assert bench.publish(b"x" * size).base_offset == 0


def test_a_message_one_byte_over_the_limit_is_refused() -> None:
    bench = Bench(message_bytes_max=100)

    with pytest.raises(MessageTooLargeError, match="101B exceeds the 100B limit"):
        bench.publish(b"x" * 101)


@pytest.mark.parametrize("room", [1, 0])
def test_a_batch_up_to_the_limit_is_taken(room: int) -> None:
    bench = Bench(batch_bytes_max=made(b"x" * 100).size_bytes + room)

    assert bench.publish(b"x" * 100).base_offset == 0


def test_a_batch_one_byte_over_the_limit_is_refused() -> None:
    bench = Bench(batch_bytes_max=made(b"x" * 100).size_bytes - 1)

    with pytest.raises(BatchTooLargeError):
        bench.publish(b"x" * 100)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_a_batch_that_unpacks_to_more_than_the_limit_is_refused(codec: Codec) -> None:
    bench = Bench(batch_bytes_max=1_000)

    with pytest.raises(BatchTooLargeError):
        bench.publish(bytes(2_000), codec=codec)


def test_the_number_of_producers_is_reported() -> None:
    bench = Bench()
    producer = bench.broker.open_producer("/default/a", "p")
    bench.broker.open_producer("/default/a", "q")
    bench.broker.close_producer(producer)

    assert bench.topic_report().producers == 1


def test_a_bad_producer_name_is_refused() -> None:
    with pytest.raises(BadNameError, match="producer"):
        Bench().broker.open_producer("/default/a", "a b")


# Listings


def test_topics_come_by_name_a_page_at_a_time() -> None:
    broker = Bench().broker
    for name in "cab":
        broker.create_topic(f"/default/{name}")
    first, after = broker.topics("", after="", limit=2)
    second, end = broker.topics("", after=after, limit=2)

    assert [row.topic[-1] for row in first + second] == ["a", "b", "c"]
    assert (after, end) == ("/default/b", "")


def test_a_page_that_is_exactly_full_is_the_last() -> None:
    broker = Bench().broker
    broker.create_topic("/default/a")

    assert broker.topics("", after="", limit=1)[1] == ""


@pytest.mark.parametrize("limit", [0, -5])
def test_a_page_has_at_least_one_row(limit: int) -> None:
    broker = Bench().broker
    broker.create_topic("/default/a")

    assert len(broker.topics("", after="", limit=limit)[0]) == 1


def test_topics_are_listed_by_pattern() -> None:
    broker = Bench().broker
    for name in ("a.x", "a.y", "b.x"):
        broker.create_topic(f"/default/{name}")

    assert len(broker.topics("/default/*.x", after="", limit=10)[0]) == 2


@pytest.mark.parametrize("pattern", ["x", "a/b", "/default", "/default/a*"])
def test_a_bad_pattern_in_a_listing_is_refused(pattern: str) -> None:
    broker = Bench().broker
    broker.create_topic("/default/a")

    with pytest.raises(BadNameError):
        broker.topics(pattern, after="", limit=10)


def test_subscriptions_are_listed_by_a_topic_they_cover() -> None:
    bench = Bench()
    bench.producer("/default/a")
    bench.consume("/default/>", "wild")
    bench.consume("/default/b", "other")

    rows, _ = bench.broker.subscriptions("/default/a", after="", limit=10)
    assert [row.subscription for row in rows] == ["wild"]


def test_a_page_of_large_subscriptions_ends_early_and_the_next_goes_on() -> None:
    bench = Bench()
    for number in range(20):
        bench.consume(subscription=f"s{number:02}", key_filters=["k" * 4_000] * 15)
    rows, after, pages = [], "", 0
    while after or not pages:
        page, after = bench.broker.subscriptions("", after=after, limit=1_000)
        rows += page
        pages += 1

    assert [row.subscription for row in rows] == [f"s{number:02}" for number in range(20)]
    assert pages > 1


@pytest.mark.parametrize("consumers", [1, LISTED_CONSUMERS_MAX + 1])
def test_any_page_of_subscriptions_fits_into_a_control_frame(consumers: int) -> None:
    bench = Bench()
    sink = FakeSink("[" + "f" * 39 + "]:65535")
    for number in range(20 if consumers == 1 else 2):
        for one in range(consumers):
            bench.consume(
                f"/default/{'a' * 240}",
                f"{number:0255}",
                type="shared",
                consumer=f"{one:0255}",
                sink=sink,
                key_filters=["ö" * 1_000] * (30 if consumers == 1 else 0),
            )
    rows, after = bench.broker.subscriptions("", after="", limit=1_000)

    assert len(control_frame(Subscriptions(rows=rows, after=after))) <= CONTROL_BYTES_MAX


def test_a_full_page_of_topics_fits_into_a_control_frame() -> None:
    broker = Bench().broker
    for number in range(1_000):
        broker.create_topic(f"/default/{number:0246}")
    rows, after = broker.topics("", after="", limit=1_000)

    assert len(rows) == 1_000
    assert len(control_frame(Topics(rows=rows, after=after))) <= CONTROL_BYTES_MAX


def test_a_report_sums_over_topics() -> None:
    bench = Bench()
    bench.consume("/default/>")
    bench.publish(b"a", topic="/default/a")
    bench.publish(b"b", b"c", topic="/default/b")
    bench.clock.ms += 2_500
    report = bench.broker.report()

    assert (report.messages_in, report.messages_out, report.uptime_s) == (3, 3, 2.5)


def test_a_forgotten_partitioned_topic_is_made_again_as_a_client_knew_it() -> None:
    broker = Bench().broker
    broker.partitions("/default/p-part-1", known=3)

    assert broker.partition_count("/default/p") == 3


def test_a_partition_past_the_known_number_is_not_found() -> None:
    broker = Bench().broker
    with pytest.raises(TopicNotFoundError):
        broker.partitions("/default/p-part-3", known=3)


def test_what_a_client_remembers_does_not_change_a_topic_that_exists() -> None:
    broker = Bench().broker
    broker.create_topic("/default/p", partitions=2)

    assert broker.partitions("/default/p", known=5) == 2
