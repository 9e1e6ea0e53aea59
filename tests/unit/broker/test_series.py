"""Publishing stages: all of them, and once for each number of a series."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.broker.streambench import TOPIC, Outcome, StreamBench
from tests.unit.broker.test_schema_checks import NoBad, schema_check_of
from tests.unit.broker.test_staging import KEEP_MS, batch_of, close, is_closed

from ister.base.errors import (
    BadRequestError,
    IsterError,
    LimitReachedError,
    SchemaViolationError,
    ShardMovedError,
    StageNotFoundError,
    StageTooLargeError,
    StorageFailedError,
    TopicNotFoundError,
)
from ister.base.limits import MIB
from ister.broker import InlineWorker, Published
from ister.broker.transactions import series as module
from ister.broker.transactions import stages
from ister.codec import Batch
from ister.testing import Crash, Fault, Keep

MORE = "/default/more"
KEEPS: tuple[Keep, ...] = ("none", "all", "torn")
REPEATED = Published(repeated=True)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have even the smallest stage in a file."""
    monkeypatch.setattr(stages, "HELD_STAGE_BYTES", 0)


@pytest.fixture(params=["in memory", "in files"])
def bench(request: pytest.FixtureRequest) -> StreamBench:
    if request.param == "in files":
        request.getfixturevalue("files")
    bench = StreamBench()
    for topic in (TOPIC, MORE):
        bench.create(topic)
    return bench


def stage(bench: StreamBench, word: str, **payloads: bytes) -> None:
    """Stage one message for each topic, by the last word of its name."""
    staging = bench.broker.staging
    opened = staging.open(word, KEEP_MS)
    for slot, payload in enumerate(payloads.values()):
        staging.add(opened, slot, batch_of(payload))
    assert close(bench, opened, *(f"/default/{name}" for name in payloads)) is None


def publish(
    bench: StreamBench,
    *words: str,
    number: int = 1,
    series: str = "query",
    settle: bool = True,
) -> Outcome:
    """Publish; what the broker raises is told as well, as a door does."""
    outcome = Outcome()
    try:
        bench.broker.series.publish(words, series, number, outcome)
    except IsterError as error:
        outcome(error)
    if settle:
        bench.settle()
    return outcome


def damage(bench: StreamBench, word: str, position: int) -> None:
    """Change what a stage has in its file, from its end if `position` is negative."""
    spool = bench.broker.staging.get_closed(word).spool
    assert spool._file is not None
    spool._file.seek(position, 2 if position < 0 else 0)
    spool._file.write(b"damaged!")


def stored(bench: StreamBench, topic: str = TOPIC) -> list[bytes]:
    return [message.payload for message in bench.stored(topic)]


# All of it, once


def test_stages_are_published_together_in_the_order_they_are_named(bench: StreamBench) -> None:
    stage(bench, "a", orders=b"0", more=b"1")
    stage(bench, "b", more=b"2", orders=b"3")
    outcome = publish(bench, "b", "a")

    assert outcome.result == Published(repeated=False, messages=4)
    assert stored(bench) == [b"3", b"0"]
    assert stored(bench, MORE) == [b"2", b"1"]
    assert (bench.broker.staging.count, bench.broker.staging.staged_bytes) == (0, 0)
    bench.restart("none")
    assert (stored(bench), stored(bench, MORE)) == ([b"3", b"0"], [b"2", b"1"])


def test_consumers_see_nothing_before_the_journal_has_it(bench: StreamBench) -> None:
    member = bench.consume()
    stage(bench, "a", orders=b"0")
    outcome = publish(bench, "a", settle=False)
    assert (outcome.told, member.offsets) == ([], [])

    bench.settle()
    assert member.payloads == [b"0"]


def test_a_consumer_gets_what_was_staged_in_memory_from_memory() -> None:
    bench = StreamBench()
    bench.create(TOPIC)
    member = bench.consume(TOPIC, "all")
    stage(bench, "a", orders=b"one")

    publish(bench, "a")

    assert bench.topic().find(0) is not None
    assert [(m.offset, m.payload) for m in member.take()] == [(0, b"one")]


def test_offsets_go_on_behind_those_of_others(bench: StreamBench) -> None:
    bench.publish(b"before")
    stage(bench, "a", orders=b"0")
    publish(bench, "a")

    assert bench.publish(b"after") == [2]
    assert stored(bench) == [b"before", b"0", b"after"]


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("number", [3, 4])
def test_a_number_up_to_the_last_is_not_published_again(
    bench: StreamBench, number: int, restart: bool
) -> None:
    stage(bench, "a", orders=b"0")
    publish(bench, "a", number=4)
    if restart:
        bench.restart("none")
    stage(bench, "b", orders=b"0 again")

    # Whoever asks for a lower one learns that it may have been another one.
    expected = Published(repeated=True, overtaken=number < 4)
    assert publish(bench, "b", number=number).result == expected
    assert stored(bench) == [b"0"]
    assert bench.broker.staging.count == 0


