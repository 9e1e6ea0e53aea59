"""Commands of timelines from hostile and broken clients cost a request or a connection."""

import asyncio
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.unit.server.native.test_session import End

from ister.base import TimelineSettings
from ister.base.limits import (
    DRIFT_US_MAX,
    TIMELINE_CHANGES_MAX,
    TIMELINE_CREDIT_MAX,
    TIMELINE_MESSAGE_BYTES_MAX,
    Limits,
)
from ister.broker import Broker, InlineWorker, WithStore
from ister.server.native import NativeDoor
from ister.server.native.timelines import AWAITED_MAX
from ister.testing import VirtualClock
from ister.timeline import MemoryStore, Row
from ister.wire import (
    DONE,
    EXTEND,
    PUT,
    RELEASE,
    AskTime,
    ChangeTimeline,
    CloseConsumer,
    Command,
    ConsumeTimeline,
    CountTimeline,
    CreateTopic,
    DeleteTopic,
    Done,
    ErrorReply,
    FinishLeases,
    GetFromTimeline,
    LeasesRevoked,
    ListTimeline,
    OpenProducer,
    TimelineChanged,
    TimelineCount,
    TimelineDue,
    TimelineOpened,
    TimelineRows,
    TimeTold,
    control_frame,
    decode_command,
)

TOPIC = "/default/r"
BAD_NAME, BAD_REQUEST, NO_TOPIC, NOT_FOUND, WRONG_KIND = 1001, 1007, 3001, 3012, 1013


class TimelineEnd(End):
    """A session of a broker that has a timeline."""

    def __init__(self) -> None:
        call_soon = asyncio.get_running_loop().call_soon
        self.clock = VirtualClock()
        broker = Broker(
            name="b", limits=Limits(), clock=self.clock, random_slot=lambda count: count - 1
        )
        broker.adopt_timelines(
            WithStore(MemoryStore(), InlineWorker(call_soon)), [], call_soon=call_soon
        )
        super().__init__(NativeDoor(broker, busy_poll_us=0))
        self.notices: list[Command] = []

    async def ask(self, command: Command) -> Command:
        """Send a command, and return its answer; what else comes is noted."""
        self.session.data_received(control_frame(command, sequence=5))
        answers: list[Command] = []
        for _ in range(20):
            await asyncio.sleep(0)
            self.door.flush()
            for frame in self.sent():
                (answers if frame[2] == 5 else self.notices).append(decode_command(frame[3]))
        [answer] = answers
        return answer

    async def code(self, command: Command) -> int:
        """Return the number of the error that answers a command."""
        answer = await self.ask(command)
        assert isinstance(answer, ErrorReply), answer
        return answer.code

    async def put(self, *ids: str, due_ms: int = 0) -> TimelineChanged:
        """Make messages."""
        answer = await self.ask(
            change(ids=list(ids), kinds=bytes(len(ids)), due_ms=[due_ms] * len(ids))
        )
        assert isinstance(answer, TimelineChanged), answer
        return answer


def change(**fields: Any) -> ChangeTimeline:
    usual: dict[str, Any] = {"topic": TOPIC, "group": "shop", "kinds": bytes([PUT]), "ids": ["a"]}
    return ChangeTimeline(**(usual | fields))


def consume(**fields: Any) -> ConsumeTimeline:
    usual: dict[str, Any] = {
        "topic": TOPIC,
        "consumer": "w",
        "channel": 9,
        "lease_ms": 60_000,
        "prefetch_ms": 0,
        "credit": 10,
    }
    return ConsumeTimeline(**(usual | fields))


@pytest.fixture
async def end() -> TimelineEnd:
    end = TimelineEnd()
    assert isinstance(await end.ask(CreateTopic(topic=TOPIC, kind="timeline")), Done)
    return end


async def test_a_message_is_put_found_counted_and_listed(end: TimelineEnd) -> None:
    assert (await end.put("a", "b", due_ms=7)).errors == {}

    found = await end.ask(GetFromTimeline(topic=TOPIC, id="a"))
    assert isinstance(found, TimelineRows)
    assert (found.ids, found.due_ms) == (["a"], [7])
    count = CountTimeline(topic=TOPIC, start_ms=7, end_ms=8)
    assert await end.ask(count) == TimelineCount(count=2)
    page = await end.ask(ListTimeline(topic=TOPIC, start_ms=0, end_ms=8, limit=1))
    assert isinstance(page, TimelineRows)
    assert page.after is not None
    rest = await end.ask(ListTimeline(topic=TOPIC, start_ms=0, end_ms=8, after=page.after))
    assert isinstance(rest, TimelineRows)
    assert (page.ids, rest.ids, rest.after) == (["a"], ["b"], None)


