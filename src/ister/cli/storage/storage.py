"""`ister storage`: verify, back up and restore what a broker keeps."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ister.base import rounded_size, without_secrets
from ister.base.errors import BadRequestError, BrokenError
from ister.cli.console.progress import show_progress
from ister.cli.console.terminal import JsonOption, counted, say, write, write_json
from ister.cli.storage.backup import backup, restore
from ister.cli.storage.homes import held
from ister.cli.storage.move import move
from ister.cli.storage.reencrypt import list_used_keys, reencrypt_place
from ister.cli.storage.salvage import salvage

if TYPE_CHECKING:
    from ister.log import CheckReport, ChunkBackend, FileBackend

storage = typer.Typer(no_args_is_help=True, help="Verify, back up and restore what is stored.")
storage.command("backup")(backup)
storage.command("restore")(restore)
storage.command("keys")(list_used_keys)
storage.command("reencrypt")(reencrypt_place)
storage.command("move")(move)
storage.command("salvage")(salvage)

KeyFileOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", envvar="ISTER_KEY_FILE", help="Keys, if it is encrypted."),
]


@storage.command("check")
def check(
    place: Annotated[
        str, typer.Argument(metavar="DIR|URL", help="A data folder, or the URL of --object-store.")
    ],
    key_file: KeyFileOption = None,
    tier: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where its segments were moved to, if they were."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read everything that is stored and tell what is not as it was written. Changes nothing.

    Stop the broker first. Exit code 0: a broker starts and reads all of it. 70: there are
    problems, each listed with its file, its position and what to do. Timelines in PostgreSQL are
    not here: that has tools of its own, as `pg_amcheck`.

    \b
    Examples:
      ister storage check /var/lib/ister
      ister storage check ./ister-data --json
      ister storage check s3://bucket/ister --key-file keys.json
    """
    from ister.log import CheckReport, check_folder
    from ister.objects import FileKeyring, open_store
    from ister.server import store_options

    keyring = FileKeyring.open(key_file) if key_file is not None else None
    options = store_options(os.environ)
    remote = open_store(tier, options) if tier else None
    facts = messages = 0
    with _opened(place, options) as (backend, size_bytes), show_progress(size_bytes) as advance:
        report = CheckReport()
        if backend is not None:
            report = check_folder(backend, keyring=keyring, remote=remote, on_progress=advance)
        if "://" not in place:
            facts = _check_metadata(Path(place), report)
            messages = _check_timelines(Path(place), report, advance)
    if as_json:
        write_json(
            {
                "place": without_secrets(place) if "://" in place else place,
                "files": report.files,
                "entries": report.entries,
                "facts": facts,
                "messages": messages,
                "checked_bytes": report.checked_bytes,
                "problems": [one._asdict() for one in report.problems],
                "notes": report.notes,
            }
        )
    else:
        _write(place, report, facts, messages)
        if tier is None and any("is missing" in one.reason for one in report.problems):
            say("note: segments that were moved to a store are found with --tier URL")
    if report.problems:
        raise typer.Exit(BrokenError.exit_code)


@contextmanager
def _opened(
    place: str, options: dict[str, str]
) -> "Iterator[tuple[FileBackend | ChunkBackend | None, int | None]]":
    """Yield where streams are, if there are any, and how large everything is if that is known."""
    from ister.log import ChunkBackend, FileBackend
    from ister.objects import LocalDisk, open_store
    from ister.server import check_restored
    from ister.timeline import FILE_NAME

    if "://" in place:
        yield ChunkBackend(open_store(place, options)), None
        return
    folder = Path(place)
    has_streams = (folder / "segments").is_dir()
    # A broker that was not told of a folder makes only what it needs.
    if not has_streams and not (folder / FILE_NAME).exists():
        # It may be a mistyped URL with a password in it.
        told = place if folder.exists() else without_secrets(place)
        raise BadRequestError(
            f"{told} is not a data folder: it has no folder `segments` and no file `{FILE_NAME}`"
        )
    check_restored(folder)
    with held(folder):
        files = [path for path in folder.rglob("*") if path.is_file()]
        size_bytes = sum(path.stat().st_size for path in files)
        yield FileBackend(LocalDisk(folder)) if has_streams else None, size_bytes


def _check_metadata(folder: Path, report: "CheckReport") -> int:
    """Verify the metadata of a broker and put what is wrong into `report`; return the facts."""
    from ister.log import Problem
    from ister.metadata import FILE_NAME, check_facts, copied

    advice = "restore the file from a copy, with its `-wal` if that has one"
    with copied(folder) as copy:
        if copy is None:
            return 0
        found = check_facts(copy)
        faults = list(found.faults)
        if not faults:
            faults += _schema_faults(copy)
    report.files += 1
    report.checked_bytes += found.size_bytes
    report.problems += [Problem(FILE_NAME, at, reason, advice) for at, reason in faults]
    return found.facts


def _check_timelines(
    folder: Path, report: "CheckReport", advance: Callable[[str, int], None]
) -> int:
    """Verify the timelines of a broker and put what is wrong into `report`; return the messages."""
    from ister.base.errors import CorruptedError
    from ister.broker.timelines import check_topics
    from ister.log import Problem
    from ister.timeline import FILE_NAME, check_timelines

    advice = "restore the file from a copy, with its `-wal` if that has one"
    file = folder / FILE_NAME
    if not file.exists():
        return 0
    advance(FILE_NAME, 0)
    found = check_timelines(file, lambda size_bytes: advance(FILE_NAME, size_bytes))
    faults = list(found.faults)
    if not faults:
        try:
            check_topics(found.topics)
        except CorruptedError as error:
            faults.append((0, f"{error.file}: {error.reason}"))
    report.files += 1
    report.checked_bytes += found.size_bytes
    report.problems += [Problem(FILE_NAME, at, reason, advice) for at, reason in faults]
    return found.messages


def _schema_faults(folder: Path) -> list[tuple[int, str]]:
    """Return what keeps a broker from starting with schemas that are intact as bytes."""
    from ister.base.errors import CorruptedError
    from ister.metadata import SqliteMetadata
    from ister.registry import Registry

    async def load() -> None:
        metadata = SqliteMetadata(folder)
        try:
            await Registry.open(metadata, now_ms=lambda: 0)
        finally:
            await metadata.close()

    try:
        asyncio.run(load())
    except CorruptedError as error:
        return [(0, f"{error.file}: {error.reason}")]
    return []


def _write(place: str, report: "CheckReport", facts: int, messages: int) -> None:
    for one in report.problems:
        line = f"{one.file}: byte {one.position}: {one.reason}\n    {one.advice}\n"
        write(line.encode())
    for note in report.notes:
        say(f"note: {note}")
    count = len(report.problems)
    found = {0: "no problems", 1: "1 problem"}.get(count, f"{count} problems")
    say(
        f"{place}: {found} in {counted(report.files, 'file')}, "
        f"{counted(report.entries, 'entry', 'entries')}, "
        f"{counted(facts, 'fact')} of metadata, {counted(messages, 'message')} of timelines, "
        f"{rounded_size(report.checked_bytes)}"
    )
