"""Reading the entries of a file one after the other, and what to make of the place where they end.

A file is written ahead of what is known to be on the disk, so a crash can leave anything behind
the last synced byte: half an entry, holes, later entries without earlier ones. The first place
without a good entry is therefore the end, unless a later entry proves that this place had been on
the disk: then bytes that were promised are gone, and nobody may go on as if they never were.
"""

from collections.abc import Callable, Iterator

from ister.base.errors import CorruptedError
from ister.base.limits import MIB
from ister.codec import crc32c
from ister.log.files.entry import (
    CRC,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAGIC_BYTES,
    MAGIC_POSITION,
    FileHeader,
    Header,
    Kind,
    decode_file_header,
    is_intact,
    parse_header,
)

Read = Callable[[int, int], bytes]

# One read; an entry that is larger is read by itself.
PIECE_BYTES = 4 * MIB


class Scan:
    """The intact entries of a file, in order.

    Afterwards `position` is the end of the last one, and `fault` tells why it was the last: empty
    when the file ends there, or has only zeros there as a file does that was allocated ahead.
    """

    def __init__(self, read: Read, size_bytes: int, *, position: int = 0) -> None:
        self.position = position
        self.fault = ""
        self._read = read
        self._size = size_bytes
        self._piece = memoryview(b"")
        self._piece_position = 0

    def __iter__(self) -> Iterator[tuple[Header, int, memoryview]]:
        """Yield header, position and stored body of each."""
        # Every entry of the journal goes through here at a start: no call that can be saved.
        while True:
            position = self.position
            piece = self._piece
            at = position - self._piece_position
            if at + HEADER_BYTES > len(piece):
                piece = self._load(position, HEADER_BYTES)
                at = 0
                if len(piece) < HEADER_BYTES:
                    self.fault = "the entry is cut off" if any(piece) else ""
                    return
            fields = HEADER.unpack_from(piece, at)
            if fields[2] != MAGIC:
                is_empty = not any(piece[at : at + HEADER_BYTES])
                self.fault = "" if is_empty else "there is no entry"
                return
            length = fields[1]
            end = at + HEADER_BYTES + length
            if end > len(piece):
                if position + HEADER_BYTES + length > self._size:
                    self.fault = "the entry reaches past the end of the file"
                    return
                piece = self._load(position, HEADER_BYTES + length)
                at, end = 0, HEADER_BYTES + length
            if len(piece) < end or fields[0] != crc32c(piece[at + CRC.size : end]):
                self.fault = "the checksum does not match"
                return
            self.position = position + HEADER_BYTES + ((length + 7) & ~7)
            yield tuple.__new__(Header, fields), position, piece[at + HEADER_BYTES : end]

    def _load(self, position: int, size_bytes: int) -> memoryview:
        """Read on at `position`, at least `size_bytes` if the file has them."""
        wanted = min(max(PIECE_BYTES, size_bytes), max(self._size - position, 0))
        self._piece = memoryview(self._read(position, wanted))
        self._piece_position = position
        return self._piece


def read_file_header(read: Read, size_bytes: int, file: str) -> tuple[Header, FileHeader] | None:
    """Return the header of a file, or `None` when there is no intact one.

    Raises `CorruptedError` when it is intact and says something we do not understand.
    """
    # Not a whole piece: at start-up this is read of every file.
    size = min(size_bytes, 4096)
    head = memoryview(read(0, size))
    if len(head) < HEADER_BYTES:
        return None
    header = parse_header(head, 0)
    if header is None or header.kind != Kind.HEADER or header.length > size_bytes:
        return None
    if len(head) < HEADER_BYTES + header.length:
        head = memoryview(read(0, HEADER_BYTES + header.length))
    if len(head) < HEADER_BYTES + header.length or not is_intact(head, 0, header.length):
        return None
    body = head[HEADER_BYTES : HEADER_BYTES + header.length]
    return header, decode_file_header(body, file)


def header_of(data: bytes, file: str) -> FileHeader | None:
    """Return the header of a chunk or manifest, or `None` when it is not intact."""
    found = read_file_header(
        lambda position, size: data[position : position + size], len(data), file
    )
    return found[1] if found is not None else None


def owner_of(data: bytes, file: str) -> str:
    """Return who made a chunk or manifest; empty when its header is not intact."""
    header = header_of(data, file)
    return header.owner if header is not None else ""


def find_proof(
    read: Read, size_bytes: int, *, position: int, number: int, mark: int | None
) -> int | None:
    """Return where an intact entry lies that proves that `position` had been on the disk.

    `number` is what the entry at `position` should have; `mark` is that of the file, if known.
    """

    def proves(header: Header, here: int) -> bool:
        return (
            position < header.synced <= here
            and header.number >= number
            and (mark is None or header.mark == mark)
        )

    return find_entry(read, size_bytes, position=position, accept=proves)


def find_entry(
    read: Read, size_bytes: int, *, position: int, accept: Callable[[Header, int], bool]
) -> int | None:
    """Return where the first intact entry behind `position` lies that is accepted.

    `accept` gets its header and position. Without a look at the mark of the file it may be taken
    in by a message that contains the bytes of an entry.
    """
    start = position
    while start < size_bytes:
        piece = read(start, min(PIECE_BYTES, size_bytes - start))
        at = piece.find(MAGIC_BYTES, MAGIC_POSITION)
        while at >= 0 and at - MAGIC_POSITION + HEADER_BYTES <= len(piece):
            here = start + at - MAGIC_POSITION
            if here % 8 == 0 and here > position:
                header = Header._make(HEADER.unpack_from(piece, at - MAGIC_POSITION))
                size = HEADER_BYTES + header.length
                if here + size <= size_bytes and accept(header, here):
                    entry = memoryview(read(here, size))
                    if len(entry) == size and is_intact(entry, 0, header.length):
                        return here
            at = piece.find(MAGIC_BYTES, at + 1)
        if start + len(piece) >= size_bytes or len(piece) < HEADER_BYTES:
            return None
        # The header of an entry may begin in this piece and end in the next.
        start += len(piece) - HEADER_BYTES + 8
    return None


def corrupted(file: str, scan: Scan) -> CorruptedError:
    """Return the error for the place where `scan` came to its end."""
    return CorruptedError(file, scan.position, scan.fault or "zeros where an entry should be")
