"""The files that a log names at a moment are, later on, the log of that moment."""

import pytest
from tests.unit.log.harness import Bench, filler

from ister.base.errors import BadRequestError
from ister.log import FileBackend, FilePart, check_folder
from ister.log.files.segment import Place, Segment
from ister.log.index.copying import files_of
from ister.log.index.index import Index
from ister.objects import MemoryDisk

payload = filler(900)


def content(disk: MemoryDisk, name: str) -> bytes:
    file = disk.open(name)
    return file.read(0, file.size())


class Moment:
    """What a log names as its files, and what they have by now: as files with another name."""

    def __init__(self, disk: MemoryDisk, bench: Bench) -> None:
        self.disk = disk
        self.files = bench.log.files()
        self.payloads = bench.payloads(1)
        self.former = {name: content(disk, name) for name, _ in self.files}

    def copy(self) -> MemoryDisk:
        """Return a disk with the files, as they are by now."""
        copy = MemoryDisk()
        for name, size_bytes in self.files:
            found = self.former[name]
            if name in self.disk.names(name.partition("/")[0]):
                found = content(self.disk, name)
            copy.put(name, found if size_bytes < 0 else found[:size_bytes])
        return copy


def test_files_named_at_each_moment_open_as_the_log_of_that_moment() -> None:
    disk = MemoryDisk()
    bench = Bench(FileBackend(disk))
    moments = [Moment(disk, bench)]
    for number in range(30):
        bench.publish(1, payload(number), sync=number % 3 > 0)
        moments.append(Moment(disk, bench))
        if number % 8 == 7:
            bench.checkpoint()
            moments.append(Moment(disk, bench))
        if number == 20:
            bench = bench.reopened()
            moments.append(Moment(disk, bench))

    for moment in moments:
        copy = moment.copy()
        assert check_folder(FileBackend(copy)).problems == []
        assert Bench(FileBackend(copy)).payloads(1) == moment.payloads
    assert len(bench.log.segments) > 3


def test_what_is_not_committed_yet_is_not_in_the_open_file() -> None:
    disk = MemoryDisk()
    bench = Bench(FileBackend(disk))
    bench.publish(1, b"committed")
    bench.append(1, b"written")
    group = bench.log.take()
    assert group is not None
    bench.log.write(group)
    moment = Moment(disk, bench)

    assert Bench(FileBackend(moment.copy())).payloads(1) == [b"committed"]


def test_an_empty_log_has_no_open_file() -> None:
    bench = Bench(FileBackend(MemoryDisk()))

    assert bench.log.files() == [FilePart(f"epochs/{1:020d}")]


def test_the_files_after_a_failure_are_those_of_everything_committed() -> None:
    disk = MemoryDisk()
    bench = Bench(FileBackend(disk))
    bench.publish(1, b"a")
    bench.publish(1, b"b", sync=False)
    bench.append(1, b"c")
    group = bench.log.take()
    assert group is not None
    bench.log.failed(group)
    bench.next_offsets[1] = 2
    bench.log.recover()
    bench.publish(1, b"d")
    moment = Moment(disk, bench)

    assert Bench(FileBackend(moment.copy())).payloads(1) == [b"a", b"b", b"d"]


def test_segments_in_the_tier_are_not_copied_without_a_word() -> None:
    index = Index(1_024)
    index.load([Segment(1, Place.LOCAL), Segment(2, Place.REMOTE)], {})
    with pytest.raises(BadRequestError, match="moved to the store of --tier"):
        files_of(index, (), epoch=1, open_end=0)


def test_files_without_a_live_message_are_copied_as_long_as_they_are_replayed() -> None:
    disk = MemoryDisk()
    bench = Bench(FileBackend(disk))
    bench.publish(1, payload(0))
    bench.checkpoint()
    for number in range(20):
        bench.append_changes(payload(number))
        bench.commit()
    moment = Moment(disk, bench)
    # The former moment is only in files that were dropped since.
    bench.checkpoint()
    bench.publish(1, payload(1))
    bench.checkpoint(horizon={1: 2})
    later = Moment(disk, bench)

    copy = Bench(FileBackend(moment.copy()))
    assert [body for _, topic, body in copy.seen if topic == 0] == [payload(n) for n in range(20)]
    assert len(later.files) < len(moment.files)
    assert Bench(FileBackend(later.copy())).payloads(1) == later.payloads
