"""Taking over from an owner that does not stop writing: a fence some numbers ahead of its end."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.log.harness import SMALL, Bench

from ister.base.errors import CorruptedError, StorageTakenError
from ister.log import Buffer, ChunkBackend, LogOptions
from ister.log.files.fences import FENCE_ROLE, encode_far_fence
from ister.log.files.scan import header_of
from ister.log.files.segment import chunk_name, number_of
from ister.log.journal.chunks import FAR_FENCE_DISTANCES, ChunkJournal
from ister.objects import FileKeyring, LocalStore
from ister.testing import FaultyDisk


class RushedStore(LocalStore):
    """Calls `rush` before the requests of a start, and counts them.

    Not before those that are made many at once, to read what was there at its beginning.
    """

    def __init__(self, disk: FaultyDisk, rush: Callable[[], object]) -> None:
        super().__init__(disk)
        self.requests = 0
        self._rush = rush

    def put(self, name: str, data: Buffer) -> None:
        self._count()
        super().put(name, data)

    def get(self, name: str) -> bytes:
        self._count()
        return super().get(name)

    def get_range(self, name: str, position: int, size_bytes: int) -> bytes:
        self.requests += 1
        return super().get_range(name, position, size_bytes)

    def names(self, prefix: str) -> list[str]:
        self._count()
        return super().names(prefix)

    def _count(self) -> None:
        self.requests += 1
        self._rush()


class Writer:
    """An owner that publishes whenever it is let, until it has lost its log."""

    def __init__(self, bench: Bench, *, at_once: int) -> None:
        self.bench = bench
        self.acknowledged: list[bytes] = []
        self.lost = False
        self._at_once = at_once

    def write(self) -> None:
        """Publish some messages, each in a chunk of its own."""
        for _ in range(self._at_once):
            if self.lost:
                return
            payload = b"%d" % len(self.acknowledged)
            try:
                self.bench.publish(1, payload)
            except StorageTakenError:
                self.lost = True
                return
            self.acknowledged.append(payload)


def in_store(disk: FaultyDisk, options: LogOptions = SMALL) -> Bench:
    return Bench(ChunkBackend(LocalStore(disk), reads_at_once=1), options)


def far_fences(disk: FaultyDisk) -> list[int]:
    return [
        number_of(name)
        for name in disk.names("chunks")
        if (header := header_of((file := disk.open(name)).read(0, file.size()), name)) is not None
        and header.role == FENCE_ROLE
    ]


def take_over(disk: FaultyDisk, *, at_once: int) -> tuple[Writer, Bench]:
    """Take over from an owner that publishes `at_once` messages for each request of the start."""
    writer = Writer(in_store(disk), at_once=at_once)
    writer.write()
    return writer, Bench(ChunkBackend(RushedStore(disk, writer.write), reads_at_once=1))


@pytest.mark.parametrize("at_once", [1, 2, 7, 40, 200])
def test_an_owner_that_never_pauses_is_taken_over_within_few_requests(at_once: int) -> None:
    disk = FaultyDisk()
    writer = Writer(in_store(disk), at_once=at_once)
    store = RushedStore(disk, writer.write)

    new = Bench(ChunkBackend(store, reads_at_once=1))

    assert writer.lost
    # Each chunk is read. Where the two race for a number there is a fence that comes too late, and
    # a look at what is there instead.
    distance = next(d for d in FAR_FENCE_DISTANCES if d > 2 * at_once)
    assert store.requests < len(writer.acknowledged) + 2 * distance + 20
    assert len(far_fences(disk)) == 1
    assert new.payloads(1) == writer.acknowledged
    new.publish(1, b"mine")
    assert in_store(disk).payloads(1) == [*writer.acknowledged, b"mine"]


def test_a_quiet_owner_is_taken_over_without_a_far_fence() -> None:
    disk = FaultyDisk()
    in_store(disk).publish(1, b"a")
    in_store(disk).publish(1, b"b")

    assert far_fences(disk) == []
    assert in_store(disk).payloads(1) == [b"a", b"b"]


def paused_takeover(disk: FaultyDisk) -> tuple[Bench, Bench]:
    """Take over from an owner that wins one race and then pauses: the far fence stays ahead."""
    old = in_store(disk)
    raced = False

    def race() -> None:
        nonlocal raced
        if not raced:
            raced = True
            old.publish(1, b"in time")

    class Racing(LocalStore):
        def put(self, name: str, data: Buffer) -> None:
            if name.startswith("chunks/"):
                race()
            super().put(name, data)

    return old, Bench(ChunkBackend(Racing(disk), reads_at_once=1))


def test_an_owner_steps_over_its_own_far_fence() -> None:
    disk = FaultyDisk()
    old, new = paused_takeover(disk)
    [far] = far_fences(disk)
    assert far > max(n for n in map(number_of, disk.names("chunks")) if n != far) + 1
    expected = [b"in time"]
    while f"chunks/{far + 3:020d}" not in disk.names("chunks"):
        new.publish(1, b"x")
        expected.append(b"x")
        assert in_store_copy(disk).payloads(1) == expected

    with pytest.raises(StorageTakenError):
        old.publish(1, b"too late")
    again = in_store(disk)
    assert again.payloads(1) == expected
    assert again.numbers == list(range(1, len(expected) + 1))


def in_store_copy(disk: FaultyDisk) -> Bench:
    """Open the log as a start would find it now, without changing it."""
    return in_store(disk.reopen("none"))


def test_a_later_owner_steps_over_the_far_fence_of_a_former_one() -> None:
    disk = FaultyDisk()
    _, second = paused_takeover(disk)
    second.publish(1, b"2")
    [far] = far_fences(disk)
    third = in_store(disk)
    for _ in range(far):
        third.publish(1, b"3")
    third.checkpoint(b"state")
    third.publish(1, b"4")

    assert in_store(disk).payloads(1) == [b"in time", b"2", *[b"3"] * far, b"4"]
    with pytest.raises(StorageTakenError):
        second.publish(1, b"too late")


def test_a_far_fence_that_arrives_late_from_a_dead_start_stops_nobody() -> None:
    disk = FaultyDisk()
    bench = in_store(disk)
    bench.publish(1, b"a")
    journal = bench.log._journal
    assert isinstance(journal, ChunkJournal)
    number = 4
    disk.put(chunk_name(number), encode_far_fence(number, owner="x", epoch=journal.epoch, now_ms=0))
    for _ in range(4):
        bench.publish(1, b"b")
    bench.log.check_owner()

    assert bench.payloads(1) == [b"a", *[b"b"] * 4]
    assert in_store(disk).payloads(1) == [b"a", *[b"b"] * 4]


def test_an_idle_owner_behind_an_old_far_fence_notices_a_take_over() -> None:
    disk = FaultyDisk()
    bench = in_store(disk)
    bench.publish(1, b"a")
    journal = bench.log._journal
    assert isinstance(journal, ChunkJournal)
    number = number_of(disk.names("chunks")[-1]) + 1
    disk.put(chunk_name(number), encode_far_fence(number, owner="x", epoch=journal.epoch, now_ms=0))
    bench.log.check_owner()
    in_store(disk)

    with pytest.raises(StorageTakenError):
        bench.log.check_owner()


def test_an_owner_stops_at_the_far_fence_of_a_start_that_died_there() -> None:
    disk = FaultyDisk()
    old = in_store(disk)
    old.publish(1, b"a")
    number = number_of(disk.names("chunks")[-1]) + 3
    epoch = old.log.epoch + 1
    disk.put(chunk_name(number), encode_far_fence(number, owner="x", epoch=epoch, now_ms=0))
    old.publish(1, b"b")
    old.publish(1, b"c")

    with pytest.raises(StorageTakenError):
        old.publish(1, b"d")
    assert in_store(disk).payloads(1) == [b"a", b"b", b"c"]


def test_a_far_fence_outlives_the_checkpoints_of_the_new_owner() -> None:
    disk = FaultyDisk()
    writer, new = take_over(disk, at_once=3)
    [far] = far_fences(disk)
    for _ in range(3):
        new.publish(1, b"x")
        new.checkpoint(horizon={1: new.next_offsets[1]})
    in_store(disk).checkpoint(horizon={1: new.next_offsets[1]})

    # The number that the former owner tries next.
    assert far_fences(disk) == [far]
    with pytest.raises(StorageTakenError):
        writer.bench.log.recover()


def test_a_chunk_missing_in_front_of_others_is_corruption() -> None:
    disk = FaultyDisk()
    bench = in_store(disk)
    for _ in range(4):
        bench.publish(1, b"a")
    disk.remove(chunk_name(3))

    with pytest.raises(CorruptedError, match="missing") as caught:
        in_store(disk)
    assert caught.value.file == chunk_name(3)


def test_a_listing_without_an_older_chunk_is_read_again() -> None:
    disk = FaultyDisk()
    bench = in_store(disk)
    for number in range(4):
        bench.publish(1, b"%d" % number)
    hidden = [chunk_name(3)]

    class Hurried(LocalStore):
        """Misses a chunk once, as a folder may that is listed while files are made in it."""

        def names(self, prefix: str) -> list[str]:
            found = super().names(prefix)
            if prefix == "chunks/" and hidden:
                found.remove(hidden.pop())
            return found

    assert Bench(ChunkBackend(Hurried(disk))).payloads(1) == [b"0", b"1", b"2", b"3"]


def test_far_fences_made_before_there_were_keys_are_accepted(tmp_path: Path) -> None:
    disk = FaultyDisk()
    _, new = paused_takeover(disk)
    [far] = far_fences(disk)
    new.publish(1, b"plain")
    options = replace(SMALL, ciphers=FileKeyring.create(tmp_path / "keys.json"))
    keyed = in_store(disk, options)
    for _ in range(far):
        keyed.publish(1, b"secret")

    again = in_store(disk, options)
    assert again.payloads(1) == [b"in time", b"plain", *[b"secret"] * far]


def test_a_chunk_with_entries_that_says_it_is_a_fence_is_corruption() -> None:
    disk = FaultyDisk()
    bench = in_store(disk)
    bench.publish(1, b"a")
    number = number_of(disk.names("chunks")[-1]) + 1
    fence = encode_far_fence(number, owner="x", epoch=bench.log.epoch, now_ms=0)
    disk.put(chunk_name(number), fence + bytes(8))

    with pytest.raises(CorruptedError, match="fence"):
        in_store(disk)