def test_the_next_number_and_another_series_are_published(bench: StreamBench) -> None:
    for word, series, number in (("a", "query", 4), ("b", "query", 5), ("c", "other", 4)):
        stage(bench, word, orders=word.encode())
        publish(bench, word, series=series, number=number)

    assert stored(bench) == [b"a", b"b", b"c"]


def test_a_repetition_of_what_was_published_needs_no_stages(bench: StreamBench) -> None:
    stage(bench, "a", orders=b"0")
    publish(bench, "a")

    assert publish(bench, "a").result == REPEATED


def test_the_mark_outlives_a_checkpoint(bench: StreamBench) -> None:
    stage(bench, "a", orders=b"0")
    publish(bench, "a")
    bench.storage.checkpoint(lambda _: None)
    bench.settle()
    bench.restart("none")

    assert publish(bench, "a").result == REPEATED
    assert stored(bench) == [b"0"]


def test_two_who_publish_the_same_number_at_once_publish_it_once(bench: StreamBench) -> None:
    stage(bench, "a", orders=b"0")
    stage(bench, "b", orders=b"0 of another")
    first = publish(bench, "a", settle=False)
    second = publish(bench, "b", settle=False)
    assert second.told == []
    bench.settle()

    assert (first.result, second.result) == (Published(False, 1), REPEATED)
    assert stored(bench) == [b"0"]
    assert bench.broker.staging.count == 0


def test_a_higher_number_does_not_overtake_a_lower_one(bench: StreamBench) -> None:
    stage(bench, "a", orders=b"0")
    stage(bench, "b", orders=b"1")
    first = publish(bench, "a", number=1, settle=False)
    second = publish(bench, "b", number=2, settle=False)
    bench.settle()

    assert (first.result.repeated, second.result.repeated) == (False, False)
    assert stored(bench) == [b"0", b"1"]


@pytest.mark.parametrize("staged", [False, True])
def test_nothing_is_published_as_a_number_too(bench: StreamBench, staged: bool) -> None:
    if staged:
        stage(bench, "empty")
    assert publish(bench, *(["empty"] if staged else [])).result == Published(False, 0)
    bench.restart("none")
    stage(bench, "late", orders=b"0")

    assert publish(bench, "late").result == REPEATED
    assert stored(bench) == []


def test_a_first_number_without_topics_makes_the_data_folder() -> None:
    bench = StreamBench()
    assert publish(bench).result == Published(False, 0)
    bench.restart("none")

    assert publish(bench).result == REPEATED


def test_stages_in_an_object_store_are_published_there() -> None:
    bench = StreamBench(objects=True)
    bench.create(TOPIC, durability="object")
    stage(bench, "a", orders=b"0")
    publish(bench, "a")
    bench.restart()

    assert publish(bench, "a").result == REPEATED
    assert stored(bench) == [b"0"]


# What is refused


def test_an_unknown_stage_is_told_and_nothing_is_done(bench: StreamBench) -> None:
    stage(bench, "a", orders=b"0")
    outcome = publish(bench, "a", "b")

    assert isinstance(outcome.result, StageNotFoundError)
    assert outcome.result.stage == "b"
    assert stored(bench) == []
    assert publish(bench, "a").result == Published(False, 1)


def test_after_a_restart_stages_are_unknown(bench: StreamBench) -> None:
    stage(bench, "a", orders=b"0")
    bench.restart("none")

    assert isinstance(publish(bench, "a").result, StageNotFoundError)


def test_topics_of_different_journals_are_refused() -> None:
    bench = StreamBench(objects=True)
    bench.create(TOPIC)
    bench.create(MORE, durability="object")
    stage(bench, "a", orders=b"0", more=b"1")

    assert isinstance(publish(bench, "a").result, BadRequestError)
    assert (stored(bench), stored(bench, MORE)) == ([], [])


def test_a_topic_that_was_deleted_and_made_again_is_not_what_was_staged_for(
    bench: StreamBench,
) -> None:
    stage(bench, "a", orders=b"0", more=b"1")
    bench.broker.delete_topic(MORE)
    bench.settle()
    bench.create(MORE)

    assert isinstance(publish(bench, "a").result, TopicNotFoundError)
    assert (stored(bench), stored(bench, MORE)) == ([], [])
    assert is_closed(bench, "a")


