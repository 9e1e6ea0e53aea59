"""Messages that are sent now and published later, without I/O: those of one turn travel together.

    open batch --full, or end of the turn--> queue --> with the broker --> on its disk

Always true:
- every batch has a word of its own, under which the broker keeps it once: what was under way when a
  connection was lost is sent again on the next one;
- the time that a delay counts from is when the message was given to us, not when it is sent.
"""

from collections import deque
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ister.base import Seconds, Time
from ister.base.errors import (
    BadRequestError,
    IsterError,
    MessageTooLargeError,
    NotConnectedError,
    ProducerFullError,
    RequestTimeoutError,
)
from ister.base.limits import (
    PRODUCER_PENDING_BYTES_MAX,
    TIMELINE_BYTES,
    TIMELINE_CHANGES_MAX,
    TIMELINE_MESSAGE_BYTES_MAX,
)
from ister.client.session.calls import COMES_BACK, OnReply
from ister.client.session.checks import as_bytes, check_extras
from ister.client.session.due import due_ms_of
from ister.client.session.ids import OFFSET_DELAYED
from ister.client.session.producing.pending import PendingBatch, Sent
from ister.codec import Attributes, encode
from ister.wire import Command, Done, SendDelayed

if TYPE_CHECKING:
    from ister.client.session.port import SessionPort
    from ister.client.session.producing.producer import ProducerChannel

# Commands under way: 8 MiB at most, which keeps a disk busy.
COMMANDS_MAX = 8
# What a message takes beside its payload, key, id and attributes: its topic, its producer. And each
# attribute beside its two words, of which there may be many.
ENVELOPE_BYTES = 1_024
ATTRIBUTE_BYTES = 6
# What a message may be sent with: a point in time, or so long from now.
DeliverAt = Time
DeliverAfter = Seconds
NAMES = ("deliver_at", "deliver_after")

_Receipt = TypeVar("_Receipt", bound=Sent)


class Due(NamedTuple):
    """When a message is to be published: not before either of these."""

    # Milliseconds since 1970; 0: at any time.
    due_ms: int
    # By our own clock that is never set; 0: at once.
    own_ms: int


def due_of(deliver_at: DeliverAt | None, deliver_after: DeliverAfter | None, now_ms: int) -> Due:
    """Return when a message is due, or raise `BadRequestError`; `now_ms` is of a clock never set.

    One of the two is not `None`.
    """
    due_ms = due_ms_of(deliver_at, deliver_after, 0, NAMES)
    return Due(due_ms, 0) if deliver_after is None else Due(0, now_ms + due_ms)


def _size_of(
    payload: bytes, key: str | None, attributes: Attributes | None, message_id: str | None
) -> int:
    """Return what a message takes where it waits. Of too large a one the broker takes no batch."""
    pairs = (attributes or {}).items()
    words = chain([key or "", message_id or ""], *pairs)
    beside = ENVELOPE_BYTES + ATTRIBUTE_BYTES * len(pairs)
    return len(payload) + beside + sum(len(word.encode()) for word in words)


class DelayedBatch(PendingBatch):
    """Messages on their way to the disk of the broker."""

    def __init__(self, topic: str, queued_ms: int, word: str) -> None:
        super().__init__(topic, queued_ms)
        self.word = word
        self.due: list[Due] = []


