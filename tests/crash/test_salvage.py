"""A log is damaged anywhere, and what is salvaged of it is true, and the rest is listed."""

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from tests.crash.machine import content
from tests.unit.log.harness import TIME_MS

from ister.base import AckSettings, StreamSettings
from ister.base.errors import EncryptionKeyError
from ister.broker import SalvagedStreams, StoppedLog, carry_out, plan_salvage
from ister.broker.state.changes import (
    Acked,
    Change,
    CursorMoved,
    SubscriptionCreated,
    TopicCreated,
    TopicDeleted,
    TopicTrimmed,
    encode_changes,
)
from ister.codec import Batch, encode
from ister.log import (
    CompactionPolicy,
    FileBackend,
    KeyPolicy,
    Kind,
    LogOptions,
    SeriesPart,
    check_folder,
    plan_compaction,
)
from ister.objects import FileKeyring
from ister.testing import Crash, FaultyDisk
from ister.testing.disk import Action, Fault

OPTIONS = LogOptions(
    segment_bytes=3_000, extent_bytes=700, allocate_bytes=4_096, now_ms=lambda: TIME_MS
)
TOPICS = {1: "/default/a", 2: "/default/b", 3: "/default/keyed", 4: "/default/late"}
KEYED = 3
SEEDS = range(60)

Rows = dict[int, tuple[bytes, int]]


