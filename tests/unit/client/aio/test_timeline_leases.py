"""Leases of timelines, and consumers that come and go; over the real broker in memory."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

import ister
from ister.base.errors import BadRequestError, ClosedError
from ister.testing import MemoryBroker, VirtualClock
from ister.testing.clock import START_MS, settle

NOW = datetime.fromtimestamp(START_MS / 1000, UTC)


async def test_a_consumer_is_gone_also_when_whoever_closes_it_is_cancelled(
    timeline: ister.Timeline,
) -> None:
    await timeline.put(b"x", id="a")
    one = timeline.consume("one")
    await one.open()
    answer = (await one.receive()).done()
    closing = asyncio.create_task(one.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing

    await answer
    await timeline.put(b"x", id="b")
    async with timeline.consume("two") as two:
        assert (await two.receive(timeout=1.0)).id == "b"
    assert one.waiting_count == 0


async def test_a_message_is_done_also_when_nobody_waits_for_its_extension_any_more(
    timeline: ister.Timeline,
) -> None:
    await timeline.put(b"x", id="a")
    async with timeline.consume("one", lease=10.0) as leases:
        lease = await leases.receive()
        lease.extend(60.0).cancel()
        await lease.done()

    assert await timeline.count() == 0


@pytest.mark.parametrize("turns", range(1, 6))
async def test_a_lost_connection_costs_no_extension_and_no_release(
    timeline: ister.Timeline, broker: MemoryBroker, clock: VirtualClock, turns: int
) -> None:
    await timeline.put_many([(b"x", None, "a"), (b"x", None, "b")])
    async with timeline.consume("one", lease=30.0) as leases:
        kept, given = await leases.receive(), await leases.receive()
        answers = [kept.extend(20.0), given.release(after=5.0)]
        for _ in range(turns):
            await asyncio.sleep(0)
        broker.disconnect_all()
        await clock.elapse(6.0)

        for answer in answers:
            await answer
        await kept.done()
        assert (await leases.receive()).attempt == 2


@pytest.mark.parametrize("timeout", [None, 1.0])
async def test_receiving_from_a_closed_consumer_is_an_error_and_iterating_ends(
    timeline: ister.Timeline, timeout: float | None
) -> None:
    async with timeline.consume("one") as leases:
        receiving = asyncio.create_task(leases.receive(timeout))
        iterating = asyncio.create_task(anext(leases, None))
        await settle()

    for receive in (receiving, leases.receive(timeout)):
        with pytest.raises(ClosedError, match="'one' is closed"):
            await receive
    assert await iterating is None
    assert [lease async for lease in leases] == []


async def test_a_closed_consumer_is_not_opened_again(timeline: ister.Timeline) -> None:
    async with timeline.consume("one") as leases:
        pass

    with pytest.raises(ClosedError, match="'one' is closed: open a new one"):
        await leases.open()


async def test_a_consumer_that_names_no_lease_is_opened_whatever_the_topic_allows(
    client: ister.Client, clock: VirtualClock
) -> None:
    await client.create_topic("/default/short", kind="timeline", max_lease=5.0)
    timeline = client.timeline("/default/short")
    await timeline.put(b"x", id="a")
    async with timeline.consume("one") as leases:
        await leases.receive(timeout=1.0)

        assert (await timeline.get("a")).until_ms == clock.now_ms() + 5_000


async def test_a_lease_tells_when_it_ends_and_is_not_extended_beyond_what_the_topic_allows(
    client: ister.Client, clock: VirtualClock
) -> None:
    await client.create_topic("/default/short", kind="timeline", max_lease=5.0)
    timeline = client.timeline("/default/short")
    await timeline.put(b"x", id="a")
    async with timeline.consume("one", lease=2.0) as leases:
        lease = await leases.receive(timeout=1.0)
        assert lease.until == NOW + timedelta(seconds=2)
        await clock.elapse(1.0)

        with pytest.raises(BadRequestError, match="at most 5s, not 31s: extend it for less"):
            await lease.extend(31.0)
        assert lease.until == NOW + timedelta(seconds=2)
        await lease.extend(5.0)
        assert lease.until == NOW + timedelta(seconds=6)
        await lease.extend(0.5)
        assert lease.until == NOW + timedelta(seconds=1.5)
        await lease.done()


async def test_errors_name_the_limit_in_the_words_of_the_call(
    client: ister.Client, timeline: ister.Timeline
) -> None:
    with pytest.raises(
        BadRequestError, match="credit is a whole number from 1 to 100000, not 1000"
    ):
        timeline.consume("one", credit=1_000_000)
    with pytest.raises(BadRequestError, match=r"max_lease is 10ms to 7d, not 700000s$"):
        await client.create_topic("/default/long", kind="timeline", max_lease=700_000.0)
