"""Durable subscriptions when the disk fails or the machine stops: nothing confirmed is lost."""

import errno
from collections.abc import Callable

import pytest
from tests.unit.broker.streambench import TOPIC, Outcome, StreamBench, at_time, saved

from ister.base import Position
from ister.base.errors import (
    StorageFailedError,
    StorageUncertainError,
    SubscriptionNotFoundError,
)
from ister.testing import Crash, Fault, Keep
from ister.testing.disk import Action

READING: tuple[Action, ...] = ("read",)


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create()
    bench.publish(b"0", b"1", b"2")
    return bench


def recover(bench: StreamBench) -> None:
    """Let the disk be good again, and the broker notice."""
    bench.disk.heal()
    bench.advance(1_000)
    assert bench.storage.committer.error is None


# Acknowledgements


@pytest.mark.parametrize("action", ["write", "sync"])
def test_an_acknowledgement_that_failed_is_not_confirmed_but_kept_for_later(
    bench: StreamBench, action: str
) -> None:
    member = bench.consume()
    bench.disk.fail(Fault(errno.EIO, actions=(action,)))  # type: ignore[arg-type]
    error = member.ack_confirmed(*member.messages[:2])
    assert isinstance(error, StorageFailedError)
    recover(bench)

    assert bench.confirm() is None
    bench.restart("none")
    assert bench.consume().offsets == [2]


def test_while_storage_fails_deliveries_and_acknowledgements_go_on(bench: StreamBench) -> None:
    member = bench.consume(credit=1)
    bench.disk.fail(Fault(actions=("write", "sync", "create"), lasting=True))
    bench.send([b"3"])
    member.ack(*member.take())
    member.grant(1)
    assert member.take_offsets() == [1]
    with pytest.raises(StorageFailedError):
        bench.confirm()
    recover(bench)

    assert bench.confirm() is None
    bench.restart("none")
    assert bench.consume().offsets == [1, 2]


def test_failures_that_the_journal_did_not_take_are_written_later(bench: StreamBench) -> None:
    member = bench.consume()
    bench.disk.fail(Fault())
    member.nack(member.take()[0], delay_ms=60_000)
    assert isinstance(bench.confirm(), StorageFailedError)
    recover(bench)
    assert bench.confirm() is None
    bench.restart("none")

    assert [(m.offset, m.attempt) for m in bench.consume().messages] == [(0, 2), (1, 1), (2, 1)]


def test_what_was_confirmed_before_a_failure_stays_so(bench: StreamBench) -> None:
    member = bench.consume()
    first, second, _ = member.take()
    assert member.ack_confirmed(first) is None
    bench.disk.fail(Fault(lasting=True))
    assert isinstance(member.ack_confirmed(second), StorageUncertainError)
    bench.disk.heal()
    bench.restart("none")

    assert bench.consume().offsets == [1, 2]


# Seeking


def test_a_seek_that_failed_is_taken_back(bench: StreamBench) -> None:
    member = bench.consume()
    first, *_ = member.take()
    member.ack(first)
    bench.disk.fail(Fault())
    assert isinstance(bench.seek("latest"), StorageFailedError)

    # Where it was, with leases that are void.
    assert member.take_offsets() == [1, 2]
    assert bench.lag() == 2
    recover(bench)
    assert bench.confirm() is None
    bench.restart("none")
    assert bench.consume().offsets == [1, 2]


def test_acknowledgements_that_a_failed_seek_had_dropped_are_written_after_all(
    bench: StreamBench,
) -> None:
    member = bench.consume()
    member.membership.ack([message.run for message in member.messages])
    bench.disk.fail(Fault())
    assert isinstance(bench.seek("earliest"), StorageFailedError)
    recover(bench)
    assert bench.confirm() is None
    bench.restart("none")

    assert bench.lag() == 0


def test_two_seeks_that_failed_together_are_both_taken_back(bench: StreamBench) -> None:
    member = bench.consume()
    member.ack(member.take()[0])
    assert bench.confirm() is None
    bench.disk.fail(Fault())
    outcomes = [Outcome(), Outcome()]
    for outcome, offset in zip(outcomes, (3, 0), strict=True):
        bench.broker.durables.seek(TOPIC, "s", Position(origin="offset", at=offset), outcome)
    bench.settle()

    assert all(isinstance(outcome.result, StorageFailedError) for outcome in outcomes)
    assert member.take_offsets() == [1, 2]


