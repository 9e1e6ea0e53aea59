"""Salvaging a damaged data folder: a new one, with everything that can still be read.

    plan (only reads) → marker → streams → schemas → timelines → marker gone

Always true: nothing in the old folder is changed, and no broker starts with the new one before it
is finished. A salvage that was cut short begins again.
"""

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ister.base.errors import BadRequestError
from ister.broker import SalvagedStreams, carry_out, plan_salvage
from ister.broker.timelines import check_topics
from ister.log import FileBackend, LogOptions
from ister.metadata import FILE_NAME as FACTS
from ister.metadata import SqliteMetadata, copied, salvage_facts, write_facts
from ister.objects import LocalDisk, make_folder
from ister.registry import repair_registry
from ister.server.restoring import SALVAGE_MARKER, check_restored
from ister.timeline import FILE_NAME as TIMELINES
from ister.timeline import SalvagedTimelines, salvage_timelines

Progress = Callable[[str, int], None]


@dataclass(slots=True)
class Salvaged:
    """What was salvaged of a data folder, and what not."""

    streams: SalvagedStreams = field(default_factory=SalvagedStreams)
    timelines: SalvagedTimelines = field(default_factory=SalvagedTimelines)
    facts: int = 0
    lost_facts: list[str] = field(default_factory=list)
    # Whether these are all.
    knows_facts: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether nothing is lost."""
        timelines = self.timelines
        return (
            self.streams.is_whole
            and not (timelines.lost or timelines.lost_topics)
            and not self.lost_facts
            and self.knows_all
        )

    @property
    def knows_all(self) -> bool:
        """Whether everything that is lost has a name."""
        open_ended = any(end is None for _, end in self.streams.lost_entries)
        return self.timelines.is_whole and self.knows_facts and not open_ended


def salvage_folder(
    source: Path,
    folder: Path,
    options: LogOptions,
    *,
    on_progress: Progress = lambda _, __: None,
) -> Salvaged:
    """Write what can be read of a data folder into one that is missing or empty. Blocks.

    Nobody else may use `source` meanwhile. Raises `BadRequestError` when one of them is not what it
    should be, `StorageTakenError`, and what `plan_salvage` raises, with nothing written.
    """
    _check_folders(source, folder)
    plan = None
    backend = FileBackend(LocalDisk(source))
    try:
        if any((source / name).is_dir() for name in ("segments", "manifests", "snapshots")):
            plan = plan_salvage(backend, options, on_progress=on_progress)
        make_folder(folder)
        disk = LocalDisk(folder)
        disk.lock()
        try:
            _clear(folder)
            disk.put(SALVAGE_MARKER, b"")
            salvaged = Salvaged()
            if plan is not None:
                target = FileBackend(disk)
                salvaged.streams = carry_out(plan, target, options, on_progress=on_progress)
            on_progress(FACTS, 0)
            _salvage_facts(source, folder, salvaged)
            on_progress(TIMELINES, 0)
            if (source / TIMELINES).exists():
                salvaged.timelines = salvage_timelines(
                    source / TIMELINES,
                    folder / TIMELINES,
                    check_topics,
                    lambda size_bytes: on_progress(TIMELINES, size_bytes),
                )
            disk.remove(SALVAGE_MARKER)
        finally:
            disk.unlock()
    finally:
        backend.close()
    return salvaged


def _check_folders(source: Path, folder: Path) -> None:
    names = ("segments", "manifests", "snapshots", FACTS, TIMELINES)
    if not any((source / name).exists() for name in names):
        raise BadRequestError(f"{source} is not a data folder: it has none of {', '.join(names)}")
    check_restored(source)
    here, there = source.resolve(), folder.resolve()
    if there.is_relative_to(here) or here.is_relative_to(there):
        raise BadRequestError(f"{folder} and {source} are in one another: name another folder")
    if not folder.exists() or (folder / SALVAGE_MARKER).exists():
        return
    if not folder.is_dir() or any(not _is_ours(path.name) for path in folder.iterdir()):
        raise BadRequestError(f"{folder} is not empty: salvage makes a new folder")


def _is_ours(name: str) -> bool:
    # What is there before the marker is.
    return name == "lock" or name.startswith(".new-")


def _clear(folder: Path) -> None:
    """Remove what a salvage has left that was cut short; its marker last."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in ("lock", SALVAGE_MARKER):
            path.unlink()
    LocalDisk(folder).remove(SALVAGE_MARKER)


def _salvage_facts(source: Path, folder: Path, salvaged: Salvaged) -> None:
    with copied(source) as copy:
        if copy is None:
            return
        found = salvage_facts(copy)
    write_facts(folder, found.facts, found.revision)
    dropped = asyncio.run(_repair(folder))
    salvaged.facts = len(found.facts) - len(dropped)
    salvaged.lost_facts = sorted([*found.lost, *dropped])
    salvaged.knows_facts = found.is_whole


async def _repair(folder: Path) -> list[str]:
    metadata = SqliteMetadata(folder)
    try:
        return await repair_registry(metadata)
    finally:
        await metadata.close()
