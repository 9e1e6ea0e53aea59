"""A consumer's credit and queue: nothing without credit, oldest dropped first, nobody else hurt."""

import pytest
from tests.unit.broker.fakes import Bench, FakeSink, numbered

from ister.base.limits import CREDIT_MAX
from ister.codec import Codec, available


def test_nothing_is_sent_before_credit_is_granted() -> None:
    bench = Bench()
    consumer = bench.consume(credit=0)
    bench.publish(b"a")

    assert consumer.payloads == []


def test_what_waited_is_sent_when_credit_comes() -> None:
    bench = Bench()
    consumer = bench.consume(credit=0)
    bench.publish(b"a")
    bench.publish(b"b")
    consumer.consumer.grant(2, 1_000)

    assert consumer.payloads == [b"a", b"b"]


@pytest.mark.parametrize(("credit", "sent"), [(2, 2), (3, 3), (4, 3)])
def test_a_batch_is_cut_where_the_credit_ends(credit: int, sent: int) -> None:
    bench = Bench()
    consumer = bench.consume(credit=credit)
    bench.publish(*numbered(0, 3))

    assert consumer.payloads == numbered(0, sent)


@pytest.mark.parametrize("codec", available())
@pytest.mark.parametrize("grant", [1, 3, 7])
def test_a_batch_in_small_grants_arrives_whole_and_in_order(grant: int, codec: Codec) -> None:
    bench = Bench()
    consumer = bench.consume(credit=0)
    bench.publish(*numbered(0, 20), keys=[str(n) for n in range(20)], codec=codec)
    for _ in range(20):
        consumer.consumer.grant(grant, 1_000)

    assert consumer.payloads == numbered(0, 20)
    assert consumer.sink.offsets == list(range(20))


def test_a_batch_that_is_partly_sent_stays_ahead_of_the_next() -> None:
    bench = Bench()
    consumer = bench.consume(credit=2)
    bench.publish(*numbered(0, 3))
    bench.publish(*numbered(3, 6))
    consumer.consumer.grant(4, 1_000)

    assert consumer.payloads == numbered(0, 6)


def test_credit_is_used_up_by_messages() -> None:
    bench = Bench()
    consumer = bench.consume(credit=5)
    bench.publish(*numbered(0, 3))

    assert consumer.consumer.credit_count == 2


def test_credit_is_used_up_by_the_bytes_of_batches() -> None:
    bench = Bench()
    consumer = bench.consume(credit=5, credit_bytes=1_000)
    batch = bench.publish(b"a")

    assert consumer.consumer.credit_bytes == 1_000 - batch.size_bytes


def test_byte_credit_may_be_overdrawn_by_one_batch() -> None:
    bench = Bench()
    consumer = bench.consume(credit=10, credit_bytes=1)
    bench.publish(b"x" * 1_000)
    bench.publish(b"y")

    assert consumer.payloads == [b"x" * 1_000]


@pytest.mark.parametrize(("missing", "sent"), [(1, 1), (0, 1), (-1, 2)])
def test_an_overdraft_is_paid_back_before_more_is_sent(missing: int, sent: int) -> None:
    bench = Bench()
    consumer = bench.consume(credit=10, credit_bytes=1)
    owed = bench.publish(b"x" * 1_000).size_bytes - 1
    bench.publish(b"y")
    consumer.consumer.grant(0, owed - missing)

    assert len(consumer.payloads) == sent


def test_credit_never_grows_past_its_limit() -> None:
    consumer = Bench().consume(credit=CREDIT_MAX, credit_bytes=CREDIT_MAX).consumer
    consumer.grant(1, 1)

    assert (consumer.credit_count, consumer.credit_bytes) == (CREDIT_MAX, CREDIT_MAX)


def test_nothing_is_sent_while_the_connection_is_full() -> None:
    bench = Bench()
    consumer = bench.consume()
    consumer.sink.writable = False
    bench.publish(b"a")

    assert consumer.payloads == []


def test_a_connection_with_room_again_is_sent_what_waited() -> None:
    bench = Bench()
    consumer = bench.consume()
    consumer.sink.writable = False
    bench.publish(b"a")
    consumer.sink.writable = True
    consumer.consumer.send_queued()

    assert consumer.payloads == [b"a"]