def test_a_seek_that_succeeded_stays_when_the_next_one_fails(bench: StreamBench) -> None:
    member = bench.consume()
    assert bench.seek(1) is None
    bench.disk.fail(Fault())
    assert isinstance(bench.seek(3), StorageFailedError)
    member.take()
    recover(bench)
    bench.restart("none")

    assert bench.consume().offsets == [1, 2]


def test_a_seek_is_refused_while_storage_fails(bench: StreamBench) -> None:
    member = bench.consume()
    messages = member.take()
    bench.disk.fail(Fault(lasting=True))
    bench.send([b"3"])

    assert isinstance(bench.seek("latest"), StorageFailedError)
    assert member.ack(*messages) == []


def test_a_restored_cursor_that_failed_is_taken_back(bench: StreamBench) -> None:
    member = bench.consume()
    bench.change("save_cursor", TOPIC, "s", "then")
    member.ack(*member.take())
    bench.disk.fail(Fault())
    assert isinstance(bench.seek(saved("then")), StorageFailedError)

    assert member.take() == []
    assert bench.lag() == 0


# Subscriptions


def test_a_subscription_that_could_not_be_stored_is_not_there(bench: StreamBench) -> None:
    bench.disk.fail(Fault())
    with pytest.raises(StorageFailedError):
        bench.consume()
    with pytest.raises(SubscriptionNotFoundError):
        bench.seek(0)
    recover(bench)

    assert bench.consume(start="latest").offsets == []
    bench.restart("none")
    assert bench.lag() == 0


def test_all_who_wait_for_a_subscription_that_could_not_be_stored_are_told(
    bench: StreamBench,
) -> None:
    bench.disk.fail(Fault())
    outcomes = [bench.subscribe(type="shared", owner=str(n))[1] for n in range(3)]
    bench.settle()

    assert all(isinstance(outcome.result, StorageFailedError) for outcome in outcomes)


def test_a_known_subscription_can_be_used_while_storage_fails(bench: StreamBench) -> None:
    bench.consume().leave()
    bench.disk.fail(Fault(lasting=True))
    bench.send([b"3"])

    assert bench.consume().offsets == [0, 1, 2]


def test_a_subscription_whose_deletion_failed_goes_on(bench: StreamBench) -> None:
    member = bench.consume(credit=1)
    bench.disk.fail(Fault())
    assert isinstance(bench.change("delete", TOPIC, "s"), StorageFailedError)
    member.grant(1)

    assert member.sink.closed == []
    assert member.offsets == [0, 1]


@pytest.mark.parametrize("paused", [True, False])
def test_a_pause_that_failed_did_not_happen(bench: StreamBench, *, paused: bool) -> None:
    member = bench.consume(credit=0)
    bench.change("pause", TOPIC, "s", paused=not paused)
    bench.disk.fail(Fault())
    assert isinstance(bench.change("pause", TOPIC, "s", paused=paused), StorageFailedError)
    member.grant(10)

    assert member.offsets == ([0, 1, 2] if paused else [])
    assert bench.report().cursor.paused is not paused


def test_ack_settings_that_could_not_be_stored_are_taken_back(bench: StreamBench) -> None:
    bench.consume(acks={"max_deliveries": 3}).leave()
    bench.disk.fail(Fault())
    with pytest.raises(StorageFailedError):
        bench.consume(acks={"max_deliveries": 7})

    assert bench.report().cursor.settings.max_deliveries == 3


def test_a_saved_cursor_that_could_not_be_stored_is_not_there(bench: StreamBench) -> None:
    bench.consume()
    bench.disk.fail(Fault())

    assert isinstance(bench.change("save_cursor", TOPIC, "s", "then"), StorageFailedError)
    assert bench.report().cursor.snapshots == []


def test_a_topic_that_could_not_be_stored_leaves_nothing_in_a_pattern(bench: StreamBench) -> None:
    member = bench.consume("/default/*", start="latest")
    bench.disk.fail(Fault())
    outcome = Outcome()
    bench.broker.create_topic("/default/new", outcome, kind="stream")
    bench.settle()
    assert isinstance(outcome.result, StorageFailedError)
    assert bench.report("/default/*").topics == 1
    recover(bench)

    bench.create("/default/new")
    bench.publish(b"0", topic="/default/new")
    assert [m.topic for m in member.messages] == ["/default/new"]


