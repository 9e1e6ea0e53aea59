"""What every disk must do: a real folder, memory, and the disk that fails on demand."""

import errno
import os
import stat
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ister.base.errors import StorageTakenError
from ister.log.files.ports import Buffer, Disk
from ister.metadata import Put, SqliteMetadata
from ister.objects import FileKeyring, LocalDisk, MemoryDisk, make_folder
from ister.testing import FaultyDisk, SmallDisk
from ister.timeline.sqlite.store import SqliteStore


class DiskContract(ABC):
    """What every disk must do. Subclasses supply `disk` and add nothing."""

    @pytest.fixture
    @abstractmethod
    def disk(self) -> Disk: ...

    def test_bytes_are_read_where_they_were_written(self, disk: Disk) -> None:
        file = disk.create("segments/1")
        file.write(0, [b"abc", bytearray(b"def"), memoryview(b"ghi")])
        file.write(3, [b"DEF"])
        file.sync()

        assert file.read(0, 9) == b"abcDEFghi"
        assert disk.open("segments/1").read(2, 5) == b"cDEFg"

    def test_more_parts_than_one_call_of_the_system_takes_are_written(self, disk: Disk) -> None:
        parts: list[Buffer] = [b"%05d" % number for number in range(2_500)]
        file = disk.create("segments/1")
        file.write(7, parts)

        assert file.read(7, 5 * 2_500) == b"".join(parts)
        assert file.size() == 7 + 5 * 2_500

    def test_no_parts_write_nothing(self, disk: Disk) -> None:
        file = disk.create("segments/1")
        file.write(0, [])
        file.write(0, [b"", b""])

        assert file.size() == 0

    def test_a_read_is_short_only_at_the_end(self, disk: Disk) -> None:
        file = disk.create("segments/1")
        file.write(0, [b"0123456789"])

        assert file.read(8, 10) == b"89"
        assert file.read(10, 10) == b""
        assert file.read(100, 10) == b""
        assert file.read(3, 0) == b""

    def test_allocated_space_reads_as_zeros(self, disk: Disk) -> None:
        file = disk.create("segments/1", allocate_bytes=4_096)
        file.write(0, [b"abc"])

        assert file.size() == 4_096
        assert file.read(0, 8) == b"abc\0\0\0\0\0"
        assert file.read(4_090, 100) == bytes(6)

    def test_file_grows_by_zeros_and_keeps_its_bytes(self, disk: Disk) -> None:
        file = disk.create("segments/1", allocate_bytes=4_096)
        file.write(4_090, [b"abcdef"])
        file.allocate(12_288)
        file.allocate(8_192)

        assert file.size() == 12_288
        assert file.read(4_090, 10) == b"abcdef\0\0\0\0"
        assert file.read(12_280, 100) == bytes(8)
        file.write(12_000, [b"new"])
        file.truncate(12_003)
        assert file.read(12_000, 100) == b"new"

    def test_a_hole_reads_as_zeros(self, disk: Disk) -> None:
        file = disk.create("segments/1")
        file.write(4, [b"abc"])

        assert file.read(0, 10) == b"\0\0\0\0abc"

    @pytest.mark.parametrize("size_bytes", [0, 5, 10, 12])
    def test_a_truncated_file_has_the_size_asked_for(self, disk: Disk, size_bytes: int) -> None:
        file = disk.create("segments/1", allocate_bytes=4_096)
        file.write(0, [b"0123456789"])
        file.truncate(size_bytes)

        assert file.size() == size_bytes
        assert file.read(0, 100) == b"0123456789\0\0"[:size_bytes]
        file.write(size_bytes, [b"new"])
        assert file.read(size_bytes, 100) == b"new"

    def test_a_name_is_made_once(self, disk: Disk) -> None:
        disk.create("segments/1").write(0, [b"first"])
        disk.put("manifests/1", b"first")

        for name in ("segments/1", "manifests/1"):
            with pytest.raises(FileExistsError):
                disk.create(name)
            with pytest.raises(FileExistsError):
                disk.put(name, b"second")
            assert disk.open(name).read(0, 10) == b"first"

    def test_a_missing_file_is_not_found(self, disk: Disk) -> None:
        with pytest.raises(FileNotFoundError):
            disk.open("segments/1")

    def test_names_are_sorted_and_of_one_folder(self, disk: Disk) -> None:
        for name in ("manifests/3", "manifests/1", "snapshots/2", "manifests/2"):
            disk.put(name, b"")

        assert disk.names("manifests") == ["manifests/1", "manifests/2", "manifests/3"]
        assert disk.names("segments") == []

    def test_a_removed_name_is_free(self, disk: Disk) -> None:
        disk.put("manifests/1", b"first")
        disk.remove("manifests/1")
        disk.remove("manifests/1")

        assert disk.names("manifests") == []
        disk.put("manifests/1", b"second")
        assert disk.open("manifests/1").read(0, 10) == b"second"

    def test_an_open_file_outlives_its_name(self, disk: Disk) -> None:
        disk.put("segments/1", b"content")
        file = disk.open("segments/1")
        disk.remove("segments/1")

        assert file.read(0, 10) == b"content"

    def test_a_closed_file_can_be_closed_again(self, disk: Disk) -> None:
        file = disk.create("segments/1")
        file.close()
        file.close()

        assert disk.names("segments") == ["segments/1"]

    def test_threads_read_while_another_appends(self, disk: Disk) -> None:
        file = disk.create("segments/1")
        block = bytes(range(256)) * 16
        ends = [0]
        wrong: list[bytes] = []

        def read() -> None:
            while (end := ends[-1]) < 200 * len(block):
                if end and (found := file.read(end - len(block), len(block))) != block:
                    wrong.append(found)

        readers = [threading.Thread(target=read) for _ in range(2)]
        for reader in readers:
            reader.start()
        for number in range(200):
            file.write(number * len(block), [block])
            ends.append((number + 1) * len(block))
        for reader in readers:
            reader.join()

        assert wrong == []


