"""What a broker needs of the place where timelines are kept. Plain blocking calls, in threads."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ister.base.errors import IsterError
from ister.timeline.model import Changed, Row, Slot, Work

# For each change of a piece of work, in order: what it made of its message (of a lease the whole
# of it, to be delivered), or why it was refused. Of atomic work that was refused: why, alone.
Outcome = Changed | Row | IsterError
Outcomes = list[Outcome] | IsterError


class TopicRow(NamedTuple):
    """A topic as it is stored. `number` is given by the store, and never to another."""

    number: int
    name: str
    kind: str
    # Whatever the broker wants to know of it after a restart.
    settings: bytes = b""


class Store(Protocol):
    """Timelines on a disk or in a database.

    Always true of every implementation (the tests of all are the same):
    - what `apply` has returned for is on the disk, and what it raised `StorageFailedError` for may
      be there or not: whoever made it looks again;
    - each precondition is checked in the same step as the change;
    - all work of one call is made in its order, as one after the other, and durable together;
    - one that was closed, or whose storage failed, may be used again: it opens anew.
    """

    def topics(self) -> list[TopicRow]:
        """Return all topics."""

    def create_topic(self, name: str, kind: str, settings: bytes) -> TopicRow:
        """Make a topic, or raise `TopicExistsError`."""

    def delete_topic(self, number: int) -> None:
        """Remove a topic with all its messages. Harmless when it is gone."""

    def apply(self, now_ms: int, work: Sequence[Work]) -> list[Outcomes]:
        """Make changes; the outcomes are in the order of the work."""

    def scan(
        self, topic: int, level: int, after: tuple[int, int], until_ms: int, limit: int
    ) -> list[Slot]:
        """Return slots of a level by position and seq: behind `after`, up to `until_ms` with it."""

    def levels(self, topic: int) -> dict[int, int]:
        """Return the levels that have messages, each with its first position."""

    def held(self, topic: int, holder: str, after: tuple[int, int], limit: int) -> list[Row]:
        """Return the messages that a consumer has or had a lease of, a page of them.

        By position, where their leases end, and seq, behind `after`: those of leases that are alive
        or to be are behind now.
        """

    def get(self, topic: int, id: str) -> Row | None:
        """Return a message."""

    def page(
        self, topic: int, start_ms: int, end_ms: int, after: tuple[int, int], limit: int
    ) -> list[Row]:
        """Return messages that stand from `start_ms` up to before `end_ms`, a page of them.

        By position and seq, behind `after`; of all levels together.
        """

    def count(self, topic: int, start_ms: int, end_ms: int) -> int:
        """Return how many messages stand from `start_ms` up to before `end_ms`."""

    def close(self) -> None:
        """Let go of files and connections."""
