"""What a timeline needs of all timelines of the broker together."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ister.base.errors import IsterError
from ister.broker.timelines.leasing.max_clock import MaxClock
from ister.telemetry import Occasions

if TYPE_CHECKING:
    from ister.broker.timelines.leasing.topic import TimelineTopic


class Host(Protocol):
    """All timelines, as one of them knows them."""

    # Throttles the log for all topics together.
    told: Occasions
    # Up to when messages have been due.
    max_clock: MaxClock

    def gives_way(self, now_ms: int) -> bool:
        """Return whether others publish to topics that are no timelines."""

    def mark_dirty(self, topic: "TimelineTopic") -> None:
        """Have a topic looked at when this turn's share of a commit was told of."""

    def find_letters(
        self, topic: "TimelineTopic", done: Callable[["TimelineTopic | IsterError"], object]
    ) -> None:
        """Find the topic that dead letters of `topic` go to, or make it."""
