"""Who of Danube's clients has produced and consumed here, kept so that ids outlive the broker.

Danube's clients go on with an old id after a restart: a Python consumer for ever, whatever it is
answered. So an id follows from the names it stands for, and what it stands for is kept.

Always true:
- a record that was `saved` is found again after a crash; the others mostly are;
- what nobody has used for `KEPT_DAYS` is forgotten, and so is the longest unused beyond
  `RECORDS_MAX`.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Iterator
from hashlib import blake2b
from typing import TypeVar

import msgspec
import structlog

from ister.base.errors import IsterError
from ister.base.limits import FACTS_BYTES_MAX
from ister.metadata import Change, Delete, Metadata, Put, facts_below

logger = structlog.get_logger("grpc")

# A client that comes back after its user's holidays still finds its id.
KEPT_DAYS = 60
# As many as topics; about 300 B each.
RECORDS_MAX = 100_000
DAY_MS = 86_400_000
# Facts in one write, and in one page when they are loaded.
PAGE = 100

PRODUCERS = "danube/producers/"
CONSUMERS = "danube/consumers/"


class ProducerRecord(msgspec.Struct):
    """What the id of a producer stands for."""

    topic: str
    name: str
    # "live" or "stream": a live topic is made again after a restart.
    kind: str
    # When it was last used, in days since 1970.
    day: int = 0


class ConsumerRecord(msgspec.Struct):
    """What the id of a consumer stands for."""

    topic: str
    subscription: str
    name: str
    type: str
    key_filters: list[str]
    kind: str
    day: int = 0


Record = ProducerRecord | ConsumerRecord
_R = TypeVar("_R", ProducerRecord, ConsumerRecord)


def id_of(*names: str) -> int:
    """Return the id of a producer (topic, name) or a consumer (topic, subscription, name)."""
    digest = blake2b("\0".join(names).encode(errors="replace"), digest_size=8).digest()
    # 0 is what an unset id looks like.
    return int.from_bytes(digest, "big") or 1


class Roll:
    """The ids of Danube's producers and consumers, kept over restarts of the broker."""

    def __init__(
        self, metadata: Metadata, now_ms: Callable[[], int], *, records_max: int = RECORDS_MAX
    ) -> None:
        self.producers: dict[int, ProducerRecord] = {}
        self.consumers: dict[int, ConsumerRecord] = {}
        self._metadata = metadata
        self._now_ms = now_ms
        self._records_max = records_max
        # Keys that the metadata does not have as they are, with what to write there.
        self._dirty: dict[str, Record | None] = {}
        self._writing: asyncio.Task[None] | None = None
        # How many groups were written, and the end of the one that is being written.
        self._groups = 0
        self._written: asyncio.Future[None]

    async def load(self) -> None:
        """Read what is kept, and forget what is too old."""
        await self._load(PRODUCERS, self.producers, ProducerRecord)
        await self._load(CONSUMERS, self.consumers, ConsumerRecord)

    def enroll_producer(self, client_id: int, record: ProducerRecord) -> None:
        """Keep what a producer's id stands for."""
        self._enroll(PRODUCERS, self.producers, client_id, record)

    def enroll_consumer(self, client_id: int, record: ConsumerRecord) -> None:
        """Keep what a consumer's id stands for."""
        self._enroll(CONSUMERS, self.consumers, client_id, record)

    def use(self, client_id: int, record: Record) -> None:
        """Note that an id is in use."""
        today = self._today()
        if record.day != today:
            record.day = today
            # At the end, as in `_enroll`.
            if isinstance(record, ProducerRecord):
                self.producers[client_id] = self.producers.pop(client_id, record)
            else:
                self.consumers[client_id] = self.consumers.pop(client_id, record)
            self._write(_key(record, client_id), record)

    def forget_topics(self, topics: Container[str]) -> None:
        """Forget who was on a live topic that is not among `topics`: it was deleted."""
        self._forget_topics(PRODUCERS, self.producers, topics)
        self._forget_topics(CONSUMERS, self.consumers, topics)

    async def saved(self) -> None:
        """Wait until everything enrolled so far is kept, if it can be."""
        # The group that is being written, and those that what waits now is in.
        last = self._groups + 1 + -(-len(self._dirty) // PAGE)
        while self._writing is not None and self._groups < last:
            # Many wait for it, and one that gives up must not end it for the others.
            await asyncio.shield(self._written)

    def _enroll(self, prefix: str, records: dict[int, _R], client_id: int, record: _R) -> None:
        known = records.pop(client_id, None)
        record.day = self._today()
        # At the end: the first is the longest unused, about.
        records[client_id] = record
        if known != record:
            self._write(f"{prefix}{client_id:016x}", record)
        if len(records) > self._records_max:
            oldest = next(iter(records))
            del records[oldest]
            self._write(f"{prefix}{oldest:016x}", None)

    def _forget_topics(self, prefix: str, records: dict[int, _R], topics: Container[str]) -> None:
        for client_id, record in list(records.items()):
            if record.kind == "live" and record.topic not in topics:
                del records[client_id]
                self._write(f"{prefix}{client_id:016x}", None)

    def _write(self, key: str, record: Record | None) -> None:
        self._dirty[key] = record
        if self._writing is None:
            loop = asyncio.get_running_loop()
            self._written = loop.create_future()
            self._writing = loop.create_task(self._write_all())

    async def _write_all(self) -> None:
        """Write what has gathered, one group after the other."""
        try:
            while self._dirty:
                some = list(self._dirty.items())[:PAGE]
                for key, _ in some:
                    del self._dirty[key]
                for changes in _writes(_change(key, record) for key, record in some):
                    await self._metadata.write(*changes)
                self._on_written()
        except IsterError as error:
            # They are used all the same; what is lost is that they outlive this process.
            logger.warning("clients_not_kept", reason=str(error))
        finally:
            self._writing = None
            self._on_written()

    def _on_written(self) -> None:
        self._groups += 1
        written, self._written = self._written, asyncio.get_running_loop().create_future()
        written.set_result(None)

    async def _load(self, prefix: str, records: dict[int, _R], shape: type[_R]) -> None:
        oldest_day = self._today() - KEPT_DAYS
        found: list[tuple[int, _R]] = []
        async for fact in facts_below(self._metadata, prefix, page=PAGE):
            try:
                record = msgspec.json.decode(fact.value, type=shape)
                client_id = int(fact.key.removeprefix(prefix), 16)
            except (ValueError, msgspec.MsgspecError):
                logger.warning("client_not_readable", key=fact.key)
                continue
            if record.day < oldest_day:
                self._write(fact.key, None)
            else:
                found.append((client_id, record))
        found.sort(key=lambda one: one[1].day)
        records.update(found)

    def _today(self) -> int:
        return self._now_ms() // DAY_MS


def _key(record: Record, client_id: int) -> str:
    prefix = PRODUCERS if isinstance(record, ProducerRecord) else CONSUMERS
    return f"{prefix}{client_id:016x}"


def _change(key: str, record: Record | None) -> Change:
    return Delete(key) if record is None else Put(key, msgspec.json.encode(record))


def _writes(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Divide changes so that each part is small enough for one write: filters may be large."""
    part: list[Change] = []
    part_bytes = 0
    for change in changes:
        size_bytes = len(change.value) if isinstance(change, Put) else 0
        if part and part_bytes + size_bytes > FACTS_BYTES_MAX:
            yield part
            part, part_bytes = [], 0
        part.append(change)
        part_bytes += size_bytes
    yield part


def live_topics(records: Iterable[Record]) -> list[str]:
    """Return the live topics that are named, which a restart has made an end of."""
    return sorted({record.topic for record in records if record.kind == "live"})
