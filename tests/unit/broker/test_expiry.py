"""Subscriptions that end without consumers, and those that do not."""

from typing import Any

import pytest
from tests.unit.broker.streambench import TOPIC, Member, StreamBench

from ister.base.errors import BadRequestError
from ister.broker.subscriptions.expiry import COMES_BACK_MS
from ister.testing.disk import Fault

ALL = "/default/>"
HOUR_MS = 3_600_000


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create()
    return bench


def names(bench: StreamBench) -> list[str]:
    return [row.subscription for row in bench.broker.subscriptions("", after="", limit=100)[0]]


def consume(bench: StreamBench, topic: str = TOPIC, **options: Any) -> Member:
    return bench.consume(topic, **{"durable": False} | options)


# Not durable


@pytest.mark.parametrize("topic", [TOPIC, ALL])
def test_one_that_is_not_durable_ends_with_its_last_consumer(
    bench: StreamBench, topic: str
) -> None:
    first, last = (consume(bench, topic, type="shared") for _ in range(2))
    first.leave()
    assert names(bench) == ["s"]
    last.leave()

    assert names(bench) == []
    bench.restart("none")
    assert names(bench) == []


def test_it_waits_some_seconds_for_a_consumer_whose_connection_broke(bench: StreamBench) -> None:
    bench.publish(b"0", b"1")
    member = consume(bench, consumer="c")
    member.ack(member.messages[0])
    member.lose()
    bench.advance(COMES_BACK_MS - 1)
    again = consume(bench, consumer="c", held=[])
    assert again.offsets == [1]
    again.lose()
    bench.advance(COMES_BACK_MS + 1_000)

    assert names(bench) == []


def test_it_ends_after_a_crash_of_the_broker_unless_its_consumer_comes_back(
    bench: StreamBench,
) -> None:
    bench.publish(b"0", b"1")
    member = consume(bench, consumer="c")
    member.ack_confirmed(member.messages[0])
    bench.restart("none")
    bench.advance(COMES_BACK_MS - 1)
    assert consume(bench, consumer="c").offsets == [1]
    bench.restart("none")
    bench.advance(COMES_BACK_MS + 1_000)

    assert names(bench) == []


def test_a_consumer_that_comes_while_it_ends_gets_another_one(bench: StreamBench) -> None:
    bench.publish(b"0")
    member = consume(bench)
    member.ack(*member.take())
    bench.writing.holding = True
    member.leave()
    sink, outcome = bench.subscribe(durable=False)
    bench.settle()
    assert (outcome.told, names(bench)) == ([], [])
    bench.writing.release()
    bench.settle()
    outcome.result.consumer.grant(10, 1 << 20)
    bench.settle()

    assert [m.offset for m in sink.messages] == [0]


def test_it_stays_while_the_journal_does_not_take_its_end(bench: StreamBench) -> None:
    member = consume(bench)
    bench.disk.fail(Fault())
    member.leave()
    assert names(bench) == ["s"]
    bench.advance(2 * COMES_BACK_MS)

    assert names(bench) == []


def test_it_becomes_durable_when_a_consumer_asks_for_that(bench: StreamBench) -> None:
    consume(bench, type="shared")
    consume(bench, type="shared", durable=True, given=["durable"])
    for member in [*next(iter(bench.broker.durables)).consumers]:
        member.close("away")
    bench.settle()

    assert names(bench) == ["s"]


# Durable


def test_one_that_expires_ends_after_that_time_without_consumers(bench: StreamBench) -> None:
    member = bench.consume(expire_after_ms=HOUR_MS)
    bench.advance(2 * HOUR_MS)
    member.leave()
    bench.advance(HOUR_MS - 1_000)
    assert names(bench) == ["s"]
    bench.advance(2_000)

    assert names(bench) == []
    bench.restart("none")
    assert names(bench) == []


def test_a_consumer_stops_its_time(bench: StreamBench) -> None:
    bench.consume(expire_after_ms=HOUR_MS).leave()
    bench.advance(HOUR_MS // 2)
    member = bench.consume()
    bench.advance(HOUR_MS)
    member.leave()
    bench.advance(HOUR_MS - 1_000)

    assert names(bench) == ["s"]


def test_its_time_goes_on_over_a_restart(bench: StreamBench) -> None:
    bench.consume(expire_after_ms=HOUR_MS).leave()
    bench.restart("none", after_ms=HOUR_MS - 60_000)
    assert names(bench) == ["s"]
    bench.advance(61_000)

    assert names(bench) == []


def test_it_does_not_end_early_when_the_broker_crashes_under_its_consumer(
    bench: StreamBench,
) -> None:
    bench.consume(expire_after_ms=HOUR_MS).leave()
    bench.advance(HOUR_MS // 2)
    bench.consume()
    bench.restart("none", after_ms=2 * HOUR_MS)
    bench.advance(HOUR_MS - 1_000)
    assert names(bench) == ["s"]
    # But it ends, however often the broker is started.
    bench.restart("none", after_ms=60_000)
    bench.advance(COMES_BACK_MS + 1_000)

    assert names(bench) == []


def test_consumers_have_time_to_come_back_when_the_broker_was_away_for_longer(
    bench: StreamBench,
) -> None:
    bench.consume(expire_after_ms=HOUR_MS).leave()
    bench.restart("none", after_ms=2 * HOUR_MS)
    bench.advance(COMES_BACK_MS - 1)

    assert names(bench) == ["s"]


def test_the_time_can_be_set_and_taken_away(bench: StreamBench) -> None:
    bench.consume().leave()
    member = bench.consume(expire_after_ms=HOUR_MS)
    member.leave()
    bench.consume(expire_after_ms=0, given=["expire_after_ms"]).leave()
    bench.advance(2 * HOUR_MS)

    assert names(bench) == ["s"]


def test_a_time_below_nothing_is_refused(bench: StreamBench) -> None:
    with pytest.raises(BadRequestError):
        bench.consume(expire_after_ms=-1)


def test_consumers_that_come_and_go_take_no_memory(bench: StreamBench) -> None:
    for _ in range(300):
        bench.consume(expire_after_ms=HOUR_MS).leave()

    assert len(bench.broker.durables.expiry._idle._heap) < 100
