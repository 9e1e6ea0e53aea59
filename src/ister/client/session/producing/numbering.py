"""How a producer's messages on a stream are numbered, so that each is stored once.

The broker takes a producer's messages in the order of their numbers, and answers a number below
the next one with the offset it got then. So what may have been stored is sent again under its old
numbers and in its old batches; what cannot have been is numbered anew.
"""

from collections.abc import Iterable

from ister.client.session.producing.pending import UNNUMBERED, PendingBatch


def number_anew(batches: Iterable[PendingBatch], next_sequence: int) -> bool:
    """Take the numbers from those of `batches` that cannot be stored if `next_sequence` is due.

    They get numbers again, from `next_sequence` on, when they are sent. Returns whether all
    batches are as we sent them: else another producer has used our numbers, and under those our
    messages would be taken for its own.
    """
    for batch in batches:
        if batch.first_sequence == UNNUMBERED:
            continue
        if batch.first_sequence >= next_sequence:
            batch.first_sequence = UNNUMBERED
        elif batch.first_sequence + len(batch.payloads) > next_sequence and batch.ids is None:
            # Batches are stored whole, but for messages whose ids were known.
            return False
    return True
