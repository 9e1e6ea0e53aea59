"""How far a topic has been compacted, as the index of its segments tells: nothing else is kept.

Always true: a message that compaction dropped had a newer one of its key below the end that is
returned. So what a topic held at an offset from there on is still known, and what it held before
may not be.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ister.log.files.segment import Form, Span


class Compacted(NamedTuple):
    """Up to where a topic has been compacted; 0: not at all."""

    end_offset: int
    # Whether the message before `end_offset` is gone, and with it the time it was published.
    ends_in_hole: bool


def find_compacted(
    spans: Sequence[Span], first_offset: int, open_first: int | None, next_offset: int
) -> Compacted:
    """Return how far a topic has been compacted.

    `spans` are its sealed segments, `open_first` its first message in the open one. Offsets have no
    holes but those of compaction, which may have dropped all of a segment.
    """
    found = Compacted(0, ends_in_hole=False)
    expected = first_offset
    for span in spans:
        if span.first_offset > expected:
            found = Compacted(span.first_offset, ends_in_hole=True)
        if span.segment.form is Form.KEYED:
            found = Compacted(span.end_offset, ends_in_hole=False)
        expected = max(expected, span.end_offset)
    last = next_offset if open_first is None else open_first
    return Compacted(last, ends_in_hole=True) if last > expected else found
