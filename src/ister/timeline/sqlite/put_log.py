"""Reading the log of puts that earlier versions kept beside the file of SQLite.

They had a lone put on the disk in this log before it was in the tables. Nothing writes one any
more. A log that a crash of such a version has left is stored when the file is opened, and removed.

    file     HEADER, then records, then zeros
    record   HEAD, the put in msgpack, zeros up to a multiple of eight

Always true:
- versions rise from record to record. The tables have all up to `head.logged`, which is written in
  the same commit as their rows: none is stored twice, or comes back once it is deleted;
- `mark` was drawn at random for each file: bytes that a producer sent cannot pass for a record;
- a record that was not written to its end was promised to nobody. One that is broken and has
  others behind it was: unless the tables have it, that is an error, and nothing is guessed.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import msgspec

from ister.base.errors import CorruptedError
from ister.base.limits import MIB
from ister.timeline.model import Put

if TYPE_CHECKING:
    from ister.log import Disk

SUFFIX = "-puts"
# As large as such a file was.
LOG_BYTES = 1 * MIB

MAGIC = b"isterput"
MARK_BYTES = 8
# Magic, mark, checksum of both.
HEADER = struct.Struct("<8s8sI4x")
# Mark, version, bytes of the put, checksum of the last two and the put.
HEAD = struct.Struct("<8sQII")
CHECKED = struct.Struct("<QI")


class Logged(NamedTuple):
    """A put with the version it was given."""

    version: int
    put: Put


def load_puts(disk: "Disk", name: str, after: int) -> list[Logged]:
    """Return the puts with versions above `after`, or raise `CorruptedError` and `OSError`."""
    try:
        file = disk.open(name)
    except FileNotFoundError:
        return []
    try:
        data = file.read(0, LOG_BYTES)
    finally:
        file.close()
    if not any(data[: HEADER.size]):
        return []  # Nothing was promised before its header was on the disk.
    try:
        magic, mark, checksum = HEADER.unpack_from(data)
        if magic != MAGIC or crc32(magic + mark) != checksum:
            raise CorruptedError(name, 0, "the log of puts is not what was written")
        return [found for found in _records(data, mark, name, after) if found.version > after]
    except (struct.error, msgspec.DecodeError) as error:
        raise CorruptedError(name, 0, f"the log of puts: {error}") from error


def _records(data: bytes, mark: bytes, name: str, after: int) -> Iterator[Logged]:
    """Go through all records; raise for a broken one that the tables may not have."""
    position = HEADER.size
    while True:
        record = _find_record(data, mark, position)
        if record is not None:
            logged, position = record
            yield logged
            continue
        broken, position = position, _find_next(data, mark, position)
        if position < 0:
            return
        found = _find_record(data, mark, position)
        if found is not None and found[0].version > after:
            raise CorruptedError(name, broken, "a put that was logged is not what was written")


def salvage_puts(data: bytes, after: int) -> tuple[list[Logged], bool]:
    """Return the puts of a damaged log; and whether none is missing of those above `after`."""
    found: list[Logged] = []
    if not any(data):
        return found, True
    # The first record has the mark as well, if the header is not intact.
    mark = data[HEADER.size : HEADER.size + MARK_BYTES]
    with suppress(struct.error):
        magic, in_header, checksum = HEADER.unpack_from(data)
        if magic == MAGIC and crc32(magic + in_header) == checksum:
            mark = in_header
    if len(mark) < MARK_BYTES or not any(mark):
        return found, False
    is_whole = True
    position = HEADER.size
    while True:
        record = _find_record(data, mark, position)
        if record is None:
            position = _find_next(data, mark, position)
            if position < 0:
                return found, is_whole
            record = _find_record(data, mark, position)
            is_whole = is_whole and record is not None and record[0].version <= after
        if record is not None:
            found.append(record[0])
            position = record[1]


def _find_next(data: bytes, mark: bytes, position: int) -> int:
    """Return where the next whole record begins, -1 for nowhere."""
    while (position := data.find(mark, position + 1)) >= 0:
        if position % 8 == 0 and _find_record(data, mark, position) is not None:
            break
    return position


def _find_record(data: bytes, mark: bytes, position: int) -> tuple[Logged, int] | None:
    """Return a record, and where the next one is; `None`: there is none, or no whole one."""
    start = position + HEAD.size
    if start > len(data):
        return None
    found, version, size, checksum = HEAD.unpack_from(data, position)
    body = data[start : start + size]
    if found != mark or crc32(body, crc32(CHECKED.pack(version, size))) != checksum:
        return None
    end = start + size
    return Logged(version, _puts.decode(body)), end + -end % 8


_puts = msgspec.msgpack.Decoder(Put)
