"""The rules of one cron topic: each makes a message at every time of its expression.

Always true:
- of a rule no more is in memory than when to look at it. Everything else is read when that time
  comes, and decided anew: see `timeline.cron.rows`;
- one timer is set, for the first of them;
- whoever was faster than us on the same store makes what we wanted to do void, and we look again;
- what is known of the store is void after it failed: all rules are found anew. Another broker may
  have had it meanwhile, and have made or changed some.
"""

from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

import structlog

from ister.base.errors import (
    BadRequestError,
    ConflictError,
    CorruptedError,
    IsterError,
    LimitReachedError,
    MessageExistsError,
    MessageNotFoundError,
    MessageTooLargeError,
    NotFoundError,
    StorageFailedError,
    TopicNotFoundError,
)
from ister.base.limits import CRON_PAYLOAD_BYTES_MAX, CRON_RULES_MAX, TIMELINE_PAGE_MAX
from ister.broker.timelines.cron.rule_changes import RuleCall
from ister.broker.timelines.leasing import Wake, free_slot
from ister.broker.timelines.store import WAITING_BYTES_MAX
from ister.telemetry import Occasions
from ister.timeline import (
    FAR,
    FIRST_KEY,
    Changed,
    CronRule,
    Editing,
    Key,
    Outcomes,
    Place,
    Plan,
    Put,
    Row,
    RuleRow,
    Work,
    check_rule_id,
    editing_rule,
    first_row,
    pausing_rule,
    plan_all,
    plan_page,
    preview_one,
    resuming_rule,
    tell_one,
    tell_page,
)

if TYPE_CHECKING:
    from ister.broker.timelines.leasing import TimelineTopic

# Rules that are looked at in one go, 0.2 ms each: 10 ms of the thread, which others wait for.
BATCH_COUNT = 50
# When the storage is tried again after it failed.
RETRY_MS = 1_000
# When a rule is looked at again that cannot be read: somebody may have mended it, or its zone.
BROKEN_RETRY_MS = 3_600_000
# Entries of the heap that are out of date, beside as many as are good.
STALE_MAX = 1_000

Done = Callable[[int | IsterError], object]


