"""Objects of the remote tier that no manifest names, noted on the disk as long as they are there.

An upload comes before the manifest that names it, a removal after the one that names it no more.
A crash in between leaves an object that nobody knows of. That it is not named proves nothing: a
tier may hold objects of other brokers. A note does: it has the number of the object, and who makes
it, which the header of the object must say, too.

Always true: an object of ours that no manifest names has a note.
"""

from collections.abc import Set as AbstractSet
from contextlib import suppress

from ister.base.errors import CorruptedError, ObjectExistsError
from ister.log.files.ports import Store
from ister.log.files.scan import read_file_header
from ister.log.files.segment import UPLOADS, number_of, segment_name, upload_name
from ister.log.journal.backend import Backend

# The maker in the note of an object that a manifest has named: it is ours, whoever made it.
NAMED = b""


class Uploads:
    """The notes of one log. For workers."""

    def __init__(self, backend: Backend, store: Store, owner: str) -> None:
        self._backend = backend
        self._store = store
        self._owner = owner.encode()

    def begin(self, number: int) -> None:
        """Note an object before it is made, or raise `ObjectExistsError`: take another number."""
        self._backend.put(upload_name(number), self._owner)

    def end(self, number: int) -> None:
        """Note an object before a manifest that does not name it any more."""
        with suppress(ObjectExistsError):
            self._backend.put(upload_name(number), NAMED)

    def discard(self, number: int) -> None:
        """Remove an object that was begun, if it came to be, and its note."""
        self._remove(number, self._owner)
        self._backend.remove(upload_name(number))

    def sweep(self, *, named: AbstractSet[int], dead: AbstractSet[int]) -> None:
        """Remove what a manifest that is in force does not name; `dead` it has dropped.

        What this process has begun and not dropped is left alone: its manifest is still to come.
        """
        for note in self._backend.names(UPLOADS):
            number = number_of(note)
            if number < 0:
                continue
            if number not in named:
                maker = self._backend.get(note)
                if maker == self._owner and number not in dead:
                    continue
                self._remove(number, maker)
            self._backend.remove(note)

    def _remove(self, number: int, maker: bytes) -> None:
        name = segment_name(number)
        if maker == NAMED or self._maker_of(name) == maker:
            self._store.remove(name)

    def _maker_of(self, name: str) -> bytes | None:
        try:
            found = read_file_header(
                lambda position, size: self._store.get_range(name, position, size), 2**62, name
            )
        except (FileNotFoundError, CorruptedError):
            return None
        return found[1].owner.encode() if found is not None else None