@dataclass
class Life:
    """A log that is used in every way, and what was ever published in it."""

    seed: int
    options: LogOptions = OPTIONS
    disk: FaultyDisk = field(default_factory=FaultyDisk)
    published: dict[int, Rows] = field(default_factory=dict)
    serial: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.stopped = StoppedLog(FileBackend(self.disk), self.options)
        keyed = StreamSettings(retention="compact")
        self.stopped.record([TopicCreated(1, TOPICS[1], StreamSettings())])
        self.stopped.record([TopicCreated(2, TOPICS[2], StreamSettings())])
        self.stopped.record([TopicCreated(3, TOPICS[3], keyed)])
        self.stopped.record([TopicCreated(5, "/default/gone", StreamSettings())])
        for number, topic in enumerate((1, 2, 3), start=1):
            created = SubscriptionCreated(
                number, TOPICS[topic], "s", "shared", "round_robin", {}, [], AckSettings()
            )
            self.stopped.record([created, CursorMoved(number, topic, 0)])

    def batch(self, topic: int, after: int = 0) -> Batch:
        """Return the next batch of a topic."""
        first = self.stopped.state.topics[topic].next_offset + after
        count = self.chance.randint(1, 6)
        self.serial += 1
        payloads = [b"%d/%d." % (self.serial, n) * self.chance.randint(1, 9) for n in range(count)]
        keys = [f"k{self.chance.randrange(4)}" for _ in range(count)]
        batch = Batch(b"".join(encode(payloads, producer=b"p", first_sequence=first, keys=keys)))
        batch.stamp(first, TIME_MS + self.serial)
        return batch

    def publish(self, *, fails: bool = False) -> None:
        topic = self.chance.choice([t for t in (1, 1, 2, 3, 4, 5) if t in self.topics])
        batch = self.batch(topic)
        self.stopped.log.append(
            Kind.BATCH,
            topic,
            [batch.stamp_bytes(), batch.tail],
            count=batch.count,
            base_offset=batch.base_offset,
            time_ms=batch.publish_time_ms,
        )
        if fails:
            self.fail()
            return
        self.stopped.commit()
        self.note(topic, batch)

    def fail(self) -> None:
        """Have the disk fail while a group is written or synced."""
        log = self.stopped.log
        group = log.take()
        assert group is not None
        action: Action = self.chance.choice(["write", "sync"])
        self.disk.fail(Fault(actions=[action], prefix="segments/"))
        with suppress(OSError):
            log.write(group)
            log.sync(group)
            raise AssertionError("the disk does not fail")
        self.disk.heal()
        log.failed(group)
        log.recover()

    def commit(self) -> None:
        """Publish to two topics at once, as a transaction or as a series."""
        batches = {topic: self.batch(topic) for topic in (1, 2)}
        changes = encode_changes([Acked(1, 1, [(0, 1)])])
        if self.chance.random() < 0.5:
            rows = [
                (t, b.base_offset, b.publish_time_ms, b.count, (b.stamp_bytes(), b.tail))
                for t, b in batches.items()
            ]
            self.stopped.log.append_transaction(rows, changes)
        else:
            parts = [
                SeriesPart(
                    t,
                    b.base_offset,
                    b.publish_time_ms,
                    b.count,
                    b.size_bytes,
                    lambda b=b: (b.stamp_bytes(), b.tail),  # type: ignore[misc]
                )
                for t, b in batches.items()
            ]
            self.stopped.log.append_series(parts, changes)
        self.stopped.commit()
        for topic, batch in batches.items():
            self.note(topic, batch)

    def note(self, topic: int, batch: Batch) -> None:
        self.stopped.state.on_batch(topic, batch)
        rows = self.published.setdefault(topic, {})
        for offset, payload in zip(batch.offsets, batch.payloads, strict=True):
            rows[offset] = bytes(payload), batch.publish_time_ms

    @property
    def topics(self) -> set[int]:
        return set(self.stopped.state.topics)

    def change(self) -> None:
        state, chance = self.stopped.state, self.chance
        topic = chance.choice([1, 2])
        end = state.topics[topic].next_offset
        change: Change = chance.choice(
            [
                Acked(topic, topic, [(0, chance.randint(0, end))]),
                TopicTrimmed(topic, chance.randint(0, end // 3)),
                TopicDeleted(5) if chance.random() < 0.3 else TopicCreated(4, TOPICS[4], STREAM),
            ]
        )
        self.stopped.record([change])

    def compact(self) -> None:
        self.stopped.checkpoint()
        log = self.stopped.log
        safe = self.stopped.state.topics[KEYED].next_offset - 1
        policy = CompactionPolicy(
            keyed={KEYED: KeyPolicy(safe_offset=safe)},
            dirty_share_min=0.1,
            small_count_min=2,
            live_share_min=0.9,
        )
        rewrite = plan_compaction(log, log.state(), self.stopped.horizon, policy)
        if rewrite is not None:
            rewrite.run()
            log.rewritten(rewrite)
            if self.chance.random() < 0.7:
                self.stopped.checkpoint()

    def restart(self) -> None:
        self.stopped.close()
        self.disk = self.disk.reopen("all")
        self.stopped = StoppedLog(FileBackend(self.disk), self.options)

    def live(self, steps: int = 45, *, clean: bool = True) -> FaultyDisk:
        """Use it, stop it as a broker does or kill it, and return its disk."""
        acts: list[Callable[[], None]] = [
            *[self.publish] * 9,
            self.commit,
            self.commit,
            self.change,
            self.change,
            self.compact,
            self.restart,
            lambda: self.publish(fails=True),
        ]
        for _ in range(steps):
            self.chance.choice(acts)()
        if clean:
            self.stopped.checkpoint()
            self.stopped.close()
        return self.disk.reopen("none")


STREAM = StreamSettings()


def salvage(disk: FaultyDisk, options: LogOptions = OPTIONS) -> tuple[FaultyDisk, SalvagedStreams]:
    target = FaultyDisk()
    plan = plan_salvage(FileBackend(disk), options)
    report = carry_out(plan, FileBackend(target), options, on_progress=lambda _, __: None)
    return target, report


def read(stopped: StoppedLog) -> dict[int, Rows]:
    """Return all messages that can be read, by topic; as a broker reads them."""
    found: dict[int, Rows] = {}
    for record in stopped.state.topics.values():
        rows = found[record.topic] = {}
        offset = record.first_offset
        while offset < record.next_offset:
            plan = stopped.log.plan(record.topic, offset, 1_000)
            if plan is None:
                break
            for batch in plan.run():
                for at, payload in zip(batch.offsets, batch.payloads, strict=True):
                    if at >= record.first_offset:
                        rows[at] = bytes(payload), batch.publish_time_ms
                offset = batch.offsets[-1] + 1
    return found


def opened(disk: FaultyDisk, options: LogOptions = OPTIONS) -> StoppedLog:
    return StoppedLog(FileBackend(disk.reopen("none")), options)


def damage(disk: FaultyDisk, chance: random.Random) -> str:
    """Do something to a file, and say what."""
    files = {n: d for n, d in content(disk).items() if d and not n.startswith("reserve")}
    name = chance.choice(sorted(files))
    size = len(files[name])
    how = chance.choice(["flip", "flip", "truncate", "delete", "zero"])
    at = chance.randrange(size)
    if how == "flip":
        disk.flip(name, at, bit=chance.randrange(8))
    elif how == "truncate":
        disk.open(name).truncate(at)
    elif how == "delete":
        disk.remove(name)
    else:
        end = min(size, at + chance.choice([1, 64, 1_000]))
        file = disk.open(name)
        file.write(at, [bytes(end - at)])
        file.sync()
    return f"{how} {name} at {at} of {size}"


def check(life: Life, before: dict[int, Rows], disk: FaultyDisk, report: SalvagedStreams) -> None:
    """Hold what was salvaged against what was published, and what could be read before."""
    assert check_folder(FileBackend(disk), keyring=life.options.ciphers).problems == []
    stopped = opened(disk, life.options)
    after = read(stopped)
    names = {record.topic: record.name for record in stopped.state.topics.values()}
    for topic, rows in after.items():
        known = life.published.get(topic, {})
        assert rows.items() <= known.items(), f"topic {topic} has what nobody has published"
    for topic, rows in before.items():
        if topic not in names:
            assert not report.is_whole, f"topic {topic} is gone silently"
            continue
        lost = [(one.start, one.end) for one in report.lost if one.topic == names[topic]]
        missing = [o for o in rows.keys() - after[topic].keys() if not is_within(o, lost)]
        if missing and any(end is None for _, end in report.lost_entries):
            missing = [o for o in missing if o < stopped.state.topics[topic].next_offset]
        assert not missing, f"of topic {topic} {sorted(missing)} are missing silently"
        there = [o for o in after[topic] if is_within(o, lost)]
        assert not there, f"of topic {topic} {there} are not lost at all"
    stopped.close()


def is_within(offset: int, ranges: list[tuple[int, int]]) -> bool:
    return any(start <= offset < end for start, end in ranges)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_salvaged_is_true_and_what_is_not_is_listed(seed: int) -> None:
    life = Life(seed)
    disk = life.live()
    before = read(opened(disk))
    for number in range(12):
        chance = random.Random(seed * 1_000 + number)
        damaged = disk.reopen("none")
        what = damage(damaged, chance)
        found = content(damaged)
        target, report = salvage(damaged)

        assert content(damaged) == found, "the source has changed"
        try:
            check(life, before, target, report)
        except BaseException as error:
            error.add_note(f"after {what}: {report}")
            raise


@pytest.mark.parametrize("seed", range(100, 130))
def test_after_a_crash_only_the_end_may_be_missing_silently(seed: int) -> None:
    life = Life(seed)
    disk = life.live(clean=False)
    before = read(opened(disk))
    for number in range(10):
        chance = random.Random(seed * 1_000 + number)
        damaged = disk.reopen("none")
        what = damage(damaged, chance)
        target, report = salvage(damaged)

        stopped = opened(target)
        ends = {topic: one.next_offset for topic, one in stopped.state.topics.items()}
        kept = {
            topic: {offset: row for offset, row in rows.items() if offset < ends.get(topic, 0)}
            for topic, rows in before.items()
        }
        try:
            check(life, kept, target, report)
        except BaseException as error:
            error.add_note(f"after {what}: {report}")
            raise


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_an_intact_log_is_salvaged_whole(seed: int, *, clean: bool) -> None:
    life = Life(seed)
    disk = life.live(clean=clean)
    source = opened(disk)
    target, report = salvage(disk)

    assert report.is_whole
    assert (report.problems, report.notes) == ([], [])
    new = opened(target)
    assert read(new) == read(source)
    assert new.state.encode() == source.state.encode()
    assert new.log.epoch > source.log.epoch - 1


@pytest.mark.parametrize("seed", range(12))
def test_what_was_salvaged_once_is_salvaged_again_with_nothing_lost(seed: int) -> None:
    damaged = Life(seed).live()
    chance = random.Random(seed)
    for _ in range(3):
        damage(damaged, chance)
    once, _ = salvage(damaged)
    twice, report = salvage(once.reopen("none"))

    assert report.is_whole
    assert read(opened(twice)) == read(opened(once))


@pytest.mark.parametrize("seed", range(20))
def test_much_damage_never_leads_to_messages_that_nobody_has_published(seed: int) -> None:
    life = Life(seed)
    disk = life.live()
    for number in range(10):
        chance = random.Random(seed * 1_000 + number)
        damaged = disk.reopen("none")
        done = [damage(damaged, chance) for _ in range(4)]
        target, report = salvage(damaged)

        assert check_folder(FileBackend(target)).problems == []
        for topic, rows in read(opened(target)).items():
            known = life.published.get(topic, {})
            assert rows.items() <= known.items(), f"topic {topic} after {done}: {report}"


def test_a_salvage_that_is_killed_leaves_nothing_or_all_of_it() -> None:
    disk = Life(5).live()
    damage(disk, random.Random(5))
    whole, _ = salvage(disk)
    wanted = read(opened(whole))

    for number in range(len(whole.operations)):
        target = FaultyDisk()
        target.crash_at(number)
        plan = plan_salvage(FileBackend(disk), OPTIONS)
        with pytest.raises(Crash):
            carry_out(plan, FileBackend(target), OPTIONS, on_progress=lambda _, __: None)
        found = opened(target.reopen("torn", seed=number))
        assert read(found) in ({}, wanted), f"killed at {number}"


def test_an_encrypted_log_is_salvaged_with_its_keys_and_not_without(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    keyring = FileKeyring.create(folder / "keys.json")
    options = LogOptions(
        segment_bytes=3_000,
        extent_bytes=700,
        allocate_bytes=4_096,
        ciphers=keyring,
        accept_plain=False,
        now_ms=lambda: TIME_MS,
    )
    life = Life(3, options)
    disk = life.live()
    before = read(opened(disk, options))
    for number in range(20):
        damaged = disk.reopen("none")
        damage(damaged, random.Random(number))
        target, report = salvage(damaged, options)
        check(life, before, target, report)
        assert not any(b"/0." * 3 in data for data in content(target).values())
    with pytest.raises(EncryptionKeyError):
        salvage(disk)