def test_a_topic_that_was_bound_since_has_what_was_staged_checked(bench: StreamBench) -> None:
    stage(bench, "a", orders=b"bad")
    bench.broker.schema_check_of = schema_check_of({TOPIC: NoBad()})

    assert isinstance(publish(bench, "a").result, SchemaViolationError)
    assert stored(bench) == []


def test_what_was_checked_when_it_was_staged_is_not_checked_again(bench: StreamBench) -> None:
    schema_check = NoBad()
    bench.broker.schema_check_of = schema_check_of({TOPIC: schema_check})
    stage(bench, "a", orders=b"fine")
    publish(bench, "a")

    assert schema_check.seen == [[b"fine"]]


@pytest.mark.usefixtures("files")
def test_checks_that_take_long_keep_nobody_else_from_publishing(bench: StreamBench) -> None:
    class Endless(BaseException):
        """A check that is not over as long as the test takes."""

    class Slow(NoBad):
        def check(self, batch: Batch) -> None:
            raise Endless

    class Threads(InlineWorker):
        """A worker that has so many threads, and not more when they do not come back."""

        def __init__(self, count: int) -> None:
            super().__init__(bench._call_soon)
            self.free = count

        def run(self, call: Callable[[], Any], done: Callable[[Any], object]) -> None:
            if self.free:
                try:
                    super().run(call, done)
                except Endless:
                    self.free -= 1

    staging = bench.broker.staging
    assert staging._spooling is not None
    staging._spooling = replace(staging._spooling, new_worker=lambda _, count: Threads(count))
    bench.broker.schema_check_of = schema_check_of({TOPIC: Slow()})
    for number in range(4):
        opened = staging.open(f"slow-{number}", KEEP_MS)
        staging.add(opened, 0, batch_of(b"x"))
        staging.close(opened, [TOPIC], Outcome())
        bench.settle()
    stage(bench, "a", more=b"0")

    assert publish(bench, "a").result == Published(False, 1)


