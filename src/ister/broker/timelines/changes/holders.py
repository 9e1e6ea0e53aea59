"""Changes that consumers make of messages they have: done, for longer, given back or rejected."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from ister.base import span_text
from ister.base.errors import (
    BadRequestError,
    IsterError,
    MessageNotFoundError,
    TimelineLeaseLostError,
    TopicNotFoundError,
)
from ister.base.limits import TIMELINE_CHANGES_MAX
from ister.broker.timelines.leasing import REJECTED, Held, TimelineConsumer, cut_reason, free_slot
from ister.timeline import Bury, Change, Changed, Done, Extend, Outcome, Outcomes, Release, Work

if TYPE_CHECKING:
    from ister.broker.timelines.leasing import TimelineTopic


class Reject(NamedTuple):
    """Give a message back for good: it becomes a dead letter."""

    id: str
    version: int


HoldersChange = Extend | Release | Done | Reject

# A message is not its holder's any more.
GONE = (TimelineLeaseLostError, MessageNotFoundError)


def finish_leases(
    consumer: TimelineConsumer,
    changes: Sequence[HoldersChange],
    done: Callable[[Outcomes], object],
    reasons: Sequence[str] = (),
) -> None:
    """Finish, extend or give back messages of a consumer; topic and holder are filled in here.

    `done` is told what came of them. `reasons` are for the dead letters, one for each change, or
    none at all.
    """
    HoldersCall(consumer, changes, done, reasons).begin()


class HoldersCall:
    """Changes that were asked for together, each made for itself."""

    def __init__(
        self,
        consumer: TimelineConsumer,
        changes: Sequence[HoldersChange],
        done: Callable[[Outcomes], object],
        reasons: Sequence[str],
    ) -> None:
        self._topic = consumer.topic
        self._consumer = consumer
        self._changes = list(changes)
        # Why messages are given back: one for each change, or none at all.
        self._reasons = reasons
        # Where rejected messages go, and what moves them there, by id.
        self._letters: TimelineTopic | None = None
        self._rejections: dict[str, Bury] = {}
        self._done = done
        # By slot, why some are not even tried.
        self._refused: dict[int, IsterError] = {}

    def begin(self) -> None:
        """Have the changes made, unless they cannot be."""
        if self._topic.closed:
            self._done(TopicNotFoundError(self._topic.name))
        elif not 0 < len(self._changes) <= TIMELINE_CHANGES_MAX:
            self._done(BadRequestError(f"1 to {TIMELINE_CHANGES_MAX} changes are made at once"))
        elif self._consumer.replaced:
            # Another connection of its name has been handed these.
            self._done([TimelineLeaseLostError(change.id) for change in self._changes])
        elif Reject in map(type, self._changes):
            # Looked up before the topic of the letters is: the consumer may leave meanwhile.
            held = [self._topic.out.get(change.id) for change in self._changes]
            self._topic.dead_letters.find_letters(partial(self._on_letters, held))
        else:
            self._make()

    def _on_letters(
        self, found: Sequence[Held | None], letters: "TimelineTopic | IsterError"
    ) -> None:
        for slot, (change, held) in enumerate(zip(self._changes, found, strict=True)):
            if not isinstance(change, Reject):
                continue
            if isinstance(letters, IsterError):
                self._refused[slot] = letters
            elif held is None or held.version != change.version:
                self._refused[slot] = TimelineLeaseLostError(change.id)
            else:
                reason = cut_reason(self._reasons[slot] if self._reasons else "") or REJECTED
                self._letters = letters
                self._rejections[change.id] = self._topic.dead_letters.bury(
                    letters, held.seq, change.version, reason, self._consumer.name
                )
        self._make()

    def _make(self) -> None:
        """Have all changes made that can be."""
        for slot, change in enumerate(self._changes):
            if type(change) is Extend and (error := self._find_error(change)) is not None:
                self._refused[slot] = error
        kept = [slot for slot in range(len(self._changes)) if slot not in self._refused]
        number, holder, out = self._topic.number, self._consumer.name, self._topic.out
        self._changes = [
            Done(number, change.id, holder, change.version, held.seq if held else 0)
            if isinstance(change, Done)
            else self._fill_in(change)
            for slot in kept
            for change in (self._changes[slot],)
            for held in (out.get(change.id),)
        ]
        self._reasons = [self._reasons[slot] for slot in kept] if self._reasons else ()
        if self._changes:
            work: list[Change] = [
                self._rejections[change.id] if isinstance(change, Reject) else change
                for change in self._changes
            ]
            self._topic.committer.add(Work(work), self._on_committed)
        else:
            self._tell([])

    def _find_error(self, extend: Extend) -> IsterError | None:
        """No lease is longer than the topic allows."""
        topic, longest_ms = self._topic, self._topic.settings.lease_ms_max
        held = topic.out.get(extend.id)
        start_ms = max(topic.clock.now_ms(), held.due_ms if held is not None else 0)
        if extend.until_ms <= start_ms + longest_ms:
            return None
        return BadRequestError(
            f"a lease of {topic.name!r} lasts at most {span_text(longest_ms)}, not "
            f"{span_text(extend.until_ms - start_ms)}: extend it for less, and again before it "
            "ends, or make the topic with a longer `max_lease`"
        )

    def _tell(self, outcomes: Sequence[Outcome]) -> None:
        """Tell what came of each change, refused ones among them."""
        told = list(outcomes)
        for slot, error in sorted(self._refused.items(), key=itemgetter(0)):
            told.insert(slot, error)
        self._done(told)

    def _fill_in(self, change: Extend | Release | Reject) -> HoldersChange:
        """Return a change as the store takes it."""
        if isinstance(change, Reject):
            return change
        change = change._replace(topic=self._topic.number, holder=self._consumer.name)
        if isinstance(change, Release) and change.unused:
            return self._release(change)
        return change

    def _release(self, release: Release) -> Release:
        """Return what giving back a message unused comes to: it is due when it was."""
        held = self._consumer.held.get(release.id)
        if held is None or held.version != release.version or not self._topic.allow_unused(held):
            return release._replace(unused=False)
        return release._replace(due_ms=held.due_ms, former=held.former)

    def _on_committed(self, outcomes: Outcomes) -> None:
        topic = self._topic
        if isinstance(outcomes, IsterError):
            topic.fail()
            if self._letters is not None:
                self._letters.fail()
            self._done(outcomes)
            return
        reasons = self._reasons or [""] * len(outcomes)
        for change, outcome, reason in zip(self._changes, outcomes, reasons, strict=True):
            held = topic.out.get(change.id)
            if held is not None and held.version != change.version:
                held = None
            if type(outcome) is not Changed:
                if held is not None and isinstance(outcome, GONE):
                    topic.drop(held, kept=True)
            elif type(change) is Done:
                if held is not None:
                    topic.drop(held, kept=True)
                topic.forget(outcome.seq)
            else:
                if reason and type(change) is Release:
                    topic.dead_letters.on_reason(outcome.seq, reason)
                self._on_kept(change, outcome, held)
        topic.mark_dirty()
        self._tell(outcomes)

    def _on_kept(self, change: HoldersChange, changed: Changed, held: Held | None) -> None:
        topic = self._topic
        level = held.level if held is not None else None
        if isinstance(change, Extend):
            if held is not None:
                held.consumer.extended(held, changed.version, changed.position_ms)
            topic.record(free_slot(changed)._replace(held=True), level)
            return
        if held is not None:
            topic.drop(held, kept=True)
        if isinstance(change, Reject) and self._letters is not None:
            topic.dead_letters.on_moved(change.id, level or 0, self._letters, changed)
        else:
            topic.record(free_slot(changed), level)