class CronRules:
    """The rules of one cron topic, and the timer for the first that makes a message."""

    def __init__(self, topic: "TimelineTopic", number: int, told: Occasions) -> None:
        """`told` throttles the log for all topics together."""
        self.topic = topic
        self.number = number
        self.place = Place(number, topic.number)
        self._told = told
        self._logger: Any = structlog.get_logger("timelines")
        # When to look at each rule; `FAR`: when somebody changes it.
        self._wakes: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        # Rules that wait until a message of theirs is done, by its number.
        self._waiting: dict[int, str] = {}
        self._making = 0
        # Rules up to here were found in the store; `None`: all were.
        self._loaded_to: Key | None = FIRST_KEY
        self._loading = False
        # How often the store had failed when the first of them was looked for.
        self._failures = topic.committer.failures
        self._looking = False
        self._wake = Wake(topic.clock, self.schedule)

    def __len__(self) -> int:
        return len(self._wakes)

    def stop(self) -> None:
        """Do nothing more."""
        self._wake.stop()

    # For owners

    def check_room(self) -> None:
        """Raise `LimitReachedError` when too much waits for the store."""
        if self.topic.committer.full:
            raise LimitReachedError("timelines_waiting_bytes", WAITING_BYTES_MAX)

    def put(
        self,
        id: str,
        *,
        group: str,
        rule: CronRule,
        payload: bytes,
        attributes: bytes,
        done: Done,
    ) -> None:
        """Make a rule; `done` is told its version."""
        try:
            check_rule_id(id)
            self._check_size(payload, attributes)
            if len(self) + self._making >= CRON_RULES_MAX:
                raise LimitReachedError("cron_rules_max", CRON_RULES_MAX)
        except IsterError as error:
            done(error)
            return
        now_ms = self.topic.clock.now_ms()
        row = first_row(self.place, id, group, rule, payload, attributes, now_ms)
        self._making += 1
        self.topic.committer.add(Work([row]), partial(self._on_put, id, done))

    def _on_put(self, id: str, done: Done, outcomes: Outcomes) -> None:
        self._making -= 1
        if isinstance(outcomes, IsterError):
            # It may be there. Whoever finds out is the next to change it, or a restart.
            self.wake(id)
            done(outcomes)
            return
        [outcome] = outcomes
        if isinstance(outcome, Changed):
            self.wake(id)
            done(outcome.version)
        else:
            assert isinstance(outcome, IsterError)
            is_taken = isinstance(outcome, MessageExistsError)
            done(MessageExistsError(id, "cron rule") if is_taken else outcome)

    def update(
        self,
        id: str,
        *,
        group: str,
        version: int,
        rule: CronRule | None,
        payload: bytes,
        attributes: bytes,
        done: Done,
    ) -> None:
        """Give a rule another payload and other attributes, and other times if `rule` is given."""
        try:
            self._check_size(payload, attributes)
        except IsterError as error:
            done(error)
            return

        self._edit(id, group, version, editing_rule(rule, payload, attributes), done)

    def pause(self, id: str, *, group: str, version: int, done: Done) -> None:
        """Have a rule make nothing until it is resumed. Harmless when it is paused."""
        self._edit(id, group, version, pausing_rule, done)

    def resume(self, id: str, *, group: str, version: int, done: Done) -> None:
        """Have a rule go on with the slots to come. Harmless when it is not paused."""
        self._edit(id, group, version, resuming_rule, done)

    def delete(self, id: str, *, group: str, version: int, done: Done) -> None:
        """Remove a rule. Messages of it that are due stay."""
        self._edit(id, group, version, None, done)

    def get(self, id: str, done: Callable[[RuleRow | IsterError], object]) -> None:
        """Find a rule."""
        now_ms = self.topic.clock.now_ms()
        self.topic.committer.query(partial(tell_one, place=self.place, id=id, now_ms=now_ms), done)

    def page(
        self, after: Key, limit: int, done: Callable[[list[RuleRow] | IsterError], object]
    ) -> None:
        """Find rules, as they were made, behind a place: position and number of a row."""
        now_ms = self.topic.clock.now_ms()
        if not 0 < limit <= TIMELINE_PAGE_MAX:
            done(BadRequestError(f"a page has 1 to {TIMELINE_PAGE_MAX} rules, not {limit}"))
            return
        self.topic.committer.query(
            partial(tell_page, place=self.place, after=after, limit=limit, now_ms=now_ms), done
        )

    def preview(
        self, id: str, count: int, done: Callable[[tuple[str, list[int]] | IsterError], object]
    ) -> None:
        """Tell the zone of a rule, and when its next messages are due, paused or not."""
        now_ms = self.topic.clock.now_ms()
        self.topic.committer.query(
            partial(preview_one, place=self.place, id=id, now_ms=now_ms, count=count), done
        )

    def _edit(self, id: str, group: str, version: int, editing: Editing, done: Done) -> None:
        RuleCall(self, id, group=group, version=version, editing=editing, done=done).begin()

    def _check_size(self, payload: bytes, attributes: bytes) -> None:
        size = len(payload) + len(attributes)
        if size > CRON_PAYLOAD_BYTES_MAX:
            raise MessageTooLargeError(self.topic.name, size, CRON_PAYLOAD_BYTES_MAX, setting="")

    # Firing

    def wake(self, id: str) -> None:
        """Look at a rule: it was made or changed."""
        self._set(id, self.topic.clock.now_ms())
        self.schedule()

    def on_gone(self, seq: int) -> None:
        """A message is done, or gone in another way: who waited for it goes on."""
        name = self._waiting.pop(seq, None)
        if name is not None:
            self.wake(name)

    def schedule(self) -> None:
        """Do what is to be done now, and set the timer for the next thing."""
        if self.topic.closed:
            return
        now_ms = self.topic.clock.now_ms()
        self._load(now_ms)
        ids = [] if self._looking else self._take_due(now_ms)
        if ids:
            self._looking = True
            self.topic.committer.query(
                partial(plan_all, place=self.place, ids=ids, now_ms=now_ms),
                partial(self._on_planned, ids),
            )
        elif not self._looking:
            self._wake.set(self._heap[0][0] if self._heap else FAR, now_ms)

    def _load(self, now_ms: int) -> None:
        """Find the next rules that the store had at the start, or has since it failed."""
        if self._loading:
            return
        failures = self.topic.committer.failures
        if failures != self._failures:
            self._failures, self._loaded_to = failures, FIRST_KEY
        after = self._loaded_to
        if after is None:
            return
        self._loading = True
        self.topic.committer.query(
            partial(plan_page, place=self.place, after=after, limit=BATCH_COUNT, now_ms=now_ms),
            self._on_loaded,
        )

    def _on_loaded(self, found: tuple[list[Row], list[Plan | IsterError]] | IsterError) -> None:
        if self.topic.closed:
            return
        if isinstance(found, IsterError):
            self._logger.error("cron_not_loaded", topic=self.topic.name, reason=str(found))
            self._on_failure(found)
            # Until then it counts as under way: whoever looks meanwhile does not try once more.
            self.topic.clock.call_later(RETRY_MS / 1000, self._load_again)
            return
        self._loading = False
        rows, plans = found
        self._loaded_to = (rows[-1].position_ms, rows[-1].seq) if rows else None
        self._act([row.id for row in rows], plans)

    def _load_again(self) -> None:
        self._loading = False
        self.schedule()

    def _on_planned(self, ids: Sequence[str], plans: list[Plan | IsterError] | IsterError) -> None:
        self._looking = False
        if self.topic.closed:
            return
        if isinstance(plans, IsterError):
            self._on_failure(plans)
            plans = [plans] * len(ids)
        self._act(ids, plans)

    def _act(self, ids: Sequence[str], plans: Sequence[Plan | IsterError]) -> None:
        for name, plan in zip(ids, plans, strict=True):
            if isinstance(plan, IsterError):
                self._on_refused(name, plan)
                continue
            if plan.waits_for is not None:
                self._waiting[plan.waits_for] = name
            if plan.changes:
                self._wakes.setdefault(name, FAR)
                work = Work([*plan.changes], atomic=True)
                self.topic.committer.add(work, partial(self._on_fired, plan))
            else:
                self._set(name, plan.wake_ms)
        self.schedule()

    def _on_fired(self, plan: Plan, outcomes: Outcomes) -> None:
        if self.topic.closed:
            return
        if isinstance(outcomes, IsterError):
            self._on_failure(outcomes)
            self._on_refused(plan.id, outcomes)
        else:
            for change, outcome in zip(plan.changes, outcomes, strict=True):
                if isinstance(change, Put) and isinstance(outcome, Changed):
                    self.topic.record(free_slot(outcome), change.level)
            self._set(plan.id, plan.wake_ms)
        self.schedule()

    def _on_failure(self, error: IsterError) -> None:
        """A call of the store came to nothing: maybe it is not what it was, when it is back."""
        if self.topic.is_failure(error):
            self.topic.fail()

    def _on_refused(self, id: str, error: IsterError) -> None:
        """Nothing came of what a rule was to do."""
        now_ms = self.topic.clock.now_ms()
        if isinstance(error, MessageNotFoundError | TopicNotFoundError):
            self._wakes.pop(id, None)
        elif isinstance(error, ConflictError | NotFoundError):
            # Somebody was faster.
            self._set(id, now_ms)
        else:
            # That the storage fails is told once, and not for each of ten thousand rules.
            if not isinstance(error, StorageFailedError):
                self._log_failed(id, error)
            is_broken = isinstance(error, CorruptedError)
            self._set(id, now_ms + (BROKEN_RETRY_MS if is_broken else RETRY_MS))

    def _log_failed(self, id: str, error: IsterError) -> None:
        if times := self._told.times("cron_failed"):
            topic, reason = self.topic.name, str(error)
            self._logger.error("cron_failed", topic=topic, id=id, reason=reason, times=times)

    def _take_due(self, now_ms: int) -> list[str]:
        """Return rules whose time has come, some of them."""
        ids: list[str] = []
        heap = self._heap
        while heap and len(ids) < BATCH_COUNT:
            wake_ms, name = heap[0]
            if self._wakes.get(name) == wake_ms:
                if wake_ms > now_ms:
                    break
                self._wakes[name] = FAR
                ids.append(name)
            heappop(heap)
        return ids

    def _set(self, id: str, wake_ms: int | None) -> None:
        """Look at a rule at that time, or before if that was wanted already."""
        wake_ms = min(FAR if wake_ms is None else wake_ms, self._wakes.get(id, FAR))
        self._wakes[id] = wake_ms
        if wake_ms < FAR:
            heappush(self._heap, (wake_ms, id))
        if len(self._heap) > 2 * len(self._wakes) + STALE_MAX:
            self._heap = [(ms, name) for name, ms in self._wakes.items() if ms < FAR]
            heapify(self._heap)
