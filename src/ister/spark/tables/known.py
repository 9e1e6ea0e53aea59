"""Which tables were made from which topics on this machine, for `ister topics table`.

These are notes only: a table works without them, and one that was moved is found with `--path`.
"""

import fcntl
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ister.telemetry import library_logger

logger = library_logger("ister.spark")

FILE_NAME = "tables.json"
# The newest are kept: a machine that makes tables for tests must not fill up its notes.
TABLES_MAX = 1_000


class KnownTable(msgspec.Struct, frozen=True):
    """A table and the topics its rows came from."""

    path: str
    topics: tuple[str, ...]


def notes_path(environment: Mapping[str, str] | None = None) -> Path:
    """Return where the notes are: `$XDG_STATE_HOME/ister/tables.json`."""
    given = os.environ if environment is None else environment
    state = given.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "ister" / FILE_NAME


def with_table(
    tables: Sequence[KnownTable], path: str, topics: Sequence[str]
) -> tuple[KnownTable, ...]:
    """Return the notes with a table that was just made, or has rows of more topics now."""
    old = next((one for one in tables if one.path == path), KnownTable(path, ()))
    all_topics = (*old.topics, *(one for one in topics if one not in old.topics))
    rest = [one for one in tables if one.path != path]
    return (*rest, KnownTable(path, all_topics))[-TABLES_MAX:]


def remember(path: Path, topics: Sequence[str], *, notes: Path | None = None) -> None:
    """Note a table. If the note cannot be written, that is only logged."""
    file = notes_path() if notes is None else notes
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.with_suffix(".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tables = with_table(known_tables(notes=file), str(path), topics)
            temporary = file.with_suffix(".new")
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(tables), indent=2))
            temporary.replace(file)
    except OSError as error:
        logger.warning("table_not_noted", table=str(path), file=str(file), reason=str(error))


def known_tables(*, notes: Path | None = None) -> tuple[KnownTable, ...]:
    """Return the tables that were noted, the newest last; none if the notes cannot be read."""
    file = notes_path() if notes is None else notes
    try:
        return msgspec.json.decode(file.read_bytes(), type=tuple[KnownTable, ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.DecodeError) as error:
        logger.warning("tables_unreadable", file=str(file), reason=str(error))
        return ()


def tables_of(topic: str, *, notes: Path | None = None) -> list[Path]:
    """Return the folders of the tables with rows of a topic."""
    return [Path(one.path) for one in known_tables(notes=notes) if topic in one.topics]