@pytest.mark.parametrize(
    "fields",
    [
        {"ids": []},
        {"kinds": b""},
        {"kinds": bytes([4])},
        {"kinds": bytes(TIMELINE_CHANGES_MAX + 1), "ids": ["a"] * (TIMELINE_CHANGES_MAX + 1)},
        {"due_ms": [1, 2]},
        {"payloads": [b"", b""]},
        {"attributes": [b"", b""]},
        {"levels": [0, 0]},
        {"versions": [0, 0]},
    ],
)
async def test_columns_that_do_not_fit_together_end_the_connection(
    end: TimelineEnd, fields: dict[str, Any]
) -> None:
    end.session.data_received(control_frame(change(**fields), sequence=5))

    assert end.transport.closing


@pytest.mark.parametrize(
    "fields",
    [
        {"ids": [""]},
        {"ids": ["ö" * 128]},
        {"ids": ["a\0b"]},
        {"due_ms": [-1]},
        {"due_ms": [2**62]},
        {"levels": [32]},
        {"levels": [-1]},
        {"versions": [2**63]},
        {"versions": [-1]},
        {"attributes": [b"\xc1"]},
        {"attributes": [msgspec.msgpack.encode({"a": 1})]},
        {"attributes": [msgspec.msgpack.encode({str(n): "" for n in range(129)})]},
        {"attributes": [msgspec.msgpack.encode({"a": "x" * 8_193})]},
    ],
)
async def test_a_value_out_of_bounds_costs_the_request(
    end: TimelineEnd, fields: dict[str, Any]
) -> None:
    assert await end.code(change(**fields)) == BAD_REQUEST
    assert not end.transport.closing


@pytest.mark.parametrize("group", ["", "x" * 256, "a\0b"])
async def test_a_group_that_is_not_a_name_costs_the_request(end: TimelineEnd, group: str) -> None:
    assert await end.code(change(group=group)) == BAD_NAME


async def test_a_message_over_the_limit_is_refused(end: TimelineEnd) -> None:
    assert await end.code(change(payloads=[b"x" * (TIMELINE_MESSAGE_BYTES_MAX + 1)])) == 1004


async def test_a_page_ends_where_it_would_be_too_large_to_send(end: TimelineEnd) -> None:
    large = b"x" * (TIMELINE_MESSAGE_BYTES_MAX - 100)
    for name in ("a", "b", "c"):
        await end.ask(change(ids=[name], payloads=[large]))

    names = []
    after = (-1, 0)
    for _ in range(3):
        page = await end.ask(ListTimeline(topic=TOPIC, start_ms=0, end_ms=8, after=after))
        assert isinstance(page, TimelineRows)
        names += page.ids
        after = page.after or after

    assert names == ["a", "b", "c"]


async def test_a_consumer_is_sent_what_is_due_and_finishes_it(end: TimelineEnd) -> None:
    await end.put("a")
    opened = await end.ask(consume())
    assert opened == TimelineOpened(now_us=end.clock.now_us())
    [due] = end.notices
    assert isinstance(due, TimelineDue)
    assert (due.ids, due.attempts) == (["a"], [1])

    finish = FinishLeases(
        channel=9, kinds=bytes([DONE]), ids=["a"], versions=due.versions, lateness_us=[700]
    )
    assert isinstance(await end.ask(finish), TimelineChanged)

    assert await end.code(GetFromTimeline(topic=TOPIC, id="a")) == NOT_FOUND
    lateness = dict(end.session.broker.timelines.report(TOPIC).lateness)
    assert lateness[0.001] == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"credit": 0},
        {"credit": TIMELINE_CREDIT_MAX + 1},
        {"lease_ms": -1},
        {"lease_ms": 2**60},
        {"prefetch_ms": -1},
        {"channel": 0},
        {"channel": 1},
    ],
)
async def test_a_consumer_that_makes_no_sense_is_refused(
    end: TimelineEnd, fields: dict[str, Any]
) -> None:
    assert await end.code(consume(**fields)) == BAD_REQUEST


