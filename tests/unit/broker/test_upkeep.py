"""Upkeep checks changed topics within a second and the others in turn, never all at once."""

from typing import Any

import pytest
from tests.unit.broker.streambench import HeldWorker, StreamBench

from ister.broker.streams import upkeep
from ister.broker.streams.stream import StreamTopic

COUNT = 50
TURN, ROUND = 4, 10


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Return the topics that are checked, by turn of the loop, with small turns and rounds."""
    turns: list[list[str]] = []
    take, retain = upkeep.Checks.take, upkeep.Upkeep._retain

    def record_take(self: upkeep.Checks) -> list[StreamTopic]:
        turns.append([])
        return take(self)

    def record_retain(self: upkeep.Upkeep, topic: StreamTopic) -> None:
        turns[-1].append(topic.name)
        retain(self, topic)

    monkeypatch.setattr(upkeep, "TURN_COUNT", TURN)
    monkeypatch.setattr(upkeep, "ROUND_COUNT", ROUND)
    monkeypatch.setattr(upkeep.Checks, "take", record_take)
    monkeypatch.setattr(upkeep.Upkeep, "_retain", record_retain)
    return turns


def name(number: int) -> str:
    return f"/default/t{number}"


def begin(**settings: Any) -> StreamBench:
    bench = StreamBench()
    for number in range(COUNT):
        bench.create(name(number), **settings)
    # Until each of them has had its turn.
    bench.advance(COUNT // ROUND * 1_000)
    return bench


def test_no_turn_of_the_loop_checks_many_topics(checks: list[list[str]]) -> None:
    bench = begin(max_messages=1)
    for number in range(COUNT):
        bench.publish(b"a", b"b", topic=name(number))
    checks.clear()
    bench.advance(1_000)

    assert max(map(len, checks)) == TURN
    assert {topic for turn in checks for topic in turn} == {name(n) for n in range(COUNT)}
    assert all(bench.topic(name(n)).first_offset == 1 for n in range(COUNT))


def test_unchanged_topics_are_checked_in_turn(checks: list[list[str]]) -> None:
    bench = begin()
    seconds = []
    for _ in range(COUNT // ROUND):
        checks.clear()
        bench.advance(1_000)
        seconds.append({topic for turn in checks for topic in turn})

    assert [len(second) for second in seconds] == [ROUND] * (COUNT // ROUND)
    assert len(set.union(*seconds)) == COUNT


@pytest.mark.usefixtures("checks")
def test_a_topic_with_new_messages_is_trimmed_within_a_second() -> None:
    bench = begin(max_messages=3)
    for number in range(COUNT):
        bench.publish_many(5, topic=name(number))
        bench.advance(1_000)

        assert bench.topic(name(number)).first_offset == 2


@pytest.mark.usefixtures("checks")
def test_a_work_queue_is_trimmed_within_a_second_of_an_acknowledgement() -> None:
    bench = begin(retention="workqueue")
    for number in range(0, COUNT, 7):
        worker = bench.consume(name(number), "s")
        bench.publish(b"a", b"b", topic=name(number))
        bench.advance(COUNT // ROUND * 1_000)
        worker.ack(worker.messages[0])
        bench.advance(1_200)

        assert bench.topic(name(number)).first_offset == 1


@pytest.mark.usefixtures("checks")
def test_messages_of_an_unchanged_topic_expire_in_its_turn() -> None:
    bench = begin(max_age_ms=60_000)
    for number in range(COUNT):
        bench.publish(b"a", topic=name(number))
    bench.advance(59_000)
    kept = [bench.topic(name(n)).first_offset for n in range(COUNT)]
    bench.advance(2_000 + COUNT // ROUND * 1_000)

    assert kept == [0] * COUNT
    assert [bench.topic(name(n)).first_offset for n in range(COUNT)] == [1] * COUNT


def test_a_topic_deleted_before_its_turn_is_not_checked(checks: list[list[str]]) -> None:
    bench = begin()
    bench.publish(b"a", topic=name(0))
    bench.broker.delete_topic(name(0), lambda _: None)
    bench.settle()
    checks.clear()
    bench.advance(COUNT // ROUND * 1_000)

    assert name(0) not in {topic for turn in checks for topic in turn}


def test_a_store_that_does_not_answer_is_asked_once_for_each_topic() -> None:
    bench = StreamBench()
    bench.create(max_age_ms=1_000)
    bench.publish(b"old")
    # As with a tier that has the footer of the segment, and is away.
    reading = bench.storage.reading = HeldWorker(bench._call_soon)
    reading.holding = True
    bench.advance(60_000)

    assert len(reading._held) == 1
    reading.release()
    bench.advance(2_000)
    assert bench.topic().first_offset == 1
