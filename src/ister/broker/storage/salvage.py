"""Makes a whole log of what can still be read of a damaged one.

    survey (what is there) → plan (what of it counts, and what is lost) → copy, one checkpoint

Always true:
- the source is only read;
- a message in the new log is one of the source: same topic, offset, time, key, attributes, id;
- an offset is given once. The next one of a topic is behind all that were given, as far as
  anything that is left tells;
- what is lost at the start of a topic is trimmed, as by retention. Anywhere else it is a gap, and
  the new segments around it are of the form that says so (`Form.KEYED`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby

from ister.base import Retention, StreamSettings, partition_name
from ister.broker.state import (
    Change,
    NamespaceCreated,
    State,
    SubscriptionDeleted,
    TopicCreated,
    TopicDeleted,
    TopicRecord,
    decode_changes,
)
from ister.broker.storage.stopped_log import StoppedLog, unlimited_budgets
from ister.log import (
    Entry,
    FileBackend,
    Form,
    FoundFile,
    Kind,
    LogOptions,
    Problem,
    Rewrite,
    Span,
    Survey,
    parse_transaction,
    split_window,
    survey_folder,
)
from ister.subscriptions import OffsetSet

# Where topics are whose names are lost.
NAMESPACE = "salvaged"

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class LostRange:
    """Messages of a topic that are gone, `start` to `end` (exclusive)."""

    topic: str
    start: int
    end: int

    @property
    def messages(self) -> int:
        """How many there were, at most."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class HurtSubscription:
    """A subscription that is not known to be as it was."""

    topic: str
    name: str
    reason: str


