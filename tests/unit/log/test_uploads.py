"""The remote tier holds what a manifest names, whatever a crash or an error has left there."""

from dataclasses import dataclass, replace

import pytest
from tests.unit.log.harness import SMALL, TIME_MS, Bench, filler

from ister.log import CompactionPolicy, FileBackend, Place, plan_compaction
from ister.log.files.manifest import KEPT_COUNT
from ister.log.files.segment import (
    MANIFESTS,
    SNAPSHOTS,
    UPLOADS,
    number_of,
    segment_name,
    upload_name,
)
from ister.objects import LocalStore
from ister.testing import Crash, Fault, FaultyDisk
from ister.testing.disk import FaultyFile, Keep

payload = filler(100)
COUNT = 150
POLICY = CompactionPolicy(upload_before_ms=TIME_MS + COUNT)


class Tier:
    """A folder of a disk as a disk of its own, so that what stops the one stops both."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.url = "memory://tier"
        self._disk = disk

    def open(self, name: str) -> FaultyFile:
        return self._disk.open(f"tier/{name}")

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self._disk.put(f"tier/{name}", data)

    def names(self, folder: str) -> list[str]:
        return [name.removeprefix("tier/") for name in self._disk.names(f"tier/{folder}")]

    def remove(self, name: str) -> None:
        self._disk.remove(f"tier/{name}")


@dataclass
class Tiered:
    """A log on a disk with a remote tier."""

    disk: FaultyDisk

    def __post_init__(self) -> None:
        self.remote = LocalStore(Tier(self.disk))
        self.bench = Bench(FileBackend(self.disk), replace(SMALL, remote=self.remote))

    def upload(self) -> bool:
        """Move a segment to the tier, with its checkpoint; say whether there was one to move."""
        bench = self.bench
        horizon = {1: bench.log.first_offset(1)}
        rewrite = plan_compaction(bench.log, bench.log.state(), horizon, POLICY)
        if rewrite is None:
            return False
        rewrite.run()
        bench.log.rewritten(rewrite)
        bench.checkpoint(b"state", horizon)
        return True

    def stored(self) -> list[str]:
        """Return the objects of the tier."""
        return self.remote.names("segments/")

    def named(self) -> list[str]:
        """Return those that the log knows of."""
        rows = self.bench.log.segments
        return [segment_name(row.number) for row in rows if row.place is Place.REMOTE]

    def notes(self) -> list[str]:
        return self.disk.names(UPLOADS)

    def is_whole(self) -> bool:
        """Whether every message is there, from the first that was not dropped on."""
        first = self.bench.log.first_offset(1)
        return self.bench.read(1, first) == [(n, payload(n)) for n in range(first, COUNT)]


def filled() -> Tiered:
    world = Tiered(FaultyDisk())
    for number in range(COUNT):
        world.bench.publish(1, payload(number), time_ms=TIME_MS + number)
    return world


def test_notes_are_gone_when_a_manifest_has_named_what_they_are_about() -> None:
    world = filled()
    while world.upload():
        pass

    assert world.stored() == world.named() != []
    assert world.notes() == []


@pytest.mark.parametrize("keep", ["none", "all"])
def test_what_a_crash_leaves_in_the_tier_is_removed_by_a_checkpoint(keep: Keep) -> None:
    leftovers = crash_at = 0
    stopped = True
    while stopped:
        world = filled()
        world.disk.crash_at(len(world.disk.operations) + crash_at)
        try:
            world.upload()
            # Drops what was moved, and moves something else.
            world.bench.checkpoint(b"state", {1: COUNT // 2})
            world.upload()
            stopped = False
        except Crash:
            pass
        again = Tiered(world.disk.reopen(keep))
        leftovers += again.stored() != again.named()
        assert again.is_whole()
        again.bench.checkpoint(b"state", {1: again.bench.log.first_offset(1)})

        assert again.stored() == again.named(), crash_at
        assert again.notes() == []
        assert again.is_whole()
        crash_at += 1

    assert leftovers > 0, "no crash has left anything"


def test_objects_of_others_are_left_alone() -> None:
    stranger = filled()
    stranger.upload()
    [name] = stranger.stored()
    world = filled()
    # Noted by a process that did not come to make it before somebody else did.
    world.disk.put(upload_name(number_of(name)), b"a former process")
    world.remote.put(name, stranger.remote.get(name))
    world.bench.checkpoint()

    assert world.stored() == [name]
    assert world.notes() == []


def test_a_number_that_was_noted_before_is_passed_over() -> None:
    world = filled()
    following = world.bench.log.numbers.following
    world.disk.put(upload_name(following), b"a former process")
    world.upload()

    assert world.named() == [segment_name(following + 1)]
    assert world.stored() == world.named()


def test_an_object_that_was_made_although_the_store_said_no_is_removed() -> None:
    world = filled()
    fault = world.disk.fail(Fault(actions=["put"], prefix="tier/", done=True))
    with pytest.raises(OSError, match="tier/"):
        world.upload()

    assert fault.hits
    assert world.stored() == []
    assert world.notes() == []


def test_while_the_tier_cannot_be_reached_nothing_is_forgotten() -> None:
    world = filled()
    world.upload()
    [name] = world.named()
    world.disk.fail(Fault(actions=["remove"], prefix="tier/"))
    with pytest.raises(OSError, match="tier/"):
        world.bench.checkpoint(b"state", {1: COUNT - 1})

    assert world.stored() == [name]
    world.bench.checkpoint(b"state", {1: COUNT - 1})
    assert world.stored() == []
    assert world.notes() == []


def test_while_the_tier_cannot_be_reached_snapshots_do_not_pile_up() -> None:
    world = filled()
    world.upload()
    world.disk.fail(Fault(actions=["remove"], prefix="tier/", lasting=True))
    for _ in range(10):
        with pytest.raises(OSError, match="tier/"):
            world.bench.checkpoint(b"state", {1: COUNT - 1})

    assert len(world.disk.names(SNAPSHOTS)) == KEPT_COUNT
    assert len(world.disk.names(MANIFESTS)) == KEPT_COUNT