class TestLocalDisk(DiskContract):
    """A folder of the machine."""

    @pytest.fixture
    def disk(self, tmp_path: Path) -> Disk:
        return LocalDisk(tmp_path / "made" / "on first use")


class TestMemoryDisk(DiskContract):
    """Memory."""

    @pytest.fixture
    def disk(self) -> Disk:
        return MemoryDisk()


class TestFaultyDisk(DiskContract):
    """The disk that fails, while it does not."""

    @pytest.fixture
    def disk(self) -> Disk:
        return FaultyDisk()


class TestSmallDisk(DiskContract):
    """The disk that is full at some point, before that."""

    @pytest.fixture
    def disk(self) -> Disk:
        return SmallDisk(2**30)


# What only a real folder has.


def test_a_folder_tells_how_much_room_there_is(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    room = disk.room()

    assert room is not None
    assert 0 < room[0] <= room[1]
    # Not made yet.
    assert LocalDisk(tmp_path / "later").room() is None


def test_a_lock_needs_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    disk = LocalDisk(tmp_path)
    disk.lock()

    with pytest.raises(StorageTakenError):
        LocalDisk(tmp_path).lock()


def test_short_writes_of_the_system_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, whole_one = os.pwritev, os.pwrite

    def short(descriptor: int, parts: Sequence[Buffer], position: int) -> int:
        return whole(descriptor, [memoryview(b"".join(parts))[:700]], position)

    def short_one(descriptor: int, data: Buffer, position: int) -> int:
        return whole_one(descriptor, memoryview(data)[:900], position)

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os, "pwrite", short_one)
    parts: list[Buffer] = [bytes([number % 251]) * 3 for number in range(3_000)]
    file = LocalDisk(tmp_path).create("segments/1")
    file.write(5, parts)

    assert file.read(5, 9_000) == b"".join(parts)


def test_a_disk_that_takes_no_bytes_is_an_error_and_no_endless_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *_: 0)
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)
    file = LocalDisk(tmp_path).create("segments/1")

    with pytest.raises(OSError, match="takes no more"):
        file.write(0, [b"abc"])


