"""Watches: told once of what is new, and held by nobody afterwards."""

from typing import Any

import pytest
from tests.unit.broker.streambench import TOPIC, Outcome, StreamBench

from ister.base.errors import BadRequestError, TopicNotFoundError, WrongKindError
from ister.base.limits import WATCH_MS_MAX, WATCHED_STREAMS_MAX
from ister.broker import Watch


def watch(
    bench: StreamBench, beyond: dict[str, int], wait_ms: int = 1_000, topics: Any = (TOPIC,)
) -> tuple[Outcome, Watch | None]:
    outcome = Outcome()
    return outcome, bench.broker.watching.watch(list(topics), beyond, wait_ms, outcome)


def offsets(outcome: Outcome) -> dict[str, tuple[int, int]]:
    return {head.topic: (head.first_offset, head.next_offset) for head in outcome.result}


def held(bench: StreamBench) -> int:
    """Return in how many places of the broker watches are remembered."""
    streams = bench.broker.streams.by_name.values()
    followers = sum(len(stream.followers) for stream in streams)
    return followers + len(bench.broker.watching.waiting)


@pytest.fixture
def bench() -> StreamBench:
    bench = StreamBench()
    bench.create()
    return bench


def test_heads_are_told_at_once_when_nobody_wants_to_wait(bench: StreamBench) -> None:
    bench.publish(b"a", b"b")

    outcome, waiting = watch(bench, {TOPIC: 2}, wait_ms=0)

    assert offsets(outcome) == {TOPIC: (0, 2)}
    assert waiting is None


@pytest.mark.parametrize("beyond", [{}, {TOPIC: 0}, {TOPIC: 1}])
def test_heads_are_told_at_once_when_there_is_more_than_is_known(
    bench: StreamBench, beyond: dict[str, int]
) -> None:
    bench.publish(b"a", b"b")

    outcome, _ = watch(bench, beyond)

    assert offsets(outcome) == {TOPIC: (0, 2)}


def test_a_watch_waits_for_the_first_message_to_become_visible(bench: StreamBench) -> None:
    outcome, _ = watch(bench, {TOPIC: 0})
    bench.send([b"a"], settle=False)
    assert outcome.told == []

    bench.settle()

    assert offsets(outcome) == {TOPIC: (0, 1)}
    assert held(bench) == 0


def test_a_watch_tells_what_there_is_when_its_time_is_over(bench: StreamBench) -> None:
    bench.publish(b"a")
    outcome, _ = watch(bench, {TOPIC: 1}, wait_ms=500)
    bench.advance(499)
    assert outcome.told == []

    bench.advance(1)

    assert offsets(outcome) == {TOPIC: (0, 1)}
    assert held(bench) == 0


def test_nobody_waits_longer_than_the_longest_time(bench: StreamBench) -> None:
    outcome, _ = watch(bench, {TOPIC: 0}, wait_ms=WATCH_MS_MAX * 10)

    bench.advance(WATCH_MS_MAX)

    assert offsets(outcome) == {TOPIC: (0, 0)}


def test_a_closed_watch_is_held_by_nobody_and_tells_nothing(bench: StreamBench) -> None:
    outcome, waiting = watch(bench, {TOPIC: 0})
    assert waiting is not None
    assert held(bench) == 2

    waiting.close()
    waiting.close()
    bench.publish(b"a")
    bench.advance(10_000)

    assert outcome.told == []
    assert held(bench) == 0


def test_what_a_watch_waited_for_is_in_memory_and_what_comes_afterwards_is_not(
    bench: StreamBench,
) -> None:
    watch(bench, {TOPIC: 0})

    bench.publish(b"waited for")
    bench.publish(b"afterwards")

    assert [bench.topic().find(offset) is not None for offset in (0, 1)] == [True, False]


