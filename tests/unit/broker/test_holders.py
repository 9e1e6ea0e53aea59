"""The topics that a consumer has leases on, and parked messages when consumers join and leave."""

from tests.unit.broker.streambench import TOPIC, StreamBench

from ister.broker.durable.holders import COUNT_MIN, Holders
from ister.subscriptions.planning.key_shared import SORTED_AT_ONCE


def test_topics_without_leases_are_removed() -> None:
    bench = StreamBench()
    bench.create("/default/a")
    member = bench.consume("/default/a", credit=0)
    partition = next(iter(member.durable.partitions))
    holders = Holders()

    for number in range(COUNT_MIN + 1):
        holders.add(("client", str(number)), partition)

    assert holders.of(("client", "0")) == []
    assert holders._count <= 1


def test_a_lost_consumer_of_a_shared_subscription_leaves_nothing_behind() -> None:
    bench = StreamBench()
    bench.create(TOPIC)
    member = bench.consume(TOPIC, type="shared", consumer="c")

    bench.broker.subscribers.unsubscribe(member.membership, graceful=False)

    assert not member.durable.members.away


def test_parked_messages_are_sorted_in_several_turns_and_delivered_in_order() -> None:
    bench = StreamBench()
    bench.create(TOPIC)
    count = 2 * SORTED_AT_ONCE + 10
    first = bench.consume(TOPIC, type="key_shared", consumer="a", credit=0)
    # Parked for who has no credit, because somebody has.
    second = bench.consume(TOPIC, type="key_shared", consumer="b", credit=1)
    keys = [f"k{n % 97}" for n in range(count)]
    bench.publish(*[b"x"] * count, keys=keys)

    bench.broker.subscribers.unsubscribe(second.membership)
    first.grant(count)
    bench.clock.advance(0.1)

    by_key: dict[str, list[int]] = {}
    for message in first.messages:
        by_key.setdefault(message.key or "", []).append(message.offset)
    assert len(first.messages) == count
    assert all(offsets == sorted(offsets) for offsets in by_key.values())
