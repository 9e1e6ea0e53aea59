"""`ister storage move`: a stream from the data folder to the object store, and back."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ister.base import Durability, find_partition, full_name, parse_topic, rounded_size
from ister.base.errors import NotFoundError, TopicNotFoundError
from ister.cli.console.progress import show_progress
from ister.cli.console.terminal import JsonOption, counted, say, write_json
from ister.cli.storage.backup import DEFAULT_DATA
from ister.cli.storage.homes import (
    TierOption,
    backend_of,
    find_home,
    open_verified,
    owned,
    told_place,
)

if TYPE_CHECKING:
    from ister.broker import Relocated, StoppedLog

# Streams that are named to somebody who mistyped one.
LISTED_MAX = 20


def move(
    topic: Annotated[str, typer.Argument(help="A stream, as /default/orders.")],
    durability: Annotated[
        Durability,
        typer.Option(help="What it has afterwards: object, or one of those in the data folder."),
    ],
    object_store: Annotated[
        str,
        typer.Option(metavar="URL", envvar="ISTER_OBJECT_STORE", help="Its object store."),
    ],
    data: Annotated[
        Path,
        typer.Option(metavar="DIR", envvar="ISTER_DATA", help="The data folder of the broker."),
    ] = DEFAULT_DATA,
    key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="ISTER_KEY_FILE", help="Keys, if it is encrypted."),
    ] = None,
    tier: TierOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a stream from the data folder to the object store, or back.

    Stop the broker first. Offsets, publish times, keys, attributes, ids, what is known of
    producers, subscriptions and their cursors stay as they are. If a move is interrupted, nothing
    is lost: run it again.

    \b
    Examples:
      ister storage move /default/orders --durability object \\
          --data /var/lib/ister --object-store s3://bucket/ister
      ister storage move /default/orders --durability fsync \\
          --data /var/lib/ister --object-store s3://bucket/ister
    """
    from ister.broker import StoppedLog
    from ister.log import LogOptions
    from ister.objects import FileKeyring

    is_object = durability is Durability.OBJECT
    name = parse_topic(full_name(topic))
    keyring = FileKeyring.open(key_file) if key_file is not None else None
    folder, store = find_home(str(data)), open_verified(object_store)
    options = LogOptions(ciphers=keyring, accept_plain=False)
    tiered = replace(options, remote=open_verified(tier) if tier else None)
    with (
        owned(folder),
        owned(store),
        closing(StoppedLog(backend_of(folder), tiered)) as local,
        closing(StoppedLog(backend_of(store), options)) as remote,
        show_progress(None) as advance,
    ):
        source, target = (local, remote) if is_object else (remote, local)
        # A mistyped URL is an empty store as well.
        was_empty = not remote.state.topics
        done = _relocate(source, target, name, durability, partial(advance, name))
    place = told_place(object_store if is_object else str(data))
    if as_json:
        found = {"topic": name, "durability": durability, "place": place}
        write_json({**found, "moved": done.partitions > 0, **asdict(done)})
    else:
        _say_moved(name, place, done)
    if was_empty and is_object:
        say("this object store was empty: start the broker with the same --object-store")


def _relocate(
    source: "StoppedLog",
    target: "StoppedLog",
    name: str,
    durability: Durability,
    on_progress: Callable[[int], None],
) -> "Relocated":
    from ister.broker import relocate

    try:
        return relocate(source, target, name, durability, on_progress=on_progress)
    except TopicNotFoundError:
        say(f"ister: stream {name!r} does not exist: {_told_streams(source, target)}")
        raise typer.Exit(NotFoundError.exit_code) from None


def _say_moved(name: str, place: str, done: "Relocated") -> None:
    if not done.partitions:
        say(f"{name} is in {place} already")
        return
    size, subscriptions = rounded_size(done.size_bytes), counted(done.subscriptions, "subscription")
    say(f"{name} is in {place} now: {size}, {subscriptions}")


def _told_streams(*logs: "StoppedLog") -> str:
    """Tell which streams there are in these logs."""
    topics = sorted(record.name for log in logs for record in log.state.topics.values())
    names = list(dict.fromkeys(found[0] if (found := find_partition(t)) else t for t in topics))
    more = f" and {len(names) - LISTED_MAX} more" if len(names) > LISTED_MAX else ""
    return f"there are {', '.join(names[:LISTED_MAX])}{more}" if names else "there are none"
