"""Publishing stages: all of them at once, and once for each number of a series.

Always true:
- the mark of a series is in the journal with what it stands for, whole or absent, and is known
  before anybody is answered: a repeated number is found;
- stages are published one after the other, in the order they were asked for. So the same number
  that is asked for twice waits for itself, and a higher one cannot overtake a lower one;
- the batches are not in memory, but for those of small stages: the journal reads each from its
  stage when it writes it, and consumers read it from the journal;
- stages that could not be published are still there, unless they cannot be read back.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ister.base import Durability
from ister.base.errors import (
    BadRequestError,
    IsterError,
    LimitReachedError,
    StageTooLargeError,
    TopicNotFoundError,
)
from ister.base.limits import NAME_BYTES_MAX, SERIES_BATCHES_MAX, SERIES_BYTES_MAX
from ister.broker.state import Change, SeriesPublished, encode_changes
from ister.broker.storage import Storage
from ister.broker.streams import Streams, StreamTopic
from ister.broker.transactions.stages import Stage, StagedBatch, Staging
from ister.log import Log

# Publishes that wait for the one under way, of all connections: a few hundred queries at once.
PUBLISHES_MAX = 1_000
# As the journal has numbers.
NUMBER_MAX = 2**62


class Published(NamedTuple):
    """What became of some stages: published just now, or that number had been before.

    `overtaken`: a higher one had been, and this very number perhaps not.
    """

    repeated: bool
    messages: int = 0
    overtaken: bool = False


OnPublished = Callable[[Published | IsterError], object]


@dataclass(frozen=True, slots=True)
class _Request:
    stage_ids: Sequence[str]
    series: str
    number: int
    done: OnPublished


class SeriesPublisher:
    """Publishes stages, one request after the other."""

    def __init__(self, staging: Staging, streams: Streams) -> None:
        self._staging = staging
        self._streams = streams
        self._waiting: deque[_Request] = deque()
        # One is under way; and the next is being chosen.
        self._busy = False
        self._going_on = False

    def publish(
        self, stage_ids: Sequence[str], series: str, number: int, done: OnPublished
    ) -> None:
        """Publish everything of some stages as a number of a series; `done` is called once.

        It may be called at once. Raises when the request makes no sense.
        """
        if not 0 < len(series.encode()) <= NAME_BYTES_MAX:
            raise BadRequestError(f"the name of a series has 1 to {NAME_BYTES_MAX} bytes")
        if not 0 <= number < NUMBER_MAX:
            raise BadRequestError(f"the number of a publish is 0 to 2^62 - 1, not {number}")
        if len(set(stage_ids)) < len(stage_ids):
            raise BadRequestError("a stage is named twice")
        if len(self._waiting) >= PUBLISHES_MAX:
            raise LimitReachedError("publishes_max", PUBLISHES_MAX)
        self._waiting.append(_Request(stage_ids, series, number, done))
        self._go_on()

    def _go_on(self) -> None:
        # One that ends while it begins has ended inside this very loop.
        if self._going_on:
            return
        self._going_on = True
        try:
            while self._waiting and not self._busy:
                request = self._waiting.popleft()
                found: Published | IsterError | None
                try:
                    found = self._begin(request)
                except IsterError as error:
                    found = error
                if found is not None:
                    request.done(found)
        finally:
            self._going_on = False

    def _end(self, request: _Request, result: Published | IsterError) -> None:
        self._busy = False
        try:
            request.done(result)
        finally:
            self._go_on()

    def _begin(self, request: _Request) -> Published | None:
        """Have a request carried out, unless it is answered at once."""
        marks = (v.state.series.get(request.series, (-1, 0))[0] for v in self._streams.storages)
        highest = max(marks, default=-1)
        if highest >= request.number:
            self._staging.drop(request.stage_ids)
            return Published(repeated=True, overtaken=highest > request.number)
        stages = [self._staging.get_closed(stage_id) for stage_id in request.stage_ids]
        size, batches = sum(s.size_bytes for s in stages), sum(s.batches for s in stages)
        if size > SERIES_BYTES_MAX:
            raise StageTooLargeError("bytes", size, SERIES_BYTES_MAX)
        if batches > SERIES_BATCHES_MAX:
            raise StageTooLargeError("batches", batches, SERIES_BATCHES_MAX)
        topics = sum(len(s.topics) for s in stages)
        if topics > SERIES_BATCHES_MAX:
            raise StageTooLargeError("topics", topics, SERIES_BATCHES_MAX)
        storage = self._storage(request.series, stages)
        storage.committer.check_room()
        self._busy = True
        for stage in stages:
            stage.publishing = True
        if batches:
            self._staging.list_batches(
                stages, lambda found: self._on_found(storage, request, stages, found)
            )
        else:
            self._append(storage, request, stages, [])
        return None

    def _storage(self, series: str, stages: Sequence[Stage]) -> Storage:
        """Return where all topics of some stages are kept; without any, where the series is."""
        storages = {id(topic.storage): topic.storage for stage in stages for topic in stage.topics}
        if len(storages) > 1:
            raise BadRequestError(
                "stages to be published together are for topics that are kept in different "
                "places (durability): publish them as two series"
            )
        known = [v for v in self._streams.storages if series in v.state.series]
        for storage in (*storages.values(), *known, *self._streams.storages):
            return storage
        return self._streams.storage_for(Durability.FSYNC)

    def _on_found(
        self,
        storage: Storage,
        request: _Request,
        stages: Sequence[Stage],
        found: list[StagedBatch] | IsterError,
    ) -> None:
        try:
            if isinstance(found, IsterError):
                raise found
            # Time has passed.
            storage.committer.check_room()
            for stage in stages:
                for topic in stage.topics:
                    if topic.deleted:
                        raise TopicNotFoundError(topic.name)
            self._append(storage, request, stages, found)
        except IsterError as error:
            self._staging.on_not_published(stages)
            self._end(request, error)

    def _append(
        self,
        storage: Storage,
        request: _Request,
        stages: Sequence[Stage],
        batches: list[StagedBatch],
    ) -> None:
        mark = SeriesPublished(request.series, request.number, storage.clock.now_ms())
        for batch in batches:
            batch.topic.stamp(batch)

        def on_done(error: IsterError | None) -> None:
            if error is not None:
                self._staging.on_not_published(stages)
                self._end(request, error)
                return
            messages = sum(stage.messages for stage in stages)
            self._staging.on_published(stages)
            self._end(request, Published(repeated=False, messages=messages))

        storage.commit(SeriesWrite(batches, [mark]), on_done)


@dataclass(frozen=True, slots=True)
class SeriesWrite:
    """Staged batches, each an entry of its own, that count once all of them are stored."""

    batches: Sequence[StagedBatch]
    changes: Sequence[Change]

    def append_to(self, log: Log) -> None:
        """See `Writable`."""
        log.append_series([batch.part() for batch in self.batches], encode_changes(self.changes))

    def show(self) -> None:
        """See `Writable`: topic by topic."""
        found: dict[StreamTopic, list[StagedBatch]] = {}
        for batch in self.batches:
            found.setdefault(batch.topic, []).append(batch)
        for topic, own in found.items():
            topic.on_series(
                own[-1].base_offset + own[-1].count,
                count=sum(batch.count for batch in own),
                size_bytes=sum(batch.size_bytes for batch in own),
                held=[batch.held for batch in own if batch.held is not None],
            )