def test_a_deleted_topic_is_told_as_one_that_is_not_there(bench: StreamBench) -> None:
    bench.create("/default/other")
    outcome, _ = watch(bench, {TOPIC: 0, "/default/other": 0}, topics=(TOPIC, "/default/other"))

    bench.broker.delete_topic(TOPIC)
    bench.settle()

    assert isinstance(outcome.result, TopicNotFoundError)
    assert outcome.result.topic == TOPIC
    assert held(bench) == 0


def test_a_topic_made_again_has_another_number(bench: StreamBench) -> None:
    before, _ = watch(bench, {}, wait_ms=0)
    bench.broker.delete_topic(TOPIC)
    bench.settle()
    bench.create()

    after, _ = watch(bench, {}, wait_ms=0)

    assert before.result[0].number != after.result[0].number


def test_a_partitioned_topic_is_told_by_its_partitions() -> None:
    bench = StreamBench()
    bench.create(partitions=2)
    parts = [f"{TOPIC}-part-0", f"{TOPIC}-part-1"]
    outcome, _ = watch(bench, dict.fromkeys(parts, 0))

    bench.publish(b"a", topic=parts[1])

    assert offsets(outcome) == {parts[0]: (0, 0), parts[1]: (0, 1)}
    assert held(bench) == 0


def test_a_new_partition_counts_as_new() -> None:
    bench = StreamBench()
    bench.create(partitions=1)
    outcome, _ = watch(bench, {f"{TOPIC}-part-0": 0})

    bench.broker.grow_topic(TOPIC, 2, kind="stream")
    bench.settle()

    assert list(offsets(outcome)) == [f"{TOPIC}-part-0", f"{TOPIC}-part-1"]
    assert held(bench) == 0


def test_what_is_dropped_is_not_new(bench: StreamBench) -> None:
    bench.publish_many(10)
    outcome, _ = watch(bench, {TOPIC: 10})

    bench.broker.purge(TOPIC, 5, lambda _: None)
    bench.settle()
    assert outcome.told == []

    bench.advance(1_000)
    assert offsets(outcome) == {TOPIC: (5, 10)}


def test_a_stream_named_twice_is_told_once() -> None:
    bench = StreamBench()
    bench.create(partitions=2)

    outcome, _ = watch(bench, {}, topics=(f"{TOPIC}-part-1", TOPIC, TOPIC))

    assert sorted(offsets(outcome)) == [f"{TOPIC}-part-0", f"{TOPIC}-part-1"]
    assert len(outcome.result) == 2


@pytest.mark.timeout(10)
def test_a_name_said_very_often_takes_the_time_of_one() -> None:
    bench = StreamBench()
    bench.create(partitions=1_024)

    outcome, _ = watch(bench, {}, topics=[TOPIC] * 100_000)

    assert len(outcome.result) == 1_024


@pytest.mark.timeout(20)
def test_what_comes_to_one_stream_costs_nothing_for_all_others_that_are_watched() -> None:
    bench = StreamBench()
    bench.create(partitions=1_024)
    parts = [f"{TOPIC}-part-{n}" for n in range(1_024)]
    waiting = [watch(bench, dict.fromkeys(parts, 10**6), wait_ms=60_000) for _ in range(64)]

    bench.publish_many(200, topic=parts[0])

    assert all(outcome.told == [] for outcome, _ in waiting)


def test_names_of_no_stream_are_refused(bench: StreamBench) -> None:
    bench.broker.create_topic("/default/live")

    with pytest.raises(WrongKindError):
        watch(bench, {}, topics=("/default/live",))
    with pytest.raises(TopicNotFoundError):
        watch(bench, {}, topics=("/default/nothing",))
    assert held(bench) == 0


def test_more_streams_than_fit_into_an_answer_are_refused() -> None:
    bench = StreamBench()
    topics = [f"/default/t{n}" for n in range(WATCHED_STREAMS_MAX // 1024 + 1)]
    for topic in topics:
        bench.create(topic, partitions=1024)

    with pytest.raises(BadRequestError, match="ask for some"):
        watch(bench, {}, topics=topics)
