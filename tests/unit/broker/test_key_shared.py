"""Key-shared subscriptions on streams: one owner for each key, and with ordering one at a time."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.unit.broker.streambench import TOPIC, Delivered, Member, StreamBench

from ister.broker.durable.poison import REFUSED_RETRY_MS
from ister.broker.streams.stream import READ_BYTES
from ister.subscriptions.planning import key_shared
from ister.testing import Fault

ORDERED = {"ordered": True}


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create()
    return bench


def join(bench: StreamBench, name: str, *, credit: int = 1_000, **options: Any) -> Member:
    return bench.consume(type="key_shared", consumer=name, owner=name, credit=credit, **options)


def publish(bench: StreamBench, keys: Sequence[str | None]) -> None:
    bench.publish(*(b"%d" % n for n in range(len(keys))), keys=keys)


def owner(members: Sequence[Member], key: str) -> Member:
    """Return who has a key by the ring."""
    name = members[0].durable.members.ring.owner(key)
    return next(m for m in members if m.membership.consumer.name == name)


def key_of(members: Sequence[Member], member: Member) -> str:
    """Return a key that a member owns."""
    return next(k for k in map(str, range(1_000)) if owner(members, k) is member)


# Owners


def test_all_messages_of_a_key_go_to_one_consumer_in_order(bench: StreamBench) -> None:
    members = [join(bench, name) for name in "abc"]
    publish(bench, [str(n % 20) for n in range(200)])

    assert sum(len(m.messages) for m in members) == 200
    assert all(m.messages for m in members)
    for key in map(str, range(20)):
        (holder,) = [m for m in members if any(d.key == key for d in m.messages)]
        assert holder is owner(members, key)
        offsets = [d.offset for d in holder.messages if d.key == key]
        assert offsets == sorted(offsets)


def test_a_message_without_a_key_has_an_owner(bench: StreamBench) -> None:
    members = [join(bench, name) for name in "ab"]
    publish(bench, [None, None])

    assert sorted(len(m.messages) for m in members) == [0, 2]


def test_an_owner_without_credit_does_not_hold_up_the_others(bench: StreamBench) -> None:
    slow, fast = join(bench, "a", credit=0), join(bench, "b")
    members = [slow, fast]
    key, other = key_of(members, slow), key_of(members, fast)
    publish(bench, [key, other, key, other, other])

    assert fast.offsets == [1, 3, 4]
    assert slow.offsets == []
    slow.grant(1)
    assert slow.offsets == [0]
    slow.grant(10)
    assert slow.offsets == [0, 2]


def test_what_waits_for_an_owner_goes_before_what_comes_later() -> None:
    bench = StreamBench(tail_bytes=1)
    bench.create()
    slow, fast = join(bench, "a", credit=0), join(bench, "b")
    key = key_of([slow, fast], slow)
    for _ in range(20):
        publish(bench, [key])
    # What waits has to be read again, while the next one is in memory.
    slow.membership.consumer.grant(1_000, 1 << 30)
    publish(bench, [key])

    assert slow.offsets == list(range(21))


def test_what_waits_for_a_consumer_that_leaves_goes_to_the_next_owner(bench: StreamBench) -> None:
    slow, fast = join(bench, "a", credit=0), join(bench, "b")
    key = key_of([slow, fast], slow)
    publish(bench, [key, key])
    slow.leave()

    assert fast.offsets == [0, 1]


def test_what_waits_goes_to_a_consumer_that_joins(bench: StreamBench) -> None:
    slow = join(bench, "a", credit=0)
    publish(bench, [str(n) for n in range(100)])
    other = join(bench, "b")

    mine = [int(d.key or "") for d in other.messages]
    assert 10 < len(mine) < 90
    assert all(owner([slow, other], str(key)) is other for key in mine)
    slow.grant(1_000)
    assert sorted(slow.offsets + other.offsets) == list(range(100))


def test_a_consumer_with_key_filters_gets_only_such_keys(bench: StreamBench) -> None:
    fruit = join(bench, "a", key_filters=["apple*"])
    publish(bench, ["apple-1", "pear", "apple-2"])

    assert fruit.offsets == [0, 2]
    assert bench.lag() == 3
    # Somebody for the rest comes later.
    rest = join(bench, "b", key_filters=["p*"])
    assert rest.offsets == [1]


def test_what_nobody_takes_holds_up_a_topic_only_when_it_is_too_much(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_shared, "QUEUED_MAX", 5)
    fruit = join(bench, "a", key_filters=["apple"])
    for _ in range(5):
        publish(bench, ["apple"])
        publish(bench, ["pear"])
    publish(bench, ["apple"])
    assert fruit.offsets == [0, 2, 4, 6, 8]

    rest = join(bench, "b", key_filters=["pear"])
    assert rest.offsets == [1, 3, 5, 7, 9]
    assert fruit.offsets == [0, 2, 4, 6, 8, 10]


def test_retention_makes_room_among_what_nobody_takes(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_shared, "QUEUED_MAX", 3)
    fruit = join(bench, "a", key_filters=["apple"])
    publish(bench, ["pear"] * 3)
    publish(bench, ["apple"])
    assert fruit.offsets == []
    bench.broker.purge(TOPIC, 2, lambda _: None)
    bench.settle()

    assert fruit.offsets == [3]


def test_what_waits_too_long_for_an_owner_is_not_delivered() -> None:
    bench = StreamBench()
    bench.create(ttl_ms=500)
    slow, fast = join(bench, "a", credit=0), join(bench, "b")
    publish(bench, [key_of([slow, fast], slow)])
    bench.advance(500)
    slow.grant(10)

    assert slow.offsets == []
    assert bench.lag() == 0


def test_a_lost_owner_comes_back_to_its_keys(bench: StreamBench) -> None:
    first, other = join(bench, "a"), join(bench, "b")
    key = key_of([first, other], first)
    publish(bench, [key])
    (message,) = first.take()
    first.lose()
    back = join(bench, "a")
    publish(bench, [key])

    assert back.ack(message) == []
    assert back.offsets == [1]


# Ordered


def holders(members: Sequence[Member]) -> list[Delivered]:
    return [delivered for member in members for delivered in member.messages]


def test_with_ordering_one_message_of_a_key_is_in_flight(bench: StreamBench) -> None:
    member = join(bench, "a", acks=ORDERED)
    publish(bench, ["x", "x", "y", "x", "y"])
    assert member.offsets == [0, 2]

    member.ack(member.take()[0])
    assert member.take_offsets() == [1]


def test_with_ordering_a_message_that_comes_again_stays_before_the_next(
    bench: StreamBench,
) -> None:
    member = join(bench, "a", acks=ORDERED)
    publish(bench, ["x", "x"])
    member.nack(*member.take(), delay_ms=100)
    bench.advance(99)
    assert member.offsets == []

    bench.advance(1)
    (again,) = member.take()
    assert (again.offset, again.attempt) == (0, 2)
    member.ack(again)
    assert member.offsets == [1]


def test_with_ordering_the_order_is_kept_over_a_restart(bench: StreamBench) -> None:
    member = join(bench, "a", acks=ORDERED)
    publish(bench, ["x", "y", "x", "y", "x"])
    first = member.take()
    member.ack(first[0])
    member.nack(first[1], delay_ms=60_000)
    assert bench.confirm() is None
    bench.restart("none")
    member = join(bench, "a", acks=ORDERED)

    assert [(m.offset, m.attempt) for m in member.take()] == [(1, 2), (2, 1)]


def test_with_ordering_the_order_is_kept_when_consumers_come_and_go(bench: StreamBench) -> None:
    members = {name: join(bench, name, acks=ORDERED) for name in "ab"}
    publish(bench, [str(n % 5) for n in range(40)])
    seen: dict[str | None, list[int]] = {}
    for step in range(60):
        name = "abc"[step % 3]
        if name in members and step % 7 == 0:
            members.pop(name).leave()
        elif name not in members:
            members[name] = join(bench, name, acks=ORDERED)
        for member in list(members.values()):
            for delivered in member.take():
                seen.setdefault(delivered.key, []).append(delivered.offset)
                member.ack(delivered)

    assert bench.lag() == 0
    for offsets in seen.values():
        # A message may come twice when its consumer leaves, but never after a later one.
        assert offsets == sorted(offsets)


def test_with_ordering_the_next_goes_to_the_owner_as_it_is_then(bench: StreamBench) -> None:
    first = join(bench, "a", acks=ORDERED)
    keys = [str(n) for n in range(20)]
    publish(bench, keys + keys)
    second = join(bench, "b", acks=ORDERED)
    assert second.offsets == []
    first.ack(*first.take())

    moved = {d.key for d in second.messages}
    assert moved == {k for k in keys if owner([first, second], k) is second}
    assert len(moved) + len(first.messages) == 20


def test_with_ordering_a_dead_letter_lets_the_next_go(bench: StreamBench) -> None:
    member = join(bench, "a", acks=ORDERED | {"max_deliveries": 1})
    publish(bench, ["x", "x"])
    member.nack(*member.take())

    assert member.offsets == [1]


def test_with_ordering_a_dead_letter_that_cannot_be_stored_stays_first(
    bench: StreamBench,
) -> None:
    member = join(bench, "a", acks=ORDERED | {"max_deliveries": 1})
    publish(bench, ["x", "x"])
    bench.disk.fail(Fault(lasting=True))
    member.nack(*member.take())
    bench.advance(3_000)
    assert member.offsets == []

    bench.disk.heal()
    bench.advance(3_000)
    assert member.offsets == [1]


def test_with_ordering_a_dead_message_found_at_the_start_stays_first_of_its_key(
    bench: StreamBench,
) -> None:
    acks = ORDERED | {"max_deliveries": 1, "dead_letter_topic": "/default/dead"}
    member = join(bench, "a", acks=acks)
    bench.create("/default/dead", partitions=2)  # Nothing for dead letters.
    publish(bench, ["x", "x", "y", "x", "z"])
    durable = member.durable
    member.leave()
    (partition,) = durable.partitions
    partition.cursor.fail_run(0, 2, 1)
    durable.ack_journal.mark_dirty(partition)
    assert bench.confirm() is None
    bench.restart("none")
    member = join(bench, "a", acks=acks)
    bench.advance(10)
    assert member.take_offsets() == [2, 4]

    bench.broker.delete_topic("/default/dead")
    bench.advance(REFUSED_RETRY_MS)
    assert 3 in member.take_offsets()
    assert [m.payload for m in bench.stored("/default/dead")][:2] == [b"0", b"1"]


def test_with_ordering_what_retention_drops_lets_the_next_go(bench: StreamBench) -> None:
    member = join(bench, "a", acks=ORDERED)
    publish(bench, ["x", "y", "x", "x"])
    bench.broker.purge(TOPIC, 3, lambda _: None)
    bench.settle()

    assert member.offsets == [0, 1, 3]


def test_with_ordering_a_seek_starts_every_key_anew(bench: StreamBench) -> None:
    member = join(bench, "a", acks=ORDERED)
    publish(bench, ["x", "x", "x"])
    member.ack(*member.take())
    bench.seek(0)

    assert member.take_offsets()[-1] == 0
    assert bench.report().cursor.in_flight == 1


def test_ordering_can_be_asked_for_later(bench: StreamBench) -> None:
    member = join(bench, "a", credit=1, acks={})
    publish(bench, ["x", "x", "y"])
    assert member.offsets == [0]
    member.leave()
    ordered = join(bench, "a", acks=ORDERED)
    assert ordered.take_offsets() == [0, 2]
    ordered.leave()

    assert join(bench, "a", acks={}, given=["ordered"]).offsets == [0, 1, 2]


def test_an_acknowledgement_far_beyond_what_is_leased_takes_no_time(bench: StreamBench) -> None:
    member = join(bench, "a", acks=ORDERED)
    publish(bench, ["x", "x"])
    (first,) = member.take()
    refused = member.membership.ack([(first.lease, 0, 2**60)])

    assert refused == [(first.lease, 1, 2**60)]
    bench.settle()
    assert member.offsets == [1]


def test_what_is_parked_is_not_read_over_and_over_while_there_is_no_room_in_flight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = StreamBench(tail_bytes=1)
    bench.create()
    members = [join(bench, name, acks={"in_flight_max": 3}, credit=0) for name in "abc"]
    reads: list[object] = []
    run = bench.storage.reading.run

    def count(call: Any, done: Any) -> None:
        reads.append(call)
        assert len(reads) < 100
        run(call, done)

    monkeypatch.setattr(bench.storage.reading, "run", count)
    for member in members:
        # Of each, one message is delivered, and one is parked while there is room. One read does
        # not bring what is parked of all of them.
        bench.publish(*[b"x" * READ_BYTES] * 2, keys=[key_of(members, member)] * 2)
        member.grant(1)
    for member in members:
        member.grant(100)

    assert sorted(m.offset for member in members for m in member.messages) == [0, 2, 4]
    for _ in range(2):
        for member in members:
            member.ack(*member.take())
    assert bench.lag() == 0
