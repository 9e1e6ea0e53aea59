"""Which files make up a log at one moment, for a copy that is made while the log is written to.

Always true:
- a sealed file, a manifest and a snapshot never change, and the open file only grows: so the files
  named here, the open one up to its committed end, are the log as it was at that moment;
- whatever a later checkpoint drops may be removed. Who copies keeps another name of each file.
"""

from typing import NamedTuple

from ister.base.errors import BadRequestError
from ister.log.files.manifest import Kept
from ister.log.files.segment import Place, epoch_name, manifest_name, segment_name, snapshot_name
from ister.log.index.index import Index


class FilePart(NamedTuple):
    """A file of a log, and how much of it belongs to the copy: -1 for all."""

    name: str
    size_bytes: int = -1


def files_of(index: Index, kept: tuple[Kept, ...], *, epoch: int, open_end: int) -> list[FilePart]:
    """Return the files that a copy of a log on a disk needs.

    `kept` are the manifests that are kept, the one in force last; `open_end` is where the committed
    entries of the open file end. Raises `BadRequestError` when a segment is not on the disk.
    """
    if any(segment.place is not Place.LOCAL for segment in index.segments):
        raise BadRequestError(
            "segments were moved to the store of --tier, which a backup does not copy: copy the "
            "store with its own tools, or keep segments on the disk by a longer --tier-after"
        )
    files = [FilePart(segment.name) for segment in index.segments]
    if index.open_segment is not None:
        files.append(FilePart(segment_name(index.open_segment.number), open_end))
    if kept:
        number, snapshot = kept[-1]
        files.append(FilePart(manifest_name(number)))
        if snapshot >= 0:
            files.append(FilePart(snapshot_name(snapshot)))
    files.append(FilePart(epoch_name(epoch)))
    return sorted(files)
