"""`ister storage backup` and `ister storage restore`: copies of a data folder, and back."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from ister.base import rounded_size
from ister.base.errors import BackupFailedError, BadRequestError, NotConnectedError, from_wire
from ister.cli.console.progress import show_progress
from ister.cli.console.terminal import JsonOption, counted, say, write_json

DEFAULT_DATA = Path("ister-data")


class _Pinned(msgspec.Struct):
    """What the broker answers: the files that it keeps as long as the connection is open."""

    # The data folder as the broker sees it, which may be elsewhere for us; and a folder in it.
    folder: str
    pinned: str
    made_ms: int
    files: list[tuple[str, int]]
    notes: list[str] = []


class _Refused(msgspec.Struct):
    """Or an error."""

    code: int
    fields: dict[str, Any]
    text: str


def backup(
    place: Annotated[
        Path, typer.Argument(metavar="DEST", help="Folder of the backup; made when missing.")
    ],
    data: Annotated[
        Path,
        typer.Option(metavar="DIR", envvar="ISTER_DATA", help="The data folder of the broker."),
    ] = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Back up the data folder of a running broker: streams, timelines and schemas.

    Every message that was acknowledged before is in the backup. Run it on the machine of the
    broker. A second backup into the same DEST copies only new segments; it replaces the backup
    there when all of it is on the disk, and not before. Encrypted streams stay encrypted.

    \b
    Examples:
      ister storage backup /mnt/backup/ister
      ister storage backup /mnt/backup/ister --data /var/lib/ister --json
    """
    from ister.objects import SourceFile, back_up

    _check_apart(place, data)
    with _pinned(data) as pinned:
        files = [SourceFile(*row) for row in pinned.files]
        with show_progress(sum(file.size_bytes for file in files)) as advance:
            copied = back_up(
                data / pinned.pinned,
                files,
                place,
                folder=pinned.folder,
                made_ms=pinned.made_ms,
                on_progress=advance,
            )
    contents = copied.contents
    if as_json:
        write_json(
            {
                "place": str(place),
                "folder": contents.folder,
                "made": _utc(contents.made_ms),
                "files": len(contents.files),
                "size_bytes": contents.size_bytes,
                "copied_files": copied.files,
                "copied_bytes": copied.size_bytes,
                "notes": pinned.notes,
            }
        )
        return
    for note in pinned.notes:
        say(f"note: {note}")
    say(
        f"{place}: {counted(len(contents.files), 'file')}, {rounded_size(contents.size_bytes)}; "
        f"{counted(copied.files, 'file')}, {rounded_size(copied.size_bytes)} copied now"
    )


def restore(
    place: Annotated[Path, typer.Argument(metavar="BACKUP", help="A backup.")],
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="The new data folder: missing, or empty.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Restore a backup into a new data folder, and verify the checksum of every file.

    Start a broker with that folder afterwards; if streams are encrypted, with the same key file.

    \b
    Examples:
      ister storage restore /mnt/backup/ister --data /var/lib/ister
      ister serve --data /var/lib/ister
    """
    from ister.objects import load_contents
    from ister.server import restore_folder

    size_bytes = load_contents(place).size_bytes
    with show_progress(size_bytes) as advance:
        contents = restore_folder(place, data, on_progress=advance)
    if as_json:
        write_json(
            {
                "place": str(place),
                "folder": str(data),
                "made": _utc(contents.made_ms),
                "files": len(contents.files),
                "size_bytes": size_bytes,
            }
        )
        return
    say(
        f"{data}: {counted(len(contents.files), 'file')}, {rounded_size(size_bytes)}, as of "
        f"{_utc(contents.made_ms)}; `ister serve --data {data}` starts a broker with it"
    )


def _check_apart(place: Path, data: Path) -> None:
    if place.resolve().is_relative_to(data.resolve()):
        raise BadRequestError(f"{place} is in the data folder: name a folder elsewhere")


@contextmanager
def _pinned(data: Path) -> Iterator[_Pinned]:
    """Yield what the broker of a data folder keeps while it is copied."""
    from ister.server import ask_for_backup

    try:
        connection = ask_for_backup(data)
    except OSError as error:
        reason = f"none with this data folder answers: {error.strerror}"
        raise NotConnectedError(str(data), reason) from error
    with connection:
        try:
            with connection.makefile("rb") as answers:
                line = answers.readline()
        except OSError as error:
            raise BackupFailedError(str(data), f"the broker ended: {error.strerror}") from error
        if not line:
            raise BackupFailedError(str(data), "the broker has ended")
        answer = msgspec.convert(json.loads(line), dict[str, Any])
        if "code" in answer:
            refused = msgspec.convert(answer, _Refused)
            raise from_wire(refused.code, refused.fields, refused.text)
        yield msgspec.convert(answer, _Pinned)


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")
