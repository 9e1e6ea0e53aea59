"""Dead letters of a timeline go back to it, a page of them at a time.

Always true: a letter is among the dead letters or back in its topic, never both and never neither:
the store moves it in one step. One that a consumer has stays where it is.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, NamedTuple

from ister.base.errors import (
    IsterError,
    MessageChangedError,
    MessageLeasedError,
    MessageNotFoundError,
)
from ister.base.limits import TIMELINE_PAGE_MAX
from ister.broker.timelines.leasing import free_slot
from ister.timeline import Changed, Outcomes, Redrive, Row, Work, find_origin

if TYPE_CHECKING:
    from ister.broker.timelines.leasing import TimelineTopic

# Somebody else was quicker, and has the letter now or has removed it.
OVERTAKEN = (MessageChangedError, MessageLeasedError, MessageNotFoundError)


class RedrivePage(NamedTuple):
    """Which letters: `limit` at most (0: the whole page), due by `until_ms` (0: now)."""

    limit: int
    until_ms: int
    after: tuple[int, int]


class Redriven(NamedTuple):
    """How many went back; and up to when letters were due, and behind which the next page is."""

    moved: int
    until_ms: int
    after: tuple[int, int] | None


OnRedriven = Callable[[Redriven | IsterError], object]


def redrive_page(
    topic: "TimelineTopic", letters: "TimelineTopic | None", page: RedrivePage, done: OnRedriven
) -> None:
    """Send a page of letters back to a topic; there are none where no letter was ever needed."""
    until_ms = page.until_ms or topic.clock.now_ms()
    if letters is None:
        done(Redriven(0, until_ms, None))
    else:
        _RedriveCall(topic, letters, page._replace(until_ms=until_ms), done).begin()


class _RedriveCall:
    """One page of dead letters on its way back."""

    def __init__(
        self,
        topic: "TimelineTopic",
        letters: "TimelineTopic",
        page: RedrivePage,
        done: OnRedriven,
    ) -> None:
        self._topic = topic
        self._letters = letters
        self._page = page
        self._done = done

    def begin(self) -> None:
        """Have the page looked at."""
        limit = min(TIMELINE_PAGE_MAX, self._letters.round_max())
        end_ms, after = self._page.until_ms + 1, self._page.after
        call = methodcaller("page", self._letters.number, 0, end_ms, after, limit)
        self._topic.committer.query(call, partial(self._on_page, limit))

    def _on_page(self, limit: int, rows: Sequence[Row] | IsterError) -> None:
        if isinstance(rows, IsterError):
            self._done(rows)
            return
        last = rows[-1] if len(rows) == limit else None
        after = None if last is None else (last.position_ms, last.seq)
        own = [row for row in rows if self._is_own(row)]
        if self._page.limit:
            own = own[: self._page.limit]
        if not own:
            self._done(Redriven(0, self._page.until_ms, after))
            return
        topic, letters = self._topic, self._letters
        flat = topic.levels < letters.levels
        changes = [Redrive(letters.number, r.seq, r.version, topic.number, flat) for r in own]
        topic.committer.add(Work([*changes]), partial(self._on_moved, own, after))

    def _is_own(self, row: Row) -> bool:
        """Return whether a letter is one of the topic: several may share a topic for theirs.

        Letters of earlier versions do not say where they come from, but they were leased.
        """
        origin = find_origin(row.attributes)
        return row.leases > 0 if origin is None else origin == self._topic.name

    def _on_moved(
        self, rows: Sequence[Row], after: tuple[int, int] | None, outcomes: Outcomes
    ) -> None:
        topic, letters = self._topic, self._letters
        if isinstance(outcomes, IsterError):
            topic.fail()
            letters.fail()
            self._done(outcomes)
            return
        moved, error = 0, None
        for row, outcome in zip(rows, outcomes, strict=True):
            if isinstance(outcome, Changed):
                moved += 1
                letters.forget(row.seq)
                topic.record(free_slot(outcome), min(row.level, topic.levels - 1))
            elif isinstance(outcome, IsterError) and not isinstance(outcome, OVERTAKEN):
                error = outcome
        letters.mark_dirty()
        self._done(error or Redriven(moved, self._page.until_ms, after))
