"""The upkeep of streams: each second, retention of their topics, then the housekeeping of storages.

A topic that has changed is checked within a second: it has new messages or, if retention depends on
acknowledgements, new acknowledgements. The other topics are checked in turn, because messages also
expire by age: `ROUND_COUNT` topics each second, so each of 10,000 is checked every ten seconds.

Always true:
- one turn of the event loop checks at most `TURN_COUNT` topics;
- retention never drops what a work queue has not acknowledged;
- what goes wrong with one topic is logged and counted; the others, and the next time, go on.
"""

from collections import deque
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

import structlog

from ister.base import Clock, Timer, housekeeping
from ister.broker.scheduling import Chores, Steps, ignore
from ister.broker.storage import Storage
from ister.broker.streams.forgotten import ForgottenLog
from ister.broker.streams.retention import BY_ACKS, plan_retention
from ister.broker.streams.stream import StreamTopic

ROUND_S = 1.0
# 5 to 20 µs each: a millisecond.
TURN_COUNT = 64
# One percent of a processor.
ROUND_COUNT = 1_000


class Checks:
    """The topics of several storages, in the order they are checked."""

    def __init__(self) -> None:
        self._due: deque[StreamTopic] = deque()
        self._changed: dict[Storage, list[StreamTopic]] = {}
        # The topics of this round that are not yet checked, by storage; the last one is next.
        self._rounds: dict[Storage, list[StreamTopic]] = {}

    def mark_changed(self, topic: StreamTopic) -> None:
        """Have a topic checked in the next round."""
        self._changed.setdefault(topic.storage, []).append(topic)

    def begin(self, storage: Storage, topics: Mapping[int, StreamTopic]) -> None:
        """Queue the topics of a storage that are to be checked in this second."""
        changed = self._changed.pop(storage, [])
        left = self._rounds.get(storage)
        if not left:
            left = self._rounds[storage] = list(topics.values())
        self._due += changed
        self._due += (topic for topic in left[-ROUND_COUNT:] if not topic.changed)
        del left[-ROUND_COUNT:]
        for topic in changed:
            topic.changed = False

    def take(self) -> list[StreamTopic]:
        """Return the topics to check in this turn of the loop; an empty list when all are done."""
        return [self._due.popleft() for _ in range(min(TURN_COUNT, len(self._due)))]


