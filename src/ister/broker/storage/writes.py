"""What is stored together: how a write gets into the journal, and what is visible afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ister.broker.state import Change, TopicRecord, encode_changes
from ister.codec import Batch
from ister.log import Kind, Log


class Target(Protocol):
    """A topic that stores batches: it has stamped them before they are written."""

    record: TopicRecord

    def on_committed(self, batch: Batch, *, sequenced: bool) -> None:
        """Have a batch seen by everybody: it is stored."""


class Writable(Protocol):
    """What `Storage.commit` takes."""

    @property
    def changes(self) -> Sequence[Change]:
        """What the state takes once it is stored."""

    def append_to(self, log: Log) -> None:
        """Add it to the group that the log collects."""

    def show(self) -> None:
        """Have its batches seen: they are stored."""


class Publish:
    """One batch as its producer sent it, with the producer's sequence numbers."""

    __slots__ = ("_batch", "_sync", "_target")

    changes: Sequence[Change] = ()

    def __init__(self, target: Target, batch: Batch, *, sync: bool) -> None:
        self._target = target
        self._batch = batch
        self._sync = sync

    def append_to(self, log: Log) -> None:
        """See `Writable`."""
        batch = self._batch
        log.append(
            Kind.BATCH,
            self._target.record.topic,
            (batch.stamp_bytes(), batch.tail),
            count=batch.count,
            base_offset=batch.base_offset,
            time_ms=batch.publish_time_ms,
            sync=self._sync,
        )

    def show(self) -> None:
        """See `Writable`."""
        self._target.on_committed(self._batch, sequenced=True)


@dataclass(slots=True, kw_only=True)
class Write:
    """Batches and changes as one entry, stored whole or not at all.

    The batches count as nobody's: what their producers are known by is among the changes.
    """

    batches: Sequence[tuple[Target, Batch]] = ()
    changes: Sequence[Change] = ()
    # For the journal alone: the caller has put them into the state already and takes them back
    # with an error, or puts them there when it is called back.
    journal_only: Sequence[Change] = ()
    sync: bool = True

    def append_to(self, log: Log) -> None:
        """See `Writable`."""
        changes = encode_changes([*self.journal_only, *self.changes])
        if not self.batches:
            log.append(Kind.CHANGES, 0, (changes,), sync=self.sync)
            return
        parts = [
            (
                target.record.topic,
                batch.base_offset,
                batch.publish_time_ms,
                batch.count,
                (batch.stamp_bytes(), batch.tail),
            )
            for target, batch in self.batches
        ]
        log.append_transaction(parts, changes, sync=self.sync)

    def show(self) -> None:
        """See `Writable`."""
        for target, batch in self.batches:
            target.on_committed(batch, sequenced=False)
