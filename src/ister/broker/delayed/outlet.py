"""Due messages on their way into one stream: each is stored once, also when the broker is killed.

    QUIET --messages--> STORING --stored, or refused--> QUIET, or STORING what came meanwhile
    STORING --nobody knows--> QUIET, and STORING the same once the journal has recovered

How a message is known to be stored: every lease gives its row a version that is above all before
it, and that nothing will ever have again. With messages goes a note of the versions that they had,
in the same entry of the journal: as the numbers of a producer that nobody else can be. Who finds a
lease from before a crash looks there.

Always true:
- messages are stored in the order of their versions, one entry of the journal at a time. So of
  those that the range of a note covers, all that are for this stream were stored with it;
- what is refused has no version of a note, and gets another one with its next lease;
- a message whose write is uncertain keeps its version until it is stored by an entry of its own,
  so that the next start recognises it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from ister.base.errors import IsterError, StorageUncertainError
from ister.base.limits import MIB
from ister.broker.delayed.envelope import Letter, batches_of
from ister.broker.state import Sequenced
from ister.broker.storage import Write
from ister.broker.streams import StreamTopic
from ister.codec import Batch
from ister.telemetry import Occasions

# One entry of the journal: a few milliseconds of the event loop, and of the disk.
ENTRY_COUNT = 1_000
ENTRY_BYTES = 4 * MIB
# How often to look whether a journal that failed has recovered.
RETRY_S = 1.0

# Told of messages that are through: stored, or to be tried again later.
Settle = Callable[[Sequence[Letter]], object]


class Outlet:
    """Publishes due messages to one stream, each exactly once.

    `producer` is the name that versions are noted under. `told` throttles the log for all streams
    together.
    """

    def __init__(
        self,
        stream: StreamTopic,
        producer: str,
        batch_bytes: int,
        *,
        finish: Settle,
        release: Settle,
        told: Occasions,
    ) -> None:
        self.stream = stream
        self._producer = producer
        self._batch_bytes = batch_bytes
        self._finish = finish
        self._release = release
        self._waiting: list[Letter] = []
        # Nobody knows whether these are stored; nothing is once the journal has recovered.
        self._uncertain: list[Letter] = []
        self._busy = False
        self._told = told
        self._logger: Any = structlog.get_logger("delayed")

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do."""
        return not self._busy and not self._waiting and not self._uncertain

    def has_stored(self, version: int) -> bool:
        """Return whether the message that has this version is in the stream."""
        record = self.stream.record.producers.find(self._producer)
        if record is None:
            return False
        return any(first <= version < first + count for first, _, count in record.runs)

    def add(self, letters: Sequence[Letter]) -> None:
        """Have messages stored, whose versions are above those of all before them."""
        self._waiting += letters
        self._pump()

    def _pump(self) -> None:
        committer = self.stream.storage.committer
        is_known = bool(self._uncertain) and committer.error is None
        if self._busy or not (self._waiting or is_known):
            return
        self._busy = True
        if committer.full and committer.error is None:
            committer.on_relief(self._go_on)
            return
        if is_known:
            letters, self._uncertain = self._uncertain, []
        else:
            letters = self._take()
        try:
            self._store(letters)
        except IsterError as error:
            self._on_stored(letters, error)

    def _take(self) -> list[Letter]:
        size_bytes = 0
        for slot, letter in enumerate(self._waiting):
            size_bytes += letter.size_bytes
            if slot and (slot == ENTRY_COUNT or size_bytes > ENTRY_BYTES):
                taken, self._waiting = self._waiting[:slot], self._waiting[slot:]
                return taken
        taken, self._waiting = self._waiting, []
        return taken

    def _store(self, letters: list[Letter]) -> None:
        stream, storage = self.stream, self.stream.storage
        storage.committer.check_room()
        first, last = letters[0].row.version, letters[-1].row.version
        noted = Sequenced(stream.record.topic, self._producer, first, last - first + 1)
        stored: list[Batch] = []
        # All of them first: what is stamped has to be stored.
        for batch in list(batches_of(letters, self._batch_bytes)):
            # What is known by its id was sent without delay, or under another delay before.
            new, _ = stream.sort_out(batch)
            if new is not None:
                stream.stamp(new)
                stored.append(new)
        write = Write(batches=[(stream, batch) for batch in stored], changes=[noted])
        storage.commit(write, lambda error: self._on_stored(letters, error))

    def _on_stored(self, letters: list[Letter], error: IsterError | None) -> None:
        if error is None:
            self._finish(letters)
        else:
            # With those behind them, which it would refuse as well.
            refused, self._waiting = self._waiting, []
            if isinstance(error, StorageUncertainError):
                self._uncertain = letters
                self._repeat_later()
            else:
                refused = letters + refused
            if refused:
                self._refuse(refused, error)
        self._go_on()

    def _refuse(self, letters: list[Letter], error: IsterError) -> None:
        if times := self._told.times("delayed_refused"):
            self._logger.warning(
                "delayed_refused",
                topic=self.stream.name,
                messages=len(letters),
                reason=str(error),
                times=times,
            )
        self._release(letters)

    def _repeat_later(self) -> None:
        self.stream.storage.clock.call_later(RETRY_S, self._repeat)

    def _repeat(self) -> None:
        self._pump()
        if self._uncertain:
            self._repeat_later()

    def _go_on(self) -> None:
        self._busy = False
        self._pump()
