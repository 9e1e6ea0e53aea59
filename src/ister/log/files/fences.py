"""Fences: empty chunks that stop former owners, and how long they are kept.

A former owner that was paused during a commit resumes by writing its next chunk. It finds the fence
of the new owner in that place, and stops. If the fence were removed, the former owner would
acknowledge messages that nobody ever reads. So a fence is kept after the checkpoint that drops it,
for as long as a process may be paused: a machine may be suspended over a holiday, or restored from
its memory image.

A far fence is written ahead of the end, against a former owner that never pauses (see `chunks`).
Its role says so. It is never encrypted: it holds nothing, and a broker that gets its keys later
must not mistake it for a file that was slipped in.
"""

from collections.abc import Iterable
from typing import NamedTuple

from ister.log.files.header import begin_file

FENCE_ROLE = "fence"
# A fence has less than 2 KB. A broker that starts every ten seconds writes 60,000 fences in a week:
# 120 MB. All neighbouring fences that one checkpoint drops share a row of the manifest.
FENCE_KEPT_MS = 7 * 24 * 3_600_000


class Fence(NamedTuple):
    """Neighbouring chunks, `first` to `end` (exclusive), and when a checkpoint dropped them."""

    first: int
    end: int
    dropped_ms: int

    @property
    def numbers(self) -> range:
        """The numbers of the chunks."""
        return range(self.first, self.end)


def keep_fences(
    fences: Iterable[Fence], dropped: Iterable[int], now_ms: int
) -> tuple[tuple[Fence, ...], tuple[Fence, ...]]:
    """Return the fences to keep, including those `dropped` now, and the fences to remove.

    If the clock is set back, fences are kept longer.
    """
    known = list(fences)
    kept = [fence for fence in known if now_ms - fence.dropped_ms < FENCE_KEPT_MS]
    expired = [fence for fence in known if now_ms - fence.dropped_ms >= FENCE_KEPT_MS]
    added: list[Fence] = []
    for number in sorted(dropped):
        if added and added[-1].end == number:
            added[-1] = added[-1]._replace(end=number + 1)
        else:
            added.append(Fence(number, number + 1, now_ms))
    return (*kept, *added), tuple(expired)


def encode_far_fence(number: int, *, owner: str, epoch: int, now_ms: int) -> bytes:
    """Return a chunk to be made ahead of the end: it says who made it, and holds nothing."""
    begun = begin_file(
        "fence", number, first_entry=0, owner=owner, now_ms=now_ms, keyring=None, epoch=epoch
    )
    return b"".join(begun.parts)
