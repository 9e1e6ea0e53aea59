"""Cron rules from an application's side, over the real broker in memory; time is the test's."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import ister
from ister.base.errors import (
    BadRequestError,
    MessageChangedError,
    MessageExistsError,
    MessageNotFoundError,
    MessageTooLargeError,
    NotOwnerError,
    TopicExistsError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.testing import MemoryBroker, VirtualClock

TOPIC = "/default/jobs"
MINUTE = timedelta(minutes=1)
FIRST = datetime(2023, 11, 14, 22, 14, tzinfo=UTC)


@pytest.fixture
async def client(broker: MemoryBroker) -> AsyncIterator[ister.Client]:
    async with broker.connect() as client:
        await client.create_topic(TOPIC, kind="cron")
        yield client


@pytest.fixture
def jobs(client: ister.Client) -> ister.Timeline:
    return client.timeline(TOPIC, group="shop")


def rule_in(message: ister.TimelineMessage) -> ister.CronRule:
    assert message.cron is not None
    return message.cron


async def test_messages_of_a_rule_are_consumed_as_any_other(
    jobs: ister.Timeline, clock: VirtualClock
) -> None:
    await jobs.put(b"go", cron="* * * * *", id="tick", attributes={"a": "1"})
    async with jobs.consume("worker-1") as leases:
        await clock.elapse(100.1)
        first = await leases.receive(timeout=1.0)
        await first.done()
        await clock.elapse(60.0)
        second = await leases.receive(timeout=1.0)
        await second.done()

    assert [one.id for one in (first, second)] == [
        "tick@2023-11-14T22:14:00Z",
        "tick@2023-11-14T22:16:00Z",
    ]
    assert (first.payload, first.attributes, first.due) == (b"go", {"a": "1"}, FIRST)
    rule = rule_in(await jobs.get("tick"))
    assert (rule.fired, rule.skipped, rule.last) == (2, 1, FIRST + 2 * MINUTE)


async def test_a_rule_is_told_with_all_that_was_said_of_it(jobs: ister.Timeline) -> None:
    put = await jobs.put(
        b"report",
        cron="30  2 * * *",
        tz="Europe/Vienna",
        jitter=60.0,
        catch_up=timedelta(hours=3),
        overlap="buffer",
        id="nightly",
        attributes={"k": "v"},
    )

    found = await jobs.get("nightly")
    rule = rule_in(found)

    assert (found.id, found.version, found.group) == ("nightly", put.version, "shop")
    assert (found.payload, found.attributes) == (b"report", {"k": "v"})
    assert (rule.expression, rule.tz, rule.jitter) == ("30 2 * * *", "Europe/Vienna", 60.0)
    assert (rule.catch_up, rule.overlap, rule.paused) == (10_800.0, "buffer", False)
    assert rule.next == found.due
    assert rule.next is not None
    assert (rule.next.hour, rule.next.minute) == (2, 30)
    assert rule.last is rule.buffered is None
    assert (rule.fired, rule.missed, rule.skipped) == (0, 0, 0)


async def test_a_rule_without_an_id_gets_one(jobs: ister.Timeline) -> None:
    put = await jobs.put(b"x", cron="@hourly")

    assert rule_in(await jobs.get(put.id)).expression == "@hourly"


async def test_the_same_id_twice_is_refused(jobs: ister.Timeline) -> None:
    await jobs.put(b"x", cron="@hourly", id="a")

    with pytest.raises(MessageExistsError, match="cron rule 'a' exists already: update it with"):
        await jobs.put(b"x", cron="@daily", id="a")


async def test_rules_are_updated_paused_resumed_and_deleted_by_version(
    jobs: ister.Timeline,
) -> None:
    put = await jobs.put(b"old", cron="@hourly", id="a")
    updated = await jobs.update("a", b"new", cron="@daily", tz="Asia/Tokyo", version=put.version)
    with pytest.raises(MessageChangedError):
        await jobs.pause("a", version=put.version)
    paused = await jobs.pause("a", version=updated.version)
    found = await jobs.get("a")
    assert (found.payload, rule_in(found).expression, rule_in(found).tz) == (
        b"new",
        "@daily",
        "Asia/Tokyo",
    )
    assert rule_in(found).paused
    assert rule_in(found).next is None
    resumed = await jobs.resume("a", version=paused.version)
    with pytest.raises(MessageChangedError):
        await jobs.delete("a", version=paused.version)
    await jobs.delete("a", version=resumed.version)

    with pytest.raises(MessageNotFoundError):
        await jobs.get("a")


async def test_an_update_without_cron_leaves_the_times_as_they_are(jobs: ister.Timeline) -> None:
    await jobs.put(b"old", cron="@hourly", id="a", attributes={"k": "v"})

    await jobs.update("a", b"new")

    found = await jobs.get("a")
    assert (found.payload, found.attributes) == (b"new", {})
    assert rule_in(found).expression == "@hourly"


async def test_another_group_may_look_and_not_change(
    client: ister.Client, jobs: ister.Timeline
) -> None:
    await jobs.put(b"x", cron="@hourly", id="a")
    other = client.timeline(TOPIC, group="other")

    assert (await other.get("a")).group == "shop"
    for change in (
        other.pause("a"),
        other.resume("a"),
        other.delete("a"),
        other.update("a", b"y"),
        other.update("a", b"y", cron="@daily"),
    ):
        with pytest.raises(NotOwnerError):
            await change


async def test_rules_are_listed_over_pages(jobs: ister.Timeline) -> None:
    names = [f"r-{number:03}" for number in range(205)]
    for name in names:
        await jobs.put(b"x", cron="@daily", id=name)

    found = [message async for message in jobs.rules()]

    assert [message.id for message in found] == names
    assert {rule_in(message).expression for message in found} == {"@daily"}
    assert [message async for message in jobs.list()] == []


async def test_large_rules_are_listed_over_pages(jobs: ister.Timeline) -> None:
    for number in range(40):
        await jobs.put(b"x" * 60_000, cron="@daily", id=f"r-{number}")

    assert len([message async for message in jobs.rules()]) == 40


async def test_a_preview_is_in_the_zone_of_the_rule(jobs: ister.Timeline) -> None:
    await jobs.put(b"x", cron="30 2 * * *", tz="Europe/Vienna", id="nightly")
    await jobs.pause("nightly")

    of_rule = await jobs.preview("nightly", 2)
    of_expression = await jobs.preview(cron="30 2 * * *", tz="Europe/Vienna", count=2)

    assert of_rule == of_expression
    assert [one.isoformat() for one in of_rule] == [
        "2023-11-15T02:30:00+01:00",
        "2023-11-16T02:30:00+01:00",
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cron": "* * * *"}, "4 fields"),
        ({"cron": "61 * * * *"}, "minute '61'"),
        ({"cron": "0 0 30 2 *"}, "never fires"),
        ({"cron": "x" * 10_000}, "256 characters"),
        ({"cron": ""}, "0 fields"),
        ({"cron": "@hourly", "tz": "Mars/Base"}, "no time zone 'Mars/Base'"),
        ({"cron": "@hourly", "tz": "../../etc/passwd"}, "no time zone"),
        ({"cron": "@hourly", "tz": "a\0b"}, "no time zone"),
        ({"cron": "@hourly", "jitter": 10**9}, "jitter is 0 to 1d"),
        ({"cron": "@hourly", "jitter": -1.0}, "jitter"),
        ({"cron": "@hourly", "jitter": float("nan")}, "jitter"),
        ({"cron": "@hourly", "catch_up": 1.0}, "catch-up window"),
        ({"cron": "* * * * *", "catch_up": 10**6}, "catch-up window"),
        ({"cron": "@hourly", "overlap": "queue"}, "skip, buffer, allow"),
        ({"cron": "@hourly", "id": "a@b"}, "no @"),
        ({"cron": "@hourly", "id": ""}, "1 to 255"),
        ({"cron": "@hourly", "id": "x" * 250}, "234 bytes"),
        ({"cron": 5}, "cron is text"),
        ({"cron": "@hourly", "at": 60.0}, "cron= says"),
        ({"cron": "@hourly", "priority": 3}, "no priority"),
        ({"tz": "UTC"}, "say cron="),
    ],
)
async def test_what_makes_no_rule_is_refused_with_words_about_it(
    jobs: ister.Timeline, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadRequestError, match=words):
        await jobs.put(b"x", **options)
    assert [message async for message in jobs.rules()] == []


async def test_a_payload_that_is_too_large_is_refused(jobs: ister.Timeline) -> None:
    with pytest.raises(MessageTooLargeError, match=r"the 64KiB limit .* is fixed: split it"):
        await jobs.put(b"x" * 65_537, cron="@hourly")


async def test_a_rule_on_a_plain_timeline_is_refused_with_the_way_out(
    client: ister.Client,
) -> None:
    await client.create_topic("/default/plain", kind="timeline")
    plain = client.timeline("/default/plain")

    with pytest.raises(WrongKindError, match="kind cron"):
        await plain.put(b"x", cron="@hourly")
    with pytest.raises(WrongKindError, match="kind cron"):
        await plain.pause("a")
    with pytest.raises(WrongKindError, match="kind cron"):
        [message async for message in plain.rules()]
    with pytest.raises(TopicNotFoundError):
        await client.timeline("/default/none").put(b"x", cron="@hourly")


async def test_a_plain_message_on_a_cron_topic_is_refused_with_the_way_out(
    jobs: ister.Timeline,
) -> None:
    with pytest.raises(WrongKindError, match="cron="):
        await jobs.put(b"x", after=60.0)
    [result] = await jobs.put_many([(b"x",)])
    assert isinstance(result, WrongKindError)
    with pytest.raises(BadRequestError):
        async with jobs.transaction() as tx:
            tx.put(b"x", after=60.0)


@pytest.mark.parametrize(
    "arguments", [{}, {"id": "a", "cron": "@hourly"}, {"id": "a", "tz": "UTC"}]
)
async def test_a_preview_is_of_a_rule_or_of_an_expression(
    jobs: ister.Timeline, arguments: dict[str, Any]
) -> None:
    with pytest.raises(BadRequestError, match="a preview is of"):
        await jobs.preview(**arguments)


async def test_a_preview_has_so_many_times(jobs: ister.Timeline) -> None:
    assert len(await jobs.preview(cron="* * * * *", count=1_000)) == 1_000
    for count in (0, 1_001):
        with pytest.raises(BadRequestError):
            await jobs.preview(cron="* * * * *", count=count)


async def test_the_rules_of_a_topic_are_not_a_topic(client: ister.Client) -> None:
    assert [row.topic for row in await client.topics()] == [TOPIC]
    with pytest.raises(TopicNotFoundError):
        await client.timeline(f"{TOPIC}#rules").count()


async def test_a_cron_topic_is_made_again_only_as_it_is(client: ister.Client) -> None:
    await client.create_topic(TOPIC, kind="cron")
    with pytest.raises(TopicExistsError):
        await client.create_topic(TOPIC, kind="timeline")
    await client.delete_topic(TOPIC)
    await client.create_topic(TOPIC, kind="cron")
    assert [message async for message in client.timeline(TOPIC).rules()] == []


async def test_a_rule_fires_at_an_interval_below_a_minute(
    jobs: ister.Timeline, clock: VirtualClock
) -> None:
    await jobs.put(b"go", every=5.0, id="tick")
    due: list[datetime] = []
    async with jobs.consume("worker-1") as leases:
        for _ in range(4):
            await clock.elapse(5.0)
            lease = await leases.receive(timeout=1.0)
            due.append(lease.due)
            await lease.done()

    assert [one - due[0] for one in due] == [timedelta(seconds=5 * n) for n in range(4)]
    assert due[0].second % 5 == 0
    rule = rule_in(await jobs.get("tick"))
    assert (rule.expression, rule.skipped, rule.missed) == ("@every 5s", 0, 0)


async def test_an_interval_that_is_not_done_in_time_is_skipped(
    jobs: ister.Timeline, clock: VirtualClock
) -> None:
    await jobs.put(b"go", every=timedelta(seconds=1), id="tick")
    async with jobs.consume("worker-1") as leases:
        await clock.elapse(1.5)
        lease = await leases.receive(timeout=1.0)
        await clock.elapse(3.0)
        await lease.done()
        await clock.elapse(1.0)
        again = await leases.receive(timeout=1.0)

    assert again.due - lease.due > timedelta(seconds=2)
    assert rule_in(await jobs.get("tick")).skipped >= 2


async def test_intervals_are_whole_seconds_and_no_expression_beside_them(
    jobs: ister.Timeline,
) -> None:
    for every, reason in ((0.5, "1s to 1d"), (1.5, "whole seconds"), ("5", "not '5'")):
        with pytest.raises(BadRequestError, match=reason):
            await jobs.put(b"x", every=every)  # type: ignore[arg-type]
    with pytest.raises(BadRequestError, match="not both"):
        await jobs.put(b"x", cron="* * * * *", every=5.0)
    await jobs.put(b"x", every=5.0, id="a")
    await jobs.update("a", b"y", every=60.0)
    assert rule_in(await jobs.get("a")).expression == "@every 60s"