def test_consumers_by_pattern_are_told_when_a_new_topic_cannot_be_theirs(
    bench: StreamBench,
) -> None:
    sink, outcome = bench.subscribe("/default/new.*", "s")
    assert outcome.result.active
    # The topic is stored, but not the subscription that is to cover it.
    bench.broker.create_topic("/default/new.one", kind="stream")
    bench.disk.fail(Fault(actions=["sync"]))
    bench.settle()

    assert len(sink.closed) == 1


# Reading


def test_messages_that_could_not_be_read_are_tried_again() -> None:
    bench = StreamBench(tail_bytes=1)
    bench.create()
    bench.publish_many(20)
    bench.disk.fail(Fault(actions=READING, prefix="segments", lasting=True))
    member = bench.consume()
    assert member.offsets == []
    bench.advance(5_000)
    assert member.offsets == []

    bench.disk.heal()
    bench.advance(1_000)
    assert member.offsets == list(range(20))


def test_redeliveries_that_could_not_be_read_are_tried_again() -> None:
    bench = StreamBench(tail_bytes=1)
    bench.create()
    bench.publish_many(20)
    member = bench.consume()
    messages = member.take()
    bench.disk.fail(Fault(actions=READING, prefix="segments", lasting=True))
    member.nack(messages[4], delay_ms=0)
    assert member.offsets == []

    bench.disk.heal()
    bench.advance(1_000)
    assert member.offsets == [4]


def test_a_time_that_cannot_be_looked_up_is_told(bench: StreamBench) -> None:
    bench.restart()
    bench.disk.fail(Fault(actions=READING, prefix="segments", lasting=True))
    _, outcome = bench.subscribe(start=at_time(bench.clock.now_ms() - 1_000))
    bench.settle()

    assert isinstance(outcome.result, Exception)
    assert len(bench.broker.durables) == 0


# Crashes

KEEPS: tuple[Keep, ...] = ("none", "all", "torn")


def every_crash(work: Callable[[StreamBench], None]) -> list[tuple[int, Keep]]:
    """Return every place to stop at, in three ways each."""
    bench = StreamBench()
    work(bench)
    return [(n, keep) for n in range(len(bench.disk.operations)) for keep in KEEPS]


def test_confirmed_acknowledgements_survive_a_crash_at_any_point() -> None:
    confirmed: set[int] = set()
    published: set[int] = set()

    def work(bench: StreamBench) -> None:
        confirmed.clear()
        published.clear()
        bench.create()
        member = bench.consume()
        for _ in range(4):
            published.update(bench.publish(b"a", b"b", b"c"))
            messages = member.take()
            member.ack(messages[2])
            bench.advance(150)
            if member.ack_confirmed(messages[0]) is None:
                confirmed.update((messages[0].offset, messages[2].offset))

    for number, keep in every_crash(work):
        bench = StreamBench()
        bench.disk.crash_at(number)
        with pytest.raises(Crash):
            work(bench)
        for again in range(2):
            # A second restart changes nothing.
            bench.restart(keep)
            if TOPIC not in bench.broker.streams.by_name:
                assert not published
                break
            offsets = bench.consume().offsets
            assert not confirmed & set(offsets), (number, keep, again)
            # The second of each three was never acknowledged.
            lost = {offset for offset in published if offset % 3 == 1} - set(offsets)
            assert not lost, (number, keep, again)


def test_a_seek_is_done_or_not_after_a_crash_at_any_point() -> None:
    def work(bench: StreamBench) -> None:
        bench.create()
        bench.publish(b"0", b"1", b"2")
        member = bench.consume()
        member.ack_confirmed(*member.messages)
        bench.seek(1)

    seen = set()
    for number, keep in every_crash(work):
        bench = StreamBench()
        bench.disk.crash_at(number)
        with pytest.raises(Crash):
            work(bench)
        bench.restart(keep)
        if len(bench.broker.durables):
            seen.add(tuple(bench.consume().offsets))
    # Not acknowledged yet, all acknowledged, moved; not more than a batch that was stored.
    assert seen == {(0, 1, 2), (), (1, 2)}