@pytest.mark.parametrize(
    ("words", "series", "number"),
    [
        (("a", "a"), "query", 1),
        ((), "", 1),
        ((), "x" * 256, 1),
        ((), "query", -1),
        ((), "query", 2**62),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(
    bench: StreamBench, words: tuple[str, ...], series: str, number: int
) -> None:
    with pytest.raises(BadRequestError):
        bench.broker.series.publish(words, series, number, Outcome())


def test_too_much_at_once_is_refused(bench: StreamBench, monkeypatch: pytest.MonkeyPatch) -> None:
    for word in ("a", "b"):
        stage(bench, word, orders=b"0")
    size = bench.broker.staging.staged_bytes
    for limit, value in (("SERIES_BYTES_MAX", size - 1), ("SERIES_BATCHES_MAX", 1)):
        with monkeypatch.context() as patch:
            patch.setattr(module, limit, value)
            assert isinstance(publish(bench, "a", "b").result, StageTooLargeError)

    monkeypatch.setattr(module, "SERIES_BYTES_MAX", size)
    monkeypatch.setattr(module, "SERIES_BATCHES_MAX", 2)
    assert publish(bench, "a", "b").result == Published(False, 2)


def test_topics_that_nothing_is_staged_for_count_as_well(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = bench.broker.staging.open("named", 60_000)
    bench.broker.staging.close(named, ["/default/orders"] * 3, Outcome())
    bench.settle()
    monkeypatch.setattr(module, "SERIES_BATCHES_MAX", 2)
    assert isinstance(publish(bench, "named").result, StageTooLargeError)
    monkeypatch.setattr(module, "SERIES_BATCHES_MAX", 3)
    assert publish(bench, "named").result == Published(False, 0)


def test_those_who_wait_to_publish_are_bounded_and_all_answered(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUBLISHES_MAX", 2_000)
    stage(bench, "a", orders=b"0")
    outcomes = [publish(bench, "a", settle=False) for _ in range(2_001)]
    refused = publish(bench, "a", settle=False)
    bench.settle()

    assert isinstance(refused.result, LimitReachedError)
    assert outcomes[0].result == Published(False, 1)
    assert all(outcome.result == REPEATED for outcome in outcomes[1:])


def test_a_stage_that_is_being_published_is_neither_dropped_nor_too_old(
    bench: StreamBench,
) -> None:
    stage(bench, "a", orders=b"0")
    outcome = publish(bench, "a", settle=False)
    bench.broker.staging.drop(["a"])
    bench.clock.advance(2 * KEEP_MS / 1000)
    bench.settle()

    assert outcome.result == Published(False, 1)
    assert stored(bench) == [b"0"]


# When the disk fails


@pytest.mark.parametrize("action", ["write", "sync"])
def test_a_failed_publish_can_be_repeated_with_the_same_stages(
    bench: StreamBench, action: str
) -> None:
    stage(bench, "a", orders=b"0", more=b"1")
    bench.disk.fail(Fault(5, actions=(action,)))  # type: ignore[arg-type]
    assert isinstance(publish(bench, "a").result, StorageFailedError)
    assert bench.topic().next_offset == 0
    assert publish(bench, "a").result == Published(False, 2)
    bench.restart("none")
    assert (stored(bench), stored(bench, MORE)) == ([b"0"], [b"1"])


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("position", [8, -8], ids=["before a batch", "in a batch"])
def test_a_stage_that_cannot_be_read_back_is_not_published(
    bench: StreamBench, position: int
) -> None:
    member = bench.consume()
    stage(bench, "a", orders=b"0", more=b"1")
    damage(bench, "a", position)
    outcome = publish(bench, "a")
    assert isinstance(outcome.result, StorageFailedError)
    bench.advance(1_000)
    assert bench.publish(b"of another") == [0]
    assert member.payloads == [b"of another"]
    bench.restart("none")

    assert stored(bench) == [b"of another"]
    assert stored(bench, MORE) == []


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("position", [8, -8], ids=["before a batch", "in a batch"])
def test_a_stage_that_cannot_be_read_back_fails_the_journal_once_at_most(
    bench: StreamBench, position: int
) -> None:
    stage(bench, "good", orders=b"0")
    stage(bench, "bad", orders=b"1")
    damage(bench, "bad", position)
    publish(bench, "good", "bad")
    bench.advance(1_000)

    outcome = publish(bench, "good", "bad")
    assert isinstance(outcome.result, StageNotFoundError)
    assert outcome.result.stage == "bad"
    bench.storage.committer.check()
    stage(bench, "again", orders=b"1")
    assert publish(bench, "good", "again").result == Published(False, 2)
    assert stored(bench) == [b"0", b"1"]


def test_who_fails_on_what_is_published_keeps_nobody_from_publishing(bench: StreamBench) -> None:
    class Faulty:
        listening = True
        is_durable = False
        floor = None

        def on_new(self) -> None:
            raise ZeroDivisionError

        def on_trimmed(self) -> None:
            pass

        def on_topic_deleted(self) -> None:
            pass

        def on_lost(self, error: ShardMovedError) -> None:
            pass

    bench.topic().followers[Faulty()] = None
    for number, word in enumerate(("a", "b")):
        stage(bench, word, orders=word.encode())
        assert publish(bench, word, number=number).result == Published(False, 1)

    assert stored(bench) == [b"a", b"b"]
    assert bench.broker.staging.count == 0


def test_stages_that_could_not_be_published_get_too_old_later(bench: StreamBench) -> None:
    stage(bench, "a", orders=b"0")
    bench.advance(KEEP_MS - 1_000)
    bench.disk.fail(Fault())
    publish(bench, "a")
    bench.advance(2_000)
    assert is_closed(bench, "a")

    bench.advance(KEEP_MS)
    assert not is_closed(bench, "a")


@pytest.mark.parametrize("slice_bytes", [MIB, 1], ids=["in one write", "in many writes"])
def test_a_crash_leaves_all_of_a_publish_or_nothing_and_a_repetition_ends_it_once(
    slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stops at every change of the disk, in the middle of a run of publishes."""
    monkeypatch.setattr("ister.log.journal.group.SLICE_BYTES", slice_bytes)

    def made() -> StreamBench:
        # So small that a publish goes over files.
        bench = StreamBench(segment_bytes=2_048)
        for topic in (TOPIC, MORE):
            bench.create(topic)
        return bench

    def work(bench: StreamBench, start: int = 0) -> None:
        for number in range(start, 4):
            for word in ("a", "b"):
                payload = b"%d%s" % (number, word.encode())
                stage(bench, f"{word}{number}", orders=payload, more=payload)
            outcome = publish(bench, f"a{number}", f"b{number}", number=number)
            assert isinstance(outcome.result, Published)
            bench.publish(b"by another", topic=MORE)

    wanted = [b"%d%s" % (number, word) for number in range(4) for word in (b"a", b"b")]
    bench = made()
    start = len(bench.disk.operations)
    work(bench)
    end = len(bench.disk.operations)
    assert end - start > 8
    for number in range(start, end):
        for keep in KEEPS:
            bench = made()
            bench.disk.crash_at(number)
            with pytest.raises(Crash):
                work(bench)
            bench.restart(keep)
            found = stored(bench)
            others = [payload for payload in stored(bench, MORE) if payload != b"by another"]
            assert found == others == wanted[: len(found)]
            assert len(found) % 2 == 0

            # As a query does that knows of no answer: from one number before on.
            work(bench, start=max(len(found) // 2 - 1, 0))
            assert stored(bench) == wanted
