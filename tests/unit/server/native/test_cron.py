"""Commands of cron rules from hostile and broken clients cost a request or a connection."""

from typing import Any

import msgspec
import pytest
from tests.unit.server.native.test_timelines import (
    BAD_REQUEST,
    NOT_FOUND,
    WRONG_KIND,
    TimelineEnd,
    change,
)

from ister.wire import (
    DELETE,
    PAUSE_RULE,
    PUT_RULE,
    UPDATE,
    ChangeCron,
    CreateTopic,
    CronPreview,
    CronRows,
    Done,
    GetFromTimeline,
    ListCron,
    PreviewCron,
    TimelineChanged,
    control_frame,
)

TOPIC, PLAIN = "/default/jobs", "/default/plain"
BAD_NAME, TOO_LARGE, NO_TOPIC = 1001, 1004, 3001


def rule(**fields: Any) -> ChangeCron:
    usual: dict[str, Any] = {
        "topic": TOPIC,
        "group": "shop",
        "kind": PUT_RULE,
        "id": "a",
        "expression": "@daily",
    }
    return ChangeCron(**(usual | fields))


@pytest.fixture
async def end() -> TimelineEnd:
    end = TimelineEnd()
    assert isinstance(await end.ask(CreateTopic(topic=TOPIC, kind="cron")), Done)
    assert isinstance(await end.ask(CreateTopic(topic=PLAIN, kind="timeline")), Done)
    return end


async def test_a_rule_is_put_found_listed_and_foretold(end: TimelineEnd) -> None:
    made = await end.ask(rule(payload=b"x"))
    assert isinstance(made, TimelineChanged)

    found = await end.ask(GetFromTimeline(topic=TOPIC, id="a"))
    listed = await end.ask(ListCron(topic=TOPIC))
    foretold = await end.ask(PreviewCron(topic=TOPIC, id="a", count=2))

    assert isinstance(found, CronRows)
    assert (found.ids, found.versions, found.payloads) == (["a"], made.versions, [b"x"])
    assert isinstance(listed, CronRows)
    assert (listed.crons, listed.after) == (found.crons, None)
    assert isinstance(foretold, CronPreview)
    assert foretold.due_ms[0] == found.crons[0].next_ms == found.due_ms[0]


@pytest.mark.parametrize(
    "fields",
    [
        {"id": ""},
        {"id": "a@b"},
        {"id": "a\0"},
        {"id": "x" * 235},
        {"version": -1},
        {"version": 2**63},
        {"expression": ""},
        {"expression": "* " * 10_000},
        {"expression": "٣ * * * *"},
        {"zone": ""},
        {"zone": "/etc/localtime"},
        {"zone": "x" * 100_000},
        {"jitter_ms": -1},
        {"jitter_ms": 2**63 - 1},
        {"catch_up_ms": 0},
        {"catch_up_ms": -(2**63)},
        {"overlap": "x" * 100_000},
        {"attributes": b"\xc1"},
        {"attributes": msgspec.msgpack.encode({"a": 1})},
    ],
)
async def test_a_value_out_of_bounds_costs_the_request(
    end: TimelineEnd, fields: dict[str, Any]
) -> None:
    assert await end.code(rule(**fields)) == BAD_REQUEST
    assert not end.transport.closing
    listed = await end.ask(ListCron(topic=TOPIC))
    assert isinstance(listed, CronRows)
    assert listed.ids == []


async def test_a_bad_group_and_a_large_payload_are_refused(end: TimelineEnd) -> None:
    assert await end.code(rule(group="a b")) == BAD_NAME
    assert await end.code(rule(payload=b"x" * 65_537)) == TOO_LARGE


@pytest.mark.parametrize("kind", [-1, 4, 2**62])
async def test_a_kind_of_change_that_is_not_known_ends_the_connection(
    end: TimelineEnd, kind: int
) -> None:
    end.session.data_received(control_frame(rule(kind=kind), sequence=5))

    assert end.transport.closing


@pytest.mark.parametrize(
    "command",
    [
        ListCron(topic=TOPIC, after=(-2, 0)),
        ListCron(topic=TOPIC, after=(0, 2**63)),
        PreviewCron(expression="@daily", count=0),
        PreviewCron(expression="@daily", count=-1),
        PreviewCron(expression="@daily", count=1_001),
        PreviewCron(topic=TOPIC, id="x" * 300),
        PreviewCron(),
    ],
)
async def test_a_question_out_of_bounds_costs_the_request(
    end: TimelineEnd, command: ListCron | PreviewCron
) -> None:
    assert await end.code(command) == BAD_REQUEST
    assert not end.transport.closing


async def test_rules_are_for_cron_topics(end: TimelineEnd) -> None:
    assert await end.code(rule(topic=PLAIN)) == WRONG_KIND
    assert await end.code(ListCron(topic=PLAIN)) == WRONG_KIND
    assert await end.code(PreviewCron(topic=PLAIN, id="a")) == WRONG_KIND
    assert await end.code(rule(topic="/default/none")) == NO_TOPIC


async def test_a_rule_that_is_not_there_is_not_found(end: TimelineEnd) -> None:
    assert await end.code(rule(kind=PAUSE_RULE)) == NOT_FOUND
    assert await end.code(GetFromTimeline(topic=TOPIC, id="a")) == NOT_FOUND
    assert await end.code(PreviewCron(topic=TOPIC, id="a")) == NOT_FOUND


async def test_what_was_asked_for_together_is_answered_together(end: TimelineEnd) -> None:
    await end.ask(rule())

    answer = await end.ask(
        change(
            topic=TOPIC, kinds=bytes([UPDATE, DELETE, DELETE]), ids=["a", "b", "c@x"], payloads=[]
        )
    )

    assert isinstance(answer, TimelineChanged)
    assert [one.code for one in answer.errors.values()] == [NOT_FOUND, NOT_FOUND]
    assert sorted(answer.errors) == [1, 2]
    assert answer.versions[0] > 0