def test_short_reads_of_the_system_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: whole(fd, min(size, 700), at))
    content = os.urandom(5_000)
    disk = LocalDisk(tmp_path)
    disk.put("segments/1", content)

    assert disk.open("segments/1").read(1, 4_000) == content[1:4_001]
    assert disk.open("segments/1").read(1, 9_000) == content[1:]


def test_a_file_for_which_there_is_no_space_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, position: int, size_bytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    disk = LocalDisk(tmp_path)

    with pytest.raises(OSError, match="No space"):
        disk.create("segments/1", allocate_bytes=4_096)
    assert disk.names("segments") == []


def test_a_file_that_cannot_grow_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(descriptor: int, position: int, size_bytes: int) -> None:
        os.ftruncate(descriptor, position + size_bytes // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = LocalDisk(tmp_path).create("segments/1", allocate_bytes=4_096)
    file.write(0, [b"abc"])
    monkeypatch.setattr(os, "posix_fallocate", half)

    with pytest.raises(OSError, match="No space"):
        file.allocate(8_192)
    assert file.size() == 4_096
    assert file.read(0, 4) == b"abc\0"


@pytest.mark.parametrize("failing", [1, 2])
def test_a_put_whose_sync_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    disk = LocalDisk(tmp_path)
    disk.put("manifests/1", b"one")
    calls: list[int] = []

    def broken(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("ister.objects.local.sync_all", broken)
    with pytest.raises(OSError, match="Input/output"):
        disk.put("manifests/2", b"two")

    assert [path.name for path in (tmp_path / "manifests").iterdir()] == ["1"]
    disk.put("manifests/2", b"again")
    assert disk.open("manifests/2").read(0, 10) == b"again"


def test_removing_what_a_failed_put_has_unlinked_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = LocalDisk(tmp_path)
    disk.put("manifests/1", b"one")
    synced: list[int] = []

    def broken(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        if synced[-1] == folder:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    folder = (tmp_path / "manifests").stat().st_ino
    with monkeypatch.context() as patched:
        patched.setattr("ister.objects.local.sync_all", broken)
        with pytest.raises(OSError, match="error"):
            disk.put("manifests/2", b"two")
    synced.clear()
    monkeypatch.setattr("ister.objects.local.sync_all", lambda d: synced.append(os.fstat(d).st_ino))
    disk.remove("manifests/2")
    disk.remove("never/made")

    assert synced == [folder]


def test_a_failed_sync_is_raised(tmp_path: Path) -> None:
    # A pipe cannot be synced: a real error of the real call.
    reading, writing = os.pipe()
    os.close(reading)
    file = LocalDisk(tmp_path).create("segments/1")
    os.dup2(writing, file._descriptor)
    os.close(writing)

    with pytest.raises(OSError, match="Invalid argument"):
        file.sync()


@pytest.mark.parametrize("name", ["", "../x", "segments/../../x", "/etc/x", "segments/.hidden"])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    disk = LocalDisk(tmp_path / "data")

    for call in (disk.create, disk.open, disk.remove):
        with pytest.raises(ValueError, match="no name"):
            call(name)


@pytest.fixture(params=[0o000, 0o022, 0o377], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """A umask that takes no right away, the usual ones, or some of the owner's own."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Return the rights of a folder and of all that is in it."""
    found = [folder, *folder.rglob("*")]
    return {path.name: path.stat().st_mode & 0o777 for path in found}


@pytest.mark.usefixtures("umask")
def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path / "above" / "data")
    disk.lock()
    disk.create("segments/1")
    disk.put("manifests/2", b"")

    assert modes(tmp_path / "above") == {
        "above": 0o700,
        "data": 0o700,
        "lock": 0o600,
        "segments": 0o700,
        "1": 0o600,
        "manifests": 0o700,
        "2": 0o600,
    }


@pytest.mark.usefixtures("umask")
async def test_keys_and_databases_are_for_their_owner_alone(tmp_path: Path) -> None:
    make_folder(tmp_path / "keys")
    FileKeyring.create(tmp_path / "keys" / "keys.json").rotate()
    table = SqliteMetadata(tmp_path / "data")
    await table.write(Put("/a", b"b"))
    store = SqliteStore(tmp_path / "data" / "timelines.db")
    store.create_topic("/default/a", "timeline", b"")

    found = modes(tmp_path / "keys") | modes(tmp_path / "data")
    assert {"keys.json", "timelines.db", "timelines.db-wal"} <= set(found)
    assert {name for name, mode in found.items() if mode != 0o600} == {"keys", "data"}
    assert found["keys"] == found["data"] == 0o700
    await table.close()
    store.close()


def test_a_folder_that_others_may_look_into_is_warned_of_and_not_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    with capture_logs() as lines:
        LocalDisk(tmp_path).lock()
    tmp_path.chmod(0o700)

    [line] = lines
    assert (line["event"], line["mode"]) == ("data_folder_open_to_others", "750")
    assert line["hint"] == f"chmod 700 {tmp_path}"


def test_the_lock_is_not_written_through_a_link(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "data").mkdir(0o700)
    (tmp_path / "data" / "lock").symlink_to(other)

    with pytest.raises(OSError, match="symbolic link"):
        LocalDisk(tmp_path / "data").lock()
    assert other.read_text() == "precious"


@pytest.mark.parametrize("make", [os.link, lambda _, path: os.mkfifo(path)])
def test_a_lock_that_is_not_a_file_of_its_own_is_refused(
    make: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    other.chmod(0o640)
    (tmp_path / "data").mkdir(0o700)
    make(other, tmp_path / "data" / "lock")

    with pytest.raises(OSError, match="not a file of its own"):
        LocalDisk(tmp_path / "data").lock()
    assert other.read_text() == "precious"
    assert stat.S_IMODE(other.stat().st_mode) == 0o640


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_a_full_disk_is_locked_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = descriptors()
    disk = LocalDisk(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", no_room)
        disk.lock()

    with pytest.raises(StorageTakenError, match="another process"):
        LocalDisk(tmp_path).lock()
    disk.unlock()
    assert descriptors() == before


def test_a_lock_that_fails_leaves_nothing_open_and_nothing_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "manifests").mkdir()
    half = tmp_path / "manifests" / ".new-0123"
    half.mkdir()  # Cannot be removed as a file is.
    before = descriptors()
    for _ in range(3):
        with pytest.raises(OSError, match=r"directory|permitted"):
            LocalDisk(tmp_path).lock()
    half.rmdir()

    assert descriptors() == before
    LocalDisk(tmp_path).lock()


def test_a_locked_folder_names_its_owner(tmp_path: Path) -> None:
    owner = LocalDisk(tmp_path)
    owner.lock()

    with pytest.raises(StorageTakenError, match=str(os.getpid())):
        LocalDisk(tmp_path).lock()
    owner.unlock()
    LocalDisk(tmp_path).lock()


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys; from ister.objects import LocalDisk;"
        "LocalDisk(pathlib.Path(sys.argv[1])).lock(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=30)
    assert (tmp_path / "lock").exists()

    LocalDisk(tmp_path).lock()


def test_the_owner_clears_what_an_earlier_one_left_half_made(tmp_path: Path) -> None:
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / ".new-0123").write_bytes(b"half")
    disk = LocalDisk(tmp_path)

    assert disk.names("manifests") == []
    disk.lock()
    assert not any((tmp_path / "manifests").iterdir())


def test_a_read_only_copy_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LocalDisk(tmp_path)
    disk.put("segments/1", b"content")
    open_any = os.open

    def read_only(path: Path, flags: int, *mode: int) -> int:
        if flags & os.O_RDWR:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return open_any(path, flags, *mode)

    monkeypatch.setattr(os, "open", read_only)
    file = disk.open("segments/1")

    assert file.read(0, 10) == b"content"
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(0, [b"x"])
