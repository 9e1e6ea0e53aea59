"""A stream is moved between data folder and object store, and the machine stops at every step."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import pytest
from tests.unit.log.harness import TIME_MS

from ister.base import AckSettings, Durability, StreamSettings
from ister.base.errors import BadRequestError, TopicNotFoundError
from ister.broker import Relocated, StoppedLog, relocate
from ister.broker.state.changes import (
    Acked,
    Change,
    CursorMoved,
    CursorSaved,
    Failed,
    NamespaceCreated,
    PartitionedCreated,
    SubscriptionCreated,
    SubscriptionPaused,
    TopicCreated,
    TopicTrimmed,
)
from ister.broker.state.cursor_maps import encode_cursors
from ister.codec import Batch, encode
from ister.log import (
    ChunkBackend,
    CompactionPolicy,
    FileBackend,
    KeyPolicy,
    Kind,
    LogOptions,
    check_folder,
    plan_compaction,
)
from ister.objects import LocalStore
from ister.subscriptions import Cursor
from ister.testing import Crash, FaultyDisk, Keep
from ister.testing.disk import FaultyFile

KEEPS: tuple[Keep, ...] = ("none", "all", "torn")
ORDERS, PARTS, KEYED, OTHER = "/shop/orders", "/shop/parts", "/shop/keyed", "/shop/other"
OPTIONS = LogOptions(segment_bytes=3_000, extent_bytes=1_000, now_ms=lambda: TIME_MS)


class Folder:
    """A folder of a disk as a disk of its own, so that what stops the one stops both."""

    def __init__(self, disk: FaultyDisk, name: str = "store") -> None:
        self.url = f"memory://{name}"
        self._disk = disk
        self._name = name

    def open(self, name: str) -> FaultyFile:
        return self._disk.open(f"{self._name}/{name}")

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._disk.put(f"{self._name}/{name}", data)

    def names(self, folder: str) -> list[str]:
        return [
            name.removeprefix(f"{self._name}/")
            for name in self._disk.names(f"{self._name}/{folder}")
        ]

    def remove(self, name: str) -> None:
        self._disk.remove(f"{self._name}/{name}")


@dataclass(frozen=True)
class Way:
    """From where to where."""

    durability: Durability

    @property
    def back(self) -> "Way":
        is_object = self.durability is Durability.OBJECT
        return Way(Durability.FSYNC if is_object else Durability.OBJECT)

    @contextmanager
    def opened(self, disk: FaultyDisk) -> Iterator[tuple[StoppedLog, StoppedLog]]:
        """Yield the log that streams are moved from, and the other one."""
        local = StoppedLog(FileBackend(disk), OPTIONS)
        store = StoppedLog(ChunkBackend(LocalStore(Folder(disk))), OPTIONS)
        is_object = self.durability is Durability.OBJECT
        yield (local, store) if is_object else (store, local)
        local.close()
        store.close()

    def move(self, disk: FaultyDisk, name: str) -> Relocated:
        with self.opened(disk) as (source, target):
            return relocate(source, target, name, self.durability)


@pytest.fixture(params=["to the store", "to the folder"])
def way(request: pytest.FixtureRequest) -> Way:
    """Both directions."""
    return Way(Durability.OBJECT if request.param == "to the store" else Durability.FSYNC)


def publish(stopped: StoppedLog, topic: int, *payloads: bytes) -> None:
    """Publish messages, each with a key, and an id."""
    record = stopped.state.topics[topic]
    first = record.next_offset
    batch = Batch(
        b"".join(
            encode(
                list(payloads),
                producer=b"shop",
                first_sequence=first,
                keys=[f"k{n % 3}" for n in range(len(payloads))],
                ids=[f"id{first + n}" for n in range(len(payloads))],
                attributes=[{"n": str(n)} for n in range(len(payloads))],
            )
        )
    )
    batch.stamp(first, TIME_MS + first)
    stopped.log.append(
        Kind.BATCH,
        topic,
        [batch.stamp_bytes(), batch.tail],
        count=batch.count,
        base_offset=first,
        time_ms=batch.publish_time_ms,
    )
    stopped.commit()
    stopped.state.on_batch(topic, batch)


def make_disk(way: Way) -> FaultyDisk:
    """Return a disk with streams, subscriptions and a compacted stream in the one place."""
    disk = FaultyDisk()
    there = way.back.durability
    settings = StreamSettings(durability=there, max_messages=1_000)
    keyed = replace(settings, retention="compact", key_offsets=True)
    with way.opened(disk) as (source, target):
        source.record(
            [
                NamespaceCreated("shop"),
                TopicCreated(1, ORDERS, settings),
                TopicCreated(2, f"{PARTS}-part-0", settings),
                TopicCreated(3, f"{PARTS}-part-1", settings),
                PartitionedCreated(PARTS, 2),
                TopicCreated(4, KEYED, keyed),
                TopicCreated(5, OTHER, settings),
                *subscribed(1, ORDERS, "billing", {1: 2}),
                *subscribed(2, PARTS, "parts", {2: 1, 3: 0}),
                *subscribed(3, "/shop/>", "audit", {1: 0, 2: 0, 3: 0, 4: 0, 5: 3}),
            ]
        )
        target.record(
            [
                TopicCreated(1, "/shop/there", replace(settings, durability=way.durability)),
                *subscribed(1, "/shop/>", "audit", {1: 0}),
            ]
        )
        publish(target, 1, b"there")
        for number in range(3):
            for topic in (1, 2, 3, 4, 5):
                publish(source, topic, *(b"%d/%d/%d" % (topic, number, n) * 20 for n in range(9)))
        compact(source, 4)
        publish(source, 4, b"newest", b"of", b"keys")
        source.record(
            [
                TopicTrimmed(1, 5),
                Acked(1, 1, [(6, 9), (11, 12)]),
                Failed(1, 1, [(9, 10, 2)]),
                SubscriptionPaused(1, paused=True),
                Acked(2, 3, [(0, 4)]),
                CursorSaved(1, "before", msgspec.Raw(saved({1: Cursor(7)}))),
            ]
        )
        source.state.subscriptions[1].redelivered = 5
        source.checkpoint()
    return disk.reopen("none")


def subscribed(number: int, pattern: str, name: str, floors: dict[int, int]) -> list[Change]:
    created = SubscriptionCreated(
        number, pattern, name, "shared", "round_robin", {}, [], AckSettings()
    )
    return [created, *(CursorMoved(number, topic, floor) for topic, floor in floors.items())]


def saved(cursors: dict[int, Cursor]) -> bytes:
    encoding = encode_cursors(cursors)
    try:
        next(encoding)
    except StopIteration as end:
        return bytes(end.value)
    raise AssertionError("one step is enough for so few")


def compact(stopped: StoppedLog, topic: int) -> None:
    keys = KeyPolicy(safe_offset=stopped.state.topics[topic].next_offset - 1)
    policy = CompactionPolicy(keyed={topic: keys}, dirty_share_min=0.1, chunk_count_min=999)
    # What is written to is sealed.
    stopped.checkpoint()
    log = stopped.log
    rewrite = plan_compaction(log, log.state(), stopped.horizon, policy)
    assert rewrite is not None
    rewrite.run()
    log.rewritten(rewrite)
    stopped.checkpoint()


Row = tuple[int, bytes, object, object, object, int]


def messages(stopped: StoppedLog, name: str) -> list[Row]:
    """Return all that a reader gets of a stream."""
    [record] = [one for one in stopped.state.topics.values() if one.name == name]
    rows: list[Row] = []
    offset = record.first_offset
    while offset < record.next_offset:
        plan = stopped.log.plan(record.topic, offset, 1_000_000)
        if plan is None:
            break
        for batch in plan.run():
            columns = zip(
                batch.offsets,
                batch.payloads,
                batch.keys or (),
                batch.ids or (),
                batch.attributes or (),
                strict=True,
            )
            rows += [(*row, batch.publish_time_ms) for row in columns if row[0] >= offset]
            offset = batch.offsets[-1] + 1
    return rows


def facts(stopped: StoppedLog) -> dict[str, object]:
    """Return what a state knows of every stream, by names and not by numbers."""
    state = stopped.state
    found: dict[str, object] = {}
    names = {record.topic: record.name for record in state.topics.values()}
    for record in state.topics.values():
        compacted = stopped.log.find_compacted(record.topic, record.first_offset)
        producer = record.producers.find("shop")
        found[record.name] = (
            replace(record.settings, durability=""),
            record.first_offset,
            record.next_offset,
            record.last_ms,
            producer and (producer.next_sequence, producer.runs),
            [record.ids.find(f"id{n}", newer_than_ms=0) for n in range(40)],
            record.key_offsets and [row.offsets for row in record.key_offsets.rows(0)],
            compacted,
        )
    for one in state.subscriptions.values():
        for number, cursor in one.cursors.items():
            key = f"{names[number]} {one.created.name}"
            found[key] = (one.paused, cursor.encode(), one.created.pattern, one.redelivered)
            marks = {word: msgspec.msgpack.decode(data) for word, data in one.saved.items()}
            found[f"{key} saved"] = {w: m[number] for w, m in marks.items() if number in m}
    found["partitioned"] = state.partitioned
    return found


STREAMS = {ORDERS: [ORDERS], PARTS: [f"{PARTS}-part-0", f"{PARTS}-part-1"], KEYED: [KEYED]}


@pytest.mark.parametrize("name", STREAMS)
def test_a_moved_stream_has_all_that_it_had(way: Way, name: str) -> None:
    disk = make_disk(way)
    with way.opened(disk.reopen("none")) as (source, target):
        before, others = facts(source), facts(target)
        rows = {part: messages(source, part) for part in STREAMS[name]}
    assert all(rows.values())

    assert way.move(disk, name).partitions == len(STREAMS[name])
    with way.opened(disk) as (source, target):
        after = facts(target)
        assert {part: messages(target, part) for part in STREAMS[name]} == rows
        moved = [key for key in before if key.split()[0] in STREAMS[name]]
        assert {key: after[key] for key in moved} == {key: before[key] for key in moved}
        assert not any(key.split()[0] in STREAMS[name] for key in facts(source))
        left = [key for key in before if key not in moved and key != "partitioned"]
        assert {key: facts(source)[key] for key in left} == {key: before[key] for key in left}
        assert {key: after[key] for key in others if key != "partitioned"} == {
            key: others[key] for key in others if key != "partitioned"
        }
        assert "shop" in target.state.namespaces


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_goes_on_where_it_is_moved_to_and_can_be_moved_back(way: Way, name: str) -> None:
    disk = make_disk(way)
    way.move(disk, name)
    part = STREAMS[name][0]
    with way.opened(disk) as (_, target):
        [number] = [t.topic for t in target.state.topics.values() if t.name == part]
        publish(target, number, b"one", b"more")
        target.checkpoint()
        rows = messages(target, part)
        assert [row[1] for row in rows[-2:]] == [b"one", b"more"]
    with way.opened(disk) as (_, target):
        # What was moved and what came since are rewritten together, the older before the newer.
        publish(target, number, b"and", b"more")
        rows = messages(target, part)
        target.checkpoint()
        ranks = [span.segment.rank for span in target.log.index.spans(number)]
        assert ranks == sorted(ranks)
        policy = CompactionPolicy(small_count_min=2, chunk_count_min=2)
        while rewrite := plan_compaction(target.log, target.log.state(), target.horizon, policy):
            rewrite.run()
            target.log.rewritten(rewrite)
            target.checkpoint()
        assert messages(target, part) == rows

    assert way.back.move(disk, name).partitions == len(STREAMS[name])
    with way.opened(disk) as (source, target):
        assert messages(source, part) == rows
        assert name in source.state.names()
        for stopped in (source, target):
            assert check_folder(stopped.backend).problems == []


def test_a_move_that_was_killed_at_any_step_is_finished_by_the_next(way: Way) -> None:
    disk = make_disk(way)
    with way.opened(disk.reopen("none")) as (source, _):
        rows = messages(source, ORDERS)
    whole = disk.reopen("none")
    way.move(whole, ORDERS)
    with way.opened(whole.reopen("none")) as (_, target):
        after = facts(target)

    for number in range(len(whole.operations)):
        keep = KEEPS[number % len(KEEPS)]
        found = killed_at(disk, number, partial(way.move, name=ORDERS), keep)
        check_whole_somewhere(way, found.reopen("none"), rows)
        way.move(found, ORDERS)
        with way.opened(found) as (source, target):
            assert messages(target, ORDERS) == rows, f"{keep} at {number}"
            assert facts(target) == after, f"{keep} at {number}"
            assert ORDERS not in source.state.names(), f"{keep} at {number}"


def check_whole_somewhere(way: Way, disk: FaultyDisk, rows: list[Row]) -> None:
    with way.opened(disk) as pair:
        having = [stopped for stopped in pair if ORDERS in stopped.state.names()]
        assert having
        assert all(messages(stopped, ORDERS) == rows for stopped in having)


def killed_at(
    disk: FaultyDisk, number: int, run: Callable[[FaultyDisk], object], keep: Keep
) -> FaultyDisk:
    """Return the disk as it is found after `run` was stopped in the middle of an operation."""
    broken = disk.reopen("none")
    broken.crash_at(number)
    with pytest.raises(Crash):
        run(broken)
    return broken.reopen(keep, seed=number)


def test_leases_of_the_one_place_are_not_taken_for_leases_of_the_other(way: Way) -> None:
    disk = make_disk(way)
    with way.opened(disk) as (source, _):
        source.checkpoint(epoch_min=100)
    with way.opened(disk) as (source, _):
        epoch = source.log.epoch
    way.move(disk, ORDERS)

    with way.opened(disk) as (_, target):
        assert target.log.epoch > epoch > 100


def test_segments_in_a_tier_are_moved_too_and_the_tier_has_to_be_named() -> None:
    way = Way(Durability.OBJECT)
    disk = make_disk(way)
    tiered = replace(OPTIONS, remote=LocalStore(Folder(disk, "tier")))
    local = StoppedLog(FileBackend(disk), tiered)
    rows = messages(local, ORDERS)
    policy = CompactionPolicy(upload_before_ms=2**60)
    while rewrite := plan_compaction(local.log, local.log.state(), local.horizon, policy):
        rewrite.run()
        local.log.rewritten(rewrite)
        local.checkpoint()
    local.close()

    with pytest.raises(BadRequestError, match="--tier"):
        way.move(disk, ORDERS)
    local = StoppedLog(FileBackend(disk), tiered)
    store = StoppedLog(ChunkBackend(LocalStore(Folder(disk))), OPTIONS)
    relocate(local, store, ORDERS, Durability.OBJECT)
    assert messages(store, ORDERS) == rows


def test_a_stream_that_is_there_already_is_left_alone(way: Way) -> None:
    disk = make_disk(way)
    way.move(disk, ORDERS)
    assert way.move(disk, ORDERS) == Relocated()
    with pytest.raises(TopicNotFoundError):
        way.move(disk, "/shop/nowhere")


def test_two_streams_of_one_name_are_not_taken_for_one(way: Way) -> None:
    disk = make_disk(way)
    with way.opened(disk) as (_, target):
        target.record([TopicCreated(9, ORDERS, StreamSettings(durability=way.durability))])

    with pytest.raises(BadRequestError, match="not a copy"):
        way.move(disk, ORDERS)


def test_a_partition_is_not_moved_alone(way: Way) -> None:
    with pytest.raises(BadRequestError, match="with all of them"):
        way.move(make_disk(way), f"{PARTS}-part-1")
