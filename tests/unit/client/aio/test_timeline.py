"""Timelines from an application's side, over the real broker in memory; time is the test's."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.unit.client.aio.conftest import TOPIC

import ister
from ister.base.errors import (
    BadRequestError,
    ClosedError,
    IsterError,
    MessageChangedError,
    MessageExistsError,
    MessageLeasedError,
    MessageNotFoundError,
    NamespaceNotEmptyError,
    NotOwnerError,
    RequestTimeoutError,
    TimelineLeaseLostError,
    TopicNotFoundError,
)
from ister.testing import MemoryBroker, VirtualClock
from ister.testing.clock import START_MS, settle

NOW = datetime.fromtimestamp(START_MS / 1000, UTC)
HOUR_MS = 3_600_000


class Taker:
    """Takes messages as they are handed over, and notes when."""

    def __init__(self, consumer: ister.TimelineConsumer, clock: VirtualClock) -> None:
        self.taken: list[tuple[str, int]] = []
        self.leases: list[ister.TimelineLease] = []
        self._consumer = consumer
        self._clock = clock
        self._task = asyncio.create_task(self._take())

    async def _take(self) -> None:
        async for lease in self._consumer:
            self.leases.append(lease)
            self.taken.append((lease.id, self._clock.now_ms() - START_MS))

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_a_message_is_handed_over_when_it_is_due_and_not_before(
    timeline: ister.Timeline, clock: VirtualClock
) -> None:
    async with timeline.consume("w") as leases:
        taker = Taker(leases, clock)
        await timeline.put(b"x", after=2.0, id="a", attributes={"k": "v"})
        await clock.elapse(1.999)
        assert leases.waiting_count == 1
        assert taker.taken == []

        await clock.elapse(0.001)

        [lease] = taker.leases
        assert taker.taken == [("a", 2_000)]
        assert (lease.payload, lease.attributes, lease.attempt) == (b"x", {"k": "v"}, 1)
        assert lease.due == NOW + timedelta(seconds=2)
        assert lease.lateness_us == 0
        await taker.stop()


@pytest.mark.parametrize("ahead_ms", [HOUR_MS, -HOUR_MS, 1, -1])
async def test_the_clock_of_the_broker_counts_not_that_of_the_client(
    broker: MemoryBroker, clock: VirtualClock, client: ister.Client, ahead_ms: int
) -> None:
    other = VirtualClock(START_MS + ahead_ms)
    async with ister.connect(
        broker.url, clock=other, connector=broker.connector, busy_poll=0.0
    ) as stranger:
        timeline = stranger.timeline(TOPIC, group="shop")
        async with timeline.consume("w") as leases:
            taker = Taker(leases, clock)
            await timeline.put(b"x", after=0.3, id="relative")
            await timeline.put(b"x", at=NOW + timedelta(seconds=0.4), id="absolute")
            for _ in range(500):
                await clock.elapse(0.001)
                await other.elapse(0.001)

            assert leases.drift == -ahead_ms / 1000
            await taker.stop()

    # The clocks move one after the other here: a millisecond apart.
    assert [name for name, _ in taker.taken] == ["relative", "absolute"]
    assert all(300 <= at <= 302 for _, at in taker.taken[:1])
    assert all(400 <= at <= 402 for _, at in taker.taken[1:])


async def test_a_message_whose_time_has_passed_is_due_at_once_and_keeps_its_place(
    timeline: ister.Timeline,
) -> None:
    await timeline.put(b"x", id="now")
    await timeline.put(b"x", at=NOW - timedelta(hours=1), id="past")
    async with timeline.consume("w") as leases:
        first, second = await leases.receive(), await leases.receive()

    assert (first.id, first.due, first.lateness_us) == (
        "past",
        NOW - timedelta(hours=1),
        HOUR_MS * 1_000,
    )
    assert (second.id, second.lateness_us) == ("now", 0)


async def test_who_only_puts_messages_hears_of_it_when_the_clock_of_the_broker_is_set(
    broker: MemoryBroker, clock: VirtualClock, client: ister.Client
) -> None:
    other = VirtualClock()
    async with ister.connect(
        broker.url, clock=other, connector=broker.connector, busy_poll=0.0
    ) as stranger:
        timeline = stranger.timeline(TOPIC, group="shop")
        await timeline.put(b"x", after=60.0, id="before")
        await clock.elapse(3_600.0)
        for _ in range(3):
            await other.elapse(1.0)
            await clock.elapse(1.0)

        await timeline.put(b"x", after=60.0, id="after")

    message = await client.timeline(TOPIC).get("after")
    # The clocks move one after the other here: a second apart.
    assert 59_000 <= message.due_ms - clock.now_ms() <= 60_000


async def test_a_message_that_was_deleted_in_time_is_never_handed_over(
    timeline: ister.Timeline, clock: VirtualClock
) -> None:
    async with timeline.consume("w") as leases:
        taker = Taker(leases, clock)
        await timeline.put(b"x", after=0.3, id="a")
        await settle()
        await clock.elapse(0.299)
        assert leases.waiting_count == 1

        await timeline.delete("a")
        await clock.elapse(60)

        assert taker.taken == []
        await taker.stop()


async def test_a_message_that_was_moved_in_time_comes_at_the_new_time_only(
    timeline: ister.Timeline, clock: VirtualClock
) -> None:
    async with timeline.consume("w") as leases:
        taker = Taker(leases, clock)
        put = await timeline.put(b"x", after=0.3, id="a")
        await clock.elapse(0.1)
        await timeline.move("a", after=5.0, version=put.version)
        await timeline.update("a", b"y")
        await clock.elapse(60)

        assert taker.taken == [("a", 5_100)]
        assert taker.leases[0].payload == b"y"
        await taker.stop()


async def test_nobody_but_the_holder_changes_a_message_that_is_dealt_with(
    timeline: ister.Timeline, clock: VirtualClock
) -> None:
    await timeline.put(b"x", id="a")
    async with timeline.consume("w") as leases:
        lease = await leases.receive()

        with pytest.raises(MessageLeasedError):
            await timeline.delete("a")
        await lease.done()
        with pytest.raises(MessageNotFoundError):
            await timeline.get("a")


async def test_changes_are_refused_for_what_they_ask_for(
    timeline: ister.Timeline, client: ister.Client
) -> None:
    put = await timeline.put(b"x", after=60.0, id="a")
    with pytest.raises(MessageExistsError):
        await timeline.put(b"y", after=60.0, id="a")
    with pytest.raises(MessageChangedError):
        await timeline.move("a", after=70.0, version=put.version + 1)
    with pytest.raises(NotOwnerError):
        await client.timeline(TOPIC, group="other").delete("a")
    with pytest.raises(TopicNotFoundError):
        await client.timeline("/default/none").put(b"x")
    with pytest.raises(BadRequestError):
        await timeline.put("text")  # type: ignore[arg-type]

    moved = await timeline.move("a", after=70.0, version=put.version)
    assert moved.version > put.version


async def test_many_are_put_each_with_its_outcome(timeline: ister.Timeline) -> None:
    await timeline.put(b"x", after=60.0, id="taken")
    wrong: tuple[object, ...] = ("text", 60.0)
    many = [ister.TimelinePut(b"%d" % n, after=60.0 + n) for n in range(2_500)]
    results = await timeline.put_many([(b"x", timedelta(seconds=60.0), "taken"), wrong, *many])

    assert isinstance(results[0], MessageExistsError)
    assert isinstance(results[1], BadRequestError)
    assert not any(isinstance(result, IsterError) for result in results[2:])
    assert await timeline.count() == 2_501


async def test_the_future_is_counted_and_listed_in_order(timeline: ister.Timeline) -> None:
    await timeline.put_many([(b"x", timedelta(seconds=n), f"m-{n:03}") for n in range(250)])

    assert await timeline.count(start=timedelta(seconds=10), end=timedelta(seconds=20)) == 10
    assert await timeline.count(end=NOW + timedelta(seconds=5)) == 5
    listed = [message.id async for message in timeline.list(start=timedelta(seconds=100))]
    assert listed == [f"m-{n:03}" for n in range(100, 250)]
    message = await timeline.get("m-007")
    assert (message.due, message.group) == (NOW + timedelta(seconds=7), "shop")


async def test_a_transaction_is_all(timeline: ister.Timeline) -> None:
    await timeline.put(b"x", after=60.0, id="a")
    await timeline.put(b"x", after=60.0, id="b")
    async with timeline.transaction() as tx:
        made = tx.put(b"y", after=30.0)
        tx.move("a", after=90.0)
        tx.update("a", b"z")
        tx.delete("b")

    assert [result.id for result in tx.results] == [made, "a", "a", "b"]
    assert (await timeline.get("a")).payload == b"z"
    assert await timeline.count() == 2


async def test_a_transaction_is_nothing_when_one_change_is_refused(
    timeline: ister.Timeline,
) -> None:
    tx = timeline.transaction()
    tx.put(b"y", after=30.0)
    tx.delete("b")
    with pytest.raises(MessageNotFoundError):
        await tx.commit()

    assert await timeline.count() == 0


async def test_an_exception_in_the_block_sends_nothing(timeline: ister.Timeline) -> None:
    async def fail() -> None:
        async with timeline.transaction() as tx:
            tx.put(b"y", after=30.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await timeline.count() == 0


async def test_leaving_the_block_gives_back_what_was_not_begun(
    timeline: ister.Timeline, client: ister.Client
) -> None:
    await timeline.put_many([(b"x", None, name) for name in ("a", "b", "c")])
    async with timeline.consume("one") as leases:
        begun = await leases.receive()
        await settle()
        assert leases.waiting_count == 1

    async with timeline.consume("two") as leases:
        others = [await leases.receive() for _ in range(3)]

    assert begun.id == "a"
    assert [(lease.id, lease.attempt) for lease in others] == [("a", 2), ("b", 1), ("c", 1)]


async def test_leaving_the_block_waits_until_what_was_done_is_stored(
    timeline: ister.Timeline,
) -> None:
    await timeline.put_many([(b"x", None, f"m-{number}") for number in range(50)])

    async with timeline.consume("w") as leases:
        answers = [(await leases.receive()).done() for _ in range(50)]

    assert all(answer.done() and answer.exception() is None for answer in answers)
    with pytest.raises(MessageNotFoundError):
        await timeline.get("m-49")


async def test_a_lease_that_ended_is_lost_and_the_message_comes_again(
    timeline: ister.Timeline, clock: VirtualClock
) -> None:
    await timeline.put(b"x", id="a")
    async with timeline.consume("one", lease=10.0, max_renewal=0.0) as one:
        lost = await one.receive()
        await clock.elapse(10.0)
        again = await one.receive()

        assert again.attempt == 2
        with pytest.raises(TimelineLeaseLostError):
            await lost.done()
        await again.done()


async def test_an_extended_lease_lasts_and_is_done_without_waiting_for_the_answer(
    timeline: ister.Timeline, clock: VirtualClock
) -> None:
    await timeline.put(b"x", id="a")
    async with timeline.consume("one", lease=10.0) as leases:
        lease = await leases.receive()
        await lease.extend(60.0)
        await clock.elapse(59.0)
        lease.extend(60.0)
        await lease.done()

    assert await timeline.count() == 0


async def test_at_is_a_time_and_after_a_delay_in_every_call(
    timeline: ister.Timeline, clock: VirtualClock
) -> None:
    at = clock.now_ms() / 1000 + 60.0
    await timeline.put(b"x", at=at, id="at")
    await timeline.put(b"x", after=60.0, id="after")
    await timeline.put_many([(b"x", at, "many"), ister.TimelinePut(b"x", id="put", after=60.0)])
    async with timeline.transaction() as tx:
        tx.put(b"x", at, id="tx")
        tx.move("at", after=60.0)
    await timeline.move("after", at)
    assert await timeline.count(start=at, end=at + 0.001) == 5

    await timeline.put(b"x", id="now")
    async with timeline.consume("w") as leases:
        await (await leases.receive()).release(at)
    assert await timeline.count(start=at, end=timedelta(seconds=60.001)) == 6


async def test_a_delay_given_as_a_time_is_refused_with_the_fix(timeline: ister.Timeline) -> None:
    await timeline.put(b"x", id="a")
    async with timeline.consume("w") as leases:
        lease = await leases.receive()
        for call in (
            lambda: timeline.put(b"x", 60.0),
            lambda: timeline.move("a", at=60.0),
            lambda: lease.release(at=60.0),
        ):
            with pytest.raises(BadRequestError, match=r"for a delay in seconds write after=60\.0"):
                await call()
    with pytest.raises(BadRequestError, match="start is seconds since 1970, and 60"):
        await timeline.count(start=60.0)
    with pytest.raises(BadRequestError, match="say when it is due"):
        await timeline.move("a")


async def test_a_released_message_comes_again_at_its_time(
    timeline: ister.Timeline, clock: VirtualClock
) -> None:
    await timeline.put(b"x", id="a")
    async with timeline.consume("one") as leases:
        taker = Taker(leases, clock)
        await settle()
        await taker.leases[0].release(after=30.0)
        await clock.elapse(60.0)
        await taker.leases[1].release()
        await settle()

        assert taker.taken == [("a", 0), ("a", 30_000), ("a", 60_000)]
        await taker.stop()


async def test_leases_outlive_a_lost_connection(
    timeline: ister.Timeline, broker: MemoryBroker, clock: VirtualClock
) -> None:
    await timeline.put(b"x", id="a")
    await timeline.put(b"x", after=1.0, id="b")
    async with timeline.consume("one") as leases:
        taker = Taker(leases, clock)
        await clock.elapse(0.6)
        broker.disconnect_all()
        await settle()
        done = taker.leases[0].done()
        await clock.elapse(5.0)

        await done
        assert taker.taken == [("a", 0), ("b", 1_000)]
        await taker.stop()


async def test_leases_outlive_a_restart_of_the_broker(
    timeline: ister.Timeline, broker: MemoryBroker, clock: VirtualClock
) -> None:
    await timeline.put(b"x", id="a")
    await timeline.put(b"x", after=8.0, id="b")
    async with timeline.consume("one") as leases:
        taker = Taker(leases, clock)
        await clock.elapse(0.6)
        await broker.restart()
        await clock.elapse(10.0)

        await taker.leases[0].done()
        assert taker.taken == [("a", 0), ("b", 8_000)]
        await taker.stop()


async def test_a_consumer_of_the_same_name_takes_over(
    timeline: ister.Timeline, broker: MemoryBroker
) -> None:
    await timeline.put(b"x", id="a")
    async with timeline.consume("one") as former:
        await former.receive()
        async with (
            broker.connect() as client,
            client.timeline(TOPIC, group="shop").consume("one") as later,
        ):
            lease = await later.receive()

            assert (lease.id, lease.attempt) == ("a", 2)
            await lease.done()
        with pytest.raises(ClosedError):
            await anext(former)


async def test_a_consumer_is_told_when_its_topic_is_deleted(
    timeline: ister.Timeline, client: ister.Client
) -> None:
    async with timeline.consume("one") as leases:
        await client.delete_topic(TOPIC)

        with pytest.raises(ClosedError, match="deleted"):
            await anext(leases)


async def test_receiving_ends_after_its_timeout(
    timeline: ister.Timeline, clock: VirtualClock
) -> None:
    async with timeline.consume("one") as leases:
        receiving = asyncio.create_task(leases.receive(timeout=5.0))
        await clock.elapse(4.999)
        assert not receiving.done()
        await clock.elapse(0.001)

        with pytest.raises(RequestTimeoutError):
            await receiving


async def test_the_loop_ends_when_the_block_is_left_by_another(timeline: ister.Timeline) -> None:
    async with timeline.consume("one") as leases:
        looping = asyncio.create_task(anext(leases, None))
        await settle()

    assert await looping is None


async def test_of_a_priority_topic_the_lowest_level_goes_first(client: ister.Client) -> None:
    await client.create_topic("/default/jobs", kind="priority", max_leases=3)
    timeline = client.timeline("/default/jobs")
    await timeline.put_many([(b"x", None, f"p-{level}", None, level) for level in (31, 5, 0)])
    async with timeline.consume("one") as leases:
        got = [await leases.receive() for _ in range(3)]

    assert [(lease.id, lease.priority) for lease in got] == [("p-0", 0), ("p-5", 5), ("p-31", 31)]


async def test_settings_of_timelines_are_for_timelines(client: ister.Client) -> None:
    with pytest.raises(BadRequestError):
        await client.create_topic("/default/x", max_leases=3)
    with pytest.raises(BadRequestError):
        await client.create_topic("/default/x", kind="timeline", max_bytes=3)
    await client.create_topic("/default/x", kind="timeline", max_lease=30.0)
    [report] = [one for one in await client.topics() if one.topic == "/default/x"]

    assert report.kind == "timeline"
    assert report.timeline is not None
    assert report.timeline.settings.lease_ms_max == 30_000


async def test_a_namespace_is_in_use_by_its_timelines_also_after_a_restart(
    client: ister.Client, broker: MemoryBroker, clock: VirtualClock
) -> None:
    await client.create_namespace("shop")
    await client.create_topic("/shop/r", kind="timeline")
    await broker.restart()
    await clock.elapse(5.0)

    assert "shop" in await client.namespaces()
    with pytest.raises(NamespaceNotEmptyError):
        await client.delete_namespace("shop")
    await client.delete_topic("/shop/r")
    await client.delete_namespace("shop")


async def test_closing_the_client_gives_back_what_was_not_begun(
    timeline: ister.Timeline, broker: MemoryBroker
) -> None:
    await timeline.put_many([(b"x", None, "a"), (b"x", timedelta(seconds=0.2), "b")])
    async with broker.connect() as other:
        leases = other.timeline(TOPIC, group="shop").consume("w")
        await leases.open()
        await settle()
        assert leases.waiting_count == 2
    await settle()

    messages = [await timeline.get("a"), await timeline.get("b")]
    assert [(message.holder, message.attempts) for message in messages] == [("", 0)] * 2


async def test_lateness_reaches_the_broker(timeline: ister.Timeline, broker: MemoryBroker) -> None:
    await timeline.put(b"x")
    async with timeline.consume("one") as leases:
        await (await leases.receive()).done()

        assert leases.lateness.count == 1
    report = broker.engine.timelines.report(TOPIC)
    assert report.lateness[0][1] == 1


WRONG: list[Any] = [
    None, 1.5, -1, "x", "\ud800", b"x", [], {}, object(), float("nan"), 2**70, [[]], True,
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: type(wrong).__name__)
async def test_a_wholly_wrong_argument_gets_a_typed_error_or_is_taken(
    client: ister.Client, wrong: Any
) -> None:
    timeline = client.timeline(TOPIC)
    await timeline.put(b"x", id="due")
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: client.create_topic(wrong, kind="timeline"),
        lambda: client.create_topic("/default/y", kind="timeline", max_lease=wrong),
        lambda: client.create_topic("/default/y", kind="timeline", max_leases=wrong),
        lambda: client.create_topic("/default/y", kind="timeline", dead_letter_topic=wrong),
        lambda: client.timeline(wrong).put(b"x"),
        lambda: client.timeline(TOPIC, group=wrong).put(b"x"),
        lambda: timeline.put(wrong),
        lambda: timeline.put(b"x", at=wrong),
        lambda: timeline.put(b"x", id=wrong),
        lambda: timeline.put(b"x", attributes=wrong),
        lambda: timeline.put(b"x", priority=wrong),
        lambda: timeline.put_many(wrong),
        lambda: timeline.put_many([wrong]),
        lambda: timeline.get(wrong),
        lambda: timeline.move(wrong, after=1.0),
        lambda: timeline.move("a", at=wrong),
        lambda: timeline.move("a", after=1.0, version=wrong),
        lambda: timeline.update("a", wrong),
        lambda: timeline.update("a", b"x", version=wrong),
        lambda: timeline.delete(wrong),
        lambda: timeline.delete("a", version=wrong),
        lambda: timeline.count(wrong, wrong),
        lambda: anext(timeline.list(wrong)),
        lambda: timeline.consume(wrong).open(),
        lambda: timeline.consume("w", lease=wrong).open(),
        lambda: timeline.consume("w", prefetch=wrong).open(),
        lambda: timeline.consume("w", credit=wrong).open(),
    ]
    for call in calls:
        with suppress(IsterError, StopAsyncIteration):
            await call()

    assert client.connected
    assert (await timeline.get("due")).id == "due"


@pytest.mark.parametrize(
    "wrong",
    [w for w in WRONG if w is not None and w != 1.5],
    ids=lambda wrong: type(wrong).__name__,
)
async def test_a_wholly_wrong_time_of_a_lease_gets_a_typed_error(
    timeline: ister.Timeline, wrong: Any
) -> None:
    await timeline.put(b"x", id="a")
    async with timeline.consume("w") as leases:
        lease = await leases.receive()
        with pytest.raises(BadRequestError):
            await lease.extend(wrong)
        with pytest.raises(BadRequestError):
            await lease.release(wrong)
        await lease.done()


async def test_transactions_acknowledge_no_lease_and_say_what_to_do_instead(
    client: ister.Client, timeline: ister.Timeline, clock: VirtualClock
) -> None:
    async with timeline.consume("w") as leases:
        taker = Taker(leases, clock)
        await timeline.put(b"x")
        await clock.elapse(0.0)
        with pytest.raises(BadRequestError, match=r"`lease\.done\(\)` after the commit"):
            client.transaction().ack(taker.leases[0])  # type: ignore[arg-type]
        with pytest.raises(BadRequestError, match=r"`lease\.done\(\)` after the commit"):
            timeline.transaction().ack(taker.leases[0])
        with pytest.raises(BadRequestError, match=r"`msg\.ack\(\)` after the commit"):
            timeline.transaction().ack(object())
        await taker.stop()
