"""A sample of every command of timelines."""

from ister.wire import (
    DELETE,
    DONE,
    EXTEND,
    MOVE,
    PUT,
    RELEASE,
    UPDATE,
    AskTime,
    ChangeTimeline,
    Command,
    ConsumeTimeline,
    CountTimeline,
    FinishLeases,
    GetFromTimeline,
    LeasesRevoked,
    ListTimeline,
    Refusal,
    RevokeLeases,
    TimelineChanged,
    TimelineCount,
    TimelineDue,
    TimelineOpened,
    TimelineRows,
    TimeTold,
)

TOPIC = "/default/reminders"
DUE_MS = 1_700_000_060_000

TIMELINE_COMMANDS: dict[str, Command] = {
    "change_timeline": ChangeTimeline(
        topic=TOPIC,
        group="shop",
        kinds=bytes([PUT, MOVE, UPDATE, DELETE]),
        ids=["r-1", "r-2", "r-3", "größe"],
        due_ms=[DUE_MS, DUE_MS + 1, 0, 0],
        payloads=[b"one", b"", b"three", b""],
        attributes=[b"\x81\xa1a\xa11", b"", b"", b""],
        levels=[3, 0, 0, 0],
        versions=[0, 7, 8, 0],
        atomic=True,
    ),
    "timeline_changed": TimelineChanged(
        versions=[9, 0], errors={1: Refusal(code=4023, fields={"id": "r-2", "version": 8})}
    ),
    "get_from_timeline": GetFromTimeline(topic=TOPIC, id="r-1"),
    "list_timeline": ListTimeline(
        topic=TOPIC, start_ms=DUE_MS, end_ms=DUE_MS + 1_000, after=(DUE_MS, 9), limit=50
    ),
    "timeline_rows": TimelineRows(
        ids=["r-1"],
        versions=[9],
        due_ms=[DUE_MS],
        position_ms=[DUE_MS + 60_000],
        groups=["shop"],
        holders=["worker-1"],
        leases=[1],
        levels=[3],
        payloads=[b"one"],
        attributes=[b"\x81\xa1a\xa11"],
        after=(DUE_MS + 60_000, 9),
    ),
    "count_timeline": CountTimeline(topic=TOPIC, start_ms=0, end_ms=DUE_MS),
    "timeline_count": TimelineCount(count=3),
    "consume_timeline": ConsumeTimeline(
        topic=TOPIC, consumer="worker-1", channel=4, lease_ms=60_000, prefetch_ms=500, credit=1_000
    ),
    "timeline_opened": TimelineOpened(now_us=1_700_000_000_000_001),
    "timeline_due": TimelineDue(
        ids=["r-1"],
        versions=[10],
        due_ms=[DUE_MS],
        until_ms=[DUE_MS + 60_000],
        attempts=[1],
        payloads=[b"one"],
        attributes=[b"\x81\xa1a\xa11"],
        levels=[3],
    ),
    "finish_leases": FinishLeases(
        channel=4,
        kinds=bytes([DONE, EXTEND, RELEASE]),
        ids=["r-1", "r-2", "r-3"],
        versions=[10, 11, 12],
        times_ms=[0, 60_000, DUE_MS],
        lateness_us=[850, -1, -1],
    ),
    "revoke_leases": RevokeLeases(ids=["r-1"], versions=[10]),
    "leases_revoked": LeasesRevoked(channel=4, ids=["r-1"], versions=[10], kept=[False]),
    "ask_time": AskTime(),
    "time_told": TimeTold(now_us=1_700_000_000_000_001),
}
