"""All timelines of a broker, by name: one store, one worker for it, one committer.

Single-threaded: everything here is called in the event loop, and nothing waits. Each `done` is
called once, maybe at once.
"""

from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, TypeVar

import msgspec
import structlog

from ister.base import (
    Clock,
    TimelineKind,
    TimelineReport,
    TimelineSettings,
    Timer,
    check_not_reserved,
    housekeeping,
)
from ister.base.errors import (
    BadRequestError,
    CorruptedError,
    IsterError,
    LimitReachedError,
    MessageNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    WrongKindError,
)
from ister.base.limits import NAME_BYTES_MAX, TIMELINE_PAGE_MAX, TIMELINES_MAX
from ister.broker.timelines.changes import (
    OnRedriven,
    OwnersChange,
    RedrivePage,
    change_messages,
    check_changes,
    redrive_page,
)
from ister.broker.timelines.cron import CronRules, change_with_rules
from ister.broker.timelines.leasing import (
    MaxClock,
    Room,
    TimelineConsumer,
    TimelineSink,
    TimelineTopic,
)
from ister.broker.timelines.settings import HIDDEN_KINDS, decode_settings, letters_of
from ister.broker.timelines.store import WAITING_BYTES_MAX, Committer, Reads, StoreWorker
from ister.telemetry import Occasions
from ister.timeline import (
    FAR,
    Call,
    CronRule,
    Outcomes,
    Row,
    TopicRow,
    as_ister_error,
    create_topics,
    delete_topics,
    find_rules,
    preview_rule,
    rules_name,
)

# The machine's clock may be set forward or back under our timers: how often that is looked for, and
# by how much it must have been.
BEAT_S = 1.0
JUMP_MS = 2
# For how long after somebody has published elsewhere timelines give way.
GIVE_WAY_MS = 100

T = TypeVar("T")


