"""What dead letters of timelines say, and how they go back."""

import asyncio
from collections.abc import AsyncIterator

import pytest

import ister
from ister.base.errors import (
    BadRequestError,
    TimelineLeaseLostError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.testing import MemoryBroker, ThreadedBroker, VirtualClock
from ister.testing.clock import settle

TOPIC = "/default/jobs"
LETTERS = f"{TOPIC}-dlq"
ADDED = ("x-original-topic", "x-delivery-attempt", "x-failure-reason")


@pytest.fixture
async def jobs(client: ister.Client) -> ister.Timeline:
    await client.create_topic(TOPIC, kind="timeline", max_leases=2)
    return client.timeline(TOPIC, group="shop")


@pytest.fixture
async def letters(client: ister.Client, jobs: ister.Timeline) -> ister.Timeline:
    return client.timeline(LETTERS, group="shop")


@pytest.fixture
async def leases(jobs: ister.Timeline) -> AsyncIterator[ister.TimelineConsumer]:
    async with jobs.consume("one") as leases:
        yield leases


async def look(jobs: ister.Timeline) -> None:
    """Have the broker lease what is there, and find that it was leased too often."""
    async with jobs.consume("looking"):
        await settle()


async def said(letters: ister.Timeline) -> list[tuple[str, ...]]:
    """Return what is said about each dead letter."""
    return [tuple(one.attributes[name] for name in ADDED) async for one in letters.list()]


# Reasons


async def test_a_dead_letter_has_the_reason_of_the_last_nack(
    jobs: ister.Timeline, letters: ister.Timeline, leases: ister.TimelineConsumer
) -> None:
    await jobs.put(b"x", id="a", attributes={"mine": "1"})
    for reason in ("busy", "no such customer"):
        await (await leases.receive(timeout=1.0)).nack(reason=reason)
    await settle()

    letter = await letters.get("a")
    assert letter.attributes == {
        "mine": "1",
        "x-original-topic": TOPIC,
        "x-delivery-attempt": "2",
        "x-failure-reason": "no such customer",
    }


async def test_a_nacked_message_is_due_after_the_delay(
    jobs: ister.Timeline, leases: ister.TimelineConsumer
) -> None:
    await jobs.put(b"x", id="a")
    await (await leases.receive(timeout=1.0)).nack(after=60.0, reason="busy")

    assert (await jobs.get("a")).due_ms == jobs.due_ms(None) + 60_000


async def test_a_rejected_message_is_a_dead_letter_at_once(
    jobs: ister.Timeline, letters: ister.Timeline, leases: ister.TimelineConsumer
) -> None:
    await jobs.put_many([(b"x", None, "a"), (b"x", None, "b")])
    await (await leases.receive(timeout=1.0)).reject("no such customer")
    await (await leases.receive(timeout=1.0)).reject()

    assert await said(letters) == [
        (TOPIC, "1", "no such customer"),
        (TOPIC, "1", "rejected by its consumer"),
    ]
    assert await jobs.count() == 0


async def test_a_message_is_rejected_where_leases_have_no_end(client: ister.Client) -> None:
    await client.create_topic(TOPIC, kind="timeline", max_leases=0)
    jobs = client.timeline(TOPIC)
    await jobs.put(b"x")
    async with jobs.consume("one") as leases:
        await (await leases.receive(timeout=1.0)).reject("bad")

    assert await said(client.timeline(LETTERS)) == [(TOPIC, "1", "bad")]


async def test_what_is_rejected_right_before_the_end_is_a_dead_letter(
    jobs: ister.Timeline, letters: ister.Timeline
) -> None:
    await jobs.put(b"x")
    async with jobs.consume("one") as leases:
        (await leases.receive(timeout=1.0)).reject("bad")
    await settle()

    assert await said(letters) == [(TOPIC, "1", "bad")]


async def test_rejected_and_done_messages_are_told_apart_in_one_command(
    jobs: ister.Timeline, letters: ister.Timeline, leases: ister.TimelineConsumer
) -> None:
    await jobs.put_many([(b"x", None, name) for name in "abcd"])
    one, two, three, four = [await leases.receive(timeout=1.0) for _ in range(4)]

    answers = [two.ack(), one.reject("bad"), four.extend(999_999), three.nack(after=60.0)]
    errors = await asyncio.gather(*answers, return_exceptions=True)

    assert [type(error) for error in errors] == [
        type(None),
        type(None),
        BadRequestError,
        type(None),
    ]
    assert [one.id async for one in jobs.list()] == ["c", "d"]
    assert [one.id async for one in letters.list()] == ["a"]


async def test_a_lost_lease_cannot_be_rejected(
    jobs: ister.Timeline, leases: ister.TimelineConsumer
) -> None:
    await jobs.put(b"x", id="a")
    lease = await leases.receive(timeout=1.0)
    await lease.nack(after=60.0)

    with pytest.raises(TimelineLeaseLostError):
        await lease.reject("bad")
    assert await jobs.count() == 1


async def test_the_error_that_ends_the_block_is_the_reason(
    jobs: ister.Timeline, letters: ister.Timeline
) -> None:
    await jobs.put(b"x", id="a")

    async def work() -> None:
        async with jobs.consume("one") as leases:
            await leases.receive(timeout=1.0)
            raise ValueError("sku 7 is unknown")

    for _ in range(2):
        with pytest.raises(ValueError, match="sku"):
            await work()
    await look(jobs)

    assert await said(letters) == [(TOPIC, "2", "ValueError: sku 7 is unknown")]


async def test_a_message_that_was_never_given_back_says_so(
    jobs: ister.Timeline, letters: ister.Timeline, clock: VirtualClock
) -> None:
    await jobs.put(b"x", id="a")
    async with jobs.consume("one", lease=10.0, max_renewal=0) as leases:
        for _ in range(2):
            await leases.receive(timeout=1.0)
            await clock.elapse(10.0)

    assert await said(letters) == [
        (TOPIC, "2", "leased as often as the topic allows, and not done")
    ]


async def test_a_very_long_reason_is_cut(
    jobs: ister.Timeline, letters: ister.Timeline, leases: ister.TimelineConsumer
) -> None:
    await jobs.put(b"x")
    await (await leases.receive(timeout=1.0)).reject("é" * 200_000)

    assert await said(letters) == [(TOPIC, "1", "é" * 512)]


async def test_very_many_reasons_fit_into_commands(jobs: ister.Timeline) -> None:
    await jobs.put_many([(b"x", None, str(n)) for n in range(600)])
    async with jobs.consume("one") as leases:
        answers = []
        for _ in range(600):
            lease = await leases.receive(timeout=1.0)
            answers.append(lease.nack(after=60.0, reason="x" * 5_000))
        await asyncio.gather(*answers)

    assert await jobs.count() == 600


async def test_a_reason_is_text(leases: ister.TimelineConsumer, jobs: ister.Timeline) -> None:
    await jobs.put(b"x")
    lease = await leases.receive(timeout=1.0)

    with pytest.raises(BadRequestError, match="a reason is text"):
        lease.nack(reason=7)  # type: ignore[arg-type]
    with pytest.raises(BadRequestError, match="a reason is text"):
        lease.reject(b"bad")  # type: ignore[arg-type]


async def test_done_and_release_are_ack_and_nack() -> None:
    assert ister.TimelineLease.done is ister.TimelineLease.ack
    assert ister.TimelineLease.release is ister.TimelineLease.nack


# Redrive


async def bury(jobs: ister.Timeline, *names: str) -> None:
    """Make messages and reject them."""
    await jobs.put_many([(b"x", None, name) for name in names])
    async with jobs.consume("burying") as leases:
        for _ in names:
            await (await leases.receive(timeout=1.0)).reject("bad")


async def test_dead_letters_go_back_as_if_they_had_never_been_leased(
    jobs: ister.Timeline, letters: ister.Timeline, leases: ister.TimelineConsumer
) -> None:
    await jobs.put(b"x", id="a", attributes={"mine": "1"})
    await (await leases.receive(timeout=1.0)).reject("bad")

    assert await jobs.redrive() == 1

    lease = await leases.receive(timeout=1.0)
    assert (lease.id, lease.payload, lease.attributes) == ("a", b"x", {"mine": "1"})
    assert (lease.attempt, lease.due_ms) == (1, jobs.due_ms(None))
    assert await letters.count() == 0
    assert (await jobs.get("a")).group == "shop"


async def test_redrive_moves_very_many_letters_each_once(
    jobs: ister.Timeline, letters: ister.Timeline
) -> None:
    names = [f"m-{number:03}" for number in range(250)]
    await bury(jobs, *names)

    assert await jobs.redrive() == 250

    assert sorted([one.id async for one in jobs.list()]) == names
    assert await letters.count() == 0
    assert await jobs.redrive() == 0


async def test_redrive_moves_so_many_and_no_more(
    jobs: ister.Timeline, letters: ister.Timeline
) -> None:
    await bury(jobs, "a", "b", "c")

    assert await jobs.redrive(count=2) == 2

    assert (await jobs.count(), await letters.count()) == (2, 1)
    with pytest.raises(BadRequestError):
        await jobs.redrive(count=0)


async def test_a_letter_that_a_consumer_has_stays(
    jobs: ister.Timeline, letters: ister.Timeline
) -> None:
    await bury(jobs, "a", "b")
    async with letters.consume("reading", credit=1) as reading:
        lease = await reading.receive(timeout=1.0)

        assert await jobs.redrive() == 1
        await lease.ack()

    assert (await jobs.count(), await letters.count()) == (1, 0)


async def test_letters_of_another_topic_stay(client: ister.Client) -> None:
    for topic in (TOPIC, "/default/mails"):
        await client.create_topic(topic, kind="timeline", dead_letter_topic="/default/dead")
    mails = client.timeline("/default/mails")
    await bury(client.timeline(TOPIC), "a")
    await bury(mails, "b")
    dead = client.timeline("/default/dead")
    await dead.put(b"put here by its owner", id="c")

    assert await mails.redrive() == 1

    assert [one.id async for one in mails.list()] == ["b"]
    assert sorted([one.id async for one in dead.list()]) == ["a", "c"]


async def test_a_letter_whose_id_is_taken_goes_back_under_another(
    jobs: ister.Timeline, letters: ister.Timeline
) -> None:
    await bury(jobs, "a")
    await jobs.put(b"new", id="a")

    assert await jobs.redrive() == 1

    assert (await jobs.get("a")).payload == b"new"
    assert await jobs.count() == 2


async def test_letters_of_a_priority_topic_keep_their_level(client: ister.Client) -> None:
    await client.create_topic(TOPIC, kind="priority")
    jobs = client.timeline(TOPIC)
    await jobs.put(b"x", id="a", priority=7)
    async with jobs.consume("one") as leases:
        await (await leases.receive(timeout=1.0)).reject("bad")

    await jobs.redrive()

    assert (await jobs.get("a")).priority == 7


async def test_where_no_letter_was_ever_needed_none_goes_back(jobs: ister.Timeline) -> None:
    assert await jobs.redrive() == 0


async def test_redrive_needs_a_timeline(client: ister.Client) -> None:
    with pytest.raises(TopicNotFoundError):
        await client.timeline("/default/nothing").redrive()
    await client.create_topic("/default/live")
    with pytest.raises(WrongKindError):
        await client.timeline("/default/live").redrive()


async def test_letters_outlive_a_restart_with_their_reasons(
    jobs: ister.Timeline, letters: ister.Timeline, broker: MemoryBroker, clock: VirtualClock
) -> None:
    await bury(jobs, "a")
    await broker.restart()
    await clock.elapse(1.0)

    assert await said(letters) == [(TOPIC, "1", "bad")]
    assert await jobs.redrive() == 1


def test_the_blocking_client_has_the_same() -> None:
    with ThreadedBroker() as broker, ister.sync.connect(broker.url) as client:
        client.create_topic(TOPIC, kind="timeline", max_leases=2)
        jobs = client.timeline(TOPIC)
        jobs.put(b"x", id="a")
        with jobs.consume("one") as leases:
            leases.receive(timeout=10.0).nack(reason="busy")
            leases.receive(timeout=10.0).reject("bad")
        reasons = [one.attributes["x-failure-reason"] for one in client.timeline(LETTERS).list()]
        moved = jobs.redrive()
        with jobs.consume("one") as leases:
            leases.receive(timeout=10.0).ack()

        assert (reasons, moved, jobs.count()) == (["bad"], 1, 0)