def test_a_new_batch_does_not_overtake_the_queue() -> None:
    bench = Bench()
    consumer = bench.consume()
    consumer.sink.writable = False
    bench.publish(b"a")
    consumer.sink.writable = True
    bench.publish(b"b")

    assert consumer.payloads == [b"a", b"b"]


def test_a_consumer_without_credit_does_not_hold_up_another_subscription() -> None:
    bench = Bench()
    bench.consume(subscription="slow", credit=0)
    fast = bench.consume(subscription="fast")
    bench.publish(b"a")

    assert fast.payloads == [b"a"]


# Overflow


@pytest.mark.parametrize(("published", "dropped"), [(4, 0), (5, 0), (6, 1), (9, 4)])
def test_a_full_queue_drops_the_oldest(published: int, dropped: int) -> None:
    bench = Bench(queue_count_max=5)
    consumer = bench.consume(credit=0)
    for payload in numbered(0, published):
        bench.publish(payload)
    consumer.consumer.grant(100, 100_000)

    assert consumer.payloads == numbered(dropped, published)


def test_a_queue_is_also_full_by_bytes() -> None:
    bench = Bench(queue_bytes_max=3 * 80)
    consumer = bench.consume(credit=0)
    for payload in numbered(0, 4):
        assert bench.publish(payload).size_bytes == 64 + 8 + 8 + 8
    consumer.consumer.grant(100, 100_000)

    assert consumer.payloads == numbered(2, 4)


def test_one_batch_larger_than_the_queue_is_kept() -> None:
    bench = Bench(queue_count_max=5, queue_bytes_max=100)
    consumer = bench.consume(credit=0)
    bench.publish(*numbered(0, 50))
    consumer.consumer.grant(100, 100_000)

    assert consumer.payloads == numbered(0, 50)


def test_dropped_messages_are_counted_for_the_consumer_and_the_topic() -> None:
    bench = Bench(queue_count_max=5)
    consumer = bench.consume(credit=0)
    for payload in numbered(0, 8):
        bench.publish(payload)

    assert consumer.consumer.dropped == 3
    assert bench.topic_report().messages_dropped == 3


def test_of_a_batch_that_was_partly_sent_only_the_rest_is_dropped() -> None:
    bench = Bench(queue_count_max=5)
    consumer = bench.consume(credit=2)
    bench.publish(*numbered(0, 5))
    bench.publish(*numbered(5, 10))

    assert (consumer.consumer.dropped, consumer.consumer.queued_count) == (3, 5)


def test_a_slow_consumer_is_told_of_its_first_drop_at_once() -> None:
    bench = Bench(queue_count_max=2)
    consumer = bench.consume(credit=0)
    for payload in numbered(0, 3):
        bench.publish(payload)

    assert consumer.sink.slow == [(consumer.consumer.channel, 1)]


def test_a_slow_consumer_that_makes_no_progress_is_told_only_once() -> None:
    bench = Bench(queue_count_max=2)
    consumer = bench.consume(credit=0)
    for payload in numbered(0, 100):
        bench.publish(payload)

    assert len(consumer.sink.slow) == 1


def test_a_slow_consumer_that_goes_on_is_told_of_all_it_has_lost() -> None:
    bench = Bench(queue_count_max=2)
    consumer = bench.consume(credit=0)
    for payload in numbered(0, 100):
        bench.publish(payload)
    consumer.consumer.grant(1, 1_000)

    assert consumer.sink.slow[1:] == [(consumer.consumer.channel, 98)]


def test_a_slow_consumer_is_told_only_when_its_connection_has_room() -> None:
    bench = Bench(queue_count_max=2)
    consumer = bench.consume()
    consumer.sink.writable = False
    for payload in numbered(0, 4):
        bench.publish(payload)
    told_while_full = list(consumer.sink.slow)
    consumer.sink.writable = True
    consumer.consumer.send_queued()

    assert (told_while_full, consumer.sink.slow) == ([], [(consumer.consumer.channel, 2)])


