"""Rewriting: it happens where it pays, readers notice nothing, a crash anywhere harms nothing."""

from dataclasses import dataclass, replace

import pytest
from tests.unit.log.harness import SMALL, TIME_MS, Bench, filler

from ister.base.errors import CorruptedError
from ister.codec import Batch, encode
from ister.log import (
    ChunkBackend,
    CompactionPolicy,
    FileBackend,
    KeyPolicy,
    Kind,
    LogOptions,
    Place,
    Rewrite,
    check_folder,
    plan_compaction,
)
from ister.log.files.segment import chunk_name
from ister.objects import LocalStore
from ister.testing import Crash, Fault, FaultyDisk
from ister.testing.disk import Change

payload = filler(100)
POLICY = CompactionPolicy(small_count_min=3, chunk_count_min=8)


@dataclass
class Compacted:
    """A bench, its disk, and the horizon of its topics."""

    bench: Bench
    disk: FaultyDisk

    def plan(self, policy: CompactionPolicy = POLICY, **floors: int) -> Rewrite | None:
        horizon = dict.fromkeys(self.bench.next_offsets, 0)
        horizon.update({int(name[1:]): floor for name, floor in floors.items()})
        return plan_compaction(self.bench.log, self.bench.log.state(), horizon, policy)

    def apply(self, rewrite: Rewrite, **floors: int) -> None:
        horizon = dict.fromkeys(self.bench.next_offsets, 0)
        horizon.update({int(name[1:]): floor for name, floor in floors.items()})
        rewrite.run()
        self.bench.log.rewritten(rewrite)
        self.bench.checkpoint(b"state", horizon)


def on_disk(options: LogOptions = SMALL) -> Compacted:
    disk = FaultyDisk()
    return Compacted(Bench(FileBackend(disk), options), disk)


def in_store() -> Compacted:
    disk = FaultyDisk()
    return Compacted(Bench(ChunkBackend(LocalStore(disk))), disk)


def publish_keyed(bench: Bench, rows: list[tuple[str | None, bytes]], *, time_ms: int) -> None:
    batch = Batch(b"".join(encode([value for _, value in rows], keys=[key for key, _ in rows])))
    batch.stamp(bench.next_offsets.get(1, 0), time_ms)
    bench.next_offsets[1] = batch.base_offset + batch.count
    bench.log.append(
        Kind.BATCH,
        1,
        [batch.stamp_bytes(), batch.tail],
        count=batch.count,
        base_offset=batch.base_offset,
        time_ms=time_ms,
    )
    bench.commit()


def read_keyed(bench: Bench) -> list[tuple[int, str | None, bytes]]:
    found = []
    offset = 0
    while (plan := bench.log.plan(1, offset, 2_000)) is not None:
        for batch in plan.run():
            keys = batch.keys or [None] * batch.count
            found += list(zip(batch.offsets, keys, batch.payloads, strict=True))
        offset = found[-1][0] + 1
    return found


def test_a_log_of_one_topic_is_left_alone() -> None:
    world = on_disk()
    for number in range(200):
        world.bench.publish(1, payload(number))

    assert world.plan() is None


def test_a_segment_with_many_topics_mixed_is_sorted() -> None:
    world = on_disk()
    for number in range(20):
        for topic in range(1, 11):
            world.bench.append(topic, payload(number))
        world.bench.commit()
    before = {topic: world.bench.payloads(topic) for topic in range(1, 11)}
    rewrite = world.plan()
    assert rewrite is not None
    assert rewrite.reason == "interleaved"
    first = rewrite.segments[0]
    world.apply(rewrite)

    assert first.name not in world.disk.names("segments")
    assert {topic: world.bench.payloads(topic) for topic in range(1, 11)} == before
    again = world.bench.reopened()
    assert {topic: again.payloads(topic) for topic in range(1, 11)} == before


def test_after_sorting_a_reader_fetches_little_else_than_its_topic() -> None:
    world = on_disk(replace(SMALL, segment_bytes=65_536, extent_bytes=8_192))
    for number in range(60):
        for topic in range(1, 11):
            world.bench.append(topic, payload(number))
        world.bench.commit()
    rewrite = world.plan()
    assert rewrite is not None
    world.apply(rewrite)
    plan = world.bench.log.plan(3, 0, 2_000)
    assert plan is not None
    rows = world.bench.log.reader.rows(plan.segment, 3)

    assert rows[6] == rows[1] - rows[0]


