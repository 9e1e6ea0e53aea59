"""Names and facts of the files of a log."""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

# A chunk with a header and nothing else is smaller, whatever its key is wrapped by.
FENCE_BYTES_MAX = 2_048


class Place(StrEnum):
    """Where a segment lies."""

    LOCAL = "local"
    REMOTE = "remote"
    CHUNK = "chunk"  # an object of one group commit


class Form(StrEnum):
    """How a segment came about."""

    JOURNAL = "journal"  # as it was written
    SORTED = "sorted"  # rewritten: what is live, topic by topic
    # Rewritten: one topic, and messages may be missing in it and around it: only the newest of each
    # key is left, or some were lost (see `salvage`).
    KEYED = "keyed"


SEGMENTS = "segments"
CHUNKS = "chunks"
MANIFESTS = "manifests"
SNAPSHOTS = "snapshots"
UPLOADS = "uploads"
EPOCHS = "epochs"

# What an owner makes in an object store, and every snapshot, has its epoch in its number: the
# first ten of twenty digits. So no two owners ever make or remove an object of the same name.
# Numbers fit into 64 bits up to epoch 922,337,202, which is a start every second for 29 years.
NUMBERS_PER_EPOCH = 10**10


@dataclass(frozen=True, slots=True)
class Segment:
    """A file that is not written to any more, or the open one (with sizes of 0)."""

    number: int
    place: Place
    size_bytes: int = 0
    # Where entries end. The footer is from here to `size_bytes`; without one both are the same.
    end: int = 0
    entries: int = 0
    form: Form = Form.JOURNAL
    # Of a rewritten segment: the place in time of the first one it was made of.
    order: int = 0

    @property
    def rank(self) -> int:
        """Its place in time: of two segments with messages of a topic, the lower has the older."""
        return self.order or self.number

    @property
    def name(self) -> str:
        """Its name on the disk or in the store."""
        return chunk_name(self.number) if self.place is Place.CHUNK else segment_name(self.number)

    @property
    def is_fence(self) -> bool:
        """Whether it is a chunk without entries, there to keep a former owner out."""
        return self.place is Place.CHUNK and not self.entries and self.size_bytes <= FENCE_BYTES_MAX

    @property
    def has_footer(self) -> bool:
        """Whether its extents can be read from its end."""
        return self.end < self.size_bytes


class Span(NamedTuple):
    """What a segment holds of one topic.

    `position` to `end` is the window to read; both are 0 when the footer of the segment knows.
    """

    segment: Segment
    first_offset: int
    end_offset: int
    first_ms: int
    last_ms: int
    own_bytes: int
    position: int = 0
    end: int = 0


def segment_name(number: int) -> str:
    """Return the name of a journal file or segment."""
    return f"{SEGMENTS}/{number:020d}.seg"


def chunk_name(number: int) -> str:
    """Return the name of a chunk."""
    return f"{CHUNKS}/{number:020d}"


def manifest_name(number: int) -> str:
    """Return the name of a manifest."""
    return f"{MANIFESTS}/{number:020d}"


def snapshot_name(number: int) -> str:
    """Return the name of a snapshot."""
    return f"{SNAPSHOTS}/{number:020d}"


def epoch_name(number: int) -> str:
    """Return the name of the file that says how often a log on a disk was opened."""
    return f"{EPOCHS}/{number:020d}"


def first_number(epoch: int) -> int:
    """Return the first number of a segment or snapshot that an epoch makes."""
    return epoch * NUMBERS_PER_EPOCH + 1


def epoch_of(number: int) -> int:
    """Return which epoch made a segment or snapshot of an object store."""
    return number // NUMBERS_PER_EPOCH


def upload_name(number: int) -> str:
    """Return the name of the note of an object in the remote tier."""
    return f"{UPLOADS}/{number:020d}"


def number_of(name: str) -> int:
    """Return the number in a name of a file of ours, or -1 when it is somebody else's."""
    digits = name.rpartition("/")[2].removesuffix(".seg")
    return int(digits) if len(digits) == 20 and digits.isdecimal() and digits.isascii() else -1