def test_a_slow_consumer_costs_another_nothing() -> None:
    bench = Bench(queue_count_max=2)
    bench.consume(subscription="slow", credit=0)
    fast = bench.consume(subscription="fast")
    for payload in numbered(0, 100):
        bench.publish(payload)

    assert (fast.payloads, fast.sink.slow) == (numbered(0, 100), [])


# The budget of all queues together


def test_all_queues_together_stay_within_the_budget() -> None:
    bench = Bench(queues_bytes_max=10_000)
    for number in range(20):
        bench.consume(f"/default/t{number}", credit=0)
    for number in range(200):
        bench.publish(b"x" * 500, topic=f"/default/t{number % 20}")

        assert bench.broker.budget.queued_bytes <= 10_000


def test_the_fullest_queue_pays_for_the_budget() -> None:
    bench = Bench(queues_bytes_max=10_000)
    hog = bench.consume("/default/hog", credit=0)
    small = bench.consume("/default/small", credit=0)
    bench.publish(b"kept", topic="/default/small")
    for _ in range(100):
        bench.publish(b"x" * 500, topic="/default/hog")

    assert (small.consumer.dropped, hog.consumer.dropped > 0) == (0, True)


def test_a_consumer_briefly_behind_loses_nothing_to_a_full_budget() -> None:
    bench = Bench(queues_bytes_max=10_000)
    bench.consume("/default/hog", credit=0)
    for _ in range(17):
        bench.publish(b"x" * 500, topic="/default/hog")
    brief = bench.consume("/default/brief", credit=1)
    for payload in numbered(0, 10):
        bench.publish(payload, topic="/default/brief")
    brief.consumer.grant(100, 100_000)

    assert brief.payloads == numbered(0, 10)


def test_who_pays_for_the_budget_is_told() -> None:
    bench = Bench(queues_bytes_max=10_000)
    hog = bench.consume("/default/hog", credit=0)
    other = bench.consume("/default/other", credit=0)
    for _ in range(16):
        bench.publish(b"x" * 500, topic="/default/hog")
    for _ in range(8):
        bench.publish(b"y" * 100, topic="/default/other")

    assert (bool(hog.sink.slow), other.sink.slow) == (True, [])


def test_what_is_sent_or_dropped_leaves_the_budget() -> None:
    bench = Bench(queue_count_max=5)
    consumer = bench.consume(credit=0)
    for _ in range(20):
        bench.publish(*numbered(0, 3))
    consumer.consumer.grant(1, 1_000)
    consumer.consumer.grant(1_000, 100_000)

    assert bench.broker.budget.queued_bytes == consumer.consumer.queued_count == 0


def test_what_a_leaving_consumer_had_leaves_the_budget() -> None:
    bench = Bench()
    consumer = bench.consume(credit=1)
    bench.publish(*numbered(0, 3))
    consumer.leave()

    assert (bench.broker.budget.queued_bytes, bench.broker.budget.holders) == (0, set())


@pytest.mark.parametrize("codec", [c for c in available() if c is not Codec.NONE])
def test_a_compressed_batch_counts_unpacked_once_it_is_cut(codec: Codec) -> None:
    bench = Bench()
    consumer = bench.consume(credit=0)
    bench.publish(bytes(10_000), bytes(10_000), codec=codec)
    packed_bytes = bench.broker.budget.queued_bytes
    consumer.consumer.grant(1, 1_000)

    assert packed_bytes < 1_000
    assert bench.broker.budget.queued_bytes > 20_000


def test_a_queued_batch_does_not_hold_the_buffer_it_came_in() -> None:
    bench = Bench()
    consumer = bench.consume(credit=0)
    bench.publish(b"a")
    taken = consumer.consumer.take_first()

    assert taken is not None
    assert not taken[1]._parsed


def test_a_report_tells_credit_and_queue() -> None:
    bench = Bench()
    consumer = bench.consume(credit=2, sink=FakeSink("10.0.0.1:5"))
    bench.publish(*numbered(0, 5))
    report = consumer.consumer.report(active=True)

    assert (report.address, report.credit, report.queued, report.delivered, report.dropped) == (
        "10.0.0.1:5",
        0,
        3,
        2,
        0,
    )
