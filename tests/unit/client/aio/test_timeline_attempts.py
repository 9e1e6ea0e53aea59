"""How often a message of a timeline counts as handed out, and how long its lease is renewed."""

import asyncio

import pytest

import ister
from ister.base.errors import TimelineLeaseLostError
from ister.testing import MemoryBroker, VirtualClock
from ister.testing.clock import settle

TOPIC = "/default/reminders"


class HandlerError(Exception):
    """What a handler raises."""


async def work(timeline: ister.Timeline, name: str = "one") -> None:
    """Receive a message and fail."""
    async with timeline.consume(name) as leases:
        async for lease in leases:
            raise HandlerError(lease.attempt)


async def crash(broker: MemoryBroker, name: str = "one") -> int:
    """Receive a message in a process that is killed then; return its attempt."""
    async with broker.connect() as client:
        leases = client.timeline(TOPIC, group="shop").consume(name)
        await leases.open()
        attempt = (await leases.receive(timeout=1.0)).attempt
        broker.disconnect_all()
    return attempt


@pytest.mark.parametrize("names", [("one", "one", "one"), ("one", "two", "one")])
async def test_a_message_whose_handler_raises_counts_as_an_attempt(
    timeline: ister.Timeline, names: tuple[str, ...]
) -> None:
    await timeline.put(b"x", id="a")

    for attempt, name in enumerate(names, 1):
        with pytest.raises(HandlerError, match=f"{attempt}"):
            await work(timeline, name)

    assert (await timeline.get("a")).attempts == 3


async def test_a_poison_message_becomes_a_dead_letter_though_the_worker_is_restarted(
    timeline: ister.Timeline, client: ister.Client
) -> None:
    await timeline.put(b"x", id="a")
    for _ in range(5):
        with pytest.raises(HandlerError):
            await work(timeline)

    async with timeline.consume("one") as leases:
        asyncio.ensure_future(leases.receive(timeout=1.0)).cancel()
        await settle()

    assert await client.timeline(f"{TOPIC}-dlq").count() == 1


async def test_a_message_that_kills_its_worker_counts_as_an_attempt_under_the_same_name(
    timeline: ister.Timeline, broker: MemoryBroker
) -> None:
    await timeline.put(b"x", id="a")

    assert [await crash(broker) for _ in range(3)] == [1, 2, 3]


async def test_a_connection_that_takes_over_a_name_counts_what_the_other_one_had(
    timeline: ister.Timeline, broker: MemoryBroker
) -> None:
    await timeline.put(b"x", id="a")
    async with timeline.consume("one") as former, broker.connect() as client:
        lost = await former.receive()
        async with client.timeline(TOPIC, group="shop").consume("one") as later:
            assert (await later.receive()).attempt == 2
            with pytest.raises(ister.IsterError):
                await lost.done()


async def test_what_was_not_handed_over_costs_no_attempt(timeline: ister.Timeline) -> None:
    await timeline.put_many([(b"x", None, "a"), (b"x", None, "b")])
    for _ in range(3):
        async with timeline.consume("one") as leases:
            await settle()
            assert leases.waiting_count == 2

    assert [one.attempts async for one in timeline.list()] == [0, 0]


async def test_what_is_done_right_before_the_end_stays_done(timeline: ister.Timeline) -> None:
    await timeline.put_many([(b"x", None, "a"), (b"x", None, "b")])
    async with timeline.consume("one") as leases:
        (await leases.receive()).done()
        (await leases.receive()).release(after=60.0)

    [left] = [one async for one in timeline.list()]
    assert (left.id, left.attempts, left.holder) == ("b", 1, "")
    assert left.due_ms - timeline.due_ms(None) == 60_000


async def test_a_lease_is_renewed_while_the_application_works(
    timeline: ister.Timeline, clock: VirtualClock
) -> None:
    await timeline.put(b"x", id="a")
    async with timeline.consume("one", lease=10.0) as one, timeline.consume("two") as two:
        lease = await one.receive()
        await clock.elapse(300.0)

        assert (two.waiting_count, lease.attempt) == (0, 1)
        await lease.done()


async def test_a_lease_is_renewed_for_max_renewal_at_most(
    timeline: ister.Timeline, clock: VirtualClock
) -> None:
    await timeline.put(b"x", id="a")
    async with timeline.consume("one", lease=10.0, max_renewal=30.0) as leases:
        lost = await leases.receive()
        # Renewed the last time some 26 s after it came, for 10 s.
        await clock.elapse(29.0)
        assert (await timeline.get("a")).holder == "one"
        await clock.elapse(11.0)

        assert (await leases.receive()).attempt == 2
        with pytest.raises(TimelineLeaseLostError):
            await lost.done()


async def test_a_lease_is_renewed_also_after_a_lost_connection(
    timeline: ister.Timeline, broker: MemoryBroker, clock: VirtualClock
) -> None:
    await timeline.put(b"x", id="a")
    async with timeline.consume("one", lease=10.0) as leases:
        lease = await leases.receive()
        await clock.elapse(4.0)
        broker.disconnect_all()
        await clock.elapse(60.0)

        await lease.done()
        assert await timeline.count() == 0


async def test_a_message_can_be_done_while_its_lease_is_being_renewed(
    timeline: ister.Timeline, clock: VirtualClock
) -> None:
    await timeline.put(b"x", id="a")
    async with timeline.consume("one", lease=9.0) as leases:
        lease = await leases.receive()
        clock.advance(6.0)
        await lease.done()

    assert await timeline.count() == 0
