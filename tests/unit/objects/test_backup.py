"""A backup is the one that was complete last, whatever becomes of the next one."""

import errno
import fcntl
import json
from pathlib import Path

import pytest

from ister.base.errors import BackupDamagedError, BackupFailedError, BackupRunningError
from ister.objects import Copied, SourceFile, back_up, load_contents, restore
from ister.objects.backup import FILES, Progress, _locked

SEALED = "segments/00000000000000000001.seg"
OPEN = "segments/00000000000000000002.seg"
TIMELINES = "timelines.db"
SIZE_BYTES = 20_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "segments").mkdir(parents=True)
    (source / SEALED).write_bytes(b"sealed" * SIZE_BYTES)
    (source / OPEN).write_bytes(b"open" * SIZE_BYTES)
    (source / TIMELINES).write_bytes(b"timelines")
    return source


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def files_of(source: Path) -> list[SourceFile]:
    paths = [path for path in sorted(source.rglob("*")) if path.is_file()]
    return [SourceFile(str(path.relative_to(source)), path.stat().st_size) for path in paths]


def run(
    source: Path, place: Path, *, folder: str = "/data", on_progress: Progress = lambda _, __: None
) -> Copied:
    return back_up(
        source, files_of(source), place, folder=folder, made_ms=1, on_progress=on_progress
    )


def restored(place: Path, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    restore(place, folder)
    return {name: (folder / name).read_bytes() for name, _ in files_of(folder)}


def fail_at(name: str, number: int = errno.EIO) -> Progress:
    def fail(file: str, _: int) -> None:
        if file == name:
            raise OSError(number, "No space left on device")

    return fail


def test_a_restored_folder_has_the_files_that_were_backed_up(
    source: Path, place: Path, tmp_path: Path
) -> None:
    copied = run(source, place)

    assert copied.files == 3
    assert restored(place, tmp_path / "new") == {
        name: (source / name).read_bytes() for name, _ in files_of(source)
    }


def test_only_as_much_of_a_file_is_copied_as_is_asked_for(
    source: Path, place: Path, tmp_path: Path
) -> None:
    back_up(source, [SourceFile(OPEN, 7)], place, folder="/data", made_ms=1)

    assert restored(place, tmp_path / "new") == {OPEN: b"openope"}


def test_a_second_backup_copies_what_is_new_and_removes_what_is_gone(
    source: Path, place: Path, tmp_path: Path
) -> None:
    run(source, place)
    with (source / OPEN).open("ab") as file:
        file.write(b"footer")
    (source / TIMELINES).unlink()
    copied = run(source, place)

    assert (copied.files, copied.size_bytes) == (1, 4 * SIZE_BYTES + 6)
    assert len(list((place / FILES).iterdir())) == 2
    assert restored(place, tmp_path / "new")[OPEN].endswith(b"footer")


def test_another_file_of_the_same_name_and_size_is_copied(source: Path, place: Path) -> None:
    run(source, place)
    (source / SEALED).write_bytes(b"Sealed" * SIZE_BYTES)

    assert run(source, place).files == 2  # With the timelines, which are copied each time.


@pytest.mark.parametrize("name", [SEALED, OPEN, TIMELINES])
def test_a_backup_that_is_cut_short_leaves_the_one_before(
    source: Path, place: Path, tmp_path: Path, name: str
) -> None:
    run(source, place)
    before = {name: (source / name).read_bytes() for name, _ in files_of(source)}
    for one, content in before.items():
        (source / one).write_bytes(b"new" + content)
    with pytest.raises(BackupFailedError):
        run(source, place, on_progress=fail_at(name))

    assert restored(place, tmp_path / "new") == before


def test_a_first_backup_that_is_cut_short_is_none(
    source: Path, place: Path, tmp_path: Path
) -> None:
    with pytest.raises(BackupFailedError):
        run(source, place, on_progress=fail_at(TIMELINES))

    with pytest.raises(BackupDamagedError, match=r"backup\.json"):
        restored(place, tmp_path / "new")


def test_what_was_copied_before_it_was_cut_short_is_not_copied_again(
    source: Path, place: Path
) -> None:
    with pytest.raises(BackupFailedError):
        run(source, place, on_progress=fail_at(TIMELINES))

    assert run(source, place).files == 1


def test_a_full_disk_is_a_clear_error(source: Path, place: Path) -> None:
    told = r"no backup was made in .*backup \(No space left on device\): the last complete"
    with pytest.raises(BackupFailedError, match=told):
        run(source, place, on_progress=fail_at(OPEN, errno.ENOSPC))


def test_more_than_the_disk_has_is_not_begun(source: Path, place: Path) -> None:
    with pytest.raises(BackupFailedError, match=r"8\.0 EiB|are to be copied and .* are free"):
        back_up(source, [SourceFile(OPEN, 2**62)], place, folder="/data", made_ms=1)


def test_a_file_that_the_broker_has_let_go_of_is_told(source: Path, place: Path) -> None:
    files = files_of(source)
    (source / OPEN).unlink()
    with pytest.raises(BackupFailedError, match="the broker has ended"):
        back_up(source, files, place, folder="/data", made_ms=1)


def test_a_backup_of_another_folder_is_not_replaced(source: Path, place: Path) -> None:
    run(source, place)
    with pytest.raises(BackupFailedError, match="it has a backup of /data: name another folder"):
        run(source, place, folder="/other")


def test_one_backup_is_made_at_a_time(source: Path, place: Path) -> None:
    run(source, place)
    with _locked(place, fcntl.LOCK_EX), pytest.raises(BackupRunningError):
        run(source, place)


@pytest.mark.parametrize("damage", ["change", "cut", "append", "remove"])
def test_a_damaged_copy_is_found_and_nothing_is_left_of_it(
    source: Path, place: Path, tmp_path: Path, damage: str
) -> None:
    run(source, place)
    [copy] = (place / FILES).glob("segments-00000000000000000002*")
    content = copy.read_bytes()
    copy.unlink()
    if damage != "remove":
        copy.write_bytes(
            {"change": b"O" + content[1:], "cut": content[:-1], "append": content + b"n"}[damage]
        )
    with pytest.raises(BackupDamagedError, match=copy.name):
        restored(place, tmp_path / "new")

    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("name", ["../passwd", "/etc/passwd", "segments/../../a", "lock/x"])
def test_names_that_lead_out_of_the_folder_are_refused(
    source: Path, place: Path, tmp_path: Path, name: str
) -> None:
    run(source, place)
    contents = json.loads((place / "backup.json").read_text())
    contents["files"][0]["name"] = name
    (place / "backup.json").write_text(json.dumps(contents))
    with pytest.raises(BackupDamagedError):
        restored(place, tmp_path / "new")


def test_a_backup_of_a_later_format_is_refused(source: Path, place: Path) -> None:
    run(source, place)
    text = (place / "backup.json").read_text()
    (place / "backup.json").write_text(text.replace('"version": 1', '"version": 2'))
    with pytest.raises(BackupDamagedError, match="format 2 is not 1"):
        load_contents(place)
