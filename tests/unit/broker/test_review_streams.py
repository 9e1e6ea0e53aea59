"""What a stream keeps to when a disk fails, a topic is empty, or a batch as large as can be."""

from dataclasses import replace
from time import process_time
from typing import Any, Literal

import pytest
from tests.unit.broker.streambench import TOPIC, Outcome, StreamBench, _position

from ister.base import StreamSettings
from ister.base.errors import IsterError, MessagesMissingError, StorageFailedError
from ister.base.limits import BATCH_IDS_MAX
from ister.broker import Broker, Reader, open_reader
from ister.broker.streams.read_ahead import READ_AHEAD_BYTES, READ_BYTES_MIN
from ister.codec import Batch
from ister.log import Form
from ister.testing.disk import Fault

HOUR_MS = 3_600_000


@pytest.fixture
def bench() -> StreamBench:
    return StreamBench()


class ReaderSink:
    """The outside end of a reader."""

    def __init__(self) -> None:
        self.writable = True
        self.offsets: list[int] = []
        self.ended: list[IsterError | None] = []

    def deliver(self, channel: int, topic: Any, batch: Batch) -> None:
        self.offsets += batch.offsets

    def reader_ended(self, channel: int, error: IsterError | None) -> None:
        self.ended.append(error)


def read_all(
    bench: StreamBench, *, credit: int = 1_000_000, start: int | str = "earliest"
) -> ReaderSink:
    """Read a topic from its start, or another place, to its present end."""
    sink = ReaderSink()
    opened: list[Reader | IsterError] = []
    open_reader(
        bench.topic(),
        _position(start),
        _position("latest"),
        opened.append,
        turns=bench.broker.turns,
        shared=bench.broker.durables.shared,
        sink=sink,
        channel=1,
    )
    bench.settle()
    assert isinstance(opened[0], Reader)
    opened[0].grant(credit, 1 << 30)
    bench.settle()
    return sink


def lose(bench: StreamBench, start: int, end: int | None) -> None:
    """Have the index of the log forget messages of the topic, as only a bug or damage would."""
    number = bench.topic().record.topic
    bench.storage.log.index.replace(
        number,
        [
            span
            for span in bench.storage.log.index.spans(number)
            if span.end_offset <= start or (end is not None and span.first_offset >= end)
        ],
    )


def holed_bench(**settings: Any) -> StreamBench:
    """Return a bench with a topic of 30 messages whose log lies in ten files."""
    bench = StreamBench()
    bench.create(**settings)
    for _ in range(10):
        bench.publish_many(3)
        bench.restart()  # The next message goes to another file.
    # The last file is closed as well.
    bench.create("/default/other")
    return bench


@pytest.mark.parametrize("end", [15, None], ids=["in the middle", "at the end"])
def test_reader_meets_a_hole_of_a_stream_that_is_not_compacted_with_an_error(
    end: int | None,
) -> None:
    bench = holed_bench()
    lose(bench, 6, end)
    sink = read_all(bench)

    assert sink.offsets == list(range(6))
    [error] = sink.ended
    assert isinstance(error, MessagesMissingError)
    assert (error.topic, error.start, error.end) == (TOPIC, 6, end or 30)


def test_consumer_is_not_given_what_lies_behind_a_hole() -> None:
    bench = holed_bench()
    lose(bench, 6, 15)

    assert bench.consume().offsets == list(range(6))


def test_reader_passes_over_the_holes_of_a_compacted_stream() -> None:
    bench = holed_bench(retention="compact")
    lose(bench, 6, 15)
    sink = read_all(bench)

    assert sink.offsets == [*range(6), *range(15, 30)]
    assert sink.ended == [None]


def mark_holes(bench: StreamBench, *firsts: int) -> None:
    """Have the segments that begin with these messages say that there are holes around them."""
    number = bench.topic().record.topic
    index = bench.storage.log.index
    index.replace(
        number,
        [
            span._replace(segment=replace(span.segment, form=Form.KEYED))
            if span.first_offset in firsts
            else span
            for span in index.spans(number)
        ],
    )


def test_reader_and_consumer_pass_over_the_holes_that_segments_tell_of() -> None:
    bench = holed_bench()
    lose(bench, 6, 15)
    mark_holes(bench, 15)
    sink = read_all(bench)

    assert sink.offsets == [*range(6), *range(15, 30)]
    assert sink.ended == [None]
    assert bench.consume().offsets == [*range(6), *range(15, 30)]