class Timelines:
    """All timelines of a broker. Nobody but `worker` uses the store.

    `find_kind` tells the kind of a topic that is no timeline, and `count_published` how often
    somebody has published to one. `after_commit` are called when somebody was told of a change.
    """

    def __init__(
        self,
        worker: StoreWorker,
        *,
        clock: Clock,
        call_soon: Callable[[Callable[[], object]], object],
        find_kind: Callable[[str], str | None] = lambda _: None,
        count_published: Callable[[], int] = lambda: 0,
        after_commit: Sequence[Callable[[], object]] = (),
    ) -> None:
        self._clock = clock
        self._after_commit = after_commit
        self._worker = worker
        self._reads = Reads(worker)
        self._find_kind = find_kind
        self._count_published = count_published
        # What was published elsewhere when somebody last looked, and when that last rose.
        self._published = 0
        self._published_ms = -GIVE_WAY_MS
        self._committer = Committer(
            worker, clock=clock, call_soon=call_soon, after_group=self._schedule_dirty
        )
        self._logger: Any = structlog.get_logger("timelines")
        # Throttles the log for all topics together.
        self.told = Occasions(clock.monotonic_ms)
        self._room = Room()
        # The latest time there was: leases of messages that were due by then have begun.
        self.max_clock = MaxClock(clock)
        self._topics: dict[str, TimelineTopic] = {}
        # Of cron topics.
        self._rules: dict[str, CronRules] = {}
        # What the broker itself keeps in timelines, by kind: users know nothing of these.
        self._hidden: dict[str, TimelineTopic] = {}
        # Being made or deleted: their names are taken.
        self._reserved: set[str] = set()
        # To be looked at when this turn's share of a commit was told of.
        self._dirty: dict[TimelineTopic, None] = {}
        self._beat: Timer | None = None
        self._wall_ahead_ms = 0
        self._closed = False

    @property
    def failures(self) -> int:
        """How often the storage failed."""
        return self._committer.failures

    @property
    def is_writing(self) -> bool:
        """Whether the store is at work."""
        return self._committer.is_busy

    @property
    def slots(self) -> int:
        """How many messages of all topics are in memory until they are due."""
        return self._room.used

    # Topics

    def adopt(self, rows: Sequence[TopicRow]) -> None:
        """Take over the topics that the store had at the start; raise for what cannot be read."""
        rules, leftover = find_rules(rows)
        for row in rows:
            if row.kind in set(TimelineKind):
                self._add(row, decode_settings(row), rules.get(row.number))
            elif row.kind in HIDDEN_KINDS:
                self._hidden[row.kind] = self._new_topic(row, decode_settings(row))
        for number in leftover:
            self._committer.query(methodcaller("delete_topic", number), lambda _: None)

    def create(
        self, name: str, settings: TimelineSettings, done: Callable[[IsterError | None], object]
    ) -> None:
        """Make a topic."""
        try:
            settings.check()
            self._check_letters(name, settings)
            if self.is_taken(name) or self._find_kind(name) is not None:
                raise TopicExistsError(name, "")
            if len(self._topics) + len(self._reserved) >= TIMELINES_MAX:
                raise LimitReachedError("timelines_max", TIMELINES_MAX)
        except IsterError as error:
            done(error)
            return
        self._reserved.add(name)
        encoded = msgspec.msgpack.encode(settings)

        def on_created(made: tuple[TopicRow, int | None] | Exception) -> None:
            self._reserved.discard(name)
            if isinstance(made, TopicExistsError):
                self._learn(made, settings, done)
                return
            if isinstance(made, Exception):
                done(as_ister_error(made))
                return
            row, rules = made
            self._add(row, settings, rules)
            done(None)

        self._worker.run(
            partial(create_topics, name=name, kind=settings.kind, settings=encoded), on_created
        )

    def _learn(
        self,
        error: TopicExistsError,
        settings: TimelineSettings,
        done: Callable[[IsterError | None], object],
    ) -> None:
        """Take over a topic that the store has and we do not know of: its making seemed to fail."""
        name = error.topic
        self._reserved.add(name)

        def on_read(rows: list[TopicRow] | Exception) -> None:
            self._reserved.discard(name)
            if isinstance(rows, Exception):
                done(as_ister_error(rows))
                return
            try:
                self.adopt([row for row in rows if row.name in (name, rules_name(name))])
            except CorruptedError as damage:
                done(damage)
                return
            found = self._topics.get(name)
            done(None if found is not None and found.settings == settings else error)

        self._worker.run(methodcaller("topics"), on_read)

    def delete(self, name: str, done: Callable[[IsterError | None], object]) -> None:
        """Remove a topic with all its messages. Its consumers are gone at once."""
        topic = self._topics.pop(name, None)
        if topic is None:
            done(TopicNotFoundError(name))
            return
        self._reserved.add(name)
        cron = self._rules.pop(name, None)
        rules = None if cron is None else cron.number
        if cron is not None:
            cron.stop()
        topic.close("its topic was deleted")

        def on_deleted(error: IsterError | None) -> None:
            self._reserved.discard(name)
            if error is not None:
                # It is still there, or may be.
                self._add(TopicRow(topic.number, name, topic.settings.kind), topic.settings, rules)
            done(error)

        # Behind the work that was asked for before.
        self._committer.query(partial(delete_topics, number=topic.number, rules=rules), on_deleted)

    def has(self, name: str) -> bool:
        """Return whether there is such a topic."""
        return name in self._topics

    def is_taken(self, name: str) -> bool:
        """Return whether nobody else may have that name: also while one is made or deleted."""
        return name in self._topics or name in self._reserved

    def names(self) -> list[str]:
        """Return the names of all topics, in order."""
        return sorted(self._topics)

    def settings(self, name: str) -> TimelineSettings:
        """Return how a topic was made, or raise `TopicNotFoundError`."""
        return self._get(name).settings

    def report(self, name: str) -> TimelineReport:
        """Return what to tell of a topic, or raise `TopicNotFoundError`."""
        return self._get(name).report()

    def after_work(self, done: Callable[[], object]) -> None:
        """Call `done` when all work so far is stored, or has failed, and what came of it."""
        self._committer.flush(done)

    def close(self) -> None:
        """Do nothing more. Consumers are not told: their connections end as well."""
        self._closed = True
        self._committer.close()
        if self._beat is not None:
            self._beat.cancel()
        for topic in (*self._topics.values(), *self._hidden.values()):
            topic.stop()
        for rules in self._rules.values():
            rules.stop()

    # Messages

    def change(
        self,
        name: str,
        changes: Sequence[OwnersChange],
        atomic: bool,  # noqa: FBT001 - the doors' shape
        done: Callable[[Outcomes], object],
    ) -> None:
        """Make changes of owners: each for itself, or all or nothing. Their topic is filled in."""
        try:
            check_not_reserved(name)
            topic = self._get(name)
            check_changes(changes)
            if self._committer.full:
                raise LimitReachedError("timelines_waiting_bytes", WAITING_BYTES_MAX)
        except IsterError as error:
            done(error)
            return
        rules = self._rules.get(name)
        if rules is None:
            change_messages(topic, changes, done, atomic=atomic)
        else:
            change_with_rules(rules, changes, done, atomic=atomic)

    def find_rules(self, name: str) -> CronRules | None:
        """Return the rules of a cron topic; none of other topics, and of none."""
        return self._rules.get(name)

    def get_rules(self, name: str) -> CronRules:
        """Return the rules of a cron topic, or raise `WrongKindError`."""
        rules = self._rules.get(name)
        if rules is None:
            kind = self._get(name, TimelineKind.CRON).settings.kind
            raise WrongKindError(name, kind, "it has no rules; make a topic of kind cron for them")
        return rules

    def rules_to_change(self, name: str) -> CronRules:
        """Return the rules of a cron topic for a client to change; raise when there is no room."""
        check_not_reserved(name)
        rules = self.get_rules(name)
        rules.check_room()
        return rules

    def preview(
        self,
        rule: CronRule,
        count: int,
        done: Callable[[tuple[str, list[int]] | IsterError], object],
    ) -> None:
        """Tell the zone of a rule that is in no topic, and its next slots."""
        now_ms = self._clock.now_ms()
        self._committer.query(partial(preview_rule, rule=rule, now_ms=now_ms, count=count), done)

    def get(self, name: str, id: str, done: Callable[[Row | IsterError], object]) -> None:
        """Find a message."""

        def on_read(row: Row | IsterError | None) -> None:
            if isinstance(row, Row):
                row = self._as_owner_sees(name, row)
            done(MessageNotFoundError(id) if row is None else row)

        self._read(name, lambda number: methodcaller("get", number, id), on_read)

    def page(
        self,
        name: str,
        start_ms: int,
        end_ms: int,
        after: tuple[int, int],
        limit: int,
        done: Callable[[list[Row] | IsterError], object],
    ) -> None:
        """Find messages that stand in a range of time: see `Store.page`."""
        if not 0 < limit <= TIMELINE_PAGE_MAX:
            done(BadRequestError(f"a page has 1 to {TIMELINE_PAGE_MAX} messages, not {limit}"))
            return

        def on_read(rows: list[Row] | IsterError) -> None:
            if isinstance(rows, list):
                rows = [self._as_owner_sees(name, row) for row in rows]
            done(rows)

        self._read(
            name,
            lambda number: methodcaller("page", number, start_ms, end_ms, after, limit),
            on_read,
        )

    def count(
        self, name: str, start_ms: int, end_ms: int, done: Callable[[int | IsterError], object]
    ) -> None:
        """Count messages that stand in a range of time."""
        self._read(name, lambda number: methodcaller("count", number, start_ms, end_ms), done)

    def redrive(self, name: str, page: RedrivePage, done: OnRedriven) -> None:
        """Send a page of dead letters of a topic back to it."""
        check_not_reserved(name)
        topic = self._get(name)
        letters = self._topics.get(letters_of(name, topic.settings))
        redrive_page(topic, letters, page, done)

    def consume(
        self,
        name: str,
        consumer: str,
        sink: TimelineSink,
        channel: int,
        *,
        lease_ms: int,
        prefetch_ms: int,
        credit: int,
        done: Callable[[TimelineConsumer | IsterError], object],
        fresh: bool = False,
    ) -> None:
        """Open a consumer; one of its name on another connection gives way to it.

        It is handed the leases its name has, then messages as they become due. If it is `fresh`,
        these leases end, and count as attempts.
        """
        check_not_reserved(name)
        topic = self._topics.get(name)
        if topic is None:
            done(self._missing_error(name))
            return
        topic.consume(
            consumer,
            sink,
            channel,
            lease_ms=lease_ms,
            prefetch_ms=prefetch_ms,
            credit=credit,
            fresh=fresh,
            done=done,
        )

    # Timelines of the broker's own

    def find_hidden(self, kind: str) -> TimelineTopic | None:
        """Return the timeline that the broker keeps for a purpose of its own, if there is one."""
        return self._hidden.get(kind)

    def create_hidden(
        self,
        name: str,
        kind: str,
        settings: TimelineSettings,
        done: Callable[[TimelineTopic | IsterError], object],
    ) -> None:
        """Make one. `name` is none that a topic of users can have."""

        def on_created(row: TopicRow | Exception) -> None:
            if isinstance(row, Exception):
                done(as_ister_error(row))
                return
            topic = self._hidden[kind] = self._new_topic(row, settings)
            done(topic)

        encoded = msgspec.msgpack.encode(settings)
        self._worker.run(methodcaller("create_topic", name, kind, encoded), on_created)

    def count_hidden(
        self, topic: TimelineTopic, done: Callable[[int | IsterError], object]
    ) -> None:
        """Count the messages of one."""
        self._committer.query(methodcaller("count", topic.number, 0, FAR), done)

    # For topics

    def gives_way(self, now_ms: int) -> bool:
        """Return whether others publish to topics that are no timelines."""
        published = self._count_published()
        if published != self._published:
            self._published, self._published_ms = published, now_ms
        return 0 <= now_ms - self._published_ms < GIVE_WAY_MS

    def mark_dirty(self, topic: TimelineTopic) -> None:
        """Have a topic looked at when this turn's share of a commit was told of."""
        self._dirty[topic] = None

    def find_letters(
        self, topic: TimelineTopic, done: Callable[[TimelineTopic | IsterError], object]
    ) -> None:
        """Find the topic that dead letters of `topic` go to, or make it."""
        name = letters_of(topic.name, topic.settings)
        try:
            self._check_letters(topic.name, topic.settings)
        except IsterError as error:
            done(error)
            return

        def on_created(error: IsterError | None) -> None:
            letters = self._topics.get(name)
            if letters is None:
                done(error or TopicNotFoundError(name))
            else:
                done(letters)

        if self.has(name):
            on_created(None)
        else:
            settings = TimelineSettings(
                kind=TimelineKind.PRIORITY if topic.levels > 1 else TimelineKind.TIMELINE,
                lease_ms_max=topic.settings.lease_ms_max,
                max_leases=0,
            )
            self.create(name, settings, on_created)

    def _check_letters(self, name: str, settings: TimelineSettings) -> None:
        """Raise for a topic whose dead letters could go nowhere."""
        letters = letters_of(name, settings)
        if letters == name:
            raise BadRequestError("a topic is not its own topic of dead letters")
        if not settings.max_leases:
            return
        check_not_reserved(letters)
        if not settings.dead_letters and len(letters.encode()) > NAME_BYTES_MAX:
            raise BadRequestError(
                f"{letters[:40]!r}... is too long for the topic of dead letters: give another name "
                "(dead_letter_topic=), or max_leases=0 for none"
            )
        known = self._topics.get(letters)
        kind = known.settings.kind if known is not None else self._find_kind(letters)
        if kind not in (None, TimelineKind.TIMELINE, TimelineKind.PRIORITY):
            reason = "dead letters go to a timeline or a priority topic: give the name of another"
            raise WrongKindError(letters, kind, f"{reason} (dead_letter_topic=)")

    # Inner workings

    def _get(self, name: str, kind: str = TimelineKind.TIMELINE) -> TimelineTopic:
        topic = self._topics.get(name)
        if topic is None:
            raise self._missing_error(name, kind)
        return topic

    def _as_owner_sees(self, name: str, row: Row) -> Row:
        topic = self._topics.get(name)
        return row if topic is None else topic.as_owner_sees(row)

    def _missing_error(self, name: str, wanted: str = TimelineKind.TIMELINE) -> IsterError:
        kind = self._find_kind(name)
        if kind is None:
            return TopicNotFoundError(name, wanted)
        reason = "its messages are not due at a time; timelines are made with kind='timeline'"
        return WrongKindError(name, kind, reason)

    def _add(self, row: TopicRow, settings: TimelineSettings, rules: int | None) -> None:
        topic = self._topics[row.name] = self._new_topic(row, settings)
        if rules is not None:
            cron = self._rules[row.name] = CronRules(topic, rules, self.told)
            topic.on_gone = cron.on_gone
            # Messages may be gone that rules wait for.
            topic.on_recovered = cron.schedule
            cron.schedule()

    def _new_topic(self, row: TopicRow, settings: TimelineSettings) -> TimelineTopic:
        topic = TimelineTopic(
            row.name,
            row.number,
            settings,
            host=self,
            clock=self._clock,
            committer=self._committer,
            room=self._room,
        )
        topic.schedule()
        if self._beat is None:
            self._wall_ahead_ms = self._clock.now_ms() - self._clock.monotonic_ms()
            self._beat = self._clock.call_later(BEAT_S, self._on_beat)
        return topic

    def _read(
        self, name: str, call: Callable[[int], Call[T]], done: Callable[[T | IsterError], object]
    ) -> None:
        topic = self._topics.get(name)
        if topic is None:
            done(self._missing_error(name))
            return

        def on_read(found: T | Exception) -> None:
            done(as_ister_error(found) if isinstance(found, Exception) else found)

        self._reads.add(call(topic.number), on_read)

    def _schedule_dirty(self) -> None:
        # Answers leave before we look what is to be done next.
        for call in self._after_commit:
            call()
        touched, self._dirty = self._dirty, {}
        for topic in touched:
            topic.schedule()

    @housekeeping
    def _on_beat(self) -> None:
        """Look at everything when the wall clock was set: timers go by another one."""
        if self._closed:
            return
        self._beat = self._clock.call_later(BEAT_S, self._on_beat)
        self.max_clock.latest_ms()
        ahead_ms = self._clock.now_ms() - self._clock.monotonic_ms()
        if abs(ahead_ms - self._wall_ahead_ms) < JUMP_MS:
            return
        self._logger.info("clock_set", by_ms=ahead_ms - self._wall_ahead_ms)
        self._wall_ahead_ms = ahead_ms
        for topic in (*self._topics.values(), *self._hidden.values()):
            topic.schedule()
        for rules in list(self._rules.values()):
            rules.schedule()
