"""Streams whose settings change while they are used."""

from typing import Any

import pytest
from tests.unit.broker.streambench import TOPIC, Outcome, StreamBench

from ister.base import StreamChanges, StreamSettings
from ister.base.errors import (
    BadRequestError,
    IsterError,
    ReservedNamespaceError,
    StorageFailedError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.broker.state.changes import TopicCreated
from ister.testing.disk import Fault


@pytest.fixture
def bench() -> StreamBench:
    return StreamBench()


def update(bench: StreamBench, topic: str = TOPIC, **changes: Any) -> IsterError | None:
    outcome = Outcome()
    bench.broker.update_topic(topic, StreamChanges(**changes), outcome)
    bench.settle()
    return outcome.error


def settings(bench: StreamBench, topic: str = TOPIC) -> StreamSettings:
    return bench.topic(topic).record.settings


@pytest.mark.parametrize(
    ("change", "left"),
    [({"max_messages": 2}, 2), ({"max_bytes": 1}, 0), ({"max_age_ms": 500}, 0), ({"ttl_ms": 1}, 0)],
)
def test_a_new_limit_drops_what_is_beyond_it_within_seconds(
    bench: StreamBench, change: dict[str, Any], left: int
) -> None:
    bench.create()
    bench.publish_many(5)
    bench.advance(10_000)
    assert bench.topic().first_offset == 0

    assert update(bench, **change) is None
    bench.advance(2_000)

    assert bench.topic().next_offset - bench.topic().first_offset == left


def test_a_limit_that_is_taken_away_keeps_what_comes(bench: StreamBench) -> None:
    bench.create(max_messages=1)
    bench.publish_many(3)
    bench.advance(2_000)

    update(bench, max_messages=0)
    bench.publish_many(3)
    bench.advance(2_000)

    assert (bench.topic().first_offset, bench.topic().next_offset) == (2, 6)


def test_what_is_not_said_stays(bench: StreamBench) -> None:
    bench.create(max_age_ms=1_000, max_bytes=7, retention="interest", durability="os")

    update(bench, ttl_ms=5, dedup_window_ms=9)

    assert settings(bench) == StreamSettings(
        max_age_ms=1_000,
        max_bytes=7,
        retention="interest",
        durability="os",
        ttl_ms=5,
        dedup_window_ms=9,
    )


def test_two_changes_at_once_both_count(bench: StreamBench) -> None:
    bench.create()
    first, second = Outcome(), Outcome()

    bench.broker.update_topic(TOPIC, StreamChanges(max_bytes=1), first)
    bench.broker.update_topic(TOPIC, StreamChanges(max_messages=2), second)
    bench.settle()

    assert first.result is second.result is None
    assert (settings(bench).max_bytes, settings(bench).max_messages) == (1, 2)


@pytest.mark.parametrize("keep", [None, "synced"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_changes_are_kept_over_restarts(bench: StreamBench, keep: Any, checkpoint: bool) -> None:
    bench.create(max_messages=3)
    bench.publish_many(5)
    update(bench, max_messages=0, max_age_ms=60_000, durability="memory")
    update(bench, durability="fsync")
    if checkpoint:
        bench.storage.checkpoint(lambda _: None)
        bench.settle()

    bench.restart(keep)

    assert settings(bench) == StreamSettings(max_age_ms=60_000)
    assert bench.topic().settings == settings(bench)


def test_a_replay_of_old_entries_over_a_newer_snapshot_ends_with_the_new_settings(
    bench: StreamBench,
) -> None:
    bench.create(max_messages=3)
    # A snapshot that is written bit by bit has what was changed meanwhile.
    state, record = bench.storage.state, bench.topic().record
    update(bench, max_messages=9)

    for count in (3, 9):
        state.on_changes([TopicCreated(record.topic, TOPIC, StreamSettings(max_messages=count))])

    assert record.settings.max_messages == 9
    assert len(state.topics) == 1


def test_every_partition_changes_and_new_ones_are_like_them(bench: StreamBench) -> None:
    bench.create("/default/p", partitions=2)

    update(bench, "/default/p", max_messages=4)
    grown = Outcome()
    bench.broker.grow_topic("/default/p", 3, grown, kind="stream")
    bench.settle()

    assert [settings(bench, f"/default/p-part-{n}").max_messages for n in range(3)] == [4, 4, 4]
    with pytest.raises(BadRequestError, match="update '/default/p'"):
        update(bench, "/default/p-part-1", max_messages=5)


def test_the_compaction_lag_changes_and_is_kept_over_a_restart(bench: StreamBench) -> None:
    bench.create(retention="compact", min_compaction_lag_ms=1_000)

    update(bench, min_compaction_lag_ms=5_000)
    bench.restart()
    assert settings(bench).compaction_lag_ms == 5_000
    update(bench, min_compaction_lag_ms=0)

    assert settings(bench) == StreamSettings(retention="compact")


def test_a_new_durability_counts_from_the_next_message_on(bench: StreamBench) -> None:
    bench.create()
    bench.writing.holding = True
    waits = bench.send([b"0"])
    bench.writing.release()
    bench.settle()
    assert waits.offsets == [0]
    update(bench, durability="memory")

    bench.writing.holding = True
    told = bench.send([b"1"])

    assert told.offsets == [1]
    bench.writing.release()
    bench.settle()


def test_a_shorter_dedup_window_forgets_ids_and_none_takes_all(bench: StreamBench) -> None:
    bench.create()
    bench.publish(b"a", ids=["x"])
    bench.advance(5_000)

    update(bench, dedup_window_ms=1_000)
    bench.advance(2_000)
    assert bench.publish(b"a", ids=["x"]) == [1]

    update(bench, dedup_window_ms=0)
    assert bench.publish(b"a", ids=["x"]) == [2]


def test_what_the_journal_does_not_take_changes_nothing(bench: StreamBench) -> None:
    bench.create(max_messages=7)
    bench.disk.fail(Fault())

    assert isinstance(update(bench, max_messages=1), StorageFailedError)
    assert settings(bench).max_messages == bench.topic().settings.max_messages == 7


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "no setting is given"),
        ({"max_age_ms": -1}, "max_age_ms is 0"),
        ({"durability": "disk"}, "'disk' is not one of"),
        ({"durability": "object"}, "'fsync' cannot become 'object'"),
        ({"min_compaction_lag_ms": 1}, "min_compaction_lag is for retention 'compact'"),
        ({"min_compaction_lag_ms": -1}, "compaction_lag_ms is 0"),
    ],
)
def test_what_cannot_be_is_refused(
    bench: StreamBench, changes: dict[str, Any], reason: str
) -> None:
    bench.create()

    with pytest.raises(BadRequestError, match=reason):
        update(bench, **changes)


def test_other_topics_have_no_such_settings(bench: StreamBench) -> None:
    bench.broker.create_topic("/default/live")

    with pytest.raises(WrongKindError):
        update(bench, "/default/live", max_age_ms=1)
    with pytest.raises(TopicNotFoundError):
        update(bench, "/default/none", max_age_ms=1)
    with pytest.raises(ReservedNamespaceError):
        update(bench, "/system/x", max_age_ms=1)