@pytest.mark.parametrize("start", [6, 20])
def test_reader_and_consumer_pass_over_a_hole_at_the_end(start: int) -> None:
    bench = holed_bench()
    lose(bench, 6, None)
    mark_holes(bench, 3)
    assert read_all(bench).offsets == list(range(6))
    bench.publish(b"new")

    assert read_all(bench).offsets == [*range(6), 30]
    assert read_all(bench, start=start).offsets == [30]
    assert bench.consume().offsets == [*range(6), 30]


def test_a_hole_behind_what_is_told_of_is_an_error() -> None:
    bench = holed_bench()
    mark_holes(bench, 3)
    lose(bench, 9, 15)
    sink = read_all(bench)

    assert sink.offsets == list(range(9))
    assert isinstance(sink.ended[0], MessagesMissingError)


def test_a_stream_that_is_trimmed_into_a_hole_begins_behind_it() -> None:
    bench = holed_bench()
    lose(bench, 6, 15)
    mark_holes(bench, 15)
    topic = bench.topic()
    topic.trim(9, lambda _: None)
    bench.settle()

    assert topic.first_offset == 15


def test_a_batch_of_as_many_ids_as_fit_does_not_stop_the_broker(bench: StreamBench) -> None:
    bench.create()

    def seconds(count: int) -> float:
        ids = [f"{count}-{n}" for n in range(count)]
        start_s = process_time()
        bench.publish(*([b""] * count), ids=ids)
        return process_time() - start_s

    few_s = max(seconds(BATCH_IDS_MAX // 16), 0.01)

    assert seconds(BATCH_IDS_MAX) < 48 * few_s


def test_the_second_of_two_with_one_id_is_told_the_offset_of_the_first(bench: StreamBench) -> None:
    bench.create()

    offsets = bench.publish(b"a", b"b", b"a", b"c", b"b", ids=["a", "b", "a", None, "b"])

    assert offsets == [0, 1, ~0, 2, ~1]


def test_a_seek_that_failed_is_not_found_in_a_checkpoint_after_a_restart(
    bench: StreamBench,
) -> None:
    bench.create()
    bench.consume(credit=0)
    bench.publish(b"a", b"b")
    bench.restart()
    bench.create("/default/other")  # In another file, so that the first is not replayed again.
    sought, written = Outcome(), Outcome()
    bench.broker.durables.seek(TOPIC, "s", _position("latest"), sought)
    bench.storage.checkpoint(written)
    actions: tuple[Literal["sync"]] = ("sync",)
    bench.disk.fail(Fault(actions=actions, prefix="segments/"))
    bench.settle()
    assert isinstance(sought.result, StorageFailedError)
    bench.disk.heal()
    bench.advance(1_500)
    assert bench.storage.committer.error is None

    bench.restart()

    assert bench.consume().payloads == [b"a", b"b"]


def test_a_checkpoint_beside_a_change_is_written_once_that_is_in_the_journal(
    bench: StreamBench,
) -> None:
    bench.create()
    bench.consume(credit=0)
    bench.publish(b"a", b"b")
    sought, written = Outcome(), Outcome()
    bench.broker.durables.seek(TOPIC, "s", _position("latest"), sought)
    bench.storage.checkpoint(written)
    bench.settle()

    assert (sought.result, written.result) == (None, None)
    bench.restart()
    assert bench.consume().payloads == []


def test_a_checkpoint_syncs_the_journal_before_it_names_what_is_there(bench: StreamBench) -> None:
    bench.create(durability="os")
    bench.publish(b"a")
    assert bench.storage.log.unsynced
    written = Outcome()
    bench.storage.checkpoint(written)
    bench.settle()

    assert written.result is None
    bench.restart("none")
    assert bench.stored(TOPIC)[0].payload == b"a"


def test_a_reader_comes_to_the_end_of_a_compacted_topic(bench: StreamBench) -> None:
    bench.create(retention="compact")
    bench.publish(b"a", keys=["k"])
    bench.publish(b"", keys=["k"])
    bench.restart(after_ms=25 * HOUR_MS)
    bench.create("/default/other")  # Rolls the file that was found.
    bench.storage.compactor.check()
    bench.settle()
    bench.storage.checkpoint(Outcome())
    bench.settle()

    sink = read_all(bench)

    assert (sink.offsets[-1], sink.ended) == (1, [None])


def test_a_file_sealed_while_a_time_is_looked_for_is_looked_at_as_well(bench: StreamBench) -> None:
    bench.create()
    bench.publish(b"a")
    bench.restart()
    jobs: list[Any] = []
    bench.storage.reading = Jobs(jobs)
    found = Outcome()
    bench.topic().find_time(0, found)
    spans = bench.storage.log.index.spans

    def seal_meanwhile(topic: int) -> list[Any]:
        before = list(spans(topic))
        if len(bench.storage.log.segments) == 0:
            bench.publish(b"b", name="q")
        return before

    bench.storage.log.index.spans = seal_meanwhile  # type: ignore[method-assign]
    call, done = jobs.pop()
    done(call())

    assert found.result == 0


def test_a_time_is_looked_for_again_where_a_file_was_removed_meanwhile(bench: StreamBench) -> None:
    bench.create()
    bench.publish(b"a")
    jobs: list[Any] = []
    bench.storage.reading = Jobs(jobs)
    found = Outcome()
    bench.topic().find_time(0, found)
    _, done = jobs.pop()
    done(FileNotFoundError("segments/1"))
    call, done = jobs.pop()
    done(call())

    assert found.result == 0


def test_a_thousand_readers_that_take_one_message_each_keep_nothing_else_in_memory() -> None:
    bench = StreamBench(tail_bytes=1)
    bench.create()
    for number in range(8):
        bench.publish(bytes([number]) * 60_000)
    sinks = [read_all(bench, credit=1) for _ in range(1_000)]

    assert all(sink.offsets == [0] for sink in sinks)
    assert bench.broker.durables.shared.windows <= READ_AHEAD_BYTES // READ_BYTES_MIN


def test_a_thousand_subscriptions_that_take_one_message_each_keep_nothing_else_in_memory() -> None:
    bench = StreamBench(tail_bytes=1)
    bench.create()
    for number in range(8):
        bench.publish(bytes([number]) * 60_000)
    members = [bench.consume(subscription=f"s{n}", credit=1) for n in range(1_000)]

    assert all(member.take_offsets() == [0] for member in members)
    assert bench.broker.durables.shared.windows <= READ_AHEAD_BYTES // READ_BYTES_MIN
    for member in members:
        member.grant(2)
    assert all(member.take_offsets() == [1, 2] for member in members)
    assert bench.broker.durables.shared.windows <= READ_AHEAD_BYTES // READ_BYTES_MIN


class Jobs:
    """A worker that does nothing before a test does it."""

    def __init__(self, jobs: list[Any]) -> None:
        self._jobs = jobs

    def run(self, call: Any, done: Any) -> None:
        self._jobs.append((call, done))

    def close(self, timeout_s: float | None = None) -> bool:
        """Nothing is under way."""
        return True


def test_ids_are_forgotten_after_their_time_also_where_nothing_more_is_published(
    bench: StreamBench,
) -> None:
    bench.create(dedup_window_ms=60_000)
    bench.publish(b"a", ids=["a"])

    bench.advance(62_000)

    assert not bench.topic().record.ids


def test_what_a_client_says_it_holds_is_not_kept_once_it_is_attached(bench: StreamBench) -> None:
    bench.create()

    member = bench.consume(held=list(range(1_000)))

    assert member.membership.consumer.held is None


def test_a_data_folder_that_was_filled_meanwhile_is_taken_over_with_its_topics() -> None:
    bench = StreamBench()
    late = Broker(
        name="late",
        limits=bench._limits,
        clock=bench.clock,
        random_slot=lambda _: 0,
        open_local=bench._open,
    )
    bench.create("/default/theirs")
    bench.publish(b"a", topic="/default/theirs")
    bench.broker = late

    outcome = Outcome()
    late.create_topic("/default/theirs", outcome, kind="stream")
    bench.settle()

    assert outcome.result is None
    assert [t.next_offset for t in late.streams_of("/default/theirs")] == [1]
    other = Outcome()
    with pytest.raises(IsterError, match="with durability 'fsync', not"):
        late.create_topic(
            "/default/theirs", other, kind="stream", stream=StreamSettings(durability="os")
        )