@dataclass(slots=True)
class SalvagedStreams:
    """What was salvaged of streams, and what not."""

    topics: int = 0
    messages: int = 0
    size_bytes: int = 0
    lost: list[LostRange] = field(default_factory=list)
    # By their new names.
    nameless: list[str] = field(default_factory=list)
    subscriptions: list[HurtSubscription] = field(default_factory=list)
    # Entries of the journal that are gone, start and end; `None`: nobody knows.
    lost_entries: list[tuple[int, int | None]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether nothing is lost."""
        return not (self.lost or self.nameless or self.subscriptions or self.lost_entries)


@dataclass(slots=True)
class Plan:
    """What is to be in the new log."""

    survey: Survey
    state: State
    # By topic, by rising offsets.
    spans: dict[int, list[Span]]
    report: SalvagedStreams


def plan_salvage(
    backend: FileBackend, options: LogOptions, *, on_progress: Progress = lambda _, __: None
) -> Plan:
    """Read everything that there is, and decide what of it counts. Changes nothing.

    Raises `EncryptionKeyError` without any keys for what is encrypted, `NotEncryptedError`,
    `BadRequestError` when the tier is not given, and `OSError`.
    """
    replay = _Replay(options)
    survey = survey_folder(
        backend, options, restore=replay.restore, apply=replay.apply, on_progress=on_progress
    )
    planner = _Planner(survey, replay)
    planner.run()
    return Plan(survey, replay.state, planner.spans, planner.report)


def carry_out(
    plan: Plan, target: FileBackend, options: LogOptions, *, on_progress: Progress
) -> SalvagedStreams:
    """Write what was planned into an empty folder. It counts when this returns, and not before."""
    new = StoppedLog(target, options)
    try:
        new.state.close()
        new.state = plan.state
        for topic, spans in plan.spans.items():
            name = plan.state.topics[topic].name
            on_progress(name, 0)
            for _, some in groupby(spans, key=lambda span: span.segment.form is Form.KEYED):
                rewrite = _rewrite(plan, new, topic, list(some))
                rewrite.run(lambda size_bytes, name=name: on_progress(name, size_bytes))  # type: ignore[misc]
                new.log.rewritten(rewrite)
                plan.report.size_bytes += rewrite.figures.written_bytes
        # Leases of consumers that are still there must not be taken for leases of the new log.
        new.checkpoint(epoch_min=plan.survey.epoch)
    finally:
        new.close()
    return plan.report


def _rewrite(plan: Plan, new: StoppedLog, topic: int, spans: list[Span]) -> Rewrite:
    return Rewrite(
        reason="salvaged",
        spans={topic: spans},
        horizon={topic: plan.state.topics[topic].first_offset},
        place=new.log.home,
        keys=None,
        backend=new.backend,
        reader=plan.survey.reader,
        options=new.log.options,
        numbers=new.log.numbers,
        owner=new.log.owner,
        numbers_there={topic: topic},
        # New segments have numbers by rising offsets.
        order=0,
    )


class _Replay:
    """The state as it is read back, and what it lacks."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self.state = State(unlimited_budgets())
        # Of the snapshot: topics up to here that it does not have are deleted.
        self.topic_number = 0
        self.deleted_topics: set[int] = set()
        self.deleted_subscriptions: set[int] = set()
        # Those that changes speak of, and that nothing has made.
        self.unknown_subscriptions: set[int] = set()

    def restore(self, snapshot: bytes) -> None:
        """Take a snapshot, or raise `ValueError`."""
        state = State(unlimited_budgets())
        state.restore(snapshot, now_ms=self._options.now_ms())
        self.state = state
        self.topic_number = state.topic_number

    def apply(self, entry: Entry) -> None:
        """Take an entry, or raise `CorruptedError`."""
        self.state.apply(entry)
        if entry.kind == Kind.CHANGES:
            self._look(bytes(entry.body))
        elif entry.kind == Kind.TRANSACTION:
            self._look(parse_transaction(entry.body)[1])

    def _look(self, changes: bytes) -> None:
        for change in decode_changes(changes):
            if isinstance(change, TopicDeleted):
                self.deleted_topics.add(change.topic)
            elif isinstance(change, SubscriptionDeleted):
                self.deleted_subscriptions.add(change.subscription)
            number = getattr(change, "subscription", None)
            if number is not None and number not in self.state.subscriptions:
                self.unknown_subscriptions.add(number)


class _Planner:
    """Decides what of a survey counts."""

    def __init__(self, survey: Survey, replay: _Replay) -> None:
        self._survey = survey
        self._replay = replay
        self._state = replay.state
        manifest = survey.manifest
        self._named = manifest.spans if manifest is not None else {}
        # Where the manifest says that each topic is.
        self._homes = {
            topic: {(span.segment.place, span.segment.number) for span in spans}
            for topic, spans in self._named.items()
        }
        self.spans: dict[int, list[Span]] = {}
        self.report = SalvagedStreams(
            lost_entries=survey.lost_entries, problems=survey.problems, notes=survey.notes
        )

    def run(self) -> None:
        """Plan every topic."""
        self._name_topics()
        for record in self._state.topics.values():
            self._plan_topic(record)
        self._state.drop_dead_cursors()
        self._blame_subscriptions()
        self.report.topics = len(self._state.topics)

    @property
    def _is_incomplete(self) -> bool:
        return bool(self._survey.lost_entries)

    def _name_topics(self) -> None:
        """Give a name to topics that have messages and are not known."""
        if not self._is_incomplete and self._survey.manifest is not None:
            return
        replay, taken = self._replay, self._state.names()
        found: set[int] = set()
        for file in self._survey.files:
            if not file.is_current:
                continue
            for topic in file.windows:
                # What a manifest does not name of its own files is of a topic that was deleted.
                if not file.is_named or topic in self._named:
                    found.add(topic)
        self._state.topic_number = max([self._state.topic_number, *found, *self._named])
        found -= self._state.topics.keys() | replay.deleted_topics
        for topic in sorted(number for number in found if number > replay.topic_number):
            name = f"/{NAMESPACE}/topic-{topic}"
            while name in taken:
                name += "-"
            changes: list[Change] = [
                NamespaceCreated(NAMESPACE),
                TopicCreated(topic, name, StreamSettings()),
            ]
            self._state.on_changes(changes)
            self.report.nameless.append(name)
        self._make_partitions()

    def _make_partitions(self) -> None:
        """Make the partitions whose names are lost: a broker opens a topic with all of them."""
        state = self._state
        for name, count in state.partitioned.items():
            parts = [partition_name(name, n) for n in range(count)]
            settings = [one.settings for one in state.topics.values() if one.name in parts]
            for part in parts:
                if part not in state.names():
                    number = state.topic_number = state.topic_number + 1
                    default = settings[0] if settings else StreamSettings()
                    state.on_changes([TopicCreated(number, part, default)])

    def _plan_topic(self, record: TopicRecord) -> None:
        current = [file for file in self._survey.files if self._counts(file, record.topic)]
        others = [file for file in self._survey.files if not self._counts(file, record.topic)]
        choice = _Choice(record.topic, self._survey)
        for file in current:
            choice.take(file)
        self._settle(record, choice)
        lost = self._lost(record, choice)
        if lost:
            for file in others:
                choice.take(file, within=lost)
            lost = self._lost(record, choice)
        name = record.name
        self.report.lost += [LostRange(name, *run) for run in lost]
        spans = sorted(choice.spans, key=lambda span: span.first_offset)
        spans = [span for span in spans if span.end_offset > record.first_offset]
        if record.settings.retention != Retention.COMPACT:
            start = spans[0].first_offset if spans else record.next_offset
            record.first_offset = max(record.first_offset, start)
        self.report.messages += sum(s.end_offset - s.first_offset for s in spans)
        if spans:
            self.spans[record.topic] = self._formed(record, spans)

    def _counts(self, file: FoundFile, topic: int) -> bool:
        """Whether what a file has of a topic is not what is left of something rewritten."""
        if not file.is_named:
            return file.is_current
        return (file.segment.place, file.segment.number) in self._homes.get(topic, ())

    def _settle(self, record: TopicRecord, choice: "_Choice") -> None:
        """Have the record of a topic know what of it was found, where the state is too old."""
        named = self._named.get(record.topic, [])
        ends = [span.end_offset for span in [*choice.spans, *named]]
        for one in self._state.subscriptions.values():
            cursor = one.cursors.get(record.topic)
            if cursor is not None:
                ends += [cursor.floor, cursor.acked.end if cursor.acked else 0]
        record.next_offset = max([record.next_offset, *ends])
        record.last_ms = max([record.last_ms, *(span.last_ms for span in choice.spans)])
        if (self._survey.is_stale and self._is_incomplete) or record.name in self.report.nameless:
            # What retention has dropped since is not lost.
            starts = named or choice.spans
            first = min((span.first_offset for span in starts), default=record.next_offset)
            record.first_offset = max(record.first_offset, first)

    def _lost(self, record: TopicRecord, choice: "_Choice") -> list[tuple[int, int]]:
        """Return the ranges that should be there and are not."""
        is_compact = record.settings.retention == Retention.COMPACT
        named = self._named.get(record.topic, [])
        keyed_end = max((s.end_offset for s in named if s.segment.form is Form.KEYED), default=-1)
        named_end = named[-1].end_offset if named else 0
        suspects = OffsetSet()
        for start, end in self._suspects(record, choice):
            suspects.add(start, end)
        lost: list[tuple[int, int]] = []
        for start, end in choice.covered.gaps_within(record.first_offset, record.next_offset):
            if is_compact:
                is_known = end <= named_end or not self._is_end_damaged
            else:
                is_known = start <= keyed_end
            lost += suspects.within(start, end).runs() if is_known else [(start, end)]
        return lost

    @property
    def _is_end_damaged(self) -> bool:
        """Whether messages may be missing that no manifest knows of."""
        survey, manifest = self._survey, self._survey.manifest
        unnamed = [file for file in survey.files if file.is_current and not file.is_named]
        numbers = {file.segment.number for file in unnamed}
        is_missing = (
            manifest is not None and manifest.replay_exists and manifest.replay_from not in numbers
        )
        return is_missing or bool(survey.lost_entries) or any(file.bad for file in unnamed)

    def _suspects(self, record: TopicRecord, choice: "_Choice") -> Iterable[tuple[int, int]]:
        """Yield the ranges that messages in damaged places may have had."""
        for file in self._survey.files:
            if not file.bad or not self._counts(file, record.topic):
                continue
            windows = file.windows.get(record.topic, [])
            named = [s for s in self._named.get(record.topic, []) if _is_in(s, file)]
            if not windows and not named:
                continue
            first = named[0].first_offset if named else 0
            last = named[-1].end_offset if named else record.next_offset
            for position, end in file.bad:
                before = [s.end_offset for s in windows if s.end <= position]
                behind = [s.first_offset for s in windows if s.position >= end]
                start, stop = max(before, default=first), min(behind, default=last)
                if start < stop:
                    yield start, stop

    def _formed(self, record: TopicRecord, spans: list[Span]) -> list[Span]:
        """Return windows whose segments say whether there are gaps around them."""
        if record.settings.retention == Retention.COMPACT:
            return spans
        last = -1
        for slot, span in enumerate(spans):
            end = spans[slot + 1].first_offset if slot + 1 < len(spans) else record.next_offset
            if span.end_offset < end:
                # The one behind a gap tells of it; behind the last one there is none yet.
                last = min(slot + 1, len(spans) - 1)
        return [
            span._replace(
                segment=replace(span.segment, form=Form.KEYED if slot <= last else Form.SORTED)
            )
            for slot, span in enumerate(spans)
        ]

    def _blame_subscriptions(self) -> None:
        if not self._is_incomplete:
            return
        for one in self._state.subscriptions.values():
            self.report.subscriptions.append(
                HurtSubscription(
                    one.created.pattern,
                    one.created.name,
                    "later acknowledgements and settings may be lost: what was acknowledged since "
                    "is delivered again",
                )
            )
        known = self._state.subscriptions.keys() | self._replay.deleted_subscriptions
        for number in sorted(self._replay.unknown_subscriptions - known):
            self.report.subscriptions.append(
                HurtSubscription("", f"number {number}", "it is lost: create it again")
            )


def _is_in(span: Span, file: FoundFile) -> bool:
    one, other = span.segment, file.segment
    return (one.place, one.number) == (other.place, other.number)


class _Choice:
    """Windows of one topic that do not overlap."""

    def __init__(self, topic: int, survey: Survey) -> None:
        self._topic = topic
        self._survey = survey
        self.spans: list[Span] = []
        self.covered = OffsetSet()

    def take(self, file: FoundFile, *, within: list[tuple[int, int]] | None = None) -> None:
        """Take what a file has and others have not; only what lies in some ranges, if given."""
        for span in file.windows.get(self._topic, []):
            if self._fits(span, within):
                self._add(span)
            elif self._may_fit(span, within):
                for one in split_window(self._survey.reader, span, self._topic):
                    if self._fits(one, within):
                        self._add(one)

    def _add(self, span: Span) -> None:
        self.spans.append(span)
        self.covered.add(span.first_offset, span.end_offset)

    def _fits(self, span: Span, within: list[tuple[int, int]] | None) -> bool:
        start, end = span.first_offset, span.end_offset
        if self.covered.count_within(start, end):
            return False
        return within is None or any(s <= start and end <= e for s, e in within)

    def _may_fit(self, span: Span, within: list[tuple[int, int]] | None) -> bool:
        start, end = span.first_offset, span.end_offset
        if self.covered.count_within(start, end) == end - start:
            return False
        return within is None or any(s < end and start < e for s, e in within)