def test_sorting_ends() -> None:
    world = on_disk()
    for number in range(60):
        for topic in range(1, 11):
            world.bench.append(topic, payload(number))
        world.bench.commit()
    reasons = []
    while (rewrite := world.plan()) is not None:
        reasons.append(rewrite.reason)
        world.apply(rewrite)
        assert len(reasons) < 50

    assert "interleaved" in reasons
    assert check_folder(FileBackend(world.disk)).problems == []


def test_four_topics_side_by_side_are_the_edge() -> None:
    def decided(topics: int) -> bool:
        world = on_disk()
        for number in range(40):
            for topic in range(1, topics + 1):
                world.bench.append(topic, payload(number))
            world.bench.commit()
        return world.plan() is not None

    assert not decided(3)
    assert decided(5)


def test_a_segment_that_is_mostly_expired_is_rewritten() -> None:
    world = on_disk()
    for number in range(60):
        world.bench.append(1, payload(number))
        world.bench.append(2, payload(number))
        world.bench.commit()
    end = world.bench.log.index.spans(1)[0].end_offset
    assert world.plan(t1=end // 2) is None
    rewrite = world.plan(t1=end, t2=end // 5)
    assert rewrite is not None
    assert rewrite.reason == "expired"
    before = sum(row.size_bytes for row in world.bench.log.segments)
    world.apply(rewrite, t1=end, t2=end // 5)

    assert sum(row.size_bytes for row in world.bench.log.segments) < before
    assert world.bench.read(1, end) == [(n, payload(n)) for n in range(end, 60)]
    assert world.bench.read(2, end // 5) == [(n, payload(n)) for n in range(end // 5, 60)]


def test_rewritten_segment_is_not_rewritten_again_after_a_restart() -> None:
    """A batch stays whole while one of its messages is live, so a rewrite may save nothing."""
    options = replace(SMALL, segment_bytes=20_000)
    policy = CompactionPolicy(small_count_min=99, density_min=0)
    horizon = {1: 90}
    bench = Bench(FileBackend(FaultyDisk()), options)
    for _ in range(3):
        bench.publish(1, *[b"x" * 100] * 100)
    bench.checkpoint()

    def rewrites() -> int:
        count = 0
        while rewrite := plan_compaction(bench.log, bench.log.state(), horizon, policy):
            rewrite.run()
            bench.log.rewritten(rewrite)
            bench.checkpoint(horizon=horizon)
            count += 1
        return count

    assert rewrites() == 1
    for _ in range(3):
        bench = bench.reopened()
        bench.next_offsets[1] = 300
        assert rewrites() == 0
        # A checkpoint that has nothing to do with it keeps it in mind.
        bench.publish(1, b"y")
        bench.checkpoint(horizon=horizon)


def test_a_deleted_topic_is_not_copied() -> None:
    world = on_disk()
    for number in range(60):
        world.bench.append(1, payload(number))
        world.bench.append(2, payload(number), payload(number))
        world.bench.commit()
    rewrite = plan_compaction(world.bench.log, world.bench.log.state(), {1: 0}, POLICY)
    assert rewrite is not None
    assert rewrite.reason == "expired"
    rewrite.run()

    assert rewrite.figures.written_bytes < rewrite.figures.read_bytes * 0.6
    assert rewrite.figures.segments_in == rewrite.figures.segments_out == 1


def test_small_neighbours_become_one() -> None:
    world = on_disk(replace(SMALL, segment_bytes=65_536))
    for number in range(6):
        world.bench.publish(1, payload(number))
        world.bench.publish(2, payload(number))
        world.bench = world.bench.reopened()
    world.bench.publish(1, b"last")
    rewrite = world.plan()
    assert rewrite is not None
    assert (rewrite.reason, len(rewrite.segments)) == ("small", 6)
    world.apply(rewrite)

    assert len(world.bench.log.segments) == 1
    assert world.bench.payloads(1) == [*(payload(n) for n in range(6)), b"last"]
    assert world.plan() is None


def test_batches_of_transactions_are_kept() -> None:
    world = on_disk(replace(SMALL, segment_bytes=65_536))
    bench = world.bench
    for number in range(3):
        one, two = bench.batch(1, payload(number)), bench.batch(2, payload(number))
        bench.log.append_transaction(
            [
                (topic, b.base_offset, TIME_MS, 1, [b.to_bytes()])
                for topic, b in ((1, one), (2, two))
            ],
            b"changes",
        )
        bench.commit()
        bench = bench.reopened()
    bench.publish(1, b"last")
    world.bench = bench
    rewrite = world.plan()
    assert rewrite is not None
    world.apply(rewrite)

    assert bench.payloads(1) == [*(payload(n) for n in range(3)), b"last"]
    assert bench.payloads(2) == [payload(n) for n in range(3)]


def test_chunks_become_segments() -> None:
    world = in_store()
    for number in range(20):
        world.bench.append(1, payload(number))
        world.bench.append(2, payload(number))
        world.bench.commit()
    rewrite = world.plan()
    assert rewrite is not None
    assert rewrite.reason == "chunks"
    world.apply(rewrite)

    assert {row.place for row in world.bench.log.segments} == {Place.REMOTE}
    # What keeps a former owner out stays.
    assert world.disk.names("chunks") == [chunk_name(1)]
    world.bench.publish(1, b"more")
    for bench in (world.bench, Bench(ChunkBackend(LocalStore(world.disk)))):
        assert bench.payloads(1) == [*(payload(n) for n in range(20)), b"more"]
        assert bench.payloads(2) == [payload(n) for n in range(20)]


def test_a_rewrite_of_small_chunks_can_be_stopped_between_any_two() -> None:
    world = in_store()
    for number in range(20):
        world.bench.publish(1, payload(number))
    rewrite = world.plan()
    assert rewrite is not None
    looks = 0

    def stop(_: int) -> None:
        nonlocal looks
        looks += 1
        if looks == 7:
            raise InterruptedError("the broker is closing")

    with pytest.raises(InterruptedError):
        rewrite.run(stop)
    assert world.disk.names("segments") == []
    assert world.bench.payloads(1) == [payload(n) for n in range(20)]


def test_old_segments_go_to_the_remote_tier() -> None:
    remote_disk = FaultyDisk()
    remote = LocalStore(remote_disk)
    world = on_disk(replace(SMALL, remote=remote))
    for number in range(200):
        world.bench.publish(1, payload(number), time_ms=TIME_MS + number)
    policy = replace(POLICY, upload_before_ms=TIME_MS + 100)
    uploads = 0
    while (rewrite := world.plan(policy)) is not None:
        assert rewrite.reason == "upload"
        world.apply(rewrite)
        uploads += 1

    assert uploads == len(remote_disk.names("segments"))
    places = [row.place for row in world.bench.log.segments]
    assert {Place.LOCAL, Place.REMOTE} == set(places)
    assert world.bench.payloads(1) == [payload(n) for n in range(200)]
    again = world.bench.reopened()
    assert again.payloads(1) == [payload(n) for n in range(200)]
    assert check_folder(FileBackend(world.disk), remote=remote).problems == []
    again.checkpoint(b"state", {1: 200})
    assert remote_disk.names("segments") == []


def test_of_each_key_the_newest_message_is_kept() -> None:
    world = on_disk()
    for number in range(200):
        publish_keyed(
            world.bench,
            [(f"k{number % 7}", payload(number)), (None, b"no key")],
            time_ms=TIME_MS + number,
        )
    before = read_keyed(world.bench)
    safe = world.bench.log.index.spans(1)[-1].end_offset
    policy = replace(POLICY, keyed={1: KeyPolicy(safe_offset=safe)})
    rewrite = world.plan(policy)
    assert rewrite is not None
    assert rewrite.reason == "keys"
    world.apply(rewrite)

    newest = {key: offset for offset, key, _ in before if key and offset < safe}
    expected = [
        row for row in before if row[0] >= safe or row[1] is None or newest[row[1]] == row[0]
    ]
    assert read_keyed(world.bench) == expected
    assert rewrite.figures.dropped_messages == len(before) - len(expected)
    assert read_keyed(world.bench.reopened()) == expected
    assert check_folder(FileBackend(world.disk)).problems == []
    assert world.plan(policy) is None


def test_compacting_keys_again_takes_what_was_compacted_before_into_account() -> None:
    world = on_disk()

    def compact() -> None:
        safe = world.bench.log.index.spans(1)[-1].end_offset
        rewrite = world.plan(replace(POLICY, keyed={1: KeyPolicy(safe_offset=safe)}))
        assert rewrite is not None
        assert rewrite.reason == "keys"
        world.apply(rewrite)

    for turn in range(3):
        for number in range(100):
            publish_keyed(
                world.bench, [(f"k{number % 5}", b"%d" % turn + bytes(100))], time_ms=TIME_MS
            )
        compact()

    safe = world.bench.log.index.spans(1)[-1].end_offset
    old = [row for row in read_keyed(world.bench) if row[0] < safe]
    assert len(old) == 5
    assert {row[2][:1] for row in old} == {b"2"}


def test_what_was_compacted_is_known_to_be_in_the_remote_tier_and_after_a_restart() -> None:
    world = on_disk(replace(SMALL, remote=LocalStore(FaultyDisk())))
    for number in range(200):
        publish_keyed(world.bench, [(f"k{number % 5}", payload(number))], time_ms=TIME_MS)
    safe = world.bench.log.index.spans(1)[-1].end_offset
    rewrite = world.plan(replace(POLICY, keyed={1: KeyPolicy(safe_offset=safe)}))
    assert rewrite is not None
    world.apply(rewrite)
    compacted = world.bench.log.find_compacted(1, 0)
    assert compacted.end_offset == safe

    while (rewrite := world.plan(replace(POLICY, upload_before_ms=TIME_MS + 1))) is not None:
        world.apply(rewrite)

    spans = world.bench.log.index.spans(1)
    assert {span.segment.place for span in spans if span.end_offset <= safe} == {Place.REMOTE}
    assert world.bench.log.find_compacted(1, 0) == compacted
    assert world.bench.reopened().log.find_compacted(1, 0) == compacted


def test_messages_younger_than_the_lag_of_a_topic_are_left_alone() -> None:
    world = on_disk()
    for number in range(200):
        publish_keyed(world.bench, [("k", payload(number))], time_ms=TIME_MS + number)
    spans = world.bench.log.index.spans(1)
    before_ms = spans[2].last_ms
    keyed = {1: KeyPolicy(safe_offset=spans[-1].end_offset, before_ms=before_ms)}

    rewrite = world.plan(replace(POLICY, keyed=keyed))

    assert rewrite is not None
    assert rewrite.spans == {1: spans[:2]}


@pytest.mark.parametrize("grace_over", [False, True])
def test_a_tombstone_deletes_its_key_and_goes_after_its_grace(grace_over: bool) -> None:
    world = on_disk()
    publish_keyed(world.bench, [("a", b"1"), ("b", b"1")], time_ms=TIME_MS)
    publish_keyed(world.bench, [("a", b"")], time_ms=TIME_MS + 10)
    for number in range(100):
        publish_keyed(world.bench, [("fill", payload(number))], time_ms=TIME_MS + 20)
    safe = world.bench.log.index.spans(1)[0].end_offset
    before_ms = TIME_MS + (11 if grace_over else 10)
    rewrite = world.plan(
        replace(POLICY, keyed={1: KeyPolicy(safe_offset=safe, tombstones_before_ms=before_ms)})
    )
    assert rewrite is not None
    world.apply(rewrite)

    rows = [row for row in read_keyed(world.bench) if row[1] in ("a", "b")]
    expected = [(1, "b", b"1"), (2, "a", b"")]
    assert rows == (expected[:1] if grace_over else expected)


def test_messages_from_the_safe_offset_on_are_left_alone() -> None:
    world = on_disk()
    for number in range(200):
        publish_keyed(world.bench, [("k", payload(number))], time_ms=TIME_MS)
    spans = world.bench.log.index.spans(1)
    safe = spans[1].end_offset + 1
    rewrite = world.plan(replace(POLICY, keyed={1: KeyPolicy(safe_offset=safe)}))
    assert rewrite is not None
    world.apply(rewrite)

    offsets = [row[0] for row in read_keyed(world.bench)]
    assert offsets == [spans[1].end_offset - 1, *range(spans[1].end_offset, 200)]


def test_nothing_is_decided_before_the_last_rewrite_is_in_force() -> None:
    world = on_disk()
    for number in range(60):
        for topic in range(1, 11):
            world.bench.append(topic, payload(number))
        world.bench.commit()
    rewrite = world.plan()
    assert rewrite is not None
    rewrite.run()
    world.bench.log.rewritten(rewrite)

    assert world.plan() is None
    assert world.bench.log.wants_checkpoint


def test_a_checkpoint_that_trims_while_a_rewrite_runs_wins() -> None:
    world = on_disk()
    for number in range(60):
        for topic in range(1, 11):
            world.bench.append(topic, payload(number))
        world.bench.commit()
    rewrite = world.plan()
    assert rewrite is not None
    horizon = {**dict.fromkeys(range(1, 10), 0), 1: 5}
    rewrite.run()
    world.bench.checkpoint(b"state", horizon)
    world.bench.log.rewritten(rewrite)
    world.bench.checkpoint(b"state", horizon)

    assert world.bench.log.first_offset(1) == 5
    assert world.bench.read(1, 5) == [(n, payload(n)) for n in range(5, 60)]
    assert world.bench.read(2) == [(n, payload(n)) for n in range(60)]
    assert 10 not in world.bench.log.state().topics


def test_a_corrupt_segment_is_left_as_it_is() -> None:
    world = on_disk()
    for number in range(60):
        for topic in range(1, 11):
            world.bench.append(topic, payload(number))
        world.bench.commit()
    rewrite = world.plan()
    assert rewrite is not None
    [segment] = rewrite.segments
    world.disk.flip(segment.name, 4_000)
    before = world.disk.names("segments")
    with pytest.raises(CorruptedError):
        rewrite.run()
    world.bench.log.rewrite_failed(rewrite)

    assert world.disk.names("segments") == before
    following = world.plan()
    assert following is None or segment not in following.segments


@pytest.mark.parametrize("action", ["create", "write", "sync"])
def test_a_rewrite_that_fails_leaves_nothing_behind(action: Change) -> None:
    world = on_disk()
    for number in range(60):
        for topic in range(1, 11):
            world.bench.append(topic, payload(number))
        world.bench.commit()
    before = world.disk.names("segments")
    rewrite = world.plan()
    assert rewrite is not None
    world.disk.fail(Fault(actions=[action]))
    with pytest.raises(OSError, match="error"):
        rewrite.run()

    assert world.disk.names("segments") == before
    assert world.bench.payloads(1) == [payload(n) for n in range(60)]


def test_stopping_anywhere_in_a_rewrite_loses_nothing() -> None:
    def run(crash_at: int) -> tuple[FaultyDisk, bool]:
        world = on_disk()
        for number in range(30):
            for topic in range(1, 7):
                world.bench.append(topic, payload(number))
            world.bench.commit()
        world.disk.crash_at(len(world.disk.operations) + crash_at)
        rewrite = world.plan()
        assert rewrite is not None
        try:
            world.apply(rewrite)
        except Crash:
            return world.disk, True
        return world.disk, False

    crash_at = 0
    stopped = True
    while stopped:
        disk, stopped = run(crash_at)
        for keep in ("none", "all", "torn"):
            again = Bench(FileBackend(disk.reopen(keep, seed=crash_at)))
            for topic in range(1, 7):
                assert again.payloads(topic) == [payload(n) for n in range(30)]
            again.publish(1, b"on it goes")
            assert len(again.reopened().payloads(1)) == 31
        crash_at += 1
    assert crash_at > 8


def test_a_rewrite_pauses_after_every_step() -> None:
    world = on_disk(LogOptions(segment_bytes=8 * 2**20))
    for number in range(1_000):
        world.bench.append(1, bytes(10_000))
        world.bench.append(2, bytes(10_000))
        world.bench.append(number % 100 + 3, b"x")
        if number % 50 == 49:
            world.bench.commit()
    rewrite = world.plan(replace(POLICY, density_min=0.9))
    assert rewrite is not None
    pauses: list[int] = []
    rewrite.run(pauses.append)

    assert len(pauses) >= 8
    assert max(pauses) < 3 * 2**20
