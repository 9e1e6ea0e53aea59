"""A consumer that lost its connection and comes back: what it has, and what got lost on the way."""

from tests.unit.broker.streambench import StreamBench


def test_what_got_lost_on_the_way_is_delivered_again_at_once() -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"had", b"had too")
    first = bench.consume(consumer="c")
    [had, _] = first.take()
    bench.publish(b"lost on the way")
    first.lose()

    back = bench.consume(consumer="c", held=[had.lease])

    assert [(m.payload, m.attempt) for m in back.messages] == [(b"lost on the way", 1)]


def test_a_lease_that_is_still_held_stays_valid() -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"had")
    first = bench.consume(consumer="c")
    [had] = first.take()
    first.lose()
    back = bench.consume(consumer="c", held=[had.lease])

    assert back.messages == []
    assert back.ack(had) == []


def test_a_lease_that_is_not_held_any_more_is_refused() -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"had")
    first = bench.consume(consumer="c")
    [had] = first.take()
    first.lose()
    back = bench.consume(consumer="c", held=[])
    [again] = back.take()

    assert back.ack(had) == [had.run]
    assert back.ack(again) == []


def test_a_client_that_does_not_say_keeps_all_its_leases() -> None:
    bench = StreamBench()
    bench.create()
    bench.publish(b"had")
    first = bench.consume(consumer="c")
    [had] = first.take()
    first.lose()
    back = bench.consume(consumer="c")

    assert back.messages == []
    assert back.ack(had) == []


def test_another_consumer_of_the_same_client_keeps_what_it_holds() -> None:
    bench = StreamBench()
    bench.create()
    one = bench.consume(consumer="one", type="shared", credit=1)
    other = bench.consume(consumer="other", type="shared", credit=1)
    bench.publish(b"a", b"b")
    assert [len(one.messages), len(other.messages)] == [1, 1]
    [kept] = other.take()
    one.lose()
    bench.consume(consumer="one", type="shared", held=[])

    assert other.ack(kept) == []
