"""Changes that owners make of messages, and how these are taken back from consumers first.

    CHECKING --somebody has a message that is not due yet--> ASKING --all answered, or too late-->
    CHECKING --nobody has any of them--> with the store --> told

Always true:
- a change of a message that a consumer was sent ahead of its time is made only after the consumer
  has said that it let go of it: an acknowledged delete never fires;
- nobody waits for longer than `REVOKE_MS`, nor beyond the time when a message is due;
- what was taken back and not changed after all is given back to everybody.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ister.base import Timer
from ister.base.errors import (
    BadRequestError,
    DiskFullError,
    IsterError,
    MessageLeasedError,
)
from ister.base.limits import (
    TIMELINE_CHANGES_MAX,
)
from ister.broker.timelines.leasing import Held, free_slot
from ister.timeline import Changed, Delete, Move, Outcome, Outcomes, Put, Update, Work

if TYPE_CHECKING:
    from ister.broker.timelines.leasing import TimelineTopic

# How long a consumer has to answer, unless the message is due before.
REVOKE_MS = 1_000

OwnersChange = Put | Move | Update | Delete


def check_changes(changes: Sequence[OwnersChange]) -> None:
    """Raise `BadRequestError` for too many changes."""
    if not 0 < len(changes) <= TIMELINE_CHANGES_MAX:
        raise BadRequestError(f"1 to {TIMELINE_CHANGES_MAX} changes are made at once")


def change_messages(
    topic: "TimelineTopic",
    changes: Sequence[OwnersChange],
    done: Callable[[Outcomes], object],
    *,
    atomic: bool,
) -> None:
    """Make changes of owners, `atomic`: all or nothing; `done` is told what came of them.

    Their topic is filled in here.
    """
    OwnersCall(topic, changes, done, atomic=atomic).begin()


class OwnersCall:
    """Changes that were asked for together."""

    def __init__(
        self,
        topic: "TimelineTopic",
        changes: Sequence[OwnersChange],
        done: Callable[[Outcomes], object],
        *,
        atomic: bool,
    ) -> None:
        self._topic = topic
        self._changes: list[OwnersChange] = list(changes)
        self._atomic = atomic
        self._done = done
        # Why changes are not made, by slot.
        self._refused: dict[int, IsterError] = {}
        # The slots of changes of each message.
        self._slots: dict[str, list[int]] = {}
        # Messages that consumers are asked for, and those that they let go of.
        self._asked: dict[str, Held] = {}
        self._taken: dict[str, Held] = {}
        self._timer: Timer | None = None
        self._deadline_ms: int | None = None
        self._late = False

    def begin(self) -> None:
        """Fill in the topic, then go on."""
        topic = self._topic
        for slot, change in enumerate(self._changes):
            # A rule, whose message it is about, has its topic already.
            if not change.topic:
                # As `_replace` does it, in a third of the time.
                self._changes[slot] = type(change)(topic.number, *change[1:])
            if not isinstance(change, Put):
                self._slots.setdefault(change.id, []).append(slot)
            elif change.level >= topic.levels:
                self._refused[slot] = BadRequestError(
                    f"{topic.name!r} has no priorities, and {change.level} is one: leave it out, "
                    "or make a topic of kind 'priority'"
                )
        self.advance()

    def advance(self) -> None:
        """Go on: ask consumers for what they have, or have the changes made."""
        nothing = self._atomic and self._refused
        if nothing or all(isinstance(change, Put) for change in self._changes):
            self._commit()
        elif self._topic.wait_until_settled(self):
            # Somebody may be given one of these messages right now: `advance` is called then.
            return
        elif not self._ask():
            self._commit()

    def answered(self, held: Held, *, kept: bool) -> None:
        """A consumer has answered, or cannot any more."""
        if self._asked.pop(held.id, None) is None:
            return
        if kept:
            self._refuse(held)
        else:
            self._taken[held.id] = held
        if not self._asked:
            self._stop_timer()
            self.advance()

    def fail(self, error: IsterError) -> None:
        """The topic is gone."""
        self._stop_timer()
        self._asked.clear()
        self._done(error)

    # Taking back

    def _ask(self) -> bool:
        """Ask consumers for messages that are not due yet; return whether to wait for them."""
        now_ms, begun_ms = self._topic.clock.now_ms(), self._topic.begun_ms()
        wanted: dict[str, Held] = {}
        for slot, change in enumerate(self._changes):
            if isinstance(change, Put) or slot in self._refused:
                continue
            held = self._topic.out.get(change.id)
            if held is None or change.group != held.group:
                continue
            version = change.version
            is_alive = now_ms < held.until_ms
            if held.early and is_alive and version == held.former != 0:
                # The owner need not know that it was sent ahead. Once its lease has passed, it was
                # delivered, and that is a change.
                version = held.version
                self._changes[slot] = change._replace(version=version)
            if version not in (0, held.version) or not is_alive:
                continue  # The store knows what to say.
            if held.early and begun_ms < held.due_ms and not self._late:
                wanted[held.id] = held
            else:
                self._refused[slot] = leased_error(held)
        if not wanted or (self._atomic and self._refused):
            return False
        self._asked = wanted
        self._set_timer(now_ms, min(held.due_ms for held in wanted.values()))
        self._topic.revoke(self, list(wanted.values()))
        return True

    def _set_timer(self, now_ms: int, due_ms: int) -> None:
        # Never longer than `REVOKE_MS` in all, however often consumers are asked.
        own_ms = self._topic.clock.monotonic_ms()
        if self._deadline_ms is None:
            self._deadline_ms = own_ms + REVOKE_MS
        left_ms = min(due_ms - now_ms, max(self._deadline_ms - own_ms, 0))
        self._timer = self._topic.clock.call_later(left_ms / 1000, self._on_late)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_late(self) -> None:
        self._timer = None
        self._late = True
        for held in self._asked.values():
            held.calls.pop(self, None)
            self._refuse(held)
        self._asked.clear()
        self.advance()

    def _refuse(self, held: Held) -> None:
        for slot in self._slots[held.id]:
            self._refused.setdefault(slot, leased_error(held))

    # Making the changes

    def _commit(self) -> None:
        if self._atomic and self._refused:
            self._end(next(iter(self._refused.values())))
            return
        made = [c for slot, c in enumerate(self._changes) if slot not in self._refused]
        if not made:
            self._end([self._refused[slot] for slot in range(len(self._changes))])
            return
        work = Work([*made], self._atomic, self._topic.begun_ms())
        self._topic.committer.add(work, self._on_committed)

    def _on_committed(self, outcomes: Outcomes) -> None:
        if isinstance(outcomes, IsterError):
            is_refused = self._atomic and not self._topic.is_failure(outcomes)
            if not is_refused and not isinstance(outcomes, DiskFullError):
                self._topic.fail()
            self._end(outcomes)
            return
        found = iter(outcomes)
        merged: list[Outcome] = [
            self._refused[slot] if slot in self._refused else next(found)
            for slot in range(len(self._changes))
        ]
        for change, outcome in zip(self._changes, merged, strict=True):
            if isinstance(outcome, Changed):
                self._taken.pop(change.id, None)
                self._record(change, outcome)
        self._end(merged)

    def _record(self, change: OwnersChange, changed: Changed) -> None:
        if change.topic != self._topic.number:
            return  # A rule, whose message it is.
        if isinstance(change, Delete):
            self._topic.forget(changed.seq)
            return
        self._topic.record(free_slot(changed), change.level if isinstance(change, Put) else None)

    def _end(self, outcomes: Outcomes) -> None:
        """Tell what came of it. What was taken back and not changed is everybody's again."""
        if self._taken:
            taken, self._taken = list(self._taken.values()), {}
            self._topic.give_back(taken)
        self._done(outcomes)


def leased_error(held: Held) -> MessageLeasedError:
    """Return what to tell of a message that its consumer has."""
    return MessageLeasedError(held.id, held.consumer.name, held.until_ms)
