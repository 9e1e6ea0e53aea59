"""Consumers of a timeline that are slow, and where messages go that nobody gets to."""

import pytest
from tests.unit.client.aio.conftest import TOPIC

import ister
from ister.base.errors import WrongKindError
from ister.testing import VirtualClock


@pytest.fixture
async def timeline(client: ister.Client) -> ister.Timeline:
    await client.create_topic("/default/work", kind="timeline", max_leases=2)
    return client.timeline("/default/work")


async def test_a_slow_consumer_leaves_to_others_what_it_does_not_get_to(
    timeline: ister.Timeline,
) -> None:
    await timeline.put_many([(b"x", None, f"{number:02}") for number in range(40)])
    async with timeline.consume("slow") as slow, timeline.consume("quick") as quick:
        begun = await slow.receive()
        others = [await quick.receive(timeout=1.0) for _ in range(37)]

    assert begun.id == "00"
    assert {lease.attempt for lease in others} == {1}


async def test_what_no_application_has_seen_is_no_dead_letter(
    timeline: ister.Timeline, clock: VirtualClock
) -> None:
    await timeline.put_many([(b"x", None, f"{number:02}") for number in range(40)])
    seen = []
    async with timeline.consume("w", lease=1.0) as leases:
        # Quick at first, so that it is sent many; then a fifth of a lease for each.
        for number in range(40):
            lease = await leases.receive(timeout=10.0)
            seen.append((lease.id, lease.attempt))
            await clock.elapse(0.2 if number >= 15 else 0.0)
            await lease.done()

    assert seen == [(f"{number:02}", 1) for number in range(40)]


async def test_dead_letters_go_to_a_timeline_and_nowhere_else(client: ister.Client) -> None:
    await client.create_topic("/default/stream", kind="stream")
    await client.create_topic("/default/x-dlq", kind="stream")

    for letters in ("/default/stream", None):
        with pytest.raises(WrongKindError, match="dead letters go to a timeline"):
            await client.create_topic("/default/x", kind="timeline", dead_letter_topic=letters)
    await client.create_topic("/default/x", kind="timeline", dead_letter_topic=TOPIC)


async def test_who_looks_in_now_and_then_gets_each_message_once(
    timeline: ister.Timeline, clock: VirtualClock
) -> None:
    async with timeline.consume("w") as leases:
        for number in range(20):
            await timeline.put(b"x", id=f"{number}")
            await clock.elapse(17.0)
            lease = await leases.receive(timeout=1.0)
            assert (lease.id, lease.attempt) == (f"{number}", 1)
            await lease.done()