@pytest.mark.parametrize(("lease_ms_max", "lease_ms"), [(30_000, 30_000), (90_000, 60_000)])
async def test_a_consumer_that_names_no_lease_has_a_minute_or_what_the_topic_allows(
    end: TimelineEnd, lease_ms_max: int, lease_ms: int
) -> None:
    settings = TimelineSettings(lease_ms_max=lease_ms_max)
    await end.ask(CreateTopic(topic="/default/t", kind="timeline", timeline=settings))
    await end.ask(change(topic="/default/t"))

    await end.ask(consume(topic="/default/t", lease_ms=0))

    [due] = [notice for notice in end.notices if isinstance(notice, TimelineDue)]
    assert due.until_ms == [end.clock.now_ms() + lease_ms]
    assert await end.code(consume(topic="/default/none", channel=11, lease_ms=0)) == NO_TOPIC


async def test_finishing_without_a_consumer_is_refused(end: TimelineEnd) -> None:
    command = FinishLeases(channel=9, kinds=bytes([DONE]), ids=["a"], versions=[1])

    assert await end.code(command) == BAD_REQUEST


async def test_times_out_of_bounds_are_refused(end: TimelineEnd) -> None:
    await end.ask(consume())
    for kind, times_ms in ((EXTEND, 2**62), (RELEASE, -1)):
        command = FinishLeases(
            channel=9, kinds=bytes([kind]), ids=["a"], versions=[1], times_ms=[times_ms]
        )
        assert await end.code(command) == BAD_REQUEST


async def test_who_extends_leases_is_told_when_they_end(end: TimelineEnd) -> None:
    await end.put("a", "b")
    await end.ask(consume())
    [due] = [notice for notice in end.notices if isinstance(notice, TimelineDue)]

    command = FinishLeases(
        channel=9,
        kinds=bytes([EXTEND, DONE, EXTEND]),
        ids=["a", "b", "gone"],
        versions=[*due.versions, 1],
        times_ms=[5_000, 0, 5_000],
    )
    answer = await end.ask(command)

    assert isinstance(answer, TimelineChanged)
    assert answer.until_ms == [end.clock.now_ms() + 5_000, 0, 0]
    assert [*answer.errors] == [2]


async def test_an_answer_to_nothing_is_ignored(end: TimelineEnd) -> None:
    command = LeasesRevoked(channel=9, ids=["a"], versions=[1], kept=[True])

    assert isinstance(await end.ask(command), Done)
    await end.ask(consume())
    assert isinstance(await end.ask(command), Done)


async def test_a_channel_is_free_when_its_consumer_is_closed(end: TimelineEnd) -> None:
    await end.ask(consume())
    assert await end.code(consume()) == BAD_REQUEST

    await end.ask(CloseConsumer(channel=9))

    assert isinstance(await end.ask(consume()), TimelineOpened)


async def test_a_lost_connection_gives_back_what_it_had(end: TimelineEnd) -> None:
    await end.ask(consume())
    end.session.connection_lost(None)

    assert end.session.broker.timelines.report(TOPIC).consumers == 0


