"""Another broker takes over the object store: the former owner stops, and reports it to clients."""

from collections.abc import Callable
from errno import EIO
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.unit.broker.streambench import Outcome, StreamBench

from ister.base import EARLIEST
from ister.base.errors import IsterError, ShardMovedError, StorageUncertainError
from ister.broker import open_reader
from ister.broker.storage.storage import STOPPED_MS, WATCH_OWNER_MS, Storage
from ister.log import Buffer, CompactionPolicy, plan_compaction
from ister.objects import LocalStore, MemoryDisk

TOPIC = "/default/lasting"


class ReaderEnd:
    """The client end of a reader."""

    writable = True

    def __init__(self) -> None:
        self.ended: list[IsterError | None] = []

    def deliver(self, channel: int, topic: Any, batch: Any) -> None:
        """Accept a batch."""

    def reader_ended(self, channel: int, error: IsterError | None) -> None:
        self.ended.append(error)


class FlakyStore(LocalStore):
    """A store whose PUTs fail while it is `down`; `on_put` is called after one, and may fail."""

    def __init__(self) -> None:
        super().__init__(MemoryDisk())
        self.down = False
        self.on_put: Callable[[], object] | None = None

    def put(self, name: str, data: Buffer) -> None:
        """Make an object, or fail."""
        if self.down:
            raise OSError(EIO, "the store is down")
        super().put(name, data)
        on_put, self.on_put = self.on_put, None
        if on_put is not None:
            on_put()


@pytest.fixture
def old() -> StreamBench:
    """The former owner, with a topic, five messages, and another topic on its disk."""
    bench = StreamBench(store=FlakyStore())
    bench.create(TOPIC, durability="object")
    bench.create("/default/local")
    for number in range(5):
        bench.publish(b"%d" % number, topic=TOPIC)
    return bench


def successor(old: StreamBench) -> StreamBench:
    return StreamBench(store=old.store)


def storage_of(bench: StreamBench) -> Storage:
    return bench.topic(TOPIC).storage


def objects(bench: StreamBench) -> dict[str, bytes]:
    """Return all objects in the store."""
    assert bench.store is not None
    folders = ("chunks/", "manifests/", "segments/", "snapshots/")
    names = [name for folder in folders for name in bench.store.names(folder)]
    return {name: bench.store.get(name) for name in names}


def test_publish_to_lost_storage_fails_with_shard_moved_error(old: StreamBench) -> None:
    new = successor(old)
    first = old.send([b"late"], topic=TOPIC)

    assert isinstance(first.error, ShardMovedError)
    with pytest.raises(ShardMovedError):
        old.send([b"later"], topic=TOPIC)
    assert [m.payload for m in new.stored(TOPIC)] == [b"%d" % n for n in range(5)]


def test_every_waiting_request_is_answered_once(old: StreamBench) -> None:
    successor(old)
    sent = [old.send([b"late"], topic=TOPIC, settle=False) for _ in range(3)]
    outcome = Outcome()
    old.broker.durables.confirm(storage_of(old), outcome)
    old.settle()

    assert all(isinstance(one.error, ShardMovedError) for one in sent)
    assert isinstance(outcome.error, ShardMovedError)


def test_lost_storage_is_not_retried_and_is_logged_once(old: StreamBench) -> None:
    successor(old)
    before = objects(old)
    with capture_logs() as logs:
        old.send([b"late"], topic=TOPIC)
        old.advance(120_000)

    told = [log["event"] for log in logs if log["log_level"] in ("error", "warning")]
    assert told == ["storage_lost"]
    assert objects(old) == before


def test_readiness_reports_lost_storage(old: StreamBench) -> None:
    successor(old)
    old.send([b"late"], topic=TOPIC)

    assert "another broker has taken over the object storage" in old.broker.streams.error


def test_consumers_and_readers_of_lost_storage_get_the_error(old: StreamBench) -> None:
    member = old.consume(TOPIC)
    end, opened = ReaderEnd(), Outcome()
    topic = old.topic(TOPIC)
    open_reader(
        topic,
        EARLIEST,
        None,
        opened,
        turns=old.broker.turns,
        shared=old.broker.durables.shared,
        sink=end,
        channel=9,
    )
    successor(old)
    old.send([b"late"], topic=TOPIC)

    assert [type(error) for error in member.sink.errors] == [ShardMovedError]
    assert [type(error) for error in end.ended] == [ShardMovedError]


