"""How a log is kept."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ister.base.errors import NotEncryptedError
from ister.base.limits import KIB, MIB
from ister.log.files.ports import Keyring, Store

# A file is what is replayed after a crash (128 MiB take about a quarter of a second), what
# retention removes at once, and what an upload is.
SEGMENT_BYTES = 128 * MIB
# What the first file begins with. It doubles when it is half full, so that a broker with little to
# store takes little of the disk. Seven times, then it has all of `SEGMENT_BYTES`, and so have later
# files from their beginning.
ALLOCATE_BYTES = 1 * MIB
# Replay costs about 3 µs for each entry beside its bytes: below a second.
SEGMENT_ENTRIES = 262_144
# Four rows of 56 B for each MiB; a read of a quarter MiB takes about 50 µs from the page cache.
EXTENT_BYTES = 256 * KIB
# Written but not synced: kept in memory, so that a disk that fails loses nothing of it.
UNSYNCED_BYTES_MAX = 8 * MIB


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """How a log is kept. The defaults are for production; tests take smaller files."""

    # A file is sealed when it has this many bytes or entries.
    segment_bytes: int = SEGMENT_BYTES
    segment_entries: int = SEGMENT_ENTRIES
    allocate_bytes: int = ALLOCATE_BYTES
    extent_bytes: int = EXTENT_BYTES
    unsynced_bytes_max: int = UNSYNCED_BYTES_MAX
    # Where sealed segments of a log on a disk may be moved to.
    remote: Store | None = None
    # Encryption at rest.
    ciphers: Keyring | None = None
    # With keys: whether a log may be opened that was written without any.
    accept_plain: bool = True
    now_ms: Callable[[], int] = _now_ms

    def check_plain(self, file: str) -> None:
        """Raise `NotEncryptedError` unless a log may be opened of which `file` is not encrypted.

        For what an encrypted manifest does not vouch for: somebody without keys may have put it
        there, in the place of a log that was encrypted.
        """
        if self.ciphers is not None and not self.accept_plain:
            raise NotEncryptedError(file)