async def test_a_consumer_that_reads_nothing_is_closed(
    end: TimelineEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    await end.ask(consume())
    end.session.writable = False
    monkeypatch.setattr(end.transport, "get_write_buffer_size", lambda: 2**30, raising=False)
    broker = end.session.broker
    done: list[object] = []
    put = change()
    end.session.writable = True
    end.session.data_received(control_frame(put, sequence=6))
    end.session.writable = False
    for _ in range(20):
        await asyncio.sleep(0)

    assert end.session.timelines.consumers == {}
    assert broker.timelines.report(TOPIC).consumers == 0
    broker.timelines.get(TOPIC, "a", done.append)
    await asyncio.sleep(0)
    [row] = done
    assert isinstance(row, Row)
    assert row.leases == 0


async def test_the_time_is_told(end: TimelineEnd) -> None:
    assert await end.ask(AskTime()) == TimeTold(now_us=end.clock.now_us())


async def test_the_drift_that_a_client_tells_is_that_of_its_consumers(end: TimelineEnd) -> None:
    await end.ask(AskTime(drift_us=-3_000))
    await end.ask(consume())
    timelines = end.session.broker.timelines
    opened = timelines.report(TOPIC).drift_us
    with capture_logs() as logs:
        await end.ask(AskTime(drift_us=-DRIFT_US_MAX))
        quiet = list(logs)
        await end.ask(AskTime(drift_us=-DRIFT_US_MAX - 1))
        await end.ask(AskTime(drift_us=DRIFT_US_MAX * 2))

    assert opened == -3_000
    assert timelines.report(TOPIC).drift_us == DRIFT_US_MAX * 2
    assert quiet == []
    # Once for a connection.
    assert [(one["event"], one["drift_ms"]) for one in logs] == [("clock_drift", -101)]


async def test_a_name_belongs_to_one_kind_of_topic(end: TimelineEnd) -> None:
    assert await end.code(OpenProducer(topic=TOPIC, name="p", channel=3)) == WRONG_KIND
    assert await end.code(CreateTopic(topic=TOPIC, kind="live")) == WRONG_KIND
    assert await end.code(CreateTopic(topic=TOPIC, kind="priority")) == 4001
    assert await end.code(CreateTopic(topic="/default/x", kind="timeline")) == 4001
    assert await end.code(CreateTopic(topic="/default/y", kind="timeline", partitions=2)) == 1007
    assert isinstance(await end.ask(CreateTopic(topic=TOPIC, kind="timeline")), Done)


async def test_a_topic_that_was_deleted_may_be_of_another_kind(end: TimelineEnd) -> None:
    await end.ask(DeleteTopic(topic=TOPIC))

    assert isinstance(await end.ask(CreateTopic(topic=TOPIC, kind="live")), Done)


async def test_a_timeline_that_is_not_there_is_told(end: TimelineEnd) -> None:
    assert await end.code(change(topic="/default/none")) == 3001
    assert await end.code(consume(topic="/default/none")) == 3001
    assert await end.code(GetFromTimeline(topic="/default/none", id="a")) == 3001


@pytest.mark.parametrize("partitions", [0, 2])
async def test_a_topic_of_another_kind_is_told_with_its_kind(
    end: TimelineEnd, partitions: int
) -> None:
    name = "/default/live"
    await end.ask(CreateTopic(topic=name, kind="live", partitions=partitions))

    answer = await end.ask(change(topic=name))
    assert isinstance(answer, ErrorReply)
    assert (answer.code, answer.fields["kind"]) == (WRONG_KIND, "live")
    assert await end.code(consume(topic=name)) == WRONG_KIND
    assert await end.code(GetFromTimeline(topic=name, id="a")) == WRONG_KIND
    assert await end.code(CountTimeline(topic=name, start_ms=0, end_ms=1)) == WRONG_KIND


async def test_an_answer_about_too_many_messages_ends_the_connection(end: TimelineEnd) -> None:
    count = TIMELINE_CHANGES_MAX + 1
    await end.ask(consume())
    answer = LeasesRevoked(channel=9, ids=["a"] * count, versions=[1] * count, kept=[False] * count)

    end.session.data_received(control_frame(answer, sequence=5))

    assert end.transport.closing


@pytest.mark.parametrize(
    "command",
    [
        change(),
        change(ids=[""]),
        GetFromTimeline(topic=TOPIC, id="a"),
        CountTimeline(topic=TOPIC, start_ms=0, end_ms=1),
        FinishLeases(channel=9, kinds=bytes([0]), ids=["a"], versions=[1]),
    ],
)
async def test_a_client_that_asks_without_end_is_not_read_from_until_it_is_answered(
    end: TimelineEnd, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = [True]
    monkeypatch.setattr(end.transport, "pause_reading", lambda: reading.append(False))
    monkeypatch.setattr(end.transport, "resume_reading", lambda: reading.append(True))
    await end.ask(consume())
    for _ in range(AWAITED_MAX - 1):
        end.session.data_received(control_frame(command, sequence=6))
    assert reading[-1]

    end.session.data_received(control_frame(command, sequence=6))
    # One that is refused at once does not wait for anything.
    assert reading[-1] == (command == change(ids=[""]))

    for _ in range(5 * AWAITED_MAX):
        await asyncio.sleep(0)
    assert reading[-1]
    assert not end.transport.closing