def test_new_consumers_and_readers_of_lost_storage_are_refused(old: StreamBench) -> None:
    old.consume(TOPIC).leave()
    successor(old)
    old.send([b"late"], topic=TOPIC)

    with pytest.raises(ShardMovedError):
        old.consume(TOPIC)
    with pytest.raises(ShardMovedError):
        old.consume(TOPIC, "another")
    with pytest.raises(ShardMovedError):
        old.broker.open_producer(TOPIC, "another")
    with pytest.raises(ShardMovedError):
        old.broker.streams_of(TOPIC)


def test_topics_of_other_storage_continue_to_work(old: StreamBench) -> None:
    successor(old)
    old.send([b"late"], topic=TOPIC)

    assert old.publish(b"here", topic="/default/local") == [0]
    assert old.consume("/default/local").payloads == [b"here"]


@pytest.mark.parametrize("late_ms", [STOPPED_MS + 1, 7_000])
def test_paused_broker_detects_its_successor_at_once(old: StreamBench, late_ms: int) -> None:
    old.advance(1_500)
    member = old.consume(TOPIC)
    successor(old)
    # Stopped: the clock goes on, and no timer runs.
    old.clock.stop_for(late_ms)
    old.advance(1_000)

    assert [type(error) for error in member.sink.errors] == [ShardMovedError]


def test_idle_broker_detects_its_successor(old: StreamBench) -> None:
    member = old.consume(TOPIC)
    successor(old)
    old.advance(WATCH_OWNER_MS + 1_000)

    assert [type(error) for error in member.sink.errors] == [ShardMovedError]


def test_idle_owner_stays_owner(old: StreamBench) -> None:
    member = old.consume(TOPIC)
    old.advance(3 * WATCH_OWNER_MS)

    assert member.sink.errors == []
    assert old.publish(b"5", topic=TOPIC) == [5]


def test_checkpoint_that_finds_another_owner_makes_the_storage_lost(old: StreamBench) -> None:
    successor(old)
    outcome = Outcome()
    storage_of(old).checkpoint(outcome)
    old.settle()

    assert isinstance(outcome.error, IsterError)
    assert storage_of(old).committer.lost
    before = objects(old)
    old.advance(60_000)
    assert objects(old) == before


def test_group_that_is_stored_while_the_storage_is_lost_is_acknowledged(old: StreamBench) -> None:
    storage = storage_of(old)
    sent = old.send([b"in time"], topic=TOPIC, settle=False)
    old.step()  # The group is written, and nobody was told.
    new = successor(old)
    outcome = Outcome()
    storage.checkpoint(outcome)
    old.settle()

    assert sent.error is None
    assert storage.committer.lost
    assert [m.payload for m in new.stored(TOPIC)][-1] == b"in time"


def test_storage_that_is_lost_while_it_fails_is_not_retried_any_more(old: StreamBench) -> None:
    store = old.store
    assert isinstance(store, FlakyStore)
    store.down = True
    sent = old.send([b"uncertain"], topic=TOPIC)
    assert isinstance(sent.error, StorageUncertainError)
    store.down = False
    successor(old)
    with capture_logs() as logs:
        old.advance(120_000)

    assert storage_of(old).committer.lost
    told = [log["event"] for log in logs if log["log_level"] in ("error", "warning")]
    assert told == ["storage_lost"]


@pytest.mark.parametrize("compacts", [False, True])
def test_message_that_the_next_owner_has_is_not_reported_as_failed(
    old: StreamBench, compacts: bool
) -> None:
    """The answer to a PUT is lost, and another broker takes over before the next request."""
    store = old.store
    assert isinstance(store, FlakyStore)
    heirs: list[StreamBench] = []

    def take_over() -> None:
        new = successor(old)
        heirs.append(new)
        if compacts:
            # Then the number of the chunk with the message is free again.
            compact(new)
        raise OSError(EIO, "the answer was lost")

    store.on_put = take_over
    sent = old.send([b"5"], topic=TOPIC)
    old.advance(10_000)

    assert isinstance(sent.error, StorageUncertainError)
    assert storage_of(old).committer.lost
    assert [m.payload for m in heirs[0].stored(TOPIC)][-1] == b"5"


def compact(bench: StreamBench) -> None:
    """Rewrite all chunks, and remove those that were rewritten."""
    storage = storage_of(bench)
    horizon = {t.topic: t.first_offset for t in storage.state.topics.values()}
    policy = CompactionPolicy(chunk_count_min=4)
    rewrite = plan_compaction(storage.log, storage.log.state(), horizon, policy)
    assert rewrite is not None
    rewrite.run()
    storage.log.rewritten(rewrite)
    outcome = Outcome()
    storage.checkpoint(outcome)
    bench.settle()
    assert outcome.error is None
