"""A disk that is full of messages or of other files, with crashes and errors."""

import errno
from contextlib import suppress

import pytest
from tests.crash.business import BEGIN_MS
from tests.crash.conftest import WAYS
from tests.crash.life import START_MS, Answer, Inbox, Life

from ister.base import EARLIEST, AckSettings, StreamSettings
from ister.base.errors import DiskFullError, IsterError, StorageFailedError, StorageUncertainError
from ister.broker import Membership, SubscribeOptions
from ister.codec import Batch, encode
from ister.testing import Crash, Fault, SmallDisk

TOPIC, RARE = "/default/a", "/default/rare"
CAPACITY_BYTES = 80 * 1024
KEPT_BYTES = 8 * 1024
MESSAGE_BYTES = 700
SENDS = 200
# Operations before the topics and the subscription are there.
BEGINNING = 20
# More than ever lies between two tries of the broker.
SECONDS_MAX = 10


class Business:
    """A producer that never stops and a consumer that keeps up, on a topic with short retention.

    A second topic keeps everything and has a message now and then, so that hardly any journal
    file is ever empty.
    """

    def __init__(self, disk: SmallDisk, *, starts: int = 0) -> None:
        self.disk = disk
        self.life = Life(disk, now_ms=BEGIN_MS + starts * START_MS)
        self.acknowledged: dict[str, dict[int, bytes]] = {TOPIC: {}, RARE: {}}
        self.refused: list[IsterError] = []
        # Up to where acknowledgements were confirmed.
        self.confirmed = 0
        self._number = 0
        self._starts = starts
        self._inbox = Inbox()
        self._membership: Membership | None = None

    def begin(self) -> None:
        settings = StreamSettings(max_bytes=KEPT_BYTES)
        for name, stream in ((TOPIC, settings), (RARE, StreamSettings())):
            answer = self.ask(
                lambda tell, name=name, stream=stream: self.life.broker.create_topic(
                    name, tell, kind="stream", stream=stream
                )
            )
            assert answer.value is None, answer.value
        self.consume()

    def consume(self) -> None:
        options = SubscribeOptions(
            topic=TOPIC,
            subscription="s",
            consumer="c",
            filters={},
            start=EARLIEST,
            acks=AckSettings(),
        )
        self._membership, self._inbox = self.life.attach(options)

    def ask(self, request: object) -> Answer:
        answer = self.life.ask(request)  # type: ignore[arg-type]
        self.life.settle()
        return answer

    def send(self, topic: str = TOPIC) -> bool:
        """Send a message; return whether it was acknowledged."""
        self._number += 1
        payload = b"%d.%d " % (self._starts, self._number)
        payload = payload.ljust(MESSAGE_BYTES if topic == TOPIC else 50, b".")
        sequence = self._starts * SENDS * 100 + self._number
        batch = Batch(b"".join(encode([payload], producer=b"p", first_sequence=sequence)))
        producer = self.life.broker.open_producer(topic, "p")
        answer = self.ask(lambda tell: self.life.broker.store(producer, batch, tell))
        self.life.broker.close_producer(producer)
        error = answer.value
        if error is not None:
            assert isinstance(error, StorageFailedError | StorageUncertainError), error
            self.refused.append(error)
            return False
        self.acknowledged[topic][batch.base_offset] = payload
        return True

    def ack(self) -> None:
        """Acknowledge all delivered messages, with confirmation."""
        assert self._membership is not None
        runs = [(d.lease, d.offset, d.offset + 1) for d in self._inbox.deliveries]
        self._inbox.deliveries.clear()
        self._membership.ack(runs)
        answer = self.ask(self._membership.confirm)
        if answer.value is None and runs:
            self.confirmed = max(self.confirmed, *(end for _, _, end in runs))

    def pass_one_second(self) -> None:
        self.life.pass_time(1.0)
        self.life.tidy()

    def work(self) -> None:
        """Produce and consume for a while."""
        for number in range(SENDS):
            self.send()
            if number % 5 == 0:
                self.ack()
                self.send(RARE)
            if number % 12 == 0:
                self.pass_one_second()

    def send_at_last(self, topic: str = TOPIC) -> None:
        """Send until a message is accepted; fail if the broker does not recover by itself."""
        for _ in range(SECONDS_MAX):
            if self.send(topic):
                return
            self.pass_one_second()
        raise AssertionError(f"a message is still refused: {self.refused[-1]}")

    def check(self) -> None:
        """Fail unless all acknowledged messages are stored that retention has to keep."""
        for name, acknowledged in self.acknowledged.items():
            topic = self.life.broker.streams.by_name[name]
            found = {
                batch.base_offset + slot: bytes(payload)
                for batch in self.life.read(topic).values()
                for slot, payload in enumerate(batch.payloads)
            }
            first, end = topic.first_offset, topic.next_offset
            assert list(found) == list(range(first, end)), name
            assert end > max(acknowledged, default=-1), name
            assert all(found[o] == p for o, p in acknowledged.items() if o >= first), name
            if name == TOPIC:
                kept = sum(map(len, found.values()))
                assert not first or kept > KEPT_BYTES // 2, "too much was dropped"
            else:
                assert first == 0
        [durable] = self.life.broker.durables.get(TOPIC, "s")
        [cursor] = durable.record.cursors.values()
        assert cursor.floor >= self.confirmed


