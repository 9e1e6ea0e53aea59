"""Stages: what waits to be published, for how long, and how much of it."""

from pathlib import Path

import pytest
from tests.unit.broker.streambench import MEMORY, TOPIC, Outcome, StreamBench
from tests.unit.broker.test_schema_checks import NoBad, schema_check_of

from ister.base.errors import (
    BadBatchError,
    BadRequestError,
    IsterError,
    MessageTooLargeError,
    SchemaViolationError,
    StageExistsError,
    StageNotFoundError,
    StageTooLargeError,
    StagingFullError,
    StorageFailedError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import STAGE_TOPICS_MAX
from ister.broker import Spool, Stage
from ister.broker.transactions import stages as module
from ister.codec import Batch, encode
from ister.objects import FileKeyring

KEEP_MS = 60_000


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have even the smallest stage in a file."""
    monkeypatch.setattr(module, "HELD_STAGE_BYTES", 0)


@pytest.fixture(params=["in memory", "in files"])
def bench(request: pytest.FixtureRequest) -> StreamBench:
    if request.param == "in files":
        request.getfixturevalue("files")
    bench = StreamBench()
    bench.create(TOPIC)
    return bench


def batch_of(*payloads: bytes, ids: list[str] | None = None) -> Batch:
    return Batch(b"".join(encode(payloads, ids=ids)))


def opened(bench: StreamBench, word: str = "word", *payloads: bytes) -> Stage:
    stage = bench.broker.staging.open(word, KEEP_MS)
    if payloads:
        bench.broker.staging.add(stage, 0, batch_of(*payloads))
    return stage


def close(bench: StreamBench, stage: Stage, *topics: str, settle: bool = True) -> IsterError | None:
    """Close a stage, and return what was told of it."""
    outcome = Outcome()
    try:
        bench.broker.staging.close(stage, topics or (TOPIC,), outcome)
    except IsterError as error:
        outcome(error)
    if settle:
        bench.settle()
    return outcome.error


def is_closed(bench: StreamBench, word: str = "word") -> bool:
    try:
        bench.broker.staging.get_closed(word)
    except StageNotFoundError:
        return False
    return True


# The life of a stage


def test_a_stage_counts_what_it_was_given(bench: StreamBench) -> None:
    stage = opened(bench, "word", b"a", b"b")
    bench.broker.staging.add(stage, 0, batch_of(b"c"))

    assert close(bench, stage) is None
    assert (stage.messages, stage.batches) == (3, 2)
    assert stage.size_bytes == bench.broker.staging.staged_bytes > 0


def test_nobody_sees_a_stage(bench: StreamBench) -> None:
    member = bench.consume()
    close(bench, opened(bench, "word", b"a"))

    assert member.offsets == []
    assert bench.topic().next_offset == 0


def test_a_stage_that_is_not_closed_cannot_be_published(bench: StreamBench) -> None:
    stage = opened(bench, "word", b"a")
    bench.settle()
    assert not is_closed(bench)

    close(bench, stage)
    assert is_closed(bench)


@pytest.mark.parametrize("closed", [False, True])
def test_a_word_is_taken_until_its_stage_is_gone(bench: StreamBench, closed: bool) -> None:
    stage = opened(bench, "word", b"a")
    if closed:
        close(bench, stage)
    with pytest.raises(StageExistsError):
        opened(bench)

    bench.broker.staging.drop(["word", "another"])
    opened(bench)


@pytest.mark.parametrize("word", ["", "x" * 256])
def test_a_word_has_1_to_255_bytes(bench: StreamBench, word: str) -> None:
    with pytest.raises(BadRequestError, match="255"):
        bench.broker.staging.open(word, KEEP_MS)


@pytest.mark.parametrize("keep_ms", [999, 24 * 3_600_000 + 1])
def test_a_stage_is_kept_for_a_second_to_a_day(bench: StreamBench, keep_ms: int) -> None:
    with pytest.raises(BadRequestError, match="1s to 1d"):
        bench.broker.staging.open("word", keep_ms)


def test_a_closed_stage_is_gone_when_its_time_is_over(bench: StreamBench) -> None:
    close(bench, opened(bench, "word", b"a"))
    bench.advance(KEEP_MS - 1)
    assert is_closed(bench)

    bench.advance(1)
    assert not is_closed(bench)
    assert (bench.broker.staging.count, bench.broker.staging.staged_bytes) == (0, 0)


def test_stages_go_each_at_its_own_time(bench: StreamBench) -> None:
    for word in ("first", "second"):
        close(bench, opened(bench, word, b"a"))
        bench.advance(10_000)
    bench.advance(KEEP_MS - 20_000)
    assert (is_closed(bench, "first"), is_closed(bench, "second")) == (False, True)

    bench.advance(10_000)
    assert bench.broker.staging.count == 0


def test_an_open_stage_does_not_get_too_old(bench: StreamBench) -> None:
    stage = opened(bench, "word", b"a")
    close(bench, opened(bench, "other", b"a"))
    bench.advance(10 * KEEP_MS)

    assert close(bench, stage) is None


def test_a_lost_connection_takes_what_is_open_and_leaves_what_is_closed(
    bench: StreamBench,
) -> None:
    done, half = opened(bench, "done", b"a"), opened(bench, "half", b"a")
    close(bench, done)
    for stage in (done, half):
        bench.broker.staging.abandon(stage)
    bench.settle()

    assert bench.broker.staging.count == 1
    assert is_closed(bench, "done")
    assert bench.broker.staging.staged_bytes == done.size_bytes


def test_a_restart_has_no_stages(bench: StreamBench) -> None:
    close(bench, opened(bench, "word", b"a"))
    bench.restart()

    assert not is_closed(bench)


def test_a_stage_dropped_while_it_is_open_takes_no_more_and_cannot_be_closed(
    bench: StreamBench,
) -> None:
    stage = opened(bench, "word", b"a")
    bench.broker.staging.drop(["word"])
    bench.broker.staging.add(stage, 0, batch_of(b"b"))

    assert isinstance(close(bench, stage), StageNotFoundError)
    assert bench.broker.staging.staged_bytes == 0


@pytest.mark.usefixtures("files")
def test_a_stage_dropped_while_its_file_is_written_is_not_closed(bench: StreamBench) -> None:
    stage = opened(bench, "word", b"a")
    outcome = Outcome()
    bench.broker.staging.close(stage, [TOPIC], outcome)
    bench.broker.staging.drop(["word"])
    bench.settle()

    assert isinstance(outcome.result, StageNotFoundError)
    assert bench.broker.staging.count == 0


# What is refused


def test_what_is_wrong_with_a_batch_is_told_at_the_end_and_costs_the_stage(
    bench: StreamBench,
) -> None:
    stage = opened(bench, "word", b"a")
    bench.broker.staging.add(stage, 0, batch_of(b"b", ids=["id"]))
    bench.broker.staging.add(stage, 0, batch_of(b"c"))
    bench.settle()
    assert bench.broker.staging.staged_bytes == 0

    assert isinstance(close(bench, stage), BadBatchError)
    assert bench.broker.staging.count == 0


def test_a_message_over_the_limit_is_refused() -> None:
    bench = StreamBench(message_bytes_max=10)
    bench.create(TOPIC)
    stage = opened(bench, "word", b"x" * 11)

    assert isinstance(close(bench, stage), MessageTooLargeError)


@pytest.mark.parametrize(
    ("topics", "error"),
    [
        ((), BadRequestError),
        (("/default/missing",), TopicNotFoundError),
        (("/default/live",), WrongKindError),
        (("/default/split",), BadRequestError),
    ],
)
def test_a_stage_is_for_streams_or_partitions_that_exist(
    bench: StreamBench, topics: tuple[str, ...], error: type[IsterError]
) -> None:
    bench.broker.create_topic("/default/live")
    bench.create("/default/split", partitions=2)
    stage = opened(bench, "word", b"a")
    outcome = Outcome()
    with pytest.raises(error):
        bench.broker.staging.close(stage, topics, outcome)

    assert (outcome.told, bench.broker.staging.count) == ([], 0)


def test_batches_are_checked_against_the_schema_of_their_topic(bench: StreamBench) -> None:
    bench.create("/default/free")
    bench.broker.schema_check_of = schema_check_of({TOPIC: NoBad()})
    good = opened(bench, "good", b"fine")
    bench.broker.staging.add(good, 1, batch_of(b"bad"))
    assert close(bench, good, TOPIC, "/default/free") is None

    assert isinstance(close(bench, opened(bench, "bad", b"fine", b"bad")), SchemaViolationError)
    assert bench.broker.staging.count == 1


def test_a_broker_without_a_place_for_stages_says_so(bench: StreamBench) -> None:
    from tests.unit.broker.fakes import Bench

    with pytest.raises(BadRequestError, match="stages"):
        Bench().broker.staging.open("word", KEEP_MS)


# Limits


def test_a_stage_larger_than_what_is_published_at_once_is_refused(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = batch_of(b"a").size_bytes
    monkeypatch.setattr(module, "SERIES_BYTES_MAX", 2 * size)
    for count, refused in ((2, False), (3, True)):
        stage = opened(bench, f"word{count}")
        for _ in range(count):
            bench.broker.staging.add(stage, 0, batch_of(b"a"))

        assert isinstance(close(bench, stage), StageTooLargeError) is refused


def test_a_stage_of_more_batches_than_are_published_at_once_is_refused(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SERIES_BATCHES_MAX", 1)
    stage = opened(bench, "word", b"a")
    bench.broker.staging.add(stage, 0, batch_of(b"b"))

    assert isinstance(close(bench, stage), StageTooLargeError)


def test_a_stage_is_for_so_many_topics(bench: StreamBench) -> None:
    for count, refused in ((STAGE_TOPICS_MAX, False), (STAGE_TOPICS_MAX + 1, True)):
        stage = opened(bench, f"word{count}", b"a")
        assert isinstance(close(bench, stage, *[TOPIC] * count), StageTooLargeError) is refused


def test_all_stages_together_are_bounded_and_room_comes_back(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STAGES_BYTES_MAX", 2 * batch_of(b"a").size_bytes)
    for word in ("one", "two"):
        assert close(bench, opened(bench, word, b"a")) is None
    assert isinstance(close(bench, opened(bench, "three", b"a")), StagingFullError)

    bench.broker.staging.drop(["one"])
    assert close(bench, opened(bench, "three", b"a")) is None


def test_the_number_of_stages_is_bounded(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STAGES_MAX", 1)
    opened(bench)
    with pytest.raises(StagingFullError):
        opened(bench, "another")


@pytest.mark.usefixtures("files")
def test_those_who_stage_are_held_up_until_the_files_have_caught_up(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, relieved = bench.broker.staging, Outcome()
    monkeypatch.setattr(module, "STAGING_BYTES_MAX", batch_of(b"a").size_bytes)
    stage = opened(bench, "word", b"a")
    full = [staging.full]
    staging.add(stage, 0, batch_of(b"b"))
    full.append(staging.full)
    staging.on_relief(relieved)
    bench.settle()

    assert [*full, staging.full] == [False, True, False]
    assert len(relieved.told) == 1


@pytest.mark.usefixtures("files")
def test_a_stage_that_goes_lets_the_others_go_on(
    bench: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, relieved = bench.broker.staging, Outcome()
    monkeypatch.setattr(module, "STAGING_BYTES_MAX", batch_of(b"a").size_bytes)
    stage = opened(bench, "word", b"a")
    staging.add(stage, 0, batch_of(b"b"))
    staging.on_relief(relieved)
    staging.abandon(stage)

    assert len(relieved.told) == 1
    bench.settle()
    assert not staging.full


# Files


class FullSpool(Spool):
    """A file on a disk without room."""

    def write(self, rows: object) -> None:
        raise OSError(28, "No space left on device")


@pytest.mark.usefixtures("files")
def test_a_full_disk_costs_the_stage_and_says_so(bench: StreamBench) -> None:
    stage = opened(bench)
    stage.spool = FullSpool(None)
    bench.broker.staging.add(stage, 0, batch_of(b"a"))

    error = close(bench, stage)
    assert isinstance(error, StorageFailedError)
    assert "No space left" in str(error)
    assert (bench.broker.staging.count, bench.broker.staging.staged_bytes) == (0, 0)


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_spool_gives_back_what_it_was_given(tmp_path: Path, encrypted: bool) -> None:
    keyring = FileKeyring.create(tmp_path / "keys") if encrypted else None
    spool = Spool(MEMORY, keyring)
    large = b"x" * 300_000
    spool.write([(0, batch_of(b"a", b"b"))])
    spool.write([(3, batch_of(large)), (1, batch_of(b"c"))])

    found = [(place.slot, spool.load(place).payloads) for place in spool.places()]
    assert found == [(0, [b"a", b"b"]), (3, [large]), (1, [b"c"])]
    spool.close()


def test_an_encrypted_spool_has_nothing_readable_in_it(tmp_path: Path) -> None:
    word = b"a word nobody else may read"
    for keyring, readable in ((None, True), (FileKeyring.create(tmp_path / "keys"), False)):
        spool = Spool(MEMORY, keyring)
        spool.write([(0, batch_of(word))])
        assert spool._file is not None
        spool._file.seek(0)

        assert (word in spool._file.read()) is readable
        spool.close()


def test_a_spool_that_is_closed_is_no_other_file(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.write([(0, batch_of(b"a"))])
    [place] = spool.places()
    spool.close()

    with pytest.raises(OSError, match="gone"):
        spool.load(place)
    with pytest.raises(OSError, match="gone"):
        spool.write([(0, batch_of(b"a"))])


def test_a_spool_leaves_no_name_in_its_folder(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.write([(0, batch_of(b"a"))])

    assert list(tmp_path.iterdir()) == []
    spool.close()


# In memory


def file_of(stage: Stage) -> object:
    return stage.spool._file


def test_a_small_stage_has_no_file_and_a_larger_one_has_all_in_one() -> None:
    bench = StreamBench()
    bench.create(TOPIC)
    small, large = opened(bench, "small", b"a"), opened(bench, "large", b"first")
    bench.broker.staging.add(large, 0, batch_of(b"x" * module.HELD_STAGE_BYTES))
    bench.broker.staging.add(large, 0, batch_of(b"last"))

    assert (close(bench, small), close(bench, large)) == (None, None)

    assert file_of(small) is None
    assert file_of(large) is not None
    found = [batch.read().payloads for _, batch in large.find_batches()]
    assert found == [[b"first"], [b"x" * module.HELD_STAGE_BYTES], [b"last"]]


def test_small_stages_get_files_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = StreamBench()
    bench.create(TOPIC)
    monkeypatch.setattr(module, "HELD_BYTES_MAX", 2_000)
    stages = [opened(bench, f"stage-{number}", b"a") for number in range(4)]
    for stage in stages:
        close(bench, stage)
    assert [file_of(stage) is None for stage in stages] == [True, True, False, False]

    bench.broker.staging.drop(["stage-0"])

    another = opened(bench, "another", b"a")
    close(bench, another)
    assert file_of(another) is None
