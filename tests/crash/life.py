"""One life of a broker on a disk that may fail: from a start to a stop, turn by turn of its loop.

Nothing runs by itself: `turn` and `settle` run what the broker has put off, `tidy` what it does
in the background, and time goes on when its clock is moved. So a test decides what happens while
a group is being committed or a checkpoint written.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from tests.crash.machine import Backend, OpenBackend, on_disk

from ister.base import Origin, Position
from ister.base.errors import IsterError
from ister.base.limits import Limits
from ister.broker import (
    Broker,
    InlineWorker,
    Membership,
    SourceTopic,
    Storage,
    StreamTopic,
    SubscribeOptions,
    Workers,
    open_reader,
    open_storage,
)
from ister.codec import Batch
from ister.log import FileBackend, LogOptions
from ister.subscriptions import Responder
from ister.testing import FaultyDisk, VirtualClock

T = TypeVar("T")

# Small files, so that a short workload rolls over several of them.
SEGMENT_BYTES = 4_096
SEGMENT_ENTRIES = 14
# The first file of each life grows.
ALLOCATE_BYTES = 512
TURNS_MAX = 200
CREDIT = 1_000_000
# What a start takes: leases of two lives are told apart by the second they began.
START_MS = 1_000


def nothing(_: Any = None) -> None:
    """Nobody keeps a record of it."""


class Delivery(NamedTuple):
    """A message that a consumer was sent."""

    topic: str
    offset: int
    payload: bytes
    lease: int
    attempt: int


class Inbox:
    """The way to one consumer or reader: keeps what it is sent."""

    def __init__(self) -> None:
        self.writable = True
        self.responder = Responder(lambda: 0)
        self.address = "memory"
        self.deliveries: list[Delivery] = []
        self.batches: list[Batch] = []
        self.ended: list[IsterError | None] = []

    def deliver(self, channel: int, topic: SourceTopic, batch: Batch) -> None:
        self.batches.append(batch)

    def deliver_leased(
        self,
        channel: int,
        topic: SourceTopic,
        batch: Batch,
        lease: int,
        attempt: int,
        lease_ms: int,
    ) -> None:
        self.deliveries += [
            Delivery(topic.name, offset, bytes(payload), lease, attempt)
            for offset, payload in zip(batch.offsets, batch.payloads, strict=True)
        ]

    def reader_ended(self, channel: int, error: IsterError | None) -> None:
        self.ended.append(error)

    def slow_consumer(self, channel: int, dropped: int) -> None:
        raise AssertionError("a stream drops nothing")

    def active_changed(self, channel: int, *, active: bool) -> None:
        """Nobody waits for that."""

    def consumer_closed(
        self, channel: int, reason: str, *, error: IsterError | None = None
    ) -> None:
        """Nobody waits for that."""

    def leases_void(self, channel: int, leases: int, *, active: bool) -> None:
        self.deliveries.clear()


class Answer:
    """What somebody who asked was told, and how often. `kept` gets what is no error."""

    def __init__(self, kept: Callable[[Any], object]) -> None:
        self.told = 0
        self.value: Any = None
        self._kept = kept

    def tell(self, value: Any = None, *_: object) -> None:
        """Take the answer."""
        self.told += 1
        self.value = value
        if not isinstance(value, IsterError):
            self._kept(value)


class Chores:
    """A worker that works when it is told to."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], object]]] = deque()

    def run(self, call: Callable[[], T], done: Callable[[T | Exception], object]) -> None:
        self._jobs.append((call, done))

    def close(self, timeout_s: float | None = None) -> bool:
        """Everything was done before."""
        return True

    def work(self) -> bool:
        """Do one thing, and return whether there was any."""
        if not self._jobs:
            return False
        call, done = self._jobs.popleft()
        result: Any
        try:
            result = self.call(call)
        except Exception as error:  # noqa: BLE001 - whoever gave the call is told
            result = error
        done(result)
        return True

    def call(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call."""
        return call()


class ChoresAside(Chores):
    """Works in a thread, because what compacts lowers the priority of the one it runs in."""

    def call(self, call: Callable[[], Any]) -> Any:
        results: list[Any] = []

        def work() -> None:
            try:
                results.append(call())
            except BaseException as error:  # noqa: BLE001 - raised again, a crash included
                results.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0]


class Life:
    """See the module."""

    def __init__(
        self, disk: FaultyDisk, *, now_ms: int, open_backend: OpenBackend = on_disk
    ) -> None:
        self.disk = disk
        self.open_backend = open_backend
        self.clock = VirtualClock(now_ms)
        self.broker = Broker(
            name="crashing",
            limits=Limits(),
            clock=self.clock,
            random_slot=lambda _: 0,
            open_local=None,
        )
        self._soon: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._chores = [Chores(), ChoresAside()]
        self._channel = 0
        backend = open_backend(disk)
        self.has_files = isinstance(backend, FileBackend)
        self.storage = self._open(backend)
        self.broker.adopt(self.storage, is_object=not self.has_files)

    def _open(self, backend: Backend) -> Storage:
        worker = InlineWorker(self._call_soon)
        housekeeping, compacting = self._chores
        workers = Workers(
            writing=worker, reading=worker, housekeeping=housekeeping, compacting=compacting
        )
        options = LogOptions(
            segment_bytes=SEGMENT_BYTES,
            segment_entries=SEGMENT_ENTRIES,
            allocate_bytes=ALLOCATE_BYTES,
            extent_bytes=512,
            unsynced_bytes_max=2_048,
            now_ms=self.clock.now_ms,
        )
        return open_storage(
            backend,
            options,
            workers=lambda: workers,
            clock=self.clock,
            call_soon=self._call_soon,
        )

    def _call_soon(self, call: Callable[..., object], *arguments: Any) -> None:
        self._soon.append((call, arguments))

    # The loop

    def turn(self) -> None:
        """Run what was put off so far."""
        for _ in range(len(self._soon)):
            call, arguments = self._soon.popleft()
            call(*arguments)

    def settle(self) -> None:
        """Run until nothing is put off any more."""
        for _ in range(TURNS_MAX):
            self.broker.end_of_turn.run()
            if not self._soon:
                return
            self.turn()
        raise AssertionError("the broker does not come to rest")

    def pass_time(self, seconds: float) -> None:
        """Move the clock, and let what that sets off happen."""
        self.clock.advance(seconds)
        self.settle()

    def tidy(self) -> None:
        """Do what is to be done in the background, and what follows from it."""
        for _ in range(TURNS_MAX):
            worked = [chores.work() for chores in self._chores]
            self.settle()
            if not any(worked):
                return
        raise AssertionError("there is no end to the chores")

    def close(self) -> None:
        """End in good order, as a broker process does."""
        committer = self.storage.committer
        committer.wake()
        self.settle()
        self.tidy()
        if committer.error is None:
            self.storage.checkpoint(lambda _: None)
            self.tidy()
        self.broker.streams.close()
        self.storage.close()

    # Asking

    def ask(
        self,
        request: Callable[[Callable[..., None]], object],
        kept: Callable[[Any], object] = nothing,
    ) -> Answer:
        """Ask something of the broker; it may answer now or later."""
        answer = Answer(kept)
        try:
            request(answer.tell)
        except IsterError as error:
            answer.tell(error)
        return answer

    def subscribe(self, options: SubscribeOptions, tell: Callable[..., None], inbox: Inbox) -> None:
        """Attach a consumer; `tell` gets the membership."""
        self._channel += 1
        self.broker.subscribers.subscribe(
            options, tell, owner="customer", sink=inbox, channel=self._channel
        )

    def attach(self, options: SubscribeOptions) -> tuple[Membership, Inbox]:
        """Attach a consumer to a subscription that is there, and let it have everything."""
        inbox = Inbox()
        answer = self.ask(lambda tell: self.subscribe(options, tell, inbox))
        self.settle()
        membership = answer.value
        assert isinstance(membership, Membership), membership
        membership.consumer.grant(CREDIT, CREDIT)
        self.settle()
        return membership, inbox

    def read(self, topic: StreamTopic) -> dict[int, Batch]:
        """Read all of a topic; return each batch by its first offset, in order."""
        inbox = Inbox()
        answer = self.ask(
            lambda tell: open_reader(
                topic,
                Position(origin=Origin.EARLIEST),
                Position(origin=Origin.LATEST),
                tell,
                turns=self.broker.turns,
                shared=self.broker.durables.shared,
                sink=inbox,
                channel=0,
            )
        )
        reader = answer.value
        reader.grant(CREDIT, CREDIT)
        self.settle()
        assert inbox.ended == [None], f"reading {topic.name}: {inbox.ended}"
        return {batch.offsets[0]: batch for batch in inbox.batches}