class DelayBox:
    """What one producer sends that is to be published later."""

    def __init__(self, session: "SessionPort", channel: "ProducerChannel") -> None:
        self._session = session
        self._channel = channel
        self._open: DelayedBatch | None = None
        self._queue: deque[DelayedBatch] = deque()
        self._under_way: dict[str, DelayedBatch] = {}
        self._count = 0

    def add(
        self,
        payload: bytes,
        key: str | None,
        attributes: Attributes | None,
        message_id: str | None,
        due: Due,
        receipt: "type[_Receipt]",
    ) -> "_Receipt":
        """Add a message to those of this turn; returns a `receipt` of it."""
        channel = self._channel
        if channel.closed is not None:
            raise channel.closed
        if channel.pending_bytes >= PRODUCER_PENDING_BYTES_MAX:
            raise ProducerFullError(channel.topic, channel.pending_bytes)
        payload = as_bytes(payload)
        check_extras(key, attributes, message_id)
        if len(payload) > channel.message_bytes_max:
            raise MessageTooLargeError(channel.topic, len(payload), channel.message_bytes_max)
        size = _size_of(payload, key, attributes, message_id)
        if size > TIMELINE_MESSAGE_BYTES_MAX:
            raise MessageTooLargeError(channel.topic, size, TIMELINE_MESSAGE_BYTES_MAX, setting="")
        batch = self._open
        if batch is not None and batch.size_bytes + size > TIMELINE_BYTES:
            self.cut()
            batch = None
        if batch is None:
            batch = self._start()
        slot = len(batch.payloads)
        batch.payloads.append(payload)
        batch.due.append(due)
        if batch.extras or key is not None or attributes is not None or message_id is not None:
            batch.add_extras(key, attributes, message_id, None)
        batch.size_bytes += size
        channel.pending_bytes += size
        if slot + 1 >= TIMELINE_CHANGES_MAX:
            self.cut()
        return receipt(batch, slot)

    def cut(self) -> None:
        """End the open batch."""
        if self._open is not None:
            self._queue.append(self._open)
            self._open = None

    def flush(self) -> None:
        """End the turn: send what was collected."""
        self.cut()
        self.pump()

    def pump(self) -> None:
        """Send what waits, as far as the connection allows."""
        while (
            self._queue
            and len(self._under_way) < COMMANDS_MAX
            and self._channel.opened
            and self._session.can_publish
        ):
            batch = self._queue.popleft()
            self._under_way[batch.word] = batch
            self._session.call(self._command(batch), self._replying(batch))

    def pending(self) -> Iterator[DelayedBatch]:
        """Yield every batch that is not done."""
        self.cut()
        yield from self._under_way.values()
        yield from self._queue

    def expire(self, now_ms: int, timeout_ms: int) -> None:
        """Fail what has waited too long for a connection. What is under way has its own time."""
        while self._queue and now_ms - self._queue[0].queued_ms >= timeout_ms:
            error = RequestTimeoutError(f"publish to {self._channel.topic!r}", timeout_ms / 1000)
            self._channel.finish(self._queue.popleft(), error)

    def clear(self) -> None:
        """Forget everything: whoever waited was told."""
        self._open = None
        self._queue.clear()
        self._under_way.clear()

    def _start(self) -> DelayedBatch:
        session, channel = self._session, self._channel
        self._count += 1
        # Nobody else has the client's id, nor this client another channel of the number.
        word = f"{session.client_id}-{channel.channel}-{self._count}"
        batch = self._open = DelayedBatch(channel.topic, session.pulse_ms, word)
        session.timelines.mark_dirty(self)
        return batch

    def _command(self, batch: DelayedBatch) -> SendDelayed:
        channel, now_ms = self._channel, self._session.now_ms()
        parts = encode(
            batch.payloads,
            keys=batch.keys,
            attributes=batch.attributes,
            ids=batch.ids,
            producer=channel.name.encode(),
            numbered=False,
            schema=channel.schema,
        )
        due_ms = [due.due_ms for due in batch.due]
        delays_ms = [max(due.own_ms - now_ms, 0) for due in batch.due]
        return SendDelayed(
            channel=channel.channel,
            word=batch.word,
            batch=b"".join(parts),
            due_ms=due_ms if any(due_ms) else [],
            delays_ms=delays_ms if any(delays_ms) else [],
        )

    def _replying(self, batch: DelayedBatch) -> OnReply:
        def on_reply(reply: Command | IsterError) -> None:
            if self._under_way.pop(batch.word, None) is None:
                return  # Closed since.
            if isinstance(reply, (*COMES_BACK, NotConnectedError)):
                self._queue.append(batch)
                return
            error = reply if isinstance(reply, IsterError) else None
            if error is None and not isinstance(reply, Done):
                error = BadRequestError(f"broker answered {type(reply).__name__}")
            if error is None:
                batch.offsets = [OFFSET_DELAYED] * len(batch.payloads)
            batch.release()
            self._channel.finish(batch, error)
            self.pump()

        return on_reply