class Upkeep:
    """Runs the upkeep of all storages of a broker."""

    def __init__(self, clock: Clock) -> None:
        # How often something went wrong in retention, or in the housekeeping of a storage.
        self.failures = 0
        # Called at the start of each round.
        self.before_round: list[Callable[[], object]] = []
        self._clock = clock
        self._logger: Any = structlog.get_logger("storage")
        self._storages: dict[Storage, Mapping[int, StreamTopic]] = {}
        self._checks = Checks()
        self._forgotten = ForgottenLog()
        # Topics whose oldest message to keep is being looked for: a store may take its time.
        self._finding: set[StreamTopic] = set()
        self._chores = Chores(clock, self._on_chore_failed)
        # Message ids and keys that are to be let go of, step by step.
        self._forgetting: list[Steps] = []
        # Until the next round; none while there is one.
        self._timer: Timer | None = None
        self._closed = False

    def add(self, storage: Storage, topics: Mapping[int, StreamTopic]) -> None:
        """Take care of a storage, and of its topics as they come and go."""
        if not self._storages:
            self._timer = self._clock.call_later(ROUND_S, self._begin_round)
        self._storages[storage] = topics

    def close(self) -> None:
        """Do nothing any more."""
        self._closed = True

    def mark_changed(self, topic: StreamTopic) -> None:
        """Have a topic checked in the next round: it may keep too much by now."""
        self._checks.mark_changed(topic)

    def forget(self, steps: Steps) -> None:
        """Have something let go of, in several turns of the loop."""
        self._forgetting.append(steps)

    def hurry_if_short(self) -> None:
        """Where there is little room, have retention follow what is written, not the clock alone.

        A fast producer fills a small disk in less than a second.
        """
        if self._timer is None:
            return
        # A plain loop: this is on the way of every commit.
        for storage in self._storages:
            if storage.wants_room:
                self._timer.cancel()
                self._timer = None
                self._clock.call_later(0.0, self._begin_round)
                return

    @housekeeping
    def _begin_round(self) -> None:
        self._timer = None
        if self._closed:
            return
        for call in self.before_round:
            call()
        for storage, topics in self._storages.items():
            if storage.committer.error is None:
                self._checks.begin(storage, topics)
        # All storages of a broker share one.
        budgets = next(iter(self._storages)).state.budgets
        self._forgotten.check(budgets, self._clock.monotonic_ms())
        self._go_on()

    def _go_on(self) -> None:
        """Check some topics in each turn of the loop, and maintain the storages after the last."""
        if self._closed:
            return
        topics = self._checks.take()
        # Before anything that may fail: upkeep goes on in any case.
        if topics:
            self._clock.call_later(0.0, self._go_on)
        else:
            self._timer = self._clock.call_later(ROUND_S, self._begin_round)
        failed: list[tuple[str, Exception]] = []
        for topic in topics:
            if not topic.deleted and topic.storage.committer.error is None:
                try:
                    self._retain(topic)
                except Exception as error:  # noqa: BLE001 - logged below, once for all
                    failed.append((topic.name, error))
        if self._forgetting:
            forgetting, self._forgetting = self._forgetting, []
            self._chores.do(chain.from_iterable(forgetting))
        for storage in self._storages if not topics else ():
            try:
                storage.maintain()
            except Exception as error:  # noqa: BLE001 - logged below
                failed.append((storage.name, error))
        if failed:
            self.failures += len(failed)
            where, first = failed[0]
            self._logger.error("upkeep_failed", where=where, count=len(failed), exc_info=first)

    def _retain(self, topic: StreamTopic) -> None:
        """Drop what a topic need not keep any more."""
        record, log = topic.record, topic.storage.log
        settings, now_ms = record.settings, self._clock.now_ms()
        if record.ids:
            # Where nothing more is published, nobody else would.
            self.forget(record.ids.forget(older_than_ms=now_ms - settings.dedup_window_ms))
        if record.key_offsets is not None:
            self.forget(record.key_offsets.forget(below=topic.first_offset))
        plan = plan_retention(
            settings,
            topic.floors() if settings.retention in BY_ACKS else (),
            next_offset=topic.next_offset,
            bytes_start=log.offset_within(record.topic, settings.max_bytes)
            if settings.max_bytes
            else 0,
            now_ms=now_ms,
        )
        _trim(topic, plan.first_offset)
        if plan.older_than_ms:
            self._trim_by_age(topic, plan.older_than_ms)

    def _trim_by_age(self, topic: StreamTopic, older_than_ms: int) -> None:
        if topic in self._finding:
            return
        oldest_ms = topic.time_of(topic.first_offset)
        if topic.first_offset >= topic.next_offset or (
            oldest_ms is not None and oldest_ms >= older_than_ms
        ):
            return

        def on_found(offset: int | Exception) -> None:
            self._finding.discard(topic)
            if isinstance(offset, int) and not topic.deleted:
                _trim(topic, offset)

        topic.find_time(older_than_ms, on_found)
        self._finding.add(topic)

    def _on_chore_failed(self, error: Exception) -> None:
        self.failures += 1
        self._logger.error("upkeep_failed", where="message ids", count=1, exc_info=error)


def _trim(topic: StreamTopic, first_offset: int) -> None:
    """Drop what lies below an offset, if there is anything and the journal takes it."""
    if first_offset > topic.first_offset and topic.storage.committer.error is None:
        topic.trim(first_offset, ignore)