def run_business(disk: SmallDisk) -> Business:
    """Produce and consume on a disk until it crashes, or to the end."""
    business = Business(disk)
    with suppress(Crash):
        business.begin()
        business.work()
    return business


def restart(business: Business, keep: str, seed: int) -> Business:
    """Return the business after a crash: a new broker, and what the former one acknowledged."""
    disk = business.disk.reopen(keep, seed=seed)  # type: ignore[arg-type]
    found = Business(disk, starts=business._starts + 1)
    found.life.settle()
    found.acknowledged = {name: dict(sent) for name, sent in business.acknowledged.items()}
    found.confirmed = business.confirmed
    return found


def test_a_topic_with_retention_never_fills_its_disk_for_good() -> None:
    disk = SmallDisk(CAPACITY_BYTES)
    business = run_business(disk)
    business.send_at_last()
    business.check()
    sent = len(business.acknowledged[TOPIC])

    assert business.refused, "the disk was never full"
    assert sent * MESSAGE_BYTES > CAPACITY_BYTES
    assert business.confirmed > sent // 2


def test_retention_keeps_up_with_a_producer_that_fills_the_disk_within_a_second() -> None:
    business = Business(SmallDisk(CAPACITY_BYTES))
    business.begin()
    for _ in range(SENDS):
        business.send()
        business.life.pass_time(0.5 / SENDS)
        business.life.tidy()
    business.check()

    assert business.refused == []
    assert len(business.acknowledged[TOPIC]) * MESSAGE_BYTES > CAPACITY_BYTES


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_a_crash_at_any_time_on_a_disk_that_fills_up_loses_nothing(way: int) -> None:
    keep, seed = WAYS[way]
    whole = SmallDisk(CAPACITY_BYTES)
    run_business(whole)
    # Each way visits other operations.
    for number in range(BEGINNING + way, len(whole.operations), 7 * len(WAYS)):
        disk = SmallDisk(CAPACITY_BYTES)
        disk.crash_at(number)
        try:
            found = restart(run_business(disk), keep, seed)
            found.check()
            found.send_at_last()
            found.send_at_last(RARE)
            found.check()
        except Exception as error:
            error.add_note(f"operation {number}: {disk.operations[-1]}, found {keep!r}, {seed}")
            raise


def fill_with_other_files() -> Business:
    """Return the business on a disk that other files have filled."""
    business = Business(SmallDisk(CAPACITY_BYTES))
    business.begin()
    for _ in range(20):
        business.send()
    # Until neither retention nor compaction finds more to free.
    for number in range(SECONDS_MAX):
        business.disk.fill(f"foreign/{number}")
        while business.send():
            pass
        business.pass_one_second()
    return business


def test_a_disk_full_of_other_files_refuses_only_messages() -> None:
    business = fill_with_other_files()
    broker, storage = business.life.broker, business.life.storage
    topic = broker.streams.by_name[TOPIC]
    assert isinstance(business.refused[-1], DiskFullError)
    # Enough for journal files, checkpoints and the removal of files to come and go.
    told: list[Exception | None] = []
    for _ in range(200):
        business.send()
        business.ack()
        storage.checkpoint(told.append)
        business.life.tidy()
    assert told == [None] * 200
    for _ in range(50):
        assert not business.send()
        business.pass_one_second()
    assert broker.streams.error.startswith("no space left for messages")
    trimmed = business.ask(lambda tell: topic.trim(topic.next_offset - 1, tell))
    deleted = business.ask(lambda tell: broker.delete_topic(RARE, tell))

    assert trimmed.value is None
    assert deleted.value is None
    assert topic.first_offset == topic.next_offset - 1
    assert business.confirmed == topic.next_offset


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_a_broker_starts_on_a_full_disk_and_accepts_messages_when_space_is_free(way: int) -> None:
    business = fill_with_other_files()
    keep, seed = WAYS[way]
    for _ in range(3):
        business = restart(business, keep, seed)
        # Whatever the start has freed.
        with suppress(OSError):
            business.disk.fill(f"foreign/{business._starts}")
        business.check()
        business.consume()
        business.ack()
        business.pass_one_second()
    assert business.confirmed == len(business.acknowledged[TOPIC])
    for name in business.disk.names("foreign"):
        business.disk.remove(name)
    business.send_at_last()
    business.check()


def test_a_broker_recovers_from_an_error_at_any_operation_on_a_full_disk() -> None:
    whole = SmallDisk(CAPACITY_BYTES)
    run_business(whole)
    for number in range(BEGINNING, len(whole.operations), 11):
        disk = SmallDisk(CAPACITY_BYTES)
        disk.fail(Fault(errno.ENOSPC, at=number, lasting=number % 2 == 0))
        business = run_business(disk)
        disk.heal()
        try:
            business.send_at_last()
            business.check()
            again = restart(business, "none", 0)
            again.check()
            again.send_at_last()
        except Exception as error:
            error.add_note(f"operation {number}: {disk.operations[number]}")
            raise
