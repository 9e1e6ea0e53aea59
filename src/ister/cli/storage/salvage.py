"""`ister storage salvage`: what can still be read of a damaged data folder, in a new one."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ister.base import rounded_size
from ister.base.errors import BadRequestError, BrokenError
from ister.cli.console.progress import show_progress
from ister.cli.console.terminal import JsonOption, counted, say, write, write_json
from ister.cli.storage.homes import TierOption, held, open_verified

if TYPE_CHECKING:
    from ister.server import Salvaged


def salvage(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The damaged data folder.")],
    folder: Annotated[
        Path, typer.Argument(metavar="DEST", help="The new data folder: missing, or empty.")
    ],
    key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="ISTER_KEY_FILE", help="Keys, if it is encrypted."),
    ] = None,
    tier: TierOption = None,
    accept_unencrypted: Annotated[
        bool,
        typer.Option("--accept-unencrypted", help="Also take what is not encrypted."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a new data folder of everything that can still be read of a damaged one.

    Stop the broker first. Nothing in SOURCE is changed. What is lost is listed: offsets of each
    stream, subscriptions, timelines, schemas. Exit code 0: nothing is lost. 70: something is, and a
    broker starts with DEST all the same. If it is interrupted, run it again.

    \b
    Examples:
      ister storage check /var/lib/ister
      ister storage salvage /var/lib/ister /var/lib/ister-new
      ister serve --data /var/lib/ister-new
    """
    from ister.log import LogOptions
    from ister.objects import FileKeyring
    from ister.server import salvage_folder

    if "://" in source:
        raise BadRequestError("only a data folder can be salvaged, and not an object store")
    options = LogOptions(
        ciphers=FileKeyring.open(key_file) if key_file is not None else None,
        accept_plain=accept_unencrypted,
        remote=open_verified(tier) if tier else None,
    )
    place = Path(source)
    with held(place):
        size_bytes = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        # Everything is read, and then most of it is copied.
        with show_progress(2 * size_bytes) as advance:
            salvaged = salvage_folder(place, folder, options, on_progress=advance)
    if as_json:
        write_json({"source": source, "folder": str(folder), **_as_row(salvaged)})
    else:
        _write(folder, salvaged)
    if not salvaged.is_whole:
        raise typer.Exit(BrokenError.exit_code)


def _as_row(salvaged: "Salvaged") -> dict[str, object]:
    streams, timelines = salvaged.streams, salvaged.timelines
    return {
        "topics": streams.topics,
        "messages": streams.messages,
        "size_bytes": streams.size_bytes,
        "timelines": timelines.topics,
        "timeline_messages": timelines.messages,
        "facts": salvaged.facts,
        "lost": {
            "messages": sum(one.messages for one in streams.lost),
            "ranges": [{**asdict(one), "messages": one.messages} for one in streams.lost],
            "names": streams.nameless,
            "subscriptions": [asdict(one) for one in streams.subscriptions],
            "entries": streams.lost_entries,
            "timelines": timelines.lost_topics,
            "timeline_messages": timelines.lost,
            "facts": salvaged.lost_facts,
            "is_complete": salvaged.knows_all,
        },
        "problems": [one._asdict() for one in streams.problems],
        "notes": [*streams.notes, *timelines.notes],
    }


def _write(folder: Path, salvaged: "Salvaged") -> None:
    streams, timelines = salvaged.streams, salvaged.timelines
    for problem in streams.problems:
        say(f"{problem.file}: byte {problem.position}: {problem.reason}")
    for note in [*streams.notes, *timelines.notes]:
        say(f"note: {note}")
    for line in _lost(salvaged):
        write(f"lost: {line}\n".encode())
    count = sum(one.messages for one in streams.lost)
    say(
        f"{folder}: {counted(streams.topics, 'stream')} with "
        f"{counted(streams.messages, 'message')}, {rounded_size(streams.size_bytes)}; "
        f"{counted(timelines.topics, 'timeline')} with {counted(timelines.messages, 'message')}; "
        f"{counted(salvaged.facts, 'fact')} of metadata; "
        + (f"{counted(count, 'message')} of streams lost" if count else "no message is lost")
    )


def _lost(salvaged: "Salvaged") -> list[str]:
    streams, timelines = salvaged.streams, salvaged.timelines
    lines = [
        f"{one.topic}: offsets {one.start} to {one.end - 1}, {counted(one.messages, 'message')}"
        for one in streams.lost
    ]
    lines += [f"the name and the settings of a stream, now {name}" for name in streams.nameless]
    lines += [
        f"subscription {one.name} of {one.topic}: {one.reason}"
        if one.topic
        else f"subscription {one.name}: {one.reason}"
        for one in streams.subscriptions
    ]
    lines += [
        f"entries {start} to {end - 1} of the journal"
        if end is not None
        else f"the end of the journal, from entry {start} on"
        for start, end in streams.lost_entries
    ]
    lines += [f"timeline {name}, with all it had" for name in timelines.lost_topics]
    lines += [
        f"timeline {name}: {counted(count, 'message')}" for name, count in timelines.lost.items()
    ]
    lines += [f"fact {key} of the metadata" for key in salvaged.lost_facts]
    if not timelines.is_whole:
        lines.append("more of timelines, of which nothing is known")
    if not salvaged.knows_facts:
        lines.append("more of the metadata, of which nothing is known")
    return lines
