"""A series as it is found again: PART entries, and the TRANSACTION that makes them count.

Always true: nothing of a series is applied or indexed before its last entry was found. All of it
was written in one group, so it lies in one file, and only the torn end of a log can lack that
entry; anywhere else its absence is corruption.
"""

from collections.abc import Iterator

from ister.base.errors import CorruptedError
from ister.log.files.entry import HEADER_BYTES, Header, Kind
from ister.log.files.scan import Read


class Series:
    """The PART entries of one file that wait for the entry which closes them.

    Only their headers are kept: a series has up to a GiB. Their bodies are read once more.
    """

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[tuple[Header, int]] = []

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def position(self) -> int:
        """Where the first of them lies."""
        return self._parts[0][1]

    def holds(self, header: Header, position: int, file: str) -> bool:
        """Take an intact entry: return whether it waits. Else `take` has what it closes.

        Raises `CorruptedError` when it is neither a part nor what the parts before it wait for.
        """
        if header.kind == Kind.PART:
            self._parts.append((header, position))
            return True
        closes = header.count if header.kind == Kind.TRANSACTION else 0
        if closes != len(self._parts):
            raise CorruptedError(
                file,
                position,
                f"an entry that closes a series of {closes} after {len(self._parts)} parts of one",
            )
        return False

    def forget(self) -> None:
        """Wait for nothing any more."""
        self._parts.clear()

    def take(self, read: Read) -> Iterator[tuple[Header, int, memoryview]]:
        """Yield header, position and stored body of each part, and forget them all."""
        parts, self._parts = self._parts, []
        for header, position in parts:
            yield header, position, memoryview(read(position + HEADER_BYTES, header.length))
