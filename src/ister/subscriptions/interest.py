"""What subscriptions mean for retention: which messages are done with, and which must stay."""

from collections.abc import Collection

from ister.base import Retention


def settled_end(retention: str, floors: Collection[int], *, next_offset: int) -> int:
    """Return the offset below which messages go because they are acknowledged.

    `floors` are those of all subscriptions on the topic. Without one, nobody is interested in
    anything, but a work queue waits for its subscription.
    """
    match retention:
        case Retention.INTEREST:
            return min(floors, default=next_offset)
        case Retention.WORKQUEUE:
            return min(floors, default=0)
        case _:
            return 0


def limits_end(retention: str, floors: Collection[int], *, next_offset: int) -> int:
    """Return the offset up to which limits on age, bytes or messages may remove.

    Nothing that is not acknowledged is ever removed from a work queue.
    """
    if retention == Retention.WORKQUEUE:
        return min(floors, default=0)
    return next_offset
