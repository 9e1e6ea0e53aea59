"""Saves the cursors of durable subscriptions under names, within limits.

Always true: the saved cursors of a subscription take at most `SAVED_CURSORS_BYTES_MAX`, and those
of a journal `ALL_SAVED_CURSORS_BYTES_MAX`; those on their way to the journal count.
"""

from collections.abc import Callable

from msgspec import Raw

from ister.base.errors import (
    IsterError,
    LimitReachedError,
    SnapshotNotFoundError,
    SubscriptionNotFoundError,
)
from ister.base.limits import (
    ALL_SAVED_CURSORS_BYTES_MAX,
    SAVED_CURSORS_BYTES_MAX,
    SNAPSHOTS_MAX,
)
from ister.broker.durable import DurableSubscription, Partition
from ister.broker.scheduling import Done, Steps
from ister.broker.state import CursorSaved, decode_cursors, encode_cursors
from ister.broker.storage import Write
from ister.subscriptions import Cursor


class SavedCursors:
    """The saved cursors that are on their way to the journal."""

    def __init__(self) -> None:
        # What the journal does not have yet: subscription, name, bytes.
        self._pending: list[tuple[DurableSubscription, str, int]] = []

    def save(self, durable: DurableSubscription, name: str, done: Done) -> Steps:
        """Save where a subscription stands, step by step.

        Of messages that are acknowledged meanwhile, some may count as acknowledged.
        """
        try:
            self._check(durable, name, 0)
            data = yield from encode_cursors(durable.record.cursors)
            self._check(durable, name, len(data))
            pending = (durable, name, len(data))
            change = CursorSaved(durable.number, name, Raw(data))

            def on_done(error: IsterError | None) -> None:
                self._pending.remove(pending)
                done(error)

            durable.storage.commit(Write(changes=[change]), on_done)
            self._pending.append(pending)
        except IsterError as error:
            done(error)

    def _check(self, durable: DurableSubscription, name: str, size_bytes: int) -> None:
        if durable.closed:
            raise SubscriptionNotFoundError(durable.pattern, durable.name)
        state, saved = durable.storage.state, durable.record.saved
        own = [(word, size) for one, word, size in self._pending if one is durable]
        others = saved.keys() | {word for word, _ in own}
        if name not in others and len(others) >= SNAPSHOTS_MAX:
            raise LimitReachedError("snapshots_max", SNAPSHOTS_MAX)
        # The one that is replaced, if there is one, until the journal has the other.
        size_bytes -= len(saved.get(name, b""))
        all_bytes = state.saved_bytes + sum(
            size for one, _, size in self._pending if one.storage is durable.storage
        )
        own_bytes = sum(map(len, saved.values())) + sum(size for _, size in own)
        if own_bytes + size_bytes > SAVED_CURSORS_BYTES_MAX:
            raise LimitReachedError("saved_cursors_bytes_max", SAVED_CURSORS_BYTES_MAX)
        if all_bytes + size_bytes > ALL_SAVED_CURSORS_BYTES_MAX:
            raise LimitReachedError("all_saved_cursors_bytes_max", ALL_SAVED_CURSORS_BYTES_MAX)


def saved_cursors(durable: DurableSubscription, saved: str) -> dict[int, bytes]:
    """Return the cursors that were saved under a name, by topic number."""
    cursors = durable.record.saved.get(saved)
    if cursors is None:
        raise SnapshotNotFoundError(durable.name, saved)
    return decode_cursors(cursors)


def cursor_of(saved: dict[int, bytes]) -> Callable[[Partition], Cursor]:
    """Return what gives the saved cursor of a topic, or its start if it has none."""

    def of_partition(partition: Partition) -> Cursor:
        data = saved.get(partition.topic.record.topic)
        # Without what had failed until then: a message that is delivered anew starts anew.
        return Cursor(0) if data is None else Cursor.decode(data).without_failures()

    return of_partition
